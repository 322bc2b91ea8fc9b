#include "tools/foreign/text_events.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "tools/foreign/text.h"
#include "tracer/format/bounded_json.h"

namespace vramledger {
namespace {

struct Line {
  int number;
  std::string text;
};

constexpr size_t kMaxLines = 5'000'000;

absl::Status Bad(const Line& line, std::string_view what) {
  return absl::InvalidArgumentError(Cat("line ", line.number, ": ", what));
}

// Unrolls repeat ... end.
absl::Status Unroll(const std::vector<Line>& in, size_t begin, size_t end, int depth, std::vector<Line>* out) {
  for (size_t i = begin; i < end; ++i) {
    if (!in[i].text.starts_with("repeat")) {
      if (out->size() > kMaxLines) return Bad(in[i], "more than 5,000,000 lines after unrolling");
      out->push_back(in[i]);
      continue;
    }
    uint32_t times = 0;
    if (depth == 3 ||
        !ParseInteger(std::string_view(in[i].text).substr(std::min<size_t>(7, in[i].text.size())), &times))
      return Bad(in[i], "repeat needs a number, and nests 3 deep");
    size_t close = i + 1;
    for (int open = 1; close < end; ++close) {
      if (in[close].text.starts_with("repeat")) ++open;
      if (in[close].text == "end" && --open == 0) break;
    }
    if (close == end) return Bad(in[i], "repeat without end");
    const std::string variable = Cat("{", std::string(1, static_cast<char>('i' + depth)), "}");
    for (uint32_t pass = 0; pass < times; ++pass) {
      std::vector<Line> body(in.begin() + static_cast<ptrdiff_t>(i) + 1, in.begin() + static_cast<ptrdiff_t>(close));
      for (Line& line : body) ReplaceAll(&line.text, variable, Cat(pass));
      if (absl::Status s = Unroll(body, 0, body.size(), depth + 1, out); !s.ok()) return s;
    }
    i = close;
  }
  return absl::OkStatus();
}

bool ParseBytes(std::string_view text, uint64_t* out) {
  uint64_t unit = 1;
  if (!text.empty()) {
    if (text.back() == 'K') unit = uint64_t{1} << 10;
    if (text.back() == 'M') unit = uint64_t{1} << 20;
    if (text.back() == 'G') unit = uint64_t{1} << 30;
    if (unit != 1) text.remove_suffix(1);
  }
  if (!ParseInteger(text, out)) return false;
  *out *= unit;
  return true;
}

class Builder {
 public:
  Builder() : list_(std::make_shared<EventList>()) { list_->format = "events"; }

  absl::Status Add(const Line& line) {
    line_ = &line;
    words_ = Split(line.text, ' ', /*skip_empty=*/true);
    now_ns_ += 1000;
    event_ = Event{};
    event_.time_ns = now_ns_;
    event_.phase = phase_;
    event_.device = device_;
    event_.thread = thread_;
    const std::string_view verb = words_[0];
    if (verb == "meta") {
      const std::optional<nlohmann::json> metadata = ParseBoundedJson(line.text.substr(4));
      if (!metadata || !metadata->is_object())
        return Bad(line, Cat("meta needs a JSON object of at most ", kMaxJsonDepth, " levels"));
      list_->metadata_json = metadata->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
      return absl::OkStatus();
    }
    if (verb == "device") {
      uint32_t n = 0;
      if (words_.size() != 2 || !ParseInteger(words_[1], &n) || n > 255) return Bad(line, "device needs a number");
      device_ = static_cast<uint8_t>(n);
      return absl::OkStatus();
    }
    if (verb == "thread") {
      uint32_t n = 0;
      if (words_.size() != 2 || !ParseInteger(words_[1], &n) || n > 0xffff) return Bad(line, "thread needs a number");
      thread_ = static_cast<uint16_t>(n);
      return absl::OkStatus();
    }
    if (verb == "phase" || verb == "step" || verb == "enter" || verb == "exit" || verb == "mark" || verb == "scope" ||
        verb == "endscope")
      return Control(verb);
    if (verb == "node") return Node();
    if (verb == "stack") {
      event_.kind = RecordKind::kStack;
      event_.a = list_->Intern(std::string_view(line.text).substr(std::min<size_t>(6, line.text.size())));
      list_->Add(event_);
      return absl::OkStatus();
    }
    if (verb == "alloc" || verb == "segment") return Take(verb == "alloc");
    if (verb == "free" || verb == "request" || verb == "complete" || verb == "unsegment") return Give(verb);
    if (verb == "name") return Name();
    if (verb == "oom" || verb == "used") return Numbers(verb);
    if (verb == "outside" || verb == "outside_free") return Outside(verb == "outside");
    if (verb == "processes") return Processes();
    return Bad(line, Cat("\"", verb, "\" is no event"));
  }

