// The C functions of libvramledger_allocator.so. The first group has the signatures that torch.cuda.memory.CUDAPluggableAllocator expects;
// the second serves the Python package through ctypes. None throws except vramledger_malloc and vramledger_begin_allocate_to_pool.
#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/core/pool_types.h"
#include "allocator/plugin/plugin.h"
#include "allocator/plugin/torch_error.h"

#define VRAMLEDGER_EXPORT extern "C" __attribute__((visibility("default")))

using vramledger::Phase;
using vramledger::Plugin;
using vramledger::Role;
using vramledger::StreamHandle;

// ---- looked up by PyTorch ----

VRAMLEDGER_EXPORT void* vramledger_malloc(size_t bytes, int device, void* stream) {
  return Plugin::Get().Allocate(bytes, device, reinterpret_cast<StreamHandle>(stream));
}
// Size and stream are ignored: PyTorch 2.5-2.9 can pass stale ones, our ledger knows.
VRAMLEDGER_EXPORT void vramledger_free(void* address, size_t, int device, void*) { Plugin::Get().Free(address, device); }
VRAMLEDGER_EXPORT void vramledger_init(int) { Plugin::Get().core(); }
VRAMLEDGER_EXPORT void vramledger_reset() { Plugin::Get().EmptyCache(); }
VRAMLEDGER_EXPORT void vramledger_memory_fraction(double fraction, int device) { Plugin::Get().SetMemoryFraction(fraction, device); }
VRAMLEDGER_EXPORT void* vramledger_base_alloc(void* address, size_t* bytes) { return Plugin::Get().BaseAllocation(address, bytes); }
VRAMLEDGER_EXPORT void vramledger_record_stream(void* address, void* stream) {
  Plugin::Get().RecordStream(address, reinterpret_cast<StreamHandle>(stream));
}

// The pools of CUDA graphs. Without these three PyTorch captures without a pool: what a graph has given back then serves others,
// and its replay writes over them. PyTorch calls them as C++ functions of exactly these types (c10::MempoolId_t is the pair). In a
// forked child the memory is the parent's.
struct CUstream_st;
using TorchPoolId = std::pair<unsigned long long, unsigned long long>;  // NOLINT(google-runtime-int)

namespace {

vramledger::PoolId Convert(const TorchPoolId& id) { return {id.first, id.second}; }

// The ends of captures and graphs come from destructors, and one whose begin came before we were told of pools is unknown.
void ComplainUnlessOk(vramledger::PoolStatus status, const char* what) {
  if (status != vramledger::PoolStatus::kOk) Plugin::Get().Complain(absl::StrCat(what, ": ", vramledger::Describe(status)));
}

}  // namespace

VRAMLEDGER_EXPORT void vramledger_begin_allocate_to_pool(int device, TorchPoolId pool, std::function<bool(CUstream_st*)> filter) {
  if (Plugin::Get().forked()) return;
  std::string error;
  vramledger::CachingAllocator* const core = Plugin::Get().core(&error);
  if (core == nullptr) vramledger::ThrowRuntimeError(absl::StrCat("vramledger: ", error));
  const auto wants = [filter = std::move(filter)](StreamHandle stream) { return filter(reinterpret_cast<CUstream_st*>(stream)); };
  const vramledger::PoolStatus status = core->BeginAllocateToPool(device, Convert(pool), wants);
  if (status != vramledger::PoolStatus::kOk) vramledger::ThrowRuntimeError(absl::StrCat("beginAllocateToPool: ", vramledger::Describe(status)));
}
VRAMLEDGER_EXPORT void vramledger_end_allocate_to_pool(int device, TorchPoolId pool) {
  vramledger::CachingAllocator* const core = Plugin::Get().forked() ? nullptr : Plugin::Get().core();
  if (core != nullptr) ComplainUnlessOk(core->EndAllocateToPool(device, Convert(pool)), "endAllocateToPool");
}
VRAMLEDGER_EXPORT void vramledger_release_pool(int device, TorchPoolId pool) {
  vramledger::CachingAllocator* const core = Plugin::Get().forked() ? nullptr : Plugin::Get().core();
  if (core != nullptr) ComplainUnlessOk(core->ReleasePool(device, Convert(pool)), "releasePool");
}

// ---- called by the Python package ----

namespace {

// Copies what fits, always terminated; returns the length of the whole text.
size_t CopyOut(const std::string& text, char* out, size_t capacity) {
  if (capacity > 0) {
    const size_t n = text.size() < capacity - 1 ? text.size() : capacity - 1;
    std::memcpy(out, text.data(), n);
    out[n] = '\0';
  }
  return text.size();
}

}  // namespace

