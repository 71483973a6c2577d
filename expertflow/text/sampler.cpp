#include "expertflow/text/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <unordered_map>

namespace ef {
namespace {

constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();

uint64_t random_seed() {
  std::random_device device;
  return (uint64_t(device()) << 32) | device();
}

template <class T>
std::string out_of_range(const char* field, const char* range, T found) {
  return fmt::format("{}: expected {}, found {}", field, range, found);
}

/// Largest logit first; ties: the lowest id first.
template <class C>
bool before(const C& a, const C& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

struct LogSum {
  double max;
  double log_sum;  // log of the sum of exp(logit - max)
};

LogSum log_sum(std::span<const float> logits) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float l : logits) sum += std::exp(double(l) - max);
  return {max, std::log(sum)};
}

float floored(double logprob) { return logprob < double(kLogprobFloor) ? kLogprobFloor : float(logprob); }

/// Several running maxima at once: the compiler keeps them in one register.
float largest(std::span<const float> logits) {
  constexpr size_t kLanes = 8;
  float best[kLanes];
  std::fill_n(best, kLanes, kNegativeInfinity);
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes)
    for (size_t lane = 0; lane < kLanes; ++lane)
      best[lane] = logits[i + lane] > best[lane] ? logits[i + lane] : best[lane];
  for (; i < logits.size(); ++i) best[0] = std::max(best[0], logits[i]);
  return *std::max_element(best, best + kLanes);
}

/// Orders the front of `kept` and returns how many of the most likely hold `share`; at least one, at most all.
template <class C, class Weight>
size_t top_p_count(std::vector<C>& kept, double share, Weight weight) {
  double sum = 0;
  for (size_t begin = 0, piece = 256; begin < kept.size(); piece *= 4) {
    const size_t end = std::min(kept.size(), begin + piece);
    const auto at = [&](size_t i) { return kept.begin() + std::ptrdiff_t(i); };
    if (end < kept.size()) std::nth_element(at(begin), at(end), kept.end(), before<C>);
    std::sort(at(begin), at(end), before<C>);
    for (; begin < end; ++begin) {
      sum += weight(kept[begin]);
      if (sum >= share) return begin + 1;
    }
  }
  return kept.size();
}

}  // namespace

std::string SamplerConfig::problem() const {
  const auto within = [](float v, float low, float high) { return v >= low && v <= high; };
  if (!std::isfinite(temperature) || temperature > 100) return out_of_range("temperature", "at most 100", temperature);
  if (top_k < -1) return out_of_range("top_k", "-1 or more", top_k);
  if (!within(top_p, 0, 1)) return out_of_range("top_p", "0 to 1", top_p);
  if (!within(min_p, 0, 1)) return out_of_range("min_p", "0 to 1", min_p);
  if (!(repetition_penalty > 0 && repetition_penalty <= 100)) {
    return out_of_range("repetition_penalty", "above 0, at most 100", repetition_penalty);
  }
  if (!within(presence_penalty, -2, 2)) return out_of_range("presence_penalty", "-2 to 2", presence_penalty);
  if (!within(frequency_penalty, -2, 2)) return out_of_range("frequency_penalty", "-2 to 2", frequency_penalty);
  if (penalty_window < -1) return out_of_range("penalty_window", "-1 or more", penalty_window);
  for (const auto& [token, bias] : logit_bias) {
    if (token < 0) return out_of_range("logit_bias", "token ids of 0 or more", token);
    if (std::isnan(bias) || bias > 1e9f) {
      return fmt::format("logit_bias[{}]: expected a number of at most 1e9, or -inf, found {}", token, bias);
    }
  }
  return {};
}

std::string unknown_bias(const SamplerConfig& sampling, int64_t vocab) {
  for (const auto& [token, bias] : sampling.logit_bias)
    if (token >= vocab) return fmt::format("logit_bias: expected token ids of 0 to {}, found {}", vocab - 1, token);
  return {};
}

