// The runtime of one emulated device: memory, streams, events, and recording.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cuda_emulation/include/emulated/block.h"
#include "tests/cuda_emulation/include/emulated/fault.h"
#include "tests/cuda_emulation/shared_memory.h"

namespace {

using ef::emulated::Launch;
using Work = std::function<void()>;

constexpr size_t kDeviceMemory = size_t(4) << 30, kGuard = 256;
constexpr unsigned char kGuardByte = 0xa7;
constexpr int kMultiprocessors = 4;

thread_local cudaError_t t_last = cudaSuccess;
cudaError_t report(cudaError_t error) {
  if (error != cudaSuccess) t_last = error;
  return error;
}

std::recursive_mutex g_mutex;  // of everything below
struct Allocation {
  size_t bytes;
};
std::map<char*, Allocation> g_memory;  // by address
size_t g_used = 0;

struct PlannedFault {
  ef::emulated::Call call = ef::emulated::Call::kLaunch;
  int nth = 0;  // 0: it has come, or none was asked for
  cudaError_t error = cudaSuccess;
  bool stays = false;
} g_fault;

// cudaSuccess, or what this call fails with.
cudaError_t fault_of(ef::emulated::Call call) {
  std::lock_guard lock(g_mutex);
  if (g_fault.nth == 0) return g_fault.stays ? report(g_fault.error) : cudaSuccess;
  if (g_fault.call != call || --g_fault.nth > 0) return cudaSuccess;
  return report(g_fault.error);
}

// What is recorded from a stream and those that joined it.
struct Capture {
  cudaStreamCaptureMode mode;
  std::thread::id thread;
  cudaStream_t origin;
  CUgraph_st* graph;
  bool invalid = false;
  std::vector<cudaStream_t> streams;
};
std::vector<Capture*> g_captures;

}  // namespace

struct CUgraph_st {
  std::vector<Work> work;
};
struct CUgraphExec_st {
  std::vector<Work> work;
};
struct CUstream_st {
  Capture* capture = nullptr;
  uint64_t queued = 0;  // while it is recorded
  uint64_t joined = 0;  // how much of that another stream waits for
};
struct CUevent_st {
  Capture* capture = nullptr;  // where it was recorded while its stream was
  cudaStream_t stream = nullptr;
  uint64_t queued = 0;
  bool recorded = false;
};

namespace {

// Calls that wait for the device, or might, spoil every recording that forbids them.
bool forbidden() {
  bool any = false;
  for (Capture* capture : g_captures) {
    const bool mine = capture->thread == std::this_thread::get_id();
    if (capture->mode == cudaStreamCaptureModeRelaxed || (capture->mode == cudaStreamCaptureModeThreadLocal && !mine))
      continue;
    capture->invalid = any = true;
  }
  return any;
}

cudaError_t unsupported(Capture* capture) {
  if (capture) capture->invalid = true;
  return report(cudaErrorStreamCaptureUnsupported);
}

cudaError_t queue(cudaStream_t stream, Work work) {
  {
    std::lock_guard lock(g_mutex);
    if (stream && stream->capture) {
      if (stream->capture->invalid) return report(cudaErrorStreamCaptureInvalidated);
      stream->capture->graph->work.push_back(std::move(work));
      ++stream->queued;
      return cudaSuccess;
    }
    if (!stream && forbidden()) return report(cudaErrorStreamCaptureImplicit);
  }
  work();
  return cudaSuccess;
}

// Whether all of it is in one allocation of the device.
bool on_device(const void* pointer, size_t bytes) {
  std::lock_guard lock(g_mutex);
  char* p = static_cast<char*>(const_cast<void*>(pointer));
  auto it = g_memory.upper_bound(p);
  if (it == g_memory.begin()) return false;
  --it;
  return p + bytes <= it->first + it->second.bytes;
}

bool sides_are_right(const void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (kind == cudaMemcpyDefault || bytes == 0) return true;
  return on_device(to, to_device ? bytes : 1) == to_device && on_device(from, from_device ? bytes : 1) == from_device;
}

template <class T>
cudaError_t destroy(T* object) {
  if (!object) return report(cudaErrorInvalidResourceHandle);
  delete object;
  return cudaSuccess;
}

}  // namespace

