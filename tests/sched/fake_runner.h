// An engine for tests of scheduling: its "keys and values" are the tokens themselves, written to and read back through
// the KV cache's block tables, so that a block that is shared, lost or overwritten wrongly changes the answer. The next
// token is a hash of all tokens before it.
#pragma once
#include <functional>
#include <map>
#include <numeric>

#include "expertflow/backend/cpu/cpu_backend.h"
#include "expertflow/base/errors.h"
#include "expertflow/sched/scheduler.h"

namespace ef::testing {

inline constexpr int kFakeVocab = 97;
inline constexpr TokenId kPoison = 96;  ///< a step that computes it fails

inline TokenId token_after(std::span<const TokenId> tokens) {
  uint64_t h = 1469598103934665603ull;
  for (const TokenId t : tokens) h = (h ^ uint64_t(t + 1)) * 1099511628211ull;
  return TokenId((h >> 20) % 90);
}

/// What any scheduling must give.
inline std::vector<TokenId> answer_to(std::vector<TokenId> prompt, size_t count) {
  const size_t begin = prompt.size();
  while (prompt.size() < begin + count) prompt.push_back(token_after(prompt));
  return {prompt.begin() + long(begin), prompt.end()};
}

class FakeRunner : public StepRunner {
 public:
  explicit FakeRunner(const KvOptions& kv, Limits limits, std::vector<int> windows = {0})
      : backend_(make_cpu_backend(pool_, Isa::kReference)), limits_(limits) {
    Config c;
    c.kv_heads = 1, c.heads = 1, c.head_dim = 8;
    for (const int window : windows) c.layers.push_back({true, window});
    kv_ = std::make_unique<KvCache>(c, *backend_, kv);
  }
  KvCache& kv() override { return *kv_; }
  const Limits& limits() const override { return limits_; }

  struct Piece {
    SequenceId sequence;
    int64_t tokens;
  };
  std::vector<std::vector<Piece>> steps;
  std::function<void(const Batch&)> before;

  void run(const Batch& batch, int top, std::vector<RowLogits>& rows) override {
    if (before) before(batch);
    EF_CHECK(batch.rows() <= limits_.rows && batch.logit_rows() <= limits_.logit_rows, RequestError, "too many rows");
    for (const auto& piece : batch.pieces) kv_->reserve(piece.sequence, int64_t(piece.tokens.size()));
    for (const auto& piece : batch.pieces)
      for (const TokenId t : piece.tokens) EF_CHECK(t != kPoison, DeviceError, "poison");
    std::vector<Piece> step;
    logits_.clear();
    for (const auto& piece : batch.pieces) {
      step.push_back({piece.sequence, int64_t(piece.tokens.size())});
      int64_t at = kv_->length(piece.sequence);
      for (size_t i = 0; i < piece.tokens.size(); ++i, ++at) {
        for (int g = 0; g < kv_->groups(); ++g) cell(g, piece.sequence, at) = piece.tokens[i];
        const bool last = i + 1 == piece.tokens.size();
        if (piece.logits == Batch::Piece::Logits::kAll || (last && piece.logits == Batch::Piece::Logits::kLast))
          logits_.push_back(row(piece.sequence, at));
      }
    }
    for (const auto& piece : batch.pieces) kv_->advance(piece.sequence, int64_t(piece.tokens.size()));
    for (const auto& l : logits_) rows.push_back({l, {}, {}});
    (void)top;
    steps.push_back(std::move(step));
  }

 private:
  TokenId& cell(int group, SequenceId sequence, int64_t at) {
    const int size = kv_->options().block_tokens;
    const int32_t block = kv_->block(group, sequence, at / size);
    EF_CHECK(block >= 0, DeviceError, "position {} of sequence {} has no block in group {}", at, sequence, group);
    return cells_[{group, block, int(at % size)}];
  }
  // The full group gives the tokens; windows must hold the same where they reach.
  std::vector<float> row(SequenceId sequence, int64_t at) {
    std::vector<TokenId> seen;
    for (int64_t p = 0; p <= at; ++p) seen.push_back(cell(0, sequence, p));
    for (int g = 1; g < kv_->groups(); ++g)
      for (int64_t p = std::max<int64_t>(0, at - kv_->window(g) + 1); p <= at; ++p)
        EF_CHECK(cell(g, sequence, p) == seen[size_t(p)], DeviceError, "window {} differs at {}", g, p);
    std::vector<float> logits(kFakeVocab, 0.f);
    logits[size_t(token_after(seen))] = 1;
    return logits;
  }

  ThreadPool pool_{1};
  std::unique_ptr<Backend> backend_;
  Limits limits_;
  std::unique_ptr<KvCache> kv_;
  std::map<std::tuple<int, int32_t, int>, TokenId> cells_;
  std::vector<std::vector<float>> logits_;
};

/// Takes the largest logit until it has `wanted` tokens.
class GreedyClient : public SequenceClient {
 public:
  explicit GreedyClient(size_t wanted) : wanted_(wanted) {}
  bool cancelled() override { return cancel; }
  void on_start(int64_t cached) override { starts.push_back(cached); }
  void on_prompt_logits(int64_t at, const RowLogits& row) override { prompt_rows.emplace_back(at, best(row)); }
  std::optional<TokenId> next(const RowLogits& row) override {
    if (wanted_ == 0) {
      done = true;
      return std::nullopt;
    }
    tokens.push_back(best(row));
    done = tokens.size() == wanted_;
    return done ? std::nullopt : std::optional<TokenId>(tokens.back());
  }
  void on_error(std::exception_ptr e) override { error = e; }

  bool cancel = false, done = false;
  std::vector<TokenId> tokens;
  std::vector<int64_t> starts;
  std::vector<std::pair<int64_t, TokenId>> prompt_rows;
  std::exception_ptr error;

 private:
  static TokenId best(const RowLogits& row) {
    return TokenId(std::max_element(row.all.begin(), row.all.end()) - row.all.begin());
  }
  size_t wanted_;
};

inline KvOptions kv_of(int64_t max_tokens, int sequences, int block_tokens = 4, int step = 32) {
  KvOptions o;
  o.type = KvType::kF32;
  o.max_tokens = max_tokens, o.max_sequences = sequences, o.block_tokens = block_tokens, o.max_step_tokens = step;
  return o;
}
inline StepRunner::Limits limits_of(int rows, int logit_rows, int64_t length) {
  StepRunner::Limits l;
  l.rows = rows, l.logit_rows = logit_rows, l.length = length;
  return l;
}

/// Tokens that are no other prompt's.
inline std::vector<TokenId> prompt_of(size_t length, int seed) {
  std::vector<TokenId> out(length);
  uint64_t x = uint64_t(seed) * 7919 + 17;
  for (TokenId& t : out) {
    x = x * 6364136223846793005ull + 1442695040888963407ull;
    t = TokenId((x >> 33) % 90);
  }
  return out;
}

}  // namespace ef::testing
