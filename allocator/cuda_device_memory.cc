#include "allocator/cuda_device_memory.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"

namespace vramledger {
namespace {

// CUDA 13 to 11, the names under which PyTorch's wheels load it.
constexpr const char* kRuntimeNames[] = {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so"};
constexpr const char* kDriverName = "libcuda.so.1";

thread_local std::string failure_text;

// A function of the process: what its own calls would reach (a preloaded library first), else the one in `library`.
void* FindFunction(void* library, const char* name) {
  if (void* found = dlsym(RTLD_DEFAULT, name)) return found;
  return library == nullptr ? nullptr : dlsym(library, name);
}

struct Library {
  void* handle = nullptr;
  std::string name;
};

Library OpenRuntime() {
  // A library loaded with local scope, as Python loads PyTorch's, is found by its name only.
  for (const int flags : {RTLD_NOLOAD | RTLD_LAZY, RTLD_LAZY}) {
    for (const char* name : kRuntimeNames) {
      if (void* handle = dlopen(name, flags)) return {handle, name};
    }
    if (dlsym(RTLD_DEFAULT, "cudaMalloc") != nullptr) return {nullptr, "the process itself"};
  }
  return {};
}

}  // namespace

// The types come from the headers, so a call with wrong arguments does not compile.
struct CudaDeviceMemory::Runtime {
  decltype(&::cudaGetDeviceCount) GetDeviceCount;
  decltype(&::cudaGetDevice) GetDevice;
  decltype(&::cudaSetDevice) SetDevice;
  cudaError_t (*Malloc)(void**, size_t);
  decltype(&::cudaFree) Free;
  decltype(&::cudaMemGetInfo) MemGetInfo;
  decltype(&::cudaGetLastError) GetLastError;
  decltype(&::cudaGetErrorString) GetErrorString;
  cudaError_t (*EventCreateWithFlags)(cudaEvent_t*, unsigned int);
  cudaError_t (*EventRecord)(cudaEvent_t, cudaStream_t);
  decltype(&::cudaEventQuery) EventQuery;
  decltype(&::cudaEventSynchronize) EventSynchronize;
  decltype(&::cudaEventDestroy) EventDestroy;
  decltype(&::cudaDeviceSynchronize) DeviceSynchronize;
  decltype(&::cudaStreamIsCapturing) StreamIsCapturing;
  decltype(&::cudaThreadExchangeStreamCaptureMode) ThreadExchangeStreamCaptureMode;
  decltype(&::cudaDeviceGetPCIBusId) DeviceGetPCIBusId;  // null: not asked for
};

// The driver functions that look at a device without making a context on it, each null where the driver lacks it.
struct CudaDeviceMemory::Looks {
  decltype(&::cuDeviceGet) DeviceGet = nullptr;
  decltype(&::cuDevicePrimaryCtxGetState) PrimaryCtxGetState = nullptr;
  decltype(&::cuDeviceTotalMem) DeviceTotalMem = nullptr;
};

struct CudaDeviceMemory::Driver {
  decltype(&::cuDeviceGet) DeviceGet;
  decltype(&::cuDeviceGetAttribute) DeviceGetAttribute;
  decltype(&::cuMemGetAllocationGranularity) GetGranularity;
  decltype(&::cuMemAddressReserve) AddressReserve;
  decltype(&::cuMemAddressFree) AddressFree;
  decltype(&::cuMemCreate) Create;
  decltype(&::cuMemRelease) Release;
  decltype(&::cuMemMap) Map;
  decltype(&::cuMemUnmap) Unmap;
  decltype(&::cuMemSetAccess) SetAccess;
};

// Sets the calling thread's device and puts it back.
class CudaDeviceMemory::DeviceGuard {
 public:
  DeviceGuard(const Runtime& runtime, int device) : runtime_(runtime) {
    if (runtime_.GetDevice(&previous_) != cudaSuccess) {
      runtime_.GetLastError();
      previous_ = -1;
    }
    switched_ = previous_ != device && runtime_.SetDevice(device) == cudaSuccess;
  }
  ~DeviceGuard() {
    if (switched_ && previous_ >= 0) runtime_.SetDevice(previous_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  const Runtime& runtime_;
  int previous_ = -1;
  bool switched_ = false;
};

// Lets the calling thread do what a capture elsewhere would forbid: cudaMalloc, and queries of events outside of the
// capture.
class CudaDeviceMemory::RelaxedCapture {
 public:
  explicit RelaxedCapture(const Runtime& runtime) : runtime_(runtime) {
    active_ = runtime_.ThreadExchangeStreamCaptureMode(&mode_) == cudaSuccess;
  }
  ~RelaxedCapture() {
    if (active_) runtime_.ThreadExchangeStreamCaptureMode(&mode_);
  }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const Runtime& runtime_;
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
  bool active_ = false;
};

CudaDeviceMemory::CudaDeviceMemory() : runtime_(std::make_unique<Runtime>()) {}
CudaDeviceMemory::~CudaDeviceMemory() = default;

absl::StatusOr<std::unique_ptr<CudaDeviceMemory>> CudaDeviceMemory::Open() {
  const Library library = OpenRuntime();
  if (library.name.empty()) {
    return absl::NotFoundError(absl::StrCat("no CUDA runtime in this process: looked for ", kRuntimeNames[0], ", ",
                                            kRuntimeNames[1], ", ", kRuntimeNames[2], "; import torch first"));
  }
  auto memory = absl::WrapUnique(new CudaDeviceMemory());
  memory->runtime_name_ = library.name;
  Runtime& r = *memory->runtime_;
  std::string missing;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(FindFunction(library.handle, name));
    if (function == nullptr) absl::StrAppend(&missing, missing.empty() ? "" : ", ", name);
  };
  find(r.GetDeviceCount, "cudaGetDeviceCount");
  find(r.GetDevice, "cudaGetDevice");
  find(r.SetDevice, "cudaSetDevice");
  find(r.Malloc, "cudaMalloc");
  find(r.Free, "cudaFree");
  find(r.MemGetInfo, "cudaMemGetInfo");
  find(r.GetLastError, "cudaGetLastError");
  find(r.GetErrorString, "cudaGetErrorString");
  find(r.EventCreateWithFlags, "cudaEventCreateWithFlags");
  find(r.EventRecord, "cudaEventRecord");
  find(r.EventQuery, "cudaEventQuery");
  find(r.EventSynchronize, "cudaEventSynchronize");
  find(r.EventDestroy, "cudaEventDestroy");
  find(r.DeviceSynchronize, "cudaDeviceSynchronize");
  find(r.StreamIsCapturing, "cudaStreamIsCapturing");
  find(r.ThreadExchangeStreamCaptureMode, "cudaThreadExchangeStreamCaptureMode");
  r.DeviceGetPCIBusId =
      reinterpret_cast<decltype(r.DeviceGetPCIBusId)>(FindFunction(library.handle, "cudaDeviceGetPCIBusId"));
  if (!missing.empty()) {
    return absl::NotFoundError(absl::StrCat("the CUDA runtime (", library.name, ") lacks ", missing));
  }
  const cudaError_t error = r.GetDeviceCount(&memory->device_count_);
  if (error != cudaSuccess) {
    memory->Report(error, "cudaGetDeviceCount");
    return absl::UnavailableError(failure_text);
  }
  return memory;
}

DeviceResult CudaDeviceMemory::Report(int code, const char* what) {
  const cudaError_t error = static_cast<cudaError_t>(code);
  if (error == cudaSuccess) return DeviceResult::kOk;
  // The runtime is going away with the process: nothing that could be done about memory matters any more.
  if (error == cudaErrorCudartUnloading) return DeviceResult::kOk;
  runtime_->GetLastError();
  if (error == cudaErrorNotReady) return DeviceResult::kNotReady;
  failure_text = absl::StrCat(what, ": ", runtime_->GetErrorString(error), " (", code, ")");
  if (error == cudaErrorMemoryAllocation) return DeviceResult::kOutOfMemory;
  if (error == cudaErrorNotSupported) return DeviceResult::kNotSupported;
  return DeviceResult::kError;
}

DeviceResult CudaDeviceMemory::ReportDriver(int error, const char* what) {
  if (error == CUDA_SUCCESS || error == CUDA_ERROR_DEINITIALIZED) return DeviceResult::kOk;
  failure_text = absl::StrCat(what, ": driver error ", error);
  if (error == CUDA_ERROR_OUT_OF_MEMORY) return DeviceResult::kOutOfMemory;
  if (error == CUDA_ERROR_NOT_SUPPORTED) return DeviceResult::kNotSupported;
  return DeviceResult::kError;
}

const char* CudaDeviceMemory::last_error() {
  return failure_text.c_str();
}

DeviceResult CudaDeviceMemory::MemoryInfo(int device, DeviceMemoryInfo* info) {
  const DeviceGuard guard(*runtime_, device);
  const RelaxedCapture relaxed(*runtime_);
  return Report(runtime_->MemGetInfo(&info->free_bytes, &info->total_bytes), "cudaMemGetInfo");
}

const CudaDeviceMemory::Looks& CudaDeviceMemory::looks() {
  std::call_once(looks_once_, [this] {
    void* library = dlopen(kDriverName, RTLD_NOLOAD | RTLD_LAZY);
    if (library == nullptr) library = dlopen(kDriverName, RTLD_LAZY);
    looks_ = std::make_unique<Looks>();
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(FindFunction(library, name));
    };
    find(looks_->DeviceGet, "cuDeviceGet");
    find(looks_->PrimaryCtxGetState, "cuDevicePrimaryCtxGetState");
    find(looks_->DeviceTotalMem, "cuDeviceTotalMem_v2");
  });
  return *looks_;
}

bool CudaDeviceMemory::HasContext(int device) {
  const Looks& look = looks();
  if (look.DeviceGet == nullptr || look.PrimaryCtxGetState == nullptr) return true;
  CUdevice handle = 0;
  unsigned flags = 0;
  int active = 0;
  if (look.DeviceGet(&handle, device) != CUDA_SUCCESS) return true;
  return look.PrimaryCtxGetState(handle, &flags, &active) != CUDA_SUCCESS || active != 0;
}

size_t CudaDeviceMemory::TotalBytes(int device) {
  const Looks& look = looks();
  CUdevice handle = 0;
  size_t bytes = 0;
  if (look.DeviceGet == nullptr || look.DeviceTotalMem == nullptr) return 0;
  if (look.DeviceGet(&handle, device) != CUDA_SUCCESS || look.DeviceTotalMem(&bytes, handle) != CUDA_SUCCESS) return 0;
  return bytes;
}

std::string CudaDeviceMemory::BusId(int device) {
  char text[32] = {};
  if (runtime_->DeviceGetPCIBusId == nullptr) return "";
  const DeviceResult result =
      Report(runtime_->DeviceGetPCIBusId(text, static_cast<int>(sizeof text), device), "cudaDeviceGetPCIBusId");
  return result == DeviceResult::kOk ? text : "";
}

DeviceResult CudaDeviceMemory::Allocate(int device, size_t bytes, void** address) {
  const DeviceGuard guard(*runtime_, device);
  const RelaxedCapture relaxed(*runtime_);
  *address = nullptr;
  const DeviceResult result = Report(runtime_->Malloc(address, bytes), "cudaMalloc");
  if (result != DeviceResult::kOk || *address != nullptr) return result;
  failure_text = "cudaMalloc: no memory while the process ends";
  return DeviceResult::kError;
}

DeviceResult CudaDeviceMemory::Free(int device, void* address) {
  const DeviceGuard guard(*runtime_, device);
  const RelaxedCapture relaxed(*runtime_);
  return Report(runtime_->Free(address), "cudaFree");
}

DeviceResult CudaDeviceMemory::CreateEvent(int device, EventHandle* event) {
  const DeviceGuard guard(*runtime_, device);
  cudaEvent_t created = nullptr;
  const DeviceResult result =
      Report(runtime_->EventCreateWithFlags(&created, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  *event = reinterpret_cast<EventHandle>(created);
  return result == DeviceResult::kOk && created == nullptr ? DeviceResult::kError : result;
}

DeviceResult CudaDeviceMemory::RecordEvent(int device, EventHandle event, StreamHandle stream) {
  const DeviceGuard guard(*runtime_, device);
  return Report(runtime_->EventRecord(reinterpret_cast<cudaEvent_t>(event), reinterpret_cast<cudaStream_t>(stream)),
                "cudaEventRecord");
}

DeviceResult CudaDeviceMemory::EventDone(int device, EventHandle event) {
  const DeviceGuard guard(*runtime_, device);
  const RelaxedCapture relaxed(*runtime_);
  return Report(runtime_->EventQuery(reinterpret_cast<cudaEvent_t>(event)), "cudaEventQuery");
}

DeviceResult CudaDeviceMemory::WaitForEvent(int device, EventHandle event) {
  const DeviceGuard guard(*runtime_, device);
  const RelaxedCapture relaxed(*runtime_);
  return Report(runtime_->EventSynchronize(reinterpret_cast<cudaEvent_t>(event)), "cudaEventSynchronize");
}

void CudaDeviceMemory::DestroyEvent(int device, EventHandle event) {
  const DeviceGuard guard(*runtime_, device);
  Report(runtime_->EventDestroy(reinterpret_cast<cudaEvent_t>(event)), "cudaEventDestroy");
}

DeviceResult CudaDeviceMemory::Synchronize(int device) {
  const DeviceGuard guard(*runtime_, device);
  return Report(runtime_->DeviceSynchronize(), "cudaDeviceSynchronize");
}

bool CudaDeviceMemory::StreamIsCapturing(int device, StreamHandle stream) {
  const DeviceGuard guard(*runtime_, device);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t error = runtime_->StreamIsCapturing(reinterpret_cast<cudaStream_t>(stream), &status);
  if (error == cudaErrorStreamCaptureImplicit) {
    // The default stream, while another stream of the process captures: it must be left alone as well.
    runtime_->GetLastError();
    return true;
  }
  return Report(error, "cudaStreamIsCapturing") == DeviceResult::kOk && status != cudaStreamCaptureStatusNone;
}

const CudaDeviceMemory::Driver* CudaDeviceMemory::driver() {
  std::call_once(driver_once_, [this] {
    void* library = dlopen(kDriverName, RTLD_NOLOAD | RTLD_LAZY);
    if (library == nullptr) library = dlopen(kDriverName, RTLD_LAZY);
    auto found = std::make_unique<Driver>();
    bool complete = true;
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(FindFunction(library, name));
      complete = complete && function != nullptr;
    };
    find(found->DeviceGet, "cuDeviceGet");
    find(found->DeviceGetAttribute, "cuDeviceGetAttribute");
    find(found->GetGranularity, "cuMemGetAllocationGranularity");
    find(found->AddressReserve, "cuMemAddressReserve");
    find(found->AddressFree, "cuMemAddressFree");
    find(found->Create, "cuMemCreate");
    find(found->Release, "cuMemRelease");
    find(found->Map, "cuMemMap");
    find(found->Unmap, "cuMemUnmap");
    find(found->SetAccess, "cuMemSetAccess");
    if (complete) driver_ = std::move(found);
  });
  if (driver_ == nullptr) failure_text = absl::StrCat(kDriverName, " has no virtual memory management");
  return driver_.get();
}

namespace {

CUmemAllocationProp PhysicalMemory(int device) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  return properties;
}

CUdeviceptr DevicePointer(void* address) {
  return reinterpret_cast<CUdeviceptr>(address);
}

}  // namespace

size_t CudaDeviceMemory::granularity(int device) {
  constexpr size_t kUsual = size_t{2} << 20;
  const Driver* d = driver();
  if (d == nullptr) return kUsual;
  const CUmemAllocationProp properties = PhysicalMemory(device);
  size_t bytes = 0;
  const CUresult error = d->GetGranularity(&bytes, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  return ReportDriver(error, "cuMemGetAllocationGranularity") == DeviceResult::kOk && bytes != 0 ? bytes : kUsual;
}

DeviceResult CudaDeviceMemory::ReserveAddress(int device, size_t bytes, void** address) {
  const Driver* d = driver();
  if (d == nullptr) return DeviceResult::kNotSupported;
  const DeviceGuard guard(*runtime_, device);
  // Address space belongs to no device, so that reserving it can succeed for one that could never map memory into it.
  CUdevice handle = 0;
  int supported = 0;
  DeviceResult result = ReportDriver(d->DeviceGet(&handle, device), "cuDeviceGet");
  if (result != DeviceResult::kOk) return result;
  result =
      ReportDriver(d->DeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, handle),
                   "cuDeviceGetAttribute");
  if (result != DeviceResult::kOk) return result;
  if (supported == 0) {
    failure_text = absl::StrCat("device ", device, " has no virtual memory management");
    return DeviceResult::kNotSupported;
  }
  CUdeviceptr start = 0;
  result = ReportDriver(d->AddressReserve(&start, bytes, 0, 0, 0), "cuMemAddressReserve");
  *address = reinterpret_cast<void*>(start);
  return result;
}

DeviceResult CudaDeviceMemory::ReleaseAddress(int device, void* address, size_t bytes) {
  const Driver* d = driver();
  if (d == nullptr) return DeviceResult::kNotSupported;
  const DeviceGuard guard(*runtime_, device);
  return ReportDriver(d->AddressFree(DevicePointer(address), bytes), "cuMemAddressFree");
}

DeviceResult CudaDeviceMemory::Map(int device, void* address, size_t bytes) {
  const Driver* d = driver();
  if (d == nullptr) return DeviceResult::kNotSupported;
  const DeviceGuard guard(*runtime_, device);
  const RelaxedCapture relaxed(*runtime_);
  const CUmemAllocationProp properties = PhysicalMemory(device);
  CUmemGenericAllocationHandle handle = 0;
  DeviceResult result = ReportDriver(d->Create(&handle, bytes, &properties, 0), "cuMemCreate");
  if (result != DeviceResult::kOk) return result;
  result = ReportDriver(d->Map(DevicePointer(address), bytes, 0, handle, 0), "cuMemMap");
  d->Release(handle);  // the mapping keeps the memory
  if (result != DeviceResult::kOk) return result;
  CUmemAccessDesc access = {};
  access.location = properties.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  result = ReportDriver(d->SetAccess(DevicePointer(address), bytes, &access, 1), "cuMemSetAccess");
  if (result != DeviceResult::kOk) d->Unmap(DevicePointer(address), bytes);
  return result;
}

DeviceResult CudaDeviceMemory::Unmap(int device, void* address, size_t bytes) {
  const Driver* d = driver();
  if (d == nullptr) return DeviceResult::kNotSupported;
  const DeviceGuard guard(*runtime_, device);
  // Unlike cudaFree, cuMemUnmap does not wait for work that still uses the memory.
  const DeviceResult waited = Report(runtime_->DeviceSynchronize(), "cudaDeviceSynchronize");
  if (waited != DeviceResult::kOk) return waited;
  return ReportDriver(d->Unmap(DevicePointer(address), bytes), "cuMemUnmap");
}

}  // namespace vramledger
