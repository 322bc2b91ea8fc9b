// Where the code of an exported function of a loaded library lies.
#ifndef VRAMLEDGER_ALLOCATOR_PLUGIN_FUNCTION_RANGE_H_
#define VRAMLEDGER_ALLOCATOR_PLUGIN_FUNCTION_RANGE_H_

#include <dlfcn.h>
#include <link.h>

#include <cstdint>

namespace vramledger {

struct FunctionRange {
  uintptr_t begin = 0, end = 0;
  bool Holds(uintptr_t address) const { return address >= begin && address < end; }
};

// Empty when the library is not loaded or has no such function.
inline FunctionRange FindFunctionRange(const char* library, const char* name) {
  void* handle = ::dlopen(library, RTLD_NOLOAD | RTLD_LAZY);
  void* function = handle != nullptr ? ::dlsym(handle, name) : nullptr;
  Dl_info info{};
  void* symbol = nullptr;
  if (function == nullptr || ::dladdr1(function, &info, &symbol, RTLD_DL_SYMENT) == 0 || symbol == nullptr) return {};
  const auto begin = reinterpret_cast<uintptr_t>(function);
  return {begin, begin + static_cast<const ElfW(Sym)*>(symbol)->st_size};
}

}  // namespace vramledger

#endif  // VRAMLEDGER_ALLOCATOR_PLUGIN_FUNCTION_RANGE_H_
