// Cases known from other engines' bug reports, on small tokenizers worked out by hand and on the full vocabularies of
// the archive.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "expertflow/base/errors.h"
#include "tests/text/tokenizer_goldens.h"

namespace ef {
namespace {

using nlohmann::json;

json tiny_json(const std::vector<std::string>& more = {}, const json& merges = json::array()) {
  json vocab = json::object();
  for (int byte = 0; byte < 256; ++byte) {
    std::string text;
    utf8_append(text, byte_to_printable(static_cast<unsigned char>(byte)));
    vocab[text] = byte;
  }
  for (const auto& text : more) vocab[text] = vocab.size();
  return {{"added_tokens",
           {{{"id", 1000}, {"content", "<s>"}, {"special", true}, {"normalized", false}},
            {{"id", 1001}, {"content", "</s>"}, {"special", true}, {"normalized", false}},
            {{"id", 1002}, {"content", "<|eot|>"}, {"special", true}, {"normalized", false}}}},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
}

Tokenizer demo() { return load_tokenizer_json_text(goldens::FullVocabulary("demo").to_json(), nullptr); }

TEST(TokenizerCases, D1_TokensMayHoldPartsOfACharacter) {
  const Tokenizer tokenizer = load_tokenizer_json_text(tiny_json().dump(), nullptr);
  const std::string emoji = "\xF0\x9F\x98\x80";
  const auto ids = tokenizer.encode(emoji);
  ASSERT_EQ(ids, (std::vector<TokenId>{0xF0, 0x9F, 0x98, 0x80}));
  std::string bytes;
  for (const TokenId id : ids) bytes += tokenizer.token_to_bytes(id);
  EXPECT_EQ(bytes, emoji);
  EXPECT_EQ(tokenizer.decode(ids), emoji);
  EXPECT_EQ(tokenizer.decode(std::vector<TokenId>{0xF0, 0x9F, 'a'}),
            "\xEF\xBF\xBD"
            "a");
  EXPECT_EQ(tokenizer.token_to_bytes(0xF0), "\xF0");
  EXPECT_EQ(tokenizer.token_to_bytes(500), "") << "an id between the tokens";
  EXPECT_EQ(tokenizer.token_to_bytes(-1), "");
}

TEST(TokenizerCases, D2_ExactlyOneBos) {
  const Tokenizer tokenizer =
      load_tokenizer_json_text(tiny_json().dump(), {{"bos_token", "<s>"}, {"add_bos_token", true}});
  ASSERT_TRUE(tokenizer.add_bos());
  const EncodeOptions bare{.add_special = false};
  for (const char* prompt : {"hi", "<s>hi", "<s><s>hi"}) {
    auto ids = tokenizer.encode(prompt, bare);
    tokenizer.ensure_one_bos(ids);
    EXPECT_EQ(ids, (std::vector<TokenId>{1000, 'h', 'i'})) << prompt;
  }
  std::vector<TokenId> none;
  tokenizer.ensure_one_bos(none);
  EXPECT_EQ(none, (std::vector<TokenId>{1000}));
  // A tokenizer that adds none leaves the template's word alone.
  const Tokenizer plain = load_tokenizer_json_text(tiny_json().dump(), {{"bos_token", "<s>"}});
  EXPECT_FALSE(plain.add_bos());
  auto ids = plain.encode("<s>hi", bare);
  plain.ensure_one_bos(ids);
  EXPECT_EQ(ids, (std::vector<TokenId>{1000, 'h', 'i'}));
  ids = {'h'};
  plain.ensure_one_bos(ids);
  EXPECT_EQ(ids, (std::vector<TokenId>{'h'}));
}

TEST(TokenizerCases, D2_ConfigurationDecidesOverTheTemplate) {
  json file = tiny_json();
  file["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
      {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {1000}}, {"tokens", {"<s>"}}}}}}};
  const std::string text = file.dump();
  EXPECT_TRUE(load_tokenizer_json_text(text, nullptr).add_bos());
  EXPECT_EQ(load_tokenizer_json_text(text, nullptr).bos(), 1000);
  EXPECT_EQ(load_tokenizer_json_text(text, {{"bos_token", {{"content", "<s>"}}}, {"add_bos_token", true}}).encode("a"),
            (std::vector<TokenId>{1000, 'a'}));
  EXPECT_EQ(load_tokenizer_json_text(text, {{"bos_token", "<s>"}, {"add_bos_token", false}}).encode("a"),
            (std::vector<TokenId>{'a'}));
  EXPECT_EQ(load_tokenizer_json_text(text, {{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"add_eos_token", true}})
                .encode("a"),
            (std::vector<TokenId>{1000, 'a', 1001}));
}

