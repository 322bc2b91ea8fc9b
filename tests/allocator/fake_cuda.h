// A CUDA runtime and driver of a few pages, for the test of CudaDeviceMemory: keeps the rules whose breach the test
// looks for.
#ifndef VRAMLEDGER_TESTS_ALLOCATOR_FAKE_CUDA_H_
#define VRAMLEDGER_TESTS_ALLOCATOR_FAKE_CUDA_H_

#include <cstddef>
#include <cstdint>

extern "C" {

// Back to two devices of 64 MiB, nothing allocated, no capture, device 0 current on the calling thread.
void fake_cuda_reset();
int fake_cuda_current_device();
// The calling thread's error that the next cudaGetLastError would give.
int fake_cuda_pending_error();
// The device on which the last event was recorded or the last memory was freed.
int fake_cuda_last_device();
size_t fake_cuda_used(int device);
size_t fake_cuda_handles();
// While on, calls that a capture in global mode forbids fail unless the thread is in relaxed mode.
void fake_cuda_set_capture(bool on);
// The runtime refuses every call, as it does while the process ends.
void fake_cuda_set_unloading(bool on);
void fake_cuda_set_events_done(bool on);
// cuMemSetAccess fails.
void fake_cuda_set_access_fails(bool on);
// The devices have no virtual memory management; address space can be reserved all the same.
void fake_cuda_set_vmm(bool has);
// Waits for the device since the reset.
int fake_cuda_synchronizations();
}

#endif  // VRAMLEDGER_TESTS_ALLOCATOR_FAKE_CUDA_H_
