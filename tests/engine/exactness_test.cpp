// Logits bit for bit: whatever the chunking, the neighbours in the batch, the blocks of the KV cache, the threads and
// the experts' budget. One fixture a family, and those with a window, sinks, latent rows or another rope.
#include <gtest/gtest.h>

#include "tests/engine/model_rig.h"

namespace ef::testing {
namespace {

const std::vector<std::string> kFixtures = {"mixtral",
                                            "mixtral-sliding",
                                            "qwen2_moe",
                                            "qwen3_moe",
                                            "qwen3_moe-fp8",
                                            "qwen3_moe-mixed-layers",
                                            "olmoe",
                                            "deepseek_v2",
                                            "gpt_oss",
                                            "phimoe",
                                            "phimoe-longrope",
                                            "deepseek_v3-yarn-mscale",
                                            "deepseek_v3",
                                            "granitemoe",
                                            "glm4_moe",
                                            "gpt_oss-mxfp4-clamp",
                                            "mixtral-rope-dynamic"};

class Exact : public ::testing::TestWithParam<std::string> {
 protected:
  const std::vector<GoldenCase> cases = goldens(GetParam());
  const std::vector<TokenId>& prompt = cases.back().ids;  // 130 tokens
};

TEST_P(Exact, F13_ChunksDoNotMatter) {
  ModelRig rig(GetParam());
  const auto whole = rig.logits(prompt, prompt.size());
  for (const size_t chunk : {1, 3, 7, 64}) EXPECT_EQ(first_difference(whole, rig.logits(prompt, chunk)), "") << chunk;
}

TEST_P(Exact, F13_BlocksThreadsAndKvReuseDoNotMatter) {
  ModelRig reference(GetParam());
  const auto expected = reference.logits(prompt, 16);
  EXPECT_EQ(first_difference(expected, reference.logits(prompt, 16)), "") << "blocks used before";
  for (const int block : {4, 5, 256}) {
    RigOptions o;
    o.block_tokens = block;
    EXPECT_EQ(first_difference(expected, ModelRig(GetParam(), o).logits(prompt, 16)), "") << "blocks of " << block;
  }
  for (const int threads : {1, 3}) {
    RigOptions o;
    o.threads = threads;
    EXPECT_EQ(first_difference(expected, ModelRig(GetParam(), o).logits(prompt, 16)), "") << threads << " threads";
  }
}

// Several sequences in one call, prefill chunks and decode rows mixed, each as if it were alone.
TEST_P(Exact, F13_NeighboursDoNotMatter) {
  RigOptions o;
  o.sequences = 4;
  ModelRig rig(GetParam(), o);
  std::vector<std::vector<float>> alone, together(cases.size());
  for (const GoldenCase& c : cases) alone.push_back(rig.logits(c.ids, c.ids.size()));
  std::vector<SequenceId> sequences;
  for (const GoldenCase& c : cases) sequences.push_back(rig.kv->open(int64_t(c.ids.size())));
  std::vector<size_t> fed(cases.size(), 0);
  for (size_t round = 0;; ++round) {
    Batch batch;
    std::vector<std::pair<size_t, size_t>> rows;  // sequence, rows, in batch order
    for (size_t i = cases.size(); i-- > 0;) {
      const size_t n = std::min(cases[i].ids.size() - fed[i], (round + i) % 3 == 0 ? size_t{1} : 5 * i + 2);
      if (n == 0) continue;
      batch.pieces.push_back({sequences[i], std::span(cases[i].ids).subspan(fed[i], n), ModelRig::Logits::kAll});
      rows.emplace_back(i, n);
      fed[i] += n;
    }
    if (batch.pieces.empty()) break;
    const auto logits = rig.step(batch);
    auto at = logits.begin();
    for (const auto& [i, n] : rows) {
      together[i].insert(together[i].end(), at, at + long(n) * rig.vocab());
      at += long(n) * rig.vocab();
    }
  }
  for (size_t i = 0; i < cases.size(); ++i) EXPECT_EQ(first_difference(alone[i], together[i]), "") << "prompt " << i;
}

TEST_P(Exact, F13_BudgetsDoNotMatter) {
  ModelRig rig(GetParam());
  const auto expected = rig.logits(prompt, prompt.size());
  EngineOptions o = small_engine("100%");
  o.max_logit_rows = 256;
  const auto engine = engine_of(GetParam(), o);
  for (const char* budget : {"100%", "50%", "min"}) {
    engine->set_expert_memory(budget);
    for (const size_t chunk : {prompt.size(), size_t{9}}) {
      Sequence sequence(*engine, int64_t(prompt.size()));
      std::vector<float> found;
      for (size_t at = 0; at < prompt.size(); at += chunk) {
        Batch batch;
        batch.pieces.push_back({sequence.id(), std::span(prompt).subspan(at, std::min(chunk, prompt.size() - at)),
                                Batch::Piece::Logits::kAll});
        const auto rows = engine->step(batch);
        found.insert(found.end(), rows.begin(), rows.end());
      }
      EXPECT_EQ(first_difference(expected, found), "") << budget << ", chunks of " << chunk;
    }
    EXPECT_EQ(engine->expert_stats().evictions > 0, std::string(budget) != "100%");
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, Exact, ::testing::ValuesIn(kFixtures), [](const auto& info) {
  std::string name = info.param;
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
});

// A prompt that asks for more distinct experts than there are slots: in waves, with the golden tokens.
TEST(Exactness, F1_FewerSlotsThanDistinctExperts) {
  const GoldenCase golden = goldens("olmoe").back();  // 130 tokens, 16 experts, top-4
  const auto greedy = [&](Engine& engine) {
    Sequence sequence(engine, int64_t(golden.ids.size() + golden.greedy.size()));
    std::vector<TokenId> out = {argmax(sequence.feed(golden.ids))};
    while (out.size() < golden.greedy.size()) out.push_back(argmax(sequence.feed(std::span(out).last(1))));
    return out;
  };
  const auto engine = engine_of("olmoe");
  EXPECT_EQ(greedy(*engine), golden.greedy);
  EXPECT_EQ(engine->expert_stats().waves, 0u);
  for (const char* budget : {"min", "1 slots", "3 slots"}) {
    engine->set_expert_memory(budget);
    EXPECT_EQ(greedy(*engine), golden.greedy) << budget;
    EXPECT_GT(engine->expert_stats().waves, 0u) << budget;
    EXPECT_LT(engine->plan().expert_budget, engine->plan().expert_total) << budget;
  }
}

TEST(Exactness, F9_ABudgetThatCannotWorkLeavesTheOneBefore) {
  const GoldenCase golden = goldens("mixtral")[1];
  const auto engine = engine_of("mixtral", small_engine("50%"));
  const uint64_t before = engine->plan().expert_budget;
  EXPECT_THROW(engine->set_expert_memory("3"), ConfigError);
  EXPECT_THROW(engine->set_expert_memory("many"), ConfigError);
  EXPECT_EQ(engine->plan().expert_budget, before);
  EXPECT_EQ(engine->options().expert_memory, "50%");
  Sequence sequence(*engine, 100);
  EXPECT_EQ(argmax(sequence.feed(golden.ids)), golden.greedy[0]);
}

// A step whose second piece finds no room changes nothing: the first piece's room is free again.
TEST(Exactness, AStepWithoutRoomForAllTakesNone) {
  EngineOptions o = small_engine();
  o.ctx_size = 64, o.parallel = 2;  // 3 blocks of 32 tokens
  const auto engine = engine_of("mixtral", o);
  Sequence a(*engine, 64), b(*engine, 64);
  const std::vector<TokenId> forty(40, 7);
  Batch batch;
  batch.pieces.push_back({a.id(), forty, Batch::Piece::Logits::kNone});
  batch.pieces.push_back({b.id(), forty, Batch::Piece::Logits::kNone});
  EXPECT_THROW(engine->step(batch), RequestError);
  EXPECT_EQ(engine->kv().free_blocks(0), 3);
  EXPECT_EQ(a.length(), 0);
  EXPECT_EQ(b.length(), 0);
  batch.pieces.pop_back();
  engine->step(batch);
  EXPECT_EQ(a.length(), 40);
}

TEST(EngineOptionsTest, OutOfRangeIsRefusedByName) {
  const auto message = [](auto change) {
    EngineOptions o = small_engine();
    change(o);
    try {
      engine_of("mixtral", o);
    } catch (const ConfigError& e) {
      return std::string(e.what());
    }
    return std::string("no ConfigError");
  };
  EXPECT_NE(message([](auto& o) { o.ctx_size = INT64_MAX; }).find("ctx-size"), std::string::npos);
  EXPECT_NE(message([](auto& o) { o.ctx_size = -2; }).find("ctx-size"), std::string::npos);
  EXPECT_NE(message([](auto& o) { o.threads = 1 << 30; }).find("threads"), std::string::npos);
  EXPECT_NE(message([](auto& o) { o.io_threads = 0; }).find("io-threads"), std::string::npos);
  EXPECT_NE(message([](auto& o) { o.ubatch = 0; }).find("ubatch-size"), std::string::npos);
  EXPECT_NE(message([](auto& o) { o.cache_type_v = "f16"; }).find("cache-type-v"), std::string::npos);
  EXPECT_NE(message([](auto& o) { o.isa = "sse9"; }).find("sse9"), std::string::npos);
  EXPECT_NE(message([](auto& o) { o.eviction_policy = "mru"; }).find("mru"), std::string::npos);
  EXPECT_NE(message([](auto& o) { o.offload_device = "gpu"; }).find("offload-device"), std::string::npos);
  // The KV cache that is asked for, and what would hold it.
  EXPECT_NE(message([](auto& o) { o.max_kv_cache_memory = "1KiB"; }).find("256 tokens takes"), std::string::npos);
}

}  // namespace
}  // namespace ef::testing
