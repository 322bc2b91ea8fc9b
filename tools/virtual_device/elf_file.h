// The dynamic symbols of a 64-bit little-endian shared library, for `vramledger doctor`. Throws std::runtime_error.
#pragma once

#include <string>
#include <vector>

namespace vd {

struct ElfSymbol {
  std::string name;
  std::string section;  // of a defined symbol
  bool defined = false;
};

std::vector<ElfSymbol> ReadElfSymbols(const std::string& file);

// Sections in which the generated stubs stand: what they are can be read from the finished library.
inline constexpr const char* kUnimplementedSection = "vd_unimplemented";
inline constexpr const char* kNominalSection = "vd_nominal";

}  // namespace vd
