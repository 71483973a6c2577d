// store_kv and attention over block tables, against a plain double implementation that knows no blocks.
#include <algorithm>

#include "expertflow/quant/scalars.h"
#include "tests/contract/op_test.h"

namespace ef::testing {
namespace {

struct Layout {
  KvType type = KvType::kF32;
  int block_tokens = 16, heads = 4, kv_heads = 2, k_dim = 32, v_dim = 32;
  bool latent = false;  // no V: the value is the first v_dim elements of the key
  int window = 0;
  bool sinks = false;
  float scale = 0.2f;
};

// Keys and values of some sequences as float32, [sequence][position][kv_heads * dim].
struct Cache {
  std::vector<std::vector<float>> k, v;
};

struct Row {
  int sequence;
  int64_t position;
};

Cache random_cache(Random& random, const Layout& l, const std::vector<int64_t>& lengths) {
  Cache c;
  for (int64_t n : lengths) {
    c.k.push_back(random.floats(n * l.kv_heads * l.k_dim));
    c.v.push_back(random.floats(n * l.kv_heads * l.v_dim));
  }
  return c;
}

float stored(float x, KvType type) {
  if (type == KvType::kF16) return f16_to_f32(f32_to_f16(x));
  if (type == KvType::kBF16) return bf16_to_f32(f32_to_bf16(x));
  return x;
}

class Attention : public OpTest {
 protected:
  // Writes the cache through store_kv, in pieces, and answers the rows' attention.
  std::vector<float> run(Backend& backend, const Layout& l, const Cache& cache, const std::vector<Row>& rows,
                         const std::vector<float>& q, const std::vector<float>& sinks, uint32_t block_seed) {
    auto stream = backend.make_stream();
    const int sequences = int(cache.k.size());
    int max_blocks = 1;
    for (const auto& k : cache.k) max_blocks = std::max(max_blocks, blocks_of(l, k));
    // Blocks of the sequences in a random order, with unused ones between, all poisoned.
    std::vector<int32_t> ids(static_cast<size_t>(sequences * max_blocks + 3));
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = int32_t(i);
    Random(block_seed).shuffle(ids);
    std::vector<int32_t> table(size_t(sequences * max_blocks), -1);
    for (int s = 0; s < sequences; ++s)
      for (int b = 0; b < blocks_of(l, cache.k[size_t(s)]); ++b)
        table[size_t(s * max_blocks + b)] = ids[size_t(s * max_blocks + b)];
    const size_t slots = ids.size() * size_t(l.block_tokens * l.kv_heads);
    const std::byte poison{0xff};  // NaN in every type
    DeviceArray<std::byte> k(backend, std::vector<std::byte>(slots * size_t(l.k_dim * kv_type_bytes(l.type)), poison));
    DeviceArray<std::byte> v(backend, std::vector<std::byte>(slots * size_t(l.v_dim * kv_type_bytes(l.type)), poison));
    const KvView kv{l.type, l.block_tokens, l.kv_heads, l.k_dim, l.v_dim, k.data(), l.latent ? nullptr : v.data()};
    DeviceArray<int32_t> device_table(backend, table);
    for (int s = 0; s < sequences; ++s) store(backend, *stream, l, kv, cache, s, device_table, max_blocks);
    release_behind_window(backend, *stream, l, rows, table, device_table, max_blocks);

    std::vector<int32_t> position, sequence;
    for (const Row& r : rows) position.push_back(int32_t(r.position)), sequence.push_back(r.sequence);
    DeviceArray<int32_t> device_position(backend, position), device_sequence(backend, sequence);
    DeviceArray<float> device_q(backend, q), device_sinks(backend, sinks);
    DeviceArray<float> out(backend, std::vector<float>(rows.size() * size_t(l.heads * l.v_dim), NAN));
    AttentionArgs args;
    args.kv = kv;
    args.batch = {int64_t(rows.size()), device_position.data(), device_sequence.data(), device_table.data(),
                  max_blocks};
    args.heads = l.heads;
    args.window = l.window;
    args.scale = l.scale;
    args.sinks = l.sinks ? device_sinks.data() : nullptr;
    args.q = device_q.data();
    args.out = out.data();
    backend.attention(*stream, args);
    stream->synchronize();
    k.read(), v.read();  // guard zones
    return out.read();
  }

