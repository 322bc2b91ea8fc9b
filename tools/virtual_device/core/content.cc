#include "tools/virtual_device/core/content.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "tools/virtual_device/core/state.h"

namespace vd {
namespace {

// A copy through the kernel, which answers a bad pointer with an error instead of a signal.
bool SafeCopy(void* to, const void* from, size_t size, bool check_source) {
  // Between two ranges of this very process. Where the call is not permitted (some containers), a plain copy.
  iovec local{}, remote{};
  size_t done = 0;
  while (done < size) {
    const size_t piece = std::min<size_t>(size - done, size_t{1} << 30);
    char* destination = static_cast<char*>(to) + done;
    char* source = static_cast<char*>(const_cast<void*>(from)) + done;
    ssize_t moved = 0;
    if (check_source) {
      local = {destination, piece};
      remote = {source, piece};
      moved = process_vm_readv(getpid(), &local, 1, &remote, 1, 0);
    } else {
      local = {source, piece};
      remote = {destination, piece};
      moved = process_vm_writev(getpid(), &local, 1, &remote, 1, 0);
    }
    if (moved < 0 && (errno == EPERM || errno == ENOSYS)) {
      std::memcpy(destination, source, piece);
      moved = static_cast<ssize_t>(piece);
    }
    if (moved <= 0) return false;
    done += static_cast<size_t>(moved);
  }
  return true;
}

struct Chunk {
  uint64_t size = 0;
  std::shared_ptr<char[]> bytes;  // null: the pattern repeats
  size_t offset = 0;                         // into bytes, or phase of the pattern
  char pattern[16] = {};
  uint8_t pattern_size = 0;

  Chunk Part(uint64_t from, uint64_t length) const {
    Chunk part = *this;
    part.offset = bytes ? offset + from : (offset + from) % pattern_size;
    part.size = length;
    return part;
  }
  void CopyTo(char* to, uint64_t from, uint64_t length) const {
    if (bytes) {
      std::memcpy(to, bytes.get() + offset + from, length);
    } else if (pattern_size == 1) {
      std::memset(to, pattern[0], length);
    } else {
      for (uint64_t i = 0; i < length; ++i) to[i] = pattern[(offset + from + i) % pattern_size];
    }
  }
};

std::mutex& Lock() {
  static std::mutex* lock = new std::mutex;
  return *lock;
}
std::map<uintptr_t, Chunk>& Chunks() {
  static auto* chunks = new std::map<uintptr_t, Chunk>;
  return *chunks;
}

// Cuts [address, address + size) out of what is known. Lock held.
void Cut(uintptr_t address, uint64_t size) {
  auto& chunks = Chunks();
  const uintptr_t end = address + size;
  auto it = chunks.upper_bound(address);
  if (it != chunks.begin()) --it;
  while (it != chunks.end() && it->first < end) {
    const uintptr_t start = it->first;
    const uintptr_t stop = start + it->second.size;
    if (stop <= address) { ++it; continue; }
    const Chunk chunk = it->second;
    it = chunks.erase(it);
    if (start < address) chunks[start] = chunk.Part(0, address - start);
    if (stop > end) chunks[end] = chunk.Part(end - start, stop - end);
  }
}

void SetFlag() { SetLaunchFlag(kLaunchContent, !Chunks().empty()); }

}  // namespace

void ForkContent(int action) { ForkLock(Lock(), action); }

bool WriteContent(uintptr_t address, const void* from, size_t size) {
  if (size == 0) return true;
  std::shared_ptr<char[]> bytes(new char[size]);  // not cleared: all of it is written
  if (!SafeCopy(bytes.get(), from, size, true)) return false;
  Chunk chunk;
  chunk.size = size;
  chunk.bytes = std::move(bytes);
  const std::lock_guard<std::mutex> guard(Lock());
  Cut(address, size);
  Chunks()[address] = std::move(chunk);
  SetFlag();
  return true;
}

void FillContent(uintptr_t address, const void* pattern, size_t pattern_size, size_t size) {
  if (size == 0) return;
  Chunk chunk;
  chunk.size = size;
  chunk.pattern_size = static_cast<uint8_t>(std::min<size_t>(pattern_size, sizeof chunk.pattern));
  std::memcpy(chunk.pattern, pattern, chunk.pattern_size);
  const std::lock_guard<std::mutex> guard(Lock());
  Cut(address, size);
  Chunks()[address] = std::move(chunk);
  SetFlag();
}

void CopyContent(uintptr_t to, uintptr_t from, size_t size) {
  if (size == 0 || to == from) return;
  const std::lock_guard<std::mutex> guard(Lock());
  auto& chunks = Chunks();
  std::vector<std::pair<uintptr_t, Chunk>> parts;
  auto it = chunks.upper_bound(from);
  if (it != chunks.begin()) --it;
  for (; it != chunks.end() && it->first < from + size; ++it) {
    const uintptr_t start = std::max(it->first, from);
    const uintptr_t stop = std::min<uintptr_t>(it->first + it->second.size, from + size);
    if (start < stop) parts.emplace_back(to + (start - from), it->second.Part(start - it->first, stop - start));
  }
  Cut(to, size);
  for (auto& [address, chunk] : parts) chunks[address] = std::move(chunk);
  SetFlag();
}

bool ReadContent(void* to, uintptr_t address, size_t size, size_t* unknown) {
  *unknown = size;
  if (size == 0) return true;
  std::vector<char> bytes(size);
  {
    const std::lock_guard<std::mutex> guard(Lock());
    auto& chunks = Chunks();
    auto it = chunks.upper_bound(address);
    if (it != chunks.begin()) --it;
    for (; it != chunks.end() && it->first < address + size; ++it) {
      const uintptr_t start = std::max(it->first, address);
      const uintptr_t stop = std::min<uintptr_t>(it->first + it->second.size, address + size);
      if (start >= stop) continue;
      it->second.CopyTo(bytes.data() + (start - address), start - it->first, stop - start);
      *unknown -= stop - start;
    }
  }
  return SafeCopy(to, bytes.data(), size, false);
}

void ForgetContent(uintptr_t address, size_t size) {
  if (!LaunchFlag(kLaunchContent)) return;
  const std::lock_guard<std::mutex> guard(Lock());
  Cut(address, size);
  SetFlag();
}

void ForgetAllContent() {
  const std::lock_guard<std::mutex> guard(Lock());
  Chunks().clear();
  SetLaunchFlag(kLaunchContent, false);
}

}  // namespace vd
