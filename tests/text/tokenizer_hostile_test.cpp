// Malformed tokenizer.json and .model files: a ModelError that names the field, never a crash.
#include <gtest/gtest.h>

#include <random>

#include "expertflow/base/errors.h"
#include "expertflow/text/regex.h"
#include "expertflow/text/spm.h"
#include "tests/text/tokenizer_goldens.h"

namespace ef {
namespace {

using nlohmann::json;

json good() {
  return json::parse(R"({
    "added_tokens": [{"id": 5, "content": "<s>", "special": true, "normalized": false}],
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]},
    "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "\\s+"}, "behavior": "Isolated", "invert": false},
    "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                       "special_tokens": {"<s>": {"id": "<s>", "ids": [5], "tokens": ["<s>"]}}},
    "decoder": {"type": "Fuse"},
    "model": {"type": "BPE", "unk_token": "?", "vocab": {"?": 0, "a": 1, "b": 2, "ab": 3, "aba": 4}, "merges": ["a b", ["ab", "a"]]}
  })");
}

std::string error_of(const std::string& text, const json& config = nullptr) {
  try {
    load_tokenizer_json_text(text, config, "t.json");
  } catch (const ModelError& e) {
    return e.what();
  }
  return "no error";
}

TEST(TokenizerHostile, TheGoodFileLoads) {
  const Tokenizer tokenizer = load_tokenizer_json_text(good().dump(), nullptr);
  EXPECT_EQ(tokenizer.encode("aba"), (std::vector<TokenId>{5, 4}));
  EXPECT_EQ(tokenizer.encode("abab b"), (std::vector<TokenId>{5, 3, 3, 0, 2}));
}

TEST(TokenizerHostile, WrongFieldsAreNamed) {
  struct Case {
    const char* pointer;
    const char* value;
    const char* expected;
  };
  const Case cases[] = {
      {"/model", "7", "t.json: model: expected an object, found 7"},
      {"/model/type", "\"WordPiece\"", "t.json: model: unknown model type 'WordPiece' (known: BPE)"},
      {"/model/type", "3", "t.json: model.type: expected a string, found 3"},
      {"/model/vocab", "[]", "t.json: model.vocab: expected an object"},
      {"/model/vocab", "null", "t.json: model.vocab: expected an object"},
      {"/model/vocab", "{}", "t.json: model.vocab: expected tokens, found none"},
      {"/model/vocab/a", "-1", "token 'a': expected an id from 0 to"},
      {"/model/vocab/a", "3", "which is the id of"},
      {"/model/vocab/a", "2147483647", "token 'a': expected an id from 0 to"},
      {"/model/vocab/a", "70000000000", "t.json: model.vocab[\"a\"]: expected a token id, found 70000000000"},
      {"/model/vocab/a", "\"1\"", "t.json: model.vocab[\"a\"]: expected a token id, found \"1\""},
      {"/model/vocab/a", "1.5", "t.json: model.vocab[\"a\"]: expected a token id, found 1.5"},
      {"/model/vocab/a", "{\"b\": 1}", "t.json: model.vocab[\"a\"]: expected a token id, found an object"},
      {"/model/vocab/a", "[1]", "t.json: model.vocab[\"a\"]: expected a token id, found an array"},
      {"/model/merges", "null", "t.json: model.merges: expected an array"},
      {"/model/merges", "\"a b\"", "t.json: model.merges: expected an array"},
      {"/model/merges/0", "\"ab\"", "t.json: model.merges[0]: expected \"left right\" or [left, right], found \"ab\""},
      {"/model/merges/0", "\"a b c\"", "t.json: model.merges[0]: expected"},
      {"/model/merges/1", "[\"a\"]",
       "t.json: model.merges[1]: expected \"left right\" or [left, right], found an array of 1"},
      {"/model/merges/1", "[\"a\", 2]", "t.json: model.merges[1]: expected"},
      {"/model/merges/1", "3", "t.json: model.merges[1]: expected"},
      {"/model/merges/0", "\"a x\"",
       "t.json: model.merges[0]: expected tokens of the vocabulary, found 'a' + 'x', of which 'x' is not one"},
      {"/model/merges/0", "\"b b\"", "of which 'bb' is not one"},
      {"/model/unk_token", "\"nope\"", "t.json: model.unk_token: expected a token of model.vocab"},
      {"/model/byte_fallback", "\"yes\"", "t.json: model.byte_fallback: expected true or false"},
      {"/model/end_of_word_suffix", "\"</w>\"", "t.json: model.end_of_word_suffix: expected nothing"},
      {"/added_tokens", "{}", "t.json: added_tokens: expected an array"},
      {"/added_tokens/0/id", "-5", "t.json: added_tokens[0].id: expected a token id, found -5"},
      {"/added_tokens/0/id", "1000000000", "token '<s>': expected an id from 0 to"},
      {"/added_tokens/0/id", "1", "which is the id of 'a'"},
      {"/added_tokens/0/content", "\"\"", "t.json: added_tokens[0]: content: expected a text"},
      {"/added_tokens/0/content", "\"ab\"", "expected id 3, as in the vocabulary, found 5"},
      {"/added_tokens/0/content", "null", "t.json: added_tokens[0].content: expected a string"},
      {"/added_tokens/0/special", "1", "t.json: added_tokens[0].special: expected true or false"},
      {"/normalizer/type", "\"Nmt\"", "t.json: normalizer: unknown normalizer type 'Nmt'"},
      {"/normalizer/normalizers", "1", "t.json: normalizer.normalizers: expected an array"},
      {"/normalizer/normalizers/0", "3", "t.json: normalizer.normalizers[0]: expected an object"},
      {"/pre_tokenizer/type", "\"BertPreTokenizer\"",
       "t.json: pre_tokenizer: unknown pre_tokenizer type 'BertPreTokenizer'"},
      {"/pre_tokenizer/behavior", "\"Sideways\"", "t.json: pre_tokenizer.behavior: expected Removed"},
      {"/pre_tokenizer/pattern", "{}",
       "t.json: pre_tokenizer.pattern: expected an object with one of String and Regex"},
      {"/pre_tokenizer/pattern/Regex", "\"(a\"",
       "t.json: pre_tokenizer.pattern.Regex: expected a regular expression, found '(a'"},
      {"/pre_tokenizer/pattern/Regex", "\"[a\"", "a class without end"},
      {"/pre_tokenizer/pattern/Regex", "\"\\\\p{NoSuchScript}\"", "expected a regular expression"},
      {"/pre_tokenizer/pattern/Regex", "\"a\\\\\"", "a trailing backslash"},
      {"/decoder/type", "\"CTC\"", "t.json: decoder: unknown decoder type 'CTC'"},
      {"/post_processor/type", "\"RobertaProcessing\"",
       "t.json: post_processor: unknown post_processor type 'RobertaProcessing'"},
      {"/post_processor/single", "[]", "t.json: post_processor.single: expected a template with the sequence A"},
      {"/post_processor/special_tokens", "{}", "t.json: post_processor.special_tokens.<s>"},
      {"/post_processor/special_tokens/<s>/ids/0", "99", "expected an id of the vocabulary, found 99"},
  };
  for (const Case& c : cases) {
    json file = good();
    file[json::json_pointer(c.pointer)] = json::parse(c.value);
    EXPECT_NE(error_of(file.dump()).find(c.expected), std::string::npos)
        << c.pointer << " = " << c.value << "\n expected " << c.expected << "\n found    " << error_of(file.dump());
  }
}

