#include "tracer/cupti/cupti_memory.h"

#if __has_include(<cupti.h>)
#include <cupti.h>
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tracer/format/record.h"

namespace vramledger {
namespace {

constexpr size_t kBufferBytes = 64 << 10;  // some 450 records
constexpr size_t kBufferAlignment = 8;     // what CUPTI asks for

struct Functions {
  decltype(&::cuptiGetVersion) GetVersion;
  decltype(&::cuptiGetTimestamp) GetTimestamp;
  decltype(&::cuptiSubscribe) Subscribe;
  decltype(&::cuptiUnsubscribe) Unsubscribe;
  decltype(&::cuptiActivityRegisterCallbacks) RegisterCallbacks;
  decltype(&::cuptiActivityEnable) Enable;
  decltype(&::cuptiActivityDisable) Disable;
  decltype(&::cuptiActivityFlushAll) FlushAll;
  decltype(&::cuptiActivityGetNextRecord) GetNextRecord;
  decltype(&::cuptiActivityGetNumDroppedRecords) GetNumDroppedRecords;
  decltype(&::cuptiActivityEnableAllocationSource) EnableAllocationSource;
};

struct State {
  std::mutex start_stop;
  Functions functions{};
  std::atomic<bool> running{false};
  std::atomic<uint64_t> dropped{0};
  std::mutex lock;  // guards pending; taken inside CUPTI's callback
  std::vector<MemoryOperation> pending;
};
State& The() {
  static auto* const state = new State();  // CUPTI may call until the process is gone
  return *state;
}

void* OpenLibrary() {
  for (const int flags : {RTLD_NOLOAD | RTLD_LAZY, RTLD_LAZY}) {
    for (const char* name : {"libcupti.so.13", "libcupti.so.12", "libcupti.so"}) {
      if (void* library = ::dlopen(name, flags)) return library;
    }
  }
  return nullptr;
}

std::string Find(void* library, Functions* f) {
  std::string missing;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
    if (function == nullptr) absl::StrAppend(&missing, missing.empty() ? "" : ", ", name);
  };
  find(f->GetVersion, "cuptiGetVersion");
  find(f->GetTimestamp, "cuptiGetTimestamp");
  find(f->Subscribe, "cuptiSubscribe");
  find(f->Unsubscribe, "cuptiUnsubscribe");
  find(f->RegisterCallbacks, "cuptiActivityRegisterCallbacks");
  find(f->Enable, "cuptiActivityEnable");
  find(f->Disable, "cuptiActivityDisable");
  find(f->FlushAll, "cuptiActivityFlushAll");
  find(f->GetNextRecord, "cuptiActivityGetNextRecord");
  find(f->GetNumDroppedRecords, "cuptiActivityGetNumDroppedRecords");
  find(f->EnableAllocationSource, "cuptiActivityEnableAllocationSource");
  return missing;
}

void CUPTIAPI BufferRequested(uint8_t** buffer, size_t* bytes, size_t* most_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(kBufferAlignment, kBufferBytes));
  *bytes = *buffer != nullptr ? kBufferBytes : 0;
  *most_records = 0;  // as many as fit
}

// Host memory that is only pinned takes no device memory and is left out.
OutsideKind KindOf(const CUpti_ActivityMemory4& r) {
  if (r.isAsync != 0) return OutsideKind::kPool;
  switch (r.memoryKind) {
    case CUPTI_ACTIVITY_MEMORY_KIND_DEVICE:
    case CUPTI_ACTIVITY_MEMORY_KIND_ARRAY:
      return OutsideKind::kDevice;
    case CUPTI_ACTIVITY_MEMORY_KIND_MANAGED:
      return OutsideKind::kManaged;
    case CUPTI_ACTIVITY_MEMORY_KIND_DEVICE_STATIC:
    case CUPTI_ACTIVITY_MEMORY_KIND_MANAGED_STATIC:
      return OutsideKind::kStatic;
    default:
      return OutsideKind::kNone;
  }
}

std::string FileName(const char* path) {
  if (path == nullptr) return "";
  const std::string_view text = path;
  return std::string(text.substr(text.rfind('/') + 1));
}

