// A loaded model and all that answering requests needs beside it.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "apps/server/api_error.h"
#include "apps/server/latency_report.h"
#include "apps/server/metrics.h"
#include "apps/server/server_options.h"
#include "expertflow/engine/batch_advice.h"
#include "expertflow/engine/engine.h"
#include "expertflow/engine/engine_loop.h"
#include "expertflow/text/chat.h"
#include "expertflow/text/chat_output.h"
#include "expertflow/text/tokenizer.h"

namespace ef::server {

struct ServedModel {
  explicit ServedModel(const SlaOptions& sla) : report(sla) {}
  std::string name, path;
  int64_t created = 0;  ///< unix time
  SamplerConfig sampling;
  int predict = -1;
  std::optional<Tokenizer> tokenizer;
  ChatTemplates templates;
  std::optional<ChatTemplate> chat_template;  ///< instead of the model's
  std::map<std::string, std::string> special_tokens;
  Json template_kwargs;
  RequestMetrics metrics;
  LatencyReport report;
  CompletionWatches watches{&metrics, &report};
  Engine::WarmUp warm_up;
  BatchAdvice advice;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<EngineLoop> loop;  ///< last: it uses all above

  /// Ends what is under way, then adds this run's use of experts to its profile.
  void stop();

  /// ApiError where the model brings none.
  const Tokenizer& need_tokenizer() const;
  const ChatTemplate& template_for(bool tools) const;
};

struct ModelSources {
  std::string model;
  EngineOptions engine;
  SchedulerOptions scheduler;
  SamplerConfig sampling;
  std::function<void(const Batch&)> before_step;  ///< see LoopOptions
  /// Fills the fast tier as --warmup says; empty: Engine::warm_up, with tokens where there is no profile.
  std::function<Engine::WarmUp(Engine&)> warm_up;
};
/// All that can be judged without the model; loading does it too. ConfigError naming the flag.
void check_serving(const ModelSources& sources, const ServerOptions& options);
std::shared_ptr<ServedModel> load_served_model(
    const ModelSources& sources, const ServerOptions& options, const Log& log,
    const std::function<std::unique_ptr<Engine>(std::unique_ptr<ModelFiles>, const EngineOptions&)>& make_engine);

}  // namespace ef::server
