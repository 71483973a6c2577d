// The emulated device itself: threads, what they do together, and the faults of kernels that it is there to find.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "expertflow/backend/cuda/device/mma.cuh"

namespace ef::cuda {
namespace {

// Memory of the device, read back as a vector.
template <class T>
class OnDevice {
 public:
  explicit OnDevice(size_t n) : n_(n) { EXPECT_EQ(cudaMalloc(&data_, n * sizeof(T)), cudaSuccess); }
  ~OnDevice() { EXPECT_EQ(cudaFree(data_), cudaSuccess); }
  operator T*() { return data_; }
  std::vector<T> read() const {
    std::vector<T> values(n_);
    EXPECT_EQ(cudaMemcpy(values.data(), data_, n_ * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
    return values;
  }

 private:
  size_t n_;
  T* data_ = nullptr;
};

constexpr unsigned kAll = 0xffffffffu;

__global__ void place_kernel(int* out) {
  const int block = int((blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x);
  const int thread = int((threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x);
  const int i = block * int(blockDim.x * blockDim.y * blockDim.z) + thread;
  out[i] = i;
}

TEST(EmulatedThreads, EachKnowsItsPlace) {
  OnDevice<int> out(12 * 60);
  ASSERT_EQ(launch(place_kernel, {{2, 3, 2}, {5, 4, 3}}, nullptr, out), cudaSuccess);
  std::vector<int> expected(12 * 60);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(out.read(), expected);
}

__global__ void warp_kernel(int* out) {
  const int lane = int(threadIdx.x) % 32, base = 100 * int(threadIdx.x / 32);
  int sum = lane;
  for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(kAll, sum, mask);
  const int results[] = {
      sum,
      __shfl_sync(kAll, base + lane, 5),
      __shfl_sync(kAll, lane, 9, 8),
      __shfl_up_sync(kAll, lane, 3),
      __shfl_down_sync(kAll, lane, 3, 16),
      __shfl_xor_sync(kAll, lane, 8, 8),
      int(__ballot_sync(kAll, lane % 3 == 0)),
      __any_sync(kAll, lane == 31),
      __all_sync(kAll, lane < 31),
      __reduce_max_sync(kAll, -lane),
      int(__match_any_sync(kAll, lane / 4)),
  };
  for (int i = 0; i < 11; ++i) out[11 * threadIdx.x + unsigned(i)] = results[i];
}

TEST(EmulatedThreads, LanesExchangeAndVote) {
  OnDevice<int> out(11 * 64);
  ASSERT_EQ(launch(warp_kernel, {1, 64}, nullptr, out), cudaSuccess);
  const auto values = out.read();
  for (int t = 0; t < 64; ++t) {
    const int lane = t % 32, *v = &values[size_t(11 * t)];
    EXPECT_EQ(v[0], 31 * 32 / 2);
    EXPECT_EQ(v[1], t / 32 * 100 + 5);
    EXPECT_EQ(v[2], lane / 8 * 8 + 1);
    EXPECT_EQ(v[3], lane < 3 ? lane : lane - 3);
    EXPECT_EQ(v[4], lane % 16 + 3 < 16 ? lane + 3 : lane);
    EXPECT_EQ(v[5], (lane ^ 8) > lane ? lane : lane ^ 8);
    EXPECT_EQ(unsigned(v[6]), 0x49249249u);
    EXPECT_EQ(v[7], 1);
    EXPECT_EQ(v[8], 0);
    EXPECT_EQ(v[9], 0);
    EXPECT_EQ(unsigned(v[10]), 15u << (lane / 4 * 4));
  }
}

// Halves of a warp go their own ways for a while.
__global__ void halves_kernel(int* out) {
  const int lane = int(threadIdx.x), half = lane / 16;
  const unsigned mask = half ? 0xffff0000u : 0x0000ffffu;
  int v = lane;
  for (int i = 0; i < 1 + 2 * half; ++i) v = __shfl_sync(mask, v, (lane + 1) % 16, 16);
  __syncwarp();
  out[lane] = __shfl_sync(kAll, v, 31 - lane);
}

TEST(EmulatedThreads, PartsOfAWarpMeetByThemselves) {
  OnDevice<int> out(32);
  ASSERT_EQ(launch(halves_kernel, {1, 32}, nullptr, out), cudaSuccess);
  const auto values = out.read();
  for (int lane = 0; lane < 32; ++lane) {
    const int from = 31 - lane;
    EXPECT_EQ(values[size_t(lane)], from / 16 * 16 + (from + (from < 16 ? 1 : 3)) % 16);
  }
}

__global__ void leaving_kernel(int* out) {
  if (threadIdx.x % 3 == 0) return;
  const int there = __syncthreads_count(threadIdx.x % 3 == 1);
  __syncwarp();
  const bool odd = __syncthreads_or(threadIdx.x == 98), all = __syncthreads_and(threadIdx.x < 98);
  out[threadIdx.x] = there * 4 + odd * 2 + all;
}

TEST(EmulatedThreads, NobodyWaitsForThoseThatReturned) {
  OnDevice<int> out(99);
  ASSERT_EQ(launch(leaving_kernel, {1, 99}, nullptr, out), cudaSuccess);
  const auto values = out.read();
  for (size_t i = 0; i < 99; ++i) EXPECT_EQ(values[i], i % 3 == 0 ? -1 : 33 * 4 + 2);
}

__global__ void racing_kernel(float* out, int writer) {
  EF_DYNAMIC_SHARED(float, shared);
  if (int(threadIdx.x) == writer) *shared = 1;
  out[threadIdx.x] = *shared;  // without a barrier
}

TEST(EmulatedThreads, AMissingBarrierShowsInOneOfTwoBlocks) {
  for (const int writer : {0, 63}) {
    int missed = 0;
    for (int i = 0; i < 2; ++i) {
      OnDevice<float> out(64);
      ASSERT_EQ(launch(racing_kernel, {1, 64, sizeof(float)}, nullptr, out, writer), cudaSuccess);
      missed += std::isnan(out.read()[writer == 0 ? 63 : 0]);
    }
    EXPECT_EQ(missed, 1);
  }
}

__global__ void fresh_kernel(float* out, float* fresh) {
  EF_DYNAMIC_SHARED(float, dynamic);
  __shared__ float fixed[8];
  out[3 * blockIdx.x] = fresh[0];
  out[3 * blockIdx.x + 1] = dynamic[0];
  out[3 * blockIdx.x + 2] = fixed[7];
  dynamic[0] = fixed[7] = 1;
}

TEST(EmulatedMemory, WhatNobodyWroteIsNan) {
  OnDevice<float> out(9), fresh(1);
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(launch(fresh_kernel, {3, 1, sizeof(float)}, nullptr, out, fresh), cudaSuccess);
    for (float v : out.read()) EXPECT_TRUE(std::isnan(v));
  }
}

__global__ void copy_kernel(const float4* in, float* out) {
  EF_DYNAMIC_SHARED(float4, shared);
  for (int i = 0; i < 3; ++i) {
    copy16_async(&shared[i], &in[i], i != 1);
    copy_async_commit();
  }
  out[0] = shared[0].x;
  copy_async_wait<1>();
  out[1] = shared[0].x, out[2] = shared[1].x, out[3] = shared[2].x;
  copy_async_wait<0>();
  out[4] = shared[2].w;
}

TEST(EmulatedMemory, CopiesAreThereWhenTheirGroupWasWaitedFor) {
  const std::vector<float4> numbers = {{1, 2, 3, 4}, {5, 6, 7, 8}, {9, 10, 11, 12}};
  OnDevice<float4> in(3);
  ASSERT_EQ(cudaMemcpy(in, numbers.data(), 48, cudaMemcpyHostToDevice), cudaSuccess);
  OnDevice<float> out(5);
  ASSERT_EQ(launch(copy_kernel, {1, 1, 48}, nullptr, in, out), cudaSuccess);
  const auto values = out.read();
  EXPECT_TRUE(std::isnan(values[0]));
  EXPECT_EQ(values[1], 1);
  EXPECT_EQ(values[2], 0);
  EXPECT_TRUE(std::isnan(values[3]));
  EXPECT_EQ(values[4], 12);
}

// b is [8, 16], row after row, as ldmatrix takes it.
__global__ void product_kernel(const __half* a, const __half* b, const __half* b_turned, float* d) {
  EF_DYNAMIC_SHARED(__half, shared);  // a [16, 16], b [8, 16], b turned [16, 8], each row 16 bytes from the next
  const int lane = int(threadIdx.x);
  for (int i = lane; i < 256; i += 32) shared[i] = a[i];
  for (int i = lane; i < 128; i += 32) shared[256 + i] = b[i], shared[384 + i] = b_turned[i];
  __syncwarp();
  const int row = lane % 8, matrix = lane / 8;
  uint32_t fa[4], fb[4], turned[4];
  ldmatrix_x4(fa, &shared[(row + matrix % 2 * 8) * 16 + matrix / 2 * 8]);
  ldmatrix_x4(fb, &shared[256 + row * 16 + matrix % 2 * 8]);
  ldmatrix_x4_trans(turned, &shared[384 + (row + matrix % 2 * 8) * 8]);
  float sum[2][4] = {{1, 1, 1, 1}, {1, 1, 1, 1}};
  mma_f16(sum[0], fa, {fb[0], fb[1]});
  mma_f16(sum[1], fa, {turned[0], turned[1]});
  for (int i = 0; i < 4; ++i) {
    const int at = (lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2;
    d[at] = sum[0][i], d[128 + at] = sum[1][i];
  }
}

TEST(EmulatedWarp, MatrixProductsHaveTheFragmentsOfPtx) {
  std::vector<__half> a(256), b(128), turned(128);
  for (int i = 0; i < 256; ++i) a[size_t(i)] = float(i % 37 - 11);
  for (int i = 0; i < 128; ++i) b[size_t(i)] = turned[size_t(i % 16 * 8 + i / 16)] = float(i % 29 - 17) / 8;
  OnDevice<__half> da(256), db(128), dt(128);
  cudaMemcpy(da, a.data(), 512, cudaMemcpyHostToDevice);
  cudaMemcpy(db, b.data(), 256, cudaMemcpyHostToDevice);
  cudaMemcpy(dt, turned.data(), 256, cudaMemcpyHostToDevice);
  OnDevice<float> d(256);
  ASSERT_EQ(launch(product_kernel, {1, 32, 1024}, nullptr, da, db, dt, d), cudaSuccess);
  const auto values = d.read();
  for (size_t i = 0; i < 16; ++i) {
    for (size_t j = 0; j < 8; ++j) {
      float sum = 1;
      for (size_t k = 0; k < 16; ++k) sum += float(a[16 * i + k]) * float(b[16 * j + k]);
      EXPECT_EQ(values[8 * i + j], sum);
      EXPECT_EQ(values[128 + 8 * i + j], sum);
    }
  }
}

// Faults end the process, with the places.
__global__ void stuck_kernel() {
  if (threadIdx.x == 40) __syncthreads();
  __syncwarp();
}
__global__ void mixed_kernel() {
  if (threadIdx.x == 7)
    __syncwarp();
  else
    __shfl_sync(kAll, 1, 0);
}
__global__ void mask_kernel() { __syncwarp(2); }
__global__ void behind_kernel() {
  EF_DYNAMIC_SHARED(float, shared);
  shared[4] = 0;
}
__global__ void misaligned_kernel() {
  EF_DYNAMIC_SHARED(char, shared);
  uint32_t r[4];
  ldmatrix_x4(r, shared + 8);
}
__global__ void misaligned_load_kernel(const char* p, float4* out) { *out = *reinterpret_cast<const float4*>(p + 8); }
__global__ void late_kernel() {
  if (blockIdx.x == 0) wait_for_earlier();
}
__global__ void beside_kernel(float* p) { p[-1] = 0; }

TEST(EmulatedFaults, VectorsAreLoadedFromTheirMultiples) {
#ifndef EF_SANITIZES_ALIGNMENT
  GTEST_SKIP() << "built without libubsan";
#endif
  OnDevice<float4> p(4);
  EXPECT_DEATH(launch(misaligned_load_kernel, {1, 1}, nullptr, reinterpret_cast<const char*>(&p[0]), &p[3]),
               "kernels_test.cpp:.* misaligned address .* for type .*float4");
}

TEST(EmulatedFaults, EndTheProcessWithTheirPlace) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(launch(stuck_kernel, {2, 64}, nullptr),
               "no thread can go on in the kernel launched at kernels_test.cpp:.*block \\(0, 0, 0\\) of 64 threads\n"
               "  threads 0 to 31: returned\n"
               "  threads 32 to 39: waits in __syncwarp, mask 0xffffffff, at kernels_test.cpp:.*\n"
               "  threads 40 to 40: waits in __syncthreads at");
  EXPECT_DEATH(launch(mixed_kernel, {1, 32}, nullptr), "lanes of one warp meet in __shfl_sync at .* and in __syncwarp");
  EXPECT_DEATH(launch(mask_kernel, {1, 32}, nullptr),
               "the mask of __syncwarp lacks the lane that calls it: thread [0-9]+ at");
  EXPECT_DEATH(launch(behind_kernel, {1, 1, 16}, nullptr), "wrote behind the 16 bytes of dynamic shared memory");
  EXPECT_DEATH(launch(misaligned_kernel, {1, 32, 1024}, nullptr), "ldmatrix is not at a multiple of 16 bytes");
  EXPECT_DEATH(launch(late_kernel, {2, 32, 0, Start::kEarly}, nullptr), "no thread called wait_for_earlier");
  EXPECT_DEATH(
      {
        float* p = nullptr;
        cudaMalloc(&p, 4);
        launch(beside_kernel, {1, 1}, nullptr, p);
        cudaFree(p);
      },
      "wrote before an allocation of 4 bytes");
}

}  // namespace
}  // namespace ef::cuda
