#include <algorithm>

#include "tools/analysis/format_text.h"
#include "tools/analysis/leaks.h"
#include "tools/analysis/metadata.h"
#include "tools/analysis/outside.h"
#include "tools/analysis/report.h"
#include "tools/analysis/text_table.h"
#include "tools/analysis/verdicts.h"
#include "tools/foreign/text.h"

namespace vramledger {
namespace {

double Share(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

// The first of a stack's frames, and how many more there are; the JSON report has all.
std::string InnermostFrames(const std::string& stack) {
  constexpr size_t kShown = 5;
  const std::string_view separator = " < ";
  size_t end = 0, frames = 0, shown = stack.size();
  while (end != std::string::npos) {
    end = stack.find(separator, end == 0 ? 0 : end + separator.size());
    if (++frames == kShown && end != std::string::npos) shown = end;
  }
  return frames <= kShown ? stack : Cat(stack.substr(0, shown), separator, "... ", frames - kShown, " more");
}

class Writer {
 public:
  Writer(const Analysis& a, const ReportTextOptions& options)
      : a_(a), t_(a.timeline), metadata_(a.source.metadata_json), options_(options) {}

  std::string Run() {
    Headline();
    Verdicts();
    if (t_.allocations != 0) {
      Ledger();
      Models();
      Peaks();
      OwnPhases();
      Steps();
      Places();
    }
    Outside();
    Free();
    Source();
    return std::move(out_);
  }

 private:
  std::string Bold(const std::string& text) const { return options_.color ? Cat("\033[1m", text, "\033[0m") : text; }
  void Title(const std::string& text) { out_ += Cat("\n", Bold(text), "\n"); }

  void Headline() {
    const std::string where = metadata_.virtual_device() ? ", on a virtual device" : "";
    if (t_.allocations == 0) {
      out_ += Bold(Cat("No allocation was ", a_.source.health.damage.empty() ? "recorded" : "readable", " on device ",
                       t_.device, where, ".")) +
              "\n";
      if (a_.source.health.damage.empty())
        out_ +=
            "Either the program asked for no memory there, or another process did, whose trace is another file, or\n"
            "PYTORCH_NO_CUDA_MEMORY_CACHING=1 sent every request past the allocator.\n";
    } else if (JsonBool(metadata_.root(), "state_only")) {
      out_ +=
          Bold(Cat("State: ", HumanBytes(t_.peak.total.rounded), " allocated of ", HumanBytes(t_.reserved_peak_bytes),
                   " reserved when the snapshot was taken; it holds no history.")) +
          "\n";
    } else {
      out_ += Bold(Cat("Peak ", a_.source.health.ended_early ? "so far " : "", HumanBytes(t_.peak.total.rounded), " allocated",
                       InPhaseAndStep(t_, t_.peak.phase, t_.peak.step), where, ", ",
                       t_.reserved_peak_bytes != 0 ? Cat(HumanBytes(t_.reserved_peak_bytes), " reserved at most")
                                                   : std::string("segments not recorded"),
                       ".")) +
              "\n";
    }
    if (a_.source.health.ended_early) out_ += EarlyEndSentence(a_.source.health) + "\n";
    if (a_.source.health.lost_records != 0) out_ += LossSentence(a_.source.health) + "\n";
    if (metadata_.without_hooks() && !t_.has_names)
      out_ += "Recorded without hooks: phases are guessed from signals, nothing has a name.\n";
    if (metadata_.virtual_device()) {
      const nlohmann::json& root = metadata_.root();
      const uint64_t reads = root.contains("host_reads") ? JsonUint(root["host_reads"], "count") : 0;
      if (reads != 0)
        out_ += Cat("The program read ", Grouped(reads),
                    " values that only a real device can compute; shapes that depend on them may differ.\n");
    }
  }

  void Verdicts() {
    const std::vector<Verdict> verdicts = Judge(a_);
    for (const Verdict& v : verdicts) {
      out_ += Cat("\n", Bold(v.id), ": ", v.sentence, "\n  -> ", v.suggestion, "\n     price: ", v.price,
                  "; confidence: ", v.confidence, "\n");
    }
    if (verdicts.empty() && t_.allocations != 0)
      out_ += a_.source.health.lost_records != 0 ? "No fault found in what is left.\n"
              : a_.source.health.ended_early     ? "No fault found so far.\n"
                                                 : "No fault found.\n";
  }

  void Ledger() {
    Title("Where the bytes are at the peak");
    TextTable table;
    table.Row({"category", "requested B", "rounded B", "share", "blocks"});
    for (int c = 1; c < kCategoryCount; ++c) {
      const Bytes& b = t_.peak.categories[static_cast<size_t>(c)];
      if (b.count == 0) continue;
      table.Row({std::string(CategoryName(static_cast<Category>(c))), Grouped(b.requested), Grouped(b.rounded),
                 Percent(Share(b.rounded, t_.peak.total.rounded)), Grouped(b.count)});
    }
    const Bytes& unknown = t_.peak.categories[0];
    table.Row({"unexplained", Grouped(unknown.requested), Grouped(unknown.rounded),
               Percent(Share(unknown.rounded, t_.peak.total.rounded)), Grouped(unknown.count)});
    table.Row({"= in use", Grouped(t_.peak.total.requested), Grouped(t_.peak.total.rounded), "",
               Grouped(t_.peak.total.count)});
    if (t_.peak.reserved_bytes != 0) {
      const uint64_t used = t_.peak.total.rounded + t_.peak.pending_bytes;
      if (t_.peak.pending_bytes != 0) table.Row({"+ awaited by a stream", "", Grouped(t_.peak.pending_bytes)});
      if (t_.peak.reserved_bytes >= used)
        table.Row({"+ free in the cache", "", Grouped(t_.peak.reserved_bytes - used)});
      table.Row({"= reserved", "", Grouped(t_.peak.reserved_bytes)});
    }
    if (t_.device_sampled) {
      table.Row({"+ outside the allocator (at most)", "", Grouped(t_.outside_peak_bytes)});
    }
    out_ += table.Text();
    if (t_.peak_before_recording.count != 0) {
      out_ += Cat(
          "  ", Grouped(t_.peak_before_recording.rounded), " B of it (", t_.peak_before_recording.count,
          " blocks) existed before the recording began; what they are can only be told from where they were freed.\n");
    }
  }

  // Where several networks share the device (a GAN), each apart.
  void Models() {
    const std::vector<ModelSize> models = metadata_.model_sizes();
    if (models.size() < 2) return;
    Title("Networks");
    TextTable table;
    table.Row({"network", "parameters", "bytes"});
    for (const ModelSize& m : models) table.Row({m.name, Grouped(m.parameters), Grouped(m.parameter_bytes)});
    out_ += table.Text();
  }

  void Peaks() {
    if (JsonBool(metadata_.root(), "state_only")) return;
    Title("Peak of each phase");
    TextTable table;
    table.Row({"phase", "allocated B", "reserved B", "step", "largest part"});
    std::vector<int> order;
    for (int p = 0; p < kPhaseCount; ++p) {
      if (t_.phase_peaks[static_cast<size_t>(p)].seen) order.push_back(p);
    }
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return t_.phase_peaks[static_cast<size_t>(a)].moment.total.rounded >
             t_.phase_peaks[static_cast<size_t>(b)].moment.total.rounded;
    });
    for (const int p : order) {
      const Moment& m = t_.phase_peaks[static_cast<size_t>(p)].moment;
      size_t largest = 0;
      for (size_t c = 1; c < kCategoryCount; ++c) {
        if (m.categories[c].rounded > m.categories[largest].rounded) largest = c;
      }
      table.Row({std::string(PhaseName(static_cast<Phase>(p))), Grouped(m.total.rounded), Grouped(m.reserved_bytes),
                 StepCell(t_, static_cast<Phase>(p), m.step),
                 Cat(CategoryName(static_cast<Category>(largest)), " ", HumanBytes(m.categories[largest].rounded))});
    }
    out_ += table.Text();
    if (const Moment* next = NextPeak(t_); next != nullptr && t_.peak.phase != Phase::kUnknown) {
      out_ += Cat("  Without the peak in ", PhaseName(t_.peak.phase), " the next one is ",
                  HumanBytes(next->total.rounded), " in ", PhaseName(next->phase), ".\n");
    }
  }

