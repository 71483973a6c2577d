// Pairs of 16-bit numbers in a register, and small integers on their way to them.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>

namespace ef::cuda {

__device__ inline uint32_t bits_of(__half2 v) {
  uint32_t bits;
  memcpy(&bits, &v, sizeof bits);
  return bits;
}
__device__ inline __half2 half2_of(uint32_t bits) {
  __half2 v;
  memcpy(&v, &bits, sizeof v);
  return v;
}
// Two floats rounded to halves, the first below.
__device__ inline uint32_t pair_of(float low, float high) { return bits_of(__floats2half2_rn(low, high)); }
__device__ inline uint32_t brain_pair_of(float low, float high) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
  uint32_t bits;
  memcpy(&bits, &v, sizeof bits);
  return bits;
}

constexpr int kWeightLift = 6;  // block formats become halves times 2^6: small scales keep their bits, 1023 is the most

// The same half twice: constants, the lower and the upper half of a word, and those times a power of two.
__device__ inline __half2 twice(float v) { return __float2half2_rn(v); }
__device__ inline __half2 lower_twice(uint32_t word) { return half2_of(__byte_perm(word, 0, 0x1010)); }
__device__ inline __half2 upper_twice(uint32_t word) { return half2_of(__byte_perm(word, 0, 0x3232)); }
__device__ inline __half2 lifted(__half2 v) { return __hmul2(v, twice(float(1 << kWeightLift))); }

// Bytes as halves, exactly: with 0x64 above it a byte b is 1024 + b. Two neighbours, or one of them twice.
constexpr uint32_t kOver1024 = 0x64646464u;
__device__ inline __half2 bytes_over_1024(uint32_t word, int pair) {
  return half2_of(__byte_perm(word, kOver1024, pair ? 0x4342 : 0x4140));
}
__device__ inline __half2 byte_over_1024(uint32_t word, int i) {
  return half2_of(__byte_perm(word, kOver1024, 0x4040 | i * 0x0101));
}
// (byte - zero) * scale for the four bytes of a word; zero is whole.
__device__ inline void scaled_bytes(uint32_t word, float zero, __half2 scale, uint32_t* out) {
#pragma unroll
  for (int i = 0; i < 2; ++i) out[i] = bits_of(__hmul2(__hsub2(bytes_over_1024(word, i), twice(1024.f + zero)), scale));
}

// Weights that lie in shared memory: the same arithmetic on addresses, other loads.
struct SharedBytes {
  const uint8_t* at;
  __device__ SharedBytes operator+(int64_t n) const { return {at + n}; }
  __device__ SharedBytes operator-(int64_t n) const { return {at - n}; }
};
__device__ inline uintptr_t address_of(const uint8_t* p) { return reinterpret_cast<uintptr_t>(p); }
__device__ inline uintptr_t address_of(SharedBytes p) { return reinterpret_cast<uintptr_t>(p.at); }
__device__ inline const uint8_t* plain(const uint8_t* p) { return p; }
__device__ inline const uint8_t* plain(SharedBytes p) { return p.at; }

// Weights in global memory, by the path for what no kernel writes; addresses are multiples of what is read.
__device__ inline uint32_t weight1(const uint8_t* p) { return __ldg(p); }
__device__ inline uint32_t weight2(const uint8_t* p) { return __ldg(reinterpret_cast<const uint16_t*>(p)); }
__device__ inline uint32_t weight4(const uint8_t* p) { return __ldg(reinterpret_cast<const uint32_t*>(p)); }
__device__ inline uint2 weight8(const uint8_t* p) { return __ldg(reinterpret_cast<const uint2*>(p)); }
__device__ inline uint4 weight16(const uint8_t* p) { return __ldg(reinterpret_cast<const uint4*>(p)); }
__device__ inline uint32_t weight1(SharedBytes p) { return *p.at; }
__device__ inline uint32_t weight2(SharedBytes p) { return *reinterpret_cast<const uint16_t*>(p.at); }
__device__ inline uint32_t weight4(SharedBytes p) { return *reinterpret_cast<const uint32_t*>(p.at); }
__device__ inline uint2 weight8(SharedBytes p) { return *reinterpret_cast<const uint2*>(p.at); }
__device__ inline uint4 weight16(SharedBytes p) { return *reinterpret_cast<const uint4*>(p.at); }

// Eight bytes from an address that is a multiple of kAlign, as the words that hold them; get() joins them.
template <int kAlign>
struct EightBytes {
  uint32_t w[kAlign < 4 ? 3 : 2];
  template <class Bytes>
  __device__ void load(Bytes p) {
    const auto past = int64_t(address_of(p) % 4);
    const Bytes words = p - past;
    if constexpr (kAlign >= 8) {
      const uint2 v = weight8(p);
      w[0] = v.x, w[1] = v.y;
    } else {
      w[0] = weight4(words), w[1] = weight4(words + 4);
    }
    if constexpr (kAlign < 4) w[2] = past != 0 ? weight4(words + 8) : 0;
  }
  __device__ void clear() {
    for (uint32_t& word : w) word = 0;
  }
  // p: as at load(), or another address with the same remainder by 4.
  template <class Bytes>
  __device__ void get(Bytes p, uint32_t (&out)[2]) const {
    if constexpr (kAlign < 4) {
      const uint32_t shift = 8 * uint32_t(address_of(p) % 4);
      out[0] = __funnelshift_r(w[0], w[1], shift), out[1] = __funnelshift_r(w[1], w[2], shift);
    } else {
      out[0] = w[0], out[1] = w[1];
    }
  }
};

// Sixteen signed values + 128 by four-bit code: those of the codes in four bytes (below 16).
struct Values16 {
  uint32_t w[4];
};
constexpr Values16 kIQ4Over128 = {{0x3f2d1801u, 0x766a5d4fu, 0xa6998d81u, 0xf1d9c5b5u}};
__device__ inline uint32_t look_up(const Values16 values, uint32_t codes) {
  const uint32_t two = (codes | codes >> 4) & 0x00ff00ffu;
  const uint32_t four = (two | two >> 8) & 0xffffu;  // the codes, four bits each
  const uint32_t low = __byte_perm(values.w[0], values.w[1], four & 0x7777u);
  const uint32_t high = __byte_perm(values.w[2], values.w[3], four & 0x7777u);
  return __byte_perm(low, high, 0x3210u | (four & 0x8888u) >> 1);
}

}  // namespace ef::cuda
