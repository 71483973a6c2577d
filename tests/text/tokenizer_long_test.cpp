// Long texts: encoding stops when nobody wants it any more, and what bytes alone say about the number of tokens holds.
#include <gtest/gtest.h>

#include "tests/text/tokenizer_goldens.h"

namespace ef {
namespace {

using nlohmann::json;

std::vector<std::pair<std::string, Tokenizer>> every_kind() {
  std::vector<std::pair<std::string, Tokenizer>> all;
  for (const char* name : {"demo", "qwen3", "llama2"})
    all.emplace_back(name, load_tokenizer_json_text(goldens::FullVocabulary(name).to_json(), nullptr));
  for (const char* name : {"bpe_bytes", "bpe_nfkc", "unigram_bytes", "unigram_nfkc"})
    all.emplace_back(name, load_sentencepiece_model(goldens::path_of("spm/" + std::string(name) + ".model")));
  return all;
}

std::vector<std::string> shapes(size_t bytes) {
  std::vector<std::string> all{
      std::string(bytes, 'a'), std::string(bytes, ' ') + "x", std::string(bytes, '\n'), "", "", ""};
  while (all[3].size() < bytes) all[3] += "Some words, 12 of them. ";
  while (all[4].size() < bytes) all[4] += "\xe4\xb8\xad\xe6\x96\x87";  // CJK
  while (all[5].size() < bytes) all[5] += "e\xcc\x81\xe2\x84\xaa";     // what NFC shrinks
  return all;
}

// Wherever in its course the stop is asked for, the next look ends it; and it looks all along.
TEST(TokenizerLong, EncodingStopsWhereItIsAskedTo) {
  for (const auto& [name, tokenizer] : every_kind())
    for (const std::string& text : shapes(20000)) {
      std::stop_source source;
      uint64_t looks = 0, last = 0;
      const std::function<void()> watch = [&] {
        if (++looks == last) source.request_stop();
      };
      const auto encode = [&] { tokenizer.encode(text, {true, true, StopCheck(source.get_token(), &watch)}); };
      encode();
      const uint64_t all = looks;
      EXPECT_GE(all, 100u) << name;
      for (const uint64_t at : {uint64_t(1), all / 4, all / 2, all - 1}) {
        source = std::stop_source();
        looks = 0, last = at;
        EXPECT_THROW(encode(), StoppedError) << name;
        EXPECT_EQ(looks, at) << name;
      }
    }
}

TEST(TokenizerLong, TokensAreAtLeastAsManyAsTheBytesSay) {
  size_t bounded = 0;
  for (const auto& [name, tokenizer] : every_kind()) {
    const auto most = tokenizer.most_bytes_per_token();
    if (name == "unigram_nfkc" || name == "bpe_nfkc") {
      EXPECT_FALSE(most) << name << ": its rules drop control characters and white space";
      continue;
    }
    if (!most) continue;
    ++bounded;
    std::vector<std::string> texts = shapes(4000);
    for (const std::string& text : goldens::json_of("strings.json").get<std::vector<std::string>>())
      texts.push_back(text);
    for (size_t id = 0; id < tokenizer.vocab_size(); ++id) {
      const std::string bytes = tokenizer.token_to_bytes(TokenId(id));
      if (bytes.size() + 8 >= *most) texts.push_back(bytes + bytes + bytes);
    }
    for (const std::string& text : texts)
      for (const bool special : {true, false})
        EXPECT_GE(tokenizer.encode(text, {false, special}).size() * *most, text.size()) << name << ": " << text;
  }
  EXPECT_GE(bounded, 3u);
}

// A step that may drop text, or fold any run of it into one token, leaves no bound.
TEST(TokenizerLong, WhereTextCanVanishThereIsNoBound) {
  const json plain = json::parse(R"({
    "added_tokens": [{"id": 5, "content": "<s>", "special": true, "normalized": false}],
    "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": {"type": "Fuse"},
    "model": {"type": "BPE", "unk_token": "?", "vocab": {"?": 0, "a": 1, "b": 2, "ab": 3, "aba": 4},
              "merges": ["a b", ["ab", "a"]]}})");
  const auto bound = [&](const char* pointer, const char* value) {
    json file = plain;
    file[json::json_pointer(pointer)] = json::parse(value);
    return load_tokenizer_json_text(file.dump(), nullptr).most_bytes_per_token();
  };
  EXPECT_EQ(bound("/version", "1"), 4u);
  EXPECT_EQ(bound("/model/vocab/abaabaaba", "6"), 9u);
  EXPECT_EQ(bound("/added_tokens/0/content", R"("<|a long one|>")"), 14u);
  EXPECT_EQ(bound("/normalizer", R"({"type": "NFC"})"), 16u);
  EXPECT_EQ(bound("/normalizer", R"({"type": "Prepend", "prepend": "_"})"), 4u);
  EXPECT_EQ(bound("/normalizer", R"({"type": "Replace", "pattern": {"String": "aaaaa"}, "content": "bb"})"), 12u);
  EXPECT_EQ(bound("/normalizer", R"({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]})"),
            64u);
  EXPECT_EQ(bound("/pre_tokenizer", R"({"type": "Metaspace"})"), 4u);
  EXPECT_EQ(bound("/normalizer", R"({"type": "Strip"})"), std::nullopt);
  EXPECT_EQ(bound("/normalizer", R"({"type": "Replace", "pattern": {"String": "a"}, "content": ""})"), std::nullopt);
  EXPECT_EQ(bound("/normalizer", R"({"type": "Replace", "pattern": {"Regex": "a+"}, "content": "a"})"), std::nullopt);
  EXPECT_EQ(bound("/pre_tokenizer", R"({"type": "WhitespaceSplit"})"), std::nullopt);
  EXPECT_EQ(bound("/pre_tokenizer", R"({"type": "Whitespace"})"), std::nullopt);
  EXPECT_EQ(bound("/pre_tokenizer", R"({"type": "ByteLevel"})"), 3u) << "unknown bytes are one token each";
  EXPECT_EQ(bound("/model/fuse_unk", "true"), std::nullopt);
  EXPECT_EQ(bound("/model/unk_token", "null"), std::nullopt);
  EXPECT_EQ(bound("/added_tokens/0/rstrip", "true"), std::nullopt);
  EXPECT_EQ(bound("/added_tokens/0/lstrip", "true"), std::nullopt);
}

// Every character's parts are given the most bytes that any writing of them takes; then no composed character is made
// of more than so many times its own bytes.
TEST(TokenizerLong, NormalFormsShrinkNoTextFurther) {
  const auto text_of = [](char32_t c) {
    std::string text;
    utf8_append(text, c);
    return text;
  };
  const auto parts_of = [](const std::string& text) {
    std::vector<char32_t> parts;
    for (size_t i = 0; i < text.size();) parts.push_back(utf8_next(text, i));
    return parts;
  };
  for (const auto& [composed, taken_apart] :
       {std::pair{NormalForm::kNfc, NormalForm::kNfd}, std::pair{NormalForm::kNfkc, NormalForm::kNfkd}}) {
    std::vector<uint8_t> most(0x110000);
    std::vector<std::vector<char32_t>> parts(0x110000);
    for (char32_t c = 0; c < 0x110000; ++c) {
      if (c >= 0xD800 && c <= 0xDFFF) continue;
      parts[c] = parts_of(unicode_normalize(text_of(c), taken_apart));
      ASSERT_FALSE(parts[c].empty());
      uint8_t& of_first = most[parts[c][0]];
      if (parts[c].size() == 1) of_first = std::max(of_first, uint8_t(text_of(c).size()));
    }
    for (char32_t c = 0; c < 0x110000; ++c) {
      if (parts[c].empty()) continue;
      size_t sum = 0, own = 0;
      for (const char32_t part : parts[c]) sum += most[part], own += text_of(part).size();
      const size_t bytes = text_of(c).size();
      ASSERT_GE(sum, bytes) << std::hex << uint32_t(c);
      ASSERT_LE(bytes, own * kMostUnicodeShrinking) << std::hex << uint32_t(c);
      ASSERT_LE(text_of(c).size(), unicode_lower(text_of(c)).size() * kMostUnicodeShrinking);
      if (unicode_normalize(text_of(c), composed) != text_of(c)) continue;
      size_t written = 0;
      for (const char32_t part : parts_of(unicode_normalize(text_of(c), NormalForm::kNfd))) written += most[part];
      ASSERT_LE(written, bytes * kMostUnicodeShrinking) << std::hex << uint32_t(c);
    }
  }
}

}  // namespace
}  // namespace ef
