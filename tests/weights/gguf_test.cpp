// GGUF files that must load: fixtures written by llama.cpp's converter, and files built byte by byte.
#include "expertflow/weights/gguf.h"

#include <cmath>
#include <set>

#include "expertflow/weights/safetensors.h"
#include "tests/weights/file_bytes.h"

using namespace ef_test;
using ef::Format;
using ef::TensorDirectory;

namespace {

fs::path fixture(const std::string& name) { return fs::path(EF_FIXTURES) / name; }

/// Counts how the header is read.
class CountingSource final : public ef::ByteSource {
 public:
  explicit CountingSource(std::string bytes)
      : bytes_(std::move(bytes)), inner_("counted.gguf", std::as_bytes(std::span(bytes_))) {}
  const std::string& name() const override { return inner_.name(); }
  uint64_t size() const override { return inner_.size(); }
  void read(uint64_t offset, std::span<std::byte> out) const override {
    ++reads;
    bytes_read += out.size();
    inner_.read(offset, out);
  }
  mutable uint64_t reads = 0, bytes_read = 0;

 private:
  std::string bytes_;
  ef::MemorySource inner_;
};

}  // namespace

TEST(Gguf, ReadsFixtureHeader) {
  // Values read off the file with an independent script.
  TensorDirectory directory;
  const ef::GgufHeader header = ef::read_gguf(fixture("gguf/mixtral.gguf"), directory);
  EXPECT_EQ(header.version, 3u);
  EXPECT_EQ(header.alignment, 32u);
  EXPECT_EQ(header.metadata.values.size(), 19u);
  EXPECT_EQ(header.metadata.str("general.architecture"), "llama");
  EXPECT_EQ(header.metadata.integer("llama.expert_count"), 8);
  EXPECT_EQ(header.metadata.number("llama.rope.freq_base"), 1000000.0);
  EXPECT_EQ(header.metadata.number("llama.attention.layer_norm_rms_epsilon"), double(1e-6f));
  ASSERT_EQ(directory.tensors().size(), 33u);
  const ef::TensorInfo& gate = directory.at("blk.0.ffn_gate_exps.weight");
  EXPECT_EQ(gate.shape, (std::vector<int64_t>{8, 96, 64}));
  EXPECT_EQ(gate.format, Format::kBF16);
  EXPECT_EQ(gate.offset, 2848u + 65536u);
  EXPECT_EQ(gate.bytes, 8u * 96 * 64 * 2);
  EXPECT_EQ(gate.rows(), 8 * 96);
  EXPECT_EQ(gate.cols(), 64);
  EXPECT_EQ(gate.shape_text(), "[8, 96, 64]");
  EXPECT_EQ(directory.at("output_norm.weight").format, Format::kF32);
}

TEST(Gguf, DataEqualsTheHuggingFaceCheckpoint) {
  // llama.cpp's converter made the GGUF from this folder: matrices lie there unchanged.
  TensorDirectory gguf, hf;
  ef::read_gguf(fixture("gguf/mixtral.gguf"), gguf);
  ef::read_safetensors_folder(fixture("hf/mixtral"), hf);
  EXPECT_EQ(gguf.read(gguf.at("token_embd.weight")), hf.read(hf.at("model.embed_tokens.weight")));
  EXPECT_EQ(gguf.read(gguf.at("output.weight")), hf.read(hf.at("lm_head.weight")));
  EXPECT_EQ(gguf.read_f32(gguf.at("output_norm.weight")), hf.read_f32(hf.at("model.norm.weight")));
  const ef::TensorInfo& stacked = gguf.at("blk.1.ffn_down_exps.weight");
  for (uint64_t e = 0; e < 8; ++e) {
    const auto one = hf.read(hf.at(fmt::format("model.layers.1.block_sparse_moe.experts.{}.w2.weight", e)));
    std::vector<std::byte> slice(stacked.bytes / 8);
    gguf.read(stacked, e * slice.size(), slice);
    EXPECT_EQ(slice, one) << e;
  }
}

