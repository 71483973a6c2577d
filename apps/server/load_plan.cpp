#include "apps/server/load_plan.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <random>

#include "expertflow/base/errors.h"
#include "expertflow/engine/expert_metrics.h"

namespace ef::server {

namespace {

using Json = nlohmann::ordered_json;

struct Mix {
  int least, most;
  double weight;
};

std::vector<Mix> parse_mix(const std::string& text) {
  std::vector<Mix> mix;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    Mix m{};
    int used = 0;
    const std::string part = text.substr(at, end - at);
    const bool fine = std::sscanf(part.c_str(), "%d-%d:%lf%n", &m.least, &m.most, &m.weight, &used) == 3 &&
                      size_t(used) == part.size() && m.least >= 1 && m.least <= m.most && m.weight > 0;
    EF_CHECK(fine, ConfigError, "--prompts: expected LEAST-MOST:WEIGHT separated by commas, found \"{}\"", part);
    mix.push_back(m);
    at = end + 1;
  }
  EF_CHECK(!mix.empty(), ConfigError, "--prompts: expected LEAST-MOST:WEIGHT, found nothing");
  return mix;
}

std::vector<std::string> words_of(const std::string* source, std::mt19937_64& random) {
  std::vector<std::string> words;
  if (!source) {
    static constexpr const char* kSyllables[] = {"ka",  "lo", "mi", "ren", "tu", "sa",
                                                 "vel", "do", "ni", "per", "as", "or"};
    for (int i = 0; i < 4000; ++i) {
      std::string word;
      for (uint64_t n = 1 + random() % 3; n-- > 0;) word += kSyllables[random() % std::size(kSyllables)];
      words.push_back(word);
    }
    return words;
  }
  const std::string& text = *source;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = text.find_first_not_of(" \t\r\n", at);
    if (begin == std::string::npos) break;
    at = std::min(text.find_first_of(" \t\r\n", begin), text.size());
    words.push_back(text.substr(begin, at - begin));
  }
  EF_CHECK(!words.empty(), ConfigError, "--text: expected words, found none");
  return words;
}

Json spread(const std::vector<double>& values) {
  if (values.empty()) return nullptr;
  double sum = 0;
  for (const double v : values) sum += v;
  return {{"mean", sum / double(values.size())},
          {"p50", *percentile(values, .5)},
          {"p95", *percentile(values, .95)},
          {"p99", *percentile(values, .99)},
          {"max", *percentile(values, 1)}};
}

}  // namespace

std::vector<LoadRequest> make_requests(const LoadPlan& plan, const std::string* text) {
  std::mt19937_64 random{uint64_t(plan.seed)};
  const auto uniform = [&] { return double(random() >> 11) * 0x1p-53; };
  const std::vector<Mix> mix = parse_mix(plan.prompts);
  const std::vector<std::string> words = words_of(text, random);
  double total = 0, at = 0;
  for (const Mix& m : mix) total += m.weight;
  std::vector<LoadRequest> requests;
  for (int i = 0; i < plan.requests; ++i) {
    double pick = uniform() * total;
    size_t kind = 0;
    while (kind + 1 < mix.size() && pick >= mix[kind].weight) pick -= mix[kind++].weight;
    const int length = mix[kind].least + int(random() % uint64_t(mix[kind].most - mix[kind].least + 1));
    std::string prompt;
    size_t word = random() % words.size();
    for (int w = 0; w < length; ++w, ++word) prompt += (w ? " " : "") + words[word % words.size()];
    Json body{{"model", "default"},
              {"max_tokens", plan.max_tokens},
              {"temperature", plan.temperature},
              {"stream", true},
              {"stream_options", {{"include_usage", true}}},
              {"ignore_eos", true}};
    if (plan.chat)
      body["messages"] = Json::array({{{"role", "user"}, {"content", prompt}}});
    else
      body["prompt"] = prompt;
    if (plan.rate > 0) at += -std::log(1 - uniform()) / plan.rate;
    requests.push_back({body.dump(-1, ' ', false, Json::error_handler_t::replace), plan.rate > 0 ? at : -1});
  }
  return requests;
}

Json load_report(const std::vector<LoadRecord>& records, double sla_ttft, double sla_itl) {
  std::vector<double> ttft, itl, e2e;
  int64_t prompt = 0, cached = 0, output = 0, good = 0, failed = 0;
  double begin = 1e300, end = 0;
  Json errors = Json::object();
  for (const auto& r : records) {
    begin = std::min(begin, r.due);
    end = std::max(end, r.end);
    if (!r.error.empty()) {
      ++failed;
      errors[r.error] = errors.value(r.error, 0) + 1;
      continue;
    }
    prompt += r.prompt_tokens, cached += r.cached_tokens, output += r.output_tokens;
    const double first = (r.first > 0 ? r.first : r.end) - r.due;
    ttft.push_back(first);
    e2e.push_back(r.end - r.due);
    double sum = 0;
    for (const double gap : r.gaps) itl.push_back(gap), sum += gap;
    const double mean = r.gaps.empty() ? 0 : sum / double(r.gaps.size());
    good += first <= sla_ttft && mean <= sla_itl;
  }
  const double took = std::max(1e-9, end - begin);
  return {{"requests", records.size()},
          {"failed", failed},
          {"errors", errors},
          {"seconds", took},
          {"requests_per_second", double(records.size() - size_t(failed)) / took},
          {"output_tokens_per_second", double(output) / took},
          {"prompt_tokens", prompt},
          {"cached_tokens", cached},
          {"output_tokens", output},
          {"ttft_seconds", spread(ttft)},
          {"itl_seconds", spread(itl)},
          {"e2e_seconds", spread(e2e)},
          {"sla",
           {{"ttft_seconds", sla_ttft},
            {"itl_seconds", sla_itl},
            {"share", records.empty() ? 0.0 : double(good) / double(records.size())}}}};
}

}  // namespace ef::server
