#include "allocator/torch/torch_allocator.h"

#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <cstdlib>
#include <string_view>

#include "allocator/torch/torch_settings.h"

namespace vramledger {
namespace {

// torch.cuda's debugging aid: every allocation goes to the device.
bool NeverCaches() {
  static const bool never = [] {
    const char* wish = std::getenv("PYTORCH_NO_CUDA_MEMORY_CACHING");
    return wish != nullptr && std::string_view(wish) == "1";
  }();
  return never;
}

// torch.cuda._sanitizer listens here.
void TellSanitizer(void* address, bool taken) {
  const c10::impl::PyInterpreter* listener = c10::impl::GPUTrace::get_trace();
  if (listener == nullptr) [[likely]]
    return;
  if (taken) {
    (*listener)->trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<uintptr_t>(address));
  } else {
    (*listener)->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<uintptr_t>(address));
  }
}

c10::DeviceIndex CurrentDevice() {
  c10::DeviceIndex device = 0;
  C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
  return device;
}

bool RunFreeMemoryCallbacks(void*) {
  bool freed = false;
  for (const std::string& name : c10::FreeCudaMemoryCallbacksRegistry()->Keys()) {
    freed = c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute() || freed;
  }
  return freed;
}

void* TakeUncached(size_t bytes) {
  void* address = nullptr;
  C10_CUDA_CHECK(cudaMalloc(&address, bytes));
  TellSanitizer(address, true);
  return address;
}

}  // namespace

TorchAllocator::TorchAllocator() : plugin_(Plugin::Get()) {
  plugin_.SetMode("torch", &events_);
}

TorchAllocator& TorchAllocator::Get() {
  // Leaked: PyTorch's own pointer to it outlives PyTorch's static destructors.
  static TorchAllocator* const allocator = new TorchAllocator();
  return *allocator;
}

void TorchAllocator::Install() {
  // PyTorch shares its ownership. The deleter does nothing, and the copy in `kept` is leaked, so that nothing dangles
  // at exit.
  static auto* const kept = new std::shared_ptr<native::CUDAAllocator>(&Get(), [](native::CUDAAllocator*) {});
  RememberReplaced(native::get()->name());
  torch::cuda::CUDAPluggableAllocator::changeCurrentAllocator(*kept);
  // torch.accelerator asks here; PyTorch registers its own with a lower priority.
  c10::SetAllocator(c10::DeviceType::CUDA, &Get(), 2);
}

CachingAllocator& TorchAllocator::Core(c10::DeviceIndex device) {
  std::string error;
  CachingAllocator* core = plugin_.core(&error);
  TORCH_CHECK(core != nullptr, "vramledger: ", error);
  TORCH_CHECK(device >= 0 && device < core->device_count(), "vramledger: there is no CUDA device ",
              static_cast<int>(device));
  return *core;
}

// ---- allocation and free ----

void* TorchAllocator::Take(size_t bytes, c10::DeviceIndex device, cudaStream_t stream) {
  const TorchEvents::ContextScope context(events_, native::RecordContext::STATE);
  void* address = plugin_.Allocate(bytes, device, reinterpret_cast<StreamHandle>(stream));
  TellSanitizer(address, true);
  return address;
}

void TorchAllocator::Delete(void* address) {
  if (address == nullptr) return;
  TorchAllocator& self = Get();
  const TorchEvents::ContextScope context(self.events_, native::RecordContext::ALL);
  TellSanitizer(address, false);
  self.plugin_.Free(address, 0);
}

void TorchAllocator::DeleteUncached(void* address) {
  if (address == nullptr) return;
  TellSanitizer(address, false);
  C10_CUDA_CHECK_WARN(cudaFree(address));
}

c10::DataPtr TorchAllocator::allocate(size_t bytes) {
  TORCH_CHECK_WITH(OutOfMemoryError, bytes < size_t{1} << 60,
                   "CUDA out of memory. Tried to allocate more than 1EB memory.");
  const c10::DeviceIndex device = CurrentDevice();
  const c10::Device where(c10::DeviceType::CUDA, device);
  if (!enabled_ || NeverCaches()) [[unlikely]] {
    void* address = bytes != 0 ? TakeUncached(bytes) : nullptr;
    return {address, address, &DeleteUncached, where};
  }
  void* address = bytes != 0 ? Take(bytes, device, c10::cuda::getCurrentCUDAStream(device)) : nullptr;
  return {address, address, &Delete, where};
}

c10::DeleterFnPtr TorchAllocator::raw_deleter() const {
  return !enabled_ || NeverCaches() ? &DeleteUncached : &Delete;
}

