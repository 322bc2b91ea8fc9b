// The verdict OUTSIDE: the device is fuller than the allocator and an ordinary CUDA context explain.
#include <algorithm>

#include "tools/analysis/format_text.h"
#include "tools/analysis/outside.h"
#include "tools/analysis/verdicts.h"
#include "tools/foreign/text.h"

namespace vramledger {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
// Between the largest that public out-of-memory reports leave uncommented, 1.38 GiB, and the smallest that explains
// one, 1.46 GiB; contexts of 1,008 and 1,015 MB are called normal there (pytorch/pytorch#28394, #58466).
constexpr uint64_t kUsualContextBytes = 1454 * kMiB;
// Less than the smallest stray process in such reports, 520 MB (pytorch/examples#969).
constexpr uint64_t kOtherProcessesBytes = 256 * kMiB;
// The smallest communicator there is 544 MB (NVIDIA/nccl#964).
constexpr uint64_t kLibrariesBytes = 512 * kMiB;

// The moment that matters: the first failed request, else when most was outside.
std::optional<OutsideSample> MomentOf(const Timeline& t, uint64_t capacity) {
  if (t.failures.empty()) return t.outside.most;
  const FailedRequest& f = t.failures.front();
  if (f.outside) return f.outside;
  // The failure itself says what was free.
  if (capacity == 0 || f.device_free_bytes > capacity) return std::nullopt;
  OutsideSample s;
  s.step = f.step;
  s.phase = f.phase;
  s.device_used_bytes = capacity - f.device_free_bytes;
  s.reserved_bytes = f.moment.reserved_bytes;
  s.outside_bytes = s.unexplained_bytes = s.device_used_bytes - std::min(s.device_used_bytes, s.reserved_bytes);
  return s;
}

}  // namespace

std::optional<Verdict> JudgeOutside(const Timeline& t, uint64_t capacity) {
  const std::optional<OutsideSample> s = MomentOf(t, capacity);
  if (!s) return std::nullopt;
  const uint64_t others = s->others_bytes.value_or(0);
  const uint64_t rest = s->outside_bytes - std::min(s->outside_bytes, others + s->libraries_bytes);
  const bool by_others = others >= kOtherProcessesBytes, by_libraries = s->libraries_bytes >= kLibrariesBytes;
  const bool by_rest = rest > kUsualContextBytes;
  if (!by_others && !by_libraries && !by_rest) return std::nullopt;

  Verdict v;
  v.id = "OUTSIDE";
  v.sentence = Cat(HumanBytes(s->outside_bytes), " of the device are in use outside the allocator");
  v.evidence = {{"outside_bytes", s->outside_bytes},
                {"device_used_bytes", s->device_used_bytes},
                {"reserved_bytes", s->reserved_bytes},
                {"libraries_bytes", s->libraries_bytes}};
  if (s->context_bytes) v.evidence["context_bytes"] = *s->context_bytes;
  if (s->others_bytes) {
    v.evidence["other_processes_bytes"] = others;
    v.evidence["other_processes"] = s->others_count;
  }
  if (t.outside.jump_bytes >= kOtherProcessesBytes) {
    v.evidence["largest_rise_bytes"] = t.outside.jump_bytes;
    v.evidence["largest_rise_step"] = t.outside.jump_step;
    v.evidence["largest_rise_phase"] = PhaseName(t.outside.jump_phase);
  }
  const auto share = [&](uint64_t bytes) {
    return bytes == s->outside_bytes ? std::string("") : Cat(HumanBytes(bytes), " of it ");
  };
  // The largest owner that is out of the ordinary is named.
  if (by_others && (!by_libraries || others >= s->libraries_bytes) && (!by_rest || others >= rest)) {
    const bool one = s->others_count == 1;
    v.sentence +=
        Cat(": ", share(others), one ? "by another process." : Cat("by ", s->others_count, " other processes."));
    v.suggestion =
        "See with nvidia-smi which they are: stray ranks sit on the first device when torch.load has no map_location "
        "or "
        "torch.cuda.set_device was not called.";
    v.confidence = "high";
  } else if (by_libraries && (!by_rest || s->libraries_bytes >= rest)) {
    const LibraryBytes& largest = s->libraries.front();
    v.sentence += Cat(": ", largest.name, " took ", HumanBytes(largest.bytes), " from CUDA itself.");
    v.evidence["library"] = largest.name;
    v.suggestion = Contains(largest.name, "nccl")
                       ? "Fewer process groups, or fewer channels (NCCL_MAX_NCHANNELS)."
                       : "Bound what that library keeps, or let it take its memory from PyTorch.";
    v.confidence = "high";
  } else if (s->context_bytes) {
    v.sentence += Cat(", ", HumanBytes(rest), " by this process for neither the allocator nor a known library.");
    v.suggestion =
        "Look for what was loaded or set up where it rose: communicators, extensions with many kernels, a second "
        "context.";
    v.confidence = "medium";
  } else {
    v.sentence += ", and the trace does not tell whose they are.";
    v.suggestion = "Look with nvidia-smi for other processes; communicators and loaded kernels take memory as well.";
    v.confidence = "low";
  }
  v.price = "none";
  return v;
}

}  // namespace vramledger
