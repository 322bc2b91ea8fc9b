// Reads Python pickles that hold plain data (numbers, strings, lists, tuples, dicts, sets) and nothing else. It is a
// data format reader and no interpreter: an opcode that would look up, build or call anything is an error that names
// the opcode and its offset, before anything else of the file is looked at.
#ifndef VRAMLEDGER_TOOLS_FOREIGN_PICKLE_READER_H_
#define VRAMLEDGER_TOOLS_FOREIGN_PICKLE_READER_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace vramledger {

enum class PickleKind : uint8_t { kNone, kBool, kInt, kHugeInt, kFloat, kString, kBytes, kList, kTuple, kSet, kDict };

// A value of the pickle. Shared sub-objects are shared here too, and an object may contain itself: walk by schema, not
// by recursion. Owned by its PickleDocument.
struct PickleValue {
  PickleKind kind = PickleKind::kNone;
  bool unsigned_above_int64 = false;      // kInt: `integer` is to be read as unsigned
  int64_t integer = 0;                    // kBool, kInt
  double number = 0;                      // kFloat
  std::string_view text;                  // kString (UTF-8), kBytes
  std::vector<const PickleValue*> items;  // lists, tuples, sets; kDict: key, value, key, value ...

  bool IsSequence() const { return kind == PickleKind::kList || kind == PickleKind::kTuple; }
  // Dict lookup by string key; the last one set wins. Null when absent or not a dict.
  const PickleValue* Get(std::string_view key) const;
};

struct PickleLimits {
  uint64_t max_memory_bytes = uint64_t{8} << 30;  // of the values made
  uint32_t max_depth = 1000;                      // open MARKs
};

class PickleDocument {
 public:
  const PickleValue& root() const { return *root_; }

 private:
  friend class PickleParser;
  std::string bytes_;
  std::deque<PickleValue> values_;
  std::deque<std::string> texts_;  // texts that had escapes in the file
  const PickleValue* root_ = nullptr;
};

// `bytes` is the pickle itself (decompressed).
absl::StatusOr<std::unique_ptr<PickleDocument>> ReadPickle(std::string bytes, const PickleLimits& limits = {});

// True if the bytes can begin a pickle of plain data: protocol 2 and newer by its magic, older ones by an opening
// opcode.
bool LooksLikePickle(std::string_view bytes);

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_FOREIGN_PICKLE_READER_H_
