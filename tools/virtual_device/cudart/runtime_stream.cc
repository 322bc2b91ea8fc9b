// Streams, events, host functions, capture and graphs.
#include "tools/virtual_device/core/content.h"
#include "tools/virtual_device/core/streams.h"
#include "tools/virtual_device/cudart/runtime.h"

using vd::Result;

namespace {

vd::Event* Of(cudaEvent_t event) { return reinterpret_cast<vd::Event*>(event); }
vd::Graph* Of(cudaGraph_t graph) { return reinterpret_cast<vd::Graph*>(graph); }

// A graph that can be launched. Its nodes were counted when it was made.
struct Executable {
  uint64_t nodes = 0;
};
Executable* Of(cudaGraphExec_t graph) { return reinterpret_cast<Executable*>(graph); }

cudaError_t Instantiate(cudaGraphExec_t* executable, cudaGraph_t graph) {
  if (executable == nullptr || graph == nullptr) return Result(vd::kInvalidValue);
  auto* made = new Executable;
  made->nodes = Of(graph)->nodes.load();
  *executable = reinterpret_cast<cudaGraphExec_t>(made);
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int flags, int priority) {
  void* made = nullptr;
  const int code = vd::StreamCreate(flags, priority, &made);
  *stream = static_cast<cudaStream_t>(made);
  return Result(code);
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return Result(vd::StreamDestroy(stream)); }
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  *priority = vd::StreamOf(stream)->priority;
  return cudaSuccess;
}
cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned int* flags) {
  *flags = vd::StreamOf(stream)->flags;
  return cudaSuccess;
}
cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
  *id = vd::StreamOf(stream)->id;
  return cudaSuccess;
}
cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device) {
  *device = vd::StreamOf(stream)->device;
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) { return Result(vd::StreamDone(stream)); }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (const int code = vd::EnsureContext(); code != vd::kOk) [[unlikely]] return Result(code);
  return Result(vd::StreamSync(stream));
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int) {
  return Result(vd::StreamWait(stream, Of(event)));
}
cudaError_t cudaStreamAttachMemAsync(cudaStream_t, void*, size_t, unsigned int) { return cudaSuccess; }

// Host functions run at once: the work before them is done, and in delayed mode this is the wait that they mean.
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  if (vd::CaptureStatus(stream, nullptr, nullptr) != 0) {
    vd::Enqueue(stream);
    return cudaSuccess;
  }
  function(data);
  vd::Enqueue(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void* data, unsigned int) {
  callback(stream, cudaSuccess, data);
  vd::Enqueue(stream);
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  vd::Event* made = nullptr;
  const int code = vd::EventCreate(flags, &made);
  *event = reinterpret_cast<cudaEvent_t>(made);
  return Result(code);
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return Result(vd::EventDestroy(Of(event))); }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { return Result(vd::EventRecord(Of(event), stream)); }
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int) {
  return Result(vd::EventRecord(Of(event), stream));
}
// "Not ready" is an answer, not an error: the runtime does return it from cudaGetLastError, and PyTorch clears it.
cudaError_t cudaEventQuery(cudaEvent_t event) { return Result(vd::EventDone(Of(event))); }
cudaError_t cudaEventSynchronize(cudaEvent_t event) { return Result(vd::EventSync(Of(event))); }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return Result(vd::EventElapsed(Of(start), Of(end), milliseconds));
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode* mode) {
  const int before = vd::g_thread.capture_mode;
  vd::g_thread.capture_mode = *mode;
  *mode = static_cast<enum cudaStreamCaptureMode>(before);
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
  auto* graph = new vd::Graph;
  const int code = vd::CaptureBegin(stream, mode, graph);
  if (code != vd::kOk) delete graph;
  return Result(code);
}
cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph, const cudaGraphNode_t*,
                                          const cudaGraphEdgeData*, size_t, enum cudaStreamCaptureMode mode) {
  return Result(vd::CaptureBegin(stream, mode, Of(graph)));
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  vd::Graph* made = nullptr;
  const int code = vd::CaptureEnd(stream, &made);
  *graph = reinterpret_cast<cudaGraph_t>(made);
  return Result(code);
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus* status) {
  *status = vd::LaunchFlag(vd::kLaunchCapture) && vd::CaptureStatus(stream, nullptr, nullptr) != 0
                ? cudaStreamCaptureStatusActive
                : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus* status, unsigned long long* id,
                                     cudaGraph_t* graph, const cudaGraphNode_t** dependencies,
                                     const cudaGraphEdgeData** edges, size_t* count) {
  uint64_t number = 0;
  vd::Graph* into = nullptr;
  const bool active = vd::CaptureStatus(stream, &number, &into) != 0;
  *status = active ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  if (!active) return cudaSuccess;
  if (id != nullptr) *id = number;
  if (graph != nullptr) *graph = reinterpret_cast<cudaGraph_t>(into);
  if (dependencies != nullptr) *dependencies = nullptr;
  if (edges != nullptr) *edges = nullptr;
  if (count != nullptr) *count = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t, cudaGraphNode_t*, const cudaGraphEdgeData*, size_t,
                                                unsigned int) {
  return cudaSuccess;
}

cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned int) {
  *graph = reinterpret_cast<cudaGraph_t>(new vd::Graph);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete Of(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  return Instantiate(executable, graph);
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  return Instantiate(executable, graph);
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete Of(executable);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  if (executable == nullptr) return Result(vd::kInvalidHandle);
  return Result(vd::OnLaunch(stream));
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
// The nodes themselves are not kept: a graph here has a number of nodes, and numbers for handles.
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  if (graph == nullptr || count == nullptr) return Result(vd::kInvalidValue);
  const size_t there = Of(graph)->nodes.load();
  if (nodes == nullptr) {
    *count = there;
    return cudaSuccess;
  }
  for (size_t i = 0; i < *count; ++i) nodes[i] = i < there ? reinterpret_cast<cudaGraphNode_t>(i + 1) : nullptr;
  if (*count > there) *count = there;
  return cudaSuccess;
}
cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t, cudaGraphNode_t*, cudaGraphEdgeData*, size_t* count) {
  *count = 0;
  return cudaSuccess;
}
cudaError_t cudaGraphDebugDotPrint(cudaGraph_t, const char*, unsigned int) { return cudaSuccess; }
cudaError_t cudaUserObjectCreate(cudaUserObject_t* object, void*, cudaHostFn_t, unsigned int, unsigned int) {
  *object = reinterpret_cast<cudaUserObject_t>(new char);
  return cudaSuccess;
}
cudaError_t cudaGraphRetainUserObject(cudaGraph_t, cudaUserObject_t, unsigned int, unsigned int) { return cudaSuccess; }

}  // extern "C"
