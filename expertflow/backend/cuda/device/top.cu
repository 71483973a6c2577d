// The largest numbers of each row. A block finds a bound for a segment, the top-th of its threads' largest numbers,
// sorts what reaches it and keeps the best; what is left of all segments is treated alike until one holds a row.
#include "launch.cuh"
#include "params.h"

namespace ef::cuda {
namespace {

constexpr int kThreads = 256, kEach = 16, kSegment = kThreads * kEach;
// Threads whose largest number reaches the bound are as many as are wanted.
constexpr int kMostKept = kMostTop * kEach;
static_assert(kMostTop <= kThreads && kThreads <= kMostKept && (kMostKept & (kMostKept - 1)) == 0);

// Rises with the number, and among equals with falling index; NaN stands above all, so that it is seen.
__device__ uint64_t key_of(float value, uint32_t index) {
  uint32_t bits = __float_as_uint(value);
  bits = isnan(value) ? 0xffffffffu : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return uint64_t(bits) << 32 | ~index;
}
__device__ float value_of(uint64_t key) {
  const uint32_t bits = uint32_t(key >> 32);
  if (bits == 0xffffffffu) return __uint_as_float(0x7fc00000u);
  return __uint_as_float(bits & 0x80000000u ? bits & 0x7fffffffu : ~bits);
}

// Falling order; zeros are below every key. count: a power of two.
__device__ void sort(uint64_t* keys, int count) {
  for (int size = 2; size <= count; size *= 2) {
    for (int stride = size / 2; stride > 0; stride /= 2) {
      __syncthreads();
      for (int i = threadIdx.x; i < count / 2; i += kThreads) {
        const int low = 2 * i - (i & (stride - 1)), high = low + stride;
        const bool falling = (low & size) == 0;
        const uint64_t a = keys[low], b = keys[high];
        if ((a < b) == falling) keys[low] = b, keys[high] = a;
      }
    }
  }
  __syncthreads();
}

// From: numbers (first pass) or keys of the pass before, n a row. The last pass, of one segment, gives ids and numbers.
__global__ void __launch_bounds__(kThreads)
    top_kernel(const TopParams p, const uint64_t* from, int64_t n, uint64_t* to) {
  __shared__ uint64_t keys[kMostKept];
  __shared__ int kept;
  wait_for_earlier();
  let_later_start();
  const int64_t row = blockIdx.y, first = int64_t(blockIdx.x) * kSegment;
  uint64_t mine[kEach], largest = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int64_t at = first + i * kThreads + threadIdx.x;
    mine[i] = 0;
    if (at < n) mine[i] = from ? from[row * n + at] : key_of(p.x[row * p.width + at], uint32_t(at));
    largest = mine[i] > largest ? mine[i] : largest;
  }
  const auto give = [&](int i, uint64_t key) {
    if (gridDim.x > 1) {
      to[(row * gridDim.x + blockIdx.x) * p.top + i] = key;
    } else {
      p.ids[row * p.top + i] = int32_t(~uint32_t(key));
      p.values[row * p.top + i] = value_of(key);
    }
  };
  if (p.top == 1) {  // without a sort
    for (int mask = 16; mask > 0; mask /= 2) largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, mask));
    if (threadIdx.x % 32 == 0) keys[threadIdx.x / 32] = largest;
    __syncthreads();
    for (int i = 0; i < kThreads / 32; ++i) largest = max(largest, keys[i]);
    if (threadIdx.x == 0) give(0, largest);
    return;
  }
  keys[threadIdx.x] = largest;
  sort(keys, kThreads);
  const uint64_t bound = keys[p.top - 1] > 0 ? keys[p.top - 1] : 1;
  if (threadIdx.x == 0) kept = 0;
  __syncthreads();  // the bound has been read
#pragma unroll
  for (int i = 0; i < kEach; ++i)
    if (mine[i] >= bound) keys[atomicAdd(&kept, 1)] = mine[i];
  __syncthreads();
  int count = 1;
  while (count < kept || count < p.top) count *= 2;
  for (int i = kept + int(threadIdx.x); i < count; i += kThreads) keys[i] = 0;
  sort(keys, count);
  for (int i = threadIdx.x; i < p.top; i += kThreads) give(i, keys[i]);
}

int64_t segments_of(int64_t n) { return (n + kSegment - 1) / kSegment; }

}  // namespace

uint64_t top_scratch(const TopParams& p) {
  const int64_t first = segments_of(p.width) * p.top;
  return uint64_t(p.rows * (first + segments_of(first) * p.top)) * sizeof(uint64_t);
}

cudaError_t top(const TopParams& p, cudaStream_t stream) {
  if (p.rows <= 0 || p.top <= 0) return cudaSuccess;
  // Passes read one half of the scratch and write the other.
  uint64_t* const halves[2] = {static_cast<uint64_t*>(p.scratch),
                               static_cast<uint64_t*>(p.scratch) + p.rows * segments_of(p.width) * p.top};
  const uint64_t* from = nullptr;
  int64_t n = p.width;
  for (int pass = 0;; ++pass) {
    const int64_t segments = segments_of(n);
    uint64_t* to = halves[pass % 2];
    const Shape shape{dim3(unsigned(segments), unsigned(p.rows)), dim3(kThreads), 0, Start::kEarly};
    if (const cudaError_t error = launch(top_kernel, shape, stream, p, from, n, to)) return error;
    if (segments == 1) return cudaSuccess;
    from = to, n = segments * p.top;
  }
}

}  // namespace ef::cuda