TEST(TokenizerHostile, BrokenJson) {
  EXPECT_NE(error_of("").find("t.json: expected json, found an error at byte"), std::string::npos) << error_of("");
  EXPECT_NE(error_of("[1, 2]").find("expected a json object"), std::string::npos);
  EXPECT_NE(error_of("{\"model\": {\"vocab\": {\"a\": 1, \"a\": 2}, \"merges\": []}}")
                .find("token 'a': expected one id, found 1 and 2"),
            std::string::npos);
  EXPECT_NE(error_of("{\"model\": {\"vocab\": {\"a\": 1}, \"vocab\": {\"b\": 2}}}")
                .find("model.vocab: expected one, found a second"),
            std::string::npos);
  const std::string text = good().dump();
  for (size_t cut = 0; cut < text.size(); ++cut) EXPECT_NE(error_of(text.substr(0, cut)), "no error") << cut;
  std::string deep = "{\"normalizer\": ";
  for (int i = 0; i < 100000; ++i) deep += "[";
  EXPECT_NE(error_of(deep).find("expected a nesting of at most"), std::string::npos);
}

TEST(TokenizerHostile, WrongConfiguration) {
  const std::string text = good().dump();
  EXPECT_NE(error_of(text, {{"bos_token", 5}}).find("tokenizer_config.json: bos_token: expected a string, found 5"),
            std::string::npos);
  EXPECT_NE(
      error_of(text, {{"add_bos_token", "x"}}).find("tokenizer_config.json: add_bos_token: expected true or false"),
      std::string::npos);
  EXPECT_NE(error_of(text, json::array()).find("tokenizer_config.json: expected an object"), std::string::npos)
      << error_of(text, json::array());
}

