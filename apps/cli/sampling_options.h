// Sampler flags, named as llama-cli names them.
#pragma once
#include <string>
#include <vector>

#include "expertflow/base/options.h"
#include "expertflow/text/sampler.h"

namespace ef::cli {

struct SamplingOptions {
  float temperature = 0.8f;
  int top_k = 40;
  float top_p = 0.95f, min_p = 0.05f;
  float repeat_penalty = 1, presence_penalty = 0, frequency_penalty = 0;
  int repeat_last_n = 64;
  std::vector<std::string> logit_bias;
  int64_t seed = -1;

  template <class Visitor>
  void for_each(Visitor&& visit) {
    visit(temperature, {"--temp,--temperature", "0: always the most likely token"});
    visit(top_k, {"--top-k", "keep the k most likely tokens, 0: all"});
    visit(top_p, {"--top-p", "keep the fewest tokens that hold this probability, 1: all"});
    visit(min_p, {"--min-p", "drop tokens less likely than this share of the most likely, 0: none"});
    visit(repeat_penalty, {"--repeat-penalty", "divides the logits of seen tokens, 1: off"});
    visit(presence_penalty, {"--presence-penalty", "subtracted once from seen tokens"});
    visit(frequency_penalty, {"--frequency-penalty", "subtracted for each time a token was seen"});
    visit(repeat_last_n, {"--repeat-last-n", "tokens that penalties look back on, -1: all"});
    visit(logit_bias, {"-l,--logit-bias", "TOKEN_ID(+/-)BIAS, for example 15043+1 (repeat for more)"});
    visit(seed, {"-s,--seed", "-1: a random one"});
  }
  /// ConfigError naming the flag that is out of range.
  SamplerConfig config() const;
};

}  // namespace ef::cli
