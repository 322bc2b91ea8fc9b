#include "tests/allocator/replay_history.h"

#include <zlib.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace vramledger {
namespace {

struct Line {
  char kind = 0;
  uint64_t address = 0;
  uint64_t bytes = 0;
  uint64_t stream = 0;
};

RecordKind KindOf(char letter) {
  switch (letter) {
    case 'S':
      return RecordKind::kSegmentAlloc;
    case 'F':
      return RecordKind::kSegmentFree;
    case 'M':
      return RecordKind::kSegmentMap;
    case 'U':
      return RecordKind::kSegmentUnmap;
    case 'A':
      return RecordKind::kAlloc;
    case 'R':
      return RecordKind::kFreeRequested;
    case 'D':
    case 'C':
      return RecordKind::kFreeCompleted;
    case 'O':
      return RecordKind::kOutOfMemory;
    default:
      return RecordKind::kNone;
  }
}

}  // namespace

absl::StatusOr<RecordedRun> ReadRun(const std::string& path) {
  std::ifstream file(path);
  const nlohmann::json json = nlohmann::json::parse(file, nullptr, false);
  if (!json.is_object()) return absl::InvalidArgumentError(absl::StrCat(path, " is no JSON object"));
  const uint64_t capacity = json.value("capacity_bytes", uint64_t{80} << 30);
  const nlohmann::json metadata = {
      {"devices",
       {{{"index", 0},
         {"total_bytes", capacity},
         {"free_bytes_at_start", capacity - json.value("used_elsewhere_bytes", uint64_t{0})}}}},
      {"allocator", {{"policy", "native"}, {"settings", json.value("settings", "")}}}};
  return RecordedRun{metadata.dump(), json.value("statistics", std::map<std::string, int64_t>())};
}

absl::StatusOr<EventInput> ReadHistory(const std::string& path, const RecordedRun& run) {
  gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr) return absl::NotFoundError(absl::StrCat("cannot open ", path));
  std::vector<Line> lines;
  std::map<uint64_t, uint16_t> streams{{0, 0}};
  char text[256];
  bool sound = true;
  while (sound && gzgets(file, text, sizeof(text)) != nullptr) {
    Line line;
    sound = std::sscanf(text, "%c %" SCNx64 " %" SCNu64 " %" SCNu64, &line.kind, &line.address, &line.bytes,
                        &line.stream) == 4 &&
            KindOf(line.kind) != RecordKind::kNone;
    streams[line.stream] = 0;
    lines.push_back(line);
  }
  gzclose(file);
  if (!sound) return absl::InvalidArgumentError(absl::StrCat(path, ": line ", lines.size(), " is no event"));
  uint16_t number = 0;
  for (auto& [handle, of_handle] : streams) of_handle = number++;

  auto list = std::make_shared<EventList>();
  list->metadata_json = run.metadata_json;
  for (const Line& line : lines) {
    Event e;
    e.kind = KindOf(line.kind);
    e.address = line.address;
    e.requested_bytes = line.bytes;
    const bool block = e.kind == RecordKind::kAlloc || line.kind == 'D' || line.kind == 'R' || line.kind == 'C';
    e.rounded_bytes = block ? std::max<uint64_t>(512, (line.bytes + 511) / 512 * 512) : line.bytes;
    e.stream = streams[line.stream];
    list->Add(e);
  }
  return EventInput::FromList(path, list);
}

std::vector<std::string> CompareStatistics(const RecordedRun& run, const Statistics& ours) {
  std::vector<std::string> differences;
  for (const auto& [key, value] : ours.Flatten()) {
    const auto it = run.statistics.find(key);
    if (it == run.statistics.end()) {
      differences.push_back(absl::StrCat(key, ": PyTorch has none"));
    } else if (it->second != value) {
      differences.push_back(absl::StrCat(key, ": PyTorch ", it->second, ", here ", value));
    }
  }
  return differences;
}

}  // namespace vramledger
