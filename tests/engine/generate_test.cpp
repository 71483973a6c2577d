// The token loop on a small fixture whose greedy tokens are known (Hugging Face), with a tokenizer of three-letter
// words so that texts and stop strings can be told by hand.
#include "expertflow/engine/generate.h"

#include <gtest/gtest.h>

#include "tests/engine/model_rig.h"

namespace ef::testing {
namespace {

using Finish = GenerateResult::Finish;

// Token i is a word of three letters; token 2 is special.
std::string word(TokenId id) { return {char('a' + id % 16), char('a' + id / 16), char('q' + id % 7)}; }

Tokenizer words_tokenizer() {
  nlohmann::json vocab;
  for (TokenId id = 0; id < 256; ++id) vocab[id == 2 ? "<end>" : word(id)] = id;
  nlohmann::json json;
  json["model"] = {{"type", "BPE"}, {"vocab", vocab}, {"merges", nlohmann::json::array()}};
  json["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  json["decoder"] = {{"type", "ByteLevel"}};
  json["added_tokens"] = nlohmann::json::array();
  json["added_tokens"].push_back({{"id", 2},
                                  {"content", "<end>"},
                                  {"special", true},
                                  {"single_word", false},
                                  {"lstrip", false},
                                  {"rstrip", false},
                                  {"normalized", false}});
  return load_tokenizer_json_text(json.dump(), {{"eos_token", "<end>"}});
}

class GenerateTest : public ::testing::Test {
 protected:
  const std::vector<GoldenCase> cases = goldens("mixtral");
  const GoldenCase& golden = cases[2];  // 48 tokens
  const Tokenizer tokenizer = words_tokenizer();
  std::unique_ptr<Engine> engine = engine_of("mixtral");

  static GenerateRequest request(const std::vector<TokenId>& prompt, int64_t max_tokens = 24) {
    GenerateRequest r;
    r.prompt = prompt;
    r.max_tokens = max_tokens;
    r.sampler.temperature = 0;
    r.ignore_eos = true;
    return r;
  }
  std::vector<TokenId> first(size_t n) const { return {golden.greedy.begin(), golden.greedy.begin() + long(n)}; }
  // What is shown of golden tokens: special ones are not.
  static std::string text_of(const std::vector<TokenId>& tokens) {
    std::string text;
    for (const TokenId t : tokens) text += t == 2 ? "" : word(t);
    return text;
  }
};

template <class E, class F>
std::string error(F f) {
  try {
    f();
  } catch (const E& e) {
    return e.what();
  }
  return "";
}

TEST_F(GenerateTest, GreedyTokensAreTheGoldenOnes) {
  Generator generator(*engine, &tokenizer);
  for (const GoldenCase& c : cases) {
    std::string shown;
    const auto result = generator.generate(request(c.ids), [&](std::string_view text) {
      shown += text;
      return true;
    });
    EXPECT_EQ(result.tokens, c.greedy);
    EXPECT_EQ(result.finish, Finish::kLength);
    EXPECT_EQ(result.text, text_of(c.greedy));
    EXPECT_EQ(shown, result.text);
    EXPECT_EQ(result.prompt_tokens, int64_t(c.ids.size()));
  }
}

TEST_F(GenerateTest, WithoutTokenizerThereAreOnlyIds) {
  Generator generator(*engine, nullptr);
  const auto result = generator.generate(request(golden.ids));
  EXPECT_EQ(result.tokens, golden.greedy);
  EXPECT_EQ(result.text, "");
}

// Every stop string of 1 to 7 letters that the text holds, wherever token borders fall.
TEST_F(GenerateTest, E1_StopStringsAcrossTokensAreNeverShown) {
  const std::string text = text_of(golden.greedy);
  for (size_t length = 1; length <= 7; ++length)
    for (size_t at = 4; at + length < text.size(); at += 5) {
      const std::string stop = text.substr(at, length);
      Generator generator(*engine, &tokenizer);
      auto r = request(golden.ids);
      r.stop = {"never this", stop};
      std::string shown;
      const auto result = generator.generate(r, [&](std::string_view piece) {
        shown += piece;
        return true;
      });
      const size_t found = text.find(stop);
      EXPECT_EQ(shown, text.substr(0, found)) << stop;
      EXPECT_EQ(result.text, shown);
      EXPECT_EQ(result.finish, Finish::kStop);
      // The first token that completes it is the last.
      size_t tokens = 0;
      while (text_of(first(tokens)).find(stop) == std::string::npos) ++tokens;
      EXPECT_EQ(result.tokens, first(tokens)) << stop;
    }
}

TEST_F(GenerateTest, APartOfAStopStringThatNeverCompletesIsShownAtTheEnd) {
  const std::string text = text_of(golden.greedy);
  Generator generator(*engine, &tokenizer);
  auto r = request(golden.ids);
  r.stop = {text.substr(text.size() - 2) + "?"};
  EXPECT_EQ(generator.generate(r).text, text);
}

TEST_F(GenerateTest, AnEmptyStopStringIsRefused) {
  Generator generator(*engine, &tokenizer);
  auto r = request(golden.ids);
  r.stop = {""};
  EXPECT_THROW(generator.generate(r), RequestError);
}

TEST_F(GenerateTest, E6_MaxTokensZeroAndOne) {
  Generator generator(*engine, &tokenizer);
  auto result = generator.generate(request(golden.ids, 0));
  EXPECT_TRUE(result.tokens.empty());
  EXPECT_EQ(result.text, "");
  EXPECT_EQ(result.finish, Finish::kLength);
  result = generator.generate(request(golden.ids, 1));
  EXPECT_EQ(result.tokens, first(1));
  EXPECT_EQ(result.finish, Finish::kLength);
}

// Whatever file named the id: config.json, generation_config.json or the tokenizer.
TEST_F(GenerateTest, D9_EveryEndOfGenerationIdEnds) {
  EditableCheckpoint edited(hf_fixture("mixtral"));
  size_t at = 3;  // a token that did not come before
  while (std::count(golden.greedy.begin(), golden.greedy.begin() + long(at), golden.greedy[at]) > 0) ++at;
  edited.config["eos_token_id"] = 250;
  edited.generation_config["eos_token_id"] = {golden.greedy[at], 251};
  engine = engine_of(model_of(edited.build()), small_engine());
  const Tokenizer with_eog = tokenizer.with_eog(engine->config().eos);
  EXPECT_EQ(with_eog.eog(), union_of_ids({std::vector<TokenId>{2, 250, 251, golden.greedy[at]}}));
  Generator generator(*engine, &with_eog);
  auto r = request(golden.ids);
  r.ignore_eos = false;
  const auto result = generator.generate(r);
  EXPECT_EQ(result.tokens, first(at + 1));
  EXPECT_EQ(result.text, text_of(first(at)));
  EXPECT_EQ(result.finish, Finish::kStop);
  r.ignore_eos = true;
  EXPECT_EQ(generator.generate(r).tokens, golden.greedy);
}

TEST_F(GenerateTest, CancelledInPrefillThenUsable) {
  EngineOptions o = small_engine();
  o.ubatch = 8;
  engine = engine_of("mixtral", o);
  Generator generator(*engine, &tokenizer);
  auto r = request(golden.ids);
  int polls = 0;
  r.cancelled = [&] { return ++polls > 3; };
  auto result = generator.generate(r);
  EXPECT_EQ(result.finish, Finish::kCancelled);
  EXPECT_TRUE(result.tokens.empty());
  r.cancelled = nullptr;
  result = generator.generate(r);
  EXPECT_EQ(result.cached_tokens, 24);  // three chunks of eight
  EXPECT_EQ(result.tokens, golden.greedy);
}

TEST_F(GenerateTest, CancelledInDecode) {
  Generator generator(*engine, &tokenizer);
  auto r = request(golden.ids);
  int polls = 0;
  r.cancelled = [&] { return ++polls > 5; };  // once for the prompt, then once a token
  auto result = generator.generate(r);
  EXPECT_EQ(result.finish, Finish::kCancelled);
  EXPECT_EQ(result.tokens, first(5));
  EXPECT_EQ(result.text, text_of(first(5)));

  r.cancelled = nullptr;
  int pieces = 0;
  result = generator.generate(r, [&](std::string_view) { return ++pieces < 4; });
  EXPECT_EQ(result.finish, Finish::kCancelled);
  EXPECT_EQ(result.text, text_of(result.tokens));
  EXPECT_EQ(pieces, 4);
  EXPECT_EQ(generator.generate(r).tokens, golden.greedy);
}

// A second turn: only what is new is computed, and nothing changes by it.
TEST_F(GenerateTest, F13_AContinuedPromptGivesTheTokensOfAFreshOne) {
  Generator generator(*engine, &tokenizer);
  const auto answer = generator.generate(request(golden.ids, 10));
  std::vector<TokenId> turn = golden.ids;
  turn.insert(turn.end(), answer.tokens.begin(), answer.tokens.end());
  turn.insert(turn.end(), {17, 99, 201});
  const auto reused = generator.generate(request(turn));
  // All but the last token of the answer, which was never fed.
  EXPECT_EQ(reused.cached_tokens, int64_t(golden.ids.size()) + 9);
  const auto fresh_engine = engine_of("mixtral");
  Generator fresh(*fresh_engine, &tokenizer);
  const auto expected = fresh.generate(request(turn));
  EXPECT_EQ(expected.cached_tokens, 0);
  EXPECT_EQ(reused.tokens, expected.tokens);

  // Another prompt, and one that only shares its beginning: from scratch.
  std::vector<TokenId> other = turn;
  other[20] = (other[20] + 1) % 256;
  EXPECT_EQ(generator.generate(request(other)).cached_tokens, 0);
  EXPECT_EQ(generator.generate(request(golden.ids)).tokens, golden.greedy);
}

// Rope that depends on the length that a sequence may reach: it is reused only where that does not rotate otherwise.
TEST_F(GenerateTest, F13_AContinuedPromptWithRopeThatDependsOnLength) {
  const std::vector<TokenId> prompt(goldens("mixtral-rope-dynamic")[2].ids);  // trained for 64 positions
  for (const auto& [first_max, second_max] : {std::pair{150, 20}, {10, 120}, {2, 4}}) {
    const auto long_engine = engine_of("mixtral-rope-dynamic"), fresh_engine = engine_of("mixtral-rope-dynamic");
    Generator generator(*long_engine, nullptr), fresh(*fresh_engine, nullptr);
    auto turn = prompt;
    auto r = request(prompt, first_max);
    r.cancelled = [polls = 0]() mutable { return ++polls > 4; };
    const auto answer = generator.generate(r);
    turn.insert(turn.end(), answer.tokens.begin(), answer.tokens.end());
    turn.push_back(5);
    EXPECT_EQ(generator.generate(request(turn, second_max)).tokens, fresh.generate(request(turn, second_max)).tokens)
        << first_max << " then " << second_max;
  }
}

// What is generated does not depend on how much was asked for, whatever the rope.
TEST_F(GenerateTest, F13_TokensDoNotDependOnMaxTokens) {
  for (const char* name : {"mixtral-rope-dynamic", "phimoe-longrope"}) {
    const std::vector<TokenId> prompt(goldens(name)[1].ids);
    const auto few_engine = engine_of(name), many_engine = engine_of(name);
    Generator few(*few_engine, nullptr), many(*many_engine, nullptr);
    const auto short_answer = few.generate(request(prompt, 5)).tokens;
    auto long_answer = many.generate(request(prompt, 90)).tokens;  // past the 64 positions that rope was made for
    ASSERT_EQ(long_answer.size(), 90u);
    long_answer.resize(5);
    EXPECT_EQ(short_answer, long_answer) << name;
  }
}

TEST_F(GenerateTest, E5_PromptLongerThanTheContext) {
  EngineOptions o = small_engine();
  o.ctx_size = 64;
  engine = engine_of("mixtral", o);
  Generator generator(*engine, &tokenizer);
  for (const size_t n : {64, 65, 300}) {
    const std::string message = error<RequestError>([&] { generator.generate(request(std::vector<TokenId>(n, 7))); });
    EXPECT_NE(message.find(std::to_string(n) + " tokens"), std::string::npos) << message;
    EXPECT_NE(message.find("64 tokens"), std::string::npos) << message;
  }
  EXPECT_NE(error<RequestError>([&] { generator.generate(request({})); }).find("at least one token"),
            std::string::npos);
  EXPECT_EQ(generator.generate(request(golden.ids, 5)).tokens, first(5));
}

TEST_F(GenerateTest, PromptAndAnswerFillTheContextExactly) {
  EngineOptions o = small_engine();
  o.ctx_size = 58;
  engine = engine_of("mixtral", o);
  Generator generator(*engine, &tokenizer);
  for (const int64_t max_tokens : {int64_t{-1}, int64_t{1000}, int64_t{10}}) {
    const auto result = generator.generate(request(golden.ids, max_tokens));
    EXPECT_EQ(result.tokens, first(10));  // 58 - 48
    EXPECT_EQ(result.finish, Finish::kLength);
  }
  std::vector<TokenId> almost = golden.ids;
  almost.insert(almost.end(), golden.greedy.begin(), golden.greedy.begin() + 9);
  EXPECT_EQ(generator.generate(request(almost, -1)).tokens, (std::vector<TokenId>{golden.greedy[9]}));
}

TEST_F(GenerateTest, ATokenOutsideTheVocabularyIsARequestError) {
  Generator generator(*engine, &tokenizer);
  for (const TokenId bad : {-1, 256, 1 << 30}) {
    const std::string message = error<RequestError>([&] { generator.generate(request({1, bad})); });
    EXPECT_NE(message.find(std::to_string(bad)), std::string::npos) << message;
  }
  EXPECT_EQ(generator.generate(request(golden.ids)).tokens, golden.greedy);
}

TEST_F(GenerateTest, ASamplerOutOfRangeIsARequestErrorAndKeepsTheSequence) {
  Generator generator(*engine, &tokenizer);
  auto r = request(golden.ids, 1);
  generator.generate(r);
  r.sampler.top_p = 2;
  EXPECT_THROW(generator.generate(r), RequestError);
}

TEST_F(GenerateTest, SeedsRepeat) {
  auto r = request(golden.ids);
  r.sampler.temperature = 1.5;
  r.sampler.seed = 42;
  Generator a(*engine, &tokenizer);
  const auto first_run = a.generate(r).tokens;
  EXPECT_EQ(a.generate(r).tokens, first_run);
  r.sampler.seed = 43;
  EXPECT_NE(a.generate(r).tokens, first_run);
}

}  // namespace
}  // namespace ef::testing
