// OLMoE's clip_qkv: q and k are clipped after their norm (Hugging Face modeling_olmoe), so that the cached keys obey
// it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "expertflow/engine/sequence.h"
#include "tests/support/golden.h"

namespace ef::testing {
namespace {

TEST(ClipQkv, CachedKeysAndValuesAreInsideTheClip) {
  constexpr float kClip = 0.05f;
  auto files = open_model(fixtures() / "hf" / "olmoe");
  ASSERT_EQ(files->config.qk_norm, QkNorm::kWhole);
  files->config.clip_qkv = kClip;
  EngineOptions options;
  options.cache_type_k = options.cache_type_v = "f32";
  options.ctx_size = 64;
  const Log log;
  Engine engine(std::move(files), options, log);
  Sequence sequence(engine, 64);
  const std::vector<TokenId> prompt = {3, 141, 59, 26, 53, 58, 97};
  sequence.feed(prompt);
  for (LayerId layer = 0; layer < LayerId(engine.config().layers.size()); ++layer) {
    const KvView view = engine.kv().view(layer);
    const auto block = size_t(engine.kv().block_table(engine.kv().group_of(layer))[0]);
    const size_t width = size_t(view.kv_heads) * size_t(view.k_dim), rows = prompt.size();
    const auto* k = reinterpret_cast<const float*>(view.k) + block * size_t(view.block_tokens) * width;
    const auto* v = reinterpret_cast<const float*>(view.v) + block * size_t(view.block_tokens) * width;
    const auto largest = [&](const float* x) {
      float most = 0;
      for (size_t i = 0; i < rows * width; ++i) most = std::max(most, std::fabs(x[i]));
      return most;
    };
    EXPECT_LE(largest(k), kClip * std::sqrt(2.f) * 1.0001f) << layer;  // rope turns pairs of clipped numbers
    EXPECT_LE(largest(v), kClip) << layer;
    EXPECT_GT(largest(k), kClip * 0.9f) << layer;  // and the clip is felt
  }
}

}  // namespace
}  // namespace ef::testing
