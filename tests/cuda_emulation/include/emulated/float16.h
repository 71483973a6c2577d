// 16-bit floats: float16 and bfloat16 share their operations. Each rounds once, to nearest even, as the device does.
#pragma once
#include <cmath>
#include <cstring>

#include <cuda_runtime.h>

namespace ef::emulated {

// The product has the right exponent, for small numbers as well; infinity and NaN keep theirs.
inline float float_of_half(uint16_t h) {
  const float magnitude = std::bit_cast<float>(uint32_t(h & 0x7fff) << 13) * 0x1p112f;
  const uint32_t endless = (h & 0x7c00) == 0x7c00 ? 0x7f800000u : 0u;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | endless | uint32_t(h & 0x8000) << 16);
}
inline float float_of_bfloat16(uint16_t b) { return std::bit_cast<float>(uint32_t(b) << 16); }

/// kNearest: to the nearest, the even of two; else towards zero.
template <bool kNearest = true>
uint16_t half_of(double v) {
  const uint16_t sign = std::signbit(v) ? 0x8000 : 0;
  if (v != v) return 0x7fff;
  const double magnitude = std::fabs(v);
  if (std::isinf(v)) return sign | 0x7c00;
  // Halves below 2^-14 lie 2^-24 apart, above it 11 bits are kept.
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  const int step = std::max(exponent - 11, -24);
  const double scaled = std::ldexp(magnitude, -step);
  const double whole = kNearest ? std::nearbyint(scaled) : std::trunc(scaled);
  const double rounded = std::ldexp(whole, step);
  if (rounded >= 65536) return sign | (kNearest ? 0x7c00 : 0x7bff);
  if (rounded < 0x1p-14) return sign | uint16_t(rounded * 0x1p24);
  const uint32_t bits = std::bit_cast<uint32_t>(float(rounded));
  return sign | uint16_t((bits - 0x38000000u) >> 13);
}
/// The same from a float, by its bits.
inline uint16_t half_of(float v) {
  const uint32_t bits = std::bit_cast<uint32_t>(v), magnitude = bits & 0x7fffffff;
  const uint16_t sign = uint16_t(bits >> 16 & 0x8000);
  if (magnitude > 0x7f800000) return 0x7fff;
  if (magnitude >= 0x477ff000) return sign | 0x7c00;
  // Adding a power of two leaves a small number's units of 2^-24 in the last bits.
  if (magnitude < 0x38800000)
    return sign | uint16_t(std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u);
  return sign | uint16_t((magnitude - 0x38000000u + 0xfff + (magnitude >> 13 & 1)) >> 13);
}

template <bool kNearest = true>
uint16_t bfloat16_of(float v) {
  const uint32_t bits = std::bit_cast<uint32_t>(v);
  if (v != v) return 0x7fff;
  return uint16_t((kNearest ? bits + 0x7fff + (bits >> 16 & 1) : bits) >> 16);
}
// A double rounded to odd keeps what decides the second rounding.
inline uint16_t bfloat16_of(double v) {
  float f = float(v);
  if (std::isfinite(f) && double(f) != v) {
    const bool towards_zero = std::fabs(double(f)) < std::fabs(v);
    if (!towards_zero) f = std::nextafter(f, 0.f);
    f = std::bit_cast<float>(std::bit_cast<uint32_t>(f) | 1u);
  }
  return bfloat16_of(f);
}

template <class H>
struct Traits;  // of a 16-bit float: to and from float and double
template <class H2>
struct PairTraits;  // of two of them: Element

template <class H>
concept Half = requires {
  Traits<H>::kIsHalf;
};
template <class H2>
concept Pair = requires {
  typename PairTraits<H2>::Element;
};

template <Half H>
float number(H h) {
  return Traits<H>::number(h);
}
template <Half H, class F>
H rounded(F v) {
  return Traits<H>::rounded(v);
}

template <Half H>
H fused(H a, H b, H c) {
  // The product is exact in a double; what the sum loses cannot decide the rounding to so few bits, ties apart.
  return rounded<H>(std::fma(double(number(a)), double(number(b)), double(number(c))));
}
template <Pair H2, class F>
H2 by_element(H2 a, H2 b, F f) {
  return {f(a.x, b.x), f(a.y, b.y)};
}

}  // namespace ef::emulated

#define EF_BY_NUMBER(name, expression)                                                \
  template <ef::emulated::Half H>                                                     \
  H name(H a, H b) {                                                                  \
    const float x = ef::emulated::number(a), y = ef::emulated::number(b);             \
    return ef::emulated::rounded<H>(expression);                                      \
  }                                                                                   \
  template <ef::emulated::Pair H2>                                                    \
  H2 name##2(H2 a, H2 b) {                                                            \
    return ef::emulated::by_element(a, b, [](auto v, auto w) { return name(v, w); }); \
  }
EF_BY_NUMBER(__hadd, x + y)
EF_BY_NUMBER(__hsub, x - y)
EF_BY_NUMBER(__hmul, x* y)
EF_BY_NUMBER(__hadd_rn, x + y)
EF_BY_NUMBER(__hsub_rn, x - y)
EF_BY_NUMBER(__hmul_rn, x* y)
EF_BY_NUMBER(__hmax, fmaxf(x, y))
EF_BY_NUMBER(__hmin, fminf(x, y))
#undef EF_BY_NUMBER
template <ef::emulated::Half H>
H __hdiv(H a, H b) {
  return ef::emulated::rounded<H>(double(ef::emulated::number(a)) / double(ef::emulated::number(b)));
}
template <ef::emulated::Pair H2>
H2 __h2div(H2 a, H2 b) {
  return {__hdiv(a.x, b.x), __hdiv(a.y, b.y)};
}
template <ef::emulated::Half H>
H __hfma(H a, H b, H c) {
  return ef::emulated::fused(a, b, c);
}
template <ef::emulated::Pair H2>
H2 __hfma2(H2 a, H2 b, H2 c) {
  return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};
}

