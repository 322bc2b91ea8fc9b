// libcupti.so.13: records of memory operations (CUPTI_ACTIVITY_KIND_MEMORY2), and the rest of what a profiler needs to
// start. Kernels do not run, so no other kind ever has a record; enabling one succeeds.
//
// As in the real library, one client's buffers serve all enabled kinds: whoever registered last gets every record.
#include <cupti.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <unordered_set>

#include "tools/virtual_device/core/memory.h"
#include "tools/virtual_device/core/state.h"

namespace {

using Record = CUpti_ActivityMemory4;

struct Cupti {
  std::recursive_mutex lock;  // the client's callbacks call back
  bool subscribed = false;
  CUpti_BuffersCallbackRequestFunc request = nullptr;
  CUpti_BuffersCallbackCompleteFunc complete = nullptr;
  CUpti_TimestampCallbackFunc timestamp = nullptr;
  std::set<int> kinds;
  bool sources = false;
  uint8_t* buffer = nullptr;
  size_t buffer_bytes = 0, filled = 0;
  size_t dropped = 0;
  uint32_t correlation = 0;
  std::unordered_set<std::string> paths;  // what the records' `source` points to
};
Cupti& TheCupti() {
  static auto* cupti = new Cupti;
  return *cupti;
}

uint64_t Timestamp(const Cupti& cupti) {
  if (cupti.timestamp != nullptr) return cupti.timestamp();
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
          .count());
}

// The first library on the stack that is none of the stand-ins.
void FindSource(Cupti& cupti, Record* record) {
  void* frames[24];
  const int depth = backtrace(frames, 24);
  const std::string& ours = vd::StandInFolder();
  for (int i = 0; i < depth; ++i) {
    Dl_info info{};
    if (dladdr(frames[i], &info) == 0 || info.dli_fname == nullptr) continue;
    const std::string path = info.dli_fname;
    if (path.compare(0, ours.size(), ours) == 0 && path.find('/', ours.size() + 1) == std::string::npos) continue;
    record->source = cupti.paths.insert(path).first->c_str();
    record->PC = reinterpret_cast<uint64_t>(frames[i]);
    return;
  }
}

// Hands the buffer back to the client.
void Complete(Cupti& cupti) {
  if (cupti.buffer == nullptr) return;
  uint8_t* const buffer = cupti.buffer;
  cupti.buffer = nullptr;
  cupti.complete(nullptr, 0, buffer, cupti.buffer_bytes, cupti.filled);
}

CUpti_ActivityMemoryKind KindOf(vd::MemoryKind kind) {
  switch (kind) {
    case vd::MemoryKind::kHost:
      return CUPTI_ACTIVITY_MEMORY_KIND_PINNED;
    case vd::MemoryKind::kManaged:
      return CUPTI_ACTIVITY_MEMORY_KIND_MANAGED;
    default:
      return CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
  }
}

void OnMemory(const vd::MemoryEvent& event) {
  Cupti& cupti = TheCupti();
  const std::lock_guard guard(cupti.lock);
  if (cupti.kinds.count(CUPTI_ACTIVITY_KIND_MEMORY2) == 0 || cupti.request == nullptr) return;
  if (cupti.buffer != nullptr && cupti.buffer_bytes - cupti.filled < sizeof(Record)) Complete(cupti);
  if (cupti.buffer == nullptr) {
    size_t most = 0;
    cupti.buffer_bytes = cupti.filled = 0;
    cupti.request(&cupti.buffer, &cupti.buffer_bytes, &most);
    if (cupti.buffer == nullptr || cupti.buffer_bytes < sizeof(Record)) {
      ++cupti.dropped;
      return;
    }
  }
  Record record;
  std::memset(&record, 0, sizeof record);
  record.kind = CUPTI_ACTIVITY_KIND_MEMORY2;
  record.memoryOperationType =
      event.allocates ? CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_ALLOCATION : CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_RELEASE;
  record.memoryKind = KindOf(event.kind);
  record.correlationId = ++cupti.correlation;
  record.address = event.address;
  record.bytes = event.size;
  record.timestamp = Timestamp(cupti);
  record.processId = static_cast<uint32_t>(getpid());
  record.deviceId = static_cast<uint32_t>(event.device);
  record.contextId = static_cast<uint32_t>(event.device) + 1;
  record.streamId = CUPTI_INVALID_STREAM_ID;
  record.isAsync = event.kind == vd::MemoryKind::kPool ? 1 : 0;
  if (cupti.sources) FindSource(cupti, &record);
  std::memcpy(cupti.buffer + cupti.filled, &record, sizeof record);
  cupti.filled += sizeof record;
}

bool KnownKind(int kind) {
  return kind > CUPTI_ACTIVITY_KIND_INVALID && kind < CUPTI_ACTIVITY_KIND_COUNT;
}

}  // namespace

