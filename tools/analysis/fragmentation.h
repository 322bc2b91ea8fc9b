// Where the free reserved bytes lie, at one moment.
#ifndef VRAMLEDGER_TOOLS_ANALYSIS_FRAGMENTATION_H_
#define VRAMLEDGER_TOOLS_ANALYSIS_FRAGMENTATION_H_

#include <functional>

#include "tools/analysis/block_table.h"
#include "tools/analysis/ledger.h"
#include "tools/foreign/address_ranges.h"

namespace vramledger {

struct FragmentationQuestion {
  int device = 0;
  // True for a stream whose free bytes can still serve somebody: it is the asking one, or it allocates again later.
  std::function<bool(uint64_t stream)> stream_asks;
  // Text of a module id.
  std::function<std::string(uint32_t module)> site;
};

Fragmentation MeasureFragmentation(const BlockTable& table, const AddressRanges& reserved,
                                   const FragmentationQuestion& question);

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_ANALYSIS_FRAGMENTATION_H_
