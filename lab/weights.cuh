// Random weights of every format, made on the device: blocks of random bits with scales that keep the numbers near
// 0.05.
#pragma once
#include "expertflow/backend/cuda/device/formats.cuh"
#include "expertflow/backend/cuda/device/launch.cuh"

namespace ef::cuda {

/// A format's blocks: bytes, elements, and up to two float16 fields with the numbers that go there.
struct BlockShape {
  const char* name;
  int elements, bytes;
  int field[2];
  float value[2];
};
inline BlockShape shape_of(Fmt format) {
  static constexpr BlockShape kShapes[int(Fmt::kCount)] = {
      {"F32", 1, 4, {-1, -1}, {}},
      {"F16", 1, 2, {-1, -1}, {}},
      {"BF16", 1, 2, {-1, -1}, {}},
      {"F8", 1, 1, {-1, -1}, {}},
      {"Q8_0", 32, 34, {0, -1}, {0.0007f}},
      {"Q4_0", 32, 18, {0, -1}, {0.01f}},
      {"Q4_1", 32, 20, {0, 2}, {0.01f, -0.075f}},
      {"Q5_0", 32, 22, {0, -1}, {0.005f}},
      {"Q5_1", 32, 24, {0, 2}, {0.005f, -0.08f}},
      {"Q2_K", 256, 84, {80, 82}, {0.004f, 0.006f}},
      {"Q3_K", 256, 110, {108, -1}, {0.001f}},
      {"Q4_K", 256, 144, {0, 2}, {0.0003f, 0.00225f}},
      {"Q5_K", 256, 176, {0, 2}, {0.00015f, 0.00225f}},
      {"Q6_K", 256, 210, {208, -1}, {0.00004f}},
      {"IQ4NL", 32, 18, {0, -1}, {0.0007f}},
      {"IQ4XS", 256, 136, {0, -1}, {0.00004f}},
      {"MXFP4", 32, 17, {-1, -1}, {}},
  };
  return kShapes[int(format)];
}
inline const char* name_of(Fmt format) { return shape_of(format).name; }
inline int64_t bytes_of(Fmt format, int64_t cols) {
  const BlockShape shape = shape_of(format);
  return cols / shape.elements * shape.bytes;
}

__device__ inline uint32_t mixed(uint64_t v) {
  v = (v ^ v >> 31) * 0x7fb5d329728ea185ull;
  v = (v ^ v >> 27) * 0x81dadef4bc2dd44dull;
  return uint32_t(v >> 32 ^ v);
}

static __global__ void fill_kernel(Fmt format, BlockShape shape, uint8_t* data, int64_t blocks, uint32_t seed) {
  let_later_start();
  wait_for_earlier();
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < blocks; i += int64_t(gridDim.x) * blockDim.x) {
    uint8_t* b = data + i * shape.bytes;
    const auto random = [&](int k) { return mixed(uint64_t(seed) << 56 ^ uint64_t(i) << 10 ^ uint64_t(k)); };
    const float uniform = float(int32_t(random(512))) * 0x1p-31f;
    if (format == Fmt::kF32) {
      *reinterpret_cast<float*>(b) = 0.08f * uniform;
    } else if (format == Fmt::kF16) {
      *reinterpret_cast<__half*>(b) = __float2half(0.08f * uniform);
    } else if (format == Fmt::kBF16) {
      *reinterpret_cast<__nv_bfloat16*>(b) = __float2bfloat16(0.08f * uniform);
    } else {
      for (int k = 0; k < shape.bytes; ++k) b[k] = uint8_t(random(k));
      if (format == Fmt::kF8E4M3 && (b[0] & 0x7f) == 0x7f) b[0] ^= 1;  // no NaN
      if (format == Fmt::kMXFP4) b[0] = uint8_t(119 + b[0] % 4);
      for (int k = 0; k < 2; ++k)
        if (shape.field[k] >= 0)
          *reinterpret_cast<__half*>(b + shape.field[k]) = __float2half(shape.value[k] * (1.f + 0.5f * uniform));
    }
  }
}
inline cudaError_t fill_weights(Fmt format, uint8_t* data, int64_t bytes, uint32_t seed) {
  const BlockShape shape = shape_of(format);
  Shape launched;
  launched.grid = 1024, launched.block = 256;
  return launch(fill_kernel, launched, nullptr, format, shape, data, bytes / shape.bytes, seed);
}

static __global__ void fill_scales_kernel(float* data, int64_t count) {
  let_later_start();
  wait_for_earlier();
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += int64_t(gridDim.x) * blockDim.x)
    data[i] = 0.0002f * (1.f + 0.5f * float(mixed(uint64_t(i)) % 1024) * 0x1p-10f);
}
/// Factors of 128 x 128 weights (F8).
inline cudaError_t fill_scales(float* data, int64_t count) {
  Shape launched;
  launched.grid = 64, launched.block = 256;
  return launch(fill_scales_kernel, launched, nullptr, data, count);
}

}  // namespace ef::cuda
