// The CUDA device: the runtime functions that the process itself uses, found while it runs. Nothing is linked, so one
// binary serves every CUDA version, and a process whose CUDA runtime is a stand-in gets the stand-in.
#ifndef VRAMLEDGER_ALLOCATOR_CUDA_DEVICE_MEMORY_H_
#define VRAMLEDGER_ALLOCATOR_CUDA_DEVICE_MEMORY_H_

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "allocator/core/device_memory.h"

namespace vramledger {

class CudaDeviceMemory : public DeviceMemory {
 public:
  // Looks the runtime up. The error names what was not found. Counts devices, which initialises the driver: not to be
  // called before a fork whose child uses CUDA.
  static absl::StatusOr<std::unique_ptr<CudaDeviceMemory>> Open();
  ~CudaDeviceMemory() override;

  int device_count() override { return device_count_; }
  DeviceResult MemoryInfo(int device, DeviceMemoryInfo* info) override;
  bool HasContext(int device) override;
  size_t TotalBytes(int device) override;
  std::string BusId(int device) override;
  DeviceResult Allocate(int device, size_t bytes, void** address) override;
  DeviceResult Free(int device, void* address) override;
  size_t granularity(int device) override;
  DeviceResult ReserveAddress(int device, size_t bytes, void** address) override;
  DeviceResult ReleaseAddress(int device, void* address, size_t bytes) override;
  DeviceResult Map(int device, void* address, size_t bytes) override;
  DeviceResult Unmap(int device, void* address, size_t bytes) override;
  DeviceResult CreateEvent(int device, EventHandle* event) override;
  DeviceResult RecordEvent(int device, EventHandle event, StreamHandle stream) override;
  DeviceResult EventDone(int device, EventHandle event) override;
  DeviceResult WaitForEvent(int device, EventHandle event) override;
  void DestroyEvent(int device, EventHandle event) override;
  DeviceResult Synchronize(int device) override;
  bool StreamIsCapturing(int device, StreamHandle stream) override;
  const char* last_error() override;

  // Where the runtime was found, for diagnosis.
  const std::string& runtime_name() const { return runtime_name_; }

 private:
  struct Runtime;
  struct Driver;
  struct Looks;
  class DeviceGuard;
  class RelaxedCapture;

  CudaDeviceMemory();
  // Notes the failure, clears it from the runtime and says what it means.
  DeviceResult Report(int error, const char* what);
  DeviceResult ReportDriver(int error, const char* what);
  const Driver* driver();
  const Looks& looks();

  std::unique_ptr<Runtime> runtime_;
  std::string runtime_name_;
  int device_count_ = 0;
  std::once_flag driver_once_;
  std::once_flag looks_once_;
  std::unique_ptr<Looks> looks_;
  std::unique_ptr<Driver> driver_;  // null if it lacks virtual memory management
};

}  // namespace vramledger

#endif  // VRAMLEDGER_ALLOCATOR_CUDA_DEVICE_MEMORY_H_
