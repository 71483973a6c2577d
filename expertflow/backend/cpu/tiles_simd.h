// Products of weights in tiles (quant/tiles.h) with activations in 8 bits: a lane is a row of weights, so nothing is
// added across lanes. Included like kernels_simd.h, which says what may stand here; needs of the instruction set, over
// kLanes 32-bit integers: I, load_words, act, all_of, both, either, left, right, lookup, to_float, load_f16, load_u8,
// Sums<T> (sums_pairs.h or sums_dot.h), and kTileRowBlock, the most rows of x whose sums fit the registers.
#pragma once
#include "expertflow/quant/formats.h"
#include "expertflow/quant/iq4_nl.h"
#include "expertflow/quant/iq4_xs.h"
#include "expertflow/quant/mxfp4.h"
#include "expertflow/quant/q2_k.h"
#include "expertflow/quant/q3_k.h"
#include "expertflow/quant/q4_0.h"
#include "expertflow/quant/q4_1.h"
#include "expertflow/quant/q4_k.h"
#include "expertflow/quant/q5_0.h"
#include "expertflow/quant/q5_1.h"
#include "expertflow/quant/q5_k.h"
#include "expertflow/quant/q6_k.h"
#include "expertflow/quant/q8_0.h"

namespace ef::cpu {
namespace {

constexpr int kTileLanes = 16;  // kTileRows of quant/tiles.h

// A plane of a tile, from the lanes of one vector on: word i of block b.
template <int kWords, int kWidth>
struct Plane {
  const std::byte* at = nullptr;
  // Returns what lies behind this plane.
  const std::byte* take(const std::byte* p, int64_t blocks, int lane) {
    at = p + lane * kWidth;
    return p + blocks * kWords * kWidth * kTileLanes;
  }
  const std::byte* word(int64_t block, int64_t i) const { return at + (block * kWords + i) * kWidth * kTileLanes; }
};

// The planes of a tile in their order, quant/tiles.cpp's.
template <class... Planes>
void take_planes(const std::byte* p, int64_t blocks, int lane, Planes&... planes) {
  ((p = planes.take(p, blocks, lane)), ...);
}

inline I low_nibble_bytes(I v) { return both(v, all_of(0x0f0f0f0f)); }
inline I high_nibble_bytes(I v) { return both(right(v, 4), all_of(0x0f0f0f0f)); }
// Byte `index` of every word.
inline I byte_of(I v, int index) { return both(right(v, 8 * index), all_of(255)); }

// Every format below: kBlock elements a block in kChunks chunks of kGroups groups of kGroup elements. codes(chunk,
// group, word) holds elements 4 word to 4 word + 3 of the group; the group's numbers are scale * (code - kZero) +
// offset. kMaxCode bounds the codes; kSigned ones are signed bytes, kZero is then what an unsigned product adds.
template <class Block, int kGroupElements, int kChunkCount, int kZeroPoint, int kMax, bool kMinimums = false,
          bool kSignedCodes = false>
struct Traits {
  static constexpr int kBlock = Block::kElements, kBlockBytes = sizeof(Block);
  static constexpr int kGroup = kGroupElements, kChunks = kChunkCount;
  static constexpr int kGroups = kBlock / kGroup / kChunks;
  static constexpr int kZero = kZeroPoint, kMaxCode = kMax;
  static constexpr bool kHasOffset = kMinimums, kSigned = kSignedCodes;
};

struct TileQ8_0 : Traits<BlockQ8_0, 32, 1, 128, 255, false, true> {
  TileQ8_0(const std::byte* p, int64_t blocks, int lane) { take_planes(p, blocks, lane, qs, d); }
  void block(int64_t b) { at = b; }
  I codes(int, int, int w) const { return load_words(qs.word(at, w)); }
  V scale(int, int) const { return load_f16(d.word(at, 0)); }
  Plane<8, 4> qs;
  Plane<1, 2> d;
  int64_t at = 0;
};

// Nibbles of 32 elements: byte j holds elements j (low) and j + 16 (high).
inline I nibble_word(const Plane<4, 4>& qs, int64_t b, int w) {
  const I v = load_words(qs.word(b, w % 4));
  return w < 4 ? low_nibble_bytes(v) : high_nibble_bytes(v);
}
// Fifth bits that tiles keep a byte apart: bit w of byte b belongs to element 4w + b.
inline I fifth_bit(const Plane<1, 4>& qh, int64_t b, int w) {
  const I v = load_words(qh.word(b, 0));
  return both(w < 4 ? left(v, 4 - w) : right(v, w - 4), all_of(0x10101010));
}

struct TileQ4_0 : Traits<BlockQ4_0, 32, 1, 8, 15> {
  TileQ4_0(const std::byte* p, int64_t blocks, int lane) { take_planes(p, blocks, lane, qs, d); }
  void block(int64_t b) { at = b; }
  I codes(int, int, int w) const { return nibble_word(qs, at, w); }
  V scale(int, int) const { return load_f16(d.word(at, 0)); }
  Plane<4, 4> qs;
  Plane<1, 2> d;
  int64_t at = 0;
};

struct TileQ4_1 : Traits<BlockQ4_1, 32, 1, 0, 15, true> {
  TileQ4_1(const std::byte* p, int64_t blocks, int lane) { take_planes(p, blocks, lane, qs, dm); }
  void block(int64_t b) { at = b; }
  I codes(int, int, int w) const { return nibble_word(qs, at, w); }
  V scale(int, int) const { return load_f16(dm.word(at, 0)); }
  V offset(int, int) const { return load_f16(dm.word(at, 1)); }
  Plane<4, 4> qs;
  Plane<2, 2> dm;
  int64_t at = 0;
};

struct TileQ5_0 : Traits<BlockQ5_0, 32, 1, 16, 31> {
  TileQ5_0(const std::byte* p, int64_t blocks, int lane) { take_planes(p, blocks, lane, qs, qh, d); }
  void block(int64_t b) { at = b; }
  I codes(int, int, int w) const { return either(nibble_word(qs, at, w), fifth_bit(qh, at, w)); }
  V scale(int, int) const { return load_f16(d.word(at, 0)); }
  Plane<4, 4> qs;
  Plane<1, 4> qh;
  Plane<1, 2> d;
  int64_t at = 0;
};

struct TileQ5_1 : Traits<BlockQ5_1, 32, 1, 0, 31, true> {
  TileQ5_1(const std::byte* p, int64_t blocks, int lane) { take_planes(p, blocks, lane, qs, qh, dm); }
  void block(int64_t b) { at = b; }
  I codes(int, int, int w) const { return either(nibble_word(qs, at, w), fifth_bit(qh, at, w)); }
  V scale(int, int) const { return load_f16(dm.word(at, 0)); }
  V offset(int, int) const { return load_f16(dm.word(at, 1)); }
  Plane<4, 4> qs;
  Plane<1, 4> qh;
  Plane<2, 2> dm;
  int64_t at = 0;
};

struct TileIQ4_NL : Traits<BlockIQ4_NL, 32, 1, 128, 255, false, true> {
  TileIQ4_NL(const std::byte* p, int64_t blocks, int lane) { take_planes(p, blocks, lane, qs, d); }
  void block(int64_t b) { at = b; }
  I codes(int, int, int w) const { return lookup(kIQ4Values, nibble_word(qs, at, w)); }
  V scale(int, int) const { return load_f16(d.word(at, 0)); }
  Plane<4, 4> qs;
  Plane<1, 2> d;
  int64_t at = 0;
};

struct TileMXFP4 : Traits<BlockMXFP4, 32, 1, 128, 255, false, true> {
  TileMXFP4(const std::byte* p, int64_t blocks, int lane) { take_planes(p, blocks, lane, qs, e); }
  void block(int64_t b) { at = b; }
  I codes(int, int, int w) const { return lookup(kE2M1Doubled, nibble_word(qs, at, w)); }
  // 2^(e - 128), the reference's e8m0_half_to_f32.
  V scale(int, int) const { return power_of_two_half(load_u8(e.word(at, 0))); }
  Plane<4, 4> qs;
  Plane<1, 1> e;
  int64_t at = 0;
};

struct TileIQ4_XS : Traits<BlockIQ4_XS, 32, 8, 128, 255, false, true> {
  TileIQ4_XS(const std::byte* p, int64_t blocks, int lane) { take_planes(p, blocks, lane, qs, low, d_high); }
  void block(int64_t b) {
    at = b;
    d = load_f16(d_high.word(b, 0));
    scales_low = load_words(low.word(b, 0));
    scales_high = load_u16(d_high.word(b, 1));
  }
  I codes(int c, int, int w) const {
    const I v = load_words(qs.word(at, 4 * c + w % 4));
    return lookup(kIQ4Values, w < 4 ? low_nibble_bytes(v) : high_nibble_bytes(v));
  }
  V scale(int c, int) const {
    const I four = both(right(scales_low, 4 * c), all_of(15));
    const I two = left(both(right(scales_high, 2 * c), all_of(3)), 4);
    return mul(d, to_float(less(either(four, two), 32)));
  }
  Plane<32, 4> qs;
  Plane<1, 4> low;
  Plane<2, 2> d_high;
  I scales_low, scales_high;
  V d;
  int64_t at = 0;
};

// Scales and minimums of Q4_K and Q5_K, quant/k_scales.h over all lanes: a word has those of four groups.
struct KScaleWords {
  void load(const Plane<3, 4>& scales, const Plane<2, 2>& halves, int64_t b) {
    const I a = load_words(scales.word(b, 0)), m = load_words(scales.word(b, 1)), z = load_words(scales.word(b, 2));
    const I six = all_of(0x3f3f3f3f), top = all_of(0x30303030);
    scale[0] = both(a, six);
    scale[1] = either(low_nibble_bytes(z), both(right(a, 2), top));
    minimum[0] = both(m, six);
    minimum[1] = either(high_nibble_bytes(z), both(right(m, 2), top));
    d = load_f16(halves.word(b, 0));
    minus_dmin = sub(zero(), load_f16(halves.word(b, 1)));
  }
  V scale_of(int g) const { return mul(d, to_float(byte_of(scale[g / 4], g % 4))); }
  V offset_of(int g) const { return mul(minus_dmin, to_float(byte_of(minimum[g / 4], g % 4))); }
  I scale[2], minimum[2];
  V d, minus_dmin;
};

struct TileQ4_K : Traits<BlockQ4_K, 32, 4, 0, 15, true> {
  TileQ4_K(const std::byte* p, int64_t blocks, int lane) { take_planes(p, blocks, lane, qs, scales, halves); }
  void block(int64_t b) {
    at = b;
    k.load(scales, halves, b);
  }
  I codes(int c, int g, int w) const {
    const I v = load_words(qs.word(at, 8 * c + w));
    return g == 0 ? low_nibble_bytes(v) : high_nibble_bytes(v);
  }
  V scale(int c, int g) const { return k.scale_of(2 * c + g); }
  V offset(int c, int g) const { return k.offset_of(2 * c + g); }
  Plane<32, 4> qs;
  Plane<3, 4> scales;
  Plane<2, 2> halves;
  KScaleWords k;
  int64_t at = 0;
};

struct TileQ5_K : Traits<BlockQ5_K, 32, 4, 0, 31, true> {
  TileQ5_K(const std::byte* p, int64_t blocks, int lane) { take_planes(p, blocks, lane, qs, qh, scales, halves); }
  void block(int64_t b) {
    at = b;
    k.load(scales, halves, b);
  }
  I codes(int c, int g, int w) const {
    const I v = load_words(qs.word(at, 8 * c + w)), high = load_words(qh.word(at, w));
    const I fifth = left(both(right(high, 2 * c + g), all_of(0x01010101)), 4);
    return either(g == 0 ? low_nibble_bytes(v) : high_nibble_bytes(v), fifth);
  }
  V scale(int c, int g) const { return k.scale_of(2 * c + g); }
  V offset(int c, int g) const { return k.offset_of(2 * c + g); }
  Plane<32, 4> qs;
  Plane<8, 4> qh;
  Plane<3, 4> scales;
  Plane<2, 2> halves;
  KScaleWords k;
  int64_t at = 0;
};

struct TileQ6_K : Traits<BlockQ6_K, 16, 2, 32, 63> {
  TileQ6_K(const std::byte* p, int64_t blocks, int lane) { take_planes(p, blocks, lane, ql, qh, scales, halves); }
  void block(int64_t b) {
    at = b;
    d = load_f16(halves.word(b, 0));
  }
  I codes(int c, int g, int w) const {
    const int s = g / 2;
    const I low = load_words(ql.word(at, 16 * c + 8 * (s % 2) + 4 * (g % 2) + w));
    const I high = load_words(qh.word(at, 8 * c + 4 * (g % 2) + w));
    const I top = s < 2 ? left(high, 4 - 2 * s) : right(high, 2 * s - 4);
    return either(s < 2 ? low_nibble_bytes(low) : high_nibble_bytes(low), both(top, all_of(0x30303030)));
  }
  V scale(int c, int g) const {
    const I words = load_words(scales.word(at, 2 * c + g / 4));
    return mul(d, to_float(right_signed(left(words, 24 - 8 * (g % 4)), 24)));
  }
  Plane<32, 4> ql;
  Plane<16, 4> qh;
  Plane<4, 4> scales;
  Plane<1, 2> halves;
  V d;
  int64_t at = 0;
};

// Element 128c + 32s + j of Q2_K and Q3_K: bits 2s of byte 32c + j. Group g of a chunk has s = g / 2.
inline I bit_pair_bytes(const Plane<16, 4>& qs, int64_t b, int c, int g, int w) {
  return both(right(load_words(qs.word(b, 8 * c + 4 * (g % 2) + w)), 2 * (g / 2)), all_of(0x03030303));
}

struct TileQ2_K : Traits<BlockQ2_K, 16, 2, 0, 3, true> {
  TileQ2_K(const std::byte* p, int64_t blocks, int lane) { take_planes(p, blocks, lane, qs, scales, halves); }
  void block(int64_t b) {
    at = b;
    d = load_f16(halves.word(b, 0));
    minus_dmin = sub(zero(), load_f16(halves.word(b, 1)));
  }
  I codes(int c, int g, int w) const { return bit_pair_bytes(qs, at, c, g, w); }
  I packed(int c, int g) const { return right(load_words(scales.word(at, 2 * c + g / 4)), 8 * (g % 4)); }
  V scale(int c, int g) const { return mul(d, to_float(both(packed(c, g), all_of(15)))); }
  V offset(int c, int g) const { return mul(minus_dmin, to_float(both(right(packed(c, g), 4), all_of(15)))); }
  Plane<16, 4> qs;
  Plane<4, 4> scales;
  Plane<2, 2> halves;
  V d, minus_dmin;
  int64_t at = 0;
};

struct TileQ3_K : Traits<BlockQ3_K, 16, 2, 4, 7> {
  TileQ3_K(const std::byte* p, int64_t blocks, int lane) { take_planes(p, blocks, lane, qs, hmask, scales, halves); }
  void block(int64_t b) {
    at = b;
    d = load_f16(halves.word(b, 0));
  }
  I codes(int c, int g, int w) const {
    const I third = load_words(hmask.word(at, 4 * (g % 2) + w));
    return either(bit_pair_bytes(qs, at, c, g, w), left(both(right(third, 4 * c + g / 2), all_of(0x01010101)), 2));
  }
  // Low nibbles: byte g of the first eight, the low ones for chunk 0. Bit pairs: byte 8 + g % 4, pair (8c + g) / 4.
  V scale(int c, int g) const {
    const I low = both(right(load_words(scales.word(at, g / 4)), 8 * (g % 4) + 4 * c), all_of(15));
    const I high = both(right(load_words(scales.word(at, 2)), 8 * (g % 4) + 2 * (2 * c + g / 4)), all_of(3));
    return mul(d, to_float(less(either(low, left(high, 4)), 32)));
  }
  Plane<16, 4> qs;
  Plane<8, 4> hmask;
  Plane<3, 4> scales;
  Plane<1, 2> halves;
  V d;
  int64_t at = 0;
};

// So few rows of x that a tile's bytes take longer to come than to be used: the next tile's are asked for meanwhile.
// Memory gives most when several of its pages are read at once, so the tile is walked from four places.
constexpr int kMemoryBoundTileRows = 4;
template <class T>
struct Prefetch {
  static constexpr int kBytes = kTileLanes * T::kBlockBytes / T::kChunks, kStreams = 4;
  Prefetch(const std::byte* tile, int64_t blocks)
      : at(tile), quarter((blocks * T::kChunks + kStreams - 1) / kStreams * kBytes) {}
  void next() {
    const char* p = reinterpret_cast<const char*>(at + step % kStreams * quarter + step / kStreams * kBytes);
#pragma GCC unroll 8
    for (int i = 0; i < kBytes; i += 64) _mm_prefetch(p + i, _MM_HINT_T1);
    ++step;
  }
  const std::byte* at;
  int64_t quarter, step = 0;
};

// kLanes rows of weights from `lane` of a tile on, against N rows of x.
template <class T, int N>
void tile_block(const TileMatmul& a, const std::byte* tile, int lane, int64_t r, V* acc) {
  T t(tile, a.blocks, lane);
  const int8_t* x[N];
  const float *xs[N], *sums[N];
  const int32_t* start[N];
#pragma GCC unroll 16
  for (int n = 0; n < N; ++n) {
    const QuantizedRow& row = a.x[r + n];
    x[n] = row.codes, xs[n] = row.scale, sums[n] = row.scaled_sum, start[n] = row.start;
  }
  int64_t k = 0;
  Prefetch<T> ahead(tile + a.tile_bytes, a.blocks);
  for (int64_t b = 0; b < a.blocks; ++b) {
    t.block(b);
    for (int c = 0; c < T::kChunks; ++c) {
      if constexpr (N <= kMemoryBoundTileRows) {
        if (lane == 0) ahead.next();
      }
#pragma GCC unroll 8
      for (int g = 0; g < T::kGroups; ++g, k += T::kGroup) {
        Sums<T> sum[N];
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n) sum[n].begin(start[n] + k / T::kGroup);
#pragma GCC unroll 8
        for (int w = 0; w < T::kGroup / 4; ++w) {
          const auto codes = Sums<T>::prepare(t.codes(c, g, w));
#pragma GCC unroll 16
          for (int n = 0; n < N; ++n) sum[n].add(codes, act(x[n] + k + 4 * w));
        }
        const V scale = t.scale(c, g);
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n) acc[n] = fma(to_float(sum[n].total()), mul(scale, set1(xs[n][k / 32])), acc[n]);
        if constexpr (T::kHasOffset) {
          const V offset = t.offset(c, g);
#pragma GCC unroll 16
          for (int n = 0; n < N; ++n) acc[n] = fma(offset, set1(sums[n][k / T::kGroup]), acc[n]);
        }
      }
    }
  }
}

