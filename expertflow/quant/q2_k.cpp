#include "expertflow/quant/q2_k.h"

#include "expertflow/quant/block.h"
#include "expertflow/quant/fit.h"

namespace ef {

void decode(const BlockQ2_K& b, float* out) {
  const float d = f16_to_f32(b.d);
  const float dmin = f16_to_f32(b.dmin);
  for (int i = 0; i < 256; ++i) {
    const uint8_t packed = b.scales[i / 16];
    const int q = b.qs[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
    out[i] = d * (packed & 15) * q - dmin * (packed >> 4);
  }
}

void encode(const float* in, BlockQ2_K& b) {
  const SuperBlock<16> s(in);
  AffineFit fits[16];
  fit_groups<16>(s, 3, fits);
  const AffineScales<16> scales(fits, 15);
  b = {};
  b.d = scales.d;
  b.dmin = scales.dmin;
  for (int i = 0; i < 256; ++i) {
    const int g = i / 16;
    b.scales[g] = uint8_t(scales.scale[g] | scales.minimum[g] << 4);
    b.qs[i / 128 * 32 + i % 32] |= uint8_t(scales.code(s.x[i], g, 3) << (i % 128 / 32 * 2));
  }
}

}  // namespace ef
