#include "tracer/phase/torch_signals.h"

#include <dlfcn.h>

namespace vramledger {
namespace {

template <typename F>
bool Find(void* library, const char* name, F* out) {
  *out = reinterpret_cast<F>(::dlsym(library, name));
  return *out != nullptr;
}

}  // namespace

bool TorchSignals::Load() {
  // RTLD_DEFAULT finds nothing: Python loads Torch with local scope.
  void* cpu = ::dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_LAZY);
  void* c10 = ::dlopen("libc10.so", RTLD_NOLOAD | RTLD_LAZY);
  if (cpu == nullptr || c10 == nullptr) return false;
  int (*task)() = nullptr;
  if (!Find(c10, "_ZN3c108GradMode10is_enabledEv", &grad_mode_)) return false;
  if (!Find(cpu, "_ZN5torch8autograd25get_current_graph_task_idEv", &task)) return false;
  Find(c10, "_ZN3c1013InferenceMode10is_enabledEv", &inference_);
  Find(cpu, "_ZN5torch8autograd33get_current_graph_task_keep_graphEv", &keep_graph_);
  Find(cpu, "_ZN2at15sequence_number4peekEv", &sequence_peek_);
  Find(cpu, "_ZN2at14RecordFunction15currentThreadIdEv", &thread_id_);
  graph_task_id_ = task;
  return true;
}

SignalReading TorchSignals::Read() const {
  SignalReading r;
  if (graph_task_id_ == nullptr) return r;
  r.available = true;
  r.in_backward = graph_task_id_() >= 0;
  r.grad_mode = grad_mode_();
  r.inference = !r.grad_mode && inference_ != nullptr && inference_();  // inference mode turns gradients off
  r.keep_graph = r.in_backward && keep_graph_ != nullptr && keep_graph_();
  return r;
}

GraphNode TorchSignals::CurrentNode() const {
  GraphNode node;
  const NodeReader reader = node_reader_.load(std::memory_order_relaxed);
  if (reader == nullptr || reader(&node.sequence, &node.thread, &node.type) == 0) return GraphNode{};
  return node;
}

uint64_t TorchSignals::SequenceNumber() const { return sequence_peek_ != nullptr ? sequence_peek_() : 0; }

}  // namespace vramledger
