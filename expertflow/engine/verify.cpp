#include "expertflow/engine/verify.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "expertflow/backend/cpu/cpu_backend.h"
#include "expertflow/base/errors.h"
#include "expertflow/engine/device.h"
#include "expertflow/engine/sequence.h"

namespace ef {

namespace {

// What one prompt gave: greedy tokens and the logits that each was chosen from.
struct Trace {
  std::vector<TokenId> tokens;
  std::vector<std::vector<float>> logits;
};

void take(Trace& trace, std::span<const float> logits) {
  trace.tokens.push_back(argmax(logits));
  trace.logits.emplace_back(logits.begin(), logits.end());
}

// All prompts, `batch` at a time, prefilled in chunks and decoded together. With teacher != nullptr the fed tokens are
// its own, so that logits stay comparable after a near-tie.
std::vector<Trace> run(Engine& engine, const VerifyOptions& o, int batch, int chunk,
                       const std::vector<Trace>* teacher = nullptr) {
  std::vector<Trace> traces(o.prompts.size());
  for (size_t begin = 0; begin < o.prompts.size(); begin += size_t(batch)) {
    const size_t end = std::min(o.prompts.size(), begin + size_t(batch));
    std::vector<std::unique_ptr<Sequence>> sequences;
    std::vector<size_t> fed(end - begin, 0);
    for (size_t p = begin; p < end; ++p)
      sequences.push_back(std::make_unique<Sequence>(engine, int64_t(o.prompts[p].size()) + o.tokens));
    for (bool busy = true; busy;) {
      busy = false;
      Batch step;
      std::vector<size_t> asking;  // prompts whose logits this step returns, in order
      std::vector<std::vector<TokenId>> last(end - begin);
      int64_t room = engine.options().ubatch;
      for (size_t p = begin; p < end; ++p) {
        const auto& prompt = o.prompts[p];
        size_t& f = fed[p - begin];
        Batch::Piece piece{sequences[p - begin]->id(), {}, Batch::Piece::Logits::kNone};
        if (f < prompt.size()) {
          const size_t n = std::min({prompt.size() - f, size_t(chunk > 0 ? chunk : int(prompt.size())), size_t(room)});
          if (n == 0) {
            busy = true;
            continue;
          }
          piece.tokens = std::span(prompt).subspan(f, n);
          f += n;
          if (f == prompt.size()) piece.logits = Batch::Piece::Logits::kLast;
        } else if (int(traces[p].tokens.size()) < o.tokens) {
          if (room == 0) {
            busy = true;
            continue;
          }
          const size_t i = traces[p].tokens.size() - 1;
          last[p - begin] = {teacher ? (*teacher)[p].tokens[i] : traces[p].tokens[i]};
          piece.tokens = last[p - begin];
          piece.logits = Batch::Piece::Logits::kLast;
        } else {
          continue;
        }
        if (piece.logits == Batch::Piece::Logits::kLast) asking.push_back(p);
        room -= int64_t(piece.tokens.size());
        step.pieces.push_back(piece);
        busy = true;
      }
      if (step.pieces.empty()) break;
      const auto logits = engine.step(step);
      const size_t vocab = size_t(engine.config().vocab);
      for (size_t i = 0; i < asking.size(); ++i) take(traces[asking[i]], logits.subspan(i * vocab, vocab));
    }
  }
  return traces;
}

double top_margin(const std::vector<float>& logits) {
  float best = -INFINITY, second = -INFINITY;
  for (float l : logits) {
    if (l > best)
      second = best, best = l;
    else if (l > second)
      second = l;
  }
  return double(best) - double(second);
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0;
  for (size_t v = 0; v < a.size(); ++v) {
    const double difference = std::fabs(double(a[v]) - double(b[v]));
    if (!(difference <= largest)) largest = difference;
  }
  return largest;
}

// Every token and every logit, bit for bit.
void compare(const std::vector<Trace>& expected, const std::vector<Trace>& found, VerifyCheck& check) {
  check.passed = true;
  for (size_t p = 0; p < expected.size(); ++p)
    for (size_t i = 0; i < expected[p].tokens.size(); ++i) {
      ++check.tokens;
      const double difference = largest_difference(expected[p].logits[i], found[p].logits[i]);
      check.max_logit_difference = std::max(check.max_logit_difference, difference);
      const bool equal = expected[p].tokens[i] == found[p].tokens[i];
      check.equal_tokens += equal;
      if ((equal && difference == 0) || !check.passed) continue;
      check.passed = false;
      check.detail = fmt::format("prompt {}, token {}: expected {}, found {}, logits differ by up to {:.3g}", p, i,
                                 expected[p].tokens[i], found[p].tokens[i], difference);
    }
}

// KL divergence of two rows of logits, in nats: what answers lose, whatever the logits' size.
double divergence(const std::vector<float>& p, const std::vector<float>& q) {
  const double top_p = *std::max_element(p.begin(), p.end()), top_q = *std::max_element(q.begin(), q.end());
  double sum_p = 0, sum_q = 0, weighted = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double a = double(p[i]) - top_p, b = double(q[i]) - top_q, e = std::exp(a);
    sum_p += e, sum_q += std::exp(b), weighted += e * (a - b);
  }
  return weighted / sum_p - std::log(sum_p) + std::log(sum_q);
}

// Other arithmetic: an answer may differ a little, and more where a router's choice was a tie that rounding decides;
// all of them together by little. A different token is forgiven where the logits differ by more than it led.
void compare_answers(const std::vector<Trace>& expected, const std::vector<Trace>& found, double most,
                     bool tokens_count, VerifyCheck& check) {
  double sum = 0;
  check.passed = true;
  for (size_t p = 0; p < expected.size(); ++p)
    for (size_t i = 0; i < expected[p].tokens.size(); ++i) {
      ++check.tokens;
      const double difference = largest_difference(expected[p].logits[i], found[p].logits[i]);
      check.max_logit_difference = std::max(check.max_logit_difference, difference);
      sum += divergence(expected[p].logits[i], found[p].logits[i]);
      const bool equal = expected[p].tokens[i] == found[p].tokens[i];
      check.equal_tokens += equal;
      if (equal || !tokens_count || top_margin(expected[p].logits[i]) <= 2 * difference || !check.passed) continue;
      check.passed = false;
      check.detail = fmt::format("prompt {}, token {}: expected {}, found {}, logits differ by up to {:.3g}", p, i,
                                 expected[p].tokens[i], found[p].tokens[i], difference);
    }
  check.divergence = check.tokens > 0 ? sum / double(check.tokens) : 0;
  if (check.divergence <= most) return;
  check.passed = false;
  check.detail = fmt::format("mean KL divergence {:.3g}, expected at most {}", check.divergence, most);
}

bool finite(const std::vector<Trace>& traces) {
  for (const auto& t : traces)
    for (const auto& row : t.logits)
      for (float l : row)
        if (!std::isfinite(l)) return false;
  return true;
}

struct Plan {
  std::string budget;
  int batch, chunk;
};
// The first is the run that all others must equal. A model larger than memory is verified at what fits, half of that,
// and least.
std::vector<Plan> make_plans(const ModelFiles& files, const EngineOptions& options) {
  std::string full = "100%", half = "50%";
  const DeviceChoice device = parse_device(options.device);
  if (device.cuda) return {{full, 1, 0}, {full, 4, 0}, {full, 1, 7}, {full, 4, 5}};  // every expert is resident there
  const BudgetFacts facts = budget_facts_of(files, plan_memory(files, options));
  const MemoryInfo memory = device_memory_info(device, options);
  try {
    resolve_budget(parse_budget(full), facts, memory);
  } catch (const ConfigError&) {
    const uint64_t most = resolve_budget(parse_budget("auto"), facts, memory).bytes;
    full = std::to_string(most);
    half = std::to_string(std::max(facts.largest_slot, most / 2));
  }
  return {{full, 1, 0}, {full, 4, 0},  {full, 1, 7},  {half, 1, 0},
          {half, 4, 5}, {"min", 1, 0}, {"min", 4, 0}, {"min", 4, 3}};
}

// The kernels of the chosen instruction set against the float32 reference ops, which sum in another order. Where the
// kernels round activations, they are compared without that first, and then what rounding changes.
void compare_arithmetic(const std::filesystem::path& model, const VerifyOptions& o, const std::vector<Trace>& expected,
                        const Log& log, const std::function<void(VerifyCheck)>& add) {
  const auto traces = [&](const EngineOptions& options) {
    Engine engine(open_model(model), options, log);
    if (o.before_runs) o.before_runs(engine);
    return run(engine, o, 1, 0, &expected);
  };
  EngineOptions reference = o.engine, exact = o.engine;
  reference.isa = "reference";
  reference.device = "cpu";
  // On a device what does not depend on the batch does not round either.
  if (!parse_device(o.engine.device).cuda) exact.activations = "f32";
  if (parse_isa(exact.isa) == Isa::kAvx512Bf16) exact.isa = "auto";
  const auto wanted = traces(reference);
  const bool may_round = exact.activations != o.engine.activations || exact.isa != o.engine.isa;
  const auto plain = may_round ? traces(exact) : expected;
  const bool rounds =
      may_round && finite(expected) && std::any_of(expected.begin(), expected.end(), [&](const Trace& t) {
        return t.logits != plain[size_t(&t - expected.data())].logits;
      });
  VerifyCheck check;
  check.name = fmt::format("float32 reference ops, budget {}", o.engine.expert_memory);
  compare_answers(plain, wanted, kMaxArithmeticDivergence, true, check);
  if (!finite(wanted)) check.passed = false, check.detail = "logits are not finite";
  add(std::move(check));
  if (!rounds) return;
  VerifyCheck rounded;
  rounded.name =
      fmt::format("rounded activations ({}) against float32", o.engine.activations == "q8" ? "8 bits" : "BF16");
  compare_answers(plain, expected, kMaxRoundingDivergence, false, rounded);
  add(std::move(rounded));
}

// The kernels that are chosen by shape, which exactness is not asked of.
void compare_fast(const std::filesystem::path& model, const VerifyOptions& o, const std::vector<Trace>& expected,
                  const Log& log, const std::function<void(VerifyCheck)>& add) {
  VerifyOptions fast = o;
  fast.engine.batch_invariant = false;
  for (const int batch : {1, 4}) {
    Engine engine(open_model(model), fast.engine, log);
    if (o.before_runs) o.before_runs(engine);
    VerifyCheck check;
    check.name = fmt::format("kernels chosen by shape, batch {}", batch);
    const auto found = run(engine, fast, batch, 0, &expected);
    compare_answers(expected, found, kMaxRoundingDivergence, false, check);
    if (!finite(found)) check.passed = false, check.detail = "logits are not finite";
    add(std::move(check));
  }
}

// Prefetch at its most daring, by each predictor: at half the budget, where experts come and leave.
void compare_predictors(Engine& engine, const VerifyOptions& o, const std::vector<Plan>& plans,
                        const std::vector<Trace>& expected, const std::function<void(VerifyCheck)>& add) {
  std::vector<std::string> names;
  for (const PredictorInfo& info : predictors())
    if (!info.trained) names.emplace_back(info.name);
  if (std::find(names.begin(), names.end(), o.engine.predictor) == names.end()) names.push_back(o.engine.predictor);
  const auto half =
      std::find_if(plans.begin(), plans.end(), [&](const Plan& p) { return p.budget != plans[0].budget; });
  engine.set_expert_memory(half->budget);
  for (const std::string& name : names) {
    engine.set_prefetch("on", name, "3");
    if (o.before_runs) o.before_runs(engine);
    VerifyCheck check;
    check.name = fmt::format("budget {}, prefetch on, predictor {}", half->budget, name);
    const ExpertStats before = engine.expert_stats();
    compare(expected, run(engine, o, 1, 0), check);
    ExpertStats stats = engine.expert_stats();
    stats.hits -= before.hits, stats.misses -= before.misses;
    check.hit_rate = stats.hit_rate();
    add(std::move(check));
  }
}

std::string describe(const Engine& engine, const Plan& plan) {
  return fmt::format("budget {} ({:.1f} MiB), batch {}, {}", plan.budget,
                     double(engine.plan().expert_budget) / (1 << 20), plan.batch,
                     plan.chunk ? fmt::format("chunks of {}", plan.chunk) : std::string("one chunk"));
}

}  // namespace

