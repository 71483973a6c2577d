#include "expertflow/quant/q8_0.h"

#include "expertflow/quant/block.h"

namespace ef {

void decode(const BlockQ8_0& b, float* out) {
  const float d = f16_to_f32(b.d);
  for (int i = 0; i < 32; ++i) out[i] = d * b.qs[i];
}

void encode(const float* in, BlockQ8_0& b) {
  float peak = 0;
  for (int i = 0; i < 32; ++i) peak = std::max(peak, std::abs(finite_or_zero(in[i])));
  b.d = scale_to_f16(peak / 127.0);
  const float d = f16_to_f32(b.d);
  for (int i = 0; i < 32; ++i) b.qs[i] = int8_t(quantize_clamped(finite_or_zero(in[i]), d, -127, 127));
}

}  // namespace ef
