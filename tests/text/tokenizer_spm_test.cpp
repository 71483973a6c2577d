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

}  // namespace
}  // namespace ef
