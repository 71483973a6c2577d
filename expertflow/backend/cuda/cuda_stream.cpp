#include "expertflow/backend/cuda/cuda_stream.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "expertflow/backend/cuda/cuda_profile.h"
#include "expertflow/base/device_lost.h"
#include "expertflow/base/errors.h"

namespace ef::cuda {
namespace {

// Staging grows to where waiting for it to empty is rare; streams that stage little stay small.
constexpr uint64_t kLeastStaging = 64 << 10;
constexpr uint64_t kAlign = 256;
// A graph of a large model takes a few MiB; contexts grow through a handful of keys.
constexpr size_t kMostGraphs = 16;

// Of these the runtime says that every later call fails alike, until the process ends.
bool loses_context(cudaError_t error) {
  switch (error) {
    case cudaErrorDeviceUninitialized:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorContextIsDestroyed:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
      return true;
    default:
      return false;
  }
}

}  // namespace

void check(cudaError_t error, std::string_view op) {
  if (error == cudaSuccess) return;
  (void)cudaGetLastError();  // the next op is not to be blamed for this one, unless the context is lost
  const std::string what = fmt::format("cuda: {}: {} ({})", op, cudaGetErrorString(error), cudaGetErrorName(error));
  if (loses_context(error)) throw DeviceLostError(what);
  throw DeviceError(what);
}

CudaStream::CudaStream(Backend& backend, int device) : backend_(backend), device_(device) {
  counters_ = backend_.allocate(kCounters * sizeof(unsigned), {Region::kDynamic, "streams"});
  check(cudaSetDevice(device_), "set device");
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "make a stream");
  check(cudaMemsetAsync(counters_.data(), 0, counters_.size(), stream_), "clear counters");
}

CudaStream::~CudaStream() {
  // Nowhere to report to from here; whoever needed the results has synchronised.
  (void)cudaSetDevice(device_);
  profile_.reset();
  (void)cudaStreamSynchronize(stream_);
  drop_graphs();
  (void)cudaStreamDestroy(stream_);
}

void CudaStream::finish() {
  if (left_) check(rank_sums(take(), stream_), "sums over ranks");
}

void CudaStream::synchronize() {
  finish();
  if (profiling_) profile_->let_go();
  check(cudaStreamSynchronize(stream_), "wait for a stream");
  if (profiling_) profile_->restart();
  used_ = 0;
}

bool CudaStream::begin_profile() {
  EF_DCHECK(!profiling_ && recording_ == Recording::kNone);
  synchronize();
  if (!profile_) profile_ = std::make_unique<CudaProfile>(stream_);
  profile_->begin();
  profiling_ = true;
  return true;
}

StreamProfile CudaStream::end_profile() {
  finish();
  profiling_ = false;
  return profile_->end();
}

bool CudaStream::replay(uint64_t key) {
  if (profiling_) return false;
  finish();
  for (auto it = graphs_.begin(); it != graphs_.end(); ++it) {
    if (it->key != key) continue;
    graphs_.splice(graphs_.begin(), graphs_, it);
    check(cudaGraphLaunch(it->exec, stream_), "launch a graph");
    return true;
  }
  return false;
}

void CudaStream::begin_recording(uint64_t key) {
  EF_DCHECK(recording_ == Recording::kNone);
  finish();
  recording_key_ = key;
  recording_ = passed_.contains(key) && !profiling_ ? Recording::kCapture : Recording::kFirstPass;
  if (recording_ == Recording::kCapture)
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "begin a graph");
}

cudaGraphExec_t CudaStream::end_capture() {
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream_, &graph), "end a graph");
  cudaGraphExec_t exec = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&exec, graph, 0);
  (void)cudaGraphDestroy(graph);
  check(error, "make a graph ready");
  return exec;
}

void CudaStream::end_recording() {
  finish();
  if (std::exchange(recording_, Recording::kNone) == Recording::kFirstPass) {
    passed_.insert(recording_key_);
    return;
  }
  const cudaGraphExec_t exec = end_capture();
  graphs_.push_front({recording_key_, exec});
  if (graphs_.size() > kMostGraphs) {
    synchronize();
    check(cudaGraphExecDestroy(graphs_.back().exec), "free a graph");
    graphs_.pop_back();
  }
  check(cudaGraphLaunch(exec, stream_), "launch a graph");
}

void CudaStream::abandon_recording() noexcept {
  left_.reset();
  if (std::exchange(recording_, Recording::kNone) != Recording::kCapture) return;
  cudaGraph_t graph = nullptr;
  if (cudaStreamEndCapture(stream_, &graph) == cudaSuccess) (void)cudaGraphDestroy(graph);
  (void)cudaGetLastError();
}

void CudaStream::forget_recordings() {
  synchronize();
  drop_graphs();
}

void CudaStream::drop_graphs() noexcept {
  for (const Graph& graph : graphs_) (void)cudaGraphExecDestroy(graph.exec);
  graphs_.clear();
  passed_.clear();
}

unsigned* CudaStream::counters(uint64_t n) {
  EF_CHECK(n <= kCounters, DeviceError, "cuda: an op needs {} counters, a stream has {}", n, kCounters);
  return counters_.as<unsigned>();
}

