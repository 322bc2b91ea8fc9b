#include "tools/virtual_device/core/state.h"

#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>
#include <string>

#include "tools/virtual_device/core/content.h"
#include "tools/virtual_device/core/host_reads.h"
#include "tools/virtual_device/core/json.h"
#include "tools/virtual_device/core/memory.h"
#include "tools/virtual_device/core/streams.h"

namespace vd {

__thread ThreadState g_thread __attribute__((tls_model("initial-exec")));
std::atomic<uint32_t> g_launch_flags{kLaunchColdStart};
std::atomic<uint64_t> g_launches{0};

namespace {

constexpr int kMostDevices = 16;

std::mutex g_lock;
std::array<std::atomic<bool>, kMostDevices> g_active{};
std::atomic<bool> g_forked{false};
std::atomic<int> g_any_active{0};
// Functions that were called and are not implemented, or answered a made-up size. Under g_lock.
using Names = std::set<std::string>;
Names* g_unimplemented = nullptr;
Names* g_nominal = nullptr;

void AddName(Names** names, const char* name) {
  const std::lock_guard guard(g_lock);
  if (*names == nullptr) *names = new Names;
  (*names)->insert(name);
}

std::string NamesJson(const Names* names) {
  std::string out;
  const std::lock_guard guard(g_lock);
  for (const std::string& name : names != nullptr ? *names : Names{}) {
    if (!out.empty()) out += ", ";
    out += JsonQuote(name);
  }
  return out;
}

// The summary of the process, for whoever started it. A second process that was given the same file (a spawned
// worker that used the device) writes beside it.
void WriteSummary() {
  if (g_any_active.load() == 0 || g_forked.load()) return;
  const Config& config = GetConfig();
  const HostReadTotals reads = GetHostReads();
  if (!config.report_file.empty()) {
    std::string file = config.report_file;
    int fd = open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) {
      file.append(".").append(std::to_string(getpid()));
      fd = open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    }
    std::FILE* out = fd < 0 ? nullptr : fdopen(fd, "w");
    if (out == nullptr) {
      std::fprintf(stderr, "vramledger virtual device: cannot write the summary %s\n", file.c_str());
    } else {
      std::string peaks;
      for (int i = 0; i < config.device_count; ++i) {
        if (i != 0) peaks += ", ";
        peaks += std::to_string(PeakMemoryUse(i));
      }
      const std::string unimplemented = NamesJson(g_unimplemented);
      const std::string nominal = NamesJson(g_nominal);
      std::fprintf(out,
                   "{\n  \"schema\": \"vramledger.virtual_device/1\",\n  \"device\": %s,\n  \"device_count\": %d,\n"
                   "  \"memory_bytes\": %llu,\n  \"context_bytes\": %llu,\n  \"address_order\": \"%s\",\n"
                   "  \"delayed\": %s,\n  \"kernel_launches\": %llu,\n  \"peak_device_used_bytes\": [%s],\n"
                   "  \"unimplemented\": [%s],\n  \"nominal_sizes\": [%s],\n  \"host_reads\": %llu,\n  \"host_read_bytes\": %llu,\n"
                   "  \"host_read_sites\": %s\n}\n",
                   JsonQuote(config.model.id).c_str(), config.device_count,
                   static_cast<unsigned long long>(config.memory_bytes),
                   static_cast<unsigned long long>(config.context_bytes), config.address_down ? "down" : "up",
                   config.delayed ? "true" : "false", static_cast<unsigned long long>(g_launches.load()), peaks.c_str(),
                   unimplemented.c_str(), nominal.c_str(), static_cast<unsigned long long>(reads.reads),
                   static_cast<unsigned long long>(reads.bytes), HostReadSitesJson().c_str());
      std::fclose(out);
    }
  }
  if (reads.reads > 0) {
    const std::string first = FirstHostReadSite();
    std::fprintf(stderr,
                 "vramledger virtual device: the program read %llu value(s) that a kernel should have made (%llu bytes, "
                 "zeros were given)%s%s\n",
                 static_cast<unsigned long long>(reads.reads), static_cast<unsigned long long>(reads.bytes),
                 first.empty() ? "" : ", first at ", first.c_str());
  }
}

// In the order in which they nest: contexts and mappings hold theirs while they ask for memory.
void ForkAll(int action) {
  ForkLock(g_lock, action);
  ForkVmm(action);
  ForkIpc(action);
  ForkMemory(action);
  ForkContent(action);
  ForkStreams(action);
  ForkHostReads(action);
}
void BeforeFork() { ForkAll(0); }
void AfterForkInParent() { ForkAll(1); }
void AfterForkInChild() {
  ForkAll(2);
  // As with a real device, CUDA cannot be used in a child forked after initialisation. Only what frees still works.
  g_forked.store(true);
  g_launch_flags.store(kLaunchColdStart);
}

}  // namespace

