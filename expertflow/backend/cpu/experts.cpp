// The experts op: gate and up with the activation, then down, for all groups of a call at once so that the threads
// share many small experts evenly.
#include <algorithm>
#include <cmath>

#include "expertflow/backend/cpu/cpu_ops.h"
#include "expertflow/base/errors.h"

namespace ef::cpu {
namespace {

// Bound on the activations between the two halves; larger calls go in waves (rows are independent).
constexpr int64_t kWaveFloats = 4 << 20;

// Rows of one group that take part in a wave.
struct Slice {
  const ExpertGroup* group;
  int64_t first, rows;  // of the group's assignments
  int64_t hidden_row;   // first row in the wave's buffer
};

struct Task {
  int64_t slice, begin, end;  // rows of a weight matrix
};

std::vector<Task> split(const std::vector<Slice>& wave, bool down, const ExpertsArgs& a, int threads) {
  const int64_t n = down ? a.hidden : a.ffn;
  std::vector<Task> tasks;
  for (size_t s = 0; s < wave.size(); ++s) {
    const ExpertView& e = wave[s].group->expert;
    // Many slices fill the threads by themselves; then a task may be as large as the matrix allows.
    const int share = std::max(1, int(threads / int64_t(wave.size())));
    // Whole groups of the activations that the down product takes.
    MatrixView w = down ? e.down : e.gate;
    if (e.down.layout == MatrixLayout::kTiles16 || e.up.layout == MatrixLayout::kTiles16)
      w.layout = MatrixLayout::kTiles16;
    const int64_t grain = matmul_grain(w, n, wave[s].rows, share);
    for (int64_t i = 0; i < n; i += grain) tasks.push_back({int64_t(s), i, std::min(n, i + grain)});
  }
  return tasks;
}

class Wave {
 public:
  Wave(const Context& c, const ExpertsArgs& a, std::vector<Slice> slices) : c_(c), a_(a), slices_(std::move(slices)) {
    for (const Slice& s : slices_) {
      for (int64_t i = 0; i < s.rows; ++i) {
        const int64_t assignment = s.group->assignments[size_t(s.first + i)];
        token_.push_back(assignment / a.top_k);
        x_.push_back(a.x + token_.back() * a.hidden);
        out_.push_back(a.out + assignment * a.hidden);
      }
    }
    float* hidden = c.scratch.shared(int64_t(x_.size()) * a.ffn);
    for (size_t i = 0; i < x_.size(); ++i) {
      hidden_out_.push_back(hidden + i * size_t(a.ffn));
      hidden_in_.push_back(hidden_out_.back());
    }
  }

  void run() {
    quantize_inputs();
    const auto first = split(slices_, false, a_, c_.pool.size());
    c_.pool.parallel_for(int64_t(first.size()), 1, [&](int64_t begin, int64_t end, int worker) {
      for (int64_t i = begin; i < end; ++i) gate_up(first[size_t(i)], worker);
    });
    const auto second = split(slices_, true, a_, c_.pool.size());
    c_.pool.parallel_for(int64_t(second.size()), 1, [&](int64_t begin, int64_t end, int worker) {
      for (int64_t i = begin; i < end; ++i) down(second[size_t(i)], worker);
    });
  }

 private:
  // What gate and up want of their activations: all groups of a call have one layout, so the first speaks for all.
  // A token's row is quantised once for all its experts, and once more where gate and up are of different kinds.
  void quantize_inputs() {
    const ExpertView& e = slices_.front().group->expert;
    const TileFormat* kinds[2] = {tile_format(c_.kernels, e.gate), tile_format(c_.kernels, e.up)};
    for (int i = 0; i < 2; ++i) {
      if (!kinds[i]) continue;
      if (i == 1 && kinds[0] && kinds[0]->group == kinds[1]->group && kinds[0]->zero == kinds[1]->zero) {
        x_quantized_[1] = x_quantized_[0];
        continue;
      }
      quantize_tokens(*kinds[i], c_.scratch.quantized(i), x_quantized_[size_t(i)]);
    }
    if (const TileFormat* kind = tile_format(c_.kernels, e.down))
      c_.scratch.quantized(2).reserve(int64_t(x_.size()), a_.ffn, *kind);
  }

  void quantize_tokens(const TileFormat& kind, QuantizedRows& rows, std::vector<QuantizedRow>& of_assignment) {
    std::vector<int32_t> place(size_t(*std::max_element(token_.begin(), token_.end()) + 1), -1);
    std::vector<int64_t> tokens;
    for (int64_t token : token_) {
      if (place[size_t(token)] >= 0) continue;
      place[size_t(token)] = int32_t(tokens.size());
      tokens.push_back(token);
    }
    rows.reserve(int64_t(tokens.size()), a_.hidden, kind);
    constexpr int64_t kElementsPerTask = 64 << 10;
    c_.pool.parallel_for(int64_t(tokens.size()), std::max<int64_t>(1, kElementsPerTask / a_.hidden),
                         [&](int64_t begin, int64_t end, int) {
                           for (int64_t i = begin; i < end; ++i)
                             rows.quantize(c_.kernels, i, 0, a_.hidden, a_.x + tokens[size_t(i)] * a_.hidden);
                         });
    for (int64_t token : token_) of_assignment.push_back(rows.rows()[place[size_t(token)]]);
  }
  const QuantizedRow* quantized(int which, const Slice& s) const {
    return x_quantized_[which].empty() ? nullptr : &x_quantized_[which][size_t(s.hidden_row)];
  }