// Errors.
cudaError_t cudaGetLastError() { return std::exchange(t_last, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return t_last; }
const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
#define EF_NAME(name) \
  case name:          \
    return #name;
    EF_NAME(cudaSuccess)
    EF_NAME(cudaErrorInvalidValue)
    EF_NAME(cudaErrorMemoryAllocation)
    EF_NAME(cudaErrorInvalidConfiguration)
    EF_NAME(cudaErrorCooperativeLaunchTooLarge)
    EF_NAME(cudaErrorInvalidDevice)
    EF_NAME(cudaErrorInvalidResourceHandle)
    EF_NAME(cudaErrorIllegalState)
    EF_NAME(cudaErrorNotReady)
    EF_NAME(cudaErrorDeviceUninitialized)
    EF_NAME(cudaErrorECCUncorrectable)
    EF_NAME(cudaErrorNvlinkUncorrectable)
    EF_NAME(cudaErrorIllegalAddress)
    EF_NAME(cudaErrorLaunchOutOfResources)
    EF_NAME(cudaErrorLaunchTimeout)
    EF_NAME(cudaErrorContextIsDestroyed)
    EF_NAME(cudaErrorAssert)
    EF_NAME(cudaErrorHardwareStackError)
    EF_NAME(cudaErrorIllegalInstruction)
    EF_NAME(cudaErrorMisalignedAddress)
    EF_NAME(cudaErrorInvalidAddressSpace)
    EF_NAME(cudaErrorInvalidPc)
    EF_NAME(cudaErrorLaunchFailure)
    EF_NAME(cudaErrorStreamCaptureUnsupported)
    EF_NAME(cudaErrorStreamCaptureInvalidated)
    EF_NAME(cudaErrorStreamCaptureUnmatched)
    EF_NAME(cudaErrorStreamCaptureUnjoined)
    EF_NAME(cudaErrorStreamCaptureImplicit)
    EF_NAME(cudaErrorCapturedEvent)
    EF_NAME(cudaErrorStreamCaptureWrongThread)
    EF_NAME(cudaErrorGraphExecUpdateFailure)
#undef EF_NAME
  }
  return "unknown error";
}
const char* cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }

// The device.
cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : report(cudaErrorInvalidDevice); }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  if (device != 0) return report(cudaErrorInvalidDevice);
  *p = {};
  std::strcpy(p->name, "emulated");
  p->totalGlobalMem = kDeviceMemory;
  p->sharedMemPerBlock = 48 << 10, p->sharedMemPerBlockOptin = ef::emulated::kMostShared;
  p->sharedMemPerMultiprocessor = 228 << 10;
  p->major = 9, p->minor = 0;
  p->multiProcessorCount = kMultiprocessors, p->warpSize = 32;
  p->maxThreadsPerBlock = 1024, p->maxThreadsPerMultiProcessor = 2048;
  p->l2CacheSize = 50 << 20;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp p;
  if (const cudaError_t error = cudaGetDeviceProperties(&p, device)) return error;
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
      return *value = p.maxThreadsPerBlock, cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      return *value = int(p.sharedMemPerBlock), cudaSuccess;
    case cudaDevAttrWarpSize:
      return *value = p.warpSize, cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      return *value = p.multiProcessorCount, cudaSuccess;
    case cudaDevAttrL2CacheSize:
      return *value = p.l2CacheSize, cudaSuccess;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      return *value = p.maxThreadsPerMultiProcessor, cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      return *value = p.major, cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      return *value = p.minor, cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      return *value = int(p.sharedMemPerMultiprocessor), cudaSuccess;
    case cudaDevAttrCooperativeLaunch:
      return *value = 1, cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      return *value = int(p.sharedMemPerBlockOptin), cudaSuccess;
  }
  return report(cudaErrorInvalidValue);
}
cudaError_t cudaDriverGetVersion(int* version) { return *version = 12000, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* version) { return *version = 12000, cudaSuccess; }
cudaError_t cudaDeviceSynchronize() {
  std::lock_guard lock(g_mutex);
  return forbidden() ? report(cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}

// Memory.
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  std::lock_guard lock(g_mutex);
  *total = kDeviceMemory, *free = kDeviceMemory - g_used;
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  std::lock_guard lock(g_mutex);
  if (forbidden()) return report(cudaErrorStreamCaptureUnsupported);
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  if (bytes > kDeviceMemory - g_used) return report(cudaErrorMemoryAllocation);
  void* memory = nullptr;
  if (posix_memalign(&memory, kGuard, bytes + 2 * kGuard) != 0) return report(cudaErrorMemoryAllocation);
  char* data = static_cast<char*>(memory) + kGuard;
  std::memset(data - kGuard, kGuardByte, kGuard);
  std::memset(data, 0xff, bytes);
  std::memset(data + bytes, kGuardByte, kGuard);
  g_memory[data] = {bytes};
  g_used += bytes;
  *pointer = data;
  return cudaSuccess;
}
cudaError_t cudaFree(void* pointer) {
  std::lock_guard lock(g_mutex);
  if (forbidden()) return report(cudaErrorStreamCaptureUnsupported);
  if (!pointer) return cudaSuccess;
  char* data = static_cast<char*>(pointer);
  const auto it = g_memory.find(data);
  if (it == g_memory.end()) return report(cudaErrorInvalidValue);
  const size_t bytes = it->second.bytes;
  const auto intact = [](char* zone) {
    return std::all_of(zone, zone + kGuard, [](char byte) { return static_cast<unsigned char>(byte) == kGuardByte; });
  };
  if (!intact(data - kGuard) || !intact(data + bytes)) {
    std::fprintf(stderr, "emulated device: something wrote %s an allocation of %zu bytes\n",
                 intact(data - kGuard) ? "behind" : "before", bytes);
    std::abort();
  }
  g_memory.erase(it);
  g_used -= bytes;
  std::free(data - kGuard);
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  std::lock_guard lock(g_mutex);
  if (forbidden()) return report(cudaErrorStreamCaptureUnsupported);
  if (posix_memalign(pointer, 4096, std::max<size_t>(bytes, 1)) != 0) return report(cudaErrorMemoryAllocation);
  std::memset(*pointer, 0xff, bytes);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) { return cudaMallocHost(pointer, bytes); }
