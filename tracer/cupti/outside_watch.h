// Watches what the process takes from its devices past the allocator, and what other processes hold, and writes it to
// the trace.
#ifndef VRAMLEDGER_TRACER_CUPTI_OUTSIDE_WATCH_H_
#define VRAMLEDGER_TRACER_CUPTI_OUTSIDE_WATCH_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>

#include "tracer/cupti/nvml_processes.h"
#include "tracer/format/trace_writer.h"
#include "tracer/format/vocabulary.h"

namespace vramledger {

// What the watch asks of the allocator. Any thread; must not block on the allocator's locks.
class OutsideHost {
 public:
  virtual ~OutsideHost() = default;
  virtual int DeviceCount() = 0;
  // This process has a context on the device; others must not be touched, since touching makes one.
  virtual bool DeviceInUse(int device) = 0;
  // The device's PCI address as cudaDeviceGetPCIBusId writes it, empty if unknown.
  virtual std::string BusId(int device) = 0;
  // Grows with every segment taken or given back.
  virtual uint64_t SegmentChanges() const = 0;
  virtual Phase CurrentPhase() const = 0;
};

// A thread of its own asks CUPTI and NVML, so that neither is ever on the training's path: every 100 ms, and soon after
// Wake(). NVML is asked at most so often that it takes 2 % of that thread's time.
//
// Thread rule: any thread. Nothing may be called in a forked child.
class OutsideWatch {
 public:
  // Both must outlive Stop().
  OutsideWatch(OutsideHost& host, TraceWriter& writer) : host_(host), writer_(writer) {}

  // NVML and the thread. VRAMLEDGER_NVML=0 leaves NVML out.
  void Start();
  // CUPTI as well, for a caller who sees to it that YieldToProfiler() is called in time. VRAMLEDGER_CUPTI=0 leaves it
  // out.
  void StartCupti();
  // A request has failed: look now.
  void Wake();
  // A profiler is about to start, which needs CUPTI for itself: gives it up for the rest of the run. See
  // cupti_memory.h.
  void YieldToProfiler();
  // Looks once more and ends the thread. Idempotent.
  void Stop();

 private:
  using Clock = std::chrono::steady_clock;

  void Main();
  void Look(bool last);
  void TakeOperations();
  void AskNvml(int device);
  void Say(const char* tool, const std::string& state);

  OutsideHost& host_;
  TraceWriter& writer_;
  std::mutex look_mutex_;  // one look at a time; guards the next six
  NvmlProcesses nvml_;
  bool nvml_usable_ = false;
  std::string nvml_state_;
  uint64_t last_time_ns_ = 0;  // of a record: times of one thread must not go back
  Clock::time_point nvml_due_{};
  std::map<int, std::tuple<uint64_t, uint64_t, uint32_t>> said_;  // by device: only what changed is written
  std::mutex wake_mutex_;
  std::condition_variable wake_;
  bool started_ = false, woken_ = false, closing_ = false;
  uint16_t thread_ = 0;  // of the records; set before started_
  std::thread worker_;
};

}  // namespace vramledger

#endif  // VRAMLEDGER_TRACER_CUPTI_OUTSIDE_WATCH_H_