  void gate_up(const Task& t, int worker) {
    const Slice& s = slices_[size_t(t.slice)];
    const ExpertView& e = s.group->expert;
    const int64_t n = t.end - t.begin;
    const int64_t weights = std::max(matmul_scratch(e.gate), matmul_scratch(e.up));
    float* scratch = c_.scratch.floats(worker, weights + s.rows * n);
    float* up = scratch + weights;
    std::vector<float*> up_rows;
    for (int64_t i = 0; i < s.rows; ++i) up_rows.push_back(up + i * n);
    const float* const* x = &x_[size_t(s.hidden_row)];
    float* const* hidden = &hidden_out_[size_t(s.hidden_row)];
    matmul_rows(c_.kernels, e.gate, t.begin, t.end, e.gate_bias, {x, hidden, s.rows, quantized(0, s)}, t.begin,
                scratch);
    matmul_rows(c_.kernels, e.up, t.begin, t.end, e.up_bias, {x, up_rows.data(), s.rows, quantized(1, s)}, 0, scratch);
    const bool tiles = e.down.layout == MatrixLayout::kTiles16;
    for (int64_t i = 0; i < s.rows; ++i) {
      activate(c_.kernels, a_.activation, hidden[i] + t.begin, up_rows[size_t(i)], hidden[i] + t.begin, n);
      if (tiles) c_.scratch.quantized(2).quantize(c_.kernels, s.hidden_row + i, t.begin, t.end, hidden[i] + t.begin);
    }
  }

  void down(const Task& t, int worker) {
    const Slice& s = slices_[size_t(t.slice)];
    const ExpertView& e = s.group->expert;
    const bool tiles = e.down.layout == MatrixLayout::kTiles16;
    const RowPointers rows{&hidden_in_[size_t(s.hidden_row)], &out_[size_t(s.hidden_row)], s.rows,
                           tiles ? c_.scratch.quantized(2).rows() + s.hidden_row : nullptr};
    matmul_rows(c_.kernels, e.down, t.begin, t.end, e.down_bias, rows, t.begin,
                c_.scratch.floats(worker, matmul_scratch(e.down)));
  }

  const Context& c_;
  const ExpertsArgs& a_;
  std::vector<Slice> slices_;
  std::vector<int64_t> token_;                // of every assignment of the wave
  std::vector<QuantizedRow> x_quantized_[2];  // for gate and for up, where these are in tiles
  std::vector<const float*> x_, hidden_in_;
  std::vector<float*> hidden_out_, out_;
};

// v/2 (1 + erf(v / sqrt 2)) and v/2 (1 + tanh(t)), without the cancellation that these have for negative v.
float gelu_erf(float v) { return 0.5f * v * std::erfc(v * -0.70710678118654752f); }
float gelu_tanh(float v) {
  const float t = 0.79788456080286536f * (v + 0.044715f * v * v * v);
  return v / (1.f + std::exp(-2.f * t));
}

}  // namespace

void activate(const Kernels& kernels, const Activation& activation, const float* gate, const float* up, float* out,
              int64_t n) {
  switch (activation.kind) {
    case ActivationKind::kSilu:
      return kernels.silu_mul(gate, up, out, n);
    case ActivationKind::kClampedSwiglu:
      return kernels.clamped_swiglu(gate, up, out, n, activation.alpha, activation.limit);
    case ActivationKind::kGelu:
      for (int64_t i = 0; i < n; ++i) out[i] = gelu_erf(gate[i]) * up[i];
      return;
    case ActivationKind::kGeluTanh:
      for (int64_t i = 0; i < n; ++i) out[i] = gelu_tanh(gate[i]) * up[i];
      return;
  }
}

int64_t experts_scratch_floats() { return kWaveFloats; }

void experts(const Context& c, const ExpertsArgs& a) {
  std::vector<Slice> wave;
  int64_t wave_rows = 0;
  const int64_t most = std::min(std::max<int64_t>(1, kWaveFloats / std::max<int64_t>(1, a.ffn)),
                                quantized_rows_limit(std::max(a.ffn, a.hidden)));
  const auto flush = [&] {
    if (!wave.empty()) Wave(c, a, std::move(wave)).run();
    wave.clear();
    wave_rows = 0;
  };
  for (const ExpertGroup& group : a.groups) {
    EF_DCHECK(group.expert.gate.rows == a.ffn && group.expert.gate.cols == a.hidden);
    EF_DCHECK(group.expert.up.rows == a.ffn && group.expert.up.cols == a.hidden);
    EF_DCHECK(group.expert.down.rows == a.hidden && group.expert.down.cols == a.ffn);
    const int64_t total = int64_t(group.assignments.size());
    for (int64_t first = 0; first < total;) {
      const int64_t rows = std::min(total - first, most - wave_rows);
      wave.push_back({&group, first, rows, wave_rows});
      wave_rows += rows;
      first += rows;
      if (wave_rows == most) flush();
    }
  }
  flush();
}

}  // namespace ef::cpu