void check_logits(std::span<const float> logits) {
  // Integers, so that the compiler takes several at once; which one it was matters only once one was.
  constexpr uint32_t kInfinity = 0x7f800000u, kMinusInfinity = 0xff800000u;
  uint32_t odd = 0, some = 0;
  for (const float l : logits) {
    const uint32_t bits = std::bit_cast<uint32_t>(l);
    odd |= uint32_t((bits & kInfinity) == kInfinity) & uint32_t(bits != kMinusInfinity);
    some |= uint32_t(bits != kMinusInfinity);
  }
  for (size_t i = 0; odd && i < logits.size(); ++i)
    EF_CHECK(!std::isnan(logits[i]) && logits[i] != std::numeric_limits<float>::infinity(), RequestError,
             "the model's logits are not finite: token {} has {}", i, logits[i]);
  EF_CHECK(some, RequestError, "the model's logits are not finite: all {} are -inf", logits.size());
}

float logprob_of(std::span<const float> logits, TokenId token) {
  const LogSum sum = log_sum(logits);
  return floored(double(logits[size_t(token)]) - sum.max - sum.log_sum);
}

std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, int n) {
  const size_t count = std::min(logits.size(), size_t(std::max(n, 0)));
  if (count == 0) return {};
  const LogSum sum = log_sum(logits);
  std::vector<TokenId> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::partial_sort(ids.begin(), ids.begin() + std::ptrdiff_t(count), ids.end(), [&](TokenId a, TokenId b) {
    const float x = logits[size_t(a)];
    const float y = logits[size_t(b)];
    return x != y ? x > y : a < b;
  });
  std::vector<TokenLogprob> top;
  for (size_t i = 0; i < count; ++i)
    top.push_back({ids[i], floored(double(logits[size_t(ids[i])]) - sum.max - sum.log_sum)});
  return top;
}

Sampler::Sampler(const SamplerConfig& config, int64_t vocab_size)
    : config_(config), vocab_size_(vocab_size), seed_(config.seed ? *config.seed : random_seed()), random_(seed_) {
  config_.validate<RequestError>();
  if (const std::string why = unknown_bias(config_, vocab_size); !why.empty()) throw RequestError(why);
}

void Sampler::apply_penalties(std::vector<float>& logits, std::span<const TokenId> history) const {
  const bool off = config_.repetition_penalty == 1 && config_.presence_penalty == 0 && config_.frequency_penalty == 0;
  if (off || config_.penalty_window == 0) return;
  if (config_.penalty_window > 0 && history.size() > size_t(config_.penalty_window)) {
    history = history.last(size_t(config_.penalty_window));
  }
  std::unordered_map<TokenId, int> counts;
  for (const TokenId token : history) ++counts[token];
  for (const auto& [token, count] : counts) {
    if (token < 0 || token >= vocab_size_) continue;
    float& logit = logits[size_t(token)];
    logit = logit > 0 ? logit / config_.repetition_penalty : logit * config_.repetition_penalty;
    logit -= float(count) * config_.frequency_penalty + config_.presence_penalty;
  }
}

void Sampler::filter(std::vector<Candidate>& kept) const {
  const float max =
      std::max_element(kept.begin(), kept.end(), [](auto& a, auto& b) { return a.logit < b.logit; })->logit;
  const auto weight = [&](const Candidate& c) { return std::exp(double(c.logit) - double(max)); };
  double total = 0;
  if (config_.top_p < 1) {
    for (const Candidate& c : kept) total += weight(c);
  }
  // Both filters keep a beginning of the falling order, so the cheap one may go first: what it drops is not sorted.
  const double min_p = double(config_.min_p);
  if (min_p > 0) std::erase_if(kept, [&](const Candidate& c) { return c.logit != max && weight(c) < min_p; });
  if (config_.top_p < 1) kept.resize(top_p_count(kept, double(config_.top_p) * total, weight));
  std::sort(kept.begin(), kept.end(), [](auto& a, auto& b) { return a.token < b.token; });
}

// The top_k most likely, by rising id among equals. A bounded buffer: few of a large vocabulary ever enter it.
std::vector<Sampler::Candidate> Sampler::best_candidates(std::span<const float> logits) const {
  const size_t k = config_.top_k > 0 ? std::min(logits.size(), size_t(config_.top_k)) : logits.size();
  const size_t room = std::min(logits.size(), std::max<size_t>(2 * k, 64));
  std::vector<Candidate> kept;
  kept.reserve(room);
  float least = kNegativeInfinity;  // of k that were seen: later ones with this logit come behind them
  const auto drop_the_rest = [&] {
    const auto last = kept.begin() + std::ptrdiff_t(k - 1);
    std::nth_element(kept.begin(), last, kept.end(), before<Candidate>);
    least = last->logit;
    kept.resize(k);
  };
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!(logits[i] > least)) continue;
    kept.push_back({TokenId(i), logits[i]});
    if (kept.size() == room && k < room) drop_the_rest();
  }
  if (kept.size() > k) drop_the_rest();
  return kept;
}