TEST(Gguf, QuantisedModelWithVocabulary) {
  // The bundled model, written by llama.cpp's quantiser; values read off the file with an independent script.
  TensorDirectory directory;
  const ef::GgufHeader header = ef::read_gguf(fs::path(EF_SOURCE_DIR) / "models/demo/demo-Q5_K_M.gguf", directory);
  const std::vector<std::string> tokens = header.metadata.strings("tokenizer.ggml.tokens");
  ASSERT_EQ(tokens.size(), 16384u);
  EXPECT_EQ(tokens[1], "<|im_start|>");
  const std::vector<std::string> merges = header.metadata.strings("tokenizer.ggml.merges");
  ASSERT_EQ(merges.size(), 16125u);
  EXPECT_EQ(merges[1], "h e");
  EXPECT_EQ(header.metadata.integers("tokenizer.ggml.token_type")[2], 3);
  EXPECT_FALSE(header.metadata.boolean("tokenizer.ggml.add_bos_token"));
  ASSERT_EQ(directory.tensors().size(), 146u);
  const ef::TensorInfo& embedding = directory.at("token_embd.weight");
  EXPECT_EQ(embedding.format, Format::kQ6K);
  EXPECT_EQ(embedding.offset, 566464u + 1024u);
  EXPECT_EQ(embedding.bytes, 16384u * 210u);
  const ef::TensorInfo& up = directory.at("blk.11.ffn_up_exps.weight");
  EXPECT_EQ(up.format, Format::kQ5K);
  EXPECT_EQ(up.shape, (std::vector<int64_t>{32, 128, 256}));
  EXPECT_EQ(up.offset + up.bytes, 34784960u);
  // K-quants need rows of 256: the narrower down projections have other formats in the same file.
  std::set<Format> formats;
  for (const ef::TensorInfo& t : directory.tensors()) formats.insert(t.format);
  EXPECT_EQ(formats, (std::set<Format>{Format::kF32, Format::kQ5_1, Format::kQ8_0, Format::kQ5K, Format::kQ6K}));
}

TEST(Gguf, EveryFixtureOpens) {
  // Tensor data reaches exactly to the end of each file (ggml pads it).
  int files = 0;
  for (const auto& entry : fs::directory_iterator(fixture("gguf"))) {
    TensorDirectory directory;
    const ef::GgufHeader header = ef::read_gguf(entry.path(), directory);
    uint64_t end = 0;
    for (const ef::TensorInfo& t : directory.tensors()) end = std::max(end, t.offset + t.bytes);
    EXPECT_EQ((end + header.alignment - 1) / header.alignment * header.alignment, fs::file_size(entry.path()))
        << entry.path();
    ++files;
  }
  EXPECT_EQ(files, 9);
}

TEST(Gguf, MixedFormats) {
  TensorDirectory directory;
  ef::read_gguf(fixture("gguf/gpt_oss-mxfp4-clamp.gguf"), directory);
  const ef::TensorInfo& up = directory.at("blk.0.ffn_up_exps.weight");
  EXPECT_EQ(up.format, Format::kMXFP4);
  EXPECT_EQ(up.shape, (std::vector<int64_t>{4, 64, 64}));
  EXPECT_EQ(up.bytes, 4u * 64 * 64 / 32 * 17);
  EXPECT_EQ(directory.at("blk.1.attn_v.weight").format, Format::kF32);
}

TEST(Gguf, VersionTwo) {
  GgufBuilder b = small_gguf();
  b.version = 2;
  const std::string bytes = b.build();
  TensorDirectory directory;
  EXPECT_EQ(ef::read_gguf_header(memory(bytes), directory).version, 2u);
  EXPECT_EQ(directory.read_f32(directory.at("output_norm.weight")), (std::vector<float>{0, 1, 2, 3}));
}

TEST(Gguf, A7_AlignmentIsHonoured) {
  GgufBuilder b;
  b.alignment = 64;
  b.u32("general.alignment", 64).f32("a", {3}).f32("b", {5});
  const std::string bytes = b.build();
  TensorDirectory directory;
  EXPECT_EQ(ef::read_gguf_header(memory(bytes), directory).alignment, 64u);
  EXPECT_EQ(directory.at("a").offset % 64, 0u);
  EXPECT_EQ(directory.at("b").offset, directory.at("a").offset + 64);
  EXPECT_EQ(directory.read_f32(directory.at("b")), (std::vector<float>{0, 1, 2, 3, 4}));
  b = small_gguf();
  const std::string absent = b.build();
  TensorDirectory other;
  EXPECT_EQ(ef::read_gguf_header(memory(absent), other).alignment, 32u);
}

TEST(Gguf, TensorsInAnyOrder) {
  GgufBuilder b;
  b.f32("second", {8}, 32).f32("first", {8}, 0);
  const std::string bytes = b.build();
  TensorDirectory directory;
  ef::read_gguf_header(memory(bytes), directory);
  EXPECT_EQ(directory.at("second").offset, directory.at("first").offset + 32);
  EXPECT_EQ(directory.tensors()[0].name, "second");
}

