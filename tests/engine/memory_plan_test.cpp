// Plans of memory from headers, and what engines then hold.
#include "expertflow/engine/memory_plan.h"

#include <gtest/gtest.h>

#include <map>

#include "expertflow/base/errors.h"
#include "tests/engine/guarded_backend.h"
#include "tests/engine/model_rig.h"

namespace ef::testing {
namespace {

constexpr uint64_t kMiB = 1 << 20, kGiB = 1 << 30;

MemoryInfo card(uint64_t free) {
  MemoryInfo m;
  m.available = free;
  return m;
}
EngineOptions on_device(const std::string& budget = "auto") {
  EngineOptions o = small_engine(budget);
  o.device = "cuda:0";
  o.batch_invariant = true;
  return o;
}
std::string refusal(const std::function<void()>& act) {
  try {
    act();
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "accepted";
}
bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::map<std::string, uint64_t> held(const std::vector<MemoryPiece>& pieces) {
  std::map<std::string, uint64_t> bytes;
  for (const MemoryPiece& p : pieces)
    if (!p.until) bytes[std::string(p.use.part)] += p.bytes;
  return bytes;
}
void expect_exact_parts_held(const MemoryPlan& plan, std::map<std::string, uint64_t> held, const std::string& what) {
  for (const PlanPart& part : plan.parts) {
    if (!part.exact) continue;
    EXPECT_EQ(held[std::string(part.name)], part.bytes) << what << ": " << part.name;
  }
}

TEST(MemoryPlan, AnEngineHoldsWhatItsPlanSays) {
  for (const char* fixture : {"qwen3_moe", "gpt_oss", "deepseek_v2", "qwen3_moe-mixed-layers"})
    for (const char* budget : {"100%", "50%", "min"}) {
      const auto engine = engine_of(fixture, small_engine(budget));
      const MemoryReport report = engine->memory_report();
      const MemoryPlan& plan = engine->plan();
      const std::string what = fmt::format("{} at {}", fixture, budget);
      expect_exact_parts_held(plan, held(report.pieces), what);
      EXPECT_EQ(report.regions[size_t(Region::kStatic)].used, plan.expected(Region::kStatic)) << what;
      EXPECT_EQ(report.regions[size_t(Region::kElastic)].used, plan.expected(Region::kElastic)) << what;
      EXPECT_EQ(plan.taken(),
                plan.expected(Region::kStatic) + plan.expected(Region::kDynamic) + plan.expected(Region::kElastic))
          << what;
    }
}

TEST(MemoryPlan, AnotherBudgetReplacesTheSlotsAlone) {
  const auto engine = engine_of("mixtral", small_engine("100%"));
  const uint64_t weights = engine->memory_report().regions[size_t(Region::kStatic)].used;
  engine->set_expert_memory("50%");
  const MemoryReport report = engine->memory_report();
  EXPECT_EQ(report.regions[size_t(Region::kStatic)].used, weights);
  EXPECT_EQ(report.regions[size_t(Region::kElastic)].used, engine->plan().expected(Region::kElastic));
  EXPECT_LT(engine->plan().expected(Region::kElastic), report.regions[size_t(Region::kElastic)].peak);
  EXPECT_EQ(report.slots->pool_bytes, report.slots->bytes_in_use + report.slots->largest_free_bytes);
}

// 3 layers of 8 experts, top 2; hidden 64, experts of 96, in BF16; keys and values of 2 heads of 16 in F32; 256 tokens
// of context, of which a step takes all.
TEST(MemoryPlan, PartsOfADeviceByHand) {
  const auto files = open_model(hf_fixture("mixtral"));
  const MemoryPlan plan = plan_engine(*files, on_device(), card(8 * kGiB));
  std::map<std::string, PlanPart> parts;
  for (const PlanPart& p : plan.parts) parts[std::string(p.name)] = p;
  EXPECT_EQ(parts["KV cache"].bytes, 3u * 256 * 2 * (16 + 16) * 4);
  EXPECT_EQ(parts["block tables"].bytes, 8u * 4);  // 8 blocks of 32 tokens
  EXPECT_EQ(parts["expert outputs"].bytes, 256u * 2 * 64 * 4);
  EXPECT_EQ(parts["experts"].bytes, 3u * 8 * 3 * 64 * 96 * 2);
  EXPECT_EQ(parts["experts"].region, Region::kStatic);
  EXPECT_TRUE(parts["KV cache"].exact);
  EXPECT_FALSE(parts["scratch"].exact);
  EXPECT_EQ(plan.expected(Region::kElastic), 0u);
  EXPECT_EQ(plan.expert_budget, plan.expert_total);
}

TEST(MemoryPlan, EstimatesAreReservedWithAFifthMore) {
  MemoryPlan plan;
  plan.reserved = true;
  plan.parts = {{Region::kDynamic, "KV cache", 1000, true, 2},
                {Region::kDynamic, "scratch", 1001, false, 1},
                {Region::kStatic, "weights", 512, true, 1}};
  // 1000 + ceil(1201.2) + 3 * 255 for the alignment of three pieces, in whole multiples of 256
  EXPECT_EQ(plan.expected(Region::kDynamic), 2001u);
  EXPECT_EQ(plan.taken(Region::kDynamic), 3072u);
  EXPECT_EQ(plan.taken(Region::kStatic), 768u);
  EXPECT_EQ(plan.taken(), 3840u);
  plan.reserved = false;
  EXPECT_EQ(plan.taken(), 2513u);
}

TEST(MemoryPlan, ADeviceThatIsTooSmallIsRefusedWithTheNumbers) {
  const auto files = open_model(hf_fixture("mixtral"));
  const EngineOptions o = on_device();
  const uint64_t needed = plan_engine(*files, o, card(8 * kGiB)).taken();
  EXPECT_EQ(plan_engine(*files, o, card(needed)).taken(), needed);
  const std::string message = refusal([&] { plan_engine(*files, o, card(needed - 3 * 1024)); });
  for (const std::string& part :
       {std::string("the plan for cuda:0 needs ") + format_bytes(needed) + ", 3.00 KiB more than the ",
        std::string("static "), std::string("weights "), std::string("dynamic "), std::string("KV cache "),
        std::string("elastic 0 B"), std::string("--ctx-size"), std::string("--ubatch-size"),
        std::string("--device cpu")})
    EXPECT_TRUE(holds(message, part)) << part << " in: " << message;
  EXPECT_FALSE(holds(message, "--device-memory"));
}

TEST(MemoryPlan, ACapStandsForASmallerCard) {
  const auto files = open_model(hf_fixture("mixtral"));
  EngineOptions o = on_device();
  o.device_memory = "1MiB";
  MemoryInfo memory = card(8 * kGiB);
  memory.cap = MemoryInfo::Cap{kMiB, "--device-memory 1MiB"};
  const std::string message = refusal([&] { plan_engine(*files, o, memory); });
  EXPECT_TRUE(holds(message, "more than the 1.00 MiB that are left")) << message;
  EXPECT_TRUE(holds(message, "at most 1.00 MiB may be used (--device-memory 1MiB)")) << message;
  EXPECT_TRUE(holds(message, "allow more with --device-memory")) << message;
}

TEST(MemoryPlan, ShareOfTheExpertsIsNotForDevicesSoFar) {
  const auto files = open_model(hf_fixture("mixtral"));
  const std::string message = refusal([&] { plan_engine(*files, on_device("50%"), card(8 * kGiB)); });
  EXPECT_TRUE(holds(message, "--expert-memory 50%")) << message;
  EXPECT_EQ(refusal([&] { plan_engine(*files, on_device("100%"), card(8 * kGiB)); }), "accepted");
}

TEST(MemoryPlan, AutoTakesWhatTheCapLeaves) {
  EngineOptions o = small_engine("auto");
  const MemoryPlan whole = engine_of("qwen3_moe", o)->plan();
  const auto files = open_model(hf_fixture("qwen3_moe"));
  const uint64_t rest = whole.expected(Region::kStatic) + whole.expected(Region::kDynamic);
  const uint64_t half = whole.expert_total / 2;
  MemoryInfo memory = card(64 * kGiB);
  memory.cap = MemoryInfo::Cap{rest + half, "--device-memory"};
  EXPECT_EQ(plan_engine(*files, o, memory).expert_budget, half);
  o.device_memory = std::to_string(rest + half);
  EXPECT_EQ(engine_of("qwen3_moe", o)->plan().expert_budget, half);
}

// The cap holds for all later budgets too, and knows what of it is taken.
TEST(MemoryPlan, AnotherBudgetIsHeldAgainstTheCap) {
  EngineOptions o = small_engine("50%");
  const MemoryPlan half = engine_of("qwen3_moe", o)->plan();
  o.device_memory = std::to_string(half.taken());
  const auto engine = engine_of("qwen3_moe", o);
  const std::string message = refusal([&] { engine->set_expert_memory("100%"); });
  EXPECT_TRUE(holds(message, "expert memory '100%'")) << message;
  EXPECT_EQ(engine->plan().expert_budget, half.expert_budget);
  engine->set_expert_memory("auto");
  EXPECT_GE(engine->plan().expert_budget, half.expert_budget);
}

TEST(MemoryPlan, DeviceMemoryIsBytesAShareOrAuto) {
  for (const char* text : {"", "lots", "12 slots", "min", "0", "101%"}) {
    EngineOptions o = small_engine();
    o.device_memory = text;
    const std::string message = refusal([&] { engine_of("mixtral", o); });
    EXPECT_TRUE(holds(message, fmt::format("device-memory: expected bytes (24GiB), a share of what is free (above 0 "
                                           "%, at most 100 %) or auto, found \"{}\"",
                                           text)))
        << message;
  }
}

// As the engine does it on a device: regions first, then everything from them, and nothing while it runs.
TEST(MemoryPlan, AReservedDeviceGivesNothingMore) {
  for (const char* fixture : {"qwen3_moe", "gpt_oss", "deepseek_v2"}) {
    const auto files = open_model(hf_fixture(fixture));
    const EngineOptions o = on_device();
    const MemoryPlan plan = plan_engine(*files, o, card(8 * kGiB));
    ThreadPool pool(2);
    GuardedBackend backend(make_cpu_backend(pool, Isa::kReference));
    MemoryRegions regions(backend);
    for (const Region region : {Region::kStatic, Region::kDynamic, Region::kElastic})
      regions.reserve(region, plan.taken(region));
    EXPECT_EQ(backend.allocations(), 2);

    const auto stream = backend.make_stream();
    const auto experts = make_all_resident(files->config, *files->store, backend);
    experts->reserve(o.ubatch);
    Model model;
    model.config = files->config;
    model.weights = load_weights(model.config, files->binding, files->checkpoint.directory, backend, {});
    const RopeTable rope(model.config.rope, model.config.context_length);
    KvCache kv(model.config, backend, kv_options(model.config, o));
    State state(model.config, backend, o.ubatch, logit_rows(o));
    EXPECT_EQ(backend.allocations(), 2);
    expect_exact_parts_held(plan, held(regions.pieces()), fixture);
    EXPECT_EQ(regions.report(Region::kStatic).used, plan.expected(Region::kStatic));

    const auto prompt = goldens(fixture).front().ids;
    const SequenceId sequence = kv.open(int64_t(prompt.size()));
    uint64_t step = 0;
    for (size_t at = 0; at < prompt.size(); at += 3) {
      regions.set_time(++step);
      Batch batch;
      batch.pieces.push_back({sequence, std::span(prompt).subspan(at, std::min<size_t>(3, prompt.size() - at))});
      StepContext context{model, rope, backend, *stream, *experts, kv, state, nullptr};
      forward(context, batch);
    }
    EXPECT_EQ(backend.allocations(), 2) << fixture;
    for (const MemoryPiece& piece : regions.pieces()) EXPECT_EQ(piece.from, 0u) << piece.use.part;
  }
}

TEST(MemoryReport, LivesAreCountedInSteps) {
  const auto engine = engine_of("mixtral", small_engine("50%"));
  Sequence sequence(*engine, 8);
  const std::vector<TokenId> prompt = {5, 6, 7};
  sequence.feed(prompt);
  sequence.feed(std::span(prompt).first(1));
  const MemoryReport report = engine->memory_report();
  EXPECT_EQ(report.steps, 2u);
  ASSERT_FALSE(report.pieces.empty());
  for (const MemoryPiece& piece : report.pieces) {
    EXPECT_EQ(piece.from, piece.use.part == "expert outputs" ? 1u : 0u) << piece.use.part;
    EXPECT_EQ(piece.until, std::nullopt) << piece.use.part;
  }
  EXPECT_EQ(report.pieces.back().use.part, "expert outputs");  // taken by the first step
}

}  // namespace
}  // namespace ef::testing
