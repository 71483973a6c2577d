// Normalizers, pre-tokenizers, decoders and small whole tokenizers, each against Hugging Face's library (Oniguruma runs
// its patterns).
#include <gtest/gtest.h>

#include "expertflow/text/pretok.h"
#include "expertflow/text/tokenizer_decoder.h"
#include "expertflow/text/tokenizer_normalizer.h"
#include "tests/text/tokenizer_goldens.h"

namespace ef {
namespace {

using nlohmann::json;

class TokenizerComponents : public ::testing::Test {
 protected:
  const json golden_ = goldens::json_of("components.json");
  const std::vector<std::string> strings_ = golden_["strings"];
};

TEST_F(TokenizerComponents, Normalizers) {
  ASSERT_GE(golden_["normalizers"].size(), 12u);
  for (const json& entry : golden_["normalizers"]) {
    const auto normalizer = make_normalizer({entry["config"], "normalizer"});
    for (size_t i = 0; i < strings_.size(); ++i) {
      EXPECT_EQ(normalizer->apply(strings_[i], {}), entry["texts"][i].get<std::string>())
          << entry["config"] << " on " << json(strings_[i]);
    }
  }
}

TEST_F(TokenizerComponents, PreTokenizers) {
  ASSERT_GE(golden_["pretokenizers"].size(), 30u);
  for (const json& entry : golden_["pretokenizers"]) {
    const auto pretokenizer = make_pretokenizer({entry["config"], "pre_tokenizer"});
    int wrong = 0;
    for (size_t i = 0; i < strings_.size() && wrong < 5; ++i) {
      PreTokenized pre{strings_[i], {{0, strings_[i].size(), true}}};
      pretokenizer->apply(pre);
      json pieces = json::array();
      for (const auto& piece : pre.pieces) pieces.push_back(std::string(pre.view(piece)));
      if (pieces == entry["pieces"][i]) continue;
      ++wrong;
      ADD_FAILURE() << entry["name"] << " on " << json(strings_[i]) << "\n expected " << entry["pieces"][i]
                    << "\n found    " << pieces;
    }
  }
}

TEST_F(TokenizerComponents, Decoders) {
  for (const json& entry : golden_["decoders"]) {
    const Decoder decoder(fields::Node{entry["config"], "decoder"});
    for (size_t i = 0; i < entry["lists"].size(); ++i) {
      std::vector<DecoderToken> tokens;
      for (const json& text : entry["lists"][i]) tokens.push_back({text.get<std::string>()});
      EXPECT_EQ(decoder.decode(tokens), entry["texts"][i].get<std::string>())
          << entry["config"] << " on " << entry["lists"][i];
    }
  }
}

TEST_F(TokenizerComponents, SmallTokenizers) {
  ASSERT_GE(golden_["small"].size(), 14u);
  for (const json& entry : golden_["small"]) {
    const Tokenizer tokenizer = load_tokenizer_json_text(entry["json"].dump(), nullptr);
    for (const json& result : entry["results"]) {
      const auto ids = tokenizer.encode(result["text"].get<std::string>());
      EXPECT_EQ(json(ids), result["ids"]) << entry["name"] << " on " << result["text"];
      const auto expected = result["ids"].get<std::vector<TokenId>>();
      EXPECT_EQ(tokenizer.decode(expected, false), result["decoded"].get<std::string>())
          << entry["name"] << " on " << result["text"];
      EXPECT_EQ(tokenizer.decode(expected, true), result["skipped"].get<std::string>())
          << entry["name"] << " on " << result["text"];
    }
  }
}

}  // namespace
}  // namespace ef
