// What only PyTorch's own headers can read of the autograd graph: the node that runs on this thread, and the gradients of parameters. Plain functions without a
// state of this library, so that mode plugin uses them too where this library was built for the PyTorch in use.
#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <typeinfo>
#include <vector>

#define VRAMLEDGER_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
using StrongTensor = c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

struct Parameter {
  WeakTensor tensor;
  uint32_t name;
};

using Parameters = std::vector<Parameter>;

struct Gradient {
  void* address;
  uint64_t bytes;
  uint32_t name;
};

// One storage of its own, whose pointer says where the bytes are: not a subclass, not sparse, not a fake.
bool IsPlain(const c10::TensorImpl& tensor) {
  return tensor.layout() == c10::kStrided && tensor.has_storage() && !tensor.key_set().has(c10::DispatchKey::Python);
}

}  // namespace

// A NodeReader (tracer/phase/torch_signals.h).
VRAMLEDGER_EXPORT int vramledger_torch_current_node(uint64_t* sequence, uint64_t* thread, const char** type) {
  const auto node = torch::autograd::get_current_node();
  if (!node) return 0;
  *sequence = node->sequence_nr();
  *thread = node->thread_id();
  const auto& running = *node;
  *type = typeid(running).name();
  return 1;
}

// Remembers parameters by their TensorImpl (Tensor._cdata; alive during this call) and the string ids of their gradients' names. They are held weakly.
// Returns a handle for the functions below; null if out of memory.
VRAMLEDGER_EXPORT void* vramledger_torch_watch_parameters(const uintptr_t* tensors, const uint32_t* names, size_t count) {
  try {
    auto watched = std::make_unique<Parameters>();
    watched->reserve(count);
    for (size_t i = 0; i < count; ++i) {
      const auto strong = StrongTensor::unsafe_reclaim_from_nonowning(reinterpret_cast<c10::TensorImpl*>(tensors[i]));
      watched->push_back({WeakTensor(strong), names[i]});
    }
    return watched.release();
  } catch (const std::exception&) {
    return nullptr;
  }
}

VRAMLEDGER_EXPORT void vramledger_torch_forget_parameters(void* handle) { delete static_cast<Parameters*>(handle); }

// Calls name(address, role, string id, bytes) for the gradient of every parameter that has one on a CUDA device. Indices of those whose gradient is not a
// plain tensor go to `others` (room for as many as are watched), for Python to take apart; returns their count. The caller holds the GIL, and no backward
// that reaches these parameters runs meanwhile: the optimizer's step that follows could not bear it either.
VRAMLEDGER_EXPORT size_t vramledger_torch_name_gradients(void* handle, int (*name)(void*, int, uint32_t, uint64_t), int role, uint32_t* others) {
  size_t odd = 0;
  const Parameters& parameters = *static_cast<const Parameters*>(handle);
  // Not kept in the handle: a last reference that is dropped at the end may run code that comes back here, or forgets the parameters.
  std::vector<StrongTensor> alive;
  std::vector<Gradient> gradients;
  try {
    alive.reserve(parameters.size());
    gradients.reserve(parameters.size());
  } catch (const std::exception&) {
    return 0;
  }
  // First all references, then all gradients, then their names: an atomic operation or a lock between two tensors would let each wait for the
  // memory of the one before.
  for (const Parameter& parameter : parameters) alive.push_back(parameter.tensor.lock());
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!alive[i]) continue;
    if (!IsPlain(*alive[i])) {
      others[odd++] = static_cast<uint32_t>(i);
      continue;
    }
    const at::Tensor& gradient = alive[i]->grad();
    if (!gradient.defined()) continue;
    const c10::TensorImpl& impl = *gradient.unsafeGetTensorImpl();
    if (!IsPlain(impl)) {
      others[odd++] = static_cast<uint32_t>(i);
    } else if (impl.is_cuda()) {
      const c10::Storage& storage = impl.unsafe_storage();
      void* address = storage.data_ptr().get();
      if (address != nullptr) gradients.push_back({address, storage.nbytes(), parameters[i].name});
    }
  }
  for (const Gradient& gradient : gradients) name(gradient.address, role, gradient.name, gradient.bytes);
  return odd;
}
