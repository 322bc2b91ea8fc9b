#include "tools/virtual_device/core/host_reads.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <vector>

#include "tools/virtual_device/core/json.h"
#include "tools/virtual_device/core/state.h"

namespace vd {
namespace {

constexpr int kDepth = 14;
constexpr uint64_t kLookedAt = 2000;  // stacks are taken for this many reads, then only the totals grow
constexpr size_t kMostSites = 64;

struct Site {
  std::string python;
  std::vector<std::string> native;
  uint64_t key = 0, count = 0, bytes = 0;
};
struct Reads {
  std::mutex lock;
  std::vector<Site> sites;
};
Reads& TheReads() {
  static auto* reads = new Reads;
  return *reads;
}
std::atomic<uint64_t> g_reads{0}, g_bytes{0};

// The innermost Python frame of this thread, through functions of Python's stable interface that the running
// interpreter exports; "" when there is none. Only on the main thread: another could be an autograd worker
// that Python is waiting for.
std::string PythonSite() {
  if (static_cast<pid_t>(syscall(SYS_gettid)) != getpid()) return "";
  struct Api {
    int (*initialized)() = nullptr;
    int (*finalizing)() = nullptr;
    int (*ensure)() = nullptr;
    void (*release)(int) = nullptr;
    void* (*frame)() = nullptr;
    void* (*code)(void*) = nullptr;
    int (*line)(void*) = nullptr;
    void* (*attribute)(void*, const char*) = nullptr;
    const char* (*utf8)(void*, ssize_t*) = nullptr;
    void (*decref)(void*) = nullptr;
    bool usable = false;
  };
  static const Api api = [] {
    Api found;
    const auto get = [](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(RTLD_DEFAULT, name));
      return function != nullptr;
    };
    get(found.finalizing, "Py_IsFinalizing");
    if (found.finalizing == nullptr) get(found.finalizing, "_Py_IsFinalizing");
    found.usable = found.finalizing != nullptr && get(found.initialized, "Py_IsInitialized") &&
                   get(found.ensure, "PyGILState_Ensure") && get(found.release, "PyGILState_Release") &&
                   get(found.frame, "PyEval_GetFrame") && get(found.code, "PyFrame_GetCode") &&
                   get(found.line, "PyFrame_GetLineNumber") && get(found.attribute, "PyObject_GetAttrString") &&
                   get(found.utf8, "PyUnicode_AsUTF8AndSize") && get(found.decref, "Py_DecRef");
    return found;
  }();
  if (!api.usable || api.initialized() == 0 || api.finalizing() != 0) return "";
  const int held = api.ensure();
  std::string site;
  if (void* frame = api.frame()) {
    void* code = api.code(frame);
    void* file = api.attribute(code, "co_filename");
    const char* name = file != nullptr ? api.utf8(file, nullptr) : nullptr;
    if (name != nullptr) site = std::string(name) + ":" + std::to_string(api.line(frame));
    if (file != nullptr) api.decref(file);
    api.decref(code);
  }
  api.release(held);
  return site;
}

std::string Name(void* address) {
  Dl_info info{};
  if (dladdr(address, &info) == 0) return "?";
  std::string library = info.dli_fname != nullptr ? info.dli_fname : "?";
  library = library.substr(library.rfind('/') + 1);
  if (info.dli_sname == nullptr) return library;
  int status = 1;
  char* demangled = abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status);
  std::string name = status == 0 ? demangled : info.dli_sname;
  std::free(demangled);
  if (name.size() > 120) name = name.substr(0, 117) + "...";
  return library + ": " + name;
}

}  // namespace

void ForkHostReads(int action) { ForkLock(TheReads().lock, action); }

void CountHostRead(size_t unknown_bytes) {
  const uint64_t index = g_reads.fetch_add(1, std::memory_order_relaxed);
  g_bytes.fetch_add(unknown_bytes, std::memory_order_relaxed);
  if (index >= kLookedAt) return;
  void* stack[kDepth];
  const int depth = backtrace(stack, kDepth);
  const std::string python = PythonSite();
  uint64_t key = std::hash<std::string>{}(python);
  for (int i = 0; i < depth; ++i) key = (key ^ reinterpret_cast<uintptr_t>(stack[i])) * 0x100000001B3ull;
  Reads& reads = TheReads();
  const std::lock_guard guard(reads.lock);
  for (Site& site : reads.sites) {
    if (site.key != key) continue;
    ++site.count;
    site.bytes += unknown_bytes;
    return;
  }
  if (reads.sites.size() >= kMostSites) return;
  Site site;
  site.python = python;
  site.key = key;
  site.count = 1;
  site.bytes = unknown_bytes;
  for (int i = 2; i < depth; ++i) site.native.push_back(Name(stack[i]));
  reads.sites.push_back(std::move(site));
}

HostReadTotals GetHostReads() { return {g_reads.load(), g_bytes.load()}; }

std::string HostReadSitesJson() {
  Reads& reads = TheReads();
  const std::lock_guard guard(reads.lock);
  std::string out = "[";
  for (const Site& site : reads.sites) {
    if (out.size() > 1) out += ",";
    out += "\n    {\"count\": " + std::to_string(site.count) + ", \"bytes\": " + std::to_string(site.bytes) +
           ", \"python\": " + JsonQuote(site.python) + ", \"native\": [";
    for (size_t i = 0; i < site.native.size(); ++i) {
      if (i != 0) out += ", ";
      out += JsonQuote(site.native[i]);
    }
    out += "]}";
  }
  return out + "]";
}

std::string FirstHostReadSite() {
  Reads& reads = TheReads();
  const std::lock_guard guard(reads.lock);
  for (const Site& site : reads.sites) {
    if (!site.python.empty()) return site.python;
  }
  return "";
}

}  // namespace vd
