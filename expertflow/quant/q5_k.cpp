#include "expertflow/quant/q5_k.h"

#include "expertflow/quant/block.h"
#include "expertflow/quant/fit.h"
#include "expertflow/quant/k_scales.h"

namespace ef {

void decode(const BlockQ5_K& b, float* out) {
  const float d = f16_to_f32(b.d);
  const float dmin = f16_to_f32(b.dmin);
  for (int g = 0; g < 8; ++g) {
    const ScaleMin s = unpack_scale_min(b.scales, g);
    const float scale = d * s.scale;
    const float minimum = dmin * s.minimum;
    for (int j = 0; j < 32; ++j) {
      const int q = (b.qs[g / 2 * 32 + j] >> (4 * (g % 2)) & 15) | (b.qh[j] >> g & 1) << 4;
      out[32 * g + j] = scale * q - minimum;
    }
  }
}

void encode(const float* in, BlockQ5_K& b) {
  const SuperBlock<32> s(in);
  AffineFit fits[8];
  fit_groups<32>(s, 31, fits);
  const AffineScales<8> scales(fits, 63);
  b = {};
  b.d = scales.d;
  b.dmin = scales.dmin;
  for (int g = 0; g < 8; ++g) {
    pack_scale_min(b.scales, g, scales.scale[g], scales.minimum[g]);
    for (int j = 0; j < 32; ++j) {
      const int q = scales.code(s.x[32 * g + j], g, 31);
      b.qs[g / 2 * 32 + j] |= uint8_t((q & 15) << (4 * (g % 2)));
      b.qh[j] |= uint8_t((q >> 4) << g);
    }
  }
}

}  // namespace ef
