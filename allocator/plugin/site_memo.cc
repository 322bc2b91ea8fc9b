#include "allocator/plugin/site_memo.h"

#include <pthread.h>
#include <sys/mman.h>

#include <atomic>
#include <mutex>
#include <new>
#include <type_traits>

#include "tracer/format/fast_tls.h"
#include "tracer/format/spin_lock.h"

namespace vramledger {
namespace {

// In pages of its own, of which a thread with few places uses few. Never given back.
SiteMemo* FreshMemo() {
  static_assert(std::is_trivially_default_constructible_v<SiteMemo>);
  void* const pages =
      ::mmap(nullptr, sizeof(SiteMemo), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, /*fd=*/-1, /*offset=*/0);
  if (pages == MAP_FAILED) throw std::bad_alloc();
  return static_cast<SiteMemo*>(pages);
}

struct Memos {
  SiteMemo* caller = FreshMemo();
  SiteMemo* cast = nullptr;  // only where autocast is used
  Memos* next = nullptr;     // of the spare ones
};

VRAMLEDGER_FAST_TLS Memos* mine = nullptr;
SpinLock spare_lock;
Memos* spare = nullptr;
std::atomic<size_t> made{0};

// When the thread ends. Allocations that come later in its end take memos again, and end here again.
void GiveBack(void* memos) {
  auto* const m = static_cast<Memos*>(memos);
  mine = nullptr;
  const std::lock_guard<SpinLock> guard(spare_lock);
  m->next = spare;
  spare = m;
}

Memos& Mine() {
  if (mine != nullptr) return *mine;
  static const pthread_key_t key = [] {
    pthread_key_t k{};
    ::pthread_key_create(&k, &GiveBack);
    return k;
  }();
  Memos* taken = nullptr;
  {
    const std::lock_guard<SpinLock> guard(spare_lock);
    if (spare != nullptr) {
      taken = spare;
      spare = spare->next;
    }
  }
  if (taken == nullptr) {
    taken = new Memos();
    made.fetch_add(1, std::memory_order_relaxed);
  }
  ::pthread_setspecific(key, taken);
  return *(mine = taken);
}

}  // namespace

SiteMemo& CallerMemo() {
  return *Mine().caller;
}

SiteMemo& CastMemo() {
  Memos& m = Mine();
  if (m.cast == nullptr) m.cast = FreshMemo();
  return *m.cast;
}

size_t SiteMemosMade() {
  return made.load(std::memory_order_relaxed);
}

}  // namespace vramledger
