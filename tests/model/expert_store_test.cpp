// Experts as units: whatever the file's layout, a slot dequantises to the same numbers. Two files of one model, written
// by different programs (transformers and llama.cpp's converter), are independent evidence; other layouts are made from
// them by hand.
#include "expertflow/weights/expert_store.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/model/editable_checkpoint.h"

namespace ef::testing {
namespace {

struct ExpertNumbers {
  std::vector<float> gate, up, down, gate_bias, up_bias, down_bias;
  bool operator==(const ExpertNumbers&) const = default;
};

std::vector<float> numbers(const MatrixView& m) {
  std::vector<float> out(size_t(m.rows * m.cols));
  for (int64_t r = 0; r < m.rows; ++r) dequantize_row(m, r, out.data() + r * m.cols);
  return out;
}

ExpertNumbers read_expert(const ExpertStore& store, ExpertKey key) {
  std::vector<std::byte> slot(store.slot_bytes(key.layer)), staging;
  store.fill(key, slot, staging);
  ExpertView v = view_slot(store.layout(key.layer), slot.data());
  ExpertNumbers out{numbers(v.gate), numbers(v.up), numbers(v.down), {}, {}, {}};
  if (v.gate_bias) out.gate_bias.assign(v.gate_bias, v.gate_bias + v.gate.rows);
  if (v.up_bias) out.up_bias.assign(v.up_bias, v.up_bias + v.up.rows);
  if (v.down_bias) out.down_bias.assign(v.down_bias, v.down_bias + v.down.rows);
  return out;
}

/// A store with the directory it refers to.
struct OpenStore {
  explicit OpenStore(Checkpoint c)
      : checkpoint(std::move(c)), store(checkpoint.directory, binding_of(checkpoint).experts) {}
  Checkpoint checkpoint;
  ExpertStore store;
};

void expect_equal_experts(const OpenStore& a, const OpenStore& b) {
  ASSERT_EQ(a.store.layers().size(), b.store.layers().size());
  for (const LayerExperts& l : a.store.layers()) {
    ASSERT_TRUE(b.store.has_layer(l.layer));
    ASSERT_EQ(a.store.experts(l.layer), b.store.experts(l.layer));
    for (ExpertId e = 0; e < a.store.experts(l.layer); ++e) {
      const ExpertNumbers x = read_expert(a.store, {l.layer, e}), y = read_expert(b.store, {l.layer, e});
      ASSERT_FALSE(x.gate.empty());
      ASSERT_TRUE(x == y) << "layer " << l.layer << " expert " << e;
    }
  }
}

class SameModelTwice : public ::testing::TestWithParam<const char*> {};
TEST_P(SameModelTwice, HuggingFaceAndGgufFillToTheSameNumbers) {
  OpenStore hf(open_checkpoint(hf_fixture(GetParam()))), gguf(open_checkpoint(gguf_fixture(GetParam())));
  expect_equal_experts(hf, gguf);
}
INSTANTIATE_TEST_SUITE_P(Fixtures, SameModelTwice,
                         ::testing::Values("mixtral", "mixtral-tied-sharded", "qwen2_moe", "qwen3_moe", "deepseek_v3",
                                           "gpt_oss", "gpt_oss-mxfp4-clamp", "granitemoe", "glm4_moe"),
                         [](const auto& i) {
                           std::string name = i.param;
                           for (char& ch : name)
                             if (ch == '-') ch = '_';
                           return name;
                         });

TEST(ExpertStore, ExpertsDiffer) {
  OpenStore s(open_checkpoint(hf_fixture("gpt_oss")));
  EXPECT_FALSE(read_expert(s.store, {0, 0}) == read_expert(s.store, {0, 1}));
  EXPECT_FALSE(read_expert(s.store, {0, 0}) == read_expert(s.store, {1, 0}));
}

// Stacks a Mixtral checkpoint's experts: [E, 2F, D] with gate rows first, and [E, D, F].
EditableCheckpoint fused_mixtral(const char* gate_up, const char* down) {
  EditableCheckpoint e(hf_fixture("mixtral"));
  for (int l = 0; l < 3; ++l) {
    EditableTensor up{Format::kBF16, {8, 192, 64}, {}}, out{Format::kBF16, {8, 64, 96}, {}};
    const std::string layer = "model.layers." + std::to_string(l);
    for (int x = 0; x < 8; ++x) {
      const std::string expert = layer + ".block_sparse_moe.experts." + std::to_string(x);
      for (const char* name : {".w1.weight", ".w3.weight"}) {
        EditableTensor t = e.take(expert + name);
        up.bytes.insert(up.bytes.end(), t.bytes.begin(), t.bytes.end());
      }
      EditableTensor t = e.take(expert + ".w2.weight");
      out.bytes.insert(out.bytes.end(), t.bytes.begin(), t.bytes.end());
    }
    e.tensors[layer + gate_up] = std::move(up);
    e.tensors[layer + down] = std::move(out);
  }
  return e;
}

TEST(ExpertStore, B5_FusedThreeDimensionalExperts) {
  OpenStore separate(open_checkpoint(hf_fixture("mixtral")));
  for (const char* block : {".mlp", ".block_sparse_moe"}) {
    OpenStore fused(fused_mixtral((std::string(block) + ".experts.gate_up_proj").c_str(),
                                  (std::string(block) + ".experts.down_proj").c_str())
                        .build());
    expect_equal_experts(separate, fused);
  }
}

TEST(ExpertStore, A16_OldGgufWithOneTensorAnExpert) {
  EditableCheckpoint e(gguf_fixture("mixtral"));
  for (int l = 0; l < 3; ++l)
    for (const char* part : {"gate", "up", "down"}) {
      const std::string name = "blk." + std::to_string(l) + ".ffn_" + part;
      EditableTensor t = e.take(name + "_exps.weight");
      const size_t each = t.bytes.size() / 8;
      for (size_t x = 0; x < 8; ++x)
        e.tensors[name + "." + std::to_string(x) + ".weight"] = {
            t.format,
            {t.shape[1], t.shape[2]},
            {t.bytes.begin() + long(x * each), t.bytes.begin() + long((x + 1) * each)}};
    }
  OpenStore old(e.build()), stacked(open_checkpoint(gguf_fixture("mixtral")));
  expect_equal_experts(old, stacked);
}

TEST(ExpertStore, A17_GgufGateUpFusedInThatOrder) {
  EditableCheckpoint e(gguf_fixture("qwen3_moe"));
  for (int l = 0; l < 3; ++l) {
    const std::string layer = "blk." + std::to_string(l);
    EditableTensor gate = e.take(layer + ".ffn_gate_exps.weight"), up = e.take(layer + ".ffn_up_exps.weight");
    const size_t each = gate.bytes.size() / 16;
    EditableTensor both{gate.format, {16, 64, 64}, {}};
    for (size_t x = 0; x < 16; ++x)
      for (const EditableTensor* t : {&gate, &up})
        both.bytes.insert(both.bytes.end(), t->bytes.begin() + long(x * each), t->bytes.begin() + long((x + 1) * each));
    e.tensors[layer + ".ffn_gate_up_exps.weight"] = std::move(both);
  }
  OpenStore fused(e.build()), separate(open_checkpoint(gguf_fixture("qwen3_moe")));
  expect_equal_experts(fused, separate);
}

TEST(ExpertStore, B7_Fp8BlocksAgainstHandArithmetic) {
  Checkpoint c = open_checkpoint(hf_fixture("qwen3_moe-fp8"));
  const std::string name = "model.layers.1.mlp.experts.2.down_proj.weight";
  const std::vector<std::byte> weights = c.directory.read(c.directory.at(name));
  const std::vector<float> scales = c.directory.read_f32(c.directory.at(name + "_scale_inv"));
  OpenStore s(std::move(c));
  const ExpertNumbers x = read_expert(s.store, {1, 2});
  ASSERT_EQ(x.down.size(), 160u * 144u);
  for (size_t r = 0; r < 160; ++r)
    for (size_t k = 0; k < 144; ++k)
      ASSERT_EQ(x.down[r * 144 + k], e4m3_to_f32(uint8_t(weights[r * 144 + k])) * scales[r / 128 * 2 + k / 128])
          << r << "," << k;
  s.store.check_scales();
}

TEST(ExpertStore, B8_E8m0ScalesAreExponents) {
  EditableCheckpoint e(hf_fixture("qwen3_moe-fp8"));
  const std::string name = "model.layers.0.mlp.experts.3.gate_proj.weight";
  e.tensors[name + "_scale_inv"] = {
      Format::kU8, {2, 2}, {std::byte{120}, std::byte{121}, std::byte{118}, std::byte{127}}};
  const std::vector<std::byte> weights = e.tensors[name].bytes;
  OpenStore s(e.build());
  const ExpertNumbers x = read_expert(s.store, {0, 3});
  const float scale[] = {0x1p-7f, 0x1p-6f, 0x1p-9f, 1.f};
  for (size_t r = 0; r < 144; ++r)
    for (size_t k = 0; k < 160; ++k)
      ASSERT_EQ(x.gate[r * 160 + k], e4m3_to_f32(uint8_t(weights[r * 160 + k])) * scale[r / 128 * 2 + k / 128]);
  s.store.check_scales();
}

TEST(ExpertStore, B8_ScalesOutOfRangeAreRefused) {
  const std::string name = "model.layers.0.mlp.experts.3.gate_proj.weight_scale_inv";
  // 117 is 2^-10 as an exponent byte: the value that appears when such bytes are copied as numbers.
  for (float bad : {std::nanf(""), INFINITY, -0.5f, 117.f}) {
    EditableCheckpoint e(hf_fixture("qwen3_moe-fp8"));
    e.put_f32(name, {2, 2}, {0.01f, 0.01f, bad, 0.01f});
    OpenStore s(e.build());
    EXPECT_MODEL_ERROR(s.store.check_scales(), name.c_str(), "block scale 2");
    EXPECT_MODEL_ERROR(read_expert(s.store, {0, 3}), name.c_str(), "block scale 2");
    EXPECT_EQ(read_expert(s.store, {0, 2}).gate.size(), 144u * 160u);  // other experts are not touched
  }
  EditableCheckpoint e(hf_fixture("qwen3_moe-fp8"));
  e.tensors[name] = {Format::kU8, {2, 2}, std::vector<std::byte>(4, std::byte{255})};
  OpenStore s(e.build());
  EXPECT_MODEL_ERROR(s.store.check_scales(), name.c_str());
}

TEST(ExpertStore, B8_Mxfp4NanScale) {
  EditableCheckpoint e(hf_fixture("gpt_oss-mxfp4-clamp"));
  EditableTensor& t = e.tensors["model.layers.1.mlp.experts.gate_up_proj_scales"];  // [4, 128, 2]
  t.bytes[2 * 256 + 5 * 2 + 1] = std::byte{255};
  OpenStore s(e.build());
  EXPECT_MODEL_ERROR(read_expert(s.store, {1, 2}), "gate_up_proj_scales", "expert 2, row 5", "NaN");
  EXPECT_EQ(read_expert(s.store, {1, 1}).gate.size(), 64u * 64u);
}

TEST(ExpertStore, C8_NanInAnExpertBias) {
  EditableCheckpoint e(gguf_fixture("gpt_oss"));
  EditableTensor& t = e.tensors["blk.2.ffn_down_exps.bias"];  // F32 [8, 64]
  const float nan = std::nanf("");
  std::memcpy(t.bytes.data() + (3 * 64 + 7) * sizeof(float), &nan, sizeof nan);
  OpenStore s(e.build());
  EXPECT_MODEL_ERROR(read_expert(s.store, {2, 3}), "blk.2.ffn_down_exps.bias", "layer 2, expert 3");
}

TEST(ExpertStore, OneReadWhereTheFileAllows) {
  OpenStore fused(fused_mixtral(".mlp.experts.gate_up_proj", ".mlp.experts.down_proj").build());
  const auto units = fused.store.units({1, 3});
  ASSERT_EQ(units.size(), 2u);  // gate and up together, down
  uint64_t bytes = 0;
  for (const auto& unit : units) {
    ASSERT_EQ(unit.ranges.size(), 1u);
    bytes += unit.ranges[0].bytes;
  }
  EXPECT_EQ(bytes, 3u * 64 * 96 * 2);
  EXPECT_EQ(fused.store.file_bytes({1, 3}), bytes);
  // transformers writes down, gate, up of one expert next to each other: the slot takes that order, and one read fills
  // it.
  OpenStore separate(open_checkpoint(hf_fixture("qwen3_moe")));
  EXPECT_EQ(separate.store.units({0, 1}).size(), 1u);
  EXPECT_EQ(separate.store.total_bytes(), 3u * 16 * separate.store.max_slot_bytes());
}

TEST(ExpertStore, InterleavedGateAndUpAreReadOnce) {
  OpenStore s(open_checkpoint(hf_fixture("gpt_oss-mxfp4-clamp")));
  // blocks 128 x 2 x 16, scales 128 x 2, down 64 x 2 x (16 + 1), biases 128 and 64 in BF16
  EXPECT_EQ(s.store.file_bytes({0, 1}), 128u * 34 + 64u * 34 + (128 + 64) * 2);
}

TEST(ExpertStore, PartsAreAlignedAndApart) {
  for (const char* name : {"gpt_oss-mxfp4-clamp", "qwen3_moe-fp8", "phimoe"}) {
    OpenStore s(open_checkpoint(hf_fixture(name)));
    const ExpertLayout& layout = s.store.layout(0);
    uint64_t end = 0;
    for (const ExpertPart& p : layout.parts) {
      EXPECT_EQ(p.offset % 64, 0u);
      EXPECT_GE(p.offset, end);
      end = p.offset + p.bytes;
    }
    EXPECT_LE(end, layout.bytes);
    EXPECT_EQ(layout.bytes % 64, 0u);
    EXPECT_TRUE(layout == s.store.layout(1));
  }
}

TEST(ExpertStore, DenseLayersHaveNoExperts) {
  OpenStore s(open_checkpoint(hf_fixture("qwen3_moe-mixed-layers")));
  EXPECT_FALSE(s.store.has_layer(0));
  EXPECT_TRUE(s.store.has_layer(1));
  EXPECT_EQ(s.store.experts(0), 0);
  EXPECT_EQ(s.store.experts(1), 8);
  EXPECT_EQ(s.store.experts(99), 0);
}

/// Fails reads that touch [begin, end).
class FaultySource final : public ByteSource {
 public:
  FaultySource(std::shared_ptr<const ByteSource> inner, uint64_t begin, uint64_t end)
      : inner_(std::move(inner)), begin_(begin), end_(end) {}
  const std::string& name() const override { return inner_->name(); }
  uint64_t size() const override { return inner_->size(); }
  void read(uint64_t offset, std::span<std::byte> out) const override {
    if (offset < end_ && offset + out.size() > begin_)
      fail<DeviceError>("{}: reading {} bytes at offset {} failed: EIO", name(), out.size(), offset);
    inner_->read(offset, out);
  }

