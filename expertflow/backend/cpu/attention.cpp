// Attention over block tables in two passes. Per (row, head): scores of all visible positions, their maximum,
// exponentials and sum, then values added in order of position. None of it depends on where blocks begin, on other
// rows, or on how the heads are shared out.
#include <algorithm>
#include <limits>

#include "expertflow/backend/cpu/cpu_ops.h"
#include "expertflow/base/errors.h"

namespace ef::cpu {
namespace {

// Heads that share a key head and are taken together, so that a key is read once for all of them.
// Query heads that share one pass over their keys (attention_scratch_floats counts on it).
constexpr int kMaxHeads = 8;

Scalar scalar_of(KvType type) {
  return type == KvType::kF32 ? kScalarF32 : type == KvType::kF16 ? kScalarF16 : kScalarBF16;
}

// Where the heads of one position lie: offsets in bytes from the start of the pool.
class Places {
 public:
  Places(const KvView& kv, const BatchView& batch)
      : kv_(kv), batch_(batch), k_row_(int64_t(kv.kv_heads) * kv.k_dim * kv_type_bytes(kv.type)) {
    v_row_ = kv.v ? int64_t(kv.kv_heads) * kv.v_dim * kv_type_bytes(kv.type) : k_row_;
  }
  int64_t k_row() const { return k_row_; }
  int64_t v_row() const { return v_row_; }
  std::byte* k(int64_t row, int64_t position, int head) const {
    return kv_.k + slot(row, position) * k_row_ + int64_t(head) * kv_.k_dim * kv_type_bytes(kv_.type);
  }
  std::byte* v(int64_t row, int64_t position, int head) const {
    if (!kv_.v) return k(row, position, head);
    return kv_.v + slot(row, position) * v_row_ + int64_t(head) * kv_.v_dim * kv_type_bytes(kv_.type);
  }
  /// Positions from `position` to the end of its block, at most to `end`.
  int64_t run(int64_t position, int64_t end) const {
    return std::min(end - position, kv_.block_tokens - position % kv_.block_tokens);
  }

 private:
  int64_t slot(int64_t row, int64_t position) const {
    const int64_t index = int64_t(batch_.sequence[row]) * batch_.max_blocks + position / kv_.block_tokens;
    EF_DCHECK(position / kv_.block_tokens < batch_.max_blocks);
    const int64_t block = batch_.block_table[index];
    EF_DCHECK(block >= 0);
    return block * kv_.block_tokens + position % kv_.block_tokens;
  }

