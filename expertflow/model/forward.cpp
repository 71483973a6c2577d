#include <algorithm>

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

// Host-side description of the rows, copied to the device once a step.
struct Rows {
  std::vector<TokenId> tokens;
  std::vector<int32_t> position, sequence, rope_length;
  std::vector<int32_t> logit_rows;
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

std::vector<BatchView> group_views(StepContext& c, const Rows& rows) {
  const int64_t n = int64_t(rows.tokens.size());
  const int64_t reach = *std::max_element(rows.position.begin(), rows.position.end()) + 1;
  std::vector<BatchView> views;
  for (int g = 0; g < c.kv.groups(); ++g)
    views.push_back(
        {n, c.state.position, c.state.sequence, c.kv.device_block_table(g, c.stream), c.kv.max_blocks(g), reach});
  return views;
}

void fill_rope(StepContext& c, const Rows& rows) {
  if (c.backend.memory_is_host()) {
    c.rope.fill(rows.position, rows.rope_length, c.state.cos, c.state.sin);
    return;
  }
  const size_t n = rows.position.size() * size_t(c.model.config.rope.rotary_dim / 2);
  c.state.host_cos.resize(n), c.state.host_sin.resize(n);
  c.rope.fill(rows.position, rows.rope_length, c.state.host_cos.data(), c.state.host_sin.data());
  c.backend.copy_to_device(c.state.cos, c.state.host_cos.data(), n * sizeof(float), c.stream);
  c.backend.copy_to_device(c.state.sin, c.state.host_sin.data(), n * sizeof(float), c.stream);
}

std::span<const float> head(StepContext& c, const Rows& rows) {
  const Config& config = c.model.config;
  const Weights& w = c.model.weights;
  const int64_t n = int64_t(rows.logit_rows.size());
  if (n == 0) return {};
  for (int64_t i = 0; i < n; ++i)
    c.backend.copy_2d(c.stream, c.state.gathered + i * config.hidden, config.hidden,
                      c.state.x + rows.logit_rows[size_t(i)] * int64_t(config.hidden), config.hidden, config.hidden, 1);
  c.backend.norm(c.stream, {config.norm, n, config.hidden, config.norm_eps, w.final_norm, w.final_norm_bias,
                            c.state.gathered, c.state.gathered});
  c.backend.linear(c.stream, {w.head, w.head_bias, n, c.state.gathered, c.state.logits});
  if (config.logit_scale != 1.f) c.backend.scale(c.stream, c.state.logits, config.logit_scale, n * config.vocab);
  const size_t count = size_t(n * config.vocab);
  if (c.backend.memory_is_host()) return {c.state.logits, count};
  c.state.host_logits.resize(count);
  c.backend.copy_to_host(c.state.host_logits.data(), c.state.logits, count * sizeof(float), c.stream);
  return c.state.host_logits;
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

std::span<const float> forward(StepContext& c, const Batch& batch) {
  check(c, batch);
  const Config& config = c.model.config;
  const Rows rows = describe(c, batch);
  const int64_t n = int64_t(rows.tokens.size());
  reserve(c.kv, batch);

  fill_rope(c, rows);
  c.backend.copy_to_device(c.state.position, rows.position.data(), uint64_t(n) * 4, c.stream);
  c.backend.copy_to_device(c.state.sequence, rows.sequence.data(), uint64_t(n) * 4, c.stream);
  const std::vector<BatchView> views = group_views(c, rows);

  std::span<const float> logits;
  {
    ExpertStep step(c.experts);
    c.backend.embed(c.stream, c.model.weights.embed, rows.tokens, config.embedding_scale, c.state.x);
    for (size_t l = 0; l < config.layers.size(); ++l) {
      attention_block(c, LayerId(l), views[size_t(c.kv.group_of(LayerId(l)))]);
      ffn_block(c, LayerId(l), n);
    }
    logits = head(c, rows);
    c.stream.synchronize();
  }
  for (const auto& piece : batch.pieces) c.kv.advance(piece.sequence, int64_t(piece.tokens.size()));
  return logits;
}

}  // namespace ef