// The vocabulary of npm's tokenizer-llama2 is Mistral's and Mixtral's. "Hello" has the prefix at the start and after a
// special token.
TEST(TokenizerCases, D3_SentencePieceSpacePrefix) {
  const Tokenizer tokenizer = load_tokenizer_json_text(goldens::FullVocabulary("llama2").to_json(),
                                                       {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
  EXPECT_EQ(tokenizer.encode("Hello world"), (std::vector<TokenId>{1, 22557, 1526}));
  EXPECT_EQ(tokenizer.encode("<s>Hello</s>Hello", {.add_special = false}), (std::vector<TokenId>{1, 22557, 2, 22557}));
  EXPECT_EQ(tokenizer.decode(std::vector<TokenId>{1, 22557, 1526}), "Hello world");
  EXPECT_EQ(tokenizer.token_to_bytes(22557, true), "Hello");
  EXPECT_EQ(tokenizer.token_to_bytes(22557), " Hello");
  EXPECT_EQ(tokenizer.token_to_bytes(3 + 0x0A), "\n");
  EXPECT_TRUE(tokenizer.is_special(2));
  EXPECT_EQ(tokenizer.eog(), (std::vector<TokenId>{2}));
}

// The ids of Qwen's published vocabulary by Hugging Face's library.
TEST(TokenizerCases, D5_Qwen2PreTokenizerOnCodeAndDigits) {
  const Tokenizer tokenizer = load_tokenizer_json_text(goldens::FullVocabulary("qwen3").to_json(), nullptr);
  const std::vector<std::pair<std::string, std::vector<TokenId>>> cases = {
      {"->", {405}},
      {"a->b", {64, 405, 65}},
      {"(x):\n", {2075, 982}},
      {"def f(x):\n    return x\n", {750, 282, 2075, 982, 262, 470, 856, 198}},
      {"12345", {16, 17, 18, 19, 20}},
      {" 12345", {220, 16, 17, 18, 19, 20}},
      {"3.14", {18, 13, 16, 19}},
      {"f(x)->y", {69, 2075, 3997, 88}},
      {"if (x):\n\n\treturn", {333, 320, 87, 7731, 853}},
      {"it's IT'S", {275, 594, 8700, 13272}},
  };
  for (const auto& [text, ids] : cases) EXPECT_EQ(tokenizer.encode(text), ids) << text;
}

TEST(TokenizerCases, D9_EndOfSequenceIdsAreUnited) {
  const auto from_config = token_ids_from_json(json(1001), "config.json: eos_token_id");
  const auto from_generation = token_ids_from_json(json({1002, 1001}), "generation_config.json: eos_token_id");
  EXPECT_EQ(union_of_ids({from_config, from_generation}), (std::vector<TokenId>{1001, 1002}));
  EXPECT_TRUE(token_ids_from_json(nullptr, "x").empty());
  for (const json& bad : {json("2"), json(-1), json(1.5), json({1, "2"}), json(int64_t{1} << 40), json::object()}) {
    EXPECT_THROW(token_ids_from_json(bad, "config.json: eos_token_id"), ModelError) << bad;
  }
  const Tokenizer tokenizer =
      load_tokenizer_json_text(tiny_json().dump(), {{"eos_token", "</s>"}}).with_eog(from_generation);
  EXPECT_EQ(tokenizer.eog(), (std::vector<TokenId>{1001, 1002}));
  EXPECT_TRUE(tokenizer.is_eog(1002));
  EXPECT_FALSE(tokenizer.is_eog(1000));
}

TEST(TokenizerCases, D9_FolderUnitesTokenizerConfigAndGenerationConfig) {
  const auto folder = std::filesystem::temp_directory_path() / fmt::format("ef-tokenizer-folder-{}", ::getpid());
  std::filesystem::create_directories(folder);
  const auto write = [&](const char* name, const std::string& text) { std::ofstream(folder / name) << text; };
  EXPECT_THROW(load_tokenizer_folder(folder), ModelError);
  write("tokenizer.json", tiny_json().dump());
  write("tokenizer_config.json", R"({"eos_token": "</s>", "bos_token": null})");
  write("config.json", R"({"eos_token_id": 7})");
  write("generation_config.json", R"({"eos_token_id": [1002, 7]})");
  EXPECT_EQ(load_tokenizer_folder(folder).eog(), (std::vector<TokenId>{7, 1001, 1002}));
  write("generation_config.json", R"({"eos_token_id": "x"})");
  EXPECT_THROW(load_tokenizer_folder(folder), ModelError);
  std::filesystem::remove_all(folder);
}

TEST(TokenizerCases, SpecialTextIsPlainTextWhenAsked) {
  const Tokenizer tokenizer = demo();
  EXPECT_EQ(tokenizer.encode("<|im_start|>").size(), 1u);
  const auto plain = tokenizer.encode("<|im_start|>", {.parse_special = false});
  EXPECT_GT(plain.size(), 1u);
  EXPECT_EQ(tokenizer.decode(plain), "<|im_start|>");
}

TEST(TokenizerCases, IllFormedTextBecomesReplacementCharacters) {
  const Tokenizer tokenizer = load_tokenizer_json_text(tiny_json().dump(), nullptr);
  const std::vector<TokenId> replacement = {0xEF, 0xBF, 0xBD};
  for (const char* text : {"\xFF", "\xC3", "\xF0\x9F\x98", "\x80"})
    EXPECT_EQ(tokenizer.encode(text), replacement) << text;
  EXPECT_EQ(utf8_lossy("\xED\xA0\x80"), "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD")
      << "a surrogate is three ill-formed bytes";
  EXPECT_EQ(utf8_lossy("a\xF0\x9F\x98z"), "a\xEF\xBF\xBDz") << "a cut character is one part";
}

TEST(TokenizerCases, RandomBytesEncodeAndDecode) {
  std::vector<Tokenizer> tokenizers = {demo(),
                                       load_tokenizer_json_text(goldens::FullVocabulary("llama2").to_json(), nullptr),
                                       load_sentencepiece_model(goldens::path_of("spm/unigram_nfkc.model")),
                                       load_sentencepiece_model(goldens::path_of("spm/bpe_nfkc.model"))};
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    std::string text(random() % 200, ' ');
    for (char& c : text)
      c = static_cast<char>(round % 3 == 0 ? random()
                                           : (random() % 4 == 0 ? 0x80 + random() % 128 : 32 + random() % 90));
    for (const Tokenizer& tokenizer : tokenizers) {
      const auto ids = tokenizer.encode(text);
      for (const TokenId id : ids) ASSERT_LT(static_cast<size_t>(id), tokenizer.vocab_size());
      ASSERT_TRUE(utf8_valid(tokenizer.decode(ids, false)));
    }
    // The demo's alphabet is complete: nothing is lost.
    ASSERT_EQ(tokenizers[0].decode(tokenizers[0].encode(text, {.parse_special = false}), false), utf8_lossy(text));
  }
}

// A quadratic merge, regular expression or normalisation would take minutes to hours on these.
void encode_long_words(const Tokenizer& tokenizer, size_t size, bool folds_spaces = false) {
  std::string marks = "a";
  while (marks.size() < size) marks += "\xCC\x81\xCC\xA3\xCD\x85";  // not in canonical order
  for (const char c : {'a', ' ', '<'}) {
    const std::string text(size, c);
    const auto ids = tokenizer.encode(text, {.add_special = false});
    EXPECT_TRUE(tokenizer.decode(ids, false) == (folds_spaces && c == ' ' ? "" : text)) << c;
  }
  EXPECT_GT(tokenizer.encode(marks).size(), 1000u);
}

TEST(TokenizerCases, VeryLongWordsAreNotQuadratic) {
  encode_long_words(demo(), size_t{1} << 20);
  encode_long_words(load_tokenizer_json_text(goldens::FullVocabulary("llama2").to_json(), nullptr), size_t{1} << 18);
  encode_long_words(load_tokenizer_json_text(goldens::FullVocabulary("qwen3").to_json(), nullptr), size_t{1} << 18);
  encode_long_words(load_sentencepiece_model(goldens::path_of("spm/bpe_bytes.model")), size_t{1} << 18);
  encode_long_words(load_sentencepiece_model(goldens::path_of("spm/unigram_bytes.model")), size_t{1} << 18, true);
}

TEST(TokenizerCases, ThreadsShareATokenizer) {
  const Tokenizer tokenizer = demo();
  const auto strings = goldens::json_of("components.json")["strings"].get<std::vector<std::string>>();
  std::vector<std::vector<TokenId>> expected;
  for (const auto& text : strings) expected.push_back(tokenizer.encode(text));
  std::vector<int> wrong(4);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < strings.size(); ++i) wrong[t] += tokenizer.encode(strings[i]) != expected[i];
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4));
}

}  // namespace
}  // namespace ef
