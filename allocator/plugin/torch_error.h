// Raises an error in the way PyTorch's callers expect, without Torch at build time.
#ifndef VRAMLEDGER_ALLOCATOR_PLUGIN_TORCH_ERROR_H_
#define VRAMLEDGER_ALLOCATOR_PLUGIN_TORCH_ERROR_H_

#include <string>

namespace vramledger {

// Throws c10::OutOfMemoryError, which Python sees as torch.OutOfMemoryError: its constructor, vtable and type are looked up by their
// mangled names. Where a name is missing, std::runtime_error (a RuntimeError in Python, as torch.OutOfMemoryError also is).
[[noreturn]] void ThrowOutOfMemory(const std::string& message);
// Throws std::runtime_error.
[[noreturn]] void ThrowRuntimeError(const std::string& message);

}  // namespace vramledger

#endif  // VRAMLEDGER_ALLOCATOR_PLUGIN_TORCH_ERROR_H_
