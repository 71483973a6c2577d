// AVX-512's lanes with the sums of its VNNI.
#pragma once
#include "expertflow/backend/cpu/lanes_avx512.h"

namespace ef::cpu {
namespace {
inline I dot(I sum, I codes, I x) { return _mm512_dpbusd_epi32(sum, codes, x); }
}  // namespace
}  // namespace ef::cpu

#include "expertflow/backend/cpu/sums_dot.h"