template <class T, int N>
void tile_against(const TileMatmul& a, int64_t tile, int64_t r) {
  for (int lane = 0; lane < kTileLanes; lane += kLanes) {
    V acc[N];
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) acc[n] = zero();
    tile_block<T, N>(a, a.tiles + tile * a.tile_bytes, lane, r, acc);
    const int64_t i = kTileLanes * tile + lane;
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) store(a.out[r + n] + a.out_begin + i, a.bias ? add(acc[n], load(a.bias + i)) : acc[n]);
  }
}

template <class T>
void tile_matmul(const TileMatmul& a) {
  for (int64_t tile = 0; tile < a.tiles_count; ++tile) {
    int64_t r = 0;
    for (; r + kTileRowBlock <= a.rows; r += kTileRowBlock) tile_against<T, kTileRowBlock>(a, tile, r);
    for (; r + 4 <= a.rows; r += 4) tile_against<T, 4>(a, tile, r);
    for (; r + 2 <= a.rows; r += 2) tile_against<T, 2>(a, tile, r);
    if (r < a.rows) tile_against<T, 1>(a, tile, r);
  }
}

template <class T>
constexpr TileFormat tile_format() {
  return {tile_matmul<T>, T::kGroup, T::kZero};
}

struct TileTable {
  TileFormat row[kMaxFormats] = {};
};
constexpr TileTable tile_table() {
  TileTable t;
  t.row[int(Format::kQ8_0)] = tile_format<TileQ8_0>();
  t.row[int(Format::kQ4_0)] = tile_format<TileQ4_0>();
  t.row[int(Format::kQ4_1)] = tile_format<TileQ4_1>();
  t.row[int(Format::kQ5_0)] = tile_format<TileQ5_0>();
  t.row[int(Format::kQ5_1)] = tile_format<TileQ5_1>();
  t.row[int(Format::kQ2K)] = tile_format<TileQ2_K>();
  t.row[int(Format::kQ3K)] = tile_format<TileQ3_K>();
  t.row[int(Format::kQ4K)] = tile_format<TileQ4_K>();
  t.row[int(Format::kQ5K)] = tile_format<TileQ5_K>();
  t.row[int(Format::kQ6K)] = tile_format<TileQ6_K>();
  t.row[int(Format::kIQ4NL)] = tile_format<TileIQ4_NL>();
  t.row[int(Format::kIQ4XS)] = tile_format<TileIQ4_XS>();
  t.row[int(Format::kMXFP4)] = tile_format<TileMXFP4>();
  return t;
}
constexpr TileTable kTiles = tile_table();