 private:
  std::shared_ptr<const ByteSource> inner_;
  uint64_t begin_, end_;
};

TEST(ExpertStore, AFailedReadNamesTheExpert) {
  Checkpoint c = open_checkpoint(hf_fixture("qwen3_moe"));
  const TensorInfo bad = c.directory.at("model.layers.1.mlp.experts.4.up_proj.weight");
  c.directory.wrap_files([&](std::shared_ptr<const ByteSource> inner) {
    return std::make_shared<FaultySource>(std::move(inner), bad.offset, bad.offset + bad.bytes);
  });
  OpenStore s(std::move(c));
  try {
    read_expert(s.store, {1, 4});
    FAIL() << "no error";
  } catch (const DeviceError& error) {
    EXPECT_NE(std::string(error.what()).find("layer 1, expert 4"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("EIO"), std::string::npos) << error.what();
  }
  EXPECT_EQ(read_expert(s.store, {1, 3}).up.size(), 32u * 64u);
}

TEST(ExpertStore, SourcesThatDoNotFitTheLayoutAreRefused) {
  Checkpoint c = open_checkpoint(gguf_fixture("mixtral"));
  const std::vector<LayerExperts> good = binding_of(c).experts;
  auto with = [&](auto change) {
    std::vector<LayerExperts> layers = good;
    change(layers[1]);
    return model_error([&] { ExpertStore(c.directory, layers); });
  };
  EXPECT_EQ(with([](LayerExperts&) {}), "");
  EXPECT_NE(with([](LayerExperts& l) { l.experts[2][0].index = 8; }), "");
  EXPECT_NE(with([](LayerExperts& l) { l.experts[2][0].row_begin = 1; }), "");
  EXPECT_NE(with([](LayerExperts& l) { l.experts[2][0].row_step = 1ll << 40; }), "");
  EXPECT_NE(with([](LayerExperts& l) { l.experts[2][0].tensor.format = Format::kF16; }), "");
  EXPECT_NE(with([](LayerExperts& l) { l.layout.parts[0].rows = 1ll << 60; }), "");
}

}  // namespace
}  // namespace ef::testing
