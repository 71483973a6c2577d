#include "expertflow/quant/mxfp4.h"

#include "expertflow/quant/block.h"

namespace ef {
namespace {

/// Code of the E2M1 number nearest to v; ties go to the even code, magnitudes past 6 saturate.
uint8_t nearest_e2m1(double v) {
  // Midpoints between neighbouring magnitudes; odd ones belong to the code above them (even), even ones to the code
  // below.
  constexpr double kMidpoints[7] = {0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5};
  const double magnitude = std::abs(v);
  int code = 0;
  while (code < 7 && (code % 2 ? magnitude >= kMidpoints[code] : magnitude > kMidpoints[code])) ++code;
  return uint8_t(v < 0 && code ? code | 8 : code);
}

}  // namespace

void decode(const BlockMXFP4& b, float* out) {
  const float d = e8m0_half_to_f32(b.e);
  for (int j = 0; j < 16; ++j) {
    out[j] = d * kE2M1Doubled[b.qs[j] & 15];
    out[j + 16] = d * kE2M1Doubled[b.qs[j] >> 4];
  }
}

void encode(const float* in, BlockMXFP4& b) {
  double x[32];
  double peak = 0;
  for (int i = 0; i < 32; ++i) {
    x[i] = finite_or_zero(in[i]);
    peak = std::max(peak, std::abs(x[i]));
  }
  b = {};
  if (peak == 0) return;
  // The largest power of two is the one that puts the peak into [4, 8), saturating above 6; the next one may fit
  // better.
  const int top = std::ilogb(peak) - 2;
  double best = std::numeric_limits<double>::infinity();
  for (int exponent : {top, top + 1}) {
    const int clamped = std::clamp(exponent, -127, 125);  // 6 * 2^125 is the last finite product
    const double unit = std::ldexp(1.0, clamped);
    BlockMXFP4 candidate{};
    candidate.e = uint8_t(clamped + 127);
    double error = 0;
    for (int i = 0; i < 32; ++i) {
      const uint8_t code = nearest_e2m1(x[i] / unit);
      const double d = x[i] - 0.5 * unit * kE2M1Doubled[code];
      error += d * d;
      candidate.qs[i % 16] |= uint8_t(i < 16 ? code : code << 4);
    }
    if (error < best) b = candidate, best = error;
  }
}

void repack_mxfp4(const uint8_t* nibbles, const uint8_t* scales, std::byte* blocks, int64_t block_count) {
  for (int64_t n = 0; n < block_count; ++n) {
    const uint8_t* in = nibbles + 16 * n;
    auto element = [in](int i) { return in[i / 2] >> (4 * (i % 2)) & 15; };
    BlockMXFP4 b{};
    b.e = scales[n];
    for (int j = 0; j < 16; ++j) b.qs[j] = uint8_t(element(j) | element(j + 16) << 4);
    store_block(blocks, n, b);
  }
}

void unpack_mxfp4(const std::byte* blocks, uint8_t* nibbles, uint8_t* scales, int64_t block_count) {
  for (int64_t n = 0; n < block_count; ++n) {
    const BlockMXFP4 b = load_block<BlockMXFP4>(blocks, n);
    auto element = [&b](int i) { return b.qs[i % 16] >> (i < 16 ? 0 : 4) & 15; };
    scales[n] = b.e;
    for (int j = 0; j < 16; ++j) nibbles[16 * n + j] = uint8_t(element(2 * j) | element(2 * j + 1) << 4);
  }
}

}  // namespace ef
