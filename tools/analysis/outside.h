// Memory of the device that is not the allocator's: followed along the trace, split by owner, and printed.
#ifndef VRAMLEDGER_TOOLS_ANALYSIS_OUTSIDE_H_
#define VRAMLEDGER_TOOLS_ANALYSIS_OUTSIDE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tracer/format/event.h"

namespace vramledger {

struct Analysis;

// What one library took from CUDA itself and still holds.
struct LibraryBytes {
  std::string name;  // file name, such as libnccl.so.2; "(unknown library)"
  uint64_t bytes = 0;
};

// One sample of the device, split. outside = device_used - reserved
//   = context + libraries + others + unexplained,
// where context is what NVML counts for this process and neither the allocator nor a library asked for: the CUDA
// context, loaded modules, and what a library took in a way that CUPTI does not report.
struct OutsideSample {
  uint64_t time_ns = 0;
  uint64_t step = 0;
  Phase phase = Phase::kUnknown;
  uint64_t device_used_bytes = 0;
  uint64_t reserved_bytes = 0;
  uint64_t outside_bytes = 0;
  std::vector<LibraryBytes> libraries;  // largest first
  uint64_t libraries_bytes = 0;
  std::optional<uint64_t> context_bytes;  // nothing without NVML, as the next
  std::optional<uint64_t> others_bytes;
  uint32_t others_count = 0;
  uint64_t unexplained_bytes = 0;
};

struct OutsideLedger {
  uint64_t samples = 0;
  std::optional<OutsideSample> at_peak;  // nearest in time to the peak of the allocated bytes
  std::optional<OutsideSample> most;     // with the most outside
  // Each at its own highest.
  uint64_t context_peak_bytes = 0, libraries_peak_bytes = 0, others_peak_bytes = 0;
  uint32_t others_peak_count = 0;
  // The largest rise from one sample to the next, and where.
  uint64_t jump_bytes = 0;
  uint64_t jump_step = 0;
  Phase jump_phase = Phase::kUnknown;
  std::map<size_t, OutsideSample> at_failures;  // by number of the failed request
  bool split() const { return most && (most->context_bytes || most->libraries_bytes != 0); }
};

// Follows one device. CUPTI's records come up to a tenth of a second late, under the time of the fact; so everything is
// put in the order of its time before it counts.
class OutsideFollower {
 public:
  // OUTSIDE_ALLOC, OUTSIDE_FREE. `own` = the address lies in a segment of the allocator: it is not outside.
  void Alloc(const Event& event, std::string library, bool own);
  void Free(const Event& event);
  // PROCESS_USED, with what the allocator has reserved now.
  void Processes(const Event& event, uint64_t reserved_bytes);
  // DEVICE_USED. `failure` is the number of the failed request that this sample was made for, if any.
  void Sampled(const Event& event, uint64_t reserved_bytes, uint64_t step, Phase phase, std::optional<size_t> failure);
  // The peak is here; the sample nearest to it is wanted.
  void AtPeak(uint64_t time_ns);
  // The whole, at the end of the trace.
  OutsideLedger Take();
  // Records whose turn has not come.
  size_t waiting() const { return waiting_.size(); }

 private:
  struct Held {
    std::string library;
    uint64_t bytes = 0;
  };
  struct Waiting {
    enum Kind { kAlloc, kFree, kProcesses, kSample, kPeak } kind = kPeak;
    Event event;
    std::string library;
    uint64_t reserved_bytes = 0;
    uint64_t step = 0;
    Phase phase = Phase::kUnknown;
    std::optional<size_t> failure;
  };

  void Wait(Waiting waiting);
  void Count(const Waiting& waiting);
  void Forget(uint64_t address);
  void CountProcesses(const Waiting& waiting);
  void CountSample(const Waiting& waiting);

  std::multimap<uint64_t, Waiting> waiting_;  // by time
  std::map<uint64_t, Held> held_;             // by address
  std::map<std::string, uint64_t> by_library_;
  uint64_t libraries_bytes_ = 0;
  std::optional<uint64_t> context_bytes_, others_bytes_;
  uint32_t others_count_ = 0;
  std::optional<OutsideSample> last_;
  std::optional<uint64_t> peak_ns_;  // waits for the sample after the peak
  OutsideLedger ledger_;
};

nlohmann::ordered_json OutsideSampleJson(const std::optional<OutsideSample>& sample);  // null for none
// The object `outside` of report and reconcile.
nlohmann::ordered_json OutsideJson(const Analysis& analysis);
// Its rows; nothing when the trace has no split.
std::string OutsideText(const Analysis& analysis);
// Sentences for what was not recorded, without a full stop.
std::vector<std::string> OutsideNotes(const Analysis& analysis);

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_ANALYSIS_OUTSIDE_H_
