// Streams, events, graph capture, and when work counts as done.
//
// By default work is done as soon as it is enqueued. With a delay seed it completes later: each piece of work takes a
// pseudo-random number of ticks; a tick passes with every piece of work and every query, and a wait moves the clock to
// the end of what it waits for. So the order that streams and events promise is kept, it is the same in every run
// of a single-threaded program, and nothing can hang.
// Data moves at once in both modes; only the completion that a program can observe is late.
// Thread-safe. Handles: null or 1 the legacy default stream, 2 the per-thread default stream, else a Stream.
#pragma once

#include <atomic>
#include <cstdint>

#include "tools/virtual_device/core/config.h"

namespace vd {

struct Stream {
  int device = 0;
  int priority = 0;
  unsigned flags = 0;       // 1: non-blocking (does not wait for the legacy default stream)
  uint64_t id = 0;
  uint64_t done_at = 0;     // tick by which all its work is done
  uint64_t capture = 0;     // id of the capture it takes part in, 0: none
  int capture_mode = 0;
  bool capture_origin = false;
};

struct Event {
  int device = 0;
  unsigned flags = 0;       // 2: no timing
  bool recorded = false;
  uint64_t done_at = 0;
  uint64_t time_ns = 0;
  uint64_t capture = 0;
};

VD_API Stream* StreamOf(void* handle);  // null: not a stream of ours
VD_API int StreamCreate(unsigned flags, int priority, void** handle);
VD_API int StreamDestroy(void* handle);
VD_API int StreamDone(void* handle);        // kOk or kNotReady
VD_API int StreamSync(void* handle);
VD_API void DeviceSync(int device);
VD_API int StreamWait(void* handle, Event* event);
VD_API void Enqueue(void* handle);          // one piece of work

VD_API int EventCreate(unsigned flags, Event** event);
VD_API int EventDestroy(Event* event);
VD_API int EventRecord(Event* event, void* stream);
VD_API int EventDone(Event* event);
VD_API int EventSync(Event* event);
VD_API int EventElapsed(Event* start, Event* end, float* milliseconds);

// Capture into a graph. A graph knows only how many pieces of work it holds: kernels do nothing.
struct Graph {
  std::atomic<uint64_t> nodes{0};
};
VD_API int CaptureBegin(void* handle, int mode, Graph* into);
VD_API int CaptureEnd(void* handle, Graph** graph);
VD_API int CaptureStatus(void* handle, uint64_t* id, Graph** graph);  // 0 none, 1 active
// kCaptureUnsupported when the calling thread may not make an unsafe call (cudaMalloc, a synchronisation) now.
VD_API int CaptureAllows();

}  // namespace vd
