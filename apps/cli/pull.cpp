#include "apps/cli/commands.h"
#include "apps/cli/common.h"
#include "apps/cli/options_cli11.h"
#include "expertflow/base/errors.h"
#ifdef EF_HUB
#include "expertflow/hub/pull.h"
#endif

namespace ef::cli {
namespace {

struct PullCommand {
  std::string address, out, endpoint, sha256;
  int connections = 4, retries = 4;
  bool quiet = false;
};

#ifdef EF_HUB
std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

void run(const PullCommand& o) {
  EF_CHECK(o.retries >= 0, ConfigError, "--retries: expected 0 or more, found {}", o.retries);
  PullOptions options;
  options.address = o.address, options.out = o.out, options.sha256 = o.sha256;
  options.connections = o.connections;
  options.token = environment("HF_TOKEN");
  if (const std::string mirror = environment("HF_ENDPOINT"); !mirror.empty()) options.endpoint = mirror;
  if (!o.endpoint.empty()) options.endpoint = o.endpoint;
  options.policy.attempts = o.retries + 1;
  options.policy.warn = [](const std::string& text) { std::fputs(fmt::format("\n{}\n", text).c_str(), stderr); };
  options.make_client = [] { return make_curl_client(); };
  PullReport report;
  {
    Progress progress("pulling", o.quiet);
    report = pull(options, [&](uint64_t done, uint64_t total) { progress(done, total); });
  }
  for (const std::string& name : report.already_there)
    std::fputs(fmt::format("already there: {}\n", name).c_str(), stderr);
  fmt::print("{}: {} files pulled, {} already there, {} in all\n", report.folder.string(), report.downloaded.size(),
             report.already_there.size(), human_bytes(report.bytes));
}
#else
void run(const PullCommand&) {
  fail<ConfigError>(
      "pull: this program was built without libcurl or libcrypto (packages libcurl4-openssl-dev and libssl-dev)");
}
#endif

}  // namespace

void add_pull(CLI::App& app, int& exit_code) {
  auto o = std::make_shared<PullCommand>();
  CLI::App* command = app.add_subcommand("pull", "Download a model from a hub, or a file from a URL");
  command
      ->add_option("ADDRESS", o->address,
                   "owner/name, hf://owner/name[@revision][:file, pattern or quantisation], or https://...")
      ->required();
  Binder bind(*command);
  bind(o->out, {"-o,--out", "folder to write to (default: the repository's name; for a URL the current folder)"});
  bind(o->endpoint, {"--endpoint", "the hub's address (default: HF_ENDPOINT, or https://huggingface.co)"});
  bind(o->sha256, {"--sha256", "what a URL's file must hash to"});
  bind(o->connections, {"--connections", "files at a time, 1 to 16"});
  bind(o->retries, {"--retries", "further attempts after a passing fault"});
  bind(o->quiet, {"-q,--quiet", "no progress on stderr"});
  command->callback([o, &exit_code] {
    run(*o);
    exit_code = 0;
  });
}

}  // namespace ef::cli
