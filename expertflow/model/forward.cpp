#include <algorithm>
#include <utility>

#include "expertflow/base/errors.h"
#include "expertflow/model/blocks.h"
#include "expertflow/model/model.h"

namespace ef {

int64_t Batch::rows() const {
  int64_t n = 0;
  for (const Piece& p : pieces) n += int64_t(p.tokens.size());
  return n;
}

int64_t Batch::logit_rows() const {
  int64_t n = 0;
  for (const Piece& p : pieces) {
    if (p.logits == Piece::Logits::kAll) n += int64_t(p.tokens.size());
    if (p.logits == Piece::Logits::kLast) n += p.tokens.empty() ? 0 : 1;
  }
  return n;
}

namespace {

// Host-side description of the rows.
struct Rows {
  std::vector<TokenId> tokens;
  std::vector<int32_t> position, sequence, rope_length;
  std::vector<int32_t> logit_rows;
  bool all_logits() const { return logit_rows.size() == tokens.size(); }
};

void check(const StepContext& c, const Batch& batch) {
  const int64_t rows = batch.rows();
  EF_CHECK(rows > 0 && rows <= c.state.max_rows, RequestError, "a step takes 1 to {} tokens, found {}",
           c.state.max_rows, rows);
  EF_CHECK(batch.logit_rows() <= c.state.max_logit_rows, RequestError,
           "a step gives logits of at most {} tokens, asked {}", c.state.max_logit_rows, batch.logit_rows());
  std::vector<SequenceId> sequences;
  for (const auto& piece : batch.pieces) {
    EF_CHECK(c.kv.is_open(piece.sequence), RequestError, "a step names sequence {}, which is not open", piece.sequence);
    sequences.push_back(piece.sequence);
  }
  std::sort(sequences.begin(), sequences.end());
  const auto twice = std::adjacent_find(sequences.begin(), sequences.end());
  EF_CHECK(twice == sequences.end(), RequestError, "a step names sequence {} twice: its rows must be one piece",
           *twice);
  for (const auto& piece : batch.pieces)
    for (TokenId id : piece.tokens)
      EF_CHECK(id >= 0 && id < c.model.config.vocab, RequestError, "token id {} is outside the vocabulary of {}", id,
               c.model.config.vocab);
}

Rows describe(const StepContext& c, const Batch& batch) {
  Rows rows;
  for (const auto& piece : batch.pieces) {
    const int64_t length = c.kv.length(piece.sequence);
    const int64_t reach = std::max(c.kv.rope_length(piece.sequence), length + int64_t(piece.tokens.size()));
    for (size_t i = 0; i < piece.tokens.size(); ++i) {
      const bool last = i + 1 == piece.tokens.size();
      if (piece.logits == Batch::Piece::Logits::kAll || (last && piece.logits == Batch::Piece::Logits::kLast))
        rows.logit_rows.push_back(int32_t(rows.tokens.size()));
      rows.tokens.push_back(piece.tokens[i]);
      rows.position.push_back(int32_t(length + int64_t(i)));
      rows.sequence.push_back(piece.sequence);
      rows.rope_length.push_back(int32_t(reach));
    }
  }
  return rows;
}

// Room for all pieces, or for none.
void reserve(KvCache& kv, const Batch& batch) {
  size_t done = 0;
  try {
    for (; done < batch.pieces.size(); ++done)
      kv.reserve(batch.pieces[done].sequence, int64_t(batch.pieces[done].tokens.size()));
  } catch (...) {
    while (done-- > 0) kv.unreserve(batch.pieces[done].sequence);
    throw;
  }
}

// Positions that a step reaches, as far as its ops are told. Recorded steps serve many lengths, so theirs goes up in
// steps of about a quarter.
int64_t reach_of(const Rows& rows, bool recorded) {
  const int64_t reach = *std::max_element(rows.position.begin(), rows.position.end()) + 1;
  if (!recorded) return reach;
  constexpr int64_t kLeast = 256;
  int64_t step = kLeast;
  while (8 * step <= reach) step *= 2;
  return (reach + step - 1) / step * step;
}

std::vector<BatchView> group_views(StepContext& c, const Rows& rows, int64_t reach) {
  const int64_t n = int64_t(rows.tokens.size());
  bool one_each = true;  // rows of a sequence are neighbours
  for (size_t i = 1; i < rows.sequence.size(); ++i) one_each &= rows.sequence[i] != rows.sequence[i - 1];
  std::vector<BatchView> views;
  for (int g = 0; g < c.kv.groups(); ++g)
    views.push_back({n, c.state.inputs.position, c.state.inputs.sequence, c.kv.device_block_table(g, c.stream),
                     c.kv.max_blocks(g), reach, one_each, true});
  return views;
}

void upload(StepContext& c, const Rows& rows) {
  State& st = c.state;
  st.place_inputs(int64_t(rows.tokens.size()));
  std::copy(rows.tokens.begin(), rows.tokens.end(), st.host_inputs.token);
  std::copy(rows.position.begin(), rows.position.end(), st.host_inputs.position);
  std::copy(rows.sequence.begin(), rows.sequence.end(), st.host_inputs.sequence);
  c.rope.fill(rows.position, rows.rope_length, st.host_inputs.cos, st.host_inputs.sin);
  if (!c.backend.memory_is_host())
    c.backend.copy_to_device(st.inputs.token, st.host_inputs.token, st.inputs.bytes, c.stream);
}

void head(StepContext& c, const Rows& rows, int top) {
  const Config& config = c.model.config;
  const Weights& w = c.model.weights;
  const int64_t n = int64_t(rows.logit_rows.size());
  if (n == 0) return;
  const float* x = c.state.x;
  if (!rows.all_logits()) {
    x = c.state.gathered;
    for (int64_t i = 0; i < n; ++i)
      c.backend.copy_2d(c.stream, c.state.gathered + i * config.hidden, config.hidden,
                        c.state.x + rows.logit_rows[size_t(i)] * int64_t(config.hidden), config.hidden, config.hidden,
                        1);
  }
  const LinearOut out[] = {{w.head, w.head_bias, c.state.logits}};
  c.backend.norm_linear(
      c.stream,
      {{config.norm, n, config.hidden, config.norm_eps, w.final_norm, w.final_norm_bias, x, c.state.gathered}, out});
  if (config.logit_scale != 1.f) c.backend.scale(c.stream, c.state.logits, config.logit_scale, n * config.vocab);
  if (top > 0)
    c.backend.top(c.stream, {n, config.vocab, top, c.state.logits, reinterpret_cast<int32_t*>(c.state.top),
                             c.state.top + n * top});
}

std::span<const float> fetch_logits(StepContext& c, const Rows& rows, int top) {
  const size_t count = top > 0 ? 0 : rows.logit_rows.size() * size_t(c.model.config.vocab);
  if (top > 0 && !rows.logit_rows.empty())
    c.backend.copy_to_host(c.state.host_top, c.state.top, rows.logit_rows.size() * 2 * size_t(top) * sizeof(float),
                           c.stream);
  if (!c.backend.memory_is_host() && count > 0)
    c.backend.copy_to_host(c.state.host_logits, c.state.logits, count * sizeof(float), c.stream);
  c.stream.synchronize();
  return {c.state.host_logits, count};
}

// A few rows are worth recording: their kernels are shorter than the queueing of them. Only steps that a key describes
// wholly can be recorded.
constexpr int64_t kMostRecordedRows = 64;
bool can_record(const StepContext& c, const Rows& rows) {
  const int64_t n = int64_t(rows.tokens.size());
  return n <= kMostRecordedRows && rows.all_logits() && !c.observer && c.experts.recordable(n);
}
uint64_t recording_key(const BatchView& view, int top) {
  constexpr int kRowBits = 8, kTopBits = 8;
  static_assert(kMostRecordedRows < 1 << kRowBits && State::kMostTop < 1 << kTopBits);
  return ((uint64_t(view.reach) << kTopBits | uint64_t(top)) << 1 | uint64_t(view.one_row_each)) << kRowBits |
         uint64_t(view.rows);
}

// Ends on every way out.
class Recording {
 public:
  Recording(Stream& stream, bool wanted, uint64_t key) : stream_(wanted ? &stream : nullptr) {
    if (stream_) stream_->begin_recording(key);
  }
  ~Recording() {
    if (stream_) stream_->abandon_recording();
  }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  void end() {
    if (stream_) std::exchange(stream_, nullptr)->end_recording();
  }

