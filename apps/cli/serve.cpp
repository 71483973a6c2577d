// serve: the OpenAI-compatible server.
#include "apps/cli/commands.h"
#include "apps/cli/common.h"
#include "apps/cli/options_cli11.h"
#include "apps/cli/sampling_options.h"
#include "expertflow/base/errors.h"
#ifdef EF_SERVER
#include "apps/server/serve.h"
#endif

namespace ef::cli {

#ifdef EF_SERVER

namespace {

struct ServeCommand {
  CommonOptions common;
  EngineOptions engine;
  SchedulerOptions scheduler;
  SamplingOptions sampling;
  server::ServerOptions server;
};

int serve(const ServeCommand& o) {
  const std::unique_ptr<Log> log = o.common.make_log();
  server::ModelSources sources;
  sources.model = o.common.model;
  sources.engine = o.engine;
  sources.scheduler = o.scheduler;
  sources.sampling = o.sampling.config();
  sources.warm_up = [&](Engine& engine) { return warm_up(engine, o.common.quiet, true); };
  return server::serve(sources, o.server, *log, [&](std::unique_ptr<ModelFiles> files, const EngineOptions& options) {
    return load_engine(std::move(files), o.common.quiet, options, *log);
  });
}

}  // namespace

void add_serve(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<ServeCommand>();
  options->engine.parallel = 8;
  CLI::App* command = app.add_subcommand("serve", "Serve OpenAI's HTTP API: chat, completions, metrics");
  bind_options(*command, options->common);
  bind_options(*command, options->server);
  command->add_option("--parallel,--max-num-seqs", options->engine.parallel, "requests that are computed at once (-np)")
      ->envname("EXPERTFLOW_PARALLEL")
      ->capture_default_str();
  bind_options(*command, options->scheduler);
  bind_options(*command, options->sampling);
  bind_options(*command, options->engine);
  command->callback([options, &exit_code] {
    options->common.check();
    exit_code = serve(*options);
  });
}

#else

void add_serve(CLI::App& app, int&) {
  CLI::App* command = app.add_subcommand("serve", "Serve OpenAI's HTTP API (left out of this build)");
  command->allow_extras();
  command->callback([] {
    fail<ConfigError>("serve: this build has no server: it was configured without Boost (Debian: libboost-dev)");
  });
}

#endif

}  // namespace ef::cli
