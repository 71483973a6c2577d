// Weights that are not numbers and files that cannot be read: the request fails by name, the next one is answered as
// if nothing had been.
#include <gtest/gtest.h>

#include "expertflow/engine/generate.h"
#include "expertflow/engine/perplexity.h"
#include "tests/engine/model_rig.h"
#include "tests/engine/tiny_experts.h"

namespace ef::testing {
namespace {

GenerateRequest greedy_request(const std::vector<TokenId>& prompt, int64_t max_tokens = 24) {
  GenerateRequest r;
  r.prompt = prompt;
  r.max_tokens = max_tokens;
  r.sampler.temperature = 0;
  return r;
}

// A float of a tensor in F32 or BF16 becomes NaN.
void put_nan(EditableTensor& tensor, size_t element) {
  const uint32_t bits = 0x7fc00000u;
  if (tensor.format == Format::kF32)
    std::memcpy(tensor.bytes.data() + element * 4, &bits, 4);
  else
    std::memcpy(tensor.bytes.data() + element * 2, reinterpret_cast<const char*>(&bits) + 2, 2);
}

class NotANumber : public ::testing::TestWithParam<std::string> {
 protected:
  const std::vector<GoldenCase> cases = goldens(GetParam());
  EditableCheckpoint edited{hf_fixture(GetParam())};

