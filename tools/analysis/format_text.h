// Numbers as people read them.
#ifndef VRAMLEDGER_TOOLS_ANALYSIS_FORMAT_TEXT_H_
#define VRAMLEDGER_TOOLS_ANALYSIS_FORMAT_TEXT_H_

#include <cstdint>
#include <string>

namespace vramledger {

// "5.97 GiB", "437.9 MiB", "512 B": binary units, three or four digits.
std::string HumanBytes(uint64_t bytes);
// "437,928,960".
std::string Grouped(uint64_t value);
// "12.3 %".
std::string Percent(double share);
// "1.234 s", "12.3 ms".
std::string HumanTime(uint64_t ns);

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_ANALYSIS_FORMAT_TEXT_H_
