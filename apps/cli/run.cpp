// run: one prompt, or a chat when interactive.
#include <unistd.h>

#include <iostream>
#include <iterator>

#include "apps/cli/commands.h"
#include "apps/cli/common.h"
#include "apps/cli/interrupt.h"
#include "apps/cli/memory_text.h"
#include "apps/cli/options_cli11.h"
#include "apps/cli/outputs.h"
#include "apps/cli/sampling_options.h"
#include "expertflow/base/errors.h"
#include "expertflow/engine/generate.h"
#include "expertflow/engine/metrics_json.h"
#include "expertflow/engine/text_model.h"
#include "expertflow/engine/trace_recorder.h"

namespace ef::cli {

namespace {

struct RunCommand {
  CommonOptions common;
  EngineOptions engine;
  SamplingOptions sampling;
  std::string prompt, file, token_ids, system_prompt, chat_template, chat_template_file, chat_template_kwargs,
      tokenizer_pre;
  std::vector<std::string> reverse_prompt;
  int64_t predict = -1;
  bool ignore_eos = false, no_display_prompt = false, conversation = false, no_conversation = false,
       single_turn = false, special = false;
  bool dry_run = false, json = false, memory_report = false, stats = false;
  std::string stats_json;
  TraceOptions trace;

  template <class Visitor>
  void for_each(Visitor&& visit) {
    visit(prompt, {"-p,--prompt", "the prompt; in a conversation the first message"});
    visit(file, {"-f,--file", "read the prompt from a file"});
    visit(token_ids, {"--token-ids", "prompt as token ids (1,2,3), for models without tokenizer; ids are printed"});
    visit(predict, {"-n,--predict,--n-predict", "tokens to generate, -1: until the model ends or the context is full"});
    visit(reverse_prompt, {"-r,--reverse-prompt", "stop at this text, which is not shown (repeat for more)"});
    visit(ignore_eos, {"--ignore-eos", "go on after the model's end of text"});
    visit(no_display_prompt, {"--no-display-prompt", "print only what is generated"});
    visit(special, {"--special", "print special tokens too"});
    visit(conversation,
          {"--conversation", "chat with the model's template (default without prompt on a terminal) (-cnv)"});
    visit(no_conversation, {"--no-conversation", "never chat (-no-cnv)"});
    visit(single_turn, {"--single-turn", "end a conversation after one answer (-st)"});
    visit(system_prompt, {"--system-prompt", "system message of a conversation (-sys)"});
    visit(chat_template, {"--chat-template", "Jinja source instead of the model's template"});
    visit(chat_template_file, {"--chat-template-file", "file with the Jinja source"});
    visit(chat_template_kwargs,
          {"--chat-template-kwargs", "further template variables as a JSON object, {\"enable_thinking\": false}"});
    visit(tokenizer_pre, {"--tokenizer-pre", "use this pre-tokenizer instead of the GGUF's tokenizer.ggml.pre"});
    visit(dry_run, {"--dry-run", "print where memory would go, from the headers alone, and load nothing"});
    visit(json, {"--json", "print the plan of --dry-run as JSON"});
    visit(stats, {"--stats", "say on stderr how experts were kept, predicted and read ahead (also with -v)"});
    visit(stats_json, {"--stats-json", "write the same as JSON to this file"});
    trace.for_each(visit);
    visit(memory_report, {"--memory-report", "say on stderr what memory was held, and for how long (also with -v)"});
  }
};

void print_out(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

std::string count_text(uint64_t n, const char* what) { return n == 0 ? "" : fmt::format("; {} {}", n, what); }

void report(const GenerateResult& r, const Engine& engine, const ExpertStats& before, const Log& log) {
  const ExpertStats after = engine.expert_stats();
  const int64_t computed = r.computed_tokens;
  const int64_t decoded = int64_t(r.tokens.size()) - 1;  // the first token comes from the prompt's logits
  const auto rate = [](int64_t n, double s) { return s > 0 && n > 0 ? double(n) / s : 0.0; };
  log.info("prompt: {} tokens{} in {:.2f} s, {:.1f} tok/s; generated: {} tokens in {:.2f} s, {:.1f} tok/s",
           r.prompt_tokens, r.cached_tokens ? fmt::format(" ({} held already)", r.cached_tokens) : "", r.prompt_seconds,
           rate(computed, r.prompt_seconds), r.tokens.size(), r.decode_seconds, rate(decoded, r.decode_seconds));
  const uint64_t hits = after.hits - before.hits, misses = after.misses - before.misses;
  log.info("experts: hit rate {:.1f} % ({} of {}), {} read, {} evictions, waited {:.2f} s for reads",
           hits + misses ? 100.0 * double(hits) / double(hits + misses) : 100.0, hits, hits + misses,
           human_bytes(after.bytes_read - before.bytes_read), after.evictions - before.evictions,
           after.stall_seconds - before.stall_seconds);
  if (const uint64_t ahead = after.ahead - before.ahead)
    log.info("read ahead: {} experts, {} used ({} of them late), {} not wanted, {} cancelled in time; prefetch {}",
             ahead, after.ahead_used - before.ahead_used, after.ahead_late - before.ahead_late,
             after.ahead_wasted - before.ahead_wasted, after.ahead_cancelled - before.ahead_cancelled,
             after.foresight ? after.foresight->governor.reason() : "off");
  if (after.drift.checks > 0) log.info("{}", after.drift.text());
  const double busy = after.read_seconds - before.read_seconds;
  if (busy > 0)
    log.info("reads: {:.2f} GB/s while reading ({:.2f} s), by {}{}{}",
             double(after.bytes_read - before.bytes_read) * 1e-9 / busy, busy, after.io,
             count_text(after.read_retries - before.read_retries, "read again after an error"),
             count_text(after.checksum_rereads - before.checksum_rereads, "read again after a wrong checksum"));
}

int print_plan(const RunCommand& o) {
  const auto files = open_model(o.common.model);
  const MemoryPlan plan = plan_without_loading(*files, o.engine);
  if (o.json)
    fmt::print("{}\n", plan_json(plan, o.engine).dump(2));
  else
    fmt::print("{}", plan_text(plan, o.engine));
  return 0;
}

class Runner {
 public:
  explicit Runner(const RunCommand& o) : o_(o), log_(o.common.make_log()) {
    auto files = open_model(o.common.model);
    gguf_ = files->checkpoint.kind == Checkpoint::Kind::kGguf;
    tokenizer_ = load_tokenizer(files->checkpoint, o.tokenizer_pre);
    if (tokenizer_) tokenizer_ = tokenizer_->with_eog(files->config.eos);
    templates_ = load_chat_templates(files->checkpoint);
    files.reset();
    sampler_ = o.sampling.config();
  }

  int run() {
    check_flags();
    const int code = answer();
    end();
    for (const std::string& line : memory_report_lines(engine_->memory_report())) say(o_.memory_report, line);
    return code;
  }

 private:
  // What a flag asks for is said, however quiet.
  void say(bool asked, const std::string& line) {
    if (asked && o_.common.quiet) return fmt::print(stderr, "{}\n", line);
    asked ? log_->info("{}", line) : log_->debug("{}", line);
  }

  // What the run leaves: its trace, its statistics, its profile.
  void end() {
    if (recorder_) {
      engine_->set_recorder(nullptr);
      recorder_->close();
      log_->info("trace: {} steps, {} tokens in {}", recorder_->steps(), recorder_->rows(), o_.trace.file);
    }
    const ExpertMetrics metrics = engine_->expert_metrics();
    const ExpertStats stats = engine_->expert_stats();
    for (const std::string& line : metrics_lines(metrics, stats)) say(o_.stats, line);
    if (!o_.stats_json.empty()) write_text(o_.stats_json, metrics_json(metrics, stats).dump(1) + "\n");
    engine_->save_profile();
  }

  int answer() {
    if (!o_.token_ids.empty()) return run_ids();
    EF_CHECK(tokenizer_.has_value(), ModelError, "{}: the model brings no tokenizer; give the prompt as --token-ids",
             o_.common.model);
    return chatting() ? chat() : run_once();
  }

  static constexpr int kInterruptedExit = 130;
  static int exit_code(const GenerateResult& r) {
    return r.finish == GenerateResult::Finish::kCancelled ? kInterruptedExit : 0;
  }

  bool chatting() const {
    const bool asked = !o_.prompt.empty() || !o_.file.empty() || !o_.token_ids.empty();
    return o_.conversation || (!asked && isatty(STDIN_FILENO) && !o_.no_conversation);
  }

  // A flag that would change nothing is refused: it is a misunderstanding.
  void check_flags() const {
    const auto refuse = [](bool given, const char* flag, const char* why) {
      EF_CHECK(!given, ConfigError, "{}: {}", flag, why);
    };
    refuse(o_.conversation && o_.no_conversation, "--conversation", "given together with --no-conversation");
    if (!o_.token_ids.empty()) {
      const char* why = "has no effect with --token-ids";
      refuse(!o_.prompt.empty(), "--prompt", why);
      refuse(!o_.file.empty(), "--file", why);
      refuse(!o_.reverse_prompt.empty(), "--reverse-prompt", why);
      refuse(o_.ignore_eos, "--ignore-eos", why);
      refuse(o_.special, "--special", why);
      refuse(o_.conversation, "--conversation", why);
      refuse(o_.no_display_prompt, "--no-display-prompt", why);
      refuse(!o_.tokenizer_pre.empty(), "--tokenizer-pre", why);
    }
    refuse(!o_.tokenizer_pre.empty() && !gguf_, "--tokenizer-pre", "has an effect only on GGUF files");
    refuse(chatting() && o_.no_display_prompt, "--no-display-prompt", "has no effect in a conversation");
    if (!chatting()) {
      const char* why = "has an effect only in a conversation (--conversation)";
      refuse(!o_.system_prompt.empty(), "--system-prompt", why);
      refuse(!o_.chat_template.empty(), "--chat-template", why);
      refuse(!o_.chat_template_file.empty(), "--chat-template-file", why);
      refuse(!o_.chat_template_kwargs.empty(), "--chat-template-kwargs", why);
      refuse(o_.single_turn, "--single-turn", why);
    }
  }

  void load() {
    engine_ = load_engine(o_.common, o_.engine, *log_);
    // One answer is there sooner than what earlier ones used; a conversation has time to gain by it.
    if (o_.engine.warmup != "auto" || chatting()) warm_up(*engine_, o_.common.quiet);
    recorder_ = start_trace(o_.trace, *engine_, o_.common.model);
    generator_ = std::make_unique<Generator>(*engine_, tokenizer_ ? &*tokenizer_ : nullptr);
    install_interrupt_handler();
  }

  GenerateResult generate(std::vector<TokenId> prompt) {
    GenerateRequest request;
    request.prompt = std::move(prompt);
    request.max_tokens = o_.predict;
    request.sampler = sampler_;
    request.stop = o_.reverse_prompt;
    request.ignore_eos = o_.ignore_eos;
    request.show_special = o_.special;
    request.cancelled = interrupted;
    const ExpertStats before = engine_->expert_stats();
    arm_interrupt();
    GenerateResult result = generator_->generate(request, [](std::string_view text) {
      print_out(text);
      return true;
    });
    print_out("\n");
    report(result, *engine_, before, *log_);
    return result;
  }

  int run_ids() {
    const std::vector<TokenId> prompt = parse_token_ids(o_.token_ids, "--token-ids");
    load();
    Generator ids(*engine_, nullptr);
    GenerateRequest request;
    request.prompt = prompt;
    request.max_tokens = o_.predict < 0 ? 64 : o_.predict;
    request.sampler = sampler_;
    request.cancelled = interrupted;
    const ExpertStats before = engine_->expert_stats();
    arm_interrupt();
    const GenerateResult result = ids.generate(request);
    fmt::print("{}\n", fmt::join(result.tokens, ","));
    report(result, *engine_, before, *log_);
    return exit_code(result);
  }

  std::string prompt_text() const {
    EF_CHECK(o_.prompt.empty() || o_.file.empty(), ConfigError,
             "--prompt and --file: expected one of them, found both");
    if (!o_.file.empty()) return read_named_file("--file", o_.file);
    if (!o_.prompt.empty()) return o_.prompt;
    return {std::istreambuf_iterator<char>(std::cin), {}};
  }

  int run_once() {
    const std::string text = prompt_text();
    std::vector<TokenId> ids = tokenizer_->encode(text);
    if (ids.empty() && tokenizer_->bos()) ids = {*tokenizer_->bos()};
    EF_CHECK(!ids.empty(), ConfigError, "--prompt: expected a prompt of at least one token, found none");
    load();
    generator_->check_prompt(int64_t(ids.size()));
    if (!o_.no_display_prompt) print_out(text);
    return exit_code(generate(std::move(ids)));
  }

  ChatTemplate chosen_template() const {
    EF_CHECK(o_.chat_template.empty() || o_.chat_template_file.empty(), ConfigError,
             "--chat-template and --chat-template-file: expected one of them");
    if (!o_.chat_template.empty()) return ChatTemplate(o_.chat_template);
    if (!o_.chat_template_file.empty())
      return ChatTemplate(read_named_file("--chat-template-file", o_.chat_template_file));
    EF_CHECK(!templates_.empty(), ConfigError,
             "{}: the model brings no chat template; give one with --chat-template-file, or a prompt with --prompt",
             o_.common.model);
    return templates_.select(false);
  }

  int chat() {
    const ChatTemplate chat_template = chosen_template();
    EF_CHECK(chat_template.error().empty(), RequestError, "chat template: {}", chat_template.error());
    ChatInput input;
    input.special_tokens = special_token_texts(*tokenizer_);
    if (!o_.chat_template_kwargs.empty()) {
      input.extra = nlohmann::ordered_json::parse(o_.chat_template_kwargs, nullptr, false);
      EF_CHECK(input.extra.is_object(), ConfigError, "--chat-template-kwargs: expected a JSON object, found \"{}\"",
               o_.chat_template_kwargs);
    }
    if (!o_.system_prompt.empty()) input.messages.push_back({{"role", "system"}, {"content", o_.system_prompt}});
    std::string message = o_.prompt.empty() && o_.file.empty() ? "" : prompt_text();
    load();
    log_->info("chat: an empty line or Ctrl-D ends it, Ctrl-C stops an answer");
    for (;;) {
      if (message.empty()) {
        std::fputs("> ", stderr);
        if (!std::getline(std::cin, message) || message.empty()) return 0;
      }
      input.messages.push_back({{"role", "user"}, {"content", message}});
      message.clear();
      std::vector<TokenId> ids = tokenizer_->encode(chat_template.render(input), {false, true});
      tokenizer_->ensure_one_bos(ids);
      const GenerateResult answer = generate(std::move(ids));
      input.messages.push_back({{"role", "assistant"}, {"content", answer.text}});
      if (o_.single_turn) return 0;
    }
  }

  const RunCommand& o_;
  std::unique_ptr<Log> log_;
  bool gguf_ = false;
  std::optional<Tokenizer> tokenizer_;
  ChatTemplates templates_;
  SamplerConfig sampler_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<TraceRecorder> recorder_;
  std::unique_ptr<Generator> generator_;
};

}  // namespace

void add_run(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<RunCommand>();
  CLI::App* command = app.add_subcommand("run", "Generate text: one prompt, or a chat when interactive");
  bind_options(*command, options->common);
  bind_options(*command, *options);
  bind_options(*command, options->sampling);
  bind_options(*command, options->engine);
  command->callback([options, &exit_code] {
    options->common.check();
    EF_CHECK(options->dry_run || !options->json, ConfigError, "--json: has an effect only with --dry-run");
    options->trace.check();
    check_outputs({{"--record-trace", options->trace.file}, {"--stats-json", options->stats_json}},
                  inputs_of(options->common, options->engine,
                            {{"--file", options->file}, {"--chat-template-file", options->chat_template_file}}));
    EF_CHECK(options->predict >= -1, ConfigError, "--predict: expected -1 or more, found {}", options->predict);
    EF_CHECK(!options->dry_run || !options->memory_report, ConfigError,
             "--memory-report: has no effect with --dry-run");
    exit_code = options->dry_run ? print_plan(*options) : Runner(*options).run();
  });
}

}  // namespace ef::cli
