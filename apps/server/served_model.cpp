#include "apps/server/served_model.h"

#include <algorithm>
#include <ctime>
#include <filesystem>

#include "expertflow/base/io.h"
#include "expertflow/engine/memory_plan.h"
#include "expertflow/engine/text_model.h"

namespace ef::server {

const Tokenizer& ServedModel::need_tokenizer() const {
  if (!tokenizer) refuse("prompt", "the model brings no tokenizer; give the prompt as a list of token ids");
  return *tokenizer;
}

const ChatTemplate& ServedModel::template_for(bool tools) const {
  if (chat_template) return *chat_template;
  if (templates.empty())
    refuse("messages",
           "the model brings no chat template; start the server with --chat-template-file, or use "
           "/v1/completions");
  return templates.select(tools);
}

namespace {

constexpr int64_t kDefaultContext = 4096;  // tokens of one sequence, where nobody says

std::string name_of(const std::string& path) {
  const std::filesystem::path p(path);
  const auto last = p.has_filename() ? p.filename() : p.parent_path().filename();
  return last.empty() ? path : last.string();
}

// All requests together may hold as many tokens as each of them would alone, if that fits the cap.
EngineOptions for_serving(EngineOptions o, const ModelFiles& files) {
  if (o.ctx_size != -1 || o.parallel == 1) return o;  // the engine says what is wrong with other negative ones
  const int64_t each = std::min<int64_t>(kDefaultContext, files.config.context_length);
  for (int sequences = o.parallel; sequences >= 1; sequences = sequences > 1 ? (sequences + 1) / 2 : 0) {
    o.ctx_size = each * sequences;
    if (sequences == 1) break;
    try {
      (void)plan_engine(files, o);
      break;
    } catch (const ConfigError&) {
    }
  }
  return o;
}

BatchAdvice advice_for(const Engine& engine) {
  const Config& c = engine.config();
  const EngineOptions& o = engine.options();
  const bool sparse = std::any_of(c.layers.begin(), c.layers.end(), [](const LayerConfig& l) { return l.sparse; });
  BatchFacts f;
  if (sparse) f.experts = c.router.experts, f.top_k = c.router.top_k;
  f.expert_budget = engine.plan().expert_budget;
  f.expert_total = engine.plan().expert_total;
  f.kv_tokens = engine.context_length();
  f.sequence_tokens = std::min<int64_t>({kDefaultContext, c.context_length, f.kv_tokens});
  f.parallel = o.parallel;
  return batch_advice(f);
}

LoopOptions loop_options(const ModelSources& sources, const ServerOptions& options) {
  LoopOptions loop;
  loop.scheduler = sources.scheduler;
  loop.max_queue = options.max_queue;
  loop.before_step = sources.before_step;
  return loop;
}

}  // namespace

void check_serving(const ModelSources& sources, const ServerOptions& options) {
  options.sla().check();
  loop_options(sources, options).check();
  (void)settled(sources.engine);
  // What requests begin with, too: a server that starts answers.
  sources.sampling.validate<ConfigError>();
  EF_CHECK(sources.sampling.temperature >= 0, ConfigError, "temperature: expected 0 to 100, found {}",
           sources.sampling.temperature);
}

void ServedModel::stop() {
  loop->stop();
  engine->save_profile();
}

std::shared_ptr<ServedModel> load_served_model(
    const ModelSources& sources, const ServerOptions& options, const Log& log,
    const std::function<std::unique_ptr<Engine>(std::unique_ptr<ModelFiles>, const EngineOptions&)>& make_engine) {
  check_serving(sources, options);
  auto model = std::make_shared<ServedModel>(options.sla());
  auto files = open_model(sources.model);
  model->path = sources.model;
  model->name = options.alias.empty() ? name_of(sources.model) : options.alias;
  model->created = int64_t(std::time(nullptr));
  if (const std::string why = unknown_bias(sources.sampling, files->config.vocab); !why.empty()) throw ConfigError(why);
  model->sampling = sources.sampling;
  model->predict = options.predict;
  const bool gguf = files->checkpoint.kind == Checkpoint::Kind::kGguf;
  EF_CHECK(options.tokenizer_pre.empty() || gguf, ConfigError, "--tokenizer-pre: has an effect only on GGUF files");
  model->tokenizer = load_tokenizer(files->checkpoint, options.tokenizer_pre);
  if (model->tokenizer) {
    model->tokenizer = model->tokenizer->with_eog(files->config.eos);
    model->special_tokens = special_token_texts(*model->tokenizer);
  } else {
    log.warn("{}: the model brings no tokenizer: prompts must be lists of token ids", sources.model);
  }
  model->templates = load_chat_templates(files->checkpoint);
  EF_CHECK(options.chat_template.empty() || options.chat_template_file.empty(), ConfigError,
           "--chat-template and --chat-template-file: expected one of them");
  if (!options.chat_template.empty()) model->chat_template.emplace(options.chat_template);
  if (!options.chat_template_file.empty()) {
    constexpr uint64_t kMostBytes = 16 << 20;
    try {
      model->chat_template.emplace(read_text_file(options.chat_template_file, kMostBytes));
    } catch (const ModelError& error) {
      fail<ConfigError>("--chat-template-file: {}", error.what());
    }
  }
  if (model->chat_template)
    EF_CHECK(model->chat_template->error().empty(), ConfigError, "chat template: {}", model->chat_template->error());
  if (!options.chat_template_kwargs.empty()) {
    model->template_kwargs = Json::parse(options.chat_template_kwargs, nullptr, false);
    EF_CHECK(model->template_kwargs.is_object(), ConfigError,
             "--chat-template-kwargs: expected a JSON object, found \"{}\"", options.chat_template_kwargs);
  }
  const EngineOptions engine = for_serving(sources.engine, *files);
  model->engine = make_engine(std::move(files), engine);
  model->warm_up = sources.warm_up ? sources.warm_up(*model->engine) : model->engine->warm_up({}, true);
  model->advice = advice_for(*model->engine);
  log.info("batch: {}", model->advice.text);
  model->loop = std::make_unique<EngineLoop>(*model->engine, model->tokenizer ? &*model->tokenizer : nullptr,
                                             loop_options(sources, options), log, &model->watches);
  return model;
}

}  // namespace ef::server