VRAMLEDGER_EXPORT const char* vramledger_version() { return VRAMLEDGER_VERSION; }
// Before the first use of CUDA. 1 = done; 0 = there is no such policy.
VRAMLEDGER_EXPORT int vramledger_set_policy(const char* name) { return Plugin::Get().SetPolicy(name) ? 1 : 0; }
// 0 = done; otherwise the length of the error, which is in `error`.
VRAMLEDGER_EXPORT size_t vramledger_open_trace(const char* path, char* error, size_t capacity) {
  return CopyOut(Plugin::Get().OpenTrace(path), error, capacity);
}
// Likewise; the file appears when CUDA is first used.
VRAMLEDGER_EXPORT size_t vramledger_open_trace_when_used(const char* path, char* error, size_t capacity) {
  return CopyOut(Plugin::Get().OpenTrace(path, /*when_used=*/true), error, capacity);
}
VRAMLEDGER_EXPORT void vramledger_close_trace() { Plugin::Get().CloseTrace(); }
VRAMLEDGER_EXPORT int vramledger_has_trace() { return Plugin::Get().Intern("vramledger") != 0; }
VRAMLEDGER_EXPORT void vramledger_hooks_active(int active) { Plugin::Get().phases().SetHooksActive(active != 0); }
VRAMLEDGER_EXPORT uint32_t vramledger_intern(const char* text) { return Plugin::Get().Intern(text); }
VRAMLEDGER_EXPORT void vramledger_begin_scope(int phase, uint32_t name) {
  Plugin::Get().BeginScope(static_cast<Phase>(phase), name);
}
VRAMLEDGER_EXPORT void vramledger_end_scope() { Plugin::Get().EndScope(); }
VRAMLEDGER_EXPORT void vramledger_enter_module(uint32_t name, int training) { Plugin::Get().EnterModule(name, training != 0); }
VRAMLEDGER_EXPORT void vramledger_exit_module() { Plugin::Get().ExitModule(); }
VRAMLEDGER_EXPORT void vramledger_forward_failed() { Plugin::Get().phases().ForwardFailed(); }
VRAMLEDGER_EXPORT size_t vramledger_module_depth() { return Plugin::Get().phases().module_depth(); }
// 1 if the storage is a live block of ours.
VRAMLEDGER_EXPORT int vramledger_name(void* address, int role, uint32_t name, uint64_t bytes) {
  return Plugin::Get().Name(reinterpret_cast<uintptr_t>(address), static_cast<Role>(role), name, bytes) ? 1 : 0;
}
VRAMLEDGER_EXPORT void vramledger_step_done(uint32_t optimizer) { Plugin::Get().StepDone(optimizer); }
VRAMLEDGER_EXPORT void vramledger_mark(const char* text) { Plugin::Get().Mark(text); }
VRAMLEDGER_EXPORT void vramledger_metadata(const char* json) { Plugin::Get().Metadata(json); }
VRAMLEDGER_EXPORT int vramledger_phase() { return static_cast<int>(Plugin::Get().phases().program_phase()); }
// The caller will call vramledger_yield_cupti before a profiler of this process starts.
VRAMLEDGER_EXPORT void vramledger_watch_with_cupti() { Plugin::Get().WatchWithCupti(); }
VRAMLEDGER_EXPORT void vramledger_yield_cupti() { Plugin::Get().YieldCupti(); }
// JSON text; returns its whole length, so that a caller with too small a buffer can come back.
VRAMLEDGER_EXPORT size_t vramledger_statistics(char* out, size_t capacity) { return CopyOut(Plugin::Get().StatisticsJson(), out, capacity); }
VRAMLEDGER_EXPORT void vramledger_set_node_reader(void* reader) {
  Plugin::Get().SetNodeReader(reinterpret_cast<vramledger::NodeReader>(reader));
}
VRAMLEDGER_EXPORT void vramledger_reset_peaks(int device) { Plugin::Get().ResetPeaks(device); }
VRAMLEDGER_EXPORT void vramledger_reset_accumulated(int device) { Plugin::Get().ResetAccumulated(device); }
// Of 1: what set_per_process_memory_fraction has set, 1 if nothing. Returns the length of the reason why there is no allocator, which is 0.
VRAMLEDGER_EXPORT size_t vramledger_memory_fraction_of(int device, double* fraction, char* error, size_t capacity) {
  std::string why;
  vramledger::CachingAllocator* const core = Plugin::Get().core(&why);
  if (core != nullptr) *fraction = core->MemoryFraction(device);
  return CopyOut(why, error, capacity);
}
