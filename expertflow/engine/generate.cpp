#include "expertflow/engine/generate.h"

#include <algorithm>

#include "expertflow/base/errors.h"
#include "expertflow/text/stream.h"

namespace ef {

namespace {

double now() { return seconds(SteadyClock().now()); }

}  // namespace

// Keeps the sequence if the prompt continues it (a KV row cannot be taken back); how many tokens of the prompt it
// holds.
int64_t Generator::reuse(const GenerateRequest& request) {
  const auto& prompt = request.prompt;
  const bool continues =
      sequence_ && held_.size() < prompt.size() && std::equal(held_.begin(), held_.end(), prompt.begin());
  if (continues) return int64_t(held_.size());
  sequence_.reset();
  held_.clear();
  // Rope kinds that depend on length go by the context, not by what is asked: tokens must not depend on max_tokens.
  sequence_ = std::make_unique<Sequence>(engine_, engine_.context_length());
  return 0;
}

// The token after these, from as few logits as its choice takes.
TokenId Generator::next(std::span<const TokenId> tokens, Sampler& sampler, std::span<const TokenId> history) {
  const int top = sampler.needs_top();
  if (top == 0 || top > engine_.most_top()) return sampler.sample(sequence_->feed(tokens), history).token;
  const TopLogits largest = sequence_->feed_top(tokens, top);
  return sampler.sample_top(largest.ids, largest.logits);
}

// Feeds what the sequence does not hold, a chunk at a time; no token if it was cancelled between chunks.
std::optional<TokenId> Generator::feed_prompt(const GenerateRequest& request, Sampler& sampler) {
  const size_t chunk = size_t(engine_.options().ubatch);
  while (held_.size() < request.prompt.size()) {
    if (request.cancelled && request.cancelled()) return std::nullopt;
    const auto rest = std::span(request.prompt).subspan(held_.size());
    const auto piece = rest.first(std::min(chunk, rest.size()));
    std::optional<TokenId> token;
    if (piece.size() == rest.size())
      token = next(piece, sampler, request.prompt);
    else
      sequence_->feed_silently(piece);
    held_.insert(held_.end(), piece.begin(), piece.end());
    if (token) return token;
  }
  return std::nullopt;
}

void Generator::check_prompt(int64_t prompt_tokens) const {
  const int64_t context = engine_.context_length();
  EF_CHECK(prompt_tokens > 0, RequestError, "expected a prompt of at least one token, found none");
  EF_CHECK(prompt_tokens < context, RequestError,
           "the prompt has {} tokens, this model's maximum context length is {} tokens (--ctx-size): no room to answer",
           prompt_tokens, context);
}

GenerateResult Generator::generate(const GenerateRequest& request, const OnText& on_text) {
  const int64_t context = engine_.context_length(), prompt_tokens = int64_t(request.prompt.size());
  check_prompt(prompt_tokens);
  const int64_t room = context - prompt_tokens;
  const int64_t max_tokens = request.max_tokens < 0 ? room : std::min(request.max_tokens, room);
  Sampler sampler(request.sampler, engine_.config().vocab);
  TextStream stream(request.stop);
  GenerateResult result;
  result.prompt_tokens = prompt_tokens;
  const auto show = [&](const std::string& text) {
    result.text += text;
    return text.empty() || !on_text || on_text(text);
  };
  try {
    result.cached_tokens = reuse(request);
    const double start = now();
    std::optional<TokenId> chosen = feed_prompt(request, sampler);
    result.computed_tokens = int64_t(held_.size()) - result.cached_tokens;
    if (!chosen) {
      result.finish = GenerateResult::Finish::kCancelled;
      result.prompt_seconds = now() - start;
      return result;
    }
    const double decode_start = now();
    result.prompt_seconds = decode_start - start;
    std::vector<TokenId> history = request.prompt;
    result.finish = GenerateResult::Finish::kLength;
    while (int64_t(result.tokens.size()) < max_tokens) {
      const TokenId token = *chosen;
      result.tokens.push_back(token);
      history.push_back(token);
      if (tokenizer_ && tokenizer_->is_eog(token) && !request.ignore_eos) {
        result.finish = GenerateResult::Finish::kStop;
        break;
      }
      const bool shown = tokenizer_ && (request.show_special || !tokenizer_->is_special(token));
      const bool go_on = (!shown || show(stream.push(tokenizer_->token_to_bytes(token)))) &&
                         !(request.cancelled && request.cancelled());
      if (stream.stopped()) {
        result.finish = GenerateResult::Finish::kStop;
        break;
      }
      if (!go_on) {
        result.finish = GenerateResult::Finish::kCancelled;
        break;
      }
      if (int64_t(result.tokens.size()) == max_tokens) break;
      chosen = next(std::span(result.tokens).last(1), sampler, history);
      held_.push_back(token);
    }
    if (!stream.stopped()) show(stream.finish());
    result.decode_seconds = now() - decode_start;
  } catch (...) {
    sequence_.reset();
    held_.clear();
    throw;
  }
  return result;
}

}  // namespace ef
