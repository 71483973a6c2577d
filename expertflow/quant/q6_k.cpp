#include "expertflow/quant/q6_k.h"

#include "expertflow/quant/block.h"
#include "expertflow/quant/fit.h"

namespace ef {
namespace {

/// Where element i lies in a block.
struct Place {
  explicit Place(int i) : half(i / 128), part(i % 128 / 32), j(i % 32) {}
  int low_byte() const { return 64 * half + 32 * (part % 2) + j; }
  int low_shift() const { return 4 * (part / 2); }
  int high_byte() const { return 32 * half + j; }
  int high_shift() const { return 2 * part; }
  int half, part, j;
};

}  // namespace

void decode(const BlockQ6_K& b, float* out) {
  const float d = f16_to_f32(b.d);
  for (int g = 0; g < 16; ++g) {
    const Place p(16 * g);
    const float scale = d * b.scales[g];
    for (int i = 0; i < 16; ++i) {
      const int low = b.ql[p.low_byte() + i] >> p.low_shift() & 15;
      const int high = b.qh[p.high_byte() + i] >> p.high_shift() & 3;
      out[16 * g + i] = scale * ((low | high << 4) - 32);
    }
  }
}

void encode(const float* in, BlockQ6_K& b) {
  const SuperBlock<16> s(in);
  double fits[16];
  for (int g = 0; g < 16; ++g) fits[g] = fit_scale(s.group(g), s.group_weights(g), -32, 31);
  const SymmetricScales<16> scales(fits, -128, 127);
  b = {};
  b.d = scales.d;
  for (int i = 0; i < 256; ++i) {
    const Place p(i);
    const int q = quantize_clamped(s.x[i], scales.unit(i / 16), -32, 31) + 32;
    b.scales[i / 16] = int8_t(scales.scale[i / 16]);
    b.ql[p.low_byte()] |= uint8_t((q & 15) << p.low_shift());
    b.qh[p.high_byte()] |= uint8_t((q >> 4) << p.high_shift());
  }
}

}  // namespace ef
