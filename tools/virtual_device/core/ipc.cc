#include "tools/virtual_device/core/ipc.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>

#include "tools/virtual_device/core/memory.h"
#include "tools/virtual_device/core/state.h"

namespace vd {
namespace {

constexpr char kMemoryMagic[8] = {'v', 'd', '-', 'i', 'p', 'c', 'm', '1'};
constexpr char kEventMagic[8] = {'v', 'd', '-', 'i', 'p', 'c', 'e', '1'};

struct Handle {
  char magic[8];
  uint64_t pid;
  uint64_t id;  // of the allocation or event in its process
  uint64_t size;
  int64_t device;
  uint64_t unused[3];
};
static_assert(sizeof(Handle) == kIpcHandleBytes);

struct Import {
  uintptr_t address = 0;
  int opened = 0;
};
struct Imports {
  std::mutex lock;
  std::map<std::pair<uint64_t, uint64_t>, Import> open;  // by process and id
};
Imports& TheImports() {
  static auto* imports = new Imports;
  return *imports;
}

int Read(const void* raw, const char (&magic)[8], Handle* handle) {
  std::memcpy(handle, raw, sizeof *handle);
  if (std::memcmp(handle->magic, magic, sizeof handle->magic) != 0) return kInvalidValue;
  if (handle->pid == static_cast<uint64_t>(getpid())) return kInvalidHandle;
  // Its owner must still be there.
  if (kill(static_cast<pid_t>(handle->pid), 0) != 0 && errno == ESRCH) return kInvalidHandle;
  return kOk;
}

}  // namespace

void ForkIpc(int action) {
  ForkLock(TheImports().lock, action);
}

int IpcExport(uintptr_t address, void* raw) {
  const MemoryRange range = FindRange(address);
  if (range.kind != MemoryKind::kDevice || range.base != address) return kInvalidValue;
  Handle handle{};
  std::memcpy(handle.magic, kMemoryMagic, sizeof handle.magic);
  handle.pid = static_cast<uint64_t>(getpid());
  handle.id = range.id;
  handle.size = range.size;
  handle.device = range.device;
  std::memcpy(raw, &handle, sizeof handle);
  return kOk;
}

int IpcOpen(const void* raw, uintptr_t* address) {
  Handle handle;
  if (const int code = Read(raw, kMemoryMagic, &handle); code != kOk) return code;
  if (handle.device < 0 || handle.device >= DeviceCount()) return kInvalidDevice;
  Imports& imports = TheImports();
  const std::lock_guard guard(imports.lock);
  Import& import = imports.open[{handle.pid, handle.id}];
  if (import.opened == 0) {
    if (const int code = ImportRange(static_cast<int>(handle.device), handle.size, &import.address); code != kOk)
      return code;
  }
  ++import.opened;
  *address = import.address;
  return kOk;
}

int IpcClose(uintptr_t address) {
  Imports& imports = TheImports();
  const std::lock_guard guard(imports.lock);
  for (auto it = imports.open.begin(); it != imports.open.end(); ++it) {
    if (it->second.address != address || it->second.opened == 0) continue;
    if (--it->second.opened > 0) return kOk;
    imports.open.erase(it);
    return DropImport(address);
  }
  return kInvalidValue;
}

void IpcExportEvent(const void* event, void* raw) {
  Handle handle{};
  std::memcpy(handle.magic, kEventMagic, sizeof handle.magic);
  handle.pid = static_cast<uint64_t>(getpid());
  handle.id = reinterpret_cast<uintptr_t>(event);
  std::memcpy(raw, &handle, sizeof handle);
}

int IpcCheckEvent(const void* raw) {
  Handle handle;
  return Read(raw, kEventMagic, &handle);
}

}  // namespace vd
