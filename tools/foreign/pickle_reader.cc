#include "tools/foreign/pickle_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "tools/foreign/pickle_text.h"
#include "tools/foreign/text.h"

namespace vramledger {
const PickleValue* PickleValue::Get(std::string_view key) const {
  if (kind != PickleKind::kDict) return nullptr;
  for (size_t i = items.size(); i >= 2; i -= 2) {
    const PickleValue* k = items[i - 2];
    if (k->kind == PickleKind::kString && k->text == key) return items[i - 1];
  }
  return nullptr;
}

class PickleParser {
 public:
  PickleParser(std::string bytes, const PickleLimits& limits)
      : limits_(limits), document_(std::make_unique<PickleDocument>()) {
    document_->bytes_ = std::move(bytes);
    data_ = document_->bytes_;
  }

  absl::StatusOr<std::unique_ptr<PickleDocument>> Parse() {
    while (error_.ok() && document_->root_ == nullptr) Step();
    if (!error_.ok()) return error_;
    return std::move(document_);
  }

 private:
  template <typename... Args>
  void Fail(const Args&... args) {
    if (error_.ok()) error_ = absl::InvalidArgumentError(Cat(args...));
  }
  void FailShort(std::string_view what) {
    Fail("the pickle is cut off: it ends at byte ", data_.size(), " inside ", what, " that began at byte ", op_offset_);
  }

  // ---- reading ----
  bool Take(size_t n, std::string_view* out) {
    if (data_.size() - pos_ < n) {
      FailShort("an item");
      return false;
    }
    *out = data_.substr(pos_, n);
    pos_ += n;
    return true;
  }
  bool TakeUint(size_t n, uint64_t* out) {
    std::string_view raw;
    if (!Take(n, &raw)) return false;
    *out = 0;
    std::memcpy(out, raw.data(), n);
    return true;
  }
  bool TakeLine(std::string_view* out) {
    const size_t end = data_.find('\n', pos_);
    if (end == std::string_view::npos) {
      FailShort("a line");
      return false;
    }
    *out = data_.substr(pos_, end - pos_);
    pos_ = end + 1;
    return true;
  }

