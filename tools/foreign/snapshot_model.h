// A snapshot pickle checked and turned into plain structures; the layouts of all years look alike from here on.
#ifndef VRAMLEDGER_TOOLS_FOREIGN_SNAPSHOT_MODEL_H_
#define VRAMLEDGER_TOOLS_FOREIGN_SNAPSHOT_MODEL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/foreign/pickle_reader.h"
#include "tracer/format/record.h"

namespace vramledger {

struct SnapshotBlock {
  uint64_t address = 0;
  uint64_t size = 0;
  uint64_t requested = 0;
  bool active = false;
  bool pending = false;  // freed by the program, a stream still awaited
  const PickleValue* frames = nullptr;
};

struct SnapshotSegment {
  int device = 0;
  uint64_t address = 0;
  uint64_t size = 0;
  uint64_t stream = 0;
  bool small = false;
  bool expandable = false;
  std::vector<SnapshotBlock> blocks;
};

struct SnapshotEntry {
  RecordKind kind = RecordKind::kNone;
  uint64_t address = 0;  // kOutOfMemory: the device's free bytes
  uint64_t size = 0;     // as requested; segments: their bytes
  uint64_t stream = 0;
  uint64_t time_us = 0;
  const PickleValue* frames = nullptr;
};

struct SnapshotAnnotation {
  std::string_view name;
  bool start = false;
  uint64_t time_us = 0;
};

struct Snapshot {
  std::unique_ptr<PickleDocument> document;  // owns what the pointers and views refer to
  std::vector<SnapshotSegment> segments;
  std::vector<std::vector<SnapshotEntry>> traces;  // by device
  std::vector<SnapshotAnnotation> annotations;
  std::string settings_json;  // "{}" when not recorded
  bool old_layout = false;    // 2023: blocks with "history" in place of "frames" and "address"
  bool has_times = false;
  bool sums_agree = true;  // false: no segment's sizes are the sum of its blocks (not written by PyTorch)
};

// Every size, sum and reference that the snapshot's own fields allow to check is checked, so that damage is told from
// data.
absl::StatusOr<Snapshot> ReadSnapshot(std::string pickle);

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_FOREIGN_SNAPSHOT_MODEL_H_
