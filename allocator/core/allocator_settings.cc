#include "allocator/core/allocator_settings.h"

#include <algorithm>
#include <bit>
#include <cstdlib>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace vramledger {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

absl::Status Bad(absl::string_view key, absl::string_view expected, absl::string_view got) {
  return absl::InvalidArgumentError(
      absl::StrCat("allocator setting '", key, "': expected ", expected, ", got '", got, "'"));
}

absl::Status ParseMiB(absl::string_view key, absl::string_view value, size_t least_mib, size_t* bytes) {
  uint64_t mib = 0;
  if (!absl::SimpleAtoi(value, &mib) || mib < least_mib) {
    return Bad(key, absl::StrCat("a whole number of MiB, at least ", least_mib), value);
  }
  *bytes = std::min<uint64_t>(mib, AllocatorSettings::kUnlimited / kMiB) * kMiB;
  return absl::OkStatus();
}

absl::Status ParseBool(absl::string_view key, absl::string_view value, bool* out) {
  if (value == "True" || value == "true" || value == "1") {
    *out = true;
  } else if (value == "False" || value == "false" || value == "0") {
    *out = false;
  } else {
    return Bad(key, "True or False", value);
  }
  return absl::OkStatus();
}

absl::Status ParseFraction(absl::string_view key, absl::string_view value, bool closed, double* out) {
  double parsed = 0;
  if (!absl::SimpleAtod(value, &parsed) || !(closed ? parsed >= 0 && parsed <= 1 : parsed > 0 && parsed < 1)) {
    return Bad(key, closed ? "a number from 0 to 1" : "a number between 0 and 1, both excluded", value);
  }
  *out = parsed;
  return absl::OkStatus();
}

bool ParseDivisions(absl::string_view text, uint32_t* out) {
  return absl::SimpleAtoi(text, out) && (*out == 0 || std::has_single_bit(*out));
}

// "4", or "[256:1,512:2,1024:4,>:8]" with sizes in MiB.
absl::Status ParseRoundup(absl::string_view key, absl::string_view value, std::array<uint32_t, 16>* divisions) {
  constexpr absl::string_view kExpected = "a power of two, or [MiB:divisions,...,>:divisions] with powers of two";
  if (value.empty() || value.front() != '[') {
    uint32_t all = 0;
    if (!ParseDivisions(value, &all) || all == 0) return Bad(key, kExpected, value);
    divisions->fill(all);
    return absl::OkStatus();
  }
  if (value.back() != ']') return Bad(key, kExpected, value);
  absl::string_view rest = value.substr(1, value.size() - 2);
  bool first = true;
  size_t last_index = 0;
  while (!rest.empty()) {
    const absl::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    const size_t colon = item.find(':');
    uint32_t count = 0;
    if (colon == absl::string_view::npos || !ParseDivisions(item.substr(colon + 1), &count)) {
      return Bad(key, kExpected, item);
    }
    const absl::string_view boundary_text = item.substr(0, colon);
    if (boundary_text == ">") {
      std::fill(divisions->begin() + static_cast<std::ptrdiff_t>(last_index) + 1, divisions->end(), count);
      continue;
    }
    uint64_t boundary = 0;
    if (!absl::SimpleAtoi(boundary_text, &boundary) || !std::has_single_bit(boundary)) return Bad(key, kExpected, item);
    const size_t index = std::min<size_t>(static_cast<size_t>(std::bit_width(boundary)) - 1, divisions->size() - 1);
    if (first) std::fill(divisions->begin(), divisions->begin() + static_cast<std::ptrdiff_t>(index), count);
    first = false;
    (*divisions)[index] = count;
    last_index = index;
  }
  return absl::OkStatus();
}

struct Pair {
  std::string key;
  std::string value;
};

// Splits at commas that are not inside brackets. Spaces and quotes have no meaning.
absl::StatusOr<std::vector<Pair>> Split(absl::string_view text) {
  std::string clean;
  for (const char c : text) {
    if (!absl::ascii_isspace(static_cast<unsigned char>(c)) && c != '"' && c != '\'') clean.push_back(c);
  }
  std::vector<Pair> pairs;
  for (size_t at = 0; at < clean.size();) {
    size_t end = at;
    for (int depth = 0; end < clean.size() && (depth > 0 || clean[end] != ','); ++end) {
      depth += clean[end] == '[' ? 1 : clean[end] == ']' ? -1 : 0;
    }
    const std::string item = clean.substr(at, end - at);
    const size_t colon = item.find(':');
    if (colon == std::string::npos || colon == 0 || colon + 1 == item.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("allocator settings: expected 'name:value', got '", item, "' in '", text, "'"));
    }
    pairs.push_back({item.substr(0, colon), item.substr(colon + 1)});
    at = end + 1;
  }
  return pairs;
}

}  // namespace

