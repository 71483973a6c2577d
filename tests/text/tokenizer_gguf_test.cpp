// Tokenizers from GGUF metadata. Expected ids by llama.cpp (through node-llama-cpp): the demo's vocabulary under every
// pre-tokenizer, Llama-2's as a "llama" vocabulary.
#include <gtest/gtest.h>

#include "expertflow/base/errors.h"
#include "expertflow/text/bpe.h"
#include "expertflow/weights/gguf.h"
#include "tests/text/tokenizer_goldens.h"

namespace ef {
namespace {

using nlohmann::json;

// llama.cpp's stand-ins for the o200k family's expressions leave \\p{M} out; the originals (component goldens) take the
// mark with the space.
bool known_difference(const std::string& pre, const std::string& text) {
  return (pre == "gpt-4o" || pre == "tekken" || pre == "kimi-k2") && text.find(" \xCC\x81'") != std::string::npos;
}

int count_differences(const Tokenizer& tokenizer, const std::vector<std::string>& strings, const json& lines,
                      const EncodeOptions& options, const std::string& name) {
  int wrong = 0;
  for (size_t i = 0; i < strings.size(); ++i) {
    const std::string line = goldens::ids_line(tokenizer.encode(strings[i], options));
    if (line == lines[i].get<std::string>() || known_difference(name, strings[i])) continue;
    if (++wrong <= 5) {
      std::cout << name << " on " << json(strings[i]) << "\n expected " << lines[i] << "\n found    " << line << "\n";
    }
  }
  return wrong;
}

TEST(GgufTokenizer, EveryPreTokenizerAgainstLlamaCpp) {
  const json golden = goldens::json_of("llama_cpp.json");
  const auto strings = golden["strings"].get<std::vector<std::string>>();
  ASSERT_EQ(golden["bpe"].size(), 20u);
  GgufVocab vocab = goldens::FullVocabulary("demo").to_gguf();
  vocab.model = "gpt2";
  for (const auto& [pre, lines] : golden["bpe"].items()) {
    vocab.pre = pre;
    const Tokenizer tokenizer = load_gguf_tokenizer(vocab);
    EXPECT_EQ(count_differences(tokenizer, strings, lines, {.add_special = false}, pre), 0) << pre;
  }
}

TEST(GgufTokenizer, LlamaVocabularyAgainstLlamaCpp) {
  const json golden = goldens::json_of("llama_cpp.json");
  const auto strings = golden["strings"].get<std::vector<std::string>>();
  GgufVocab vocab = goldens::FullVocabulary("llama2").to_gguf();
  vocab.model = "llama";
  for (size_t i = 0; i < vocab.tokens.size(); ++i) {
    if (i >= 3 && i < 259) vocab.token_types[i] = 6;
    vocab.scores.push_back(i < 259 ? 0.0f : -static_cast<float>(i - 259));
  }
  vocab.token_types[0] = 2;
  vocab.unk = 0;
  for (const auto& [name, lines] : golden["spm"].items()) {
    if (name == "no_space_prefix") vocab.add_space_prefix = false;
    const Tokenizer tokenizer = load_gguf_tokenizer(vocab);
    EXPECT_EQ(count_differences(tokenizer, strings, lines["special"], {.add_special = false}, name), 0) << name;
    EXPECT_EQ(
        count_differences(tokenizer, strings, lines["plain"], {.add_special = false, .parse_special = false}, name), 0)
        << name;
    vocab.add_space_prefix.reset();
  }
}

// The bundled model's own metadata gives the ids of its tokenizer.json, and those that llama.cpp gave for the golden
// prompts.
TEST(GgufTokenizer, BundledModel) {
  TensorDirectory directory;
  const GgufMetadata metadata = read_gguf(EF_SOURCE_DIR "/models/demo/demo-Q5_K_M.gguf", directory).metadata;
  GgufVocab vocab;
  vocab.file = metadata.file;
  vocab.model = metadata.str("tokenizer.ggml.model");
  vocab.pre = metadata.str("tokenizer.ggml.pre");
  vocab.tokens = metadata.strings("tokenizer.ggml.tokens");
  vocab.token_types = metadata.integers("tokenizer.ggml.token_type");
  vocab.merges = metadata.strings("tokenizer.ggml.merges");
  vocab.bos = metadata.integer("tokenizer.ggml.bos_token_id");
  vocab.eos = metadata.integer("tokenizer.ggml.eos_token_id");
  vocab.eot = metadata.integer("tokenizer.ggml.eot_token_id");
  vocab.add_bos = metadata.boolean("tokenizer.ggml.add_bos_token");
  const Tokenizer tokenizer = load_gguf_tokenizer(vocab);
  EXPECT_EQ(tokenizer.vocab_size(), 16384u);
  EXPECT_EQ(tokenizer.eog(), (std::vector<TokenId>{0, 2}));
  EXPECT_FALSE(tokenizer.add_bos());
  const json golden = json::parse(read_text_file(EF_TEST_DATA "/demo/golden-llamacpp.json"));
  int prompts = 0;
  for (const auto& [file, entries] : golden["files"].items()) {
    for (const json& entry : entries) {
      EXPECT_EQ(json(tokenizer.encode(entry["prompt"].get<std::string>())), entry["tokens"]) << entry["prompt"];
      ++prompts;
    }
  }
  EXPECT_GE(prompts, 6);
  const auto strings = goldens::json_of("strings.json").get<std::vector<std::string>>();
  const auto lines = goldens::lines_of("demo/ids.txt");
  for (size_t i = 0; i < strings.size(); ++i) {
    const auto ids = tokenizer.encode(strings[i]);
    ASSERT_EQ(goldens::fnv(tokenizer.decode(ids, false)) + " " + goldens::ids_line(ids), lines[i]) << strings[i];
  }
}

// A byte-level vocabulary of the 256 bytes, two merges and a few more tokens.
GgufVocab tiny_bpe() {
  GgufVocab vocab;
  vocab.file = "tiny.gguf";
  vocab.model = "gpt2";
  vocab.pre = "qwen2";
  for (int byte = 0; byte < 256; ++byte) {
    std::string text;
    utf8_append(text, byte_to_printable(static_cast<unsigned char>(byte)));
    vocab.tokens.push_back(text);
  }
  vocab.token_types.assign(256, 1);
  const auto add = [&](const std::string& text, int64_t type) {
    vocab.tokens.push_back(text);
    vocab.token_types.push_back(type);
  };
  add("->", 1);
  add("):", 1);
  add("<s>", 3);
  add("<|im_end|>", 3);
  add("<tool>", 4);
  vocab.merges = {"- >", ") :"};
  vocab.bos = 258;
  vocab.eos = 259;
  return vocab;
}

GgufVocab tiny_llama() {
  GgufVocab vocab;
  vocab.file = "tiny.gguf";
  vocab.model = "llama";
  const auto add = [&](const std::string& text, float score, int64_t type) {
    vocab.tokens.push_back(text);
    vocab.scores.push_back(score);
    vocab.token_types.push_back(type);
  };
  add("<unk>", 0, 2);
  add("<s>", 0, 3);
  add("</s>", 0, 3);
  for (int byte = 0; byte < 256; ++byte) add(byte_token(static_cast<unsigned char>(byte)), 0, 6);
  add("\xE2\x96\x81", -1, 1);  // 259
  add("a", -2, 1);             // 260
  add("b", -3, 1);             // 261
  add("\xE2\x96\x81"
      "a",
      -0.5f, 1);  // 262
  vocab.unk = 0;
  vocab.bos = 1;
  vocab.eos = 2;
  return vocab;
}

std::string error_of(const GgufVocab& vocab) {
  try {
    load_gguf_tokenizer(vocab);
  } catch (const ModelError& e) {
    return e.what();
  }
  return "no error";
}

TEST(GgufTokenizer, D7_UnknownPreTokenizerIsNamedWithTheKnownOnesAndTheOverride) {
  GgufVocab vocab = tiny_bpe();
  vocab.pre = "brand-new";
  const std::string error = error_of(vocab);
  EXPECT_NE(error.find("tiny.gguf"), std::string::npos) << error;
  EXPECT_NE(error.find("tokenizer.ggml.pre: unknown pre-tokenizer 'brand-new'"), std::string::npos) << error;
  for (const char* known : {"qwen2", "llama-bpe", "deepseek-v3", "gpt-4o", "olmo", "starcoder", "refact", "glm4",
                            "tekken", "--tokenizer-pre"}) {
    EXPECT_NE(error.find(known), std::string::npos) << known << " in " << error;
  }
  vocab.pre = "qwen2";
  EXPECT_EQ(load_gguf_tokenizer(vocab).encode("->", {.add_special = false}), (std::vector<TokenId>{256}));
}

TEST(GgufTokenizer, D7_MissingMergesAreNamed) {
  GgufVocab vocab = tiny_bpe();
  vocab.merges.clear();
  EXPECT_NE(error_of(vocab).find("tokenizer.ggml.merges: expected the merges"), std::string::npos) << error_of(vocab);
}

TEST(GgufTokenizer, D7_UnknownModelAndNoTokenizer) {
  GgufVocab vocab = tiny_bpe();
  vocab.model = "rwkv";
  EXPECT_NE(error_of(vocab).find("tokenizer.ggml.model: unknown tokenizer 'rwkv' (known: gpt2, llama)"),
            std::string::npos);
  vocab.model = "none";
  EXPECT_FALSE(has_tokenizer(vocab));
  EXPECT_NE(error_of(vocab).find("found \"none\""), std::string::npos) << error_of(vocab);
  EXPECT_FALSE(has_tokenizer(GgufVocab{}));
}

TEST(GgufTokenizer, HostileMetadata) {
  struct Case {
    const char* expected;
    void (*spoil)(GgufVocab&);
  };
  const Case cases[] = {
      {"tokenizer.ggml.tokens: expected tokens, found none", [](GgufVocab& v) { v.tokens.clear(); }},
      {"tokenizer.ggml.token_type: expected 261 elements", [](GgufVocab& v) { v.token_types.pop_back(); }},
      {"tokenizer.ggml.token_type[3]: expected 0 to 6, found 99", [](GgufVocab& v) { v.token_types[3] = 99; }},
      {"tokenizer.ggml.scores: expected 261 elements", [](GgufVocab& v) { v.scores.resize(7); }},
      {"tokenizer.ggml.bos_token_id: expected an id below 261, found 261", [](GgufVocab& v) { v.bos = 261; }},
      {"tokenizer.ggml.eos_token_id: expected an id below 261, found -5", [](GgufVocab& v) { v.eos = -5; }},
      {"tokenizer.ggml.eot_token_id: expected an id below 261, found 1099511627776",
       [](GgufVocab& v) { v.eot = int64_t{1} << 40; }},
      {"expected one id, found 256 and 257", [](GgufVocab& v) { v.tokens[257] = "->"; }},
      {"tokenizer.ggml.merges[1]: expected \"left right\", found ':'", [](GgufVocab& v) { v.merges[1] = ":"; }},
      {"tokenizer.ggml.merges[0]: expected tokens of the vocabulary",
       [](GgufVocab& v) { v.merges[0] = "- no-such-token"; }},
  };
  for (const Case& c : cases) {
    GgufVocab vocab = tiny_bpe();
    c.spoil(vocab);
    EXPECT_NE(error_of(vocab).find(c.expected), std::string::npos) << c.expected << "\n" << error_of(vocab);
  }
  GgufVocab vocab = tiny_llama();
  vocab.scores.clear();
  EXPECT_NE(error_of(vocab).find("tokenizer.ggml.scores: expected the scores"), std::string::npos);
  vocab = tiny_llama();
  vocab.tokens[20] = "<0xZZ>";
  EXPECT_NE(error_of(vocab).find("expected a byte such as <0x0A>"), std::string::npos) << error_of(vocab);
}

TEST(GgufTokenizer, SpecialTokens) {
  const Tokenizer tokenizer = load_gguf_tokenizer(tiny_bpe());
  EXPECT_EQ(tokenizer.vocab_size(), 261u);
  EXPECT_EQ(tokenizer.bos(), 258);
  EXPECT_EQ(tokenizer.eog(), (std::vector<TokenId>{259}));
  EXPECT_FALSE(tokenizer.add_bos());
  EXPECT_TRUE(tokenizer.is_special(258));
  EXPECT_FALSE(tokenizer.is_special(260));
  EXPECT_EQ(tokenizer.find("<tool>"), 260);
  // User-defined tokens are cut out even where special ones are not.
  EXPECT_EQ(tokenizer.encode("<tool><s>", {.parse_special = false}), (std::vector<TokenId>{260, '<', 's', '>'}));
  EXPECT_EQ(tokenizer.encode("<tool><s>"), (std::vector<TokenId>{260, 258}));
  EXPECT_EQ(tokenizer.decode(std::vector<TokenId>{258, 'h', 'i', 260, 259}), "hi<tool>");
  EXPECT_EQ(tokenizer.decode(std::vector<TokenId>{258, 'h'}, false), "<s>h");
  GgufVocab vocab = tiny_bpe();
  vocab.add_bos = true;
  vocab.add_eos = true;
  EXPECT_EQ(load_gguf_tokenizer(vocab).encode("h"), (std::vector<TokenId>{258, 'h', 259}));
  vocab.pre = "llama-bpe";
  vocab.add_bos.reset();
  EXPECT_TRUE(load_gguf_tokenizer(vocab).add_bos());
}

TEST(GgufTokenizer, D3_SpacePrefixAfterSpecialTokensAndOnDecode) {
  const Tokenizer tokenizer = load_gguf_tokenizer(tiny_llama());
  const EncodeOptions bare{.add_special = false};
  EXPECT_EQ(tokenizer.encode("a"), (std::vector<TokenId>{1, 262}));
  EXPECT_EQ(tokenizer.encode(" a", bare), (std::vector<TokenId>{259, 262}));
  EXPECT_EQ(tokenizer.encode("</s>a", bare), (std::vector<TokenId>{2, 262}));
  EXPECT_EQ(tokenizer.encode("b\xC3\xA9", bare), (std::vector<TokenId>{259, 261, 3 + 0xC3, 3 + 0xA9}));
  EXPECT_EQ(tokenizer.decode(std::vector<TokenId>{1, 262, 261}), "ab");
  EXPECT_EQ(tokenizer.decode(std::vector<TokenId>{259, 262}), " a");
  EXPECT_EQ(tokenizer.token_to_bytes(262, true), "a");
  EXPECT_EQ(tokenizer.token_to_bytes(262), " a");
  GgufVocab vocab = tiny_llama();
  vocab.add_space_prefix = false;
  EXPECT_EQ(load_gguf_tokenizer(vocab).encode("a", bare), (std::vector<TokenId>{260}));
  EXPECT_EQ(load_gguf_tokenizer(vocab).decode(std::vector<TokenId>{262}), " a");
}

TEST(GgufTokenizer, EndOfGenerationByNameAsLlamaCpp) {
  GgufVocab vocab = tiny_bpe();
  for (const char* text : {"<|end|>", "<|return|>", "<|call|>", "<|endoftext|>"}) {
    vocab.tokens.push_back(text);
    vocab.token_types.push_back(3);
  }
  // <|end|> (261) closes a message under o200k_harmony, which is known by <|return|> and <|call|>.
  EXPECT_EQ(load_gguf_tokenizer(vocab).eog(), (std::vector<TokenId>{259, 262, 263, 264}));
  vocab.tokens.back() = "<|other|>";
  vocab.tokens[263] = "<|also|>";
  EXPECT_EQ(load_gguf_tokenizer(vocab).eog(), (std::vector<TokenId>{259, 261, 262}));
}

}  // namespace
}  // namespace ef
