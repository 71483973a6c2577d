// bench serve: load on an OpenAI-compatible server, with arrivals as users make them, and what they would see.
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>

#include "apps/cli/commands.h"
#include "apps/cli/common.h"
#include "apps/cli/options_cli11.h"
#include "expertflow/base/errors.h"
#ifdef EF_SERVER
#include "apps/server/load_client.h"
#include "expertflow/engine/expert_metrics.h"
#endif

namespace ef::cli {

#ifdef EF_SERVER

namespace {

using Json = nlohmann::ordered_json;

struct BenchServe {
  std::string url = "http://127.0.0.1:8080", api_key, text, output = "md", prompts = "16-64:70,128-512:25,700-1000:5";
  double rate = 4, temperature = 0, timeout = 600, sla_ttft = 1, sla_itl = 0.1;
  int requests = 100, concurrency = 0, max_tokens = 64, cold = 0;
  int64_t seed = 1;
  bool chat = false;

  template <class Visitor>
  void for_each(Visitor&& visit) {
    visit(url, {"--url", "the server: http://host:port, with a prefix if it has one"});
    visit(api_key, {"--api-key", "key to bring"});
    visit(rate,
          {"--rate,--request-rate", "requests a second, Poisson arrivals; 0: closed loop, --concurrency at once"});
    visit(concurrency, {"--concurrency,--max-concurrency", "requests under way at most; 0: no bound"});
    visit(requests, {"--requests,--num-prompts", "how many in all"});
    visit(prompts, {"--prompts", "mix of prompt lengths in words and their weights: 16-64:70,700-1000:30"});
    visit(max_tokens, {"--max-tokens", "tokens of an answer"});
    visit(text, {"--text", "file whose words prompts are made of; default: made-up words"});
    visit(chat, {"--chat", "use /v1/chat/completions"});
    visit(temperature, {"--temp,--temperature", "of the answers"});
    visit(cold, {"--cold", "report the first so many requests apart from the others: cold against warm"});
    visit(sla_ttft, {"--sla-ttft", "seconds to the first token that an answer may take"});
    visit(sla_itl, {"--sla-itl", "seconds between its tokens, on average"});
    visit(timeout, {"--timeout", "seconds after which an answer counts as failed"});
    visit(seed, {"-s,--seed", "of arrivals, lengths and words"});
    visit(output, {"-o,--output", "md or json"});
  }
};

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

std::vector<std::string> words_of(const BenchServe& o, std::mt19937_64& random) {
  std::vector<std::string> words;
  if (o.text.empty()) {
    static constexpr const char* kSyllables[] = {"ka",  "lo", "mi", "ren", "tu", "sa",
                                                 "vel", "do", "ni", "per", "as", "or"};
    for (int i = 0; i < 4000; ++i) {
      std::string word;
      for (uint64_t n = 1 + random() % 3; n-- > 0;) word += kSyllables[random() % std::size(kSyllables)];
      words.push_back(word);
    }
    return words;
  }
  const std::string text = read_named_file("--text", o.text);
  for (size_t at = 0; at < text.size();) {
    const size_t begin = text.find_first_not_of(" \t\r\n", at);
    if (begin == std::string::npos) break;
    at = std::min(text.find_first_of(" \t\r\n", begin), text.size());
    words.push_back(text.substr(begin, at - begin));
  }
  EF_CHECK(!words.empty(), ConfigError, "--text: {}: expected words, found none", o.text);
  return words;
}

std::vector<server::LoadRequest> make_requests(const BenchServe& o) {
  std::mt19937_64 random{uint64_t(o.seed)};
  const auto uniform = [&] { return double(random() >> 11) * 0x1p-53; };
  const std::vector<Mix> mix = parse_mix(o.prompts);
  const std::vector<std::string> words = words_of(o, random);
  double total = 0, at = 0;
  for (const Mix& m : mix) total += m.weight;
  std::vector<server::LoadRequest> requests;
  for (int i = 0; i < o.requests; ++i) {
    double pick = uniform() * total;
    size_t kind = 0;
    while (kind + 1 < mix.size() && pick >= mix[kind].weight) pick -= mix[kind++].weight;
    const int length = mix[kind].least + int(random() % uint64_t(mix[kind].most - mix[kind].least + 1));
    std::string prompt;
    size_t word = random() % words.size();
    for (int w = 0; w < length; ++w, ++word) prompt += (w ? " " : "") + words[word % words.size()];
    Json body{{"model", "default"},
              {"max_tokens", o.max_tokens},
              {"temperature", o.temperature},
              {"stream", true},
              {"stream_options", {{"include_usage", true}}},
              {"ignore_eos", true}};
    if (o.chat)
      body["messages"] = Json::array({{{"role", "user"}, {"content", prompt}}});
    else
      body["prompt"] = prompt;
    if (o.rate > 0) at += -std::log(1 - uniform()) / o.rate;
    requests.push_back({body.dump(-1, ' ', false, Json::error_handler_t::replace), o.rate > 0 ? at : -1});
  }
  return requests;
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

Json report(const std::vector<server::LoadRecord>& records, const BenchServe& o) {
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
    good += first <= o.sla_ttft && mean <= o.sla_itl;
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
           {{"ttft_seconds", o.sla_ttft},
            {"itl_seconds", o.sla_itl},
            {"share", records.empty() ? 0.0 : double(good) / double(records.size())}}}};
}

void print_table(const Json& all) {
  fmt::print(
      "| requests | failed | req/s | tok/s | TTFT p50 / p95 / p99 ms | ITL p50 / p95 / p99 ms | e2e p50 / p99 s | SLA "
      "|\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- |\n");
  for (const auto& [name, r] : all["results"].items()) {
    const auto ms = [&](const char* what, const char* p) {
      return r[what].is_null() ? std::string("-") : fmt::format("{:.1f}", 1e3 * r[what][p].get<double>());
    };
    const auto s = [&](const char* p) {
      return r["e2e_seconds"].is_null() ? std::string("-") : fmt::format("{:.2f}", r["e2e_seconds"][p].get<double>());
    };
    fmt::print("| {} {} | {} | {:.2f} | {:.1f} | {} / {} / {} | {} / {} / {} | {} / {} | {:.1f} % |\n", name,
               r["requests"].get<int64_t>(), r["failed"].get<int64_t>(), r["requests_per_second"].get<double>(),
               r["output_tokens_per_second"].get<double>(), ms("ttft_seconds", "p50"), ms("ttft_seconds", "p95"),
               ms("ttft_seconds", "p99"), ms("itl_seconds", "p50"), ms("itl_seconds", "p95"), ms("itl_seconds", "p99"),
               s("p50"), s("p99"), 100 * r["sla"]["share"].get<double>());
  }
  for (const auto& [error, count] : all["results"]["all"]["errors"].items())
    fmt::print(stderr, "expertflow: {} requests failed: {}\n", count.get<int64_t>(), error);
}

int bench_serve(const BenchServe& o) {
  EF_CHECK(o.output == "md" || o.output == "json", ConfigError, "--output: expected md or json, found \"{}\"",
           o.output);
  EF_CHECK(o.requests >= 1 && o.requests <= 1000000, ConfigError, "--requests: expected 1 to 1000000, found {}",
           o.requests);
  EF_CHECK(o.rate >= 0 && o.concurrency >= 0, ConfigError, "--rate and --concurrency: expected 0 or more");
  EF_CHECK(o.rate > 0 || o.concurrency > 0, ConfigError, "--rate: 0 is a closed loop, which needs --concurrency");
  EF_CHECK(o.cold >= 0 && o.cold < o.requests, ConfigError, "--cold: expected 0 to {}, found {}", o.requests - 1,
           o.cold);
  EF_CHECK(o.timeout > 0, ConfigError, "--timeout: expected more than 0, found {}", o.timeout);
  server::LoadTarget target = server::parse_target(o.url, o.chat ? "/v1/chat/completions" : "/v1/completions");
  target.api_key = o.api_key;
  const auto records = server::run_load(target, make_requests(o), o.concurrency, o.timeout);
  Json all{{"url", o.url},
           {"rate", o.rate},
           {"concurrency", o.concurrency},
           {"prompts", o.prompts},
           {"max_tokens", o.max_tokens},
           {"seed", o.seed},
           {"results", Json::object()}};
  if (o.cold > 0) {
    all["results"]["cold"] = report({records.begin(), records.begin() + o.cold}, o);
    all["results"]["warm"] = report({records.begin() + o.cold, records.end()}, o);
  }
  all["results"]["all"] = report(records, o);
  if (o.output == "json")
    fmt::print("{}\n", all.dump(2));
  else
    print_table(all);
  constexpr int kDeviceExit = 4;
  return all["results"]["all"]["failed"] == 0 ? 0 : kDeviceExit;
}

}  // namespace

void add_bench_serve(CLI::App& bench, int& exit_code) {
  auto options = std::make_shared<BenchServe>();
  CLI::App* command = bench.add_subcommand("serve", "Load on an OpenAI-compatible server: latencies, throughput, SLA");
  bind_options(*command, *options);
  command->callback([options, &exit_code] { exit_code = bench_serve(*options); });
}

#else

void add_bench_serve(CLI::App&, int&) {}

#endif

}  // namespace ef::cli
