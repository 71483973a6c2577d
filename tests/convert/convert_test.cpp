// Conversion between file kinds: against the files that llama.cpp's own converter made of the same checkpoints, and
// against the golden outputs of Hugging Face.
#include "expertflow/convert/convert.h"

#include <gtest/gtest.h>

#include <functional>

#include "expertflow/base/errors.h"
#include "expertflow/model/arch.h"
#include "tests/support/golden_check.h"
#include "tests/support/temp_folder.h"

namespace ef::testing {
namespace {

namespace fs = std::filesystem;

fs::path hf(const std::string& name) { return fixtures() / "hf" / name; }
fs::path gguf(const std::string& name) { return fixtures() / "gguf" / (name + ".gguf"); }

ConvertReport convert(const fs::path& in, const fs::path& out, const std::string& type = "source") {
  ConvertOptions options;
  options.in = in, options.out = out, options.type = type;
  options.threads = 2;
  options.buffer_bytes = 3000;  // several runs of rows in the small fixtures
  return convert_checkpoint(options);
}

Fixture fixture(const fs::path& model, const std::string& name) {
  const bool tied = name.find("tied") != std::string::npos;
  return {name, model, hf(name) / "golden.safetensors", tied ? 1e-3 : 1e-4, false};
}

void expect_golden(const fs::path& model, const std::string& name) {
  const Fixture f = fixture(model, name);
  const FixtureReport report = check_fixture(f, "resident");
  EXPECT_TRUE(report.pass(f)) << name << ": " << report.text();
}

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

// What GGUF can carry, all ten families among it.
constexpr const char* kCarried[] = {"mixtral",
                                    "mixtral-tied-sharded",
                                    "mixtral-sliding",
                                    "mixtral-rope-linear",
                                    "mixtral-rope-llama3",
                                    "qwen2_moe",
                                    "qwen3_moe",
                                    "qwen3_moe-fp8",
                                    "olmoe",
                                    "deepseek_v2",
                                    "deepseek_v2-grouped",
                                    "deepseek_v2-yarn-mscale",
                                    "deepseek_v3",
                                    "deepseek_v3-yarn-mscale",
                                    "gpt_oss",
                                    "gpt_oss-mxfp4-clamp",
                                    "phimoe",
                                    "granitemoe",
                                    "glm4_moe"};

TEST(Convert, FolderToGgufAndBackMeetsTheGoldens) {
  for (const std::string name : kCarried) {
    SCOPED_TRACE(name);
    const TempFolder folder;
    const fs::path file = folder.path / "model.gguf", back = folder.path / "back";
    // FP8 in BF16 is rounded; in F32 it is not.
    const std::string type = name == "qwen3_moe-fp8" ? "f32" : "source";
    const ConvertReport there = convert(hf(name), file, type);
    EXPECT_TRUE(there.to_gguf);
    expect_golden(file, name);
    EXPECT_FALSE(convert(file, back).to_gguf);
    expect_golden(back, name);
  }
}

TEST(Convert, TensorsAndKeysAreLlamaCppsOwn) {
  for (const auto& entry : fs::directory_iterator(fixtures() / "gguf")) {
    const std::string name = entry.path().stem().string();
    SCOPED_TRACE(name);
    const TempFolder folder;
    convert(hf(name), folder.path / "model.gguf");
    const Checkpoint theirs = open_checkpoint(entry.path()), ours = open_checkpoint(folder.path / "model.gguf");
    EXPECT_EQ(ours.directory.tensors().size(), theirs.directory.tensors().size());
    for (const TensorInfo& t : theirs.directory.tensors()) {
      const TensorInfo* o = ours.directory.find(t.name);
      ASSERT_NE(o, nullptr) << t.name;
      EXPECT_EQ(o->shape, t.shape) << t.name;
      if (name == "gpt_oss-mxfp4-clamp" && t.format == Format::kF32) {  // theirs was made with --outtype f32
        EXPECT_EQ(ours.directory.read_f32(*o), theirs.directory.read_f32(t)) << t.name;
        continue;
      }
      EXPECT_EQ(o->format, t.format) << t.name;
      EXPECT_TRUE(ours.directory.read(*o) == theirs.directory.read(t)) << t.name;
    }
    for (const auto& [key, value] : theirs.gguf.metadata.values) {
      if (key == "general.name" || key == "general.size_label") continue;  // of the folder's name, and for people
      const GgufValue* o = ours.gguf.metadata.find(key);
      ASSERT_NE(o, nullptr) << key;
      EXPECT_EQ(o->type, value.type) << key;
      EXPECT_EQ(o->value, value.value) << key;
    }
  }
}

TEST(Convert, GgufOfLlamaCppToFolderMeetsTheGoldens) {
  for (const auto& entry : fs::directory_iterator(fixtures() / "gguf")) {
    const std::string name = entry.path().stem().string();
    const TempFolder folder;
    convert(entry.path(), folder.path / "model");
    expect_golden(folder.path / "model", name);
  }
}

TEST(Convert, RoundTripKeepsEveryNumber) {
  for (const std::string name : {"mixtral", "granitemoe", "deepseek_v3", "gpt_oss", "gpt_oss-mxfp4-clamp", "phimoe"}) {
    SCOPED_TRACE(name);
    const TempFolder folder;
    convert(hf(name), folder.path / "model.gguf");
    convert(folder.path / "model.gguf", folder.path / "back");
    const Checkpoint first = open_checkpoint(hf(name)), last = open_checkpoint(folder.path / "back");
    size_t compared = 0;
    for (const TensorInfo& t : first.directory.tensors()) {
      const TensorInfo* o = last.directory.find(t.name);
      if (!o && name == "deepseek_v3") continue;  // prediction layers are left out
      ASSERT_NE(o, nullptr) << t.name;
      EXPECT_EQ(o->shape, t.shape) << t.name;
      ++compared;
      if (has_arithmetic(t.format)) {
        EXPECT_EQ(last.directory.read_f32(*o), first.directory.read_f32(t)) << t.name;
      } else {
        EXPECT_EQ(last.directory.read(*o), first.directory.read(t)) << t.name;
      }
    }
    EXPECT_EQ(compared, last.directory.tensors().size());
  }
}

TEST(Convert, TypesOfMatrices) {
  const TempFolder folder;
  for (const auto& [type, format] :
       {std::pair{"f32", Format::kF32}, std::pair{"f16", Format::kF16}, std::pair{"bf16", Format::kBF16}}) {
    const fs::path file = folder.path / (std::string(type) + ".gguf"), back = folder.path / type;
    convert(hf("qwen3_moe"), file, type);
    const Checkpoint result = open_checkpoint(file);
    EXPECT_EQ(result.directory.at("blk.1.ffn_up_exps.weight").format, format);
    EXPECT_EQ(result.directory.at("token_embd.weight").format, format);
    for (const char* name : {"blk.1.ffn_gate_inp.weight", "blk.1.attn_q_norm.weight", "output_norm.weight"})
      EXPECT_EQ(result.directory.at(name).format, Format::kF32) << name;
    EXPECT_EQ(result.gguf.metadata.integer("general.file_type"), format == Format::kF32   ? 0
                                                                 : format == Format::kF16 ? 1
                                                                                          : 32);
    convert(file, back, type);
    const Checkpoint folder_result = open_checkpoint(back);
    for (const TensorInfo& t : folder_result.directory.tensors()) EXPECT_EQ(t.format, format) << t.name;
  }
  expect_golden(folder.path / "f32.gguf", "qwen3_moe");
  expect_golden(folder.path / "bf16", "qwen3_moe");
  // FP8 has no place in a GGUF: BF16 unless F32 is asked for.
  convert(hf("qwen3_moe-fp8"), folder.path / "fp8.gguf");
  EXPECT_EQ(open_checkpoint(folder.path / "fp8.gguf").directory.at("blk.0.ffn_up_exps.weight").format, Format::kBF16);
}

TEST(Convert, WhatGgufCannotCarryIsRefused) {
  const TempFolder folder;
  const fs::path out = folder.path / "model.gguf";
  for (const auto& [name, part] :
       {std::pair{"mixtral-rope-dynamic", "dynamic"}, std::pair{"qwen3_moe-mixed-layers", "layer 0 is dense"},
        std::pair{"phimoe-longrope", "rope: at"}}) {
    const std::string message = message_of([&] { convert(hf(name), out); });
    EXPECT_NE(message.find(part), std::string::npos) << message;
    EXPECT_NE(message.find(name), std::string::npos) << message;
    EXPECT_THROW(convert(hf(name), out), ModelError);
  }
  EXPECT_TRUE(fs::is_empty(folder.path));
}

TEST(Convert, BlockFormatsNeedATypeOnTheWayToAFolder) {
  const TempFolder folder;
  const std::string demo = std::string(EF_SOURCE_DIR) + "/models/demo/demo-Q5_K_M.gguf";
  const std::string message = message_of([&] { convert(demo, folder.path / "demo"); });
  EXPECT_NE(message.find("--type"), std::string::npos) << message;
  EXPECT_FALSE(fs::exists(folder.path / "demo"));
}

TEST(Convert, OutputsThatWouldBeOverwritten) {
  const TempFolder folder;
  const fs::path copy = folder.path / "copy.gguf", out = folder.path / "out.gguf";
  fs::copy_file(gguf("mixtral"), copy);
  EXPECT_THROW(convert(copy, copy), ConfigError);
  EXPECT_THROW(convert(copy, out), ConfigError);
  EXPECT_THROW(convert(hf("mixtral"), folder.path / "folder"), ConfigError);
  EXPECT_THROW(convert(hf("mixtral"), folder.path / "missing" / "out.gguf"), ConfigError);
  EXPECT_THROW(convert(hf("mixtral"), copy), ConfigError);
  EXPECT_THROW(convert(copy, folder.path), ConfigError) << "a folder with files";
  EXPECT_THROW(convert(hf("mixtral"), out, "q8_0"), ConfigError);
  EXPECT_EQ(fs::file_size(copy), fs::file_size(gguf("mixtral")));
  ConvertOptions force;
  force.in = hf("mixtral"), force.out = copy, force.force = true, force.threads = 1;
  convert_checkpoint(force);
  expect_golden(copy, "mixtral");
  fs::create_directory(folder.path / "empty");
  convert(copy, folder.path / "empty");
  expect_golden(folder.path / "empty", "mixtral");
}

TEST(Convert, AShardedFolder) {
  const TempFolder folder;
  ConvertOptions options;
  options.in = gguf("qwen2_moe"), options.out = folder.path / "model", options.shard_bytes = 100000;
  options.threads = 1;
  convert_checkpoint(options);
  EXPECT_TRUE(fs::exists(options.out / "model.safetensors.index.json"));
  expect_golden(options.out, "qwen2_moe");
}

}  // namespace
}  // namespace ef::testing
