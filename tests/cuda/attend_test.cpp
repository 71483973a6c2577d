// attend() against doubles on the host: norms, clipping, rotation, the cache, and attention over it.
#include <algorithm>
#include <cmath>
#include <random>
#include <string>

#include "expertflow/backend/cuda/device/fast.h"
#include "expertflow/quant/scalars.h"
#include "tests/cuda/device_memory.h"

namespace ef::cuda::testing {
namespace {

enum class Norm { kNone, kHead, kWhole };

struct Row {
  int sequence, position;
};

struct Case {
  int type = 1;  // of KvParams
  int heads = 8, kv_heads = 2, k_dim = 64, v_dim = 64, block_tokens = 16, window = 0;
  bool latent = false, sinks = false, interleaved = false, one_row_each = true, settled = false;
  Norm norm = Norm::kNone;
  float clip = 0, size = 1.f;  // size: of queries
  int rotary = 0, offset = 0;
  int64_t more_reach = 0;
  std::vector<Row> rows;
};

// Rows begin .. end - 1 of a sequence.
void add_rows(Case& c, int sequence, int begin, int end) {
  for (int i = begin; i < end; ++i) c.rows.push_back({sequence, i});
}

class Numbers {
 public:
  explicit Numbers(uint32_t seed) : engine_(seed) {}
  std::vector<float> normal(size_t n, float deviation) {
    std::vector<float> all(n);
    for (float& v : all) v = deviation * normal_(engine_);
    return all;
  }
  template <class T>
  void shuffle(std::vector<T>& v) {
    std::shuffle(v.begin(), v.end(), engine_);
  }

 private:
  std::mt19937 engine_;
  std::normal_distribution<float> normal_;
};

int bytes_of(int type) { return type == 0 ? 4 : 2; }

double cached(const std::vector<uint8_t>& bytes, int type, size_t i) {
  if (type == 0) {
    float v;
    std::memcpy(&v, bytes.data() + 4 * i, 4);
    return double(v);
  }
  uint16_t h;
  std::memcpy(&h, bytes.data() + 2 * i, 2);
  return double(type == 1 ? f16_to_f32(h) : bf16_to_f32(h));
}

void put(std::vector<uint8_t>& bytes, int type, size_t i, float v) {
  if (type == 0) {
    std::memcpy(bytes.data() + 4 * i, &v, 4);
    return;
  }
  const uint16_t h = type == 1 ? f32_to_f16(v) : f32_to_bf16(v);
  std::memcpy(bytes.data() + 2 * i, &h, 2);
}

// What a call reads, on the host.
struct Inputs {
  std::vector<float> q, k, v, q_norm, k_norm, cos, sin, sinks;
  std::vector<int32_t> position, sequence, table;
  std::vector<uint8_t> k_cache, v_cache;
  int max_blocks = 0;

