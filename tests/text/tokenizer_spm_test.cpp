// SentencePiece .model files: four tiny models (BPE and unigram, with and without charsmap, byte fallback, user-defined
// pieces), ids by Debian's spm_encode 0.1.97.
#include <gtest/gtest.h>

#include "expertflow/base/errors.h"
#include "expertflow/text/spm.h"
#include "tests/text/tokenizer_goldens.h"

namespace ef {
namespace {

class SentencePieceModels : public ::testing::TestWithParam<const char*> {};

TEST_P(SentencePieceModels, Ids) {
  const std::string name = GetParam();
  const Tokenizer tokenizer = load_sentencepiece_model(goldens::path_of("spm/" + name + ".model"));
  const auto strings = goldens::lines_of("spm/strings.txt");
  const auto lines = goldens::lines_of("spm/" + name + ".ids");
  ASSERT_EQ(strings.size(), lines.size());
  ASSERT_GE(strings.size(), 400u);
  int wrong = 0;
  for (size_t i = 0; i < strings.size() && wrong < 10; ++i) {
    std::string line;
    for (const TokenId id : tokenizer.encode(strings[i], {.add_special = false, .parse_special = false})) {
      line += (line.empty() ? "" : " ") + std::to_string(id);
    }
    if (line == lines[i]) continue;
    ++wrong;
    ADD_FAILURE() << nlohmann::json(strings[i]).dump() << "\n expected " << lines[i] << "\n found    " << line;
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, SentencePieceModels,
                         ::testing::Values("bpe_bytes", "bpe_nfkc", "unigram_nfkc", "unigram_bytes"),
                         [](const auto& info) { return std::string(info.param); });

TEST(SentencePieceModel, SpecialTokensAndThoseOfTokenizerConfig) {
  const std::string path = goldens::path_of("spm/bpe_bytes.model");
  const Tokenizer plain = load_sentencepiece_model(path);
  EXPECT_EQ(plain.bos(), 1);
  EXPECT_EQ(plain.eog(), (std::vector<TokenId>{2}));
  EXPECT_TRUE(plain.add_bos());
  EXPECT_EQ(plain.decode(plain.encode("Hello,  world")), "Hello,  world");
  const auto size = static_cast<TokenId>(plain.vocab_size());
  nlohmann::json config = {{"eos_token", "<|im_end|>"}, {"add_bos_token", false}};
  config["added_tokens_decoder"]["1"] = {{"content", "<s>"}, {"special", true}, {"normalized", false}};
  config["added_tokens_decoder"][std::to_string(size)] = {
      {"content", "<|im_end|>"}, {"special", true}, {"normalized", false}};
  const Tokenizer tokenizer = load_sentencepiece_model(path, config);
  EXPECT_EQ(tokenizer.encode("<s><|im_end|>"), (std::vector<TokenId>{1, size}));
  EXPECT_EQ(tokenizer.eog(), (std::vector<TokenId>{2, size}));
  EXPECT_EQ(tokenizer.eos(), size);
  config["added_tokens_decoder"]["x"] = {{"content", "y"}};
  EXPECT_THROW(load_sentencepiece_model(path, config), ModelError);
}

}  // namespace
}  // namespace ef