  void OwnPhases() {
    if (t_.own_phases.empty()) return;
    Title("Phases of the program's own");
    TextTable table;
    table.Row({"name", "times", "peak while it ran B", "step", "rose by at most B"});
    for (const OwnPhase& p : t_.own_phases) {
      table.Row({p.name, Grouped(p.times), Grouped(p.peak_bytes), std::to_string(p.peak_step),
                 Grouped(p.rise_bytes)});
    }
    out_ += table.Text();
  }

  void Steps() {
    if (t_.steps.size() < 2) return;
    const uint32_t optimizers = StepsOfARound(t_.steps);
    Title(Cat("Peak of each step",
              optimizers > 1 ? Cat(" (the step of each of the ", optimizers, " optimizers counts as one)")
                             : std::string()));
    TextTable table;
    table.Row({"step", "peak B", "phase", "held at its end B", "optimizer"});
    for (size_t i = 0; i < t_.steps.size(); ++i) {
      const bool shown = t_.steps.size() <= 12 || i < 6 || i + 4 >= t_.steps.size();
      if (!shown) {
        if (i == 6) table.Row({"..."});
        continue;
      }
      const StepSummary& s = t_.steps[i];
      table.Row({std::to_string(s.number), Grouped(s.peak.total.rounded), std::string(PhaseName(s.peak.phase)),
                 Grouped(s.floor_bytes), s.optimizer});
    }
    out_ += table.Text();
  }