  // ---- values and stack ----
  bool Charge(uint64_t bytes) {
    memory_ += bytes;
    if (memory_ > limits_.max_memory_bytes) {
      Fail("the pickle needs more than the limit of ", limits_.max_memory_bytes, " bytes of memory (reached at byte ",
           op_offset_, ")");
      return false;
    }
    return true;
  }
  PickleValue* Make(PickleKind kind) {
    if (!Charge(sizeof(PickleValue))) return &scratch_;
    document_->values_.emplace_back().kind = kind;
    return &document_->values_.back();
  }
  PickleValue* Push(PickleKind kind) {
    PickleValue* v = Make(kind);
    if (Charge(sizeof(void*))) stack_.push_back(v);
    return v;
  }
  void PushText(PickleKind kind, std::string_view text) {
    if (kind == PickleKind::kString && !IsUtf8(text)) return Fail("a string at byte ", op_offset_, " is not UTF-8");
    Push(kind)->text = text;
  }
  size_t Floor() const { return marks_.empty() ? 0 : marks_.back(); }
  PickleValue* Pop() {
    if (stack_.size() <= Floor()) {
      Fail("the pickle is damaged: an opcode at byte ", op_offset_, " needs a value and there is none");
      return nullptr;
    }
    PickleValue* v = stack_.back();
    stack_.pop_back();
    return v;
  }
  // Index of the first value above the topmost mark, which is removed.
  bool PopMark(size_t* from) {
    if (marks_.empty()) {
      Fail("the pickle is damaged: an opcode at byte ", op_offset_, " needs a mark and there is none");
      return false;
    }
    *from = marks_.back();
    marks_.pop_back();
    return true;
  }
  PickleValue* Top(PickleKind a, PickleKind b, std::string_view what) {
    if (stack_.size() <= Floor() || (stack_.back()->kind != a && stack_.back()->kind != b)) {
      Fail("the pickle is damaged: an opcode at byte ", op_offset_, " needs ", what, " below it");
      return nullptr;
    }
    return stack_.back();
  }
  void AppendFrom(size_t from, PickleKind kind, std::string_view what) {
    if (from == 0 || from > stack_.size() || from - 1 < Floor() || stack_[from - 1]->kind != kind) {
      return Fail("the pickle is damaged: an opcode at byte ", op_offset_, " needs ", what, " below its mark");
    }
    PickleValue* target = stack_[from - 1];
    const size_t n = stack_.size() - from;
    if (kind == PickleKind::kDict && n % 2 != 0)
      return Fail("the pickle is damaged: a key without a value at byte ", op_offset_);
    if (!Charge(n * sizeof(void*))) return;
    target->items.insert(target->items.end(), stack_.begin() + static_cast<ptrdiff_t>(from), stack_.end());
    stack_.resize(from);
  }
  void Collect(PickleKind kind, size_t from) {
    if (kind == PickleKind::kDict && (stack_.size() - from) % 2 != 0) {
      return Fail("the pickle is damaged: a key without a value at byte ", op_offset_);
    }
    PickleValue* v = Make(kind);
    if (!Charge((stack_.size() - from) * sizeof(void*))) return;
    v->items.assign(stack_.begin() + static_cast<ptrdiff_t>(from), stack_.end());
    stack_.resize(from);
    stack_.push_back(v);
  }
  void CollectLast(size_t n) {
    if (stack_.size() < Floor() + n)
      return Fail("the pickle is damaged: a tuple of ", n, " at byte ", op_offset_, " has fewer items");
    Collect(PickleKind::kTuple, stack_.size() - n);
  }
  void PushInteger(int64_t value) { Push(PickleKind::kInt)->integer = value; }
  void PushLong(std::string_view raw) {  // little-endian two's complement of any length
    while (raw.size() > 1) {             // drop bytes that only repeat the sign
      const auto last = static_cast<uint8_t>(raw.back());
      const bool next_negative = (static_cast<uint8_t>(raw[raw.size() - 2]) & 0x80) != 0;
      if ((last == 0 && !next_negative) || (last == 0xFF && next_negative))
        raw.remove_suffix(1);
      else
        break;
    }
    if (raw.size() > 9 || (raw.size() == 9 && raw.back() != 0)) {
      Push(PickleKind::kHugeInt);
      return;
    }
    const bool negative = raw.size() <= 8 && !raw.empty() && (static_cast<uint8_t>(raw.back()) & 0x80) != 0;
    uint64_t bits = negative ? ~uint64_t{0} : 0;
    std::memcpy(&bits, raw.data(), raw.size() < 8 ? raw.size() : 8);
    PickleValue* v = Push(PickleKind::kInt);
    v->integer = static_cast<int64_t>(bits);
    v->unsigned_above_int64 = raw.size() == 9;
  }
  void PushDecimal(std::string_view line) {
    if (line == "00" || line == "01") {
      Push(PickleKind::kBool)->integer = line == "01" ? 1 : 0;
      return;
    }
    if (!line.empty() && line.back() == 'L') line.remove_suffix(1);
    int64_t value = 0;
    if (ParseInteger(line, &value)) return PushInteger(value);
    const bool digits = !line.empty() && line.find_first_not_of("-0123456789") == std::string_view::npos;
    if (!digits) return Fail("the pickle is damaged: the text at byte ", op_offset_, " is no integer");
    Push(PickleKind::kHugeInt);
  }
  // Protocol 0 strings: quoted, or raw-unicode-escape.
  void PushEscaped(std::string_view line, bool quoted) {
    if (quoted) {
      if (line.size() < 2 || (line.front() != '\'' && line.front() != '"') || line.back() != line.front()) {
        return Fail("the pickle is damaged: the string at byte ", op_offset_, " is not quoted");
      }
      line = line.substr(1, line.size() - 2);
    }
    if (!Charge(line.size())) return;
    PushText(PickleKind::kString, document_->texts_.emplace_back(UnescapePickleText(line)));
  }
  void PushSized(PickleKind kind, size_t length_bytes) {
    uint64_t n = 0;
    std::string_view raw;
    if (!TakeUint(length_bytes, &n)) return;
    if (n > data_.size() - pos_) return FailShort("a string");
    if (Take(n, &raw)) PushText(kind, raw);
  }
  void Memo(uint64_t index) {
    if (stack_.size() <= Floor()) return Fail("the pickle is damaged: nothing to remember at byte ", op_offset_);
    if (Charge(48)) memo_[index] = stack_.back();
  }
  void Recall(uint64_t index) {
    const auto it = memo_.find(index);
    if (it == memo_.end())
      return Fail("the pickle is damaged: byte ", op_offset_, " refers to item ", index, ", which was never stored");
    if (Charge(sizeof(void*))) stack_.push_back(it->second);
  }
  void MemoLine(bool put) {
    std::string_view line;
    uint64_t index = 0;
    if (!TakeLine(&line)) return;
    if (!ParseInteger(line, &index)) return Fail("the pickle is damaged: no number at byte ", op_offset_);
    put ? Memo(index) : Recall(index);
  }

