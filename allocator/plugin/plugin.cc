#include "allocator/plugin/plugin.h"

#include <cxxabi.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "allocator/cuda_device_memory.h"
#include "allocator/plugin/python_hooks.h"
#include "allocator/plugin/torch_error.h"
#include "tracer/format/fast_tls.h"

namespace vramledger {
namespace {

// A sample of the devices is followed by this many times its length without one, and by no more than a second. The shortest
// one seen counts: a longer one waited for a processor. The first samples need no rest, since a run's beginning is where
// libraries set up.
constexpr int64_t kSampleRest = 1000;
constexpr int64_t kLongestRestNs = 1000000000;
constexpr int kSamplesWithoutRest = 32;
std::atomic<int64_t> shortest_sample_ns{INT64_MAX};
std::atomic<int> samples_taken{0};

int64_t SteadyNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// As PyTorch's own message prints sizes.
std::string Human(uint64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes <= 1024) return absl::StrFormat("%d bytes", bytes);
  if (bytes <= 1 << 20) return absl::StrFormat("%.2f KiB", value / 1024);
  if (bytes <= 1 << 30) return absl::StrFormat("%.2f MiB", value / (1 << 20));
  return absl::StrFormat("%.2f GiB", value / (1 << 30));
}

// True if `path` holds a trace that another living process is writing.
bool InUseByAnother(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  FileHeader header{};
  if (!in.read(reinterpret_cast<char*>(&header), sizeof(header))) return false;
  if (std::memcmp(header.magic, kTraceMagic, sizeof(kTraceMagic)) != 0) return false;
  if (header.state != static_cast<uint32_t>(TraceState::kOpen)) return false;
  return header.pid != static_cast<uint64_t>(::getpid()) && ::kill(static_cast<pid_t>(header.pid), 0) == 0;
}

}  // namespace

Plugin& Plugin::Get() {
  static Plugin* const plugin = new Plugin();  // never destroyed
  return *plugin;
}

Plugin::Plugin() : phases_(this) {
  phases_.signals().Load();
  probe_.Load();
  casts_.Load();
  if (const char* wish = std::getenv("VRAMLEDGER_STACKS"); wish != nullptr && !stacks_.Configure(wish)) {
    Complain(absl::StrCat("VRAMLEDGER_STACKS is python, cpp or both, not '", wish, "'; no stacks are recorded"));
  }
  if (ranges_.enabled()) {
    ranges_.Enter(phases_.program_phase());
    std::atexit([] { Get().ranges_.End(); });
  }
  ::pthread_atfork(nullptr, nullptr, [] {
    Plugin& p = Get();
    p.forked_.store(true);
    if (TraceWriter* const w = p.writer()) w->DetachInChild();
  });
}

void Plugin::SetMode(const char* mode, PluginAdapter* adapter) {
  mode_ = mode;
  adapter_ = adapter;
  observes_ = std::string_view(mode) == "observe";
  // PyTorch's allocator holds its lock while it tells us, and a thread with the GIL may be waiting for that.
  if (observes_ && stacks_.active()) Complain("mode observe records no stacks; modes torch and plugin do");
  probe_.SetFramesBetween(0);
}

bool Plugin::SetPolicy(std::string_view name) {
  policy_ = AllocatorSettings::PolicyFromName(name);
  return policy_.has_value();
}

