#include "allocator/plugin/python_hooks.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include "absl/strings/escaping.h"
#include "absl/strings/str_replace.h"

namespace vramledger {
namespace {

// In a namespace of its own, so that the user's __main__ gains no names. %s is the library's path as a Python literal.
constexpr const char* kRegister = R"(exec("""
try:
    from vramledger._install import _attach_from_allocator
except ImportError:
    pass
else:
    _attach_from_allocator(bytes.fromhex("%s").decode())
""", {}))";

std::string* pending_text = nullptr;

int RunPending(void*) {
  const auto run = reinterpret_cast<int (*)(const char*)>(::dlsym(RTLD_DEFAULT, "PyRun_SimpleString"));
  // SimpleString prints an exception and clears it: the training run goes on without hooks.
  if (run != nullptr) run(pending_text->c_str());
  return 0;
}

}  // namespace

bool RequestPythonHooks() {
  const char* wish = std::getenv("VRAMLEDGER_HOOKS");
  if (wish != nullptr && std::string_view(wish) == "0") return false;
  const auto queue = reinterpret_cast<int (*)(int (*)(void*), void*)>(::dlsym(RTLD_DEFAULT, "Py_AddPendingCall"));
  if (queue == nullptr) return false;
  Dl_info self{};
  if (::dladdr(reinterpret_cast<void*>(&RequestPythonHooks), &self) == 0 || self.dli_fname == nullptr) return false;
  // Hexadecimal, so that no character of a path means anything to Python.
  pending_text = new std::string(absl::StrReplaceAll(kRegister, {{"%s", absl::BytesToHexString(self.dli_fname)}}));
  return queue(&RunPending, nullptr) == 0;
}

}  // namespace vramledger