  // A token that no golden prompt or answer of the first three cases uses.
  TokenId unused() const {
    std::vector<bool> used(256, false);
    for (size_t i = 0; i < 3; ++i) {
      for (const TokenId t : cases[i].ids) used[size_t(t)] = true;
      for (const TokenId t : cases[i].greedy) used[size_t(t)] = true;
    }
    return TokenId(std::find(used.begin(), used.end(), false) - used.begin());
  }
};

// One token's embedding is NaN: its prompt fails, and whoever comes after, in the same blocks and slots, is untouched.
TEST_P(NotANumber, E20_OneTokenFailsItsRequestAlone) {
  const TokenId bad = unused();
  ASSERT_LT(bad, 256);
  put_nan(edited.tensors.at("model.embed_tokens.weight"), size_t(bad) * 64 + 5);
  for (const char* budget : {"100%", "min"}) {
    const auto engine = engine_of(model_of(edited.build()), small_engine(budget));
    Generator generator(*engine, nullptr);
    for (int round = 0; round < 2; ++round) {
      EXPECT_THROW(generator.generate(greedy_request(std::vector<TokenId>(100, bad))), RequestError);
      EXPECT_THROW(generator.generate(greedy_request({cases[1].ids[0], bad})), RequestError);
      for (size_t i = 0; i < 3; ++i)
        EXPECT_EQ(generator.generate(greedy_request(cases[i].ids)).tokens, cases[i].greedy) << budget << " " << i;
    }
  }
}

TEST_P(NotANumber, E20_ANeighbourInTheBatchIsUntouched) {
  const TokenId bad = unused();
  put_nan(edited.tensors.at("model.embed_tokens.weight"), size_t(bad) * 64);
  EngineOptions o = small_engine();
  o.parallel = 2, o.ctx_size = 512;
  const auto engine = engine_of(model_of(edited.build()), o);
  Sequence poisoned(*engine, 64), good(*engine, 64);
  const std::vector<TokenId> nan_prompt(9, bad);
  Batch batch;
  batch.pieces.push_back({poisoned.id(), nan_prompt, Batch::Piece::Logits::kLast});
  batch.pieces.push_back({good.id(), cases[1].ids, Batch::Piece::Logits::kLast});
  const auto logits = engine->step(batch);
  EXPECT_TRUE(std::isnan(logits[0]));
  EXPECT_EQ(argmax(logits.subspan(256)), cases[1].greedy[0]);
  EXPECT_THROW(check_logits(logits.first(256)), RequestError);
}

TEST_P(NotANumber, C8_RouterAndExpertWeights) {
  for (const char* part : {".gate.weight", ".weight_scale_inv", "down_proj", "w2.weight"}) {
    EditableCheckpoint copy(hf_fixture(GetParam()));
    int changed = 0;
    for (auto& [name, tensor] : copy.tensors)
      if (name.find(part) != std::string::npos && name.find("layers.1.") != std::string::npos &&
          (tensor.format == Format::kF32 || tensor.format == Format::kBF16 || tensor.format == Format::kF16)) {
        for (size_t e = 0; e < size_t(tensor.shape.back()); ++e) put_nan(tensor, e);
        ++changed;
      }
    if (changed == 0) continue;
    // Refused when it is read, by the tensor's name, or when it gives logits that are no numbers; never tokens.
    const auto fails = [&](const auto& f) {
      try {
        f();
        ADD_FAILURE() << part << ": no error";
      } catch (const RequestError&) {
      } catch (const ModelError& e) {
        EXPECT_NE(std::string(e.what()).find("layers.1."), std::string::npos) << e.what();
      }
    };
    std::unique_ptr<Engine> engine;
    try {
      engine = engine_of(model_of(copy.build()), small_engine("50%"));
    } catch (const ModelError& e) {
      EXPECT_NE(std::string(e.what()).find("layers.1."), std::string::npos) << e.what();
      continue;
    }
    Generator generator(*engine, nullptr);
    for (int i = 0; i < 2; ++i) fails([&] { generator.generate(greedy_request(cases[2].ids)); });
    PerplexityOptions windows;
    windows.window = 16;
    fails([&] { perplexity(*engine, cases[2].ids, windows); });
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, NotANumber,
                         ::testing::Values("mixtral", "deepseek_v3", "gpt_oss", "phimoe", "olmoe"));

// Reads of experts that fail while tokens are made, early and late, once or for a while.
TEST(IoFaults, AFailedReadFailsTheRequestAndNeverBecomesAWeight) {
  for (const char* name : {"mixtral", "gpt_oss-mxfp4-clamp", "qwen3_moe-fp8"}) {
    const GoldenCase golden = goldens(name)[1];
    Checkpoint checkpoint = open_checkpoint(hf_fixture(name));
    Faults faults;
    checkpoint.directory.wrap_files([&](std::shared_ptr<const ByteSource> inner) {
      return std::make_shared<FaultySource>(std::move(inner), faults);
    });
    EngineOptions o = small_engine("min");
    o.io_threads = 2;
    o.activations = "f32";  // the goldens' arithmetic
    const auto engine = engine_of(model_of(std::move(checkpoint)), o);
    Generator generator(*engine, nullptr);
    const int64_t before = faults.reads;
    EXPECT_EQ(generator.generate(greedy_request(golden.ids)).tokens, golden.greedy) << name;
    const int64_t reads = faults.reads - before;
    ASSERT_GT(reads, 20) << name;
    for (const int64_t at : {int64_t{0}, int64_t{1}, int64_t{7}, reads / 2, reads - 12}) {
      // Long enough that a retry fails too: the request cannot be answered.
      faults.fail_next(at, 1 << 20);
      try {
        generator.generate(greedy_request(golden.ids));
        ADD_FAILURE() << name << ": no DeviceError at read " << at;
      } catch (const DeviceError& e) {
        EXPECT_NE(std::string(e.what()).find("expected"), std::string::npos) << e.what();
      }
      faults.fail_from = faults.fail_to = -1;
      EXPECT_EQ(generator.generate(greedy_request(golden.ids)).tokens, golden.greedy) << name << " after " << at;
    }
    // A single failed read: an error, or the right tokens.
    for (const int64_t at : {int64_t{2}, reads / 3}) {
      faults.fail_next(at, 1);
      try {
        EXPECT_EQ(generator.generate(greedy_request(golden.ids)).tokens, golden.greedy) << name;
      } catch (const DeviceError&) {
      }
      EXPECT_EQ(generator.generate(greedy_request(golden.ids)).tokens, golden.greedy) << name << " after one";
    }
  }
}

TEST(IoFaults, AFailedReadWhileLoadingIsADeviceError) {
  Checkpoint checkpoint = open_checkpoint(hf_fixture("mixtral"));
  Faults faults;
  checkpoint.directory.wrap_files([&](std::shared_ptr<const ByteSource> inner) {
    return std::make_shared<FaultySource>(std::move(inner), faults);
  });
  auto files = model_of(std::move(checkpoint));
  faults.fail_next(3, 1 << 20);
  EXPECT_THROW(engine_of(std::move(files), small_engine()), DeviceError);
}

}  // namespace
}  // namespace ef::testing
