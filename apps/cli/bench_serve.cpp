// bench serve: load on an OpenAI-compatible server, with arrivals as users make them, and what they would see.
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/cli/commands.h"
#include "apps/cli/common.h"
#include "apps/cli/options_cli11.h"
#include "expertflow/base/errors.h"
#ifdef EF_SERVER
#include "apps/server/latency_report.h"
#include "apps/server/load_plan.h"
#endif

namespace ef::cli {

#ifdef EF_SERVER

namespace {

using Json = nlohmann::ordered_json;

struct BenchServe : server::LoadPlan {
  std::string url = "http://127.0.0.1:8080", api_key, text, output = "md";
  double timeout = 600, sla_ttft = 1, sla_itl = 0.1;
  int concurrency = 0, cold = 0;

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
  EF_CHECK(o.max_tokens >= 1, ConfigError, "--max-tokens: expected at least 1, found {}", o.max_tokens);
  server::SlaOptions{o.sla_ttft, o.sla_itl, o.cold}.check();
  EF_CHECK(o.timeout > 0, ConfigError, "--timeout: expected more than 0, found {}", o.timeout);
  server::LoadTarget target = server::parse_target(o.url, o.chat ? "/v1/chat/completions" : "/v1/completions");
  target.api_key = o.api_key;
  std::string text;
  if (!o.text.empty()) text = read_named_file("--text", o.text);
  const auto records =
      server::run_load(target, server::make_requests(o, o.text.empty() ? nullptr : &text), o.concurrency, o.timeout);
  const auto report = [&](const std::vector<server::LoadRecord>& some) {
    return server::load_report(some, o.sla_ttft, o.sla_itl);
  };
  Json all{{"url", o.url},
           {"rate", o.rate},
           {"concurrency", o.concurrency},
           {"prompts", o.prompts},
           {"max_tokens", o.max_tokens},
           {"seed", o.seed},
           {"results", Json::object()}};
  if (o.cold > 0) {
    all["results"]["cold"] = report({records.begin(), records.begin() + o.cold});
    all["results"]["warm"] = report({records.begin() + o.cold, records.end()});
  }
  all["results"]["all"] = report(records);
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
