// What a device does at best: loops of one thing, for bounds; and a kernel that does nothing.
#include "mma.cuh"
#include "params.h"

namespace ef::cuda {
namespace {

constexpr int kThreads = 512, kReads = 8;

// Every thread has kReads loads of 16 bytes on their way at once.
__global__ void __launch_bounds__(kThreads) read_all(const uint4* data, int64_t rounds, unsigned* seen) {
  const int64_t stride = int64_t(gridDim.x) * kThreads;
  const uint4* at = data + int64_t(blockIdx.x) * kThreads + threadIdx.x;
  unsigned bits = 0;
  for (int64_t i = 0; i < rounds; ++i, at += kReads * stride) {
    uint4 v[kReads];
#pragma unroll
    for (int j = 0; j < kReads; ++j) v[j] = at[j * stride];
#pragma unroll
    for (int j = 0; j < kReads; ++j) bits |= v[j].x | v[j].y | v[j].z | v[j].w;
  }
  if (bits) *seen = bits;  // of zeros: never, but the loads have to be made
}

constexpr int kProducts = 8;  // of a warp that do not wait for each other

__global__ void __launch_bounds__(kThreads) multiply(int64_t rounds, float* out) {
  // Halves between 0 and 1 that differ by lane and product: units that multiply zeros draw less power and run faster.
  const uint32_t lane = threadIdx.x % 32;
  constexpr uint32_t kBelowOne = 0x37ff37ffu;
  uint32_t a[4], b[kProducts][2];
  float d[kProducts][4] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] = ((lane + 1) * 0x9e3779b9u + uint32_t(i) * 0x85ebca6bu) & kBelowOne;
#pragma unroll
  for (int p = 0; p < kProducts; ++p) {
    b[p][0] = ((lane + 7) * 0xc2b2ae35u + uint32_t(p) * 0x27d4eb2fu) & kBelowOne;
    b[p][1] = ((lane + 9) * 0x165667b1u + uint32_t(p) * 0x9e3779b9u) & kBelowOne;
  }
  for (int64_t i = 0; i < rounds; ++i)
#pragma unroll
    for (int p = 0; p < kProducts; ++p) mma_f16(d[p], a, b[p]);
  float sum = 0;
#pragma unroll
  for (int p = 0; p < kProducts; ++p) sum += d[p][0] + d[p][1] + d[p][2] + d[p][3];
  if (sum < 0) *out = sum;  // never
}

__global__ void do_nothing() {}

constexpr int kBlocks = 2;  // of a multiprocessor at once, in either loop

}  // namespace

ProbeRead probe_read(const void* data, uint64_t bytes, void* sink, cudaStream_t stream) {
  const unsigned blocks = unsigned(2 * kBlocks * device_traits().multiprocessors);
  const uint64_t round = uint64_t(blocks) * kThreads * kReads * sizeof(uint4);
  const int64_t rounds = int64_t(bytes / round);
  return {uint64_t(rounds) * round, launch(read_all, {dim3(blocks), dim3(kThreads)}, stream,
                                           static_cast<const uint4*>(data), rounds, static_cast<unsigned*>(sink))};
}

ProbeProducts probe_products(int64_t rounds, void* sink, cudaStream_t stream) {
  const unsigned blocks = unsigned(kBlocks * device_traits().multiprocessors);
  constexpr double kOperations = 2.0 * 16 * 8 * 16 * kProducts;  // of a warp's round
  return {double(rounds) * blocks * (kThreads / 32) * kOperations,
          launch(multiply, {dim3(blocks), dim3(kThreads)}, stream, rounds, static_cast<float*>(sink))};
}

cudaError_t nothing(cudaStream_t stream) { return launch(do_nothing, {dim3(1), dim3(32)}, stream); }

}  // namespace ef::cuda