#define EF_OF_ONE(name, expression)              \
  template <ef::emulated::Half H>                \
  H name(H a) {                                  \
    const float x = ef::emulated::number(a);     \
    return ef::emulated::rounded<H>(expression); \
  }
EF_OF_ONE(hexp, expf(x))
EF_OF_ONE(hexp2, exp2f(x))
EF_OF_ONE(hlog, logf(x))
EF_OF_ONE(hsqrt, sqrtf(x))
EF_OF_ONE(hrsqrt, rsqrtf(x))
EF_OF_ONE(hrcp, 1.f / x)
EF_OF_ONE(hrint, rintf(x))
EF_OF_ONE(hfloor, floorf(x))
#undef EF_OF_ONE
template <ef::emulated::Pair H2>
H2 h2exp(H2 a) {
  return {hexp(a.x), hexp(a.y)};
}
template <ef::emulated::Pair H2>
H2 h2exp2(H2 a) {
  return {hexp2(a.x), hexp2(a.y)};
}
// Signs change whatever the rest is, NaN included.
template <ef::emulated::Half H>
H __hneg(H a) {
  return std::bit_cast<H>(uint16_t(std::bit_cast<uint16_t>(a) ^ 0x8000));
}
template <ef::emulated::Half H>
H __habs(H a) {
  return std::bit_cast<H>(uint16_t(std::bit_cast<uint16_t>(a) & 0x7fff));
}
template <ef::emulated::Pair H2>
H2 __hneg2(H2 a) {
  return {__hneg(a.x), __hneg(a.y)};
}
template <ef::emulated::Pair H2>
H2 __habs2(H2 a) {
  return {__habs(a.x), __habs(a.y)};
}

#define EF_COMPARED(name, op)                                  \
  template <ef::emulated::Half H>                              \
  bool name(H a, H b) {                                        \
    return ef::emulated::number(a) op ef::emulated::number(b); \
  }
EF_COMPARED(__heq, ==)
EF_COMPARED(__hne, !=)
EF_COMPARED(__hlt, <)
EF_COMPARED(__hle, <=)
EF_COMPARED(__hgt, >)
EF_COMPARED(__hge, >=)
#undef EF_COMPARED
template <ef::emulated::Half H>
bool __hisnan(H a) {
  return isnan(ef::emulated::number(a));
}
template <ef::emulated::Half H>
int __hisinf(H a) {
  const float x = ef::emulated::number(a);
  return isinf(x) ? (x > 0 ? 1 : -1) : 0;
}

template <ef::emulated::Pair H2>
float __low2float(H2 v) {
  return ef::emulated::number(v.x);
}
template <ef::emulated::Pair H2>
float __high2float(H2 v) {
  return ef::emulated::number(v.y);
}
// A type of 16 bits and its pair, with operators and conversions.
#define EF_HALF_TYPE(H, H2, to_float, from)                 \
  struct H {                                                \
    unsigned short __x;                                     \
    H() = default;                                          \
    H(float v) : __x(from(v)) {}                            \
    H(double v) : __x(from(v)) {}                           \
    H(int v) : __x(from(double(v))) {}                      \
    H(unsigned v) : __x(from(double(v))) {}                 \
    operator float() const { return to_float(__x); }        \
  };                                                        \
  struct alignas(4) H2 {                                    \
    H x, y;                                                 \
  };                                                        \
  namespace ef::emulated {                                  \
  template <>                                               \
  struct Traits<H> {                                        \
    static constexpr bool kIsHalf = true;                   \
    static float number(H h) { return to_float(h.__x); }    \
    static H rounded(float v) { return H(v); }              \
    static H rounded(double v) { return H(v); }             \
  };                                                        \
  template <>                                               \
  struct PairTraits<H2> {                                   \
    using Element = H;                                      \
  };                                                        \
  }                                                         \
  inline H operator+(H a, H b) { return __hadd(a, b); }     \
  inline H operator-(H a, H b) { return __hsub(a, b); }     \
  inline H operator*(H a, H b) { return __hmul(a, b); }     \
  inline H operator/(H a, H b) { return __hdiv(a, b); }     \
  inline H operator-(H a) { return __hneg(a); }             \
  inline H& operator+=(H& a, H b) { return a = a + b; }     \
  inline H& operator-=(H& a, H b) { return a = a - b; }     \
  inline H& operator*=(H& a, H b) { return a = a * b; }     \
  inline bool operator==(H a, H b) { return __heq(a, b); }  \
  inline bool operator!=(H a, H b) { return __hne(a, b); }  \
  inline bool operator<(H a, H b) { return __hlt(a, b); }   \
  inline bool operator<=(H a, H b) { return __hle(a, b); }  \
  inline bool operator>(H a, H b) { return __hgt(a, b); }   \
  inline bool operator>=(H a, H b) { return __hge(a, b); }  \
  inline H2 operator+(H2 a, H2 b) { return __hadd2(a, b); } \
  inline H2 operator-(H2 a, H2 b) { return __hsub2(a, b); } \
  inline H2 operator*(H2 a, H2 b) { return __hmul2(a, b); }
