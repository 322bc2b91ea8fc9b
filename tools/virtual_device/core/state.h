// The state every stand-in shares: the calling thread's device and last error, contexts, and the flags that send a
// kernel launch down the slow path. Codes are those of cudaError_t and CUresult, which agree in the values used here.
#pragma once

#include <atomic>
#include <cstdint>
#include <new>

#include "tools/virtual_device/core/config.h"

namespace vd {

// Subset of error codes; the same numbers in the runtime and in the driver interface unless said.
enum Code : int {
  kOk = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidContext = 201,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kPeerAlreadyEnabled = 704,
  kPeerNotEnabled = 705,
  kHostAlreadyRegistered = 712,
  kHostNotRegistered = 713,
  kNotSupported = 801,
  kCaptureUnsupported = 900,
  kCaptureInvalidated = 901,
  kIllegalState = 401,
};

struct ThreadState {
  int device = 0;
  int last_error = 0;
  int capture_mode = 0;           // cudaStreamCaptureModeGlobal
  bool driver_current = false;    // cuCtxSetCurrent or a runtime call bound a context to this thread
};
// Initial-exec: the stand-ins are preloaded, so their thread-local storage is static and costs one instruction.
extern VD_API __thread ThreadState g_thread __attribute__((tls_model("initial-exec")));

// Reasons for a launch to leave the fast path.
enum LaunchFlagBit : uint32_t {
  kLaunchContent = 1,   // some device bytes are known and must be forgotten
  kLaunchDelayed = 2,   // completion is simulated
  kLaunchCapture = 4,   // some stream is capturing
  kLaunchColdStart = 8, // no context yet, or not usable
};
extern VD_API std::atomic<uint32_t> g_launch_flags;
VD_API void SetLaunchFlag(uint32_t bit, bool on);
inline bool LaunchFlag(uint32_t bit) { return (g_launch_flags.load(std::memory_order_relaxed) & bit) != 0; }

// About how many kernels were launched: plain adds, so a racing thread may lose one.
extern VD_API std::atomic<uint64_t> g_launches;

VD_API int SlowLaunch(void* stream, bool changes_memory);

// Every kernel launch of any library comes through here. Returns a Code.
inline int OnLaunch(void* stream) {
  g_launches.store(g_launches.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  if (g_launch_flags.load(std::memory_order_relaxed) != 0) [[unlikely]] return SlowLaunch(stream, true);
  return kOk;
}

// Makes the device's context if there is none; charges its memory. kNotInitialized in a child forked after that.
VD_API int EnsureContext(int device);
VD_API bool ContextActive(int device);
VD_API void ResetContext(int device);
inline int EnsureContext() { return EnsureContext(g_thread.device); }
VD_API int DeviceCount();  // 0 and no device when the configuration is unusable

// True in a process forked from one that had already used the device: CUDA does not work there.
VD_API bool InForkedChild();

// A fork must not happen while another thread is inside: each file's locks are taken before it and are new after it.
// ACTION: 0 take, 1 give back (parent), 2 make new (child).
void ForkMemory(int action);
void ForkVmm(int action);
void ForkIpc(int action);
void ForkContent(int action);
void ForkStreams(int action);
void ForkHostReads(int action);
template <typename Lock>
void ForkLock(Lock& lock, int action) {
  if (action == 0) lock.lock();
  if (action == 1) lock.unlock();
  if (action == 2) new (&lock) Lock;  // the child's thread is not the one that took it
}

// Makes CODE the thread's last error. With VRAMLEDGER_VIRTUAL_DEVICE_VERBOSE it also says where from.
VD_API void RememberError(int code);

// Prints "vramledger virtual device: NAME is not implemented ..." once per flag; returns `code`.
VD_API int ReportUnimplemented(const char* name, std::atomic<bool>* said, int code);

// Puts NAME on the summary's list of functions that answered a made-up size; silent.
VD_API void NoteNominal(const char* name, std::atomic<bool>* noted);
#define VD_NOMINAL(name)                     \
  do {                                       \
    static std::atomic<bool> noted{false};   \
    ::vd::NoteNominal(name, &noted);         \
  } while (false)

}  // namespace vd