void CUPTIAPI BufferCompleted(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid_bytes) {
  State& state = The();
  std::vector<MemoryOperation> found;
  CUpti_Activity* activity = nullptr;
  while (valid_bytes > 0 && state.functions.GetNextRecord(buffer, valid_bytes, &activity) == CUPTI_SUCCESS) {
    if (activity->kind != CUPTI_ACTIVITY_KIND_MEMORY2) continue;
    const auto& record = *reinterpret_cast<const CUpti_ActivityMemory4*>(activity);
    const OutsideKind kind = KindOf(record);
    const bool allocates = record.memoryOperationType == CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_ALLOCATION;
    if (kind == OutsideKind::kNone || record.address == 0) continue;
    found.push_back({allocates, static_cast<uint8_t>(kind), static_cast<uint8_t>(record.deviceId), record.address,
                     record.bytes, record.timestamp, FileName(record.source)});
  }
  size_t dropped = 0;
  if (state.functions.GetNumDroppedRecords(nullptr, 0, &dropped) == CUPTI_SUCCESS) state.dropped.fetch_add(dropped);
  std::free(buffer);
  const std::lock_guard<std::mutex> guard(state.lock);
  std::move(found.begin(), found.end(), std::back_inserter(state.pending));
}

}  // namespace

std::string CuptiMemory::Start() {
  State& state = The();
  const std::lock_guard<std::mutex> guard(state.start_stop);
  if (state.running.load()) return "";
  void* const library = OpenLibrary();
  if (library == nullptr) return "CUPTI's library (libcupti.so) was not found";
  Functions& f = state.functions;
  if (const std::string missing = Find(library, &f); !missing.empty()) return absl::StrCat("CUPTI lacks ", missing);
  uint32_t version = 0;
  // Records only ever grow at their end, so a newer library writes what we know.
  if (f.GetVersion(&version) != CUPTI_SUCCESS || version < CUPTI_API_VERSION) {
    return absl::StrCat("CUPTI is of version ", version, ", older than the ", CUPTI_API_VERSION, " this was built for");
  }
  CUpti_SubscriberHandle subscriber = nullptr;
  const CUptiResult free = f.Subscribe(
      &subscriber, [](void*, CUpti_CallbackDomain, CUpti_CallbackId, const void*) {}, nullptr);
  if (free == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED) {
    return "CUPTI is in use by a profiler, and serves one tool at a time";
  }
  if (free != CUPTI_SUCCESS) return absl::StrCat("CUPTI refused (error ", static_cast<int>(free), ")");
  f.Unsubscribe(subscriber);  // Note [One client of CUPTI]
  const char* step = "cuptiActivityRegisterCallbacks";
  CUptiResult result = f.RegisterCallbacks(BufferRequested, BufferCompleted);
  if (result == CUPTI_SUCCESS) {
    step = "cuptiActivityEnable";
    result = f.Enable(CUPTI_ACTIVITY_KIND_MEMORY2);
  }
  if (result != CUPTI_SUCCESS) return absl::StrCat("CUPTI refused ", step, " (error ", static_cast<int>(result), ")");
  f.EnableAllocationSource(1);
  state.running.store(true);
  return "";
}

std::vector<MemoryOperation> CuptiMemory::Take() {
  State& state = The();
  if (state.running.load()) state.functions.FlushAll(0);
  std::vector<MemoryOperation> out;
  {
    const std::lock_guard<std::mutex> guard(state.lock);
    out.swap(state.pending);
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const MemoryOperation& a, const MemoryOperation& b) { return a.time_ns < b.time_ns; });
  return out;
}

uint64_t CuptiMemory::Now() {
  uint64_t now = 0;
  State& state = The();
  if (state.functions.GetTimestamp != nullptr) state.functions.GetTimestamp(&now);
  return now;
}

void CuptiMemory::Stop() {
  State& state = The();
  const std::lock_guard<std::mutex> guard(state.start_stop);
  if (!state.running.exchange(false)) return;
  state.functions.FlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  state.functions.Disable(CUPTI_ACTIVITY_KIND_MEMORY2);
  state.functions.EnableAllocationSource(0);
}

bool CuptiMemory::running() {
  return The().running.load(std::memory_order_relaxed);
}

uint64_t CuptiMemory::dropped() {
  return The().dropped.load(std::memory_order_relaxed);
}

}  // namespace vramledger

#else  // built without CUPTI's headers

namespace vramledger {

std::string CuptiMemory::Start() {
  return "this was built without CUPTI's headers";
}
std::vector<MemoryOperation> CuptiMemory::Take() {
  return {};
}
uint64_t CuptiMemory::Now() {
  return 0;
}
void CuptiMemory::Stop() {}
bool CuptiMemory::running() {
  return false;
}
uint64_t CuptiMemory::dropped() {
  return 0;
}

}  // namespace vramledger

#endif