extern "C" {

CUptiResult cuptiGetVersion(uint32_t* version) {
  if (version == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  *version = CUPTI_API_VERSION;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiGetResultString(CUptiResult result, const char** text) {
  if (text == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  *text = result == CUPTI_SUCCESS ? "CUPTI_SUCCESS" : "an error of the virtual device's CUPTI";
  return CUPTI_SUCCESS;
}
CUptiResult cuptiGetErrorMessage(CUptiResult result, const char** text) {
  return cuptiGetResultString(result, text);
}
CUptiResult cuptiGetTimestamp(uint64_t* timestamp) {
  if (timestamp == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  Cupti& cupti = TheCupti();
  const std::lock_guard guard(cupti.lock);
  *timestamp = Timestamp(cupti);
  return CUPTI_SUCCESS;
}

// ---- one subscriber; there are never callbacks to make ----

CUptiResult cuptiSubscribe(CUpti_SubscriberHandle* subscriber, CUpti_CallbackFunc, void*) {
  if (subscriber == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  Cupti& cupti = TheCupti();
  const std::lock_guard guard(cupti.lock);
  if (cupti.subscribed) return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
  cupti.subscribed = true;
  *subscriber = reinterpret_cast<CUpti_SubscriberHandle>(&cupti);
  return CUPTI_SUCCESS;
}
CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle subscriber) {
  Cupti& cupti = TheCupti();
  const std::lock_guard guard(cupti.lock);
  if (subscriber != reinterpret_cast<CUpti_SubscriberHandle>(&cupti) || !cupti.subscribed) {
    return CUPTI_ERROR_INVALID_PARAMETER;
  }
  cupti.subscribed = false;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiEnableCallback(uint32_t, CUpti_SubscriberHandle, CUpti_CallbackDomain, CUpti_CallbackId) {
  return CUPTI_SUCCESS;
}
CUptiResult cuptiEnableDomain(uint32_t, CUpti_SubscriberHandle, CUpti_CallbackDomain) {
  return CUPTI_SUCCESS;
}
CUptiResult cuptiEnableAllDomains(uint32_t, CUpti_SubscriberHandle) {
  return CUPTI_SUCCESS;
}
CUptiResult cuptiFinalize() {
  Cupti& cupti = TheCupti();
  const std::lock_guard guard(cupti.lock);
  Complete(cupti);
  cupti.kinds.clear();
  cupti.subscribed = false;
  vd::SetMemoryWatcher(nullptr);
  return CUPTI_SUCCESS;
}

// ---- activity ----

CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc request,
                                           CUpti_BuffersCallbackCompleteFunc complete) {
  if (request == nullptr || complete == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  Cupti& cupti = TheCupti();
  const std::lock_guard guard(cupti.lock);
  Complete(cupti);
  cupti.request = request;
  cupti.complete = complete;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityRegisterTimestampCallback(CUpti_TimestampCallbackFunc timestamp) {
  Cupti& cupti = TheCupti();
  const std::lock_guard guard(cupti.lock);
  cupti.timestamp = timestamp;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) {
  if (!KnownKind(kind)) return CUPTI_ERROR_INVALID_KIND;
  Cupti& cupti = TheCupti();
  const std::lock_guard guard(cupti.lock);
  cupti.kinds.insert(kind);
  if (kind == CUPTI_ACTIVITY_KIND_MEMORY2) vd::SetMemoryWatcher(OnMemory);
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind) {
  if (!KnownKind(kind)) return CUPTI_ERROR_INVALID_KIND;
  Cupti& cupti = TheCupti();
  const std::lock_guard guard(cupti.lock);
  cupti.kinds.erase(kind);
  if (kind == CUPTI_ACTIVITY_KIND_MEMORY2) vd::SetMemoryWatcher(nullptr);
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityEnableAllocationSource(uint8_t enable) {
  Cupti& cupti = TheCupti();
  const std::lock_guard guard(cupti.lock);
  cupti.sources = enable != 0;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityFlushAll(uint32_t) {
  Cupti& cupti = TheCupti();
  const std::lock_guard guard(cupti.lock);
  Complete(cupti);
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityGetNextRecord(uint8_t* buffer, size_t valid_bytes, CUpti_Activity** record) {
  if (buffer == nullptr || record == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  uint8_t* const next = *record == nullptr ? buffer : reinterpret_cast<uint8_t*>(*record) + sizeof(Record);
  if (next + sizeof(Record) > buffer + valid_bytes) return CUPTI_ERROR_MAX_LIMIT_REACHED;
  *record = reinterpret_cast<CUpti_Activity*>(next);
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext, uint32_t, size_t* dropped) {
  if (dropped == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  Cupti& cupti = TheCupti();
  const std::lock_guard guard(cupti.lock);
  *dropped = cupti.dropped;
  cupti.dropped = 0;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind, uint64_t) {
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind, uint64_t* last) {
  if (last != nullptr) *last = 0;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivitySetAttribute(CUpti_ActivityAttribute, size_t*, void*) {
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityEnableDriverApi(CUpti_CallbackId, uint8_t) {
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityEnableRuntimeApi(CUpti_CallbackId, uint8_t) {
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityEnableCudaEventDeviceTimestamps(uint8_t) {
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityEnableLatencyTimestamps(uint8_t) {
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityFlushPeriod(uint32_t) {
  return CUPTI_SUCCESS;
}

}  // extern "C"
