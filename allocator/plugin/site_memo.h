// Remembers what a walk over the stack has found, so that each place of the program is walked once.
#ifndef VRAMLEDGER_ALLOCATOR_PLUGIN_SITE_MEMO_H_
#define VRAMLEDGER_ALLOCATOR_PLUGIN_SITE_MEMO_H_

#include <cstddef>
#include <cstdint>

namespace vramledger {

struct SiteAnswer {
  uint64_t key = 0;
  bool yes = false;
};
// Direct-mapped; a collision only costs another walk.
inline constexpr size_t kSiteAnswers = 4096;

// The answer for requests of `bytes` at the place that `context` stands for (phase, module, thread ...): `walk()` the first time.
// `answers` is a thread-local pointer of the caller's, null at first (a pointer, since a shared library's own thread-local memory is scarce).
// What it points to is leaked: allocations outlive thread-local destructors. Allocates host memory once per thread.
template <typename Walk>
bool AnswerForSite(SiteAnswer*& answers, size_t bytes, uint64_t context, Walk walk) {
  const uint64_t key = ((context * 0x9e3779b97f4a7c15u) ^ (bytes * 0xff51afd7ed558ccdu)) | 1;
  if (answers == nullptr) answers = new SiteAnswer[kSiteAnswers];
  SiteAnswer& answer = answers[(key >> 20) % kSiteAnswers];
  if (answer.key != key) answer = SiteAnswer{key, walk()};
  return answer.yes;
}

}  // namespace vramledger

#endif  // VRAMLEDGER_ALLOCATOR_PLUGIN_SITE_MEMO_H_
