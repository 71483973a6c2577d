// float16 under CUDA's names.
#pragma once
#include "tests/cuda_emulation/include/emulated/float16.h"

EF_HALF_TYPE(__half, __half2, ef::emulated::float_of_half, ef::emulated::half_of)
using half = __half;
using half2 = __half2;

inline float __half2float(__half v) { return ef::emulated::float_of_half(v.__x); }
inline __half __ushort_as_half(unsigned short v) { return std::bit_cast<__half>(v); }
inline __half __short_as_half(short v) { return std::bit_cast<__half>(v); }
inline unsigned short __half_as_ushort(__half v) { return v.__x; }
inline short __half_as_short(__half v) { return std::bit_cast<short>(v); }
inline __half __float2half(float v) { return __half(v); }
inline __half __float2half_rn(float v) { return __half(v); }
inline __half __float2half_rz(float v) { return __ushort_as_half(ef::emulated::half_of<false>(double(v))); }
inline __half __double2half(double v) { return __half(v); }
inline __half __int2half_rn(int v) { return __half(v); }
inline __half __uint2half_rn(unsigned v) { return __half(v); }
inline __half __short2half_rn(short v) { return __half(int(v)); }
inline __half __ushort2half_rn(unsigned short v) { return __half(int(v)); }
inline int __half2int_rn(__half v) { return __float2int_rn(__half2float(v)); }
inline int __half2int_rz(__half v) { return __float2int_rz(__half2float(v)); }

inline __half2 make_half2(__half x, __half y) { return {x, y}; }
inline __half2 __halves2half2(__half x, __half y) { return {x, y}; }
inline __half2 __half2half2(__half v) { return {v, v}; }
inline __half2 __float2half2_rn(float v) { return {__half(v), __half(v)}; }
inline __half2 __floats2half2_rn(float x, float y) { return {__half(x), __half(y)}; }
inline __half2 __float22half2_rn(float2 v) { return {__half(v.x), __half(v.y)}; }
inline float2 __half22float2(__half2 v) { return {__half2float(v.x), __half2float(v.y)}; }
inline __half __low2half(__half2 v) { return v.x; }
inline __half __high2half(__half2 v) { return v.y; }
inline __half2 __low2half2(__half2 v) { return {v.x, v.x}; }
inline __half2 __high2half2(__half2 v) { return {v.y, v.y}; }
inline __half2 __lows2half2(__half2 a, __half2 b) { return {a.x, b.x}; }
inline __half2 __highs2half2(__half2 a, __half2 b) { return {a.y, b.y}; }
inline __half2 __lowhigh2highlow(__half2 v) { return {v.y, v.x}; }
