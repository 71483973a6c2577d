#include "apps/cli/sampling_options.h"

#include <charconv>

#include "expertflow/base/errors.h"

namespace ef::cli {

SamplerConfig SamplingOptions::config() const {
  SamplerConfig c;
  c.temperature = temperature;
  c.top_k = top_k;
  c.top_p = top_p;
  c.min_p = min_p;
  c.repetition_penalty = repeat_penalty;
  c.presence_penalty = presence_penalty;
  c.frequency_penalty = frequency_penalty;
  c.penalty_window = repeat_last_n;
  EF_CHECK(seed >= -1, ConfigError, "--seed: expected -1 or more, found {}", seed);
  if (seed >= 0) c.seed = uint64_t(seed);
  for (const std::string& entry : logit_bias) {
    TokenId token = 0;
    float bias = 0;
    const char* end = entry.data() + entry.size();
    auto [sign, error] = std::from_chars(entry.data(), end, token);
    const bool signed_value = error == std::errc() && sign < end && (*sign == '+' || *sign == '-');
    const char* value = signed_value && *sign == '+' ? sign + 1 : sign;
    const auto parsed =
        signed_value ? std::from_chars(value, end, bias) : std::from_chars_result{end, std::errc::invalid_argument};
    const bool ok = parsed.ec == std::errc() && parsed.ptr == end && value < end;
    EF_CHECK(ok, ConfigError, "--logit-bias: expected TOKEN_ID+BIAS or TOKEN_ID-BIAS, found \"{}\"", entry);
    c.logit_bias[token] = bias;
  }
  c.validate<ConfigError>();
  return c;
}

}  // namespace ef::cli
