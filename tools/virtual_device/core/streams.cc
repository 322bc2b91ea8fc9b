#include "tools/virtual_device/core/streams.h"

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "tools/virtual_device/core/state.h"

namespace vd {
namespace {

constexpr int kMostDevices = 16;
constexpr unsigned kNonBlocking = 1;
constexpr unsigned kDisableTiming = 2;
constexpr uint64_t kLongestWork = 24;  // ticks

struct Capture {
  Graph* graph = nullptr;
  int mode = 0;
  std::thread::id thread;
  std::set<Stream*> streams;
};

struct World {
  std::mutex lock;
  uint64_t now = 1;
  uint64_t random = 0;
  uint64_t next_id = 16;  // ids below are those of the default streams
  std::set<Stream*> streams;
  std::set<Event*> events;
  std::array<Stream, kMostDevices> legacy;  // the legacy default stream of each device
  std::map<uint64_t, Capture> captures;
  uint64_t next_capture = 1;
};
World& TheWorld() {
  static auto* world = [] {
    auto* made = new World;
    made->random = GetConfig().delay_seed * 0x9E3779B97F4A7C15ull + 0x1234567;
    for (int i = 0; i < kMostDevices; ++i) made->legacy[i].device = i, made->legacy[i].id = 1;
    return made;
  }();
  return *world;
}

uint64_t Next(World& world) {  // splitmix64
  uint64_t z = (world.random += 0x9E3779B97F4A7C15ull);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

// The clock of timed events. Real time would only measure this process, and would make whoever chooses by it (cuDNN's
// and the compiler's autotuning) choose at random. So every kernel takes the same made-up time, whatever it would
// do, and of equal candidates the first tried wins, which is the one that the library's heuristics put first.
constexpr uint64_t kNsPerLaunch = 1'000'000;
uint64_t NowNs() { return g_launches.load(std::memory_order_relaxed) * kNsPerLaunch; }

bool IsLegacy(const Stream* stream) { return stream->id == 1; }

// The legacy default stream waits for every blocking stream of its device, and they for it.
uint64_t DoneAt(World& world, const Stream* stream) {
  uint64_t done = stream->done_at;
  if (IsLegacy(stream)) {
    for (const Stream* other : world.streams) {
      if (other->device == stream->device && (other->flags & kNonBlocking) == 0) done = std::max(done, other->done_at);
    }
  } else if ((stream->flags & kNonBlocking) == 0) {
    done = std::max(done, world.legacy[stream->device].done_at);
  }
  return done;
}

}  // namespace

void ForkStreams(int action) { ForkLock(TheWorld().lock, action); }

Stream* StreamOf(void* handle) {
  World& world = TheWorld();
  if (reinterpret_cast<uintptr_t>(handle) <= 2) return &world.legacy[g_thread.device];
  return static_cast<Stream*>(handle);
}

int StreamCreate(unsigned flags, int priority, void** handle) {
  if (const int code = EnsureContext(); code != kOk) return code;
  World& world = TheWorld();
  auto* stream = new Stream;
  stream->device = g_thread.device;
  stream->flags = flags;
  stream->priority = std::clamp(priority, -5, 0);
  const std::lock_guard guard(world.lock);
  stream->id = world.next_id++;
  world.streams.insert(stream);
  *handle = stream;
  return kOk;
}

int StreamDestroy(void* handle) {
  World& world = TheWorld();
  const std::lock_guard guard(world.lock);
  auto* stream = static_cast<Stream*>(handle);
  if (world.streams.erase(stream) == 0) return kInvalidHandle;
  delete stream;
  return kOk;
}

void Enqueue(void* handle) {
  const uint32_t flags = g_launch_flags.load(std::memory_order_relaxed);
  if ((flags & (kLaunchDelayed | kLaunchCapture)) == 0) return;
  World& world = TheWorld();
  const std::lock_guard guard(world.lock);
  Stream* stream = StreamOf(handle);
  if (stream->capture != 0) {
    auto it = world.captures.find(stream->capture);
    if (it != world.captures.end()) ++it->second.graph->nodes;
    return;  // recorded, not run
  }
  if ((flags & kLaunchDelayed) == 0) return;
  ++world.now;
  stream->done_at = std::max(DoneAt(world, stream), world.now) + 1 + Next(world) % kLongestWork;
}

int StreamDone(void* handle) {
  if (!LaunchFlag(kLaunchDelayed)) return kOk;
  World& world = TheWorld();
  const std::lock_guard guard(world.lock);
  ++world.now;
  return DoneAt(world, StreamOf(handle)) <= world.now ? kOk : kNotReady;
}

int StreamSync(void* handle) {
  if (LaunchFlag(kLaunchCapture)) {
    if (const int code = CaptureAllows(); code != kOk) return code;
  }
  if (!LaunchFlag(kLaunchDelayed)) return kOk;
  World& world = TheWorld();
  const std::lock_guard guard(world.lock);
  world.now = std::max(world.now, DoneAt(world, StreamOf(handle)));
  return kOk;
}

void DeviceSync(int device) {
  if (!LaunchFlag(kLaunchDelayed)) return;
  World& world = TheWorld();
  const std::lock_guard guard(world.lock);
  world.now = std::max(world.now, world.legacy[device].done_at);
  for (const Stream* stream : world.streams) {
    if (stream->device == device) world.now = std::max(world.now, stream->done_at);
  }
}

int StreamWait(void* handle, Event* event) {
  if (event == nullptr) return kInvalidHandle;
  if ((g_launch_flags.load(std::memory_order_relaxed) & (kLaunchDelayed | kLaunchCapture)) == 0) return kOk;
  World& world = TheWorld();
  const std::lock_guard guard(world.lock);
  Stream* stream = StreamOf(handle);
  if (event->capture != 0 && stream->capture == 0) {
    // Waiting for captured work draws the stream into the capture.
    auto it = world.captures.find(event->capture);
    if (it != world.captures.end()) {
      stream->capture = event->capture;
      stream->capture_mode = it->second.mode;
      it->second.streams.insert(stream);
    }
    return kOk;
  }
  stream->done_at = std::max(stream->done_at, event->done_at);
  return kOk;
}

int EventCreate(unsigned flags, Event** event) {
  if (const int code = EnsureContext(); code != kOk) return code;
  auto* made = new Event;
  made->flags = flags;
  made->device = g_thread.device;
  World& world = TheWorld();
  const std::lock_guard guard(world.lock);
  world.events.insert(made);
  *event = made;
  return kOk;
}

int EventDestroy(Event* event) {
  World& world = TheWorld();
  const std::lock_guard guard(world.lock);
  if (world.events.erase(event) == 0) return kInvalidHandle;
  delete event;
  return kOk;
}

int EventRecord(Event* event, void* handle) {
  if (event == nullptr) return kInvalidHandle;
  event->recorded = true;
  event->time_ns = (event->flags & kDisableTiming) != 0 ? 0 : NowNs();
  event->capture = 0;
  if ((g_launch_flags.load(std::memory_order_relaxed) & (kLaunchDelayed | kLaunchCapture)) == 0) return kOk;
  World& world = TheWorld();
  const std::lock_guard guard(world.lock);
  const Stream* stream = StreamOf(handle);
  event->capture = stream->capture;
  event->done_at = DoneAt(world, stream);
  return kOk;
}

int EventDone(Event* event) {
  if (event == nullptr) return kInvalidHandle;
  if (!LaunchFlag(kLaunchDelayed)) return kOk;
  World& world = TheWorld();
  const std::lock_guard guard(world.lock);
  ++world.now;
  return event->done_at <= world.now ? kOk : kNotReady;
}

int EventSync(Event* event) {
  if (event == nullptr) return kInvalidHandle;
  if (!LaunchFlag(kLaunchDelayed)) return kOk;
  World& world = TheWorld();
  const std::lock_guard guard(world.lock);
  world.now = std::max(world.now, event->done_at);
  return kOk;
}

int EventElapsed(Event* start, Event* end, float* milliseconds) {
  if (start == nullptr || end == nullptr || !start->recorded || !end->recorded) return kInvalidHandle;
  if (((start->flags | end->flags) & kDisableTiming) != 0) return kInvalidHandle;
  if (LaunchFlag(kLaunchDelayed)) {
    World& world = TheWorld();
    const std::lock_guard guard(world.lock);
    if (start->done_at > world.now || end->done_at > world.now) return kNotReady;
  }
  *milliseconds = static_cast<float>(static_cast<double>(static_cast<int64_t>(end->time_ns - start->time_ns)) / 1e6);
  return kOk;
}

int CaptureBegin(void* handle, int mode, Graph* into) {
  World& world = TheWorld();
  const std::lock_guard guard(world.lock);
  if (reinterpret_cast<uintptr_t>(handle) <= 2) return kCaptureUnsupported;  // the default stream cannot be captured
  Stream* stream = StreamOf(handle);
  if (stream->capture != 0) return kIllegalState;
  const uint64_t id = world.next_capture++;
  world.captures[id] = {into, mode, std::this_thread::get_id(), {stream}};
  stream->capture = id;
  stream->capture_mode = mode;
  stream->capture_origin = true;
  SetLaunchFlag(kLaunchCapture, true);
  return kOk;
}

int CaptureEnd(void* handle, Graph** graph) {
  World& world = TheWorld();
  const std::lock_guard guard(world.lock);
  Stream* stream = StreamOf(handle);
  auto it = world.captures.find(stream->capture);
  if (it == world.captures.end() || !stream->capture_origin) return kIllegalState;
  *graph = it->second.graph;
  for (Stream* member : it->second.streams) {
    if (world.streams.count(member) == 0) continue;
    member->capture = 0;
    member->capture_origin = false;
  }
  world.captures.erase(it);
  SetLaunchFlag(kLaunchCapture, !world.captures.empty());
  return kOk;
}

int CaptureStatus(void* handle, uint64_t* id, Graph** graph) {
  if (!LaunchFlag(kLaunchCapture)) return 0;
  World& world = TheWorld();
  const std::lock_guard guard(world.lock);
  const Stream* stream = StreamOf(handle);
  auto it = world.captures.find(stream->capture);
  if (it == world.captures.end()) return 0;
  if (id != nullptr) *id = it->first;
  if (graph != nullptr) *graph = it->second.graph;
  return 1;
}

int CaptureAllows() {
  if (!LaunchFlag(kLaunchCapture) || g_thread.capture_mode == 2) return kOk;  // relaxed threads may do anything
  World& world = TheWorld();
  const std::lock_guard guard(world.lock);
  for (const auto& [id, capture] : world.captures) {
    const bool mine = capture.thread == std::this_thread::get_id();
    if (capture.mode == 0 && g_thread.capture_mode == 0) return kCaptureUnsupported;
    if (capture.mode == 1 && mine) return kCaptureUnsupported;
  }
  return kOk;
}

}  // namespace vd
