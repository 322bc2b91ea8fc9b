// Reads PyTorch's thread-local autograd state from outside, without Torch at build time: the functions are looked up by
// name in the libraries that the process has already loaded (found by running torch 2.0-2.11; names in the .cc file).
#ifndef VRAMLEDGER_TRACER_PHASE_TORCH_SIGNALS_H_
#define VRAMLEDGER_TRACER_PHASE_TORCH_SIGNALS_H_

#include <cstdint>

namespace vramledger {

struct SignalReading {
  bool available = false;   // PyTorch was found; otherwise the rest means nothing
  bool in_backward = false; // this thread runs a node of a backward graph task
  bool grad_mode = false;
  bool inference = false;
  bool keep_graph = false;  // the running graph task keeps its graph
};

// Thread rule: Load() once before use; Read() and SequenceNumber() from any thread, a few ns each, never allocate.
class TorchSignals {
 public:
  // False when PyTorch is not loaded or lacks the functions; may be called again later.
  bool Load();
  bool loaded() const { return graph_task_id_ != nullptr; }
  SignalReading Read() const;
  // The sequence number that this thread's next autograd node will get; 0 when not available.
  uint64_t SequenceNumber() const;

 private:
  int (*graph_task_id_)() = nullptr;
  bool (*grad_mode_)() = nullptr;
  bool (*inference_)() = nullptr;
  bool (*keep_graph_)() = nullptr;
  uint64_t (*sequence_peek_)() = nullptr;
};

}  // namespace vramledger

#endif  // VRAMLEDGER_TRACER_PHASE_TORCH_SIGNALS_H_
