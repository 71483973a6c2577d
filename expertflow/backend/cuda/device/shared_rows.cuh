// Activations in shared memory: units of 16 bytes (16 codes, or 4 floats) that lanes read one, two, four or eight
// units apart; where a unit lies is chosen so that none of these strides meets one bank twice.
#pragma once
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace ef::cuda {

__host__ __device__ inline int round_up_to(int n, int step) { return (n + step - 1) / step * step; }

// Two binary16 numbers, the lower first.
__device__ inline float2 halves_of(uint32_t w) {
  return make_float2(__half2float(__ushort_as_half(uint16_t(w))), __half2float(__ushort_as_half(uint16_t(w >> 16))));
}

// The byte where unit k lies. Units k and k ^ i, i < 8, lie at unit_at(k) and unit_at(k) ^ 16 * i.
__device__ inline int unit_at(int k) {
  const int line = k >> 3;
  return (k ^ ((line ^ line << 1) & 7)) << 4;
}

// Rows of 8 bits: x[i] = scale[i / 32] * code[i] within half a step. A row is its codes, then four arrays of floats
// over groups of 32: the scale, and scale * (sum of the codes) of the group, its first half and its second.
struct QuantizedRows {
  static constexpr int kLine = 128;  // bytes, which unit_at permutes among themselves
  static __host__ __device__ int codes_bytes(int cols) { return round_up_to(cols, kLine); }
  static __host__ __device__ int groups(int cols) { return round_up_to(cols / 32, 4); }
  static __host__ __device__ int row_bytes(int cols) { return codes_bytes(cols) + 16 * groups(cols); }

  __device__ QuantizedRows(uint8_t* memory, int cols)
      : memory(memory), codes(codes_bytes(cols)), padded_groups(groups(cols)), stride(row_bytes(cols)) {}
  __device__ uint4 unit(int row, int at) const { return *reinterpret_cast<const uint4*>(memory + row * stride + at); }
  __device__ float* scale(int row) const { return reinterpret_cast<float*>(memory + row * stride + codes); }
  __device__ float* sum(int row) const { return scale(row) + padded_groups; }
  __device__ float* half_sum(int row, int half) const { return scale(row) + (2 + half) * padded_groups; }

  uint8_t* memory;
  int codes, padded_groups, stride;
};

// Rows of float32.
struct FloatRows {
  static constexpr int kLine = 32;  // floats
  static __host__ __device__ int row_bytes(int cols) { return 4 * round_up_to(cols, kLine); }

  __device__ FloatRows(uint8_t* memory, int cols) : memory(memory), stride(row_bytes(cols)) {}
  __device__ float4 unit(int row, int at) const { return *reinterpret_cast<const float4*>(memory + row * stride + at); }
  __device__ float one(int row, int i) const {
    return *reinterpret_cast<const float*>(memory + row * stride + unit_at(i / 4) + 4 * (i % 4));
  }

  uint8_t* memory;
  int stride;
};

}  // namespace ef::cuda