  void Places() {
    Title("Largest groups of blocks at the peak");
    TextTable table;
    table.Row({"place", "bytes", "blocks", "each B", "category", "born in"});
    for (size_t i = 0; i < t_.peak_groups.size() && i < options_.top; ++i) {
      const BlockGroup& g = t_.peak_groups[i];
      std::string place = !g.tensor.empty() ? g.tensor : !g.site.empty() ? g.site : Cat(g.node.empty() ? "-" : g.node);
      if (place.size() > 60) place = Cat(place.substr(0, 28), "...", place.substr(place.size() - 29));
      table.Row({place, HumanBytes(g.bytes.rounded), Grouped(g.bytes.count), Grouped(g.requested_each),
                 std::string(CategoryName(g.category)), std::string(PhaseName(g.phase))});
    }
    out_ += table.Text();
    Stacks();
  }

  void Stacks() {
    std::string text;
    for (size_t i = 0; i < t_.peak_groups.size() && i < options_.top; ++i) {
      const BlockGroup& g = t_.peak_groups[i];
      if (!g.stack.empty()) text += Cat("  ", HumanBytes(g.bytes.rounded), " by ", InnermostFrames(g.stack), "\n");
    }
    if (text.empty()) return;
    Title("Where these were allocated, the innermost frame first");
    out_ += text;
  }

  void Outside() {
    const std::string rows = OutsideText(a_);
    if (rows.empty()) return;
    Title("Outside the allocator");
    out_ += rows;
  }

  void Free() {
    const Fragmentation& f = t_.at_reserved_peak;
    if (!f.known) return;
    Title("Reserved and not in use, when the most was reserved");
    TextTable table;
    table.Row({"rounding inside blocks", Grouped(f.internal_bytes)});
    table.Row({"pinned: in segments that hold live blocks", Grouped(f.pinned_bytes)});
    table.Row({"idle: whole free segments", Grouped(f.idle_bytes)});
    table.Row({"stream: on streams that ask for nothing more", Grouped(f.stream_bytes)});
    table.Row({"pending: awaited by a stream", Grouped(f.pending_bytes)});
    table.Row({"largest hole", Grouped(f.largest_hole_bytes)});
    out_ += table.Text();
  }

  void Source() {
    Title("What this is based on");
    const nlohmann::ordered_json loss = LossJson(a_);
    out_ += Cat("  ", a_.source.format, ": ", Grouped(t_.events), " events, ", Grouped(t_.allocations),
                " allocations, ", HumanTime(t_.duration_ns), "; ",
                a_.source.health.lost_records == 0 ? std::string("none lost")
                                                   : Cat(Grouped(a_.source.health.lost_records), " records lost"),
                ".\n");
    if (t_.unmatched_frees != 0)
      out_ += Cat("  ", Grouped(t_.unmatched_frees), " frees of blocks whose allocation was not recorded.\n");
    if (t_.counters_wrong != 0)
      out_ += Cat("  ", t_.counters_wrong, " of ", t_.counters_seen,
                  " recorded totals differ from the sum of the blocks.\n");
    if (!t_.has_phases && t_.allocations != 0)
      out_ += "  No phase was recorded: categories and phases cannot be told.\n";
    if (!t_.device_sampled)
      out_ += "  Memory outside the allocator (CUDA context, NCCL, other processes) was not sampled.\n";
    for (const std::string& note : OutsideNotes(a_)) out_ += Cat("  Note: ", note, ".\n");
    for (const auto& note : loss["notes"]) {
      if (note.is_string()) out_ += Cat("  Note: ", note.get<std::string>(), ".\n");
    }
    if (a_.device_peaks.size() > 1) {
      std::string list;
      for (const auto& [index, peak] : a_.device_peaks)
        list += Cat(list.empty() ? "" : ", ", index, ": ", HumanBytes(peak));
      out_ += Cat("  Device ", t_.device, " is shown; peaks by device: ", list, " (choose with --device).\n");
    }
  }

  const Analysis& a_;
  const Timeline& t_;
  Metadata metadata_;
  ReportTextOptions options_;
  std::string out_;
};

}  // namespace

std::string EarlyEndSentence(const SourceHealth& health) {
  return health.damage.empty() ? "The trace ends early: the program did not close it (crash, kill, or still running)."
                               : "The file is damaged: what follows the damage is missing here.";
}

std::string LossSentence(const SourceHealth& health) {
  if (health.lost_records == 0) return "";
  return Cat(Grouped(health.lost_records), " records were lost: every figure is of those that are left, and the true peak may be higher.");
}

std::string ReportText(const Analysis& analysis, const ReportTextOptions& options) {
  return Writer(analysis, options).Run();
}

}  // namespace vramledger
