// Address ranges without overlap, each with the stream it belongs to: the memory reserved on one device.
#ifndef VRAMLEDGER_TOOLS_FOREIGN_ADDRESS_RANGES_H_
#define VRAMLEDGER_TOOLS_FOREIGN_ADDRESS_RANGES_H_

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>

namespace vramledger {

class AddressRanges {
 public:
  struct Span {
    uint64_t end = 0;
    uint64_t stream = 0;
  };

  void Add(uint64_t begin, uint64_t size, uint64_t stream) { spans_[begin] = {begin + size, stream}; }

  // False if not all of the range was there; what was is removed.
  bool Remove(uint64_t begin, uint64_t size) {
    const uint64_t end = begin + size;
    uint64_t removed = 0;
    auto it = spans_.upper_bound(begin);
    if (it != spans_.begin()) --it;
    while (it != spans_.end() && it->first < end) {
      const uint64_t b = it->first;
      const Span span = it->second;
      if (span.end <= begin) {
        ++it;
        continue;
      }
      it = spans_.erase(it);
      if (b < begin) spans_[b] = {begin, span.stream};
      if (span.end > end) spans_[end] = span;
      removed += std::min(span.end, end) - std::max(b, begin);
      it = spans_.lower_bound(std::min(span.end, end));
    }
    return removed == size;
  }

  bool Holds(uint64_t address) const {
    auto it = spans_.upper_bound(address);
    return it != spans_.begin() && address < std::prev(it)->second.end;
  }

  const std::map<uint64_t, Span>& spans() const { return spans_; }

 private:
  std::map<uint64_t, Span> spans_;  // by begin
};

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_FOREIGN_ADDRESS_RANGES_H_