TEST(Gguf, ScalarsLongNamesAndBytesBehindTheData) {
  const std::string name(200, 'n');
  GgufBuilder b;
  b.f32("scalar", {}).f32(name, {4, 1, 1, 2});
  const std::string bytes = b.build() + std::string(100, '\0');
  TensorDirectory directory;
  ef::read_gguf_header(memory(bytes), directory);
  EXPECT_EQ(directory.at("scalar").elements(), 1);
  EXPECT_EQ(directory.at("scalar").bytes, 4u);
  EXPECT_EQ(directory.at(name).shape, (std::vector<int64_t>{2, 1, 1, 4}));
}

TEST(Gguf, MetadataOfEveryType) {
  GgufBuilder b;
  b.raw("u8", 0, le(uint8_t(200)))
      .raw("i8", 1, le(int8_t(-100)))
      .raw("u16", 2, le(uint16_t(60000)))
      .raw("i16", 3, le(int16_t(-30000)));
  b.raw("u32", 4, le(uint32_t(4000000000)))
      .raw("i32", 5, le(int32_t(-2000000000)))
      .raw("f32", 6, le(0.1f))
      .raw("bool", 7, "\x01");
  b.raw("str", 8, le_string("héllo"))
      .raw("u64", 10, le(~0ull))
      .raw("i64", 11, le(int64_t(-1) << 62))
      .raw("f64", 12, le(0.1));
  b.array("a_u8", 0, 2, "\x01\xff")
      .array("a_i8", 1, 2, "\x01\xff")
      .array("a_f32", 6, 2, le(1.5f) + le(-2.5f))
      .array("a_bool", 7, 2, std::string("\0\1", 2));
  b.array("a_str", 8, 3, le_string("a") + le_string("") + le_string(std::string("b\0c", 3))).array("a_none", 8, 0, "");
  b.array("a_u64", 10, 1, le(uint64_t(1) << 62)).array("a_f64", 12, 1, le(0.1)).array("a_i16", 3, 1, le(int16_t(-7)));
  const std::string bytes = b.build();
  TensorDirectory directory;
  const ef::GgufMetadata m = ef::read_gguf_header(memory(bytes, "types.gguf"), directory).metadata;
  EXPECT_EQ(m.integer("u8"), 200);
  EXPECT_EQ(m.integer("i8"), -100);
  EXPECT_EQ(m.integer("u16"), 60000);
  EXPECT_EQ(m.integer("i16"), -30000);
  EXPECT_EQ(m.integer("u32"), 4000000000);
  EXPECT_EQ(m.integer("i32"), -2000000000);
  EXPECT_EQ(m.integer("i64"), int64_t(-1) << 62);
  EXPECT_EQ(m.number("f32"), double(0.1f));
  EXPECT_EQ(m.number("f64"), 0.1);
  EXPECT_EQ(m.number("u64"), std::ldexp(1.0, 64));
  EXPECT_EQ(m.number("i8"), -100.0);
  EXPECT_TRUE(m.boolean("bool"));
  EXPECT_EQ(m.str("str"), "héllo");
  EXPECT_EQ(m.integers("a_u8"), (std::vector<int64_t>{1, 255}));
  EXPECT_EQ(m.integers("a_i8"), (std::vector<int64_t>{1, -1}));
  EXPECT_EQ(m.integers("a_i16"), (std::vector<int64_t>{-7}));
  EXPECT_EQ(m.integers("a_bool"), (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(m.integers("a_u64"), (std::vector<int64_t>{int64_t(1) << 62}));
  EXPECT_EQ(m.numbers("a_f32"), (std::vector<double>{1.5, -2.5}));
  EXPECT_EQ(m.numbers("a_f64"), (std::vector<double>{0.1}));
  EXPECT_EQ(m.numbers("a_u8"), (std::vector<double>{1, 255}));
  EXPECT_EQ(m.strings("a_str"), (std::vector<std::string>{"a", "", std::string("b\0c", 3)}));
  EXPECT_TRUE(m.strings("a_none").empty());
  // Wrong types name key, file, expected, found; so does a value that does not fit.
  EXPECT_TRUE(mentions(model_error([&] { m.integer("str"); }), {"types.gguf", "str", "an integer", "string"}));
  EXPECT_TRUE(mentions(model_error([&] { m.integer("f32"); }), {"f32", "an integer"}));
  EXPECT_TRUE(mentions(model_error([&] { m.integer("u64"); }), {"u64", "18446744073709551615"}));
  EXPECT_TRUE(mentions(model_error([&] { m.strings("a_u8"); }), {"a_u8", "array of strings", "array of u8"}));
  EXPECT_TRUE(mentions(model_error([&] { m.integers("a_f32"); }), {"a_f32", "array of integers", "array of f32"}));
  EXPECT_TRUE(mentions(model_error([&] { m.numbers("a_bool"); }), {"a_bool", "array of bool"}));
  EXPECT_TRUE(mentions(model_error([&] { m.boolean("u8"); }), {"u8", "a bool"}));
  EXPECT_TRUE(mentions(model_error([&] { m.str("absent"); }), {"types.gguf", "absent", "a string", "no such key"}));
  // Defaults only for what is absent.
  EXPECT_EQ(m.integer_or("absent", 7), 7);
  EXPECT_EQ(m.integer_or("u8", 7), 200);
  EXPECT_EQ(m.str_or("absent", "x"), "x");
  EXPECT_EQ(m.number_or("absent", 0.5), 0.5);
  EXPECT_EQ(m.boolean_or("absent", true), true);
  EXPECT_TRUE(mentions(model_error([&] { m.integer_or("str", 7); }), {"str", "an integer", "string"}));
}

TEST(Gguf, A9_LargeVocabularyInFewReads) {
  // 250k strings. No clock: what made such files slow was one small read a string.
  GgufBuilder b;
  std::string tokens;
  for (int i = 0; i < 250000; ++i) tokens += le_string("token" + std::to_string(i));
  b.array("tokenizer.ggml.tokens", kMetaString, 250000, tokens).f32("t", {8});
  auto source = std::make_shared<CountingSource>(b.build());
  TensorDirectory directory;
  const ef::GgufMetadata metadata = ef::read_gguf_header(source, directory).metadata;
  const auto strings = metadata.strings("tokenizer.ggml.tokens");
  ASSERT_EQ(strings.size(), 250000u);
  EXPECT_EQ(strings[0], "token0");
  EXPECT_EQ(strings[249999], "token249999");
  EXPECT_LE(source->reads, source->size() / (256 << 10) + 2);
  EXPECT_LE(source->bytes_read, source->size() + 8);
}

TEST(Gguf, OnlyTheHeaderIsRead) {
  GgufBuilder b;
  b.tensor("large", {1 << 20, 16}, kTensorI8, std::string(16 << 20, 'x'));
  auto source = std::make_shared<CountingSource>(b.build());
  TensorDirectory directory;
  ef::read_gguf_header(source, directory);
  EXPECT_LE(source->bytes_read, 256u << 10);
}

TEST(Gguf, A11_CompleteMoeFileIsNotCalledIncomplete) {
  // A MoE file has no dense ffn_up; the reader takes what is there.
  TensorDirectory directory;
  const ef::GgufHeader header = ef::read_gguf(fixture("gguf/qwen3_moe.gguf"), directory);
  EXPECT_EQ(header.metadata.str("general.architecture"), "qwen3moe");
  EXPECT_EQ(directory.find("blk.0.ffn_up.weight"), nullptr);
  EXPECT_NE(directory.find("blk.0.ffn_up_exps.weight"), nullptr);
}

TEST(Gguf, A17_FusedAndSideTensorsAreListed) {
  // The reader hides nothing: a fused tensor comes in row-major order {E, 2F, D}, side tensors are there to be refused
  // by the model.
  GgufBuilder b;
  b.f32("blk.0.ffn_gate_up_exps.weight", {4, 6, 2})
      .f32("blk.0.ffn_up_exps.scale", {2})
      .f32("blk.0.ffn_up_exps.input_scale", {1});
  const std::string bytes = b.build();
  TensorDirectory directory;
  ef::read_gguf_header(memory(bytes), directory);
  const ef::TensorInfo& fused = directory.at("blk.0.ffn_gate_up_exps.weight");
  EXPECT_EQ(fused.shape, (std::vector<int64_t>{2, 6, 4}));
  // Expert 1, row 3 (the first of up), column 2: 1 * 24 + 3 * 4 + 2.
  EXPECT_EQ(directory.read_f32(fused)[24 + 12 + 2], 38.0f);
  EXPECT_NE(directory.find("blk.0.ffn_up_exps.scale"), nullptr);
  EXPECT_NE(directory.find("blk.0.ffn_up_exps.input_scale"), nullptr);
}