bool Sampler::changes_logits() const {
  return !config_.logit_bias.empty() || config_.repetition_penalty != 1 || config_.presence_penalty != 0 ||
         config_.frequency_penalty != 0;
}

std::vector<Sampler::Candidate> Sampler::candidates(std::span<const float> logits,
                                                    std::span<const TokenId> history) const {
  EF_CHECK(int64_t(logits.size()) == vocab_size_, RequestError, "expected {} logits, found {}", vocab_size_,
           logits.size());
  check_logits(logits);
  std::vector<float> changed;
  if (changes_logits()) {
    changed.assign(logits.begin(), logits.end());
    for (const auto& [token, bias] : config_.logit_bias) changed[size_t(token)] += bias;
    apply_penalties(changed, history);
    logits = changed;
  }
  std::vector<Candidate> kept;
  if (config_.greedy()) {
    const float best = largest(logits);
    const auto at = std::find(logits.begin(), logits.end(), best);
    if (best != kNegativeInfinity) kept.push_back({TokenId(at - logits.begin()), best});
  } else {
    kept = best_candidates(logits);
  }
  EF_CHECK(!kept.empty(), RequestError, "logit_bias excludes every token");
  if (!config_.greedy()) filter(kept);
  return kept;
}

std::vector<TokenProbability> Sampler::probabilities(std::span<const float> logits,
                                                     std::span<const TokenId> history) const {
  return probabilities(candidates(logits, history));
}

std::vector<TokenProbability> Sampler::probabilities(const std::vector<Candidate>& kept) const {
  if (config_.greedy()) return {{kept[0].token, 1.0}};
  float max = kNegativeInfinity;
  for (const Candidate& c : kept) max = std::max(max, c.logit);
  std::vector<TokenProbability> result;
  result.reserve(kept.size());
  double total = 0;
  for (const Candidate& c : kept) {
    result.push_back({c.token, std::exp((double(c.logit) - double(max)) / double(config_.temperature))});
    total += result.back().probability;
  }
  for (TokenProbability& p : result) p.probability /= total;
  return result;
}

TokenId Sampler::draw(const std::vector<TokenProbability>& choices) {
  if (config_.greedy()) return choices.back().token;
  const double u = double(random_() >> 11) * 0x1p-53;
  double sum = 0;
  for (const TokenProbability& p : choices) {
    sum += p.probability;
    if (u < sum) return p.token;
  }
  return choices.back().token;
}

int Sampler::needs_top() const {
  if (changes_logits()) return 0;
  return config_.greedy() ? 1 : std::max(config_.top_k, 0);
}

TokenId Sampler::sample_top(std::span<const TokenId> ids, std::span<const float> logits) {
  EF_DCHECK(needs_top() > 0 && ids.size() == logits.size() && !ids.empty());
  for (size_t i = 0; i < ids.size(); ++i)
    EF_CHECK(logits[i] < std::numeric_limits<float>::infinity(), RequestError,
             "the model's logits are not finite: token {} has {}", ids[i], logits[i]);
  std::vector<Candidate> kept;
  const size_t n = std::min(ids.size(), size_t(needs_top()));
  for (size_t i = 0; i < n && logits[i] != kNegativeInfinity; ++i) kept.push_back({ids[i], logits[i]});
  EF_CHECK(!kept.empty(), RequestError, "the model's logits are not finite: all {} are -inf", vocab_size_);
  if (!config_.greedy()) filter(kept);
  return draw(probabilities(kept));
}

Sampled Sampler::sample(std::span<const float> logits, std::span<const TokenId> history, int top_logprobs_wanted) {
  Sampled result;
  result.token = draw(probabilities(logits, history));
  if (top_logprobs_wanted >= 0) {
    result.logprob = logprob_of(logits, result.token);
    result.top = top_logprobs(logits, top_logprobs_wanted);
  }
  return result;
}

}  // namespace ef