  void Step();
  void StepText(uint8_t op);
  void StepNumber(uint8_t op);

  const PickleLimits limits_;
  std::unique_ptr<PickleDocument> document_;
  std::string_view data_;
  size_t pos_ = 0;
  size_t op_offset_ = 0;
  uint64_t memory_ = 0;
  std::vector<PickleValue*> stack_;
  std::vector<size_t> marks_;
  absl::flat_hash_map<uint64_t, PickleValue*> memo_;
  absl::Status error_;
  PickleValue scratch_;  // stands in once the memory limit is reached
};

void PickleParser::Step() {
  op_offset_ = pos_;
  if (pos_ >= data_.size())
    return Fail("the pickle is cut off: it ends at byte ", data_.size(), " without its STOP opcode");
  const auto op = static_cast<uint8_t>(data_[pos_++]);
  uint64_t n = 0;
  size_t from = 0;
  switch (op) {
    case 0x80:  // PROTO
      if (TakeUint(1, &n) && n > 5) Fail("the pickle has protocol ", n, "; this tool reads 0 to 5");
      return;
    case 0x95:  // FRAME: its length must fit, its borders mean nothing to us
      if (TakeUint(8, &n) && n > data_.size() - pos_) FailShort("a frame");
      return;
    case '.':  // STOP
      if (PickleValue* v = Pop()) document_->root_ = v;
      return;
    case '(':
      if (marks_.size() >= limits_.max_depth)
        return Fail("the pickle is nested deeper than ", limits_.max_depth, " at byte ", op_offset_);
      marks_.push_back(stack_.size());
      return;
    case '0':  // POP takes a mark when nothing is above it
      if (stack_.size() == Floor() && !marks_.empty())
        marks_.pop_back();
      else
        Pop();
      return;
    case '1':
      if (PopMark(&from)) stack_.resize(from);
      return;
    case '2':
      if (PickleValue* v = Pop()) stack_.push_back(v), stack_.push_back(v);
      return;
    case ']':
      Push(PickleKind::kList);
      return;
    case ')':
      Push(PickleKind::kTuple);
      return;
    case '}':
      Push(PickleKind::kDict);
      return;
    case 0x8f:
      Push(PickleKind::kSet);
      return;
    case 'l':
      if (PopMark(&from)) Collect(PickleKind::kList, from);
      return;
    case 't':
      if (PopMark(&from)) Collect(PickleKind::kTuple, from);
      return;
    case 'd':
      if (PopMark(&from)) Collect(PickleKind::kDict, from);
      return;
    case 0x91:
      if (PopMark(&from)) Collect(PickleKind::kSet, from);
      return;
    case 0x85:
    case 0x86:
    case 0x87:
      return CollectLast(op - 0x84u);
    case 'a': {
      PickleValue* v = Pop();
      PickleValue* list = v ? Top(PickleKind::kList, PickleKind::kList, "a list") : nullptr;
      if (list != nullptr && Charge(sizeof(void*))) list->items.push_back(v);
      return;
    }
    case 's': {
      PickleValue* v = Pop();
      PickleValue* k = v ? Pop() : nullptr;
      PickleValue* dict = k ? Top(PickleKind::kDict, PickleKind::kDict, "a dict") : nullptr;
      if (dict != nullptr && Charge(2 * sizeof(void*))) dict->items.push_back(k), dict->items.push_back(v);
      return;
    }
    case 'e':
      if (PopMark(&from)) AppendFrom(from, PickleKind::kList, "a list");
      return;
    case 'u':
      if (PopMark(&from)) AppendFrom(from, PickleKind::kDict, "a dict");
      return;
    case 0x90:
      if (PopMark(&from)) AppendFrom(from, PickleKind::kSet, "a set");
      return;
    case 'p':
      return MemoLine(true);
    case 'g':
      return MemoLine(false);
    case 'q':
      if (TakeUint(1, &n)) Memo(n);
      return;
    case 'r':
      if (TakeUint(4, &n)) Memo(n);
      return;
    case 0x94:
      return Memo(memo_.size());
    case 'h':
      if (TakeUint(1, &n)) Recall(n);
      return;
    case 'j':
      if (TakeUint(4, &n)) Recall(n);
      return;
    default:
      return StepNumber(op);
  }
}

void PickleParser::StepNumber(uint8_t op) {
  uint64_t n = 0;
  std::string_view raw;
  switch (op) {
    case 'N':
      Push(PickleKind::kNone);
      return;
    case 0x88:
    case 0x89:
      Push(PickleKind::kBool)->integer = op == 0x88 ? 1 : 0;
      return;
    case 'J':
      if (TakeUint(4, &n)) PushInteger(static_cast<int32_t>(static_cast<uint32_t>(n)));
      return;
    case 'K':
      if (TakeUint(1, &n)) PushInteger(static_cast<int64_t>(n));
      return;
    case 'M':
      if (TakeUint(2, &n)) PushInteger(static_cast<int64_t>(n));
      return;
    case 0x8a:
      if (TakeUint(1, &n) && Take(n, &raw)) PushLong(raw);
      return;
    case 0x8b:
      if (TakeUint(4, &n) && Take(n, &raw)) PushLong(raw);
      return;
    case 'I':
    case 'L':
      if (TakeLine(&raw)) PushDecimal(raw);
      return;
    case 'F': {
      double value = 0;
      if (!TakeLine(&raw)) return;
      if (!ParseDouble(raw, &value))
        return Fail("the pickle is damaged: the text at byte ", op_offset_, " is no number");
      Push(PickleKind::kFloat)->number = value;
      return;
    }
    case 'G': {
      if (!Take(8, &raw)) return;
      uint64_t bits = 0;
      for (const char c : raw) bits = bits << 8 | static_cast<uint8_t>(c);
      std::memcpy(&Push(PickleKind::kFloat)->number, &bits, 8);
      return;
    }
    default:
      return StepText(op);
  }
}

void PickleParser::StepText(uint8_t op) {
  std::string_view raw;
  switch (op) {
    case 'S':
      if (TakeLine(&raw)) PushEscaped(raw, true);
      return;
    case 'V':
      if (TakeLine(&raw)) PushEscaped(raw, false);
      return;
    case 'T':
      return PushSized(PickleKind::kString, 4);
    case 'U':
      return PushSized(PickleKind::kString, 1);
    case 'X':
      return PushSized(PickleKind::kString, 4);
    case 0x8c:
      return PushSized(PickleKind::kString, 1);
    case 0x8d:
      return PushSized(PickleKind::kString, 8);
    case 'B':
      return PushSized(PickleKind::kBytes, 4);
    case 'C':
      return PushSized(PickleKind::kBytes, 1);
    case 0x8e:
    case 0x96:
      return PushSized(PickleKind::kBytes, 8);
    default:
      break;
  }
  if (const char* name = RefusedOpcode(op)) {
    return Fail("the pickle would run code: opcode ", name, " at byte ", op_offset_,
                "; a memory snapshot holds plain data only, so nothing was executed and the file was not read further");
  }
  Fail("the pickle is damaged: byte ", op_offset_, " (0x", HexByte(op), ") is no opcode");
}

absl::StatusOr<std::unique_ptr<PickleDocument>> ReadPickle(std::string bytes, const PickleLimits& limits) {
  return PickleParser(std::move(bytes), limits).Parse();
}

bool LooksLikePickle(std::string_view bytes) {
  if (bytes.size() >= 2 && static_cast<uint8_t>(bytes[0]) == 0x80) return static_cast<uint8_t>(bytes[1]) <= 5;
  return !bytes.empty() && (bytes[0] == '(' || bytes[0] == '}' || bytes[0] == ']');
}

}  // namespace vramledger
