// The one interface through which the allocator core sees a device. Two drivers implement it: CudaDeviceMemory
// (training) and SimulatedDeviceMemory (tests, replay). The core never calls CUDA.
#ifndef VRAMLEDGER_ALLOCATOR_CORE_DEVICE_MEMORY_H_
#define VRAMLEDGER_ALLOCATOR_CORE_DEVICE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace vramledger {

// An opaque stream of the device; 0 is the default stream. (cudaStream_t in the CUDA driver.)
using StreamHandle = uintptr_t;
// An opaque event, owned by whoever created it.
using EventHandle = uintptr_t;

enum class DeviceResult {
  kOk,
  kOutOfMemory,   // the device has no room; may be retried after memory was given back
  kNotReady,      // EventDone: work still pending
  kNotSupported,  // the driver lacks the feature (VMM)
  kError,         // anything else; last_error() has the text
};

struct DeviceMemoryInfo {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
};

// Thread rule: every method may be called from any thread at the same time. No method throws. Each leaves the calling
// thread's current device as it found it, and no sticky or pending error behind.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;

  virtual int device_count() = 0;
  // Makes a context on the device if this process has none there; see HasContext.
  virtual DeviceResult MemoryInfo(int device, DeviceMemoryInfo* info) = 0;
  // Whether this process uses the device already. Makes no context; true where it cannot be told.
  virtual bool HasContext(int) { return true; }
  // Bytes of the device without making a context; 0 where that cannot be told.
  virtual size_t TotalBytes(int) { return 0; }
  // PCI address ("0000:01:00.0"), empty where there is none.
  virtual std::string BusId(int) { return ""; }

  // Plain memory: `bytes` > 0; the address is aligned to at least 512 B. Legal during stream capture.
  virtual DeviceResult Allocate(int device, size_t bytes, void** address) = 0;
  // May wait for the device (cudaFree does).
  virtual DeviceResult Free(int device, void* address) = 0;

  // Virtual memory management, for expandable segments and the vmm policy. Sizes and addresses are multiples of
  // granularity(). kNotSupported where the device has none.
  virtual size_t granularity(int device) = 0;
  virtual DeviceResult ReserveAddress(int device, size_t bytes, void** address) = 0;
  virtual DeviceResult ReleaseAddress(int device, void* address, size_t bytes) = 0;
  // Creates physical memory of `bytes` and maps it readable and writable at `address`; kOutOfMemory maps nothing.
  virtual DeviceResult Map(int device, void* address, size_t bytes) = 0;
  virtual DeviceResult Unmap(int device, void* address, size_t bytes) = 0;

  // Events mark a point in a stream. CreateEvent disables timing.
  virtual DeviceResult CreateEvent(int device, EventHandle* event) = 0;
  virtual DeviceResult RecordEvent(int device, EventHandle event, StreamHandle stream) = 0;
  virtual DeviceResult EventDone(int device, EventHandle event) = 0;  // kOk or kNotReady
  virtual DeviceResult WaitForEvent(int device, EventHandle event) = 0;
  virtual void DestroyEvent(int device, EventHandle event) = 0;
  virtual DeviceResult Synchronize(int device) = 0;
  // True while the stream is recording a CUDA graph: no event may be queried or recorded on it then.
  virtual bool StreamIsCapturing(int device, StreamHandle stream) = 0;

  // Text of the calling thread's last failure, empty if none. Valid until its next failure.
  virtual const char* last_error() = 0;
};

}  // namespace vramledger

#endif  // VRAMLEDGER_ALLOCATOR_CORE_DEVICE_MEMORY_H_
