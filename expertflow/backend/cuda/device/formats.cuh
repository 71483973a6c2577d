// Storage formats on the device, eight numbers at a time: octet o of a row is its elements 8o to 8o + 7, as float32,
// the same numbers as the reference conversions give (built without contraction of a * b + c). Rows may begin at any
// address that the format's block size allows, so loads are no wider than that.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "params.h"

namespace ef::cuda {

__device__ inline uint32_t load2(const uint8_t* p) { return *reinterpret_cast<const uint16_t*>(p); }
__device__ inline uint32_t load4(const uint8_t* p) { return *reinterpret_cast<const uint32_t*>(p); }
__device__ inline float half_at(const uint8_t* p) { return __half2float(__ushort_as_half(uint16_t(load2(p)))); }
// Four bytes from an address that is a multiple of kAlign.
template <int kAlign>
__device__ uint32_t word_at(const uint8_t* p) {
  if constexpr (kAlign >= 4) return load4(p);
  if constexpr (kAlign == 2) return load2(p) | load2(p + 2) << 16;
  return uint32_t(p[0]) | uint32_t(p[1]) << 8 | uint32_t(p[2]) << 16 | uint32_t(p[3]) << 24;
}
__device__ inline uint32_t byte_of(uint32_t word, int i) { return word >> (8 * i) & 255; }

// Scalars: element by element, any width.
struct F32 {
  static constexpr int kElements = 1, kBytes = 4;
  static __device__ float one(const uint8_t* row, int64_t i) { return reinterpret_cast<const float*>(row)[i]; }
  static __device__ void octet(const uint8_t* row, int64_t o, float* out) {
    const float* p = reinterpret_cast<const float*>(row) + 8 * o;
    if (reinterpret_cast<uintptr_t>(p) % 16 == 0) {
      const float4 a = reinterpret_cast<const float4*>(p)[0], b = reinterpret_cast<const float4*>(p)[1];
      out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w, out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
    } else {
      for (int j = 0; j < 8; ++j) out[j] = p[j];
    }
  }
};

// The eight 16-bit words of an octet.
__device__ inline void words16(const uint8_t* row, int64_t o, uint32_t* pairs) {
  const uint8_t* p = row + 16 * o;
  if (reinterpret_cast<uintptr_t>(p) % 16 == 0) {
    const uint4 v = *reinterpret_cast<const uint4*>(p);
    pairs[0] = v.x, pairs[1] = v.y, pairs[2] = v.z, pairs[3] = v.w;
  } else {
    for (int j = 0; j < 4; ++j) pairs[j] = word_at<2>(p + 4 * j);
  }
}

struct F16 {
  static constexpr int kElements = 1, kBytes = 2;
  static __device__ float one(const uint8_t* row, int64_t i) { return half_at(row + 2 * i); }
  static __device__ void octet(const uint8_t* row, int64_t o, float* out) {
    uint32_t pairs[4];
    words16(row, o, pairs);
    for (int j = 0; j < 8; ++j) out[j] = __half2float(__ushort_as_half(uint16_t(pairs[j / 2] >> (16 * (j % 2)))));
  }
};

struct BF16 {
  static constexpr int kElements = 1, kBytes = 2;
  static __device__ float one(const uint8_t* row, int64_t i) { return __uint_as_float(load2(row + 2 * i) << 16); }
  static __device__ void octet(const uint8_t* row, int64_t o, float* out) {
    uint32_t pairs[4];
    words16(row, o, pairs);
    for (int j = 0; j < 8; ++j) out[j] = __uint_as_float(j % 2 ? pairs[j / 2] & 0xffff0000u : pairs[j / 2] << 16);
  }
};

// FP8 E4M3 "fn": see quant/scalars.h.
__device__ inline float e4m3(uint32_t v) {
  const uint32_t magnitude = v & 0x7fu, sign = (v & 0x80u) << 24;
  uint32_t bits = (magnitude << 20) + 0x3c000000u;
  if (magnitude == 0x7fu) bits = 0x7fc00000u;
  if (magnitude < 8) bits = __float_as_uint(float(magnitude) * 0x1p-9f);
  return __uint_as_float(bits | sign);
}
struct F8 {
  static constexpr int kElements = 1, kBytes = 1;
  static __device__ float one(const uint8_t* row, int64_t i) { return e4m3(row[i]); }
  static __device__ void octet(const uint8_t* row, int64_t o, float* out) {
    const uint8_t* p = row + 8 * o;
    uint32_t lo, hi;
    if (reinterpret_cast<uintptr_t>(p) % 8 == 0) {
      const uint2 v = *reinterpret_cast<const uint2*>(p);
      lo = v.x, hi = v.y;
    } else {
      lo = word_at<1>(p), hi = word_at<1>(p + 4);
    }
    for (int j = 0; j < 4; ++j) out[j] = e4m3(byte_of(lo, j)), out[4 + j] = e4m3(byte_of(hi, j));
  }
};

// Blocks of 32: octets 0 and 1 are low nibbles of bytes 0 to 15, octets 2 and 3 their high nibbles. q(j, high octet)
// is code j of the octet.
template <int kAlign>
struct Nibbles {
  uint32_t lo, hi;
  __device__ Nibbles(const uint8_t* qs, int part) {
    const int shift = 4 * (part / 2);
    lo = word_at<kAlign>(qs + 8 * (part % 2)) >> shift & 0x0f0f0f0fu;
    hi = word_at<kAlign>(qs + 8 * (part % 2) + 4) >> shift & 0x0f0f0f0fu;
  }
  __device__ int operator[](int j) const { return int(byte_of(j < 4 ? lo : hi, j % 4)); }
};

struct Q8_0 {
  static constexpr int kElements = 32, kBytes = 34;
  static __device__ void octet(const uint8_t* row, int64_t o, float* out) {
    const uint8_t* b = row + o / 4 * kBytes;
    const float d = half_at(b);
    const uint32_t lo = word_at<2>(b + 2 + 8 * (o % 4)), hi = word_at<2>(b + 6 + 8 * (o % 4));
    for (int j = 0; j < 8; ++j) out[j] = d * float(int8_t(byte_of(j < 4 ? lo : hi, j % 4)));
  }
};

struct Q4_0 {
  static constexpr int kElements = 32, kBytes = 18;
  static __device__ void octet(const uint8_t* row, int64_t o, float* out) {
    const uint8_t* b = row + o / 4 * kBytes;
    const float d = half_at(b);
    const Nibbles<2> q(b + 2, int(o % 4));
    for (int j = 0; j < 8; ++j) out[j] = d * float(q[j] - 8);
  }
};

struct Q4_1 {
  static constexpr int kElements = 32, kBytes = 20;
  static __device__ void octet(const uint8_t* row, int64_t o, float* out) {
    const uint8_t* b = row + o / 4 * kBytes;
    const float d = half_at(b), m = half_at(b + 2);
    const Nibbles<4> q(b + 4, int(o % 4));
    for (int j = 0; j < 8; ++j) out[j] = d * float(q[j]) + m;
  }
};

struct Q5_0 {
  static constexpr int kElements = 32, kBytes = 22;
  static __device__ void octet(const uint8_t* row, int64_t o, float* out) {
    const uint8_t* b = row + o / 4 * kBytes;
    const float d = half_at(b);
    const Nibbles<2> q(b + 6, int(o % 4));
    const uint32_t fifth = b[2 + o % 4];
    for (int j = 0; j < 8; ++j) out[j] = d * float((q[j] | int(fifth >> j & 1) << 4) - 16);
  }
};

struct Q5_1 {
  static constexpr int kElements = 32, kBytes = 24;
  static __device__ void octet(const uint8_t* row, int64_t o, float* out) {
    const uint8_t* b = row + o / 4 * kBytes;
    const float d = half_at(b), m = half_at(b + 2);
    const Nibbles<4> q(b + 8, int(o % 4));
    const uint32_t fifth = b[4 + o % 4];
    for (int j = 0; j < 8; ++j) out[j] = d * float(q[j] | int(fifth >> j & 1) << 4) + m;
  }
};

__constant__ int8_t kIQ4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
__constant__ int8_t kE2M1Doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

struct IQ4NL {
  static constexpr int kElements = 32, kBytes = 18;
  static __device__ void octet(const uint8_t* row, int64_t o, float* out) {
    const uint8_t* b = row + o / 4 * kBytes;
    const float d = half_at(b);
    const Nibbles<2> q(b + 2, int(o % 4));
    for (int j = 0; j < 8; ++j) out[j] = d * float(kIQ4Values[q[j]]);
  }
};

struct MXFP4 {
  static constexpr int kElements = 32, kBytes = 17;
  static __device__ float half_scale(uint32_t e) {
    if (e < 2) return __uint_as_float(0x00200000u << e);
    if (e == 255) return __uint_as_float(0x7fc00000u);
    return __uint_as_float((e - 1) << 23);
  }
  static __device__ void octet(const uint8_t* row, int64_t o, float* out) {
    const uint8_t* b = row + o / 4 * kBytes;
    const float d = half_scale(b[0]);
    const Nibbles<1> q(b + 1, int(o % 4));
    for (int j = 0; j < 8; ++j) out[j] = d * float(kE2M1Doubled[q[j]]);
  }
};

// Super-blocks of 256: 32 octets each.
struct Q2K {
  static constexpr int kElements = 256, kBytes = 84;
  static __device__ void octet(const uint8_t* row, int64_t o, float* out) {
    const uint8_t* b = row + o / 32 * kBytes;
    const int i = int(o % 32), g = i / 2;  // group of 16
    const float scale = half_at(b + 80) * float(b[g] & 15), minimum = half_at(b + 82) * float(b[g] >> 4);
    const uint8_t* qs = b + 16 + 32 * (i / 16) + 8 * (i % 4);
    const int shift = i % 16 / 4 * 2;
    const uint32_t lo = load4(qs) >> shift & 0x03030303u, hi = load4(qs + 4) >> shift & 0x03030303u;
    for (int j = 0; j < 8; ++j) out[j] = scale * float(byte_of(j < 4 ? lo : hi, j % 4)) - minimum;
  }
};

struct Q3K {
  static constexpr int kElements = 256, kBytes = 110;
  static __device__ void octet(const uint8_t* row, int64_t o, float* out) {
    const uint8_t* b = row + o / 32 * kBytes;
    const int i = int(o % 32), g = i / 2;
    const uint8_t* packed = b + 96;
    const int low = packed[g % 8] >> (4 * (g / 8)) & 15, high = packed[8 + g % 4] >> (2 * (g / 4)) & 3;
    const float scale = half_at(b + 108) * float((low | high << 4) - 32);
    const uint8_t* third = b + 8 * (i % 4);
    const uint8_t* qs = b + 32 + 32 * (i / 16) + 8 * (i % 4);
    const int shift = i % 16 / 4 * 2;
    for (int half = 0; half < 2; ++half) {
      const uint32_t two = word_at<2>(qs + 4 * half) >> shift & 0x03030303u;
      const uint32_t bit = word_at<2>(third + 4 * half) >> (i / 4) & 0x01010101u;
      const uint32_t q = two | bit << 2;
      for (int j = 0; j < 4; ++j) out[4 * half + j] = scale * float(int(byte_of(q, j)) - 4);
    }
  }
};

// The 12 bytes with 6-bit scales and minimums of Q4_K and Q5_K: see quant/k_scales.h.
__device__ inline void scale_min(const uint8_t* packed, int g, float d, float dmin, float& scale, float& minimum) {
  int s, m;
  if (g < 4) {
    s = packed[g] & 63, m = packed[g + 4] & 63;
  } else {
    s = (packed[g + 4] & 15) | (packed[g - 4] >> 6) << 4;
    m = packed[g + 4] >> 4 | (packed[g] >> 6) << 4;
  }
  scale = d * float(s), minimum = dmin * float(m);
}

struct Q4K {
  static constexpr int kElements = 256, kBytes = 144;
  static __device__ void octet(const uint8_t* row, int64_t o, float* out) {
    const uint8_t* b = row + o / 32 * kBytes;
    const int i = int(o % 32), g = i / 4;  // group of 32
    float scale, minimum;
    scale_min(b + 4, g, half_at(b), half_at(b + 2), scale, minimum);
    const uint2 v = *reinterpret_cast<const uint2*>(b + 16 + 32 * (g / 2) + 8 * (i % 4));
    const int shift = 4 * (g % 2);
    const uint32_t lo = v.x >> shift & 0x0f0f0f0fu, hi = v.y >> shift & 0x0f0f0f0fu;
    for (int j = 0; j < 8; ++j) out[j] = scale * float(byte_of(j < 4 ? lo : hi, j % 4)) - minimum;
  }
};

struct Q5K {
  static constexpr int kElements = 256, kBytes = 176;
  static __device__ void octet(const uint8_t* row, int64_t o, float* out) {
    const uint8_t* b = row + o / 32 * kBytes;
    const int i = int(o % 32), g = i / 4;
    float scale, minimum;
    scale_min(b + 4, g, half_at(b), half_at(b + 2), scale, minimum);
    const uint2 v = *reinterpret_cast<const uint2*>(b + 48 + 32 * (g / 2) + 8 * (i % 4));
    const uint2 fifth = *reinterpret_cast<const uint2*>(b + 16 + 8 * (i % 4));
    const int shift = 4 * (g % 2);
    const uint32_t lo = (v.x >> shift & 0x0f0f0f0fu) | (fifth.x >> g & 0x01010101u) << 4;
    const uint32_t hi = (v.y >> shift & 0x0f0f0f0fu) | (fifth.y >> g & 0x01010101u) << 4;
    for (int j = 0; j < 8; ++j) out[j] = scale * float(byte_of(j < 4 ? lo : hi, j % 4)) - minimum;
  }
};

struct Q6K {
  static constexpr int kElements = 256, kBytes = 210;
  static __device__ void octet(const uint8_t* row, int64_t o, float* out) {
    const uint8_t* b = row + o / 32 * kBytes;
    const int i = int(o % 32), half = i / 16, part = i % 16 / 4, j8 = 8 * (i % 4);
    const float scale = half_at(b + 208) * float(int8_t(b[192 + i / 2]));
    const uint8_t* low = b + 64 * half + 32 * (part % 2) + j8;
    const uint8_t* high = b + 128 + 32 * half + j8;
    for (int w = 0; w < 2; ++w) {
      const uint32_t four = word_at<2>(low + 4 * w) >> (4 * (part / 2)) & 0x0f0f0f0fu;
      const uint32_t two = word_at<2>(high + 4 * w) >> (2 * part) & 0x03030303u;
      const uint32_t q = four | two << 4;
      for (int j = 0; j < 4; ++j) out[4 * w + j] = scale * float(int(byte_of(q, j)) - 32);
    }
  }
};

struct IQ4XS {
  static constexpr int kElements = 256, kBytes = 136;
  static __device__ void octet(const uint8_t* row, int64_t o, float* out) {
    const uint8_t* b = row + o / 32 * kBytes;
    const int i = int(o % 32), g = i / 4;
    const int low = b[4 + g / 2] >> (4 * (g % 2)) & 15, high = int(load2(b + 2) >> (2 * g)) & 3;
    const float scale = half_at(b) * float((low | high << 4) - 32);
    const Nibbles<4> q(b + 8 + 16 * g, i % 4);
    for (int j = 0; j < 8; ++j) out[j] = scale * float(kIQ4Values[q[j]]);
  }
};

template <class F>
__device__ int64_t row_bytes_of(int64_t cols) {
  return cols / F::kElements * F::kBytes;
}

}  // namespace ef::cuda