cudaError_t cudaFreeHost(void* pointer) {
  std::lock_guard lock(g_mutex);
  if (forbidden()) return report(cudaErrorStreamCaptureUnsupported);
  std::free(pointer);
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void*, size_t, unsigned) { return cudaSuccess; }
cudaError_t cudaHostUnregister(void*) { return cudaSuccess; }

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (!sides_are_right(to, from, bytes, kind)) return report(cudaErrorInvalidValue);
  if (const cudaError_t error = fault_of(ef::emulated::Call::kCopy)) return error;
  return queue(stream, [=] { std::memmove(to, from, bytes); });
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return cudaMemcpyAsync(to, from, bytes, kind, nullptr);
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  if (width == 0 || height == 0) return cudaSuccess;
  const auto last = [&](size_t pitch) { return (height - 1) * pitch + width; };
  if (width > to_pitch || width > from_pitch || !sides_are_right(to, from, 1, kind))
    return report(cudaErrorInvalidValue);
  if ((on_device(to, 1) && !on_device(to, last(to_pitch))) ||
      (on_device(from, 1) && !on_device(from, last(from_pitch))))
    return report(cudaErrorInvalidValue);
  return queue(stream, [=] {
    for (size_t i = 0; i < height; ++i)
      std::memmove(static_cast<char*>(to) + i * to_pitch, static_cast<const char*>(from) + i * from_pitch, width);
  });
}
cudaError_t cudaMemsetAsync(void* pointer, int value, size_t bytes, cudaStream_t stream) {
  if (bytes > 0 && !on_device(pointer, bytes)) return report(cudaErrorInvalidValue);
  return queue(stream, [=] { std::memset(pointer, value, bytes); });
}
cudaError_t cudaMemset(void* pointer, int value, size_t bytes) {
  return cudaMemsetAsync(pointer, value, bytes, nullptr);
}

// Streams and events.
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return *stream = new CUstream_st, cudaSuccess; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) { return cudaStreamCreate(stream); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) { return cudaStreamCreate(stream); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  std::lock_guard lock(g_mutex);
  if (stream && stream->capture) {
    stream->capture->invalid = true;
    std::erase(stream->capture->streams, stream);
  }
  return destroy(stream);
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  std::lock_guard lock(g_mutex);
  if (const cudaError_t error = fault_of(ef::emulated::Call::kSynchronize)) return error;
  if (stream && stream->capture) return unsupported(stream->capture);
  return !stream && forbidden() ? report(cudaErrorStreamCaptureImplicit) : cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) { return cudaStreamSynchronize(stream); }
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  std::lock_guard lock(g_mutex);
  if (!event) return report(cudaErrorInvalidResourceHandle);
  if (!event->capture) return cudaSuccess;
  if (!stream || (stream->capture && stream->capture != event->capture)) return unsupported(event->capture);
  if (!stream->capture) {
    stream->capture = event->capture;
    stream->queued = 1, stream->joined = 0;  // it has to be waited for, whatever it does
    event->capture->streams.push_back(stream);
  }
  event->stream->joined = std::max(event->stream->joined, event->queued);
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return queue(stream, [=] { function(data); });
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return *event = new CUevent_st, cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return cudaEventCreate(event); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return destroy(event); }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  std::lock_guard lock(g_mutex);
  if (!event) return report(cudaErrorInvalidResourceHandle);
  event->capture = stream ? stream->capture : nullptr;
  event->stream = stream;
  event->queued = event->capture ? stream->queued : 0;
  event->recorded = true;
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  std::lock_guard lock(g_mutex);
  if (!event) return report(cudaErrorInvalidResourceHandle);
  if (!event->capture) return cudaSuccess;
  event->capture->invalid = true;
  return report(cudaErrorCapturedEvent);
}
cudaError_t cudaEventQuery(cudaEvent_t event) { return cudaEventSynchronize(event); }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  std::lock_guard lock(g_mutex);
  if (!from || !to || !from->recorded || !to->recorded || from->capture || to->capture)
    return report(cudaErrorInvalidResourceHandle);
  *milliseconds = 1.f;
  return cudaSuccess;
}