bool VerifyReport::passed() const {
  return !checks.empty() && std::all_of(checks.begin(), checks.end(), [](const VerifyCheck& c) { return c.passed; });
}

std::vector<std::vector<TokenId>> make_prompts(int vocab, int count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::vector<TokenId>> prompts;
  for (int p = 0; p < count; ++p) {
    prompts.emplace_back();
    const int length = 5 + 9 * p;
    for (int i = 0; i < length; ++i) prompts.back().push_back(TokenId(random() % uint64_t(vocab)));
  }
  return prompts;
}

VerifyReport verify(const std::filesystem::path& model, const VerifyOptions& asked, const Log& log,
                    const std::function<void(const VerifyCheck&)>& on_check) {
  VerifyOptions o = asked;
  EF_CHECK(o.prompts.size() >= 4, ConfigError, "verify: expected at least 4 prompts, found {}", o.prompts.size());
  EF_CHECK(o.tokens >= 1, ConfigError, "verify: expected at least 1 token, found {}", o.tokens);
  o.engine.parallel = std::max(o.engine.parallel, 4);
  const bool device = parse_device(o.engine.device).cuda;
  if (device) o.engine.batch_invariant = true;
  int64_t need = 0;
  for (const auto& p : o.prompts) need = std::max(need, int64_t(p.size()) + o.tokens);
  const int64_t least = 4 * (need + 64);  // four sequences at once
  if (o.engine.ctx_size >= 0) o.engine.ctx_size = context_tokens(o.engine.ctx_size, open_model(model)->config);
  EF_CHECK(o.engine.ctx_size < 0 || o.engine.ctx_size >= least, ConfigError,
           "ctx-size: these prompts need at least {} tokens, found {}", least, o.engine.ctx_size);
  o.engine.ctx_size = std::max(o.engine.ctx_size, least);
  o.engine.max_logit_rows = o.engine.parallel;

  VerifyReport report;
  const auto add = [&](VerifyCheck check) {
    if (on_check) on_check(check);
    report.checks.push_back(std::move(check));
  };
  std::vector<Trace> expected;
  {
    auto files = open_model(model);
    const std::vector<Plan> plans = make_plans(*files, o.engine);
    o.engine.expert_memory = plans[0].budget;
    Engine engine(std::move(files), o.engine, log);
    for (const Plan& plan : plans) {
      if (plan.budget != engine.options().expert_memory) engine.set_expert_memory(plan.budget);
      if (o.before_runs) o.before_runs(engine);
      VerifyCheck check;
      check.name = describe(engine, plan);
      const ExpertStats before = engine.expert_stats();
      const auto found = run(engine, o, plan.batch, plan.chunk);
      if (expected.empty()) expected = found;
      compare(expected, found, check);
      if (!finite(found)) check.passed = false, check.detail = "logits are not finite";
      ExpertStats stats = engine.expert_stats();
      stats.hits -= before.hits, stats.misses -= before.misses;
      check.hit_rate = stats.hit_rate();
      add(std::move(check));
    }
    if (!device) compare_predictors(engine, o, plans, expected, add);
  }
  if (o.reference) compare_arithmetic(model, o, expected, log, add);
  if (device && !asked.engine.batch_invariant) compare_fast(model, o, expected, log, add);
  return report;
}

}  // namespace ef
