// Reads PyTorch's thread-local autograd state from outside, without Torch at build time: the functions are looked up by
// name in the libraries that the process has already loaded (found by running torch 2.0-2.11; names in the .cc file).
#ifndef VRAMLEDGER_TRACER_PHASE_TORCH_SIGNALS_H_
#define VRAMLEDGER_TRACER_PHASE_TORCH_SIGNALS_H_

#include <atomic>
#include <cstdint>

namespace vramledger {

struct SignalReading {
  bool available = false;   // PyTorch was found; otherwise the rest means nothing
  bool in_backward = false; // this thread runs a node of a backward graph task
  bool grad_mode = false;
  bool inference = false;
  bool keep_graph = false;  // the running graph task keeps its graph
};

// The node of autograd's graph that a thread runs.
struct GraphNode {
  uint64_t sequence = 0;       // number of the node among those made by its forward thread; UINT64_MAX for what accumulates gradients
  uint64_t thread = 0;         // PyTorch's number of the forward thread
  const char* type = nullptr;  // std::type_info::name() of the node, of static duration; null for no node
  bool operator==(const GraphNode&) const = default;
};
// 1 and the three values if the calling thread runs a node, else 0. Takes PyTorch's headers, so that libvramledger_torch.so has it.
using NodeReader = int (*)(uint64_t* sequence, uint64_t* thread, const char** type);

// Thread rule: Load() once before use; Read() and SequenceNumber() from any thread, a few ns each, never allocate.
class TorchSignals {
 public:
  // False when PyTorch is not loaded or lacks the functions; may be called again later.
  bool Load();
  bool loaded() const { return graph_task_id_ != nullptr; }
  SignalReading Read() const;
  // The sequence number that this thread's next autograd node will get; 0 when not available.
  uint64_t SequenceNumber() const;
  // PyTorch's number of the calling thread (as GraphNode::thread); 0 when not available.
  uint64_t ThreadId() const { return thread_id_ != nullptr ? thread_id_() : 0; }
  void SetNodeReader(NodeReader reader) { node_reader_.store(reader, std::memory_order_relaxed); }
  bool reads_nodes() const { return node_reader_.load(std::memory_order_relaxed) != nullptr; }
  GraphNode CurrentNode() const;

 private:
  int (*graph_task_id_)() = nullptr;
  bool (*grad_mode_)() = nullptr;
  bool (*inference_)() = nullptr;
  bool (*keep_graph_)() = nullptr;
  uint64_t (*sequence_peek_)() = nullptr;
  uint64_t (*thread_id_)() = nullptr;
  std::atomic<NodeReader> node_reader_{nullptr};
};

}  // namespace vramledger

#endif  // VRAMLEDGER_TRACER_PHASE_TORCH_SIGNALS_H_