  std::shared_ptr<const EventList> list() const { return list_; }

 private:
  absl::Status Control(std::string_view verb) {
    if (words_.size() < (verb == "step" ? 1u : 2u)) return Bad(*line_, Cat(verb, " needs a word"));
    if (verb == "phase") {
      const std::optional<Phase> phase = PhaseFromName(words_[1]);
      if (!phase) return Bad(*line_, Cat("\"", words_[1], "\" is no phase"));
      event_.kind = RecordKind::kPhase;
      event_.b = static_cast<uint64_t>(phase_);
      event_.phase = phase_ = *phase;
    } else if (verb == "scope" || verb == "endscope") {
      event_.kind = RecordKind::kPhase;
      event_.a = list_->Intern(words_[1]);
      event_.b = static_cast<uint64_t>(phase_);
      event_.c = verb == "scope" ? 1 : 0;
    } else if (verb == "step") {
      event_.kind = RecordKind::kStep;
      event_.a = words_.size() > 1 ? list_->Intern(words_[1]) : 0;
      event_.b = ++steps_;
    } else if (verb == "mark") {
      event_.kind = RecordKind::kMark;
      event_.a = list_->Intern(line_->text.substr(line_->text.find(words_[1], verb.size())));
    } else {
      event_.kind = verb == "enter" ? RecordKind::kModuleEnter : RecordKind::kModuleExit;
      event_.a = list_->Intern(words_[1]);
      if (words_.size() > 2 && !ParseInteger(words_[2], &event_.b)) return Bad(*line_, "a sequence number is a number");
    }
    list_->Add(event_);
    return absl::OkStatus();
  }

  absl::Status Node() {
    event_.kind = RecordKind::kNode;
    if (words_.size() != 4 || !ParseInteger(words_[2], &event_.b) || !ParseInteger(words_[3], &event_.c))
      return Bad(*line_, "node needs a name, its sequence number and its forward thread");
    event_.a = list_->Intern(words_[1]);
    list_->Add(event_);
    return absl::OkStatus();
  }

  absl::Status Take(bool block) {
    if (words_.size() < 3 || !ParseBytes(words_[2], &event_.requested_bytes))
      return Bad(*line_, "a name and a number of bytes are needed");
    event_.kind = block ? RecordKind::kAlloc : RecordKind::kSegmentAlloc;
    event_.rounded_bytes =
        block ? std::max<uint64_t>(512, (event_.requested_bytes + 511) / 512 * 512) : event_.requested_bytes;
    uint64_t offset = 0;
    const Event* segment = nullptr;
    for (size_t i = 3; i < words_.size(); ++i) {
      const size_t equals = std::min(words_[i].find('='), words_[i].size());
      const std::string_view key = words_[i].substr(0, equals);
      const std::string_view value = words_[i].substr(std::min(equals + 1, words_[i].size()));
      uint64_t number = 0;
      const bool is_number = ParseBytes(value, &number);
      if (key == "module") {
        event_.module = list_->Intern(value);
      } else if (key == "in") {
        const auto it = named_.find(std::string(value));
        if (it == named_.end()) return Bad(*line_, Cat("no segment \"", value, "\""));
        segment = &it->second;
      } else if (key == "phase") {
        const std::optional<Phase> phase = PhaseFromName(value);
        if (!phase) return Bad(*line_, Cat("\"", value, "\" is no phase"));
        event_.phase = *phase;
      } else if (is_number && key == "at") {
        offset = number;
      } else if (is_number && key == "rounded") {
        event_.rounded_bytes = number;
      } else if (is_number && key == "stream") {
        event_.stream = static_cast<uint16_t>(number);
      } else if (is_number && key == "flags") {
        event_.flags = static_cast<uint8_t>(number);
      } else {
        return Bad(*line_, Cat("\"", words_[i], "\" is no option"));
      }
    }
    if (segment != nullptr) {
      event_.address = segment->address + offset;
    } else {
      event_.address = next_address_;
      next_address_ += (event_.rounded_bytes + (uint64_t{4} << 20)) / (uint64_t{2} << 20) * (uint64_t{2} << 20);
    }
    named_[std::string(words_[1])] = event_;
    list_->Add(event_);
    return absl::OkStatus();
  }

