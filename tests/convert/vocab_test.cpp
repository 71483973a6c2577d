// Vocabularies of published tokenizers in the other file kind: names and types as llama.cpp's converter writes them,
// token ids as Hugging Face's and llama.cpp's own tokenizers give them.
#include "expertflow/convert/vocab.h"

#include <gtest/gtest.h>

#include <fstream>

#include "expertflow/base/errors.h"
#include "expertflow/engine/text_model.h"
#include "tests/support/golden.h"
#include "tests/support/temp_folder.h"
#include "tests/text/tokenizer_goldens.h"

namespace ef::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

void write(const fs::path& file, const std::string& text) { std::ofstream(file, std::ios::binary) << text; }

/// A folder with this tokenizer, as a source of `vocab` ids.
SourceModel source_in(const fs::path& folder, int vocab) {
  SourceModel source;
  source.checkpoint.kind = Checkpoint::Kind::kHuggingFace;
  source.checkpoint.path = folder;
  source.config.vocab = vocab;
  return source;
}

SourceModel gguf_source(const GgufMetadata& metadata) {
  SourceModel source;
  source.checkpoint.kind = Checkpoint::Kind::kGguf;
  source.checkpoint.gguf.metadata = metadata;
  source.config.context_length = 128;
  return source;
}

GgufMetadata to_gguf(const SourceModel& source) {
  GgufMetadata metadata;
  std::vector<std::string> notes;
  write_gguf_vocabulary(source, "", metadata, notes);
  return metadata;
}

// The demo's small vocabulary under the pre-tokenizers of published models; their names are llama.cpp's.
TEST(Vocab, ByteLevelTokenizersThereAndBack) {
  const auto strings = goldens::json_of("llama_cpp.json")["strings"].get<std::vector<std::string>>();
  for (const auto& [name, pre] :
       {std::pair{"qwen3", "qwen2"}, std::pair{"deepseek_v3", "deepseek-v3"}, std::pair{"gptoss", "gpt-4o"}}) {
    SCOPED_TRACE(name);
    const TempFolder folder;
    goldens::FullVocabulary full("demo");
    full.skeleton["pre_tokenizer"] = goldens::json_of(std::string(name) + "/skeleton.json")["pre_tokenizer"];
    write(folder.path / "tokenizer.json", full.to_json());
    const GgufVocab expected = full.to_gguf();
    const size_t padded = expected.tokens.size() + 5;
    const GgufMetadata metadata = to_gguf(source_in(folder.path, int(padded)));
    EXPECT_EQ(metadata.str("tokenizer.ggml.model"), "gpt2");
    EXPECT_EQ(metadata.str("tokenizer.ggml.pre"), pre);
    std::vector<std::string> tokens = metadata.strings("tokenizer.ggml.tokens");
    std::vector<int64_t> types = metadata.integers("tokenizer.ggml.token_type");
    ASSERT_EQ(tokens.size(), padded);
    ASSERT_EQ(types.size(), padded);
    EXPECT_EQ(tokens.back(), fmt::format("[PAD{}]", padded - 1));
    EXPECT_EQ(types.back(), 5);
    tokens.resize(expected.tokens.size());
    types.resize(expected.tokens.size());
    EXPECT_EQ(tokens, expected.tokens);
    EXPECT_EQ(types, expected.token_types);
    EXPECT_EQ(metadata.strings("tokenizer.ggml.merges"), expected.merges);

    std::vector<std::pair<std::string, std::string>> files;
    std::vector<std::string> notes;
    write_hf_vocabulary(gguf_source(metadata), "", files, notes);
    ASSERT_EQ(files.size(), 2u);
    EXPECT_EQ(files[0].first, "tokenizer.json");
    EXPECT_EQ(json::parse(files[0].second)["model"]["merges"].size(), expected.merges.size());
    const Tokenizer original = load_tokenizer_json_text(full.to_json(), nullptr);
    const Tokenizer result = load_tokenizer_json_text(files[0].second, json::parse(files[1].second));
    for (const std::string& text : strings)
      EXPECT_EQ(result.encode(text, {.add_special = false}), original.encode(text, {.add_special = false})) << text;
  }
}

