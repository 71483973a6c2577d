#include "expertflow/quant/iq4_nl.h"

#include "expertflow/quant/block.h"
#include "expertflow/quant/fit.h"

namespace ef {

namespace {
constexpr CodeBook kIQ4Book(kIQ4Values);
}

void decode(const BlockIQ4_NL& b, float* out) {
  const float d = f16_to_f32(b.d);
  for (int j = 0; j < 16; ++j) {
    out[j] = d * kIQ4Values[b.qs[j] & 15];
    out[j + 16] = d * kIQ4Values[b.qs[j] >> 4];
  }
}

void encode(const float* in, BlockIQ4_NL& b) {
  float x[32], weights[32];
  for (int i = 0; i < 32; ++i) x[i] = finite_or_zero(in[i]);
  error_weights(x, x, weights);
  b = {};
  b.d = scale_to_f16(fit_scale(x, weights, kIQ4Book));
  const double d = f16_to_f32(b.d);
  for (int i = 0; i < 32 && d != 0; ++i) {
    const int q = kIQ4Book.nearest(x[i] / d);
    b.qs[i % 16] |= uint8_t(i < 16 ? q : q << 4);
  }
}

}  // namespace ef