// Sixteen elements at a time; largest magnitudes and integer sums do not depend on the order.
void quantize_row(const QuantizeRow& a) {
  constexpr int kVectors = 32 / kLanes, kPerHalf = kVectors / 2;
  for (int64_t g = 0; g < a.n / 32; ++g) {
    V x[kVectors];
    V largest = zero(), odd = zero();
    for (int i = 0; i < kVectors; ++i) {
      x[i] = load(a.x + 32 * g + i * kLanes);
      largest = max(largest, max(x[i], sub(zero(), x[i])));
      odd = fma(x[i], zero(), odd);  // NaN once a number is not finite
    }
    const float top = max_lane(largest), bad = add_lanes(odd);
    // Too small to be divided by: zeros.
    const bool some = top >= 1e-30f;
    const float scale = some ? top / 127.f + bad : bad;
    const V factor = set1(some ? 127.f / top : 0.f);
    int32_t halves[2] = {};
    for (int i = 0; i < kVectors; ++i)
      halves[i / kPerHalf] += store_codes(a.codes + 32 * g + i * kLanes, mul(x[i], factor));
    a.scale[g] = scale;
    if (a.group == 32) halves[0] += halves[1];
    for (int h = 0; h < 32 / a.group; ++h) {
      const int64_t at = g * (32 / a.group) + h;
      a.scaled_sum[at] = scale * float(halves[h]);
      a.start[at] = -a.zero * halves[h];
    }
  }
}

}  // namespace
}  // namespace ef::cpu
