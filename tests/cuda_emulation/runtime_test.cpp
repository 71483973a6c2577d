// The emulated runtime: what queues, records and refuses; and the numbers of 16 bits.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "expertflow/backend/cuda/device/launch.cuh"
#include "expertflow/quant/scalars.h"

namespace ef::cuda {
namespace {

__global__ void add_kernel(int* p, int v) { *p += v; }

class EmulatedRecording : public ::testing::Test {
 protected:
  EmulatedRecording() {
    cudaStreamCreate(&stream_), cudaStreamCreate(&other_);
    cudaEventCreate(&event_), cudaEventCreate(&back_);
    cudaMalloc(&number_, sizeof(int));
    cudaMemset(number_, 0, sizeof(int));
  }
  ~EmulatedRecording() override {
    cudaFree(number_);
    cudaEventDestroy(event_), cudaEventDestroy(back_);
    cudaStreamDestroy(stream_), cudaStreamDestroy(other_);
  }

  int number() const {
    int v = 0;
    EXPECT_EQ(cudaMemcpy(&v, number_, sizeof v, cudaMemcpyDeviceToHost), cudaSuccess);
    return v;
  }
  cudaError_t add(int v, cudaStream_t stream) { return launch(add_kernel, {1, 1}, stream, number_, v); }
  void begin() { ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess); }
  cudaError_t end() { return cudaStreamEndCapture(stream_, &graph_); }

  cudaStream_t stream_, other_;
  cudaEvent_t event_, back_;
  int* number_;
  cudaGraph_t graph_ = nullptr;
};

TEST_F(EmulatedRecording, RunsWhenItIsLaunched) {
  cudaGraphExec_t exec;
  begin();
  int v = 3;
  EXPECT_EQ(add(v, stream_), cudaSuccess);
  v = 4;  // arguments were copied
  EXPECT_EQ(cudaMemsetAsync(number_, 0, sizeof(int), stream_), cudaSuccess);
  EXPECT_EQ(add(v, stream_), cudaSuccess);
  ASSERT_EQ(end(), cudaSuccess);
  size_t nodes = 0;
  EXPECT_EQ(cudaGraphGetNodes(graph_, nullptr, &nodes), cudaSuccess);
  EXPECT_EQ(nodes, 3u);
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph_), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph_), cudaSuccess);
  EXPECT_EQ(number(), 0);
  EXPECT_EQ(cudaGraphLaunch(exec, stream_), cudaSuccess);
  EXPECT_EQ(number(), 4);
  EXPECT_EQ(add(1, stream_), cudaSuccess);
  EXPECT_EQ(number(), 5);
  begin();
  add(10, stream_);
  ASSERT_EQ(end(), cudaSuccess);
  cudaGraphExecUpdateResultInfo info;
  EXPECT_EQ(cudaGraphExecUpdate(exec, graph_, &info), cudaErrorGraphExecUpdateFailure);
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph_), cudaSuccess);
}