// Flips, cuts and repetitions of bytes: loads or says what is wrong.
TEST(TokenizerHostile, RandomDamageToJson) {
  const std::string text = good().dump();
  std::mt19937 random(11);
  for (int round = 0; round < 3000; ++round) {
    std::string damaged = text;
    for (unsigned k = 0; k <= random() % 3; ++k) {
      const size_t at = random() % damaged.size();
      if (random() % 3 == 0) {
        damaged.erase(at, random() % 10 + 1);
      } else {
        damaged[at] = static_cast<char>(random() % 2 == 0 ? random() : "0123456789{}[],:\"-\\n"[random() % 20]);
      }
      if (damaged.empty()) break;
    }
    try {
      load_tokenizer_json_text(damaged, nullptr).encode("abab <s> b");
    } catch (const ModelError&) {
    }
  }
}

TEST(TokenizerHostile, RunawayPatternIsARequestError) {
  const Regex regex("(a+)+$", "test");
  std::string text(64, 'a');
  text += "b";
  try {
    regex.find_all(text + std::string(64, 'a') + "b");
    FAIL() << "the effort limit did not stop the pattern";
  } catch (const RequestError& e) {
    EXPECT_NE(std::string(e.what()).find("(a+)+$"), std::string::npos) << e.what();
  }
}

std::string spm_error(const std::string& bytes) {
  try {
    load_sentencepiece_bytes(bytes, nullptr, "t.model").encode(" a b ");
  } catch (const ModelError& e) {
    return e.what();
  }
  return "no error";
}

std::string piece(const std::string& text, int type = 1) {
  std::string body = "\x0A" + std::string(1, static_cast<char>(text.size())) + text + std::string("\x15\0\0\0\xC0", 5) +
                     "\x18" + std::string(1, static_cast<char>(type));
  return "\x0A" + std::string(1, static_cast<char>(body.size())) + body;
}

TEST(TokenizerHostile, SentencePieceMessages) {
  const std::string model = piece("<unk>", 2) + piece("<s>", 3) + piece("</s>", 3) + piece("a");
  EXPECT_EQ(spm_error(model), "no error");
  EXPECT_NE(spm_error("").find("t.model: pieces: expected a vocabulary, found none"), std::string::npos);
  EXPECT_NE(spm_error(model + piece("a")).find("token 'a': expected one id, found 3 and 4"), std::string::npos)
      << spm_error(model + piece("a"));
  EXPECT_NE(spm_error(model + piece("x", 9)).find("pieces[4].type: expected 1 to 6, found 9"), std::string::npos);
  EXPECT_NE(spm_error(model + piece("")).find("pieces[4].piece: expected a text"), std::string::npos);
  EXPECT_NE(spm_error(model + "\x0A\x7F").find("expected 127 more bytes, found 0"), std::string::npos)
      << spm_error(model + "\x0A\x7F");
  EXPECT_NE(spm_error(model + "\x0A\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01").find("more bytes"), std::string::npos);
  EXPECT_NE(spm_error(model + std::string(11, '\xFF')).find("a varint of at most 10 bytes"), std::string::npos);
  EXPECT_NE(spm_error(model + "\x0B").find("expected a wire type"), std::string::npos);
  EXPECT_NE(spm_error(model + "\x08\x01").find("expected wire type 2, found 0"), std::string::npos);
  EXPECT_NE(
      spm_error(model + "\x12\x02\x18\x03").find("trainer_spec.model_type: expected 1 (unigram) or 2 (BPE), found 3"),
      std::string::npos);
  EXPECT_NE(spm_error(model + std::string("\x12\x03\xC8\x02\x50", 5))
                .find("trainer_spec.bos_id: expected less than 4, found 80"),
            std::string::npos)
      << spm_error(model + std::string("\x12\x03\xC8\x02\x50", 5));
  EXPECT_NE(
      spm_error(model + std::string("\x12\x03\x98\x02\x01", 5)).find("byte fallback: expected a token for every byte"),
      std::string::npos);
  EXPECT_NE(spm_error(model + std::string("\x1A\x07\x12\x05\xFF\xFF\xFF\xFF\0", 9))
                .find("precompiled_charsmap: expected a table"),
            std::string::npos);
}

TEST(TokenizerHostile, RandomDamageToSentencePiece) {
  std::mt19937 random(13);
  for (const char* name : {"spm/bpe_bytes.model", "spm/unigram_nfkc.model"}) {
    const std::string model = goldens::text_of(name);
    for (int round = 0; round < 60; ++round) {
      std::string damaged = model;
      if (round % 4 == 0) damaged.resize(random() % damaged.size());
      // Most of the second model is its charsmap; the head holds pieces, the tail the specifications.
      for (int k = 0; k < 4 && !damaged.empty(); ++k) damaged[random() % damaged.size()] = static_cast<char>(random());
      try {
        const Tokenizer tokenizer = load_sentencepiece_bytes(damaged, nullptr, name);
        tokenizer.decode(tokenizer.encode("Hello \xEF\xBC\xA1\xE2\x91\xA0 w\xC3\xB6rld \xF0\x9F\x98\x80"));
      } catch (const ModelError&) {
      }
    }
  }
}

}  // namespace
}  // namespace ef
