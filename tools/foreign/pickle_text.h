// The parts of the pickle reader that know opcodes and texts, and no state.
#ifndef VRAMLEDGER_TOOLS_FOREIGN_PICKLE_TEXT_H_
#define VRAMLEDGER_TOOLS_FOREIGN_PICKLE_TEXT_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace vramledger {

// Names of the opcodes that would make a reader look something up, call or build it; null for all others.
const char* RefusedOpcode(uint8_t op);
std::string HexByte(uint8_t byte);
bool IsUtf8(std::string_view text);
// Undoes what protocol 0 needs in practice: \, \', \", \n, \r, \t, \xhh, \uhhhh, \Uhhhhhhhh.
std::string UnescapePickleText(std::string_view line);

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_FOREIGN_PICKLE_TEXT_H_
