#include "tests/support/golden_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace ef::testing {

namespace {

namespace fs = std::filesystem;

bool tied(const std::string& name) { return name.find("tied") != std::string::npos; }
bool length_dependent_rope(const std::string& name) {
  return name.find("rope-dynamic") != std::string::npos || name.find("longrope") != std::string::npos;
}

TokenId argmax(std::span<const float> logits) {
  return TokenId(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// Collects the chosen experts of every MoE layer, ascending within a row, as the golden files hold them.
class ChoiceRecorder final : public StepObserver {
 public:
  void on_routing(LayerId, const float*, const float*, const RoutingView& routing) override {
    std::vector<int32_t> rows(routing.ids, routing.ids + routing.tokens * routing.top_k);
    for (int64_t t = 0; t < routing.tokens; ++t)
      std::sort(rows.begin() + t * routing.top_k, rows.begin() + (t + 1) * routing.top_k);
    layers.push_back(std::move(rows));
  }
  std::vector<std::vector<int32_t>> layers;
};

class OpenSequence {
 public:
  OpenSequence(Engine& engine, int64_t rope_length) : engine_(engine), id(engine.kv().open(rope_length)) {}
  ~OpenSequence() { engine_.kv().close(id); }

 private:
  Engine& engine_;

 public:
  const SequenceId id;
};

void compare_prompt(Engine& engine, const GoldenCase& golden, bool logits_only, FixtureReport& report) {
  ChoiceRecorder recorder;
  OpenSequence sequence(engine, int64_t(golden.ids.size()));
  engine.set_observer(&recorder);
  Batch batch;
  batch.pieces.push_back({sequence.id, golden.ids, Batch::Piece::Logits::kAll});
  const auto logits = engine.step(batch);
  engine.set_observer(nullptr);
  if (logits.size() != golden.logits.size() || recorder.layers.size() != golden.experts.size()) {
    report.max_logit_error = std::numeric_limits<double>::infinity();
    return;
  }
  // Rows after a choice that falls otherwise attend to other keys and values.
  size_t equal_rows = golden.ids.size();
  for (size_t l = 0; l < golden.experts.size(); ++l) {
    const size_t k = golden.experts[l].size() / golden.ids.size();
    const auto [at, found] =
        std::mismatch(golden.experts[l].begin(), golden.experts[l].end(), recorder.layers[l].begin());
    equal_rows = std::min(equal_rows, size_t(at - golden.experts[l].begin()) / k);
  }
  const size_t equal_logits = equal_rows * (logits.size() / golden.ids.size());
  report.equal_rows += int64_t(equal_rows);
  report.rows += int64_t(golden.ids.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    const double error = std::fabs(double(logits[i]) - double(golden.logits[i]));
    report.max_logit = std::max(report.max_logit, std::fabs(double(golden.logits[i])));
    report.max_logit_error =
        std::isnan(error) ? std::numeric_limits<double>::infinity() : std::max(report.max_logit_error, error);
    if (i < equal_logits && !(error <= report.max_equal_error)) report.max_equal_error = error;
  }
  for (size_t l = 0; l < golden.experts.size() && !logits_only; ++l) {
    const size_t k = golden.experts[l].size() / golden.ids.size();
    for (size_t t = 0; t < golden.ids.size(); ++t) {
      ++report.expert_rows;
      if (!std::equal(golden.experts[l].begin() + long(t * k), golden.experts[l].begin() + long((t + 1) * k),
                      recorder.layers[l].begin() + long(t * k)))
        ++report.wrong_expert_rows;
    }
  }
}

}  // namespace

std::vector<TokenId> greedy_tokens(Engine& engine, const std::vector<TokenId>& prompt, int count, int chunk) {
  OpenSequence sequence(engine, int64_t(prompt.size()) + count);
  std::vector<TokenId> out;
  std::span<const float> logits;
  const size_t step = chunk > 0 ? size_t(chunk) : prompt.size();
  for (size_t i = 0; i < prompt.size(); i += step) {
    Batch batch;
    batch.pieces.push_back(
        {sequence.id, std::span(prompt).subspan(i, std::min(step, prompt.size() - i)), Batch::Piece::Logits::kLast});
    logits = engine.step(batch);
  }
  while (int(out.size()) < count) {
    out.push_back(argmax(logits));
    if (int(out.size()) == count) break;
    Batch batch;
    batch.pieces.push_back({sequence.id, std::span(out).last(1), Batch::Piece::Logits::kLast});
    logits = engine.step(batch);
  }
  return out;
}

std::vector<Fixture> all_fixtures() {
  std::vector<Fixture> out;
  for (const char* kind : {"hf", "gguf"}) {
    std::vector<fs::path> entries;
    for (const auto& entry : fs::directory_iterator(fixtures() / kind)) entries.push_back(entry.path());
    std::sort(entries.begin(), entries.end());
    for (const fs::path& entry : entries) {
      const std::string name = entry.stem() == "gpt_oss-mxfp4-clamp" || entry.extension() == ".gguf"
                                   ? entry.stem().string()
                                   : entry.filename().string();
      out.push_back({std::string(kind) + "/" + name, entry, fixtures() / "hf" / name / "golden.safetensors",
                     tied(name) ? 1e-3 : 1e-4, length_dependent_rope(name)});
    }
  }
  return out;
}

std::string FixtureReport::text() const {
  return fmt::format("max |logit error| {:.2g}, expert choices {}/{} right, greedy tokens {}/{} right", max_logit_error,
                     expert_rows - wrong_expert_rows, expert_rows, greedy_tokens - wrong_greedy_tokens, greedy_tokens);
}

FixtureReport check_fixture(const Fixture& fixture, const std::string& expert_memory, const std::string& isa,
                            const std::string& activations, const std::string& device, bool batch_invariant) {
  static const Log log;
  EngineOptions options;
  options.all_resident = expert_memory == "resident";
  if (!options.all_resident) options.expert_memory = expert_memory;
  options.isa = isa;
  options.activations = activations;
  options.device = device;
  options.batch_invariant = batch_invariant;
  options.autotune = "off";  // one way for a shape, whatever the machine
  options.ctx_size = 512;
  options.max_logit_rows = 512;
  options.cache_type_k = options.cache_type_v = "f32";
  options.threads = 2;
  Engine engine(open_model(fixture.model), options, log);
  FixtureReport report;
  for (const GoldenCase& golden : read_golden(fixture.golden)) {
    compare_prompt(engine, golden, fixture.logits_only, report);
    if (fixture.logits_only) continue;
    const auto greedy = greedy_tokens(engine, golden.ids, int(golden.greedy.size()));
    report.greedy_tokens += int64_t(golden.greedy.size());
    for (size_t i = 0; i < golden.greedy.size(); ++i) report.wrong_greedy_tokens += greedy[i] != golden.greedy[i];
  }
  return report;
}

}  // namespace ef::testing
