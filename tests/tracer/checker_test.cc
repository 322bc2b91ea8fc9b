#include "tracer/format/checker.h"

#include <gtest/gtest.h>

#include <span>
#include <string>
#include <utility>
#include <vector>

namespace vramledger {
namespace {

class ListSource : public EventSource {
 public:
  explicit ListSource(std::vector<Event> events) : events_(std::move(events)) {
    for (size_t i = 0; i < events_.size(); ++i) events_[i].sequence = i;
  }
  std::string_view String(uint32_t) const override { return {}; }
  const std::string& metadata_json() const override { return metadata_; }
  const SourceHealth& health() const override { return health_; }
  std::string_view format() const override { return "list"; }

 protected:
  std::span<const Event> NextBatch() override { return std::exchange(rest_, {}); }

 private:
  std::vector<Event> events_;
  std::span<const Event> rest_ = events_;
  std::string metadata_ = "{}";
  SourceHealth health_;
};

Event Make(RecordKind kind, uint64_t address, uint64_t bytes) {
  Event e;
  e.kind = kind;
  e.address = address;
  e.requested_bytes = e.rounded_bytes = bytes;
  return e;
}
Event Counters(uint64_t allocated, uint64_t reserved) {
  Event e;
  e.kind = RecordKind::kCounters;
  e.b = allocated;
  e.c = reserved;
  return e;
}

std::vector<std::string> Check(std::vector<Event> events) {
  ListSource source(std::move(events));
  return CheckEvents(source).sentences;
}

TEST(Checker, AnUnmapMayCoverPartsOfSeveralMappedRanges) {
  ListSource source({Make(RecordKind::kSegmentMap, 4096, 4096), Make(RecordKind::kSegmentMap, 8192, 4096), Make(RecordKind::kSegmentMap, 12288, 4096),
                     Make(RecordKind::kSegmentUnmap, 6144, 8192), Make(RecordKind::kSegmentMap, 8192, 4096), Make(RecordKind::kAlloc, 8192, 4096),
                     Counters(4096, 8192)});
  const CheckResult result = CheckEvents(source);
  EXPECT_EQ(result.sentences, std::vector<std::string>());
  EXPECT_EQ(result.counters_verified, 1u);
}

TEST(Checker, AcceptsAClosedHistory) {
  ListSource source({Make(RecordKind::kSegmentAlloc, 4096, 4096), Make(RecordKind::kAlloc, 4096, 1024), Make(RecordKind::kAlloc, 5120, 512),
                     Counters(1536, 4096), Make(RecordKind::kFreeCompleted, 4096, 1024), Make(RecordKind::kAlloc, 4096, 512)});
  const CheckResult result = CheckEvents(source);
  EXPECT_TRUE(result.sentences.empty());
  EXPECT_EQ(result.counters_verified, 1u);
  EXPECT_EQ(result.live_at_end, 2u);
  EXPECT_EQ(result.live_bytes_at_end, 1024u);
}

TEST(Checker, NamesEachImpossibility) {
  EXPECT_EQ(Check({Make(RecordKind::kAlloc, 4096, 1024), Make(RecordKind::kAlloc, 4608, 512)}),
            std::vector<std::string>{"record 1: block 1200 of 512 bytes overlaps the live block 1000 of 1024 bytes"});
  EXPECT_EQ(Check({Make(RecordKind::kFreeCompleted, 4096, 512)}),
            std::vector<std::string>{"record 0: free of address 1000, which is not allocated"});
  EXPECT_EQ(Check({Make(RecordKind::kAlloc, 4096, 1024), Make(RecordKind::kFreeCompleted, 4096, 512)}),
            std::vector<std::string>{"record 1: free of 512 bytes at 1000, allocated with 1024"});
  EXPECT_EQ(Check({Make(RecordKind::kSegmentAlloc, 4096, 1024), Make(RecordKind::kAlloc, 4608, 1024)}),
            std::vector<std::string>{"record 1: block 1200 of 1024 bytes lies outside every segment"});
  EXPECT_EQ(Check({Make(RecordKind::kSegmentAlloc, 4096, 1024), Make(RecordKind::kAlloc, 4096, 512), Make(RecordKind::kSegmentFree, 4096, 1024)}),
            std::vector<std::string>{"record 2: segment 1000 released with the live block 1000 in it"});
  EXPECT_EQ(Check({Make(RecordKind::kAlloc, 4096, 512), Counters(1024, 0)}),
            std::vector<std::string>{"record 1: the allocator counted 1024 allocated bytes, the records sum to 512"});
}

TEST(Checker, MappedRangesOfAnExpandableSegmentCarryOneBlock) {
  EXPECT_TRUE(Check({Make(RecordKind::kSegmentMap, 4096, 1024), Make(RecordKind::kSegmentMap, 5120, 1024), Make(RecordKind::kAlloc, 4096, 2048),
                     Make(RecordKind::kFreeCompleted, 4096, 2048), Make(RecordKind::kSegmentUnmap, 4096, 2048)})
                  .empty());
}

}  // namespace
}  // namespace vramledger
