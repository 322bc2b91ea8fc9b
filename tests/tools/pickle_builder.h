// Builds pickles byte by byte, for tests.
#ifndef VRAMLEDGER_TESTS_TOOLS_PICKLE_BUILDER_H_
#define VRAMLEDGER_TESTS_TOOLS_PICKLE_BUILDER_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace vramledger::testing {

// Pieces of a protocol 4 pickle; each function returns the bytes that push one value.
inline std::string PickleInt(uint64_t value) {
  std::string out = {'\x8a', 9};
  for (int i = 0; i < 9; ++i) out.push_back(i < 8 ? static_cast<char>(value >> (8 * i)) : '\0');
  return out;
}
inline std::string PickleText(std::string_view text) {
  std::string out = "X";
  for (int i = 0; i < 4; ++i) out.push_back(static_cast<char>(text.size() >> (8 * i)));
  return out + std::string(text);
}
inline std::string PickleList(std::initializer_list<std::string> items) {
  std::string out = "](";
  for (const std::string& item : items) out += item;
  return out + "e";
}
inline std::string PickleDict(std::initializer_list<std::pair<std::string_view, std::string>> items) {
  std::string out = "}(";
  for (const auto& [key, value] : items) out += PickleText(key) + value;
  return out + "u";
}
inline std::string Pickle(const std::string& value) {
  std::string out = "\x80\x04";
  out += value;
  out += ".";
  return out;
}

// A snapshot with one 2 MiB segment: 512 KiB live, the rest free; the history takes and gives 1 MiB and takes the live
// block.
inline std::string SmallSnapshot() {
  const uint64_t base = 0x7f0000000000;
  const auto block = [](uint64_t address, uint64_t size, const char* state) {
    return PickleDict({{"address", PickleInt(address)},
                       {"size", PickleInt(size)},
                       {"requested_size", PickleInt(size)},
                       {"state", PickleText(state)},
                       {"frames", PickleList({})}});
  };
  const auto event = [](const char* action, uint64_t address, uint64_t size, uint64_t time) {
    return PickleDict({{"action", PickleText(action)},
                       {"addr", PickleInt(address)},
                       {"size", PickleInt(size)},
                       {"stream", PickleInt(0)},
                       {"time_us", PickleInt(time)},
                       {"frames", PickleList({})}});
  };
  const std::string segment = PickleDict(
      {{"device", PickleInt(0)},
       {"address", PickleInt(base)},
       {"total_size", PickleInt(2097152)},
       {"allocated_size", PickleInt(524288)},
       {"active_size", PickleInt(524288)},
       {"stream", PickleInt(0)},
       {"segment_type", PickleText("small")},
       {"blocks", PickleList({block(base, 524288, "active_allocated"), block(base + 524288, 1572864, "inactive")})}});
  const std::string trace =
      PickleList({event("segment_alloc", base, 2097152, 1000), event("alloc", base + 524288, 1048576, 1001),
                  event("free_requested", base + 524288, 1048576, 1002),
                  event("free_completed", base + 524288, 1048576, 1002), event("alloc", base, 524288, 1003)});
  return Pickle(PickleDict({{"segments", PickleList({segment})}, {"device_traces", PickleList({trace})}}));
}

}  // namespace vramledger::testing

#endif  // VRAMLEDGER_TESTS_TOOLS_PICKLE_BUILDER_H_