  static int blocks_of(const Layout& l, const std::vector<float>& k) {
    const int64_t tokens = int64_t(k.size()) / (l.kv_heads * l.k_dim);
    return int((tokens + l.block_tokens - 1) / l.block_tokens);
  }

  static void store(Backend& backend, Stream& stream, const Layout& l, const KvView& kv, const Cache& cache, int s,
                    const DeviceArray<int32_t>& table, int max_blocks) {
    const auto& k = cache.k[size_t(s)];
    std::vector<int32_t> position(k.size() / size_t(l.kv_heads * l.k_dim));
    for (size_t i = 0; i < position.size(); ++i) position[i] = int32_t(i);
    DeviceArray<int32_t> device_position(backend, position);
    DeviceArray<int32_t> sequence(backend, std::vector<int32_t>(position.size(), s));
    DeviceArray<float> device_k(backend, k), device_v(backend, cache.v[size_t(s)]);
    BatchView batch{int64_t(position.size()), device_position.data(), sequence.data(), table.data(), max_blocks};
    backend.store_kv(stream, StoreKvArgs{kv, batch, device_k.data(), l.latent ? nullptr : device_v.data()});
    stream.synchronize();
  }

  // What lies wholly behind every row's window is given back: -1 in the table.
  static void release_behind_window(Backend& backend, Stream& stream, const Layout& l, const std::vector<Row>& rows,
                                    std::vector<int32_t> table, DeviceArray<int32_t>& device_table, int max_blocks) {
    if (l.window <= 0) return;
    std::vector<int64_t> oldest(table.size() / size_t(max_blocks), 0);
    for (size_t s = 0; s < oldest.size(); ++s) {
      bool seen = false;
      for (const Row& r : rows) {
        if (r.sequence != int(s)) continue;
        const int64_t first = std::max<int64_t>(0, r.position - l.window + 1);
        oldest[s] = seen ? std::min(oldest[s], first) : first;
        seen = true;
      }
      for (int64_t b = 0; (b + 1) * l.block_tokens <= oldest[s]; ++b) table[s * size_t(max_blocks) + size_t(b)] = -1;
    }
    backend.copy_to_device(device_table.data(), table.data(), table.size() * sizeof(int32_t), stream);
    stream.synchronize();
  }

  static std::vector<double> expected(const Layout& l, const Cache& cache, const Row& row, int head, const float* q,
                                      const std::vector<float>& sinks) {
    const auto& k = cache.k[size_t(row.sequence)];
    const auto& v = cache.v[size_t(row.sequence)];
    const int kv_head = head / (l.heads / l.kv_heads);
    std::vector<std::pair<int64_t, double>> scores;
    double max = l.sinks ? double(sinks[size_t(head)]) : -1e300;
    for (int64_t p = 0; p <= row.position; ++p) {
      if (l.window > 0 && p <= row.position - l.window) continue;
      double s = 0;
      for (int d = 0; d < l.k_dim; ++d)
        s += double(q[d]) * double(stored(k[size_t((p * l.kv_heads + kv_head) * l.k_dim + d)], l.type));
      scores.push_back({p, s * double(l.scale)});
      max = std::max(max, scores.back().second);
    }
    double sum = l.sinks ? std::exp(double(sinks[size_t(head)]) - max) : 0;
    for (auto& [p, s] : scores) sum += s = std::exp(s - max);
    std::vector<double> out(static_cast<size_t>(l.v_dim));
    for (const auto& [p, s] : scores) {
      for (int d = 0; d < l.v_dim; ++d) {
        const float value = l.latent ? k[size_t((p * l.kv_heads + kv_head) * l.k_dim + d)]
                                     : v[size_t((p * l.kv_heads + kv_head) * l.v_dim + d)];
        out[size_t(d)] += s / sum * double(stored(value, l.type));
      }
    }
    return out;
  }