void TorchAllocator::copy_data(void* to, const void* from, size_t bytes) const {
  C10_CUDA_CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToDevice));
}

void* TorchAllocator::raw_alloc(size_t bytes) {
  return bytes != 0 ? raw_alloc_with_stream(bytes, c10::cuda::getCurrentCUDAStream(CurrentDevice())) : nullptr;
}

void* TorchAllocator::raw_alloc_with_stream(size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return nullptr;
  if (!enabled_ || NeverCaches()) [[unlikely]]
    return TakeUncached(bytes);
  return Take(bytes, CurrentDevice(), stream);
}

void TorchAllocator::raw_delete(void* address) {
  raw_deleter()(address);
}

void TorchAllocator::recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) {
  // What another process or library owns is none of ours, as in PyTorch's allocator.
  if (data.get() == nullptr || data.get_deleter() != &Delete) return;
  plugin_.RecordStream(data.get(), reinterpret_cast<StreamHandle>(stream.stream()));
}

void* TorchAllocator::getBaseAllocation(void* address, size_t* bytes) {
  void* base = Core().BaseAllocation(address, bytes);
  TORCH_CHECK(base != nullptr, "invalid device pointer: ", Core().DescribeAddress(address));
  return base;
}

cudaError_t TorchAllocator::memcpyAsync(void* to, int to_device, const void* from, int from_device, size_t bytes,
                                        cudaStream_t stream, bool peer_access) {
  // Memory mapped piece by piece is not known to the plain copy between devices without peer access.
  const auto mapped = [this](int device) {
    return Core(static_cast<c10::DeviceIndex>(device)).UsesExpandableSegments(device);
  };
  if (peer_access || to_device == from_device || (!mapped(to_device) && !mapped(from_device))) {
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
  }
  return cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream);
}

void TorchAllocator::enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex peer) {
  const c10::cuda::CUDAGuard guard(device);
  const cudaError_t result = cudaDeviceEnablePeerAccess(peer, 0);
  if (result == cudaErrorPeerAccessAlreadyEnabled) {
    static_cast<void>(cudaGetLastError());
  } else {
    C10_CUDA_CHECK(result);
  }
}

// ---- life cycle and settings ----

void TorchAllocator::init(int) {
  ReadTorchSettings();
  CachingAllocator& core = Core();
  // PyTorch's own callbacks that may free memory: that which gives back what other processes no longer use, and those
  // that extensions register.
  static const bool registered = [&core] {
    core.AddFreeMemoryCallback(&RunFreeMemoryCallbacks, nullptr);
    FollowTorchSettings();
    // As in PyTorch, the fraction that is set now is each device's, until set_per_process_memory_fraction says another.
    for (int device = 0; device < core.device_count(); ++device) {
      core.SetMemoryFraction(core.settings().per_process_memory_fraction, device);
    }
    return true;
  }();
  static_cast<void>(registered);
}

std::string TorchAllocator::name() {
  return AllocatorName();
}

double TorchAllocator::getMemoryFraction(c10::DeviceIndex device) {
  return Core(device).MemoryFraction(device);
}

void TorchAllocator::setMemoryFraction(double fraction, c10::DeviceIndex device) {
  Core(device);  // or an error that says why there is none
  TORCH_CHECK(plugin_.SetMemoryFraction(fraction, device), "invalid fraction:", fraction,
              ". Please set within [0, 1].");
}

// ---- history and observers ----

void TorchAllocator::recordHistory(bool enabled, native::CreateContextFn recorder, size_t max_entries,
                                   native::RecordContext when, bool clear,
                                   const std::vector<std::string>& skip_actions) {
  Core();  // so that every device has its history
  events_.RecordHistory(enabled, recorder, max_entries, when, clear, skip_actions);
}

void TorchAllocator::recordAnnotation(const std::vector<std::pair<std::string, std::string>>& values) {
  if (events_.history_enabled()) events_.RecordAnnotation(values, CurrentDevice());
}

void TorchAllocator::pushCompileContext(std::string& text) {
  if (events_.history_enabled()) TorchEvents::PushCompileContext(text);
}

void TorchAllocator::popCompileContext() {
  if (events_.history_enabled()) TorchEvents::PopCompileContext();
}

void TorchAllocator::attachOutOfMemoryObserver(native::OutOfMemoryObserver observer) {
  events_.AttachOutOfMemoryObserver(std::move(observer));
}

void TorchAllocator::attachAllocatorTraceTracker(native::AllocatorTraceTracker tracker) {
  events_.AttachTracker(std::move(tracker));
}

}  // namespace vramledger
