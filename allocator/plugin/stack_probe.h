// Python or C++ stacks of allocations, where the user asks for them (VRAMLEDGER_STACKS=python, cpp or both): far too dear to be on by default.
#ifndef VRAMLEDGER_ALLOCATOR_PLUGIN_STACK_PROBE_H_
#define VRAMLEDGER_ALLOCATOR_PLUGIN_STACK_PROBE_H_

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"

namespace vramledger {

// Thread rule: Configure() before use, the rest from any thread, without locks held that a thread with the GIL may wait for.
class StackProbe {
 public:
  // "python", "cpp", "both"; empty or "0" for none. False for anything else.
  bool Configure(std::string_view wish);
  bool active() const { return python_ || cpp_; }
  // The string id of the calling thread's stack, "file.py:12 function < ..." from the innermost frame outwards; Python frames before
  // C++ ones. 0 where there is none. `intern` gives a text its id; called once for each distinct stack.
  uint32_t Capture(absl::FunctionRef<uint32_t(std::string_view)> intern);

 private:
  uint32_t Known(uint64_t key);
  void AppendPython(std::string* text, uint64_t* key);
  void AppendCpp(std::string* text, uint64_t* key);

  bool python_ = false, cpp_ = false;
  std::mutex mutex_;
  absl::flat_hash_map<uint64_t, uint32_t> ids_;  // by a hash of the frames
};

}  // namespace vramledger

#endif  // VRAMLEDGER_ALLOCATOR_PLUGIN_STACK_PROBE_H_