  void check(const Layout& l, const std::vector<int64_t>& lengths, const std::vector<Row>& rows, uint32_t seed,
             double tolerance = 4e-6) {
    Random random(seed);
    const Cache cache = random_cache(random, l, lengths);
    const auto q = random.floats(int64_t(rows.size()) * l.heads * l.k_dim);
    const auto sinks = random.floats(l.heads);
    const auto got = run(backend(), l, cache, rows, q, sinks, seed + 1);
    for (size_t r = 0; r < rows.size(); ++r) {
      for (int h = 0; h < l.heads; ++h) {
        const size_t head = r * size_t(l.heads) + size_t(h);
        const auto want = expected(l, cache, rows[r], h, &q[head * size_t(l.k_dim)], sinks);
        for (int d = 0; d < l.v_dim; ++d)
          ASSERT_NEAR(got[head * size_t(l.v_dim) + size_t(d)], want[size_t(d)], tolerance)
              << "row " << r << ", head " << h << ", dimension " << d;
      }
    }
  }
};

std::vector<Row> chunk(int sequence, int64_t first, int64_t rows) {
  std::vector<Row> all;
  for (int64_t i = 0; i < rows; ++i) all.push_back({sequence, first + i});
  return all;
}

// Prefill chunks and decode rows of several sequences in one call.
std::vector<Row> ragged() {
  std::vector<Row> rows = chunk(0, 0, 9);
  rows.push_back({2, 40});
  for (const Row& r : chunk(1, 17, 6)) rows.push_back(r);
  rows.push_back({3, 0});
  return rows;
}
const std::vector<int64_t> kLengths = {9, 23, 41, 1};

TEST_P(Attention, RaggedBatchInEveryCacheType) {
  for (KvType type : {KvType::kF32, KvType::kF16, KvType::kBF16}) {
    Layout l;
    l.type = type;
    check(l, kLengths, ragged(), 1);
  }
}

TEST_P(Attention, HeadsPerKeyHeadAndOddDimensions) {
  for (int per_kv : {1, 2, 3, 5, 7, 8, 9, 16}) {
    for (int dim : {1, 7, 24, 65}) {
      Layout l;
      l.heads = 2 * per_kv;
      l.k_dim = dim;
      l.v_dim = dim + 3;
      l.type = per_kv % 2 ? KvType::kF32 : KvType::kBF16;
      check(l, {14}, chunk(0, 11, 3), uint32_t(per_kv * 100 + dim));
    }
  }
}

TEST_P(Attention, SlidingWindowsWithReleasedBlocks) {
  for (int window : {1, 2, 5, 16, 17, 100}) {
    Layout l;
    l.window = window;
    l.block_tokens = 4;
    check(l, {60, 33}, {{0, 59}, {0, 58}, {1, 32}}, uint32_t(window));
    check(l, {60, 33}, chunk(0, 0, 60), uint32_t(window));
  }
}

// gpt-oss: a head's sink takes its share of the softmax and gives nothing.
TEST_P(Attention, C10_SinksTakeTheirShare) {
  Layout l;
  l.sinks = true;
  check(l, kLengths, ragged(), 3);
  l.window = 3;
  check(l, kLengths, ragged(), 4);
  // By hand: one position with score s and a sink of s gives half of the value.
  l = Layout{.heads = 1, .kv_heads = 1, .k_dim = 1, .v_dim = 1, .sinks = true, .scale = 1.f};
  const Cache cache{{{2.f}}, {{3.f}}};
  const auto got = run(backend(), l, cache, {{0, 0}}, {0.25f}, {0.5f}, 1);
  EXPECT_NEAR(got[0], 1.5f, 1e-6);
  // A sink far above all scores takes everything, without an overflow.
  EXPECT_NEAR(run(backend(), l, cache, {{0, 0}}, {0.25f}, {1e4f}, 1)[0], 0.f, 1e-6);
}

// DeepSeek: 128 heads on one compressed key of 512 + 64, whose first 512 numbers are the value.
TEST_P(Attention, LatentLayout) {
  Layout l;
  l.latent = true;
  l.heads = 16;
  l.kv_heads = 1;
  l.k_dim = 72;
  l.v_dim = 64;
  check(l, {21, 5}, {{0, 20}, {1, 4}, {0, 3}}, 5);
  l.heads = 128;
  l.k_dim = 576;
  l.v_dim = 512;
  l.type = KvType::kBF16;
  l.scale = 0.04f;
  check(l, {19}, {{0, 18}}, 6);
}

TEST_P(Attention, LargeScoresDoNotOverflow) {
  Layout l;
  l.scale = 40.f;
  check(l, {30}, chunk(0, 27, 3), 7, 2e-4);
}

// Contexts of real length: scores of 131,072 positions.
TEST_P(Attention, LongContext) {
  Layout l;
  l.type = KvType::kF16;
  l.heads = 2;
  l.kv_heads = 1;
  l.k_dim = 16;
  l.v_dim = 8;
  l.block_tokens = 64;
  check(l, {131072}, {{0, 131071}}, 8, 2e-5);
}

TEST_P(Attention, ZeroRowsWriteNothing) {
  Layout l;
  Random random(9);
  EXPECT_TRUE(run(backend(), l, random_cache(random, l, {3}), {}, {}, random.floats(l.heads), 1).empty());
}

std::vector<float> row_of(const std::vector<float>& v, size_t row, int width) {
  return {v.begin() + int64_t(row) * width, v.begin() + int64_t(row + 1) * width};
}

TEST_P(Attention, BitIdenticalInAnyCompanyLayoutAndThreads) {
  for (KvType type : {KvType::kF32, KvType::kBF16}) {
    for (int window : {0, 7}) {
      Layout l;
      l.type = type;
      l.heads = 20;
      l.k_dim = 40;
      l.v_dim = 36;
      l.window = window;
      l.sinks = window > 0;
      Random random(10);
      const Cache cache = random_cache(random, l, kLengths);
      const auto rows = ragged();
      const auto q = random.floats(int64_t(rows.size()) * l.heads * l.k_dim);
      const auto sinks = random.floats(l.heads);
      const auto all = run(backend(), l, cache, rows, q, sinks, 1);
      for (int block_tokens : {1, 2, 5, 16, 64}) {
        Layout other = l;
        other.block_tokens = block_tokens;
        EXPECT_TRUE(same_bits(run(backend(), other, cache, rows, q, sinks, uint32_t(block_tokens)), all))
            << "blocks of " << block_tokens;
      }
      for (int threads : {1, 3, 8}) {
        ThreadPool pool(threads);
        auto other = GetParam().make(pool);
        EXPECT_TRUE(same_bits(run(*other, l, cache, rows, q, sinks, 2), all)) << threads << " threads";
      }
      const int width = l.heads * l.v_dim;
      for (size_t r = 0; r < rows.size(); ++r) {
        const auto alone = run(backend(), l, cache, {rows[r]}, row_of(q, r, l.heads * l.k_dim), sinks, 3);
        EXPECT_TRUE(same_bits(alone, row_of(all, r, width))) << "row " << r << " alone";
      }
    }
  }
}

TEST_P(Attention, StoreRoundsToNearestAndTouchesOnlyItsPlace) {
  for (KvType type : {KvType::kF32, KvType::kF16, KvType::kBF16}) {
    Random random(11);
    const int dim = 6, kv_heads = 2, block_tokens = 4, width = dim * kv_heads;
    const size_t bytes = size_t(kv_type_bytes(type));
    auto k = array(std::vector<std::byte>(3 * block_tokens * size_t(width) * bytes, std::byte{0x11}));
    auto v = array(std::vector<std::byte>(3 * block_tokens * size_t(width) * bytes, std::byte{0x22}));
    const auto values = random.floats(width);
    auto device_values = array(values);
    auto position = array(std::vector<int32_t>{5});
    auto sequence = array(std::vector<int32_t>{0});
    auto table = array(std::vector<int32_t>{0, 2});
    const KvView kv{type, block_tokens, kv_heads, dim, dim, k.data(), v.data()};
    backend().store_kv(stream(), StoreKvArgs{kv, BatchView{1, position.data(), sequence.data(), table.data(), 2},
                                             device_values.data(), device_values.data()});
    stream().synchronize();
    const auto got = k.read();
    // Position 5 is token 1 of the second block, which is block 2 of the pool.
    const size_t begin = (2 * block_tokens + 1) * size_t(width) * bytes;
    for (size_t i = 0; i < got.size(); ++i) {
      if (i < begin || i >= begin + size_t(width) * bytes) {
        ASSERT_EQ(got[i], std::byte{0x11}) << i;
      }
    }
    for (size_t i = 0; i < size_t(width); ++i) {
      float f = 0;
      uint16_t half = 0;
      std::memcpy(type == KvType::kF32 ? static_cast<void*>(&f) : &half, &got[begin + i * bytes], bytes);
      if (type == KvType::kF16) f = f16_to_f32(half);
      if (type == KvType::kBF16) f = bf16_to_f32(half);
      ASSERT_EQ(f, stored(values[i], type));
    }
    EXPECT_EQ(v.read()[begin - 1], std::byte{0x22});
  }
}

EF_FOR_EACH_BACKEND(Attention);

}  // namespace
}  // namespace ef::testing