TEST_F(EmulatedRecording, IsSpoiltByCallsThatWait) {
  void* p = nullptr;
  const std::function<cudaError_t()> calls[] = {
      [&] { return cudaMalloc(&p, 4); }, [&] { return cudaFree(number_); }, [&] { return cudaMallocHost(&p, 4); },
      [&] { return cudaStreamSynchronize(stream_); }, [&] { return cudaDeviceSynchronize(); }};
  for (const auto& call : calls) {
    begin();
    EXPECT_EQ(call(), cudaErrorStreamCaptureUnsupported);
    cudaStreamCaptureStatus status;
    EXPECT_EQ(cudaStreamIsCapturing(stream_, &status), cudaSuccess);
    EXPECT_EQ(status, cudaStreamCaptureStatusInvalidated);
    EXPECT_EQ(add(1, stream_), cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(graph_, nullptr);
  }
  EXPECT_EQ(cudaGetLastError(), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(add(1, stream_), cudaSuccess);
  EXPECT_EQ(number(), 1);
}

TEST_F(EmulatedRecording, OtherStreamsJoinByEvents) {
  begin();
  add(1, stream_);
  cudaEventRecord(event_, stream_);
  EXPECT_EQ(cudaStreamWaitEvent(other_, event_), cudaSuccess);
  EXPECT_EQ(add(2, other_), cudaSuccess);
  EXPECT_EQ(number_ ? cudaEventQuery(event_) : cudaSuccess, cudaErrorCapturedEvent);
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);

  for (const bool join : {false, true}) {
    begin();
    cudaEventRecord(event_, stream_);
    cudaStreamWaitEvent(other_, event_);
    add(2, other_);
    cudaEventRecord(back_, other_);
    if (join) cudaStreamWaitEvent(stream_, back_);
    EXPECT_EQ(end(), join ? cudaSuccess : cudaErrorStreamCaptureUnjoined);
  }
  EXPECT_EQ(cudaGraphDestroy(graph_), cudaSuccess);
  EXPECT_EQ(number(), 0);
  EXPECT_EQ(add(2, other_), cudaSuccess);
  EXPECT_EQ(number(), 2);
}

TEST(EmulatedRuntime, RefusesWhatADeviceRefuses) {
  int* p = nullptr;
  ASSERT_EQ(cudaMalloc(&p, 8), cudaSuccess);
  int host[4] = {};
  EXPECT_EQ(launch(add_kernel, {0, 1}, nullptr, p, 1), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(add_kernel, {1, 1025}, nullptr, p, 1), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(add_kernel, {dim3(1, 65536), 1}, nullptr, p, 1), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(add_kernel, {1, 1, 228 << 10}, nullptr, p, 1), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(p, host, 12, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(host, p, 8, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemset(host, 0, 4), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(p + 1), cudaErrorInvalidValue);
  EXPECT_EQ(cudaSetDevice(1), cudaErrorInvalidDevice);
  void* all = nullptr;
  EXPECT_EQ(cudaMalloc(&all, size_t(1) << 40), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaFree(p), cudaSuccess);
}

TEST(EmulatedNumbers, Of16BitsAreTheReferences) {
  for (uint32_t i = 0; i < 0x10000; ++i) {
    const auto bits = uint16_t(i);
    const float h = __half2float(__ushort_as_half(bits)), b = __bfloat162float(__ushort_as_bfloat16(bits));
    if (std::isnan(h)) {
      EXPECT_TRUE(std::isnan(f16_to_f32(bits)));
    } else {
      EXPECT_EQ(h, f16_to_f32(bits));
      EXPECT_EQ(__half_as_ushort(__float2half_rn(h)), bits);
      EXPECT_EQ(__half_as_ushort(__half(double(h))), bits);
    }
    if (!std::isnan(b)) {
      EXPECT_EQ(__bfloat16_as_ushort(__float2bfloat16_rn(b)), bits);
    }
  }
  std::mt19937 random(1);
  for (int i = 0; i < 100000; ++i) {
    const float v = std::bit_cast<float>(uint32_t(random()));
    if (std::isnan(v)) continue;
    EXPECT_EQ(__half_as_ushort(__float2half_rn(v)), f32_to_f16(v)) << v;
    EXPECT_EQ(__half_as_ushort(__half(double(v))), f32_to_f16(v)) << v;
    EXPECT_EQ(__bfloat16_as_ushort(__float2bfloat16_rn(v)), f32_to_bf16(v)) << v;
  }
}

TEST(EmulatedNumbers, ArithmeticOf16BitsRoundsOnce) {
  const __half one = 1.f, tiny = 0x1p-11f, tinier = 0x1p-24f;
  EXPECT_EQ(float(one + tiny), 1.f);  // a tie, to even
  EXPECT_EQ(float(__hfma(one, tiny, one)), 1.f);
  EXPECT_EQ(float(__hfma(__half(1 + 0x1p-10f), tiny, one)), 1 + 0x1p-10f);
  EXPECT_EQ(float(tinier * one), 0x1p-24f);
  EXPECT_EQ(float(__float2half_rz(65519.9f)), 65504.f);
  const __half2 pair = __floats2half2_rn(1.5f, -2.f);
  EXPECT_EQ(__low2float(__hfma2(pair, pair, pair)), 3.75f);
  EXPECT_EQ(__high2float(__hadd2(pair, __hneg2(pair))), 0.f);
  const __nv_bfloat162 wide = __floats2bfloat162_rn(1.f, 0x1p-8f);
  EXPECT_EQ(float(wide.x + wide.y), 1.f);
}

TEST(EmulatedNumbers, IntegersOfBytes) {
  EXPECT_EQ(__byte_perm(0x33221100, 0x77665544, 0x7531), 0x77553311u);
  EXPECT_EQ(__byte_perm(0x00008000, 0, 0x0009), 0x000000ffu);
  EXPECT_EQ(__dp4a(int(0xff02fe01), 0x01020304, 5), 5 + 4 - 6 + 4 - 1);
  EXPECT_EQ(__dp4a(0xff020001u, 0x01020304u, 5u), 5u + 4 + 4 + 255);
  EXPECT_EQ(__vsub4(0x00018005, 0x01010105), 0xff007f00u);
  EXPECT_EQ(__vsubss4(0x80000000, 0x01000000), 0x80000000u);
  EXPECT_EQ(__funnelshift_l(0x80000000u, 1, 1), 3u);
  EXPECT_EQ(__funnelshift_r(2, 1, 1), 0x80000001u);
  EXPECT_EQ(__float2int_rn(2.5f), 2);
  EXPECT_EQ(__float2int_rn(3e9f), 2147483647);
  EXPECT_EQ(__float2int_rz(NAN), 0);
  EXPECT_EQ(min(3, 4u), 3u);
  EXPECT_EQ(max(NAN, 1.f), 1.f);
}

}  // namespace
}  // namespace ef::cuda
