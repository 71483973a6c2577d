#include "expertflow/engine/verify.h"

#include "apps/cli/commands.h"
#include "apps/cli/common.h"
#include "apps/cli/options_cli11.h"
#include "expertflow/base/errors.h"
#include "expertflow/engine/text_model.h"

namespace ef::cli {

namespace {

struct VerifyCommand {
  CommonOptions common;
  EngineOptions engine;
  std::vector<std::string> prompts;
  int tokens = 32;
  bool no_reference = false;

  template <class Visitor>
  void for_each(Visitor&& visit) {
    visit(prompts,
          {"-p,--prompt", "a prompt (repeat for more); at least four are used, texts or seeded tokens fill the rest"});
    visit(tokens, {"-n,--predict", "greedy tokens a prompt"});
    visit(no_reference, {"--no-reference", "leave out the slow comparison with the float32 reference ops"});
  }
};

constexpr const char* kTexts[] = {"Once upon a time there was a little girl who lived near the forest.",
                                  "def read_file(path):\n    \"\"\"", "The history of the city begins in",
                                  "从前有一座山，山里有一座庙，"};

std::vector<std::vector<TokenId>> prompts_for(const ModelFiles& files, const VerifyCommand& o) {
  std::vector<std::vector<TokenId>> prompts;
  if (const auto tokenizer = load_tokenizer(files.checkpoint)) {
    for (const auto& text : o.prompts) prompts.push_back(tokenizer->encode(text));
    for (size_t i = 0; prompts.size() < 4; ++i) prompts.push_back(tokenizer->encode(kTexts[i]));
  } else {
    EF_CHECK(o.prompts.empty(), ConfigError,
             "--prompt: the model brings no tokenizer; verify then draws its prompts from the vocabulary");
    prompts = make_prompts(files.config.vocab, 4, 1);
  }
  for (const auto& p : prompts) EF_CHECK(!p.empty(), ConfigError, "--prompt: expected a prompt of at least one token");
  return prompts;
}

int run_verify(const VerifyCommand& o) {
  o.common.check();
  const auto log = o.common.make_log();
  VerifyOptions options;
  options.engine = o.engine;
  options.tokens = o.tokens;
  options.reference = !o.no_reference;
  options.prompts = prompts_for(*open_model(o.common.model), o);
  const VerifyReport report = verify(o.common.model, options, *log, [](const VerifyCheck& check) {
    fmt::print("{} {}: {}/{} tokens equal, largest logit difference {:.3g}, hit rate {:.1f} %{}{}{}\n",
               check.passed ? "ok  " : "FAIL", check.name, check.equal_tokens, check.tokens, check.max_logit_difference,
               100 * check.hit_rate,
               check.divergence > 0 ? fmt::format(", mean KL divergence {:.2g}", check.divergence) : "",
               check.detail.empty() ? "" : ": ", check.detail);
    std::fflush(stdout);
  });
  fmt::print("{}: {} of {} checks passed\n", report.passed() ? "verified" : "NOT VERIFIED",
             std::count_if(report.checks.begin(), report.checks.end(), [](const auto& c) { return c.passed; }),
             report.checks.size());
  return report.passed() ? 0 : 1;
}

}  // namespace

void add_verify(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<VerifyCommand>();
  CLI::App* command = app.add_subcommand("verify", "Prove that tokens do not depend on budget, batch or chunking");
  bind_options(*command, options->common);
  bind_options(*command, *options);
  // Budgets are what is verified: the flag would have no effect.
  options->engine.for_each([bind = Binder(*command), &engine = options->engine](auto& member, const OptionInfo& info) {
    if (static_cast<const void*>(&member) != static_cast<const void*>(&engine.expert_memory)) bind(member, info);
  });
  command->callback([options, &exit_code] { exit_code = run_verify(*options); });
}

}  // namespace ef::cli