bool Plugin::Initialize() {
  std::call_once(initialized_, [this] {
    auto settings = AllocatorSettings::FromEnvironment();
    if (!settings.ok()) {
      initialize_error_ = std::string(settings.status().message());
      return;
    }
    if (policy_) settings->policy = *policy_;
    if (observes_ && settings->policy != AllocatorSettings::Policy::kNative) {
      settings->policy = AllocatorSettings::Policy::kNative;
      Complain("mode observe watches PyTorch's own allocator: VRAMLEDGER_POLICY has no effect");
    }
    auto memory = CudaDeviceMemory::Open();
    if (!memory.ok()) {
      initialize_error_ = std::string(memory.status().message());
      return;
    }
    memory_ = *std::move(memory);
    const int devices = memory_->device_count();
    if (settings->policy == AllocatorSettings::Policy::kVmm && devices > 0) {
      void* probe = nullptr;
      const size_t bytes = memory_->granularity(0);
      if (memory_->ReserveAddress(0, bytes, &probe) == DeviceResult::kOk) {
        memory_->ReleaseAddress(0, probe, bytes);
      } else {
        settings->policy = AllocatorSettings::Policy::kNative;
        Complain("the device has no virtual memory management; the policy native serves in place of vmm");
      }
    }
    if (const std::string idle = settings->WithoutEffect(); !idle.empty()) Complain(idle);
    if (adapter_ != nullptr) adapter_->Adjust(*settings);
    ledger_ = std::make_unique<CategoryLedger>(devices);
    recorder_ = std::make_unique<Recorder>(*ledger_, phases_, devices);
    AllocatorObserver* const observer = adapter_ != nullptr ? adapter_->Wrap(*recorder_, devices) : recorder_.get();
    core_ = std::make_unique<CachingAllocator>(*memory_, *settings, observer);
    // Only the pure form has the path in the environment; the Python package opens its trace itself.
    if (const char* path = std::getenv("VRAMLEDGER_TRACE"); path != nullptr && *path != '\0' && writer() == nullptr) {
      if (const std::string error = OpenTrace(path); !error.empty()) Complain(absl::StrCat(error, "; training goes on without a trace"));
      RequestPythonHooks();
    }
    if (TraceWriter* const w = writer()) {
      if (w->unnamed()) {
        if (const absl::Status status = w->Appear(FreeName(w->path())); !status.ok()) {
          Complain(absl::StrCat(std::string(status.message()), "; training goes on without a trace"));
        }
      }
      recorder_->SetWriter(w);
      nlohmann::json devices_json = nlohmann::json::array();
      for (int i = 0; i < devices; ++i) {
        nlohmann::json device = {{"index", i}};
        DeviceMemoryInfo info;
        // Asking for free memory would make a context on every device of the machine.
        if (memory_->HasContext(i) && memory_->MemoryInfo(i, &info) == DeviceResult::kOk) {
          device["total_bytes"] = info.total_bytes;
          device["free_bytes_at_start"] = info.free_bytes;
        } else if (const size_t total = memory_->TotalBytes(i); total != 0) {
          device["total_bytes"] = total;
        }
        devices_json.push_back(std::move(device));
      }
      nlohmann::json metadata = {{"devices", devices_json},
                                 {"allocator", {{"mode", mode_}, {"policy", settings->policy_name()}, {"settings", settings->ToString()}}}};
      // The Python package says so too, but is not always there.
      if (const char* device = std::getenv("VRAMLEDGER_VIRTUAL_DEVICE"); device != nullptr && *device != '\0') {
        metadata["virtual_device"] = true;
        metadata["device_name"] = device;
      }
      w->AppendMetadata(metadata.dump());
    }
    // What this thread began before the devices were in use.
    for (const uint32_t name : phases_.OpenScopeNames()) RecordScope(name, true);
    ready_.store(true, std::memory_order_release);
    if (writer() != nullptr) StartWatching();
  });
  return ready_.load(std::memory_order_acquire);
}

CachingAllocator* Plugin::core(std::string* error) {
  if (ready_.load(std::memory_order_acquire) || Initialize()) return core_.get();
  if (error != nullptr) *error = initialize_error_;
  return nullptr;
}

std::string Plugin::OpenTrace(const std::string& path, bool when_used) {
  std::lock_guard<std::mutex> guard(trace_mutex_);
  if (const TraceWriter* const w = writer()) return absl::StrCat("a trace is already being written to '", w->path(), "'");
  const char* rank = std::getenv("RANK");
  const std::string name = FreeName(
      absl::StrReplaceAll(path, {{"%p", absl::StrCat(::getpid())}, {"%r", rank != nullptr ? rank : "0"}}));
  TraceWriterOptions options;
  options.unnamed = when_used && !ready_.load(std::memory_order_acquire);
  auto created = TraceWriter::Create(name, options);
  if (!created.ok()) return std::string(created.status().message());
  writer_.store(created->release(), std::memory_order_release);
  std::atexit([] { Plugin::Get().CloseTrace(); });
  // Before the devices are open there are no events; Initialize() hands the writer over.
  if (ready_.load(std::memory_order_acquire)) {
    recorder_->SetWriter(writer());
    StartWatching();
  }
  return "";
}