  const KvView& kv_;
  const BatchView& batch_;
  int64_t k_row_, v_row_;
};

int64_t first_visible(int64_t position, int window) {
  return window > 0 ? std::max<int64_t>(0, position - window + 1) : 0;
}

struct Heads {
  int first, count, kv_head;
};

void attend(const Context& c, const AttentionArgs& a, const Places& places, int64_t row, const Heads& heads,
            float* scratch) {
  const KvView& kv = a.kv;
  const Scalar scalar = scalar_of(kv.type);
  const int64_t end = int64_t(a.batch.position[row]) + 1;
  const int64_t begin = first_visible(end - 1, a.window);
  const int64_t n = end - begin;
  const float* q[kMaxHeads];
  float* scores[kMaxHeads];
  float* out[kMaxHeads];
  for (int h = 0; h < heads.count; ++h) {
    q[h] = a.q + (row * a.heads + heads.first + h) * kv.k_dim;
    out[h] = a.out + (row * a.heads + heads.first + h) * kv.v_dim;
    scores[h] = scratch + h * n;
  }

  MatmulTile keys{.w_stride = places.k_row(), .cols = kv.k_dim, .x = q, .rows = heads.count, .out = scores};
  for (int64_t p = begin; p < end; p += keys.n) {
    keys.n = places.run(p, end);
    keys.w = places.k(row, p, heads.kv_head);
    keys.out_begin = p - begin;
    c.kernels.matmul[scalar](keys);
  }

  float factor[kMaxHeads];
  for (int h = 0; h < heads.count; ++h) {
    const float sink = a.sinks ? a.sinks[heads.first + h] : -std::numeric_limits<float>::infinity();
    const float max = c.kernels.scale_max(scores[h], n, a.scale, sink);
    float sum = c.kernels.exp_sum(scores[h], n, max);
    if (a.sinks) {
      float extra = sink;
      sum += c.kernels.exp_sum(&extra, 1, max);
    }
    factor[h] = 1.f / sum;
    std::fill_n(out[h], kv.v_dim, 0.f);
  }

  WeightedSum values{.v_stride = places.v_row(), .dim = kv.v_dim, .p = scores, .heads = heads.count, .out = out};
  for (int64_t p = begin; p < end; p += values.n) {
    values.n = places.run(p, end);
    values.v = places.v(row, p, heads.kv_head);
    values.p_begin = p - begin;
    c.kernels.weighted_sum[scalar](values);
  }
  for (int h = 0; h < heads.count; ++h)
    for (int64_t d = 0; d < kv.v_dim; ++d) out[h][d] *= factor[h];
}

}  // namespace

void store_kv(const Context& c, const StoreKvArgs& a) {
  const KvView& kv = a.kv;
  const Places places(kv, a.batch);
  const FormatInfo& format = format_info(kv.type == KvType::kF32   ? Format::kF32
                                         : kv.type == KvType::kF16 ? Format::kF16
                                                                   : Format::kBF16);
  const int64_t k_width = int64_t(kv.kv_heads) * kv.k_dim, v_width = int64_t(kv.kv_heads) * kv.v_dim;
  constexpr int64_t kRowsPerTask = 64;
  c.pool.parallel_for(a.batch.rows, kRowsPerTask, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      format.quantize(a.k + r * k_width, places.k(r, a.batch.position[r], 0), k_width);
      if (kv.v) format.quantize(a.v + r * v_width, places.v(r, a.batch.position[r], 0), v_width);
    }
  });
}

int64_t attention_scratch_floats(int heads, int kv_heads, int64_t context) {
  return std::min(heads / std::max(1, kv_heads), kMaxHeads) * context;
}

void attention(const Context& c, const AttentionArgs& a) {
  const KvView& kv = a.kv;
  if (a.batch.rows <= 0) return;
  EF_DCHECK(a.heads % kv.kv_heads == 0);
  EF_DCHECK(kv.v || kv.v_dim <= kv.k_dim);
  const Places places(kv, a.batch);
  int64_t longest = 0;
  for (int64_t r = 0; r < a.batch.rows; ++r) {
    const int64_t position = a.batch.position[r];
    longest = std::max(longest, position + 1 - first_visible(position, a.window));
  }
  const int per_kv = a.heads / kv.kv_heads;
  int chunk = std::min(per_kv, kMaxHeads);
  while (chunk > 1 && a.batch.rows * kv.kv_heads * ((per_kv + chunk - 1) / chunk) < 2 * c.pool.size())
    chunk = (chunk + 1) / 2;
  const int64_t chunks = (per_kv + chunk - 1) / chunk;
  const int64_t tasks_per_row = kv.kv_heads * chunks;
  c.pool.parallel_for(a.batch.rows * tasks_per_row, 1, [&](int64_t begin, int64_t end, int worker) {
    float* scratch = c.scratch.floats(worker, longest * chunk);
    for (int64_t task = begin; task < end; ++task) {
      const int kv_head = int(task % tasks_per_row / chunks);
      const int first = int(task % chunks) * chunk;
      const Heads heads{kv_head * per_kv + first, std::min(chunk, per_kv - first), kv_head};
      attend(c, a, places, task / tasks_per_row, heads, scratch);
    }
  });
}

}  // namespace ef::cpu