// Recording.
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  std::lock_guard lock(g_mutex);
  if (!stream) return report(cudaErrorStreamCaptureUnsupported);
  if (stream->capture) return report(cudaErrorIllegalState);
  stream->capture = new Capture{mode, std::this_thread::get_id(), stream, new CUgraph_st, false, {stream}};
  stream->queued = stream->joined = 0;
  g_captures.push_back(stream->capture);
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  std::lock_guard lock(g_mutex);
  *graph = nullptr;
  if (!stream || !stream->capture) return report(cudaErrorIllegalState);
  Capture* capture = stream->capture;
  if (capture->origin != stream) return report(cudaErrorStreamCaptureUnmatched);
  cudaError_t error = capture->invalid ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
  if (capture->mode != cudaStreamCaptureModeRelaxed && capture->thread != std::this_thread::get_id())
    error = cudaErrorStreamCaptureWrongThread;
  for (cudaStream_t each : capture->streams) {
    if (error == cudaSuccess && each != stream && each->joined < each->queued) error = cudaErrorStreamCaptureUnjoined;
    each->capture = nullptr;
  }
  std::erase(g_captures, capture);
  if (error == cudaSuccess)
    *graph = capture->graph;
  else
    delete capture->graph;
  delete capture;
  return report(error);
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  std::lock_guard lock(g_mutex);
  const Capture* capture = stream ? stream->capture : nullptr;
  *status = !capture           ? cudaStreamCaptureStatusNone
            : capture->invalid ? cudaStreamCaptureStatusInvalidated
                               : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  if (!graph || nodes) return report(cudaErrorInvalidValue);  // their number alone
  *count = graph->work.size();
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  if (!graph) return report(cudaErrorInvalidValue);
  *exec = new CUgraphExec_st{graph->work};
  return cudaSuccess;
}
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph, cudaGraphExecUpdateResultInfo* info) {
  if (!exec || !graph) return report(cudaErrorInvalidValue);
  *info = {};
  if (exec->work.size() != graph->work.size()) {
    info->result = cudaGraphExecUpdateError;
    return report(cudaErrorGraphExecUpdateFailure);
  }
  exec->work = graph->work;
  return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t) {
  return exec ? cudaSuccess : report(cudaErrorInvalidValue);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  if (!exec) return report(cudaErrorInvalidValue);
  if (const cudaError_t error = fault_of(ef::emulated::Call::kGraphLaunch)) return error;
  return queue(stream, [work = exec->work] {
    for (const Work& each : work) each();
  });
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return destroy(graph); }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) { return destroy(exec); }

// Kernels.
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute attribute, int value) {
  const bool too_much =
      attribute == cudaFuncAttributeMaxDynamicSharedMemorySize && size_t(value) > ef::emulated::kMostShared;
  return too_much ? report(cudaErrorInvalidValue) : cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int threads, size_t shared) {
  constexpr int kThreads = 2048, kBlocks = 32;
  constexpr size_t kShared = 228 << 10, kReserved = 1 << 10;  // of a multiprocessor; of a block
  if (threads <= 0 || threads > 1024) return report(cudaErrorInvalidValue);
  *blocks = std::min({kBlocks, kThreads / threads, int(kShared / (shared + kReserved))});
  return cudaSuccess;
}

namespace ef::emulated {

void fail_call(Call call, int nth, cudaError_t error, Fault fault) {
  std::lock_guard lock(g_mutex);
  g_fault = {call, nth, error, fault == Fault::kStays};
}
void mend() {
  std::lock_guard lock(g_mutex);
  g_fault = {};
}
bool fault_came() {
  std::lock_guard lock(g_mutex);
  return g_fault.nth == 0;
}

cudaError_t submit(Launch launch, cudaStream_t stream) {
  const dim3 &grid = launch.grid, &block = launch.block;
  const bool none = grid.x == 0 || grid.y == 0 || grid.z == 0 || block.x == 0 || block.y == 0 || block.z == 0;
  if (none || grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535 || block.z > 64 ||
      uint64_t(block.x) * block.y * block.z > 1024)
    return report(cudaErrorInvalidConfiguration);
  if (launch.shared > kMostShared) return report(cudaErrorInvalidValue);
  if (launch.together && uint64_t(grid.x) * grid.y * grid.z > kMultiprocessors)
    return report(cudaErrorCooperativeLaunchTooLarge);
  if (const cudaError_t error = fault_of(Call::kLaunch)) return error;
  return queue(stream, [launch = std::move(launch)] { run(launch); });
}

}  // namespace ef::emulated