void SetLaunchFlag(uint32_t bit, bool on) {
  if (on) {
    if (!LaunchFlag(bit)) g_launch_flags.fetch_or(bit);
  } else if (LaunchFlag(bit)) {
    g_launch_flags.fetch_and(~bit);
  }
}

bool InForkedChild() { return g_forked.load(std::memory_order_relaxed); }

int DeviceCount() { return GetConfig().device_count; }

bool ContextActive(int device) { return g_active[device].load(std::memory_order_relaxed); }

int EnsureContext(int device) {
  if (g_active[device].load(std::memory_order_acquire)) [[likely]] {
    return g_forked.load(std::memory_order_relaxed) ? kNotInitialized : kOk;
  }
  if (g_forked.load()) return kNotInitialized;
  if (device < 0 || device >= DeviceCount()) return DeviceCount() == 0 ? kNoDevice : kInvalidDevice;
  const std::lock_guard guard(g_lock);
  if (g_active[device].load()) return kOk;
  if (const int code = ReserveAddressSpace(device); code != kOk) {
    std::fprintf(stderr, "vramledger virtual device: the address range of device %d is taken\n", device);
    return code;
  }
  if (const int code = ChargeMemory(device, GetConfig().context_bytes); code != kOk) return code;
  static const bool once = [] {
    pthread_atfork(BeforeFork, AfterForkInParent, AfterForkInChild);
    std::atexit(WriteSummary);
    return true;
  }();
  (void)once;
  g_active[device].store(true, std::memory_order_release);
  g_any_active.fetch_add(1);
  SetLaunchFlag(kLaunchDelayed, GetConfig().delayed);
  SetLaunchFlag(kLaunchColdStart, false);
  return kOk;
}

void ResetContext(int device) {
  const std::lock_guard guard(g_lock);
  if (!g_active[device].exchange(false)) return;
  ReleaseMemory(device, GetConfig().context_bytes);
}

int SlowLaunch(void* stream, bool changes_memory) {
  const uint32_t flags = g_launch_flags.load();
  if ((flags & kLaunchColdStart) != 0) {
    if (const int code = EnsureContext(); code != kOk) return code;
  }
  if ((flags & (kLaunchDelayed | kLaunchCapture)) != 0) Enqueue(stream);
  if (changes_memory && (flags & kLaunchContent) != 0) ForgetAllContent();
  return kOk;
}

void RememberError(int code) {
  g_thread.last_error = code;
  if (code == kNotReady || !GetConfig().verbose) return;
  void* stack[12];
  const int depth = backtrace(stack, 12);
  std::fprintf(stderr, "vramledger virtual device: error %d from\n", code);
  std::fflush(stderr);
  backtrace_symbols_fd(stack, depth, STDERR_FILENO);
}

int ReportUnimplemented(const char* name, std::atomic<bool>* said, int code) {
  if (!said->exchange(true)) {
    std::fprintf(stderr, "vramledger virtual device: %s is not implemented and returned \"not supported\"\n", name);
    AddName(&g_unimplemented, name);
  }
  return code;
}

void NoteNominal(const char* name, std::atomic<bool>* noted) {
  if (!noted->load(std::memory_order_relaxed) && !noted->exchange(true)) AddName(&g_nominal, name);
}

}  // namespace vd
