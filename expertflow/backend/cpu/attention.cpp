// Attention over block tables in two passes. Per row and head: scores of all visible positions, their maximum,
// exponentials and sum, then values added in order of position. None of it depends on where blocks begin, on other
// rows, or on how the heads are shared out.
#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "expertflow/backend/cpu/cpu_ops.h"
#include "expertflow/base/errors.h"

namespace ef::cpu {
namespace {

// Query heads that share a key head and are taken together, so that a key is read once for all of them.
constexpr int kMaxHeads = 8;
// Rows times heads that one pass over the keys serves, while there are so few positions that their scores stay in a
// cache (attention_scratch_floats counts on all three).
constexpr int64_t kMaxQueries = 16, kGroupedPositions = 8192;

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

// Rows of one sequence at positions one after the other, and the heads that share a key head: all of them meet a key
// while it is at hand. What a row computes is what it would compute alone: its own positions, in their order.
class Group {
 public:
  Group(const Context& c, const AttentionArgs& a, const Places& places, int64_t row, int64_t rows, const Heads& heads,
        float* scratch)
      : c_(c), a_(a), places_(places), row_(row), rows_(rows), heads_(heads) {
    begin_ = first_visible(position(0), a.window);
    end_ = position(rows - 1) + 1;
    const KvView& kv = a.kv;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t h = 0; h < heads.count; ++h) {
        const int64_t i = r * heads.count + h, at = (row + r) * a.heads + heads.first + h;
        q_[i] = a.q + at * kv.k_dim;
        out_[i] = a.out + at * kv.v_dim;
        scores_[i] = scratch + i * (end_ - begin_);
      }
  }

  void run() {
    score();
    for (int64_t r = 0; r < rows_; ++r)
      for (int h = 0; h < heads_.count; ++h) weigh(r, h);
    // Before the first position that all rows see, between it and the last, and behind.
    const int64_t common = std::min(first_visible(position(rows_ - 1), a_.window), position(0) + 1);
    for (int64_t r = 0; r < rows_; ++r) add_values(r, 1, first_visible(position(r), a_.window), common);
    add_values(0, rows_, common, position(0) + 1);
    for (int64_t r = 0; r < rows_; ++r)
      add_values(r, 1, std::max(position(0) + 1, first_visible(position(r), a_.window)), position(r) + 1);
    for (int64_t i = 0; i < rows_ * heads_.count; ++i)
      for (int64_t d = 0; d < a_.kv.v_dim; ++d) out_[i][d] *= factor_[i];
  }

 private:
  int64_t position(int64_t r) const { return a_.batch.position[row_ + r]; }

  // Of every row with every position; those that a row may not see are not looked at.
  void score() {
    MatmulTile keys;
    keys.w_stride = places_.k_row();
    keys.cols = a_.kv.k_dim;
    keys.x = q_;
    keys.rows = rows_ * heads_.count;
    keys.out = scores_;
    for (int64_t p = begin_; p < end_; p += keys.n) {
      keys.n = places_.run(p, end_);
      keys.w = places_.k(row_, p, heads_.kv_head);
      keys.out_begin = p - begin_;
      c_.kernels.matmul[scalar_of(a_.kv.type)](keys);
    }
  }

  void weigh(int64_t r, int h) {
    const int64_t i = r * heads_.count + h, first = first_visible(position(r), a_.window);
    float* scores = scores_[i] + (first - begin_);
    const int64_t n = position(r) + 1 - first;
    const float sink = a_.sinks ? a_.sinks[heads_.first + h] : -std::numeric_limits<float>::infinity();
    const float max = c_.kernels.scale_max(scores, n, a_.scale, sink);
    float sum = c_.kernels.exp_sum(scores, n, max);
    if (a_.sinks) {
      float extra = sink;
      sum += c_.kernels.exp_sum(&extra, 1, max);
    }
    factor_[i] = 1.f / sum;
    std::fill_n(out_[i], a_.kv.v_dim, 0.f);
  }

  void add_values(int64_t r, int64_t rows, int64_t from, int64_t to) {
    WeightedSum values;
    values.v_stride = places_.v_row();
    values.dim = a_.kv.v_dim;
    values.p = scores_ + r * heads_.count;
    values.heads = int(rows) * heads_.count;
    values.out = out_ + r * heads_.count;
    for (int64_t p = from; p < to; p += values.n) {
      values.n = places_.run(p, to);
      values.v = places_.v(row_, p, heads_.kv_head);
      values.p_begin = p - begin_;
      c_.kernels.weighted_sum[scalar_of(a_.kv.type)](values);
    }
  }

  const Context& c_;
  const AttentionArgs& a_;
  const Places& places_;
  int64_t row_, rows_;
  Heads heads_;
  int64_t begin_, end_;  // positions that any of the rows sees
  const float* q_[kMaxQueries];
  float* scores_[kMaxQueries];
  float* out_[kMaxQueries];
  float factor_[kMaxQueries];
};

// Runs of rows that make a group, at most `most` each.
std::vector<std::pair<int64_t, int64_t>> runs(const BatchView& batch, int64_t most) {
  std::vector<std::pair<int64_t, int64_t>> out;
  for (int64_t row = 0; row < batch.rows;) {
    int64_t n = 1;
    while (n < most && row + n < batch.rows && batch.sequence[row + n] == batch.sequence[row] &&
           batch.position[row + n] == batch.position[row] + n)
      ++n;
    out.emplace_back(row, n);
    row += n;
  }
  return out;
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
  const int64_t chunk = std::min(heads / std::max(1, kv_heads), kMaxHeads);
  return std::max(chunk * context, kMaxQueries * std::min(context, kGroupedPositions));
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
  const int64_t tasks_per_run = kv.kv_heads * chunks;
  // A window's rows each see another range; scores of all of them take up to a group's length more.
  const int64_t most = longest + kMaxQueries <= kGroupedPositions ? std::max<int64_t>(1, kMaxQueries / chunk) : 1;
  const auto groups = runs(a.batch, most);
  const int64_t scratch_floats = most > 1 ? kMaxQueries * (longest + kMaxQueries) : chunk * longest;
  c.pool.parallel_for(int64_t(groups.size()) * tasks_per_run, 1, [&](int64_t begin, int64_t end, int worker) {
    float* scratch = c.scratch.floats(worker, scratch_floats);
    for (int64_t task = begin; task < end; ++task) {
      const int kv_head = int(task % tasks_per_run / chunks);
      const int first = int(task % chunks) * chunk;
      const Heads heads{kv_head * per_kv + first, std::min(chunk, per_kv - first), kv_head};
      const auto [row, rows] = groups[size_t(task / tasks_per_run)];
      Group(c, a, places, row, rows, heads, scratch).run();
    }
  });
}

}  // namespace ef::cpu
