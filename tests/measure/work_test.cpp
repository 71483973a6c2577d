// Bytes and operations of the fixtures, counted by hand from their configs.
#include <gtest/gtest.h>

#include "expertflow/measure/work.h"
#include "tests/engine/model_rig.h"

namespace ef::testing {
namespace {

// hidden 64, 4 heads and 2 key/value heads of 32, 3 layers of 16 experts of width 32, top-4, vocabulary 256, BF16.
TEST(ModelWork, Qwen3Fixture) {
  const auto files = open_model(hf_fixture("qwen3_moe"));
  const ModelWork work = work_of(*files);
  const uint64_t attention = 128 * 64 + 64 * 64 + 64 * 64 + 64 * 128, router = 16 * 64;
  const uint64_t norms = 64 + 64 + 32 + 32;
  EXPECT_EQ(work.resident_bytes, 2 * (3 * (attention + router + norms) + 64));
  EXPECT_EQ(work.head_bytes, 2u * 256 * 64);
  EXPECT_EQ(work.embedding_row, 2u * 64);
  EXPECT_EQ(work.expert_bytes, 2u * 3 * 4 * (3 * 32 * 64));
  EXPECT_EQ(work.token.half, 2.0 * 3 * double(attention + router + 4 * (3 * 32 * 64)));
  EXPECT_EQ(work.token.blocks, 0);
  EXPECT_EQ(work.token.f32, 0);
  EXPECT_EQ(work.head.half, 2.0 * 256 * 64);
  // The sixth row: keys and values of 6 tokens, 2 heads of 32, 2 bytes, 3 layers; products with each of 4 heads.
  EXPECT_EQ(kv_bytes_read(files->config, KvType::kF16, 5), 6u * 2 * 2 * 32 * 2 * 3);
  EXPECT_EQ(kv_bytes_read(files->config, KvType::kF32, 5), 6u * 2 * 2 * 32 * 4 * 3);
  EXPECT_EQ(attention_operations(files->config, 5).total(), 2.0 * 6 * 4 * (32 + 32) * 3);
}

// A window of 16 in two layers of four; 2 key/value heads of 16.
TEST(ModelWork, WindowsBoundWhatIsRead) {
  const auto files = open_model(hf_fixture("gpt_oss"));
  EXPECT_EQ(kv_bytes_read(files->config, KvType::kF16, 20), 2u * (16 + 21) * (2 * 2 * 16) * 2);
  EXPECT_EQ(kv_bytes_read(files->config, KvType::kF16, 9), 4u * 10 * (2 * 2 * 16) * 2);
}

// Experts in 17-byte blocks of 32 multiply in integers. hidden 64, width 64, 4 layers, top-4: three matrices of 64
// x 64.
TEST(ModelWork, BlockFormatsCountApart) {
  const auto files = open_model(hf_fixture("gpt_oss-mxfp4-clamp"));
  const auto& config = files->config;
  const ModelWork work = work_of(*files);
  EXPECT_EQ(work.token.blocks,
            2.0 * double(config.layers.size()) * config.router.top_k * 3 * config.hidden * config.expert_ffn);
  const uint64_t matrices = 3u * uint64_t(config.hidden * config.expert_ffn) / 32 * 17;
  const uint64_t biases = 4u * uint64_t(2 * config.expert_ffn + config.hidden);
  EXPECT_EQ(work.expert_bytes, config.layers.size() * uint64_t(config.router.top_k) * (matrices + biases));
}

// The bundled model's head is its embedding, which decoding then reads whole.
TEST(ModelWork, TiedHeadIsRead) {
  const auto files = open_model(std::string(EF_SOURCE_DIR) + "/models/demo/demo-Q5_K_M.gguf");
  const ModelWork work = work_of(*files);
  EXPECT_EQ(work.head_bytes, files->checkpoint.directory.at("token_embd.weight").bytes);
  EXPECT_EQ(work.embedding_row * 16384, work.head_bytes);
}

}  // namespace
}  // namespace ef::testing
