// One answer to one prompt as a client of the scheduler: sampler, stop rules, text, log probabilities. It speaks
// through events, on the thread that steps the engine.
#pragma once
#include <atomic>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "expertflow/base/clock.h"
#include "expertflow/sched/scheduler.h"
#include "expertflow/text/grammar.h"
#include "expertflow/text/sampler.h"
#include "expertflow/text/stream.h"
#include "expertflow/text/tokenizer.h"

namespace ef {

class CompletionWatch;

struct CompletionRequest {
  std::vector<TokenId> prompt;
  int64_t max_tokens = -1;  ///< negative: until prompt and answer fill the context; 0: the prompt alone
  SamplerConfig sampler;
  std::vector<std::string> stop;        ///< never shown; matched over text, across tokens
  std::vector<TokenId> stop_token_ids;  ///< end the answer as the model's own end does
  bool ignore_eos = false;
  bool show_special = false;  ///< special tokens are part of the text
  int logprobs = -1;          ///< most likely tokens to report with each; -1: no log probabilities
  bool prompt_logprobs = false;
  bool use_prefix_cache = true;
  std::shared_ptr<const Grammar> grammar;  ///< what the answer must match; null: anything
  std::shared_ptr<CompletionWatch> watch;  ///< told of this one, beside whoever watches all; null: nobody
};

/// The prompt leaves no room to answer.
class ContextLengthError : public RequestError {
 public:
  ContextLengthError(int64_t prompt_tokens, int64_t context);
  /// Of a prompt whose tokens nobody has counted: so many bytes are at least so many tokens.
  ContextLengthError(int64_t least_tokens, int64_t context, size_t bytes);
  int64_t prompt_tokens, context;
};

/// A token of the answer (or of the prompt, with prompt_logprobs) as it is reported.
struct TokenReport {
  TokenId token = -1;
  std::string bytes;
  std::optional<float> logprob;  ///< absent for the first token of a prompt
  std::vector<TokenLogprob> top;
};

struct CompletionEvent {
  enum class Finish : uint8_t { kStop, kLength };
  std::string text;                 ///< that can be shown now; whole characters
  std::vector<TokenReport> tokens;  ///< chosen since the last event; reports hold log probabilities only if asked for
  size_t prompt_reports = 0;        ///< of tokens, those at the front that are the prompt's
  std::optional<Finish> finish;     ///< of the last event
  std::exception_ptr error;         ///< of the last event, if it failed
  bool last() const { return finish.has_value() || error != nullptr; }
};

/// Times of one answer; 0: not reached.
struct CompletionTimes {
  Duration submitted{0}, started{0}, first_token{0}, ended{0};
  int64_t prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0;
  /// Seconds of [started, first_token] and of [first_token, ended] in which the engine's steps waited for experts,
  /// whoever's: a batch waits as one.
  double prefill_stall = 0, decode_stall = 0;
};

/// Told what happened, for metrics; called on the engine's thread.
class CompletionWatch {
 public:
  virtual ~CompletionWatch() = default;
  /// Its first step is about to run.
  virtual void on_start(const CompletionTimes&) {}
  /// A token after the first; since: the one before.
  virtual void on_token(const CompletionTimes&, Duration /*since*/) {}
  /// What it fails with; on_end follows.
  virtual void on_error(const std::exception_ptr&) {}
  /// finish: "stop", "length", "abort" or "error".
  virtual void on_end(const CompletionTimes&, const char* /*finish*/) {}
};

/// Several as one. Null ones are left out; they must outlive it.
class CompletionWatches final : public CompletionWatch {
 public:
  CompletionWatches(std::initializer_list<CompletionWatch*> all) {
    for (CompletionWatch* one : all)
      if (one) all_.push_back(one);
  }
  void on_start(const CompletionTimes& times) override {
    for (CompletionWatch* one : all_) one->on_start(times);
  }
  void on_token(const CompletionTimes& times, Duration since) override {
    for (CompletionWatch* one : all_) one->on_token(times, since);
  }
  void on_error(const std::exception_ptr& error) override {
    for (CompletionWatch* one : all_) one->on_error(error);
  }
  void on_end(const CompletionTimes& times, const char* finish) override {
    for (CompletionWatch* one : all_) one->on_end(times, finish);
  }

 private:
  std::vector<CompletionWatch*> all_;
};

class Completion final : public SequenceClient {
 public:
  using Sink = std::function<void(CompletionEvent&&)>;
  struct Context {
    const Tokenizer* tokenizer = nullptr;     ///< null: ids alone
    const TokenOrder* token_order = nullptr;  ///< of the tokenizer; needed with a grammar
    const Clock* clock = nullptr;
    CompletionWatch* watch = nullptr;                    ///< may be null
    const std::atomic<double>* stall_seconds = nullptr;  ///< of the engine's steps so far; null: not known
    int64_t vocab = 0;
    int64_t length = 0;  ///< of the context
  };
  /// RequestError: sampler out of range, an empty stop string, a prompt that leaves no room to answer (with the counts,
  /// in the words that clients look for). All in context must outlive it.
  Completion(CompletionRequest request, const Context& context, Sink sink);
  ~Completion() override;

  /// From any thread: ends it before the next step, without a further event.
  void cancel() { cancelled_ = true; }
  /// It was never submitted: no event, and nothing is counted.
  void forget() { ended_ = true; }

  bool cancelled() override;
  int needs_top() const override;
  void on_start(int64_t cached) override;
  void on_prompt_logits(int64_t at, const RowLogits& row) override;
  std::optional<TokenId> next(const RowLogits& row) override;
  void on_error(std::exception_ptr error) override;

  const CompletionRequest& request() const { return request_; }
  CompletionTimes times() const { return times_; }  ///< on the engine's thread, or after the last event

 private:
  Sampled choose(const RowLogits& row);
  Sampled choose_by_grammar(std::span<const float> logits);
  TokenReport report(const Sampled& sampled);
  void emit(CompletionEvent&& event);
  void end(const char* finish);
  void note_stall(double& into);

  CompletionRequest request_;
  Context context_;
  CompletionWatches watches_{context_.watch, request_.watch.get()};
  Sink sink_;
  Sampler sampler_;
  TextStream stream_;
  std::optional<GrammarMatcher> matcher_;
  std::vector<TokenId> history_;
  std::vector<TokenReport> prompt_reports_;
  CompletionTimes times_;
  Duration last_token_{0};
  double stall_ = 0;  ///< as last seen
  int64_t room_ = 0;  ///< tokens that may be generated
  bool ended_ = false, prompt_reported_ = false;
  std::atomic<bool> cancelled_{false};
};

}  // namespace ef
