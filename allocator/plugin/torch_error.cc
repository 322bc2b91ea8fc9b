#include "allocator/plugin/torch_error.h"

#include <cxxabi.h>
#include <dlfcn.h>

#include <cstring>
#include <memory>
#include <stdexcept>
#include <typeinfo>

namespace vramledger {
namespace {

void* FindIn(std::initializer_list<const char*> libraries, const char* name) {
  for (const char* library : libraries) {
    void* handle = ::dlopen(library, RTLD_NOLOAD | RTLD_LAZY);
    void* found = handle != nullptr ? ::dlsym(handle, name) : nullptr;
    if (found != nullptr) return found;
  }
  return nullptr;
}

// Larger than any version of c10::Error (about 200 bytes in 2.11); the exception's memory is zeroed so that members the constructor of a
// derived class would set are empty.
constexpr size_t kErrorBytes = 2048;

}  // namespace

void ThrowOutOfMemory(const std::string& message) {
  // c10::Error(std::string, std::shared_ptr<const LazyValue<std::string>>, const void*): class arguments go by hidden reference.
  using Constructor = void (*)(void*, std::string*, std::shared_ptr<const void>*, const void*);
  const auto construct = reinterpret_cast<Constructor>(
      FindIn({"libc10.so"},
             "_ZN3c105ErrorC2ENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEESt10shared_ptrIKNS_9LazyValueIS6_EEEPKv"));
  auto* const type = static_cast<std::type_info*>(FindIn({"libc10_cuda.so", "libtorch_cuda.so", "libtorch_cpu.so"}, "_ZTIN3c1016OutOfMemoryErrorE"));
  auto* const vtable = static_cast<void**>(FindIn({"libc10_cuda.so", "libtorch_cuda.so", "libtorch_cpu.so"}, "_ZTVN3c1016OutOfMemoryErrorE"));
  if (construct == nullptr || type == nullptr || vtable == nullptr) ThrowRuntimeError(message);
  void* error = abi::__cxa_allocate_exception(kErrorBytes);
  std::memset(error, 0, kErrorBytes);
  std::string text = message;
  std::shared_ptr<const void> no_backtrace;
  construct(error, &text, &no_backtrace, nullptr);
  // Itanium C++ ABI: the address point of a vtable follows offset-to-top and typeinfo; the complete destructor is its first entry.
  void** const address_point = vtable + 2;
  *static_cast<void***>(error) = address_point;
  abi::__cxa_throw(error, type, reinterpret_cast<void (*)(void*)>(address_point[0]));
}

void ThrowRuntimeError(const std::string& message) { throw std::runtime_error(message); }

}  // namespace vramledger