TEST(Vocab, LlamaTokenizerOfTokenizerJsonThereAndBack) {
  const TempFolder folder;
  const goldens::FullVocabulary full("llama2");
  write(folder.path / "tokenizer.json", full.to_json());
  const GgufMetadata metadata = to_gguf(source_in(folder.path, int(full.tokens.size())));
  EXPECT_EQ(metadata.str("tokenizer.ggml.model"), "llama");
  const auto types = metadata.integers("tokenizer.ggml.token_type");
  EXPECT_EQ(types[0], 2);
  EXPECT_EQ(types[1], 3);
  EXPECT_EQ(types[3], 6);
  EXPECT_EQ(types[300], 1);
  std::vector<std::pair<std::string, std::string>> files;
  std::vector<std::string> notes;
  write_hf_vocabulary(gguf_source(metadata), "", files, notes);
  // The original's own ids are checked against Hugging Face's in tests/text.
  const Tokenizer original = load_tokenizer_json_text(full.to_json(), nullptr);
  const Tokenizer there = load_gguf_tokenizer(gguf_vocab(metadata));
  const Tokenizer back = load_tokenizer_json_text(files[0].second, json::parse(files[1].second));
  const auto strings = goldens::json_of("llama_cpp.json")["strings"].get<std::vector<std::string>>();
  for (const std::string& text : strings) {
    EXPECT_EQ(there.encode(text), original.encode(text)) << text;
    EXPECT_EQ(back.encode(text), original.encode(text)) << text;
  }
}

TEST(Vocab, SentencePieceModels) {
  const TempFolder folder;
  fs::copy_file(goldens::path_of("spm/bpe_bytes.model"), folder.path / "tokenizer.model");
  const size_t size = load_sentencepiece_model(folder.path / "tokenizer.model").vocab_size();
  const GgufMetadata metadata = to_gguf(source_in(folder.path, int(size)));
  EXPECT_EQ(metadata.str("tokenizer.ggml.model"), "llama");
  EXPECT_EQ(metadata.strings("tokenizer.ggml.tokens").size(), size);
  EXPECT_EQ(metadata.numbers("tokenizer.ggml.scores").size(), size);
  // Unigram has no form in a GGUF that this engine reads.
  fs::remove(folder.path / "tokenizer.model");
  fs::copy_file(goldens::path_of("spm/unigram_bytes.model"), folder.path / "tokenizer.model");
  EXPECT_THROW(to_gguf(source_in(folder.path, int(size))), ModelError);
}

TEST(Vocab, TheBundledModelsTokenizerTemplateAndEnds) {
  const Checkpoint demo = open_checkpoint(std::string(EF_SOURCE_DIR) + "/models/demo/demo-Q5_K_M.gguf");
  std::vector<std::pair<std::string, std::string>> files;
  std::vector<std::string> notes;
  SourceModel source = gguf_source(demo.gguf.metadata);
  write_hf_vocabulary(source, "", files, notes);
  const json config = json::parse(files[1].second);
  EXPECT_EQ(config["eos_token"], "<|endoftext|>");
  EXPECT_EQ(config["add_bos_token"], false);
  EXPECT_EQ(config["chat_template"], demo.gguf.metadata.str("tokenizer.chat_template"));

  const TempFolder folder;
  for (const auto& [name, text] : files) write(folder.path / name, text);
  SourceModel back = source_in(folder.path, int(demo.gguf.metadata.strings("tokenizer.ggml.tokens").size()));
  back.config.eos = {0, 2};
  const GgufMetadata metadata = to_gguf(back);
  for (const char* key : {"tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.ggml.token_type",
                          "tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.ggml.bos_token_id",
                          "tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                          "tokenizer.ggml.padding_token_id", "tokenizer.ggml.add_bos_token", "tokenizer.chat_template"})
    EXPECT_EQ(metadata.values.at(key).value, demo.gguf.metadata.values.at(key).value) << key;
}

TEST(Vocab, WhatHasNoNameIsRefused) {
  const TempFolder folder;
  goldens::FullVocabulary full("demo");
  full.skeleton["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "[aeiou]+";
  write(folder.path / "tokenizer.json", full.to_json());
  SourceModel source = source_in(folder.path, int(full.tokens.size()));
  try {
    to_gguf(source);
    FAIL() << "not refused";
  } catch (const ModelError& error) {
    EXPECT_NE(std::string(error.what()).find("--tokenizer-pre"), std::string::npos) << error.what();
  }
  // A name that cuts texts otherwise is refused too.
  GgufMetadata metadata;
  std::vector<std::string> notes;
  EXPECT_THROW(write_gguf_vocabulary(source, "qwen2", metadata, notes), ModelError);
  // More tokens than the model has rows for.
  EXPECT_THROW(to_gguf(source_in(folder.path, 100)), ModelError);
}

TEST(Vocab, NoTokenizerStaysNone) {
  const TempFolder folder;
  EXPECT_EQ(to_gguf(source_in(folder.path, 10)).str("tokenizer.ggml.model"), "none");
}

}  // namespace
}  // namespace ef::testing