std::string Plugin::FreeName(const std::string& name) {
  if (!InUseByAnother(name)) return name;
  const std::string other = absl::StrCat(name, ".", ::getpid());
  Complain(absl::StrCat("the trace '", name, "' is being written by another process; this one writes '", other, "'"));
  return other;
}

void Plugin::StartWatching() {
  const std::lock_guard<std::mutex> guard(watch_mutex_);
  if (outside_ != nullptr || forked_.load()) return;
  outside_ = std::make_unique<OutsideWatch>(*this, *writer());
  outside_->Start();
  if (cupti_wanted_) outside_->StartCupti();
}

void Plugin::WatchWithCupti() {
  const std::lock_guard<std::mutex> guard(watch_mutex_);
  if (cupti_wanted_) return;
  cupti_wanted_ = true;
  if (outside_ != nullptr) outside_->StartCupti();
}

void Plugin::YieldCupti() {
  if (forked_.load()) return;
  const std::lock_guard<std::mutex> guard(watch_mutex_);
  if (outside_ != nullptr) outside_->YieldToProfiler();
}

void Plugin::CloseTrace() {
  std::lock_guard<std::mutex> guard(trace_mutex_);
  if (writer() == nullptr || trace_closed_ || forked_.load()) return;
  trace_closed_ = true;
  ranges_.End();
  {
    const std::lock_guard<std::mutex> watching(watch_mutex_);
    if (outside_ != nullptr) outside_->Stop();
  }
  writer()->Close();
  for (const auto& [cause, why] : {std::pair(LossCause::kDiskFull, "the disk is full"), std::pair(LossCause::kBufferFull, "the disk was too slow")}) {
    if (const uint64_t lost = writer()->losses(cause); lost != 0)
      Complain(absl::StrCat(lost, " records of the trace '", writer()->path(), "' were lost, because ", why));
  }
}

BlockTag Plugin::NewTag(size_t bytes) {
  const PhaseTracker::Reading reading = phases_.OnAllocation();
  LiveTag tag;
  tag.phase = static_cast<uint8_t>(reading.phase);
  tag.flags = reading.flags;
  tag.module = reading.module;
  tag.thread = reading.thread;
  if (reading.node_changed && ready_.load(std::memory_order_acquire)) {
    recorder_->Control(RecordKind::kNode, NodeName(reading.node.type), reading.node.type != nullptr ? reading.node.sequence : UINT64_MAX,
                       reading.forward_thread, reading.phase);
  }
  if (stacks_.active() && !observes_ && writer() != nullptr && ready_.load(std::memory_order_acquire)) {
    static VRAMLEDGER_FAST_TLS uint32_t previous_stack = 0;
    const uint32_t stack = stacks_.Capture([this](std::string_view text) { return Intern(text); });
    if (stack != previous_stack) recorder_->Control(RecordKind::kStack, previous_stack = stack, 0, 0, reading.phase);
  }
  static VRAMLEDGER_FAST_TLS size_t previous_bytes = 0;
  const uint64_t place = uint64_t{reading.module} | uint64_t{tag.phase} << 32 | uint64_t{reading.thread} << 40;
  const uint64_t site = place * 0x9e3779b97f4a7c15u + previous_bytes;
  if (probe_.AskedByLibrary(bytes, site)) tag.flags |= kFlagLibrary;
  if (casts_.Casts(bytes, site)) tag.flags |= kFlagCast;
  previous_bytes = bytes;
  return tag.Pack();
}

uint32_t Plugin::NodeName(const char* type) {
  if (type == nullptr || writer() == nullptr) return 0;
  {
    std::lock_guard<SpinLock> guard(node_names_lock_);
    if (const auto it = node_names_.find(type); it != node_names_.end()) return it->second;
  }
  // The type's own name: a node's name() takes the GIL where the node is written in Python.
  int status = 0;
  char* const readable = abi::__cxa_demangle(type, nullptr, nullptr, &status);
  std::string_view name = status == 0 ? readable : type;
  if (const size_t scope = name.rfind("::"); scope != std::string_view::npos) name.remove_prefix(scope + 2);
  const uint32_t id = Intern(name);
  std::free(readable);
  std::lock_guard<SpinLock> guard(node_names_lock_);
  node_names_[type] = id;
  return id;
}