void CudaStream::reserve(uint64_t scratch_bytes) {
  grow_staging(kMostStaging);
  scratch((scratch_bytes + sizeof(float) - 1) / sizeof(float));
}

void CudaStream::grow_staging(uint64_t bytes) {
  if (bytes <= staged_.size()) return;
  synchronize();
  pinned_.reset();
  staged_ = Buffer();
  pinned_ = backend_.allocate_host(bytes);
  staged_ = backend_.allocate(bytes, {Region::kDynamic, "streams"});
}

// In a graph, as steps run: launched one by one, short kernels take as long as the host needs for them.
double CudaStream::seconds_of(const std::function<void()>& work) {
  constexpr int kWarmUps = 2, kRepeats = 4, kRuns = 5;
  const auto make = [](unsigned flags) {
    cudaEvent_t event = nullptr;
    check(cudaEventCreateWithFlags(&event, flags), "make an event");
    return std::unique_ptr<CUevent_st, void (*)(cudaEvent_t)>(event, [](cudaEvent_t e) { (void)cudaEventDestroy(e); });
  };
  const auto begin = make(cudaEventDefault), end = make(cudaEventDefault);
  for (int i = 0; i < kWarmUps; ++i) work();
  finish();
  check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "begin a graph");
  recording_ = Recording::kCapture;
  try {
    for (int i = 0; i < kRepeats; ++i) work();
    finish();
  } catch (...) {
    abandon_recording();
    throw;
  }
  recording_ = Recording::kNone;
  const cudaGraphExec_t exec = end_capture();
  const std::unique_ptr<CUgraphExec_st, void (*)(cudaGraphExec_t)> graph(
      exec, [](cudaGraphExec_t e) { (void)cudaGraphExecDestroy(e); });
  check(cudaGraphLaunch(exec, stream_), "launch a graph");
  std::vector<float> milliseconds(kRuns);
  for (float& ms : milliseconds) {
    check(cudaEventRecord(begin.get(), stream_), "record an event");
    check(cudaGraphLaunch(exec, stream_), "launch a graph");
    check(cudaEventRecord(end.get(), stream_), "record an event");
    check(cudaEventSynchronize(end.get()), "wait for an event");
    check(cudaEventElapsedTime(&ms, begin.get(), end.get()), "read an event");
  }
  std::nth_element(milliseconds.begin(), milliseconds.begin() + kRuns / 2, milliseconds.end());
  return double(milliseconds[kRuns / 2]) * 1e-3 / kRepeats;
}

uint64_t CudaStream::room(uint64_t bytes) {
  const uint64_t need = (bytes + kAlign - 1) / kAlign * kAlign;
  const uint64_t capacity = staged_.size();
  if (used_ + need > capacity) {
    synchronize();
    if (need > capacity || capacity < kMostStaging)
      grow_staging(std::max({kLeastStaging, std::min(4 * capacity, kMostStaging), need}));
  }
  const uint64_t at = used_;
  used_ += need;
  return at;
}

void CudaStream::copy(void* to, const void* from, uint64_t bytes, cudaMemcpyKind kind, const char* what) {
  finish();
  if (profiling_) check(profile_->before(stream_), what);
  check(cudaMemcpyAsync(to, from, bytes, kind, stream_), what);
  if (profiling_) check(profile_->after_copy(what), what);
}

const std::byte* CudaStream::stage(const void* host, uint64_t bytes) {
  const uint64_t at = room(bytes);
  std::memcpy(pinned_.get() + at, host, bytes);
  copy(staged_.data() + at, pinned_.get() + at, bytes, cudaMemcpyHostToDevice, "copy arguments");
  return staged_.data() + at;
}

void CudaStream::copy_to_device(void* device, const void* host, uint64_t bytes) {
  constexpr uint64_t kSmall = 256 << 10;
  if (bytes == 0) return;
  if (bytes <= kSmall) {
    const uint64_t at = room(bytes);
    std::memcpy(pinned_.get() + at, host, bytes);
    host = pinned_.get() + at;
  } else if (profiling_) {
    profile_->let_go();  // this waits for the device if the host's memory is pageable
  }
  copy(device, host, bytes, cudaMemcpyHostToDevice, "copy to the device");
}

void CudaStream::copy_to_host(void* host, const void* device, uint64_t bytes) {
  if (bytes == 0) return;
  if (profiling_) profile_->let_go();  // likewise
  copy(host, device, bytes, cudaMemcpyDeviceToHost, "copy to the host");
}

float* CudaStream::scratch(uint64_t floats) {
  const uint64_t bytes = floats * sizeof(float);
  if (bytes > scratch_.size()) {
    EF_CHECK(recording_ != Recording::kCapture, DeviceError,
             "cuda: an op asks for {} bytes of scratch while it is recorded, its first pass took {}", bytes,
             scratch_.size());
    forget_recordings();  // they name the memory that goes now
    scratch_ = Buffer();
    scratch_ = backend_.allocate(bytes, {Region::kDynamic, "scratch"});
  }
  return scratch_.as<float>();
}

}  // namespace ef::cuda
