#include "expertflow/engine/completion.h"

#include <algorithm>
#include <limits>

#include "expertflow/base/errors.h"

namespace ef {

// In the words that clients look for.
ContextLengthError::ContextLengthError(int64_t prompt_tokens, int64_t context)
    : RequestError(fmt::format("This model's maximum context length is {} tokens. However, your prompt has {} tokens, "
                               "which leaves no room to answer (context_length_exceeded). Please shorten it.",
                               context, prompt_tokens)),
      prompt_tokens(prompt_tokens),
      context(context) {}

ContextLengthError::ContextLengthError(int64_t least_tokens, int64_t context, size_t bytes)
    : RequestError(fmt::format("This model's maximum context length is {} tokens. However, your prompt of {} bytes has "
                               "at least {} tokens, which leaves no room to answer (context_length_exceeded). Please "
                               "shorten it.",
                               context, bytes, least_tokens)),
      prompt_tokens(least_tokens),
      context(context) {}

Completion::Completion(CompletionRequest request, const Context& context, Sink sink)
    : request_(std::move(request)),
      context_(context),
      sink_(std::move(sink)),
      sampler_(request_.sampler, context.vocab),
      stream_(request_.stop),
      history_(request_.prompt) {
  const int64_t prompt = int64_t(request_.prompt.size());
  EF_CHECK(prompt > 0, RequestError, "expected a prompt of at least one token, found none");
  const bool answers = request_.max_tokens != 0;
  if (prompt > context.length || (answers && prompt == context.length))
    throw ContextLengthError(prompt, context.length);
  for (const TokenId id : request_.prompt)
    EF_CHECK(id >= 0 && id < context.vocab, RequestError, "prompt: token id {} is outside of the vocabulary of {}", id,
             context.vocab);
  room_ = context.length - prompt;
  if (request_.max_tokens >= 0) room_ = std::min(room_, request_.max_tokens);
  EF_CHECK(!request_.grammar || (context.tokenizer && context.token_order), RequestError,
           "response_format: the model brings no tokenizer");
  if (request_.grammar) matcher_.emplace(request_.grammar);
  times_.submitted = context.clock->now();
  times_.prompt_tokens = prompt;
}

namespace {

// DeviceError: it is not the request's fault.
void check_numbers(const RowLogits& row) {
  try {
    check_logits(row.all.empty() ? row.top : row.all);  // of the largest, a NaN is the first
  } catch (const RequestError& error) {
    if (row.odd_layer < 0) fail<DeviceError>("{}", error.what());
    fail<DeviceError>("{}; the first router to see such numbers is layer {}'s", error.what(), row.odd_layer);
  }
}

}  // namespace

// One that the scheduler dropped without a word was cancelled.
Completion::~Completion() {
  if (!ended_) end("abort");
}

bool Completion::cancelled() {
  if (cancelled_ && !ended_) end("abort");
  return cancelled_;
}

void Completion::end(const char* finish) {
  ended_ = true;
  times_.ended = context_.clock->now();
  if (times_.started.count() > 0)
    note_stall(times_.first_token.count() > 0 ? times_.decode_stall : times_.prefill_stall);
  watches_.on_end(times_, finish);
}

void Completion::note_stall(double& into) {
  if (!context_.stall_seconds) return;
  const double now = *context_.stall_seconds;
  into += now - stall_;
  stall_ = now;
}

int Completion::needs_top() const {
  return request_.logprobs >= 0 || matcher_ || request_.prompt_logprobs ? 0 : sampler_.needs_top();
}

void Completion::on_start(int64_t cached) {
  times_.started = context_.clock->now();
  times_.cached_tokens = cached;
  if (context_.stall_seconds) stall_ = *context_.stall_seconds;
  watches_.on_start(times_);
}

void Completion::on_prompt_logits(int64_t at, const RowLogits& row) {
  check_numbers(row);
  const TokenId token = request_.prompt[size_t(at) + 1];
  Sampled sampled{token, logprob_of(row.all, token), top_logprobs(row.all, request_.logprobs)};
  prompt_reports_.push_back(report(sampled));
}

TokenReport Completion::report(const Sampled& sampled) {
  TokenReport r;
  r.token = sampled.token;
  if (context_.tokenizer) r.bytes = context_.tokenizer->token_to_bytes(sampled.token);
  if (request_.logprobs >= 0) r.logprob = sampled.logprob, r.top = sampled.top;
  return r;
}

// The choice without the grammar stands if the grammar takes it; else it is made again among what the grammar takes.
// That is the same distribution, and in most steps nobody looks through the vocabulary.
Sampled Completion::choose_by_grammar(std::span<const float> logits) {
  const Tokenizer& tokenizer = *context_.tokenizer;
  const auto allowed = [&](TokenId token) {
    return (tokenizer.is_eog(token) && matcher_->complete()) || matcher_->takes(grammar_bytes(tokenizer, token));
  };
  Sampled sampled = sampler_.sample(logits, history_, request_.logprobs);
  if (allowed(sampled.token)) return sampled;
  std::vector<float> masked(logits.size(), -std::numeric_limits<float>::infinity());
  const size_t known = std::min(logits.size(), tokenizer.vocab_size());
  matcher_->for_each_taken(*context_.token_order, [&](TokenId token) {
    if (size_t(token) < known) masked[size_t(token)] = logits[size_t(token)];
  });
  if (matcher_->complete())
    for (const TokenId token : tokenizer.eog())
      if (size_t(token) < known) masked[size_t(token)] = logits[size_t(token)];
  const bool some = std::any_of(masked.begin(), masked.end(), [](float l) { return l > -1e30f; });
  EF_CHECK(some, RequestError, "response_format: no token of this model continues the answer");
  const TokenId token = sampler_.sample(masked, history_, -1).token;
  if (request_.logprobs < 0) return {token, 0, {}};
  return {token, logprob_of(logits, token), top_logprobs(logits, request_.logprobs)};
}

Sampled Completion::choose(const RowLogits& row) {
  check_numbers(row);
  if (row.all.empty()) return {sampler_.sample_top(row.top_ids, row.top), 0, {}};
  return matcher_ ? choose_by_grammar(row.all) : sampler_.sample(row.all, history_, request_.logprobs);
}

void Completion::emit(CompletionEvent&& event) {
  if (event.last()) end(event.error ? "error" : *event.finish == CompletionEvent::Finish::kStop ? "stop" : "length");
  sink_(std::move(event));
}

std::optional<TokenId> Completion::next(const RowLogits& row) {
  using Finish = CompletionEvent::Finish;
  CompletionEvent event;
  if (request_.prompt_logprobs && !prompt_reported_) {
    prompt_reported_ = true;
    event.tokens.push_back(report({request_.prompt[0], 0, {}}));
    event.tokens[0].logprob.reset();
    for (TokenReport& token : prompt_reports_) event.tokens.push_back(std::move(token));
    event.prompt_reports = event.tokens.size();
    prompt_reports_.clear();
  }
  if (room_ == 0) {
    event.finish = Finish::kLength;
    emit(std::move(event));
    return std::nullopt;
  }
  const Sampled sampled = choose(row);
  const TokenId token = sampled.token;
  const Duration now = context_.clock->now();
  if (++times_.generated_tokens == 1) {
    times_.first_token = now;
    note_stall(times_.prefill_stall);
  } else {
    watches_.on_token(times_, now - last_token_);
  }
  last_token_ = now;
  history_.push_back(token);
  event.tokens.push_back(report(sampled));

  const Tokenizer* tokenizer = context_.tokenizer;
  const auto& stops = request_.stop_token_ids;
  // Of a grammar's marks one may be a token that ends answers elsewhere.
  const std::string marked = matcher_ ? grammar_bytes(*tokenizer, token) : std::string();
  const bool goes_on = matcher_ && !(tokenizer->is_eog(token) && matcher_->complete()) && matcher_->takes(marked);
  const bool model_ends = tokenizer && tokenizer->is_eog(token) && !request_.ignore_eos && !goes_on;
  if (model_ends || std::find(stops.begin(), stops.end(), token) != stops.end()) {
    event.finish = Finish::kStop;
  } else if (tokenizer) {
    if (goes_on) matcher_->advance(marked);
    if (request_.show_special || !tokenizer->is_special(token)) event.text += stream_.push(event.tokens.back().bytes);
    if (stream_.stopped() || (matcher_ && matcher_->only_complete())) event.finish = Finish::kStop;
  }
  if (!event.finish && times_.generated_tokens == room_) event.finish = Finish::kLength;
  if (event.finish && !stream_.stopped()) event.text += stream_.finish();
  const bool last = event.last();
  emit(std::move(event));
  return last ? std::nullopt : std::optional<TokenId>(token);
}

void Completion::on_error(std::exception_ptr error) {
  if (ended_) return;
  watches_.on_error(error);
  CompletionEvent event;
  event.error = std::move(error);
  emit(std::move(event));
}

}  // namespace ef
