// Quantisation: which format each tensor gets, as llama.cpp's quantiser chose it for the bundled model; how far numbers
// move; what is refused.
#include "expertflow/convert/quantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "expertflow/base/errors.h"
#include "expertflow/convert/convert.h"
#include "expertflow/convert/quantize_rules.h"
#include "expertflow/weights/writers.h"
#include "tests/support/golden_check.h"
#include "tests/support/temp_folder.h"

namespace ef::testing {
namespace {

namespace fs = std::filesystem;

fs::path hf(const std::string& name) { return fixtures() / "hf" / name; }
fs::path demo() { return std::string(EF_SOURCE_DIR) + "/models/demo/demo-Q5_K_M.gguf"; }

QuantizeOptions options_for(const fs::path& in, const fs::path& out, const std::string& type) {
  QuantizeOptions options;
  options.in = in, options.out = out, options.type = type;
  options.threads = 2;
  return options;
}

std::string bytes_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string refusal(const QuantizeOptions& options) {
  try {
    quantize_checkpoint(options);
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was refused";
}

#define EXPECT_HOLDS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST(QuantizeRules, FormatsOfTheBundledModelAreLlamaCpps) {
  const Checkpoint theirs = open_checkpoint(demo());
  QuantRules rules;
  rules.type = &find_quant_type("--type", "q5_k");
  rules.layers = 12, rules.experts = 32, rules.tied = true;
  int quantised = 0;
  for (const TensorInfo& t : theirs.directory.tensors()) {
    const auto choice = rules.choose(t.name, t.shape);
    EXPECT_EQ(choice ? choice->format : Format::kF32, t.format) << t.name;
    quantised += choice.has_value();
  }
  EXPECT_EQ(quantised, 1 + 12 * 7);
  EXPECT_EQ(theirs.gguf.metadata.integer("general.file_type"), rules.type->file_type);
}

// The rows of llama_tensor_get_type that the bundled model does not reach.
TEST(QuantizeRules, RowsThatDoNotFitAndOtherTensors) {
  QuantRules rules;
  rules.type = &find_quant_type("--type", "q4_k_s");
  rules.layers = 16, rules.experts = 8;
  const auto format = [&](const char* name, std::vector<int64_t> shape) {
    const auto choice = rules.choose(name, shape);
    return choice ? choice->format : Format::kCount;
  };
  EXPECT_EQ(format("blk.0.ffn_up_exps.weight", {8, 64, 256}), Format::kQ4K);
  EXPECT_EQ(format("blk.0.ffn_up_exps.weight", {8, 64, 96}), Format::kQ5_0);
  EXPECT_EQ(format("blk.0.ffn_up_exps.weight", {8, 64, 48}), Format::kF16);
  EXPECT_EQ(format("output.weight", {100, 256}), Format::kQ6K);
  EXPECT_EQ(format("output.weight", {100, 96}), Format::kQ8_0);
  EXPECT_EQ(format("token_embd.weight", {100, 256}), Format::kQ4K);
  for (const char* kept : {"blk.0.ffn_gate_inp.weight", "blk.0.ffn_gate_inp_shexp.weight", "blk.0.attn_norm.weight",
                           "blk.0.ffn_up_exps.bias"})
    EXPECT_EQ(format(kept, {8, 256}), Format::kCount) << kept;
  rules.type = &find_quant_type("--type", "q4_k_m");
  EXPECT_EQ(format("blk.5.attn_v.weight", {64, 256}), Format::kQ8_0) << "eight experts";
  EXPECT_EQ(format("blk.5.attn_k.weight", {64, 256}), Format::kQ8_0);
  rules.experts = 64;
  // Of 16 layers: 0, 1, then every third from 4 on, and 14, 15.
  for (int layer : {0, 1, 4, 7, 10, 13, 14, 15})
    EXPECT_EQ(format(fmt::format("blk.{}.attn_v.weight", layer).c_str(), {64, 256}), Format::kQ6K) << layer;
  for (int layer : {2, 3, 5, 6, 8, 9, 11, 12})
    EXPECT_EQ(format(fmt::format("blk.{}.ffn_down_exps.weight", layer).c_str(), {64, 64, 256}), Format::kQ4K) << layer;
  rules.type = &find_quant_type("--type", "mxfp4");
  EXPECT_EQ(format("blk.5.ffn_down_exps.weight", {64, 64, 256}), Format::kMXFP4);
  EXPECT_EQ(format("blk.5.attn_q.weight", {64, 256}), Format::kQ8_0);
  EXPECT_EQ(format("output.weight", {64, 256}), Format::kQ8_0);
  rules.output = Format::kF16, rules.token_embedding = Format::kQ4_0;
  EXPECT_EQ(format("output.weight", {64, 256}), Format::kF16);
  EXPECT_EQ(format("token_embd.weight", {64, 256}), Format::kQ4_0);
  EXPECT_THROW(find_quant_type("--type", "q9_z"), ConfigError);
  EXPECT_THROW(find_plain_type("--output-type", "F8_E4M3"), ConfigError);
}

// Relative errors on weights of a normal distribution are known from the block formats' step sizes; the bounds here are
// those of tests/data's own measurements by llama.cpp (fixtures/quant/index.json), rounded up.
TEST(Quantize, EveryTypeOfAFixtureRunsAndStaysNearTheGoldens) {
  struct Bound {
    const char* type;
    double relative;  ///< of the matrices
    double logits;    ///< largest difference on the shortest prompts
  };
  const TempFolder folder;
  for (const Bound& b :
       {Bound{"q8_0", 0.006, 0.2}, Bound{"q6_k", 0.02, 0}, Bound{"q5_k_m", 0.04, 0}, Bound{"q5_1", 0.05, 0},
        Bound{"q5_0", 0.05, 0}, Bound{"q4_k_m", 0.08, 0}, Bound{"q4_k_s", 0.08, 0}, Bound{"q4_1", 0.1, 0},
        Bound{"q4_0", 0.11, 0}, Bound{"iq4_nl", 0.09, 0}, Bound{"iq4_xs", 0.09, 0}, Bound{"mxfp4", 0.14, 0},
        Bound{"q3_k_s", 0.2, 0}}) {
    const fs::path out = folder.path / (std::string(b.type) + ".gguf");
    const QuantizeReport report = quantize_checkpoint(options_for(hf("qwen3_moe-k-quant-sizes"), out, b.type));
    EXPECT_LT(report.bytes_out, report.bytes_in) << b.type;
    bool named = false;
    for (const QuantizedTensor& t : report.tensors) {
      EXPECT_LT(t.error.relative(), b.relative) << b.type << " " << t.name;
      EXPECT_FALSE(t.fallback) << t.name;
      named |= t.to == find_quant_type("", b.type).base;
      if (format_info(t.to).block_elements > 1) {
        EXPECT_GT(t.error.rms(), 0) << t.name;
      } else {
        EXPECT_EQ(t.error.rms(), 0) << t.name;
      }
    }
    EXPECT_TRUE(named) << b.type;
    if (b.logits > 0) {
      const FixtureReport golden =
          check_fixture({b.type, out, hf("qwen3_moe-k-quant-sizes") / "golden.safetensors", 1, true}, "resident");
      EXPECT_LT(golden.max_logit_error, b.logits) << b.type;
    }
  }
}

TEST(Quantize, TheReportedErrorIsTheFilesOwn) {
  const TempFolder folder;
  const fs::path out = folder.path / "q4_0.gguf";
  const QuantizeReport report = quantize_checkpoint(options_for(hf("qwen3_moe-k-quant-sizes"), out, "q4_0"));
  const Checkpoint result = open_checkpoint(out), source = open_checkpoint(hf("qwen3_moe-k-quant-sizes"));
  const std::vector<float> before =
      source.directory.read_f32(source.directory.at("model.layers.1.self_attn.o_proj.weight"));
  const std::vector<float> after = result.directory.read_f32(result.directory.at("blk.1.attn_output.weight"));
  ASSERT_EQ(before.size(), after.size());
  double sum = 0;
  for (size_t i = 0; i < before.size(); ++i) sum += std::pow(double(after[i]) - double(before[i]), 2);
  bool found = false;
  for (const QuantizedTensor& t : report.tensors) {
    if (t.name != "blk.1.attn_output.weight") continue;
    found = true;
    EXPECT_NEAR(t.error.rms(), std::sqrt(sum / double(before.size())), 1e-12);
    EXPECT_EQ(t.from, Format::kBF16);
    EXPECT_EQ(t.to, Format::kQ4_0);
  }
  EXPECT_TRUE(found);
}

TEST(Quantize, RowsThatDoNotFitFallBackAndAreReported) {
  const TempFolder folder;
  const fs::path out = folder.path / "out.gguf";
  const QuantizeReport report = quantize_checkpoint(options_for(hf("mixtral"), out, "q4_k_s"));  // rows of 64 and 96
  int fallbacks = 0;
  for (const QuantizedTensor& t : report.tensors) {
    if (t.to == Format::kF32) continue;
    ++fallbacks;
    const bool head = t.name == "output.weight";
    EXPECT_EQ(t.to, head ? Format::kQ8_0 : Format::kQ5_0) << t.name;
    EXPECT_EQ(t.fallback, !head) << t.name;
  }
  EXPECT_EQ(fallbacks, 2 + 3 * 7);
}

TEST(Quantize, FolderAndGgufGiveTheSameBytesOnAnyNumberOfThreads) {
  const TempFolder folder;
  ConvertOptions convert;
  convert.in = hf("granitemoe"), convert.out = folder.path / "source.gguf";
  convert_checkpoint(convert);
  QuantizeOptions from_folder = options_for(hf("granitemoe"), folder.path / "a.gguf", "q8_0");
  from_folder.threads = 3, from_folder.buffer_bytes = 1000;
  QuantizeOptions from_gguf = options_for(convert.out, folder.path / "b.gguf", "q8_0");
  from_gguf.threads = 1;
  quantize_checkpoint(from_folder);
  quantize_checkpoint(from_gguf);
  EXPECT_EQ(bytes_of(from_folder.out), bytes_of(from_gguf.out));
}

TEST(Quantize, QuantisedSourcesNeedTheirFlag) {
  EXPECT_HOLDS(refusal(options_for(demo(), "never-written.gguf", "q4_0")), "--allow-requantize");
  const TempFolder folder;
  const fs::path first = folder.path / "q8_0.gguf";
  quantize_checkpoint(options_for(hf("mixtral"), first, "q8_0"));
  QuantizeOptions options = options_for(first, folder.path / "q4_0.gguf", "q4_0");
  EXPECT_HOLDS(refusal(options), "--allow-requantize");
  EXPECT_FALSE(fs::exists(options.out));
  options.allow_requantize = true;
  const QuantizeReport report = quantize_checkpoint(options);
  EXPECT_LT(report.bytes_out, report.bytes_in);
  EXPECT_EQ(open_checkpoint(options.out).directory.at("blk.2.attn_q.weight").format, Format::kQ4_0);
  // The same type again changes nothing, and needs no flag.
  QuantizeOptions again = options_for(options.out, folder.path / "again.gguf", "q4_0");
  quantize_checkpoint(again);
  EXPECT_EQ(bytes_of(again.out), bytes_of(options.out));
}

TEST(Quantize, OutputsThatWouldBeOverwritten) {
  const TempFolder folder;
  const fs::path copy = folder.path / "copy.gguf";
  fs::copy_file(fixtures() / "gguf" / "mixtral.gguf", copy);
  EXPECT_HOLDS(refusal(options_for(copy, copy, "q8_0")), "found the same");
  QuantizeOptions force = options_for(copy, copy, "q8_0");
  force.force = true;
  EXPECT_HOLDS(refusal(force), "found the same");
  fs::create_hard_link(copy, folder.path / "link.gguf");
  EXPECT_HOLDS(refusal(options_for(copy, folder.path / "link.gguf", "q8_0")), "found the same");
  EXPECT_HOLDS(refusal(options_for(hf("mixtral"), copy, "q8_0")), "--force");
  EXPECT_HOLDS(refusal(options_for(copy, folder.path, "q8_0")), "folder");
  EXPECT_EQ(bytes_of(copy), bytes_of(fixtures() / "gguf" / "mixtral.gguf"));
  QuantizeOptions replace = options_for(hf("mixtral"), copy, "q8_0");
  replace.force = true;
  quantize_checkpoint(replace);
  EXPECT_EQ(open_checkpoint(copy).directory.at("output.weight").format, Format::kQ8_0);
}

TEST(Quantize, NumbersThatAreNoneAreRefused) {
  const TempFolder folder;
  const Checkpoint source = open_checkpoint(fixtures() / "gguf" / "mixtral.gguf");
  {
    const auto writer = make_gguf_writer(folder.path / "nan.gguf", source.gguf.metadata);
    for (const TensorInfo& t : source.directory.tensors()) writer->declare(t.name, t.format, t.shape);
    for (const TensorInfo& t : source.directory.tensors()) {
      std::vector<std::byte> bytes = source.directory.read(t);
      // BF16 0x7fc0 is a NaN.
      if (t.name == "blk.1.ffn_up_exps.weight") bytes[100] = std::byte{0xc0}, bytes[101] = std::byte{0x7f};
      writer->write(bytes);
    }
    writer->finish();
  }
  EXPECT_HOLDS(refusal(options_for(folder.path / "nan.gguf", folder.path / "out.gguf", "q8_0")),
               "blk.1.ffn_up_exps.weight");
  EXPECT_FALSE(fs::exists(folder.path / "out.gguf"));
  EXPECT_FALSE(fs::exists(folder.path / "out.gguf.partial"));
}

}  // namespace
}  // namespace ef::testing
