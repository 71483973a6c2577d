// Arithmetic that CUDA adds to C's. Fast forms are as exact as the others here; the device's are not.
#pragma once
#include <math.h>

#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "tests/cuda_emulation/include/emulated/block.h"

// Of floats, the one that is a number.
template <class A, class B>
requires(std::is_arithmetic_v<A>&& std::is_arithmetic_v<B>) constexpr std::common_type_t<A, B> min(A a, B b) {
  using T = std::common_type_t<A, B>;
  return T(a) != T(a) ? T(b) : T(b) < T(a) ? T(b) : T(a);
}
template <class A, class B>
requires(std::is_arithmetic_v<A>&& std::is_arithmetic_v<B>) constexpr std::common_type_t<A, B> max(A a, B b) {
  using T = std::common_type_t<A, B>;
  return T(a) != T(a) ? T(b) : T(b) > T(a) ? T(b) : T(a);
}

// Bits.
inline float __int_as_float(int v) { return std::bit_cast<float>(v); }
inline float __uint_as_float(unsigned v) { return std::bit_cast<float>(v); }
inline int __float_as_int(float v) { return std::bit_cast<int>(v); }
inline unsigned __float_as_uint(float v) { return std::bit_cast<unsigned>(v); }
inline double __longlong_as_double(long long v) { return std::bit_cast<double>(v); }
inline long long __double_as_longlong(double v) { return std::bit_cast<long long>(v); }
inline int __popc(unsigned v) { return std::popcount(v); }
inline int __popcll(unsigned long long v) { return std::popcount(v); }
inline int __clz(int v) { return std::countl_zero(unsigned(v)); }
inline int __clzll(long long v) { return std::countl_zero(static_cast<unsigned long long>(v)); }
inline int __ffs(int v) { return v == 0 ? 0 : std::countr_zero(unsigned(v)) + 1; }
inline unsigned __brev(unsigned v) {
  unsigned r = 0;
  for (int i = 0; i < 32; ++i) r |= (v >> i & 1) << (31 - i);
  return r;
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t bytes = uint64_t(y) << 32 | x;
  unsigned r = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned select = selector >> (4 * i) & 15, byte = unsigned(bytes >> (8 * (select & 7))) & 255;
    r |= (select & 8 ? (byte & 128 ? 255u : 0u) : byte) << (8 * i);
  }
  return r;
}
inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned by) {
  return unsigned((uint64_t(hi) << 32 | lo) << (by & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned by) {
  return unsigned((uint64_t(hi) << 32 | lo) >> (by & 31));
}

// Integers.
inline int __mulhi(int a, int b) { return int(int64_t(a) * b >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }
inline int __mul24(int a, int b) { return int(unsigned(a << 8 >> 8) * unsigned(b << 8 >> 8)); }

namespace ef::emulated {
// Four products of bytes, and c; sums wrap.
template <class A, class B>
uint32_t dot_bytes(uint32_t a, uint32_t b, uint32_t c) {
  for (int i = 0; i < 4; ++i) c += uint32_t(int(A(a >> (8 * i) & 255)) * int(B(b >> (8 * i) & 255)));
  return c;
}
template <class F>
uint32_t by_bytes(uint32_t a, uint32_t b, F f) {
  uint32_t r = 0;
  for (int i = 0; i < 4; ++i) r |= (uint32_t(f(a >> (8 * i) & 255, b >> (8 * i) & 255)) & 255) << (8 * i);
  return r;
}
template <class F>
uint32_t by_halves(uint32_t a, uint32_t b, F f) {
  return (uint32_t(f(a & 0xffff, b & 0xffff)) & 0xffff) | uint32_t(f(a >> 16, b >> 16)) << 16;
}
}  // namespace ef::emulated

inline int __dp4a(int a, int b, int c) {
  return int(ef::emulated::dot_bytes<int8_t, int8_t>(unsigned(a), unsigned(b), unsigned(c)));
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  return ef::emulated::dot_bytes<uint8_t, uint8_t>(a, b, c);
}
inline int __dp4a(char4 a, char4 b, int c) { return __dp4a(std::bit_cast<int>(a), std::bit_cast<int>(b), c); }
inline unsigned __vadd4(unsigned a, unsigned b) {
  return ef::emulated::by_bytes(a, b, [](unsigned x, unsigned y) { return x + y; });
}
inline unsigned __vsub4(unsigned a, unsigned b) {
  return ef::emulated::by_bytes(a, b, [](unsigned x, unsigned y) { return x - y; });
}
inline unsigned __vsubss4(unsigned a, unsigned b) {
  return ef::emulated::by_bytes(a, b, [](unsigned x, unsigned y) {
    const int v = int8_t(x) - int8_t(y);
    return v > 127 ? 127 : v < -128 ? -128 : v;
  });
}
inline unsigned __vcmpeq4(unsigned a, unsigned b) {
  return ef::emulated::by_bytes(a, b, [](unsigned x, unsigned y) { return x == y ? 255 : 0; });
}
inline unsigned __vcmpne4(unsigned a, unsigned b) { return ~__vcmpeq4(a, b); }
inline unsigned __vadd2(unsigned a, unsigned b) {
  return ef::emulated::by_halves(a, b, [](unsigned x, unsigned y) { return x + y; });
}
inline unsigned __vsub2(unsigned a, unsigned b) {
  return ef::emulated::by_halves(a, b, [](unsigned x, unsigned y) { return x - y; });
}

// Conversions. What does not fit ends at the type's limits, and NaN becomes zero.
namespace ef::emulated {
template <class To, class From>
To saturated(From v) {
  if (v != v) return 0;
  if (v >= From(std::numeric_limits<To>::max())) return std::numeric_limits<To>::max();
  if (v <= From(std::numeric_limits<To>::min())) return std::numeric_limits<To>::min();
  return To(v);
}
}  // namespace ef::emulated
inline int __float2int_rn(float v) { return ef::emulated::saturated<int>(rintf(v)); }
inline int __float2int_rz(float v) { return ef::emulated::saturated<int>(truncf(v)); }
inline int __float2int_rd(float v) { return ef::emulated::saturated<int>(floorf(v)); }
inline int __float2int_ru(float v) { return ef::emulated::saturated<int>(ceilf(v)); }
inline unsigned __float2uint_rn(float v) { return ef::emulated::saturated<unsigned>(rintf(v)); }
inline unsigned __float2uint_rz(float v) { return ef::emulated::saturated<unsigned>(truncf(v)); }
inline float __int2float_rn(int v) { return float(v); }
inline float __uint2float_rn(unsigned v) { return float(v); }
inline float __ll2float_rn(long long v) { return float(v); }
inline float __double2float_rn(double v) { return float(v); }

// float32 functions.
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __frcp_rn(float v) { return 1.f / v; }
inline float __fsqrt_rn(float v) { return sqrtf(v); }
inline float __frsqrt_rn(float v) { return float(1 / sqrt(double(v))); }
inline float rsqrtf(float v) { return float(1 / sqrt(double(v))); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float v) { return expf(v); }
inline float __exp10f(float v) { return float(pow(10.0, double(v))); }
inline float __logf(float v) { return logf(v); }
inline float __log2f(float v) { return log2f(v); }
inline float __log10f(float v) { return log10f(v); }
inline float __powf(float a, float b) { return powf(a, b); }
inline float __sinf(float v) { return sinf(v); }
inline float __cosf(float v) { return cosf(v); }
inline float __tanf(float v) { return tanf(v); }
inline float __saturatef(float v) { return v != v ? 0.f : v < 0.f ? 0.f : v > 1.f ? 1.f : v; }

// Loads and stores that hint at caches.
template <class T>
T __ldg(const T* p) {
  return *p;
}
template <class T>
T __ldcs(const T* p) {
  return *p;
}
template <class T>
T __ldcg(const T* p) {
  return *p;
}
template <class T>
T __ldca(const T* p) {
  return *p;
}
template <class T>
T __ldlu(const T* p) {
  return *p;
}
template <class T>
T __ldcv(const T* p) {
  return *p;
}
template <class T>
void __stcs(T* p, T v) {
  *p = v;
}
template <class T>
void __stcg(T* p, T v) {
  *p = v;
}
template <class T>
void __stwb(T* p, T v) {
  *p = v;
}

inline void __nanosleep(unsigned) {}
inline long long clock64() { return 0; }
[[noreturn]] inline void __trap(ef::emulated::Place where = ef::emulated::Place::current()) {
  ef::emulated::stop("__trap", where);
}