absl::StatusOr<AllocatorSettings> AllocatorSettings::Parse(std::string_view text) {
  AllocatorSettings s;
  absl::StatusOr<std::vector<Pair>> pairs = Split(absl::string_view(text.data(), text.size()));
  if (!pairs.ok()) return pairs.status();
  // The segment size is a lower bound of two others, so it is read first.
  for (const auto& [key, value] : *pairs) {
    if (key != "large_segment_size_mb") continue;
    if (absl::Status status = ParseMiB(key, value, 11, &s.large_segment_size); !status.ok()) return status;
    s.max_non_split_rounding = s.large_segment_size;
  }
  const size_t least = s.large_segment_size / kMiB;
  for (const auto& [key, value] : *pairs) {
    absl::Status status;
    if (key == "large_segment_size_mb") {
      continue;
    } else if (key == "max_split_size_mb") {
      status = ParseMiB(key, value, least, &s.max_split_size);
    } else if (key == "max_non_split_rounding_mb") {
      status = ParseMiB(key, value, least, &s.max_non_split_rounding);
    } else if (key == "garbage_collection_threshold") {
      status = ParseFraction(key, value, false, &s.garbage_collection_threshold);
    } else if (key == "roundup_power2_divisions") {
      status = ParseRoundup(key, value, &s.roundup_power2_divisions);
    } else if (key == "expandable_segments") {
      status = ParseBool(key, value, &s.expandable_segments);
    } else if (key == "per_process_memory_fraction") {
      status = ParseFraction(key, value, true, &s.per_process_memory_fraction);
    } else if (key == "backend") {
      if (value != "native" && value != "cudaMallocAsync") status = Bad(key, "native or cudaMallocAsync", value);
      if (value == "cudaMallocAsync")
        s.notes.push_back("backend:cudaMallocAsync is not used: this allocator caches by itself");
    } else if (absl::StartsWith(key, "pinned_") || key == "release_lock_on_cudamalloc" ||
               key == "release_lock_on_hipmalloc") {
      continue;  // host memory, or without influence on what is allocated
    } else if (key == "throw_on_cudamalloc_oom") {
      status = ParseBool(key, value, &s.reject_over_fraction);
    } else if (key == "graph_capture_record_stream_reuse") {
      status = ParseBool(key, value, &s.graph_capture_record_stream_reuse);
    } else if (key == "expandable_segments_reserve" || key == "expandable_segments_reserve_by_class") {
      s.notes.push_back(absl::StrCat("allocator setting '", key, "' is not honoured"));
    } else {
      status = absl::InvalidArgumentError(absl::StrCat(
          "unknown allocator setting '", key,
          "'; known: backend, expandable_segments, garbage_collection_threshold, "
          "graph_capture_record_stream_reuse, large_segment_size_mb, max_non_split_rounding_mb, max_split_size_mb, "
          "per_process_memory_fraction, roundup_power2_divisions, "
          "throw_on_cudamalloc_oom"));
    }
    if (!status.ok()) return status;
  }
  return s;
}

absl::StatusOr<AllocatorSettings> AllocatorSettings::FromEnvironment() {
  AllocatorSettings settings;
  for (const char* name : {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"}) {
    const char* text = std::getenv(name);
    if (text == nullptr) continue;
    absl::StatusOr<AllocatorSettings> parsed = Parse(text);
    if (!parsed.ok()) return absl::InvalidArgumentError(absl::StrCat(name, ": ", parsed.status().message()));
    settings = *std::move(parsed);
    break;
  }
  if (const char* policy = std::getenv("VRAMLEDGER_POLICY"); policy != nullptr && *policy != '\0') {
    const std::optional<Policy> known = PolicyFromName(policy);
    if (!known)
      return absl::InvalidArgumentError(absl::StrCat("VRAMLEDGER_POLICY: expected native or vmm, got '", policy, "'"));
    settings.policy = *known;
  }
  return settings;
}

std::optional<AllocatorSettings::Policy> AllocatorSettings::PolicyFromName(std::string_view name) {
  if (name == "native") return Policy::kNative;
  if (name == "vmm") return Policy::kVmm;
  return std::nullopt;
}

std::string AllocatorSettings::WithoutEffect() const {
  if (policy != Policy::kVmm) return "";
  std::vector<absl::string_view> names;
  if (large_segment_size != AllocatorSettings().large_segment_size) names.push_back("large_segment_size_mb");
  if (max_split_size != kUnlimited) names.push_back("max_split_size_mb");
  if (max_non_split_rounding != large_segment_size) names.push_back("max_non_split_rounding_mb");
  if (garbage_collection_threshold != 0) names.push_back("garbage_collection_threshold");
  if (names.empty()) return "";
  return absl::StrCat("policy vmm has no segments to cut or to give back: ", absl::StrJoin(names, ", "),
                      names.size() == 1 ? " has" : " have", " an effect on private pools only");
}

std::string AllocatorSettings::ToString() const {
  const AllocatorSettings defaults;
  std::vector<std::string> parts;
  const auto mib = [&parts](const char* name, size_t bytes) { parts.push_back(absl::StrCat(name, ":", bytes / kMiB)); };
  if (large_segment_size != defaults.large_segment_size) mib("large_segment_size_mb", large_segment_size);
  if (max_split_size != kUnlimited) mib("max_split_size_mb", max_split_size);
  if (max_non_split_rounding != large_segment_size) mib("max_non_split_rounding_mb", max_non_split_rounding);
  if (garbage_collection_threshold != 0) {
    parts.push_back(absl::StrCat("garbage_collection_threshold:", garbage_collection_threshold));
  }
  if (roundup_power2_divisions != defaults.roundup_power2_divisions) {
    std::vector<std::string> items;
    for (size_t i = 0; i < roundup_power2_divisions.size(); ++i) {
      items.push_back(absl::StrCat(size_t{1} << i, ":", roundup_power2_divisions[i]));
    }
    parts.push_back(absl::StrCat("roundup_power2_divisions:[", absl::StrJoin(items, ","), "]"));
  }
  if (expandable_segments) parts.push_back("expandable_segments:True");
  if (reject_over_fraction) parts.push_back("throw_on_cudamalloc_oom:True");
  if (graph_capture_record_stream_reuse) parts.push_back("graph_capture_record_stream_reuse:True");
  if (per_process_memory_fraction < 1) {
    parts.push_back(absl::StrCat("per_process_memory_fraction:", per_process_memory_fraction));
  }
  return absl::StrJoin(parts, ",");
}

}  // namespace vramledger
