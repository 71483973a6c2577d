// The token loop: prompt in, text out as it comes. One generator is one conversation: of a prompt that continues what
// the sequence already holds, only the rest is computed.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "expertflow/engine/engine.h"
#include "expertflow/engine/sequence.h"
#include "expertflow/text/sampler.h"
#include "expertflow/text/tokenizer.h"

namespace ef {

struct GenerateRequest {
  std::vector<TokenId> prompt;  ///< at least one token
  int64_t max_tokens = -1;      ///< negative: until prompt and answer fill the context
  SamplerConfig sampler;
  std::vector<std::string> stop;  ///< never shown; matched over text, across tokens
  bool ignore_eos = false;
  bool show_special = false;        ///< special tokens are part of the text
  std::function<bool()> cancelled;  ///< polled before each chunk of the prompt and each token; may be empty
};

struct GenerateResult {
  enum class Finish : uint8_t { kStop, kLength, kCancelled };
  std::vector<TokenId> tokens;  ///< the end-of-generation token included, if one came
  std::string text;             ///< all that was shown
  Finish finish = Finish::kStop;
  int64_t prompt_tokens = 0;    ///< of the request
  int64_t cached_tokens = 0;    ///< of them, those that the sequence held already
  int64_t computed_tokens = 0;  ///< of the prompt, those that were computed (all the rest unless it was cancelled)
  double prompt_seconds = 0, decode_seconds = 0;
};

class Generator {
 public:
  /// tokenizer may be null (ids in, ids out; text stays empty). Both must outlive the generator.
  Generator(Engine& engine, const Tokenizer* tokenizer) : engine_(engine), tokenizer_(tokenizer) {}

  /// RequestError with the counts where a prompt of so many tokens is empty or leaves no room to answer.
  void check_prompt(int64_t prompt_tokens) const;

  /// Called with text as it can be shown; returning false cancels after the token.
  using OnText = std::function<bool(std::string_view)>;
  /// RequestError: prompt empty or longer than the context (with the counts), sampler out of range, logits not finite.
  /// DeviceError: an expert could not be read. The generator stays usable: it starts from an empty sequence then.
  GenerateResult generate(const GenerateRequest& request, const OnText& on_text = {});

 private:
  int64_t reuse(const GenerateRequest& request);
  TokenId next(std::span<const TokenId> tokens, Sampler& sampler, std::span<const TokenId> history);
  std::optional<TokenId> feed_prompt(const GenerateRequest& request, Sampler& sampler);
  Engine& engine_;
  const Tokenizer* tokenizer_;
  std::unique_ptr<Sequence> sequence_;
  std::vector<TokenId> held_;  ///< tokens in the sequence's KV
};

}  // namespace ef