  size_t place(const Case& c, int sequence_of_row, int at) const {
    const int32_t block = table[size_t(sequence_of_row * max_blocks + at / c.block_tokens)];
    EXPECT_GE(block, 0);
    return size_t(block) * size_t(c.block_tokens) + size_t(at % c.block_tokens);
  }
};

Inputs make_inputs(const Case& c, uint32_t seed) {
  Numbers numbers(seed);
  Inputs in;
  const size_t n = c.rows.size(), q_width = size_t(c.heads * c.k_dim), k_width = size_t(c.kv_heads * c.k_dim),
               v_width = size_t(c.kv_heads * c.v_dim);
  in.q = numbers.normal(n * q_width, c.size), in.k = numbers.normal(n * k_width, 1.f);
  in.v = numbers.normal(n * v_width, 1.f);
  const bool whole = c.norm == Norm::kWhole;
  in.q_norm = numbers.normal(whole ? q_width : size_t(c.k_dim), 1.f);
  in.k_norm = numbers.normal(whole ? k_width : size_t(c.k_dim), 1.f);
  for (size_t i = 0; i < n * size_t(c.rotary / 2); ++i) {
    const float angle = numbers.normal(1, 3.f)[0];
    in.cos.push_back(std::cos(angle)), in.sin.push_back(std::sin(angle));
  }
  in.sinks = numbers.normal(size_t(c.heads), 1.f);

  int sequences = 0, longest = 0;
  for (const Row& r : c.rows)
    sequences = std::max(sequences, r.sequence + 1), longest = std::max(longest, r.position + 1);
  in.max_blocks = (longest + c.block_tokens - 1) / c.block_tokens + 1;
  std::vector<int32_t> ids(size_t(sequences * in.max_blocks + 2));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = int32_t(i);
  numbers.shuffle(ids);
  in.table.assign(size_t(sequences * in.max_blocks), -1);
  in.k_cache.assign(ids.size() * size_t(c.block_tokens) * k_width * size_t(bytes_of(c.type)), 0xff);  // NaN
  in.v_cache.assign(ids.size() * size_t(c.block_tokens) * v_width * size_t(bytes_of(c.type)), 0xff);
  for (int s = 0; s < sequences; ++s) {
    // Blocks that some row sees; what lies behind all windows is -1, what is not yet written stays NaN.
    int low = longest, high = 0;
    for (const Row& r : c.rows) {
      if (r.sequence != s) continue;
      low = std::min(low, c.window > 0 ? std::max(0, r.position - c.window + 1) : 0),
      high = std::max(high, r.position + 1);
    }
    for (int at = low; at < high; ++at) {
      int32_t& block = in.table[size_t(s * in.max_blocks + at / c.block_tokens)];
      if (block < 0) block = ids[size_t(s * in.max_blocks + at / c.block_tokens)];
      const bool is_row =
          std::any_of(c.rows.begin(), c.rows.end(), [&](const Row& r) { return r.sequence == s && r.position == at; });
      if (is_row) continue;
      const std::vector<float> key = numbers.normal(k_width, 1.f), value = numbers.normal(v_width, 1.f);
      const size_t place = in.place(c, s, at);
      for (size_t i = 0; i < k_width; ++i) put(in.k_cache, c.type, place * k_width + i, key[i]);
      for (size_t i = 0; i < v_width; ++i) put(in.v_cache, c.type, place * v_width + i, value[i]);
    }
  }
  for (const Row& r : c.rows) in.position.push_back(r.position), in.sequence.push_back(r.sequence);
  return in;
}

// A row's heads after norm, clipping and rotation.
std::vector<double> finished(const Case& c, const Inputs& in, size_t row, const float* x, int heads, int dim,
                             const std::vector<float>* weight, bool rotates) {
  std::vector<double> y(x, x + heads * dim);
  if (weight && c.norm != Norm::kNone) {
    const int width = c.norm == Norm::kWhole ? heads * dim : dim;
    for (int begin = 0; begin < heads * dim; begin += width) {
      double sum = 0;
      for (int i = begin; i < begin + width; ++i) sum += y[size_t(i)] * y[size_t(i)];
      const double inverse = 1 / std::sqrt(sum / width + double(1e-6f));
      for (int i = 0; i < width; ++i) y[size_t(begin + i)] *= inverse * double((*weight)[size_t(i)]);
    }
  }
  if (c.clip > 0)
    for (double& v : y) v = std::clamp(v, -double(c.clip), double(c.clip));
  const int pairs = rotates ? c.rotary / 2 : 0;
  for (int h = 0; h < heads; ++h)
    for (int i = 0; i < pairs; ++i) {
      double* head = y.data() + h * dim + c.offset;
      double& first = c.interleaved ? head[2 * i] : head[i];
      double& second = c.interleaved ? head[2 * i + 1] : head[i + pairs];
      const double u = first, v = second, cos = double(in.cos[row * size_t(pairs) + size_t(i)]),
                   sin = double(in.sin[row * size_t(pairs) + size_t(i)]);
      first = u * cos - v * sin, second = v * cos + u * sin;
    }
  return y;
}

// The cache holds `want` but for the rounding of its type and float32's before it.
void expect_stored(const std::vector<uint8_t>& cache, int type, size_t at, const std::vector<double>& want,
                   const std::string& what) {
  const double unit = type == 0 ? 0x1p-21 : type == 1 ? 0x1p-10 : 0x1p-7;
  for (size_t i = 0; i < want.size(); ++i) {
    const double got = cached(cache, type, at + i), bound = unit * std::abs(want[i]) + (type == 1 ? 0x1p-24 : 1e-6);
    ASSERT_LE(std::abs(got - want[i]), bound) << what << ", element " << i << ": " << got << " for " << want[i];
  }
}

struct Bound {
  double whole = 0;  // |out - want| / |want|
};

void check(const Case& c, Bound bound, uint32_t seed = 1) {
  const Inputs in = make_inputs(c, seed);
  const size_t n = c.rows.size(), q_width = size_t(c.heads * c.k_dim), k_width = size_t(c.kv_heads * c.k_dim),
               v_width = size_t(c.kv_heads * c.v_dim), out_width = size_t(c.heads * c.v_dim);
  OnDevice<float> q(in.q), k(in.k), v(in.v), q_norm(in.q_norm), k_norm(in.k_norm), cos(in.cos), sin(in.sin),
      sinks(in.sinks), out(std::vector<float>(n * out_width, NAN));
  OnDevice<int32_t> position(in.position), sequence(in.sequence), table(in.table);
  OnDevice<uint8_t> k_cache(in.k_cache), v_cache(in.v_cache);
  AttendParams p;
  p.kv.type = c.type;
  p.kv.block_tokens = c.block_tokens, p.kv.kv_heads = c.kv_heads, p.kv.k_dim = c.k_dim, p.kv.v_dim = c.v_dim;
  p.kv.k = k_cache.data(), p.kv.v = c.latent ? nullptr : v_cache.data();
  p.kv.rows = int64_t(n);
  p.kv.position = position.data(), p.kv.sequence = sequence.data(), p.kv.block_table = table.data();
  p.kv.max_blocks = in.max_blocks;
  p.heads = c.heads, p.window = c.window, p.scale = 1.f / (std::sqrt(float(c.k_dim)) * c.size);
  p.sinks = c.sinks ? sinks.data() : nullptr;
  p.q = q.data(), p.k = k.data(), p.v = c.latent ? nullptr : v.data();
  if (c.norm != Norm::kNone) p.q_norm = q_norm.data(), p.k_norm = k_norm.data();
  p.norm_whole = c.norm == Norm::kWhole, p.norm_eps = 1e-6f;
  p.clip = c.clip;
  p.rotary = c.rotary, p.rope_offset = c.offset, p.interleaved = c.interleaved;
  p.cos = cos.data(), p.sin = sin.data();
  p.out = out.data();
  p.reach = *std::max_element(in.position.begin(), in.position.end()) + 1 + c.more_reach;
  p.one_row_each = c.one_row_each, p.settled = c.settled;
  OnDevice<uint8_t> scratch(std::vector<uint8_t>(attend_scratch(p), 0xff));
  OnDevice<uint32_t> arrived(std::vector<uint32_t>(size_t(attend_counters(p)), 0));
  p.scratch = scratch.data(), p.arrived = arrived.data();
  ASSERT_EQ(attend(p, nullptr), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  for (uint32_t count : arrived.read()) ASSERT_EQ(count, 0u);
  scratch.read();

  // The cache: the rows' places, and nothing else.
  const std::vector<uint8_t> keys = k_cache.read(), values = v_cache.read();
  std::vector<uint8_t> k_rest = keys, v_rest = values;
  const auto restore = [&](std::vector<uint8_t>& bytes, const std::vector<uint8_t>& old, size_t at, size_t width) {
    const size_t size = width * size_t(bytes_of(c.type));
    std::memcpy(bytes.data() + at * size, old.data() + at * size, size);
  };
  for (size_t r = 0; r < n; ++r) {
    const size_t place = in.place(c, c.rows[r].sequence, c.rows[r].position);
    expect_stored(keys, c.type, place * k_width,
                  finished(c, in, r, in.k.data() + r * k_width, c.kv_heads, c.k_dim, &in.k_norm, true),
                  "key of row " + std::to_string(r));
    restore(k_rest, in.k_cache, place, k_width);
    if (c.latent) continue;
    expect_stored(values, c.type, place * v_width,
                  finished(c, in, r, in.v.data() + r * v_width, c.kv_heads, c.v_dim, nullptr, false),
                  "value of row " + std::to_string(r));
    restore(v_rest, in.v_cache, place, v_width);
  }
  EXPECT_EQ(k_rest, in.k_cache);
  EXPECT_EQ(v_rest, in.v_cache);

  // Attention over the cache as it is now.
  const std::vector<float> got = out.read();
  double difference = 0, all = 0;
  for (size_t r = 0; r < n; ++r) {
    const int last = c.rows[r].position, first = c.window > 0 ? std::max(0, last - c.window + 1) : 0;
    const std::vector<double> query = finished(c, in, r, in.q.data() + r * q_width, c.heads, c.k_dim, &in.q_norm, true);
    for (int h = 0; h < c.heads; ++h) {
      const int kv_head = h / (c.heads / c.kv_heads);
      std::vector<double> weights, want(size_t(c.v_dim), 0.0);
      double most = c.sinks ? double(in.sinks[size_t(h)]) : -INFINITY;
      for (int at = first; at <= last; ++at) {
        const size_t key =
            (in.place(c, c.rows[r].sequence, at) * size_t(c.kv_heads) + size_t(kv_head)) * size_t(c.k_dim);
        double score = 0;
        for (int d = 0; d < c.k_dim; ++d)
          score += query[size_t(h * c.k_dim + d)] * cached(keys, c.type, key + size_t(d));
        weights.push_back(score * double(p.scale));
        most = std::max(most, weights.back());
      }
      double sum = c.sinks ? std::exp(double(in.sinks[size_t(h)]) - most) : 0;
      for (double& w : weights) sum += w = std::exp(w - most);
      for (int at = first; at <= last; ++at) {
        const size_t token = in.place(c, c.rows[r].sequence, at) * size_t(c.kv_heads) + size_t(kv_head);
        for (int d = 0; d < c.v_dim; ++d)
          want[size_t(d)] += weights[size_t(at - first)] / sum *
                             (c.latent ? cached(keys, c.type, token * size_t(c.k_dim) + size_t(d))
                                       : cached(values, c.type, token * size_t(c.v_dim) + size_t(d)));
      }
      for (int d = 0; d < c.v_dim; ++d) {
        const double is = double(got[r * out_width + size_t(h * c.v_dim + d)]);
        ASSERT_TRUE(std::isfinite(is)) << "row " << r << ", head " << h << ", element " << d;
        difference += (is - want[size_t(d)]) * (is - want[size_t(d)]), all += want[size_t(d)] * want[size_t(d)];
      }
    }
  }
  EXPECT_LE(std::sqrt(difference / all), bound.whole);
}

// Decoding splits queries and weights in two: float32's digits but the last few with float16, 16 with bfloat16.
// Prefill rounds both to the cache's type; the reference is float32.
Bound decode_bound(const Case& c) { return {c.type == 2 ? 1e-5 : 2e-6}; }
Bound prefill_bound(const Case& c) { return {c.type == 2 ? 0x1p-8 : 0x1p-11}; }

TEST(AttendDecode, KvTypesAndHeadDims) {
  const std::vector<std::pair<int, int>> dims = {{16, 16}, {32, 32},   {64, 64},   {80, 80},
                                                 {96, 96}, {128, 128}, {192, 128}, {256, 256}};
  for (int type : {1, 2})
    for (const auto& [k_dim, v_dim] : dims) {
      SCOPED_TRACE("type " + std::to_string(type) + ", " + std::to_string(k_dim) + " and " + std::to_string(v_dim));
      Case c;
      c.type = type, c.k_dim = k_dim, c.v_dim = v_dim, c.rotary = k_dim, c.norm = Norm::kHead;
      c.rows = {{0, 70}, {1, 0}, {2, 133}};
      check(c, decode_bound(c));
    }
}

TEST(AttendDecode, PositionsAroundTileBorders) {
  for (int position : {0, 1, 7, 8, 14, 15, 16, 17, 31, 32, 62, 63, 64, 65, 127, 128, 129, 191, 192, 255, 256, 257, 300})
    for (int64_t more_reach : {0, 700}) {
      SCOPED_TRACE(position);
      Case c;
      c.heads = 4, c.kv_heads = 1, c.k_dim = c.v_dim = 32, c.rows = {{0, position}}, c.more_reach = more_reach;
      c.rotary = 32;
      check(c, decode_bound(c));
    }
}

TEST(AttendDecode, HeadsPerKeyHead) {
  for (int group : {1, 2, 4, 7, 8, 12, 17}) {
    SCOPED_TRACE(group);
    Case c;
    c.heads = 2 * group, c.k_dim = c.v_dim = 32, c.rows = {{0, 200}, {1, 40}}, c.norm = Norm::kHead;
    c.sinks = group % 2 == 0;
    check(c, decode_bound(c));
    // A single key head of a single row: its positions are cut.
    c.heads = group, c.kv_heads = 1, c.norm = Norm::kWhole, c.rows = {{0, 1000}};
    check(c, decode_bound(c));
  }
}

TEST(AttendDecode, NormsClippingAndRotation) {
  for (Norm norm : {Norm::kNone, Norm::kHead, Norm::kWhole})
    for (float clip : {0.f, 0.8f})
      for (bool interleaved : {false, true}) {
        SCOPED_TRACE("norm " + std::to_string(int(norm)) + ", clip " + std::to_string(clip));
        Case c;
        c.norm = norm, c.clip = clip, c.interleaved = interleaved, c.rotary = 24, c.offset = interleaved ? 8 : 0;
        c.rows = {{1, 90}, {0, 33}};
        check(c, decode_bound(c));
      }
}

TEST(AttendDecode, WindowsSinksAndReleasedBlocks) {
  for (int window : {1, 5, 16, 64, 100})
    for (int block_tokens : {5, 16, 32}) {
      SCOPED_TRACE("window " + std::to_string(window) + ", blocks of " + std::to_string(block_tokens));
      Case c;
      c.k_dim = c.v_dim = 32, c.window = window, c.block_tokens = block_tokens, c.sinks = true, c.rotary = 32;
      c.rows = {{0, 150}, {1, 3}, {2, window}, {3, window - 1}};
      check(c, decode_bound(c));
    }
}

TEST(AttendDecode, ManyRows) {
  Case c;
  c.heads = 4, c.kv_heads = 2, c.k_dim = c.v_dim = 16, c.settled = true, c.rotary = 16;
  for (int s = 0; s < 64; ++s) c.rows.push_back({s, s * 7 % 90});
  check(c, decode_bound(c));
}

TEST(AttendDecode, QueriesBeyondFloat16) {
  for (float size : {1e-9f, 1e9f}) {
    Case c;
    c.k_dim = c.v_dim = 32, c.rows = {{0, 20}}, c.size = size, c.rotary = 32;
    check(c, decode_bound(c));
  }
}

TEST(AttendDecode, SomeRowsOfOneSequence) {
  for (int type : {1, 2}) {
    Case c;
    c.type = type, c.one_row_each = false, c.norm = Norm::kHead, c.rotary = 64;
    add_rows(c, 0, 30, 32);
    c.rows.push_back({1, 100});
    c.rows.push_back({2, 0});
    check(c, decode_bound(c));
  }
}

TEST(AttendPrefill, KvTypesAndHeadDims) {
  const std::vector<std::pair<int, int>> dims = {{16, 16}, {32, 32},   {64, 64},   {80, 80},
                                                 {96, 96}, {128, 128}, {192, 128}, {256, 256}};
  for (int type : {1, 2})
    for (const auto& [k_dim, v_dim] : dims) {
      SCOPED_TRACE("type " + std::to_string(type) + ", " + std::to_string(k_dim) + " and " + std::to_string(v_dim));
      Case c;
      c.type = type, c.k_dim = k_dim, c.v_dim = v_dim, c.rotary = k_dim, c.norm = Norm::kHead, c.one_row_each = false;
      add_rows(c, 0, 40, 85);
      check(c, prefill_bound(c));
    }
}

TEST(AttendPrefill, ChunksOfSeveralSequences) {
  for (int block_tokens : {5, 16, 32})
    for (int group : {1, 4, 7, 8}) {
      SCOPED_TRACE("blocks of " + std::to_string(block_tokens) + ", " + std::to_string(group) + " heads");
      Case c;
      c.heads = 2 * group, c.k_dim = c.v_dim = 32, c.block_tokens = block_tokens, c.one_row_each = false;
      c.rotary = 16, c.interleaved = true, c.offset = 16;
      add_rows(c, 1, 0, 21);
      c.rows.push_back({3, 140});
      c.rows.push_back({0, 63});
      add_rows(c, 2, 64, 130);
      c.rows.push_back({4, 0});
      add_rows(c, 1, 21, 23);
      check(c, prefill_bound(c));
    }
}

TEST(AttendPrefill, WindowsSinksAndReleasedBlocks) {
  for (int window : {1, 20, 64, 90})
    for (bool sinks : {false, true}) {
      SCOPED_TRACE(window);
      Case c;
      c.k_dim = c.v_dim = 32, c.window = window, c.sinks = sinks, c.one_row_each = false;
      add_rows(c, 0, 100, 190);
      add_rows(c, 1, 0, 70);
      c.rows.push_back({2, 200});
      check(c, prefill_bound(c));
    }
}

TEST(AttendPrefill, QueriesBeyondFloat16) {
  for (float size : {1e-9f, 1e9f}) {
    Case c;
    c.k_dim = c.v_dim = 32, c.size = size, c.one_row_each = false;
    add_rows(c, 0, 0, 20);
    check(c, prefill_bound(c));
  }
}

TEST(AttendPrefill, FewRowsOverManyKeys) {
  for (int window : {0, 300})
    for (int group : {4, 7}) {
      SCOPED_TRACE("window " + std::to_string(window) + ", " + std::to_string(group) + " heads");
      Case c;
      c.heads = group, c.kv_heads = 1, c.k_dim = c.v_dim = 32, c.one_row_each = false, c.window = window;
      c.sinks = group == 4;
      add_rows(c, 0, 990, 996);
      c.rows.push_back({1, 3});
      add_rows(c, 2, 400, 403);
      check(c, prefill_bound(c));
    }
}

TEST(AttendPrefill, NormsAndClipping) {
  for (Norm norm : {Norm::kNone, Norm::kWhole}) {
    Case c;
    c.norm = norm, c.clip = 0.7f, c.rotary = 64, c.one_row_each = false;
    add_rows(c, 0, 5, 40);
    check(c, prefill_bound(c));
  }
}

TEST(AttendReference, Float32AndOtherHeadDims) {
  for (int type : {0, 1, 2})
    for (bool one_row_each : {true, false}) {
      Case c;
      c.type = type, c.one_row_each = one_row_each, c.norm = Norm::kHead, c.sinks = true, c.clip = 1.5f;
      c.k_dim = c.v_dim = type == 0 ? 64 : 24, c.rotary = 24, c.offset = type == 0 ? 8 : 0;
      c.rows = {{0, 300}, {1, 3}};
      if (!one_row_each) add_rows(c, 2, 250, 275);
      check(c, {1e-5});
    }
}

TEST(AttendLatent, ValuesAreTheBeginningOfKeys) {
  for (int type : {0, 1, 2})
    for (int heads : {4, 20})
      for (bool one_row_each : {true, false}) {
        SCOPED_TRACE("type " + std::to_string(type) + ", " + std::to_string(heads) + " heads");
        Case c;
        c.latent = true, c.type = type, c.heads = heads, c.kv_heads = 1, c.k_dim = 48, c.v_dim = 32;
        c.one_row_each = one_row_each, c.sinks = heads == 4;
        c.rows = {{0, 90}, {1, 3}};
        if (!one_row_each) add_rows(c, 2, 40, 60);
        check(c, decode_bound(c));
      }
}

TEST(AttendLatent, PiecesAndWindows) {
  for (int position : {0, 31, 32, 127, 128, 129, 500})
    for (int window : {0, 70}) {
      SCOPED_TRACE(position);
      Case c;
      c.latent = true, c.heads = 10, c.kv_heads = 1, c.k_dim = 48, c.v_dim = 32, c.block_tokens = 5;
      c.window = window, c.rows = {{0, position}}, c.more_reach = position % 2 * 300;
      check(c, decode_bound(c));
    }
  for (int type : {1, 2}) {
    Case c;
    c.latent = true, c.type = type, c.heads = 17, c.kv_heads = 1, c.k_dim = 576, c.v_dim = 512, c.rows = {{0, 150}};
    check(c, decode_bound(c));
  }
}

// Norms, clipping and rotation are for heads of keys and values, but attend() does them wherever they are asked for.
TEST(AttendLatent, NormsAndRotation) {
  Case c;
  c.latent = true, c.heads = 4, c.kv_heads = 1, c.k_dim = 48, c.v_dim = 32, c.rows = {{0, 40}, {1, 8}};
  c.norm = Norm::kHead, c.clip = 1.f, c.rotary = 16, c.offset = 32;
  check(c, decode_bound(c));
}

}  // namespace
}  // namespace ef::cuda::testing