void* Plugin::Allocate(size_t bytes, int device, StreamHandle stream) {
  if (bytes == 0) return nullptr;
  std::string error;
  CachingAllocator* allocator = core(&error);
  if (allocator == nullptr) ThrowRuntimeError(absl::StrCat("vramledger: ", error));
  const BlockTag tag = NewTag(bytes);
  OutOfMemoryInfo info;
  const AllocationResult result = allocator->Allocate(device, stream, bytes, tag, &info, LiveTag::From(tag).phase);
  switch (result.status) {
    case AllocationStatus::kOk:
      return result.address;
    case AllocationStatus::kOutOfMemory:
      SampleDevices(/*always=*/true);
      {
        const std::lock_guard<std::mutex> guard(watch_mutex_);
        if (outside_ != nullptr) outside_->Wake();
      }
      if (adapter_ != nullptr) adapter_->BeforeOutOfMemoryError(info);
      ThrowOutOfMemory(OutOfMemoryText(info));
    case AllocationStatus::kInvalidDevice:
      ThrowRuntimeError(absl::StrCat("vramledger: there is no CUDA device ", device));
    case AllocationStatus::kDeviceError:
      ThrowRuntimeError(absl::StrCat("vramledger: the CUDA device failed: ", memory_->last_error()));
  }
  return nullptr;
}

std::string Plugin::OutOfMemoryText(const OutOfMemoryInfo& info) {
  const CategoryBytes categories = ledger_->Get(info.device, *core_);
  std::string text = absl::StrCat("CUDA out of memory. Tried to allocate ", Human(info.requested_bytes), ". GPU ", info.device, " has a total capacity of ",
                                  Human(info.device_total_bytes), " of which ", Human(info.device_free_bytes), " is free. vramledger: ",
                                  Human(info.allocated_bytes), " in use, ", Human(info.awaiting_free_bytes), " freed but awaited by a stream, ",
                                  Human(info.cached_bytes), " cached in segments (largest hole ", Human(info.largest_free_block_bytes),
                                  ", on this stream ", Human(info.largest_free_block_same_stream_bytes), ")");
  if (info.limited_by_fraction) absl::StrAppend(&text, ", limited to ", Human(info.allowed_bytes), " by the memory fraction");
  absl::StrAppend(&text, ". Phase: ", std::string(PhaseName(phases_.program_phase())), ". In use by category, as known so far (a report sees the whole run):");
  const char* before = " ";
  for (size_t c = 0; c < kCategoryCount; ++c) {
    if (categories.current[c] <= 0) continue;
    absl::StrAppend(&text, before, std::string(CategoryName(static_cast<Category>(c))), " ", Human(static_cast<uint64_t>(categories.current[c])));
    before = ", ";
  }
  return text;
}

void Plugin::Complain(const std::string& sentence) {
  if (complaints_.fetch_add(1) < 20) std::fprintf(stderr, "vramledger: %s\n", sentence.c_str());
}

void Plugin::Free(void* address, int device_hint) noexcept {
  // A forked child frees the tensors it inherited when it exits; the memory and the ledger are its parent's.
  if (address == nullptr || forked_.load(std::memory_order_relaxed)) return;
  CachingAllocator* allocator = core();
  if (allocator == nullptr) return;
  const FreeStatus status = allocator->Free(address, device_hint);
  if (status == FreeStatus::kOk) return;
  const std::string what = absl::StrFormat("%s of %p: %s", status == FreeStatus::kDoubleFree ? "double free" : "free of a foreign pointer", address,
                                           allocator->DescribeAddress(address));
  Complain(what);
  Mark(what);
}

void Plugin::RecordStream(void* address, StreamHandle stream) noexcept {
  if (CachingAllocator* allocator = core(); allocator != nullptr && address != nullptr) allocator->RecordStream(address, stream);
}

