#include "tracer/cupti/outside_watch.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "tracer/cupti/cupti_memory.h"
#include "tracer/phase/phase_tracker.h"

namespace vramledger {
namespace {

constexpr auto kPeriod = std::chrono::milliseconds(100);
constexpr auto kShortestNvmlPeriod = std::chrono::milliseconds(20);
constexpr int kNvmlRest = 50;  // times what a query took

bool SwitchedOff(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && std::string_view(value) == "0";
}

// The allocator that the trace accounts for anyway: ours, or PyTorch's where that is watched.
bool IsTheAllocator(std::string_view library) {
  return library.starts_with("libvramledger") || library == "libc10_cuda.so";
}

}  // namespace

void OutsideWatch::Say(const char* tool, const std::string& state) {
  writer_.AppendMetadata(nlohmann::json({{"outside", {{tool, state}}}}).dump());
}

void OutsideWatch::Start() {
  {
    const std::lock_guard<std::mutex> guard(look_mutex_);
    nvml_state_ = SwitchedOff("VRAMLEDGER_NVML") ? "switched off by VRAMLEDGER_NVML=0" : nvml_.Open();
    nvml_usable_ = nvml_state_.empty();
    if (nvml_usable_) nvml_state_ = "on";
    Say("nvml", nvml_state_);
    Say("cupti", "not started: nothing in this program would give CUPTI up to a profiler");
  }
  // The program's signals are for the program's threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  worker_ = std::thread([this] { Main(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  std::unique_lock<std::mutex> lock(wake_mutex_);
  wake_.wait(lock, [this] { return started_; });
}

void OutsideWatch::StartCupti() {
  const std::string refused =
      SwitchedOff("VRAMLEDGER_CUPTI") ? "switched off by VRAMLEDGER_CUPTI=0" : CuptiMemory::Start();
  Say("cupti", refused.empty() ? "on" : refused);
}

void OutsideWatch::Wake() {
  {
    const std::lock_guard<std::mutex> guard(wake_mutex_);
    woken_ = true;
  }
  wake_.notify_one();
}

void OutsideWatch::YieldToProfiler() {
  if (!CuptiMemory::running()) return;
  CuptiMemory::Stop();
  const std::lock_guard<std::mutex> guard(look_mutex_);
  TakeOperations();
  Say("cupti", absl::StrCat("CUPTI was given up to a profiler after ", writer_.Now() / 1000000, " ms"));
}

void OutsideWatch::Stop() {
  {
    const std::lock_guard<std::mutex> guard(wake_mutex_);
    if (closing_ || !worker_.joinable()) return;
    closing_ = true;
  }
  wake_.notify_all();
  worker_.join();
  CuptiMemory::Stop();
  Look(/*last=*/true);
  if (CuptiMemory::dropped() > 0) {
    writer_.AppendMetadata(nlohmann::json({{"outside", {{"cupti_dropped", CuptiMemory::dropped()}}}}).dump());
  }
}

void OutsideWatch::Main() {
  ::pthread_setname_np(::pthread_self(), "vramledger-out");
  std::unique_lock<std::mutex> lock(wake_mutex_);
  // A number that no thread of the program has, since these records do not come in the order of the program's own.
  thread_ = PhaseTracker::ThreadNumber();
  started_ = true;
  wake_.notify_all();
  while (!closing_) {
    woken_ = false;
    lock.unlock();
    Look(/*last=*/false);
    lock.lock();
    wake_.wait_for(lock, kPeriod, [this] { return woken_ || closing_; });
  }
}

void OutsideWatch::Look(bool last) {
  const std::lock_guard<std::mutex> guard(look_mutex_);
  TakeOperations();
  if (!nvml_usable_ || (!last && Clock::now() < nvml_due_)) return;
  const Clock::time_point begin = Clock::now();
  for (int device = 0; device < host_.DeviceCount(); ++device) {
    if (host_.DeviceInUse(device)) AskNvml(device);
  }
  const Clock::time_point end = Clock::now();
  nvml_due_ = end + std::max<Clock::duration>(kShortestNvmlPeriod, (end - begin) * kNvmlRest);
}

void OutsideWatch::TakeOperations() {
  const std::vector<MemoryOperation> operations = CuptiMemory::Take();
  if (operations.empty()) return;
  const uint64_t now = writer_.Now(), cupti_now = CuptiMemory::Now();
  for (const MemoryOperation& op : operations) {
    if (IsTheAllocator(op.library)) continue;
    const uint64_t age = cupti_now > op.time_ns ? cupti_now - op.time_ns : 0;
    last_time_ns_ = std::max(last_time_ns_, now > age ? now - age : 0);
    ControlRecord r{};
    r.kind = static_cast<uint8_t>(op.allocates ? RecordKind::kOutsideAlloc : RecordKind::kOutsideFree);
    r.phase = static_cast<uint8_t>(host_.CurrentPhase());
    r.device = op.device;
    r.flags = op.allocates ? op.kind : 0;
    Store48(r.time48, last_time_ns_ / kTimeUnitNs);
    r.thread = thread_;
    r.a = op.allocates ? writer_.InternString(op.library) : 0;
    r.b = op.address;
    r.c = op.allocates ? op.bytes : 0;
    writer_.Append(r, /*keep_time=*/true);
  }
}

void OutsideWatch::AskNvml(int device) {
  const std::string bus_id = host_.BusId(device);
  if (bus_id.empty()) return;
  std::string why = "on";
  std::optional<ProcessUse> use;
  // A segment that changes meanwhile would be in one figure and not in the other. One that was taken from the device
  // and is not recorded yet is recorded within a millisecond.
  bool comparable = false;
  for (int tries = 0; tries < 3 && !comparable; ++tries) {
    const uint64_t changes = host_.SegmentChanges();
    use = nvml_.Query(bus_id, &why);
    if (!use) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    comparable = host_.SegmentChanges() == changes;
  }
  // The first device that is refused speaks for all: a state that came and went with the devices would be said for ever.
  if (why != "on" && nvml_state_ == "on") Say("nvml", nvml_state_ = why);
  if (!use || !comparable) return;
  const auto said = std::make_tuple(use->own_bytes, use->other_bytes, use->other_processes);
  if (const auto it = said_.find(device); it != said_.end() && it->second == said) return;
  said_[device] = said;
  last_time_ns_ = std::max(last_time_ns_, writer_.Now());
  ControlRecord r{};
  r.kind = static_cast<uint8_t>(RecordKind::kProcessUsed);
  r.phase = static_cast<uint8_t>(host_.CurrentPhase());
  r.device = static_cast<uint8_t>(device);
  Store48(r.time48, last_time_ns_ / kTimeUnitNs);
  r.thread = thread_;
  r.a = use->other_processes;
  r.b = use->own_bytes;
  r.c = use->other_bytes;
  writer_.Append(r, /*keep_time=*/true);
}

}  // namespace vramledger
