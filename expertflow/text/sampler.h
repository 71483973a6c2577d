// From logits to a token.
//
// Order of the steps, as llama.cpp has them: logit bias, penalties, top-k, top-p, min-p, temperature, draw.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "expertflow/base/errors.h"
#include "expertflow/base/ids.h"

namespace ef {

struct SamplerConfig {
  float temperature = 0.8f;             ///< 0 or less: the most likely token (ties: the lowest id), no randomness
  int top_k = 40;                       ///< keep the k most likely; 0 or less: all
  float top_p = 0.95f;                  ///< keep the fewest most likely tokens that hold this probability; 1: all
  float min_p = 0.05f;                  ///< drop tokens less likely than this share of the most likely one; 0: none
  float repetition_penalty = 1;         ///< seen tokens: positive logits are divided by it, others multiplied; 1: off
  float presence_penalty = 0;           ///< subtracted once from a seen token's logit
  float frequency_penalty = 0;          ///< subtracted for every time that a token was seen
  int penalty_window = 64;              ///< last tokens of the history that count as seen; -1: all, 0: none
  std::map<TokenId, float> logit_bias;  ///< added to logits; -infinity bans a token
  std::optional<uint64_t> seed;         ///< absent: a random one

  /// Empty, or which field is out of its range, the range, and the value.
  std::string problem() const;
  /// Throws E (RequestError for a request, ConfigError for flags) with problem().
  template <class E = RequestError>
  void validate() const {
    if (const std::string text = problem(); !text.empty()) throw E(text);
  }
  bool greedy() const { return temperature <= 0; }
};

/// The first bias of a token beyond the vocabulary, said as an error; empty: there is none.
std::string unknown_bias(const SamplerConfig& sampling, int64_t vocab);

struct TokenLogprob {
  TokenId token = -1;
  float logprob = 0;  ///< natural log; at least kLogprobFloor, so that it always has a JSON form
};
inline constexpr float kLogprobFloor = -9999.0f;

struct Sampled {
  TokenId token = -1;
  float logprob = 0;  ///< of the model itself: before bias, penalties, filters and temperature; if asked for
  std::vector<TokenLogprob> top;  ///< the model's most likely tokens, falling (ties: the lowest id), if asked for
};

struct TokenProbability {
  TokenId token = -1;
  double probability = 0;
};

/// One sequence's sampler. The tokens follow from the config, the seed, the logits and the history alone: the generator
/// is std::mt19937_64, a draw is its upper 53 bits as u in [0, 1), and the token is the first, by rising id, at which
/// the sum of probabilities exceeds u. Every sample() that is not greedy draws once.
class Sampler {
 public:
  /// RequestError where the config is out of range, or biases a token outside of the vocabulary.
  Sampler(const SamplerConfig& config, int64_t vocab_size);

  const SamplerConfig& config() const { return config_; }
  uint64_t seed() const { return seed_; }

  /// logits: [vocab_size], -infinity allowed. history: the sequence's tokens, newest last.
  /// top_logprobs: how many of the model's most likely tokens to report; -1: no logprobs at all (they cost a softmax).
  /// RequestError where a logit is NaN or +infinity, or no token is left.
  Sampled sample(std::span<const float> logits, std::span<const TokenId> history, int top_logprobs = -1);

  /// How many of the largest logits sample_top() needs; 0: it takes all of them, only sample() will do.
  int needs_top() const;
  /// The same token as sample() with all logits, from the largest: falling, among equals the lower id first; at least
  /// needs_top() of them (or the vocabulary).
  TokenId sample_top(std::span<const TokenId> ids, std::span<const float> logits);

  /// What a draw chooses from: the tokens that the filters leave, by rising id. With greedy(), the one token.
  std::vector<TokenProbability> probabilities(std::span<const float> logits, std::span<const TokenId> history) const;

 private:
  struct Candidate {
    TokenId token;
    float logit;
  };
  std::vector<Candidate> candidates(std::span<const float> logits, std::span<const TokenId> history) const;
  std::vector<Candidate> best_candidates(std::span<const float> logits) const;
  std::vector<TokenProbability> probabilities(const std::vector<Candidate>& kept) const;
  TokenId draw(const std::vector<TokenProbability>& choices);
  bool changes_logits() const;
  void apply_penalties(std::vector<float>& logits, std::span<const TokenId> history) const;
  void filter(std::vector<Candidate>& kept) const;

  SamplerConfig config_;
  int64_t vocab_size_;
  uint64_t seed_;
  std::mt19937_64 random_;
};

/// RequestError naming the first logit that is NaN or +infinity, or that all are -infinity.
void check_logits(std::span<const float> logits);

/// log softmax of one logit, and the n largest of all, with kLogprobFloor as the least value.
float logprob_of(std::span<const float> logits, TokenId token);
std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, int n);

}  // namespace ef