void Plugin::EmptyCache() noexcept {
  if (CachingAllocator* allocator = core(); allocator != nullptr && !observes_) allocator->EmptyCache();
}

bool Plugin::SetMemoryFraction(double fraction, int device) noexcept {
  CachingAllocator* allocator = core();
  if (allocator == nullptr || !allocator->SetMemoryFraction(fraction, device)) return false;
  Mark(std::string(kMemoryFractionMark) + absl::StrCat(fraction), device);
  return true;
}

void* Plugin::BaseAllocation(void* address, size_t* bytes) noexcept {
  CachingAllocator* allocator = core();
  return allocator == nullptr ? nullptr : allocator->BaseAllocation(address, bytes);
}

uint32_t Plugin::Intern(std::string_view text) {
  TraceWriter* const w = writer();
  const uint32_t id = w != nullptr ? w->InternString(text) : 0;
  if (ranges_.enabled() && id != 0) {
    const std::lock_guard<std::mutex> guard(scope_names_mutex_);
    scope_names_.emplace(id, text);
  }
  return id;
}

std::string Plugin::ScopeName(uint32_t name) {
  const std::lock_guard<std::mutex> guard(scope_names_mutex_);
  const auto found = scope_names_.find(name);
  return found != scope_names_.end() ? found->second : "";
}

void Plugin::EnterModule(uint32_t name, bool training) {
  phases_.EnterModule(name, training);
  if (ready_.load(std::memory_order_acquire)) recorder_->Control(RecordKind::kModuleEnter, name, phases_.signals().SequenceNumber(), 0, phases_.program_phase());
}

void Plugin::ExitModule() {
  if (ready_.load(std::memory_order_acquire)) recorder_->Control(RecordKind::kModuleExit, 0, phases_.signals().SequenceNumber(), 0, phases_.program_phase());
  phases_.ExitModule();
}

void Plugin::RecordScope(uint32_t name, bool begins) {
  const Phase now = phases_.program_phase();
  recorder_->Control(RecordKind::kPhase, name, static_cast<uint64_t>(now), begins ? 1 : 0, now);
}

void Plugin::BeginScope(Phase phase, uint32_t name) {
  phases_.BeginScope(phase, name);
  if (ranges_.enabled() && phase == Phase::kUnknown && name != 0) ranges_.Push(ScopeName(name));
  if (phase == Phase::kUnknown && name != 0 && ready_.load(std::memory_order_acquire)) RecordScope(name, true);
}

void Plugin::EndScope() {
  const uint32_t name = phases_.EndScope();
  if (ranges_.enabled() && name != 0) ranges_.Pop();
  if (name != 0 && ready_.load(std::memory_order_acquire)) RecordScope(name, false);
}

bool Plugin::Name(uintptr_t address, Role role, uint32_t name, uint64_t bytes) {
  if (!ready_.load(std::memory_order_acquire)) return false;
  BlockView block;
  // What a forward or a backward made is not an input, even when it is detached and fed to the next model (a GAN's images).
  if (role == Role::kInput) {
    Phase birth = Phase::kUnknown;
    core_->UpdateTag(reinterpret_cast<void*>(address), 0, [&](const BlockView&, BlockTag& tag) { birth = static_cast<Phase>(LiveTag::From(tag).phase); });
    if (birth == Phase::kForward || birth == Phase::kBackward || birth == Phase::kRecompute) return false;
  }
  if (!ledger_->Name(address, role, *core_, &block)) return false;
  recorder_->Control(RecordKind::kName, name, address, bytes, phases_.program_phase(), block.device, static_cast<uint8_t>(role));
  return true;
}

void Plugin::StepDone(uint32_t optimizer) {
  const uint64_t step = steps_.fetch_add(1) + 1;
  if (ranges_.enabled()) ranges_.Step(step, ScopeName(optimizer));
  if (!ready_.load(std::memory_order_acquire)) return;
  recorder_->Control(RecordKind::kStep, optimizer, step, 0, phases_.program_phase());
  recorder_->RequestCounters();
  SampleDevices();
}