 private:
  Stream* stream_;
};

// All layers at once, where the backend has a way to do that.
bool run_whole_layers(StepContext& c, int64_t rows, const std::vector<BatchView>& views) {
  if (rows > c.backend.most_layer_rows()) return false;
  std::vector<LayerArgs> all;
  for (size_t l = 0; l < c.model.config.layers.size(); ++l) {
    const auto layer = whole_layer(c, LayerId(l), views[size_t(c.kv.group_of(LayerId(l)))]);
    if (!layer) return false;
    all.push_back(*layer);
  }
  if (!c.backend.takes_layers(all)) return false;
  c.backend.layers(c.stream, all);
  return true;
}

void run_layers(StepContext& c, const Rows& rows, const std::vector<BatchView>& views, int top) {
  const Config& config = c.model.config;
  const int64_t n = int64_t(rows.tokens.size());
  c.backend.embed(c.stream, c.model.weights.embed, c.state.inputs.token, n, config.embedding_scale, c.state.x);
  if (run_whole_layers(c, n, views)) {
    head(c, rows, top);
    return;
  }
  if (c.observer) c.observer->on_step(rows.tokens, rows.sequence, rows.position);
  for (size_t l = 0; l < config.layers.size(); ++l) {
    if (c.observer) c.observer->on_layer(LayerId(l));
    observe_residual(c, LayerId(l), false, n);
    attention_block(c, LayerId(l), views[size_t(c.kv.group_of(LayerId(l)))]);
    ffn_block(c, LayerId(l), n);
  }
  if (c.observer) c.observer->on_step_end();
  head(c, rows, top);
}

// Ends the experts' step on every way out, so that a failed step does not keep its pins.
class ExpertStep {
 public:
  explicit ExpertStep(Experts& experts) : experts_(experts) { experts_.begin_step(); }
  ~ExpertStep() { experts_.end_step(); }
  ExpertStep(const ExpertStep&) = delete;
  ExpertStep& operator=(const ExpertStep&) = delete;

 private:
  Experts& experts_;
};

}  // namespace

std::span<const float> forward(StepContext& c, const Batch& batch, int top) {
  check(c, batch);
  EF_DCHECK(top <= std::min(c.backend.most_top(), State::kMostTop) && top <= c.model.config.vocab);
  const Rows rows = describe(c, batch);
  reserve(c.kv, batch);

  upload(c, rows);
  const bool record = can_record(c, rows);
  const std::vector<BatchView> views = group_views(c, rows, reach_of(rows, record));
  std::span<const float> logits;
  {
    ExpertStep step(c.experts);
    const uint64_t key = recording_key(views.front(), top);
    if (!record || !c.stream.replay(key)) {
      Recording recording(c.stream, record, key);
      run_layers(c, rows, views, top);
      recording.end();
    }
    logits = fetch_logits(c, rows, top);
  }
  for (const auto& piece : batch.pieces) c.kv.advance(piece.sequence, int64_t(piece.tokens.size()));
  return logits;
}

}  // namespace ef
