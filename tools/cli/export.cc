// vramledger export: the events, one by one, for other tools.
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "tools/analysis/hindsight.h"
#include "tools/cli/load.h"
#include "tools/foreign/text.h"

namespace vramledger::cli {
namespace {

std::string_view KindName(RecordKind kind) {
  switch (kind) {
    case RecordKind::kAlloc:
      return "alloc";
    case RecordKind::kFreeRequested:
      return "free_requested";
    case RecordKind::kFreeCompleted:
      return "free_completed";
    case RecordKind::kSegmentAlloc:
      return "segment_alloc";
    case RecordKind::kSegmentFree:
      return "segment_free";
    case RecordKind::kSegmentMap:
      return "segment_map";
    case RecordKind::kSegmentUnmap:
      return "segment_unmap";
    case RecordKind::kOutOfMemory:
      return "out_of_memory";
    case RecordKind::kPhase:
      return "phase";
    case RecordKind::kStep:
      return "step";
    case RecordKind::kNode:
      return "node";
    case RecordKind::kModuleEnter:
      return "module_enter";
    case RecordKind::kModuleExit:
      return "module_exit";
    case RecordKind::kStack:
      return "stack";
    case RecordKind::kName:
      return "name";
    case RecordKind::kDeviceUsed:
      return "device_used";
    case RecordKind::kCounters:
      return "counters";
    case RecordKind::kMark:
      return "mark";
    case RecordKind::kUnname:
      return "unname";
    case RecordKind::kOutsideAlloc:
      return "outside_alloc";
    case RecordKind::kOutsideFree:
      return "outside_free";
    case RecordKind::kProcessUsed:
      return "process_used";
    default:
      return "other";
  }
}

// Writes piece by piece: a trace may be larger than memory.
class Sink {
 public:
  // `working_path` is where `path` is written until it is whole; both empty for standard output.
  Sink(const std::string& path, const std::string& working_path)
      : path_(path.empty() ? "standard output" : path),
        file_(path.empty() ? stdout : std::fopen(working_path.c_str(), "wb")) {
    if (file_ == nullptr) throw Failure{kExitUnreadable, Cat(path_, ": cannot be written: ", std::strerror(errno))};
  }
  ~Sink() {
    if (file_ != stdout) std::fclose(file_);
  }
  Sink(const Sink&) = delete;
  Sink& operator=(const Sink&) = delete;
  void Put(std::string_view text) {
    if (std::fwrite(text.data(), 1, text.size(), file_) != text.size()) Fail();
  }
  void Finish() {
    if (std::fflush(file_) != 0) Fail();
  }