void Plugin::SampleDevices(bool always) {
  const int64_t begin = SteadyNs();
  int64_t due = sample_due_ns_.load(std::memory_order_relaxed);
  if (!always && begin < due) return;
  // Another thread that comes here meanwhile has nothing to add.
  if (!sample_due_ns_.compare_exchange_strong(due, INT64_MAX, std::memory_order_relaxed) && !always) return;
  for (int device = 0; device < core_->device_count(); ++device) {
    if (!memory_->HasContext(device)) continue;
    DeviceMemoryInfo info;
    if (memory_->MemoryInfo(device, &info) != DeviceResult::kOk) continue;
    recorder_->Control(RecordKind::kDeviceUsed, 0, info.free_bytes, info.total_bytes, phases_.program_phase(), device);
  }
  const int64_t end = SteadyNs();
  const int64_t shortest = std::min(shortest_sample_ns.load(std::memory_order_relaxed), end - begin);
  shortest_sample_ns.store(shortest, std::memory_order_relaxed);
  const bool rest = samples_taken.fetch_add(1, std::memory_order_relaxed) >= kSamplesWithoutRest;
  sample_due_ns_.store(rest ? end + std::min(shortest * kSampleRest, kLongestRestNs) : 0, std::memory_order_relaxed);
}

void Plugin::Mark(std::string_view text, int device) {
  if (ready_.load(std::memory_order_acquire)) recorder_->Control(RecordKind::kMark, Intern(text), 0, 0, phases_.program_phase(), device);
}

void Plugin::Metadata(std::string_view json) {
  if (TraceWriter* const w = writer()) w->AppendMetadata(json);
}

void Plugin::OnPhaseChange(Phase previous, Phase now, uint32_t scope) {
  ranges_.Enter(now);
  if (!ready_.load(std::memory_order_acquire)) return;
  recorder_->Control(RecordKind::kPhase, scope, static_cast<uint64_t>(previous), 0, now);
  ledger_->EnterPhase(now, *core_);
  // Without hooks nobody announces the end of a step.
  if (previous == Phase::kOptimizer && !phases_.hooks_active()) recorder_->RequestCounters();
  SampleDevices();
}

std::string Plugin::StatisticsJson() {
  phases_.Settle();
  nlohmann::json out = {{"phase", PhaseName(phases_.program_phase())}, {"steps", steps_.load()}, {"devices", nlohmann::json::array()}};
  const TraceWriter* const w = writer();
  out["trace"] = w != nullptr ? nlohmann::json(w->path()) : nlohmann::json();
  out["lost_records"] = w != nullptr ? w->losses() : 0;
  if (!ready_.load(std::memory_order_acquire)) return out.dump();
  for (int device = 0; device < core_->device_count(); ++device) {
    const Statistics stats = core_->GetStatistics(device);
    const CategoryBytes bytes = ledger_->Get(device, *core_);
    nlohmann::json categories = nlohmann::json::object();
    for (size_t c = 0; c < kCategoryCount; ++c) {
      if (bytes.peak[c] == 0) continue;
      categories[std::string(CategoryName(static_cast<Category>(c)))] = {
          {"current_bytes", bytes.current[c]}, {"peak_bytes", bytes.peak[c]}, {"at_peak_bytes", bytes.at_peak[c]}};
    }
    nlohmann::json entry = {{"device", device}, {"categories", categories}};
    for (const auto& [key, value] : stats.Flatten()) entry["stats"][key] = value;
    entry["allocated_bytes"] = stats.allocated_bytes[kAllPools].current;
    entry["peak_allocated_bytes"] = stats.allocated_bytes[kAllPools].peak;
    entry["reserved_bytes"] = stats.reserved_bytes[kAllPools].current;
    entry["peak_reserved_bytes"] = stats.reserved_bytes[kAllPools].peak;
    out["devices"].push_back(entry);
  }
  return out.dump();
}

void Plugin::ResetPeaks(int device) {
  if (!ready_.load(std::memory_order_acquire)) return;
  core_->ResetPeakStatistics(device);
  ledger_->ResetPeaks(device, *core_);
}

void Plugin::ResetAccumulated(int device) {
  if (ready_.load(std::memory_order_acquire)) core_->ResetAccumulatedStatistics(device);
}

}  // namespace vramledger