  absl::Status Give(std::string_view verb) {
    const auto it = words_.size() > 1 ? named_.find(std::string(words_[1])) : named_.end();
    if (it == named_.end()) return Bad(*line_, "nothing of that name was allocated");
    Event e = it->second;
    e.kind = verb == "unsegment" ? RecordKind::kSegmentFree
             : verb == "request" ? RecordKind::kFreeRequested
                                 : RecordKind::kFreeCompleted;
    e.time_ns = now_ns_;
    e.phase = phase_;
    list_->Add(e);
    return absl::OkStatus();
  }

  absl::Status Name() {
    if (words_.size() < 4) return Bad(*line_, "name needs a block, a role and a tensor's name");
    const auto it = named_.find(std::string(words_[1]));
    const std::optional<Role> role = RoleFromName(words_[2]);
    if (it == named_.end() || !role) return Bad(*line_, "no such block or role");
    event_.kind = RecordKind::kName;
    event_.flags = static_cast<uint8_t>(*role);
    event_.a = list_->Intern(words_[3]);
    event_.b = it->second.address;
    event_.c = it->second.requested_bytes;
    list_->Add(event_);
    return absl::OkStatus();
  }

  absl::Status Outside(bool taken) {
    if (words_.size() < (taken ? 4u : 2u) || (taken && !ParseBytes(words_[2], &event_.c)))
      return Bad(*line_, taken ? "outside needs a name, a number of bytes and a library" : "outside_free needs a name");
    const std::string name(words_[1]);
    event_.kind = taken ? RecordKind::kOutsideAlloc : RecordKind::kOutsideFree;
    if (taken) {
      event_.flags = static_cast<uint8_t>(OutsideKind::kDevice);
      event_.a = list_->Intern(words_[3]);
      event_.b = next_address_;
      next_address_ += (event_.c + (uint64_t{4} << 20)) / (uint64_t{2} << 20) * (uint64_t{2} << 20);
      named_[name] = event_;
    } else {
      const auto it = named_.find(name);
      if (it == named_.end()) return Bad(*line_, Cat("no \"", name, "\" was taken"));
      event_.b = it->second.b;
    }
    list_->Add(event_);
    return absl::OkStatus();
  }

  absl::Status Processes() {
    event_.kind = RecordKind::kProcessUsed;
    if (words_.size() < 4 || !ParseBytes(words_[1], &event_.b) || !ParseBytes(words_[2], &event_.c) ||
        !ParseInteger(words_[3], &event_.a))
      return Bad(*line_, "processes needs this process's bytes, the others' bytes and their number");
    list_->Add(event_);
    return absl::OkStatus();
  }

  absl::Status Numbers(std::string_view verb) {
    uint64_t first = 0, second = 0;
    if (words_.size() < 3 || !ParseBytes(words_[1], &first) || !ParseBytes(words_[2], &second))
      return Bad(*line_, "two numbers are needed");
    if (verb == "oom") {
      event_.kind = RecordKind::kOutOfMemory;
      event_.requested_bytes = event_.rounded_bytes = first;
      event_.address = second;
    } else {
      event_.kind = RecordKind::kDeviceUsed;
      event_.b = first;
      event_.c = second;
    }
    list_->Add(event_);
    return absl::OkStatus();
  }

  std::shared_ptr<EventList> list_;
  const Line* line_ = nullptr;
  std::vector<std::string_view> words_;
  Event event_;
  absl::flat_hash_map<std::string, Event> named_;
  Phase phase_ = Phase::kUnknown;
  uint8_t device_ = 0;
  uint16_t thread_ = 0;
  uint64_t now_ns_ = 0, steps_ = 0;
  uint64_t next_address_ = uint64_t{1} << 32;
};

}  // namespace

absl::StatusOr<std::shared_ptr<const EventList>> ReadTextEvents(std::string_view text) {
  std::vector<Line> lines;
  int number = 0;
  for (const std::string_view raw : Split(text, '\n')) {
    ++number;
    std::string_view line = raw;
    const bool is_meta = line.starts_with("meta");
    if (line.starts_with("#")) continue;
    if (const size_t hash = line.find(" #"); hash != std::string_view::npos && !is_meta) line = line.substr(0, hash);
    while (!line.empty() && (line.back() == ' ' || line.back() == '\r')) line.remove_suffix(1);
    while (!line.empty() && line.front() == ' ') line.remove_prefix(1);
    if (number == 1 || line.empty()) continue;
    lines.push_back({number, std::string(line)});
  }
  std::vector<Line> unrolled;
  if (absl::Status s = Unroll(lines, 0, lines.size(), 0, &unrolled); !s.ok()) return s;
  Builder builder;
  for (const Line& line : unrolled) {
    if (absl::Status s = builder.Add(line); !s.ok()) return s;
  }
  return builder.list();
}

}  // namespace vramledger