 private:
  [[noreturn]] void Fail() const {
    throw Failure{kExitUnreadable, Cat(path_, ": cannot be written: ", std::strerror(errno))};
  }
  std::string path_;
  FILE* file_;
};

std::string Hex(uint64_t value) {
  char buffer[32];
  std::snprintf(buffer, sizeof(buffer), "0x%llx", static_cast<unsigned long long>(value));
  return buffer;
}

std::string CsvText(std::string_view text) {
  if (text.find_first_of(",\"\n\r") == std::string_view::npos) return std::string(text);
  std::string quoted(text);
  ReplaceAll(&quoted, "\"", "\"\"");
  return Cat("\"", quoted, "\"");
}

// The category of an allocation; `ordinal` counts allocations in order.
std::string_view CategoryOf(const Hindsight& hindsight, uint64_t ordinal) {
  return CategoryName(static_cast<Category>(hindsight.categories[ordinal]));
}

void Csv(EventSource& source, const Hindsight& hindsight, Sink& sink) {
  sink.Put(
      "sequence,time_ns,kind,phase,device,thread,stream,address,requested_bytes,rounded_bytes,flags,text,a,b,c,"
      "category\n");
  uint64_t ordinal = 0;
  while (const Event* next = source.Next()) {
    const Event& e = *next;
    const bool memory = IsMemoryRecord(e.kind);
    const bool no_text = !memory && !ControlHasText(e.kind);
    sink.Put(Cat(e.sequence, ",", e.time_ns, ",", KindName(e.kind), ",", PhaseName(e.phase), ",", uint32_t{e.device},
                 ",", e.thread, ","));
    if (memory) {
      sink.Put(Cat(e.stream, ",", Hex(e.address), ",", e.requested_bytes, ",", e.rounded_bytes, ",", uint32_t{e.flags},
                   ",", CsvText(source.String(e.module)), ",,,,",
                   e.kind == RecordKind::kAlloc ? CategoryOf(hindsight, ordinal++) : std::string_view(), "\n"));
    } else {
      sink.Put(Cat(",,,,", uint32_t{e.flags}, ",", no_text ? std::string() : CsvText(source.String(e.a)), ",", e.a, ",",
                   e.b, ",", e.c, ",\n"));
    }
  }
}

void Json(EventSource& source, const Hindsight& hindsight, Sink& sink) {
  uint64_t ordinal = 0;
  sink.Put("{\"schema\": \"vramledger.events/1\",\n\"events\": [");
  const char* separator = "\n";
  while (const Event* next = source.Next()) {
    const Event& e = *next;
    nlohmann::ordered_json j = {
        {"sequence", e.sequence}, {"time_ns", e.time_ns}, {"kind", KindName(e.kind)}, {"phase", PhaseName(e.phase)},
        {"device", e.device},     {"thread", e.thread},   {"flags", e.flags}};
    if (IsMemoryRecord(e.kind)) {
      j["stream"] = e.stream;
      j["address"] = e.address;
      j["requested_bytes"] = e.requested_bytes;
      j["rounded_bytes"] = e.rounded_bytes;
      j["module"] = source.String(e.module);
      if (e.node != 0) j["node"] = source.String(e.node);
      if (e.stack != 0) j["stack"] = source.String(e.stack);
      if (e.kind == RecordKind::kAlloc) j["category"] = CategoryOf(hindsight, ordinal++);
    } else {
      if (e.kind != RecordKind::kDeviceUsed && e.kind != RecordKind::kCounters) j["text"] = source.String(e.a);
      j["a"] = e.a;
      j["b"] = e.b;
      j["c"] = e.c;
    }
    sink.Put(Cat(separator, j.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)));
    separator = ",\n";
  }
  nlohmann::json metadata = nlohmann::json::parse(source.metadata_json(), nullptr, false);
  if (metadata.is_discarded()) metadata = nullptr;
  const SourceHealth& health = source.health();
  sink.Put(Cat("],\n\"metadata\": ", metadata.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace),
               ",\n\"format\": ", nlohmann::json(source.format()).dump(), ",\n\"ended_early\": ",
               health.ended_early ? "true" : "false", ",\n\"lost_records\": ", health.lost_records,
               ",\n\"notes\": ", nlohmann::json(health.notes).dump(), "}\n"));
}

}  // namespace

void RegisterExport(CLI::App& app) {
  struct Options {
    std::string input, output, format = "json";
    bool json = false;
  };
  const auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("export", "Write the events as JSON or CSV");
  command->add_option("TRACE", o->input, "a .vlt trace or a PyTorch memory snapshot")->required();
  command->add_option("--format", o->format, "json (schema vramledger.events/1) or csv")
      ->check(CLI::IsMember({"json", "csv"}));
  command->add_flag("--json", o->json, "the same as --format json");
  command->add_option("-o,--out", o->output, "file to write (default: standard output)");
  command->footer("Example: vramledger export out/bert_b32.vlt --format csv -o events.csv");
  command->callback([o] {
    if (o->json && o->format == "csv") throw Failure{kExitUsage, "--json and --format csv contradict each other"};
    const EventInput input = OpenOrFail(o->input);
    const std::string path = o->output == "-" ? "" : o->output;
    std::unique_ptr<OutputFile> file;
    if (!path.empty()) file = std::make_unique<OutputFile>(o->input, path);
    absl::StatusOr<std::unique_ptr<EventSource>> source = input.NewSource();
    RequireReadable(source.status());
    // What a block was is known only at its end: categories take a reading of their own.
    const Hindsight hindsight = LookThrough(**source);
    source = input.NewSource();
    RequireReadable(source.status());
    Sink sink(path, file ? file->working_path() : std::string());
    o->format == "csv" ? Csv(**source, hindsight, sink) : Json(**source, hindsight, sink);
    sink.Finish();
    if (file) file->Done();
    FailIfDamaged((*source)->health());
  });
}

}  // namespace vramledger::cli
