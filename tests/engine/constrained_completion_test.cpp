// An answer that a grammar constrains, token by token: the model's logits are given by hand, the vocabulary has special
// tokens for the marks of gpt-oss, one of which (<|end|>) also counts as an end of answers.
#include "expertflow/engine/completion.h"

#include <gtest/gtest.h>

#include "expertflow/base/errors.h"
#include "expertflow/text/answer_grammar.h"

namespace ef::testing {
namespace {

const std::vector<std::string> kPlain{
    "{", "}", "a", "f", " ", "true", "so", "No.", "json", "analysis", "final", "assistant", "commentary to=functions."};
const std::vector<std::string> kSpecial{"<|channel|>", "<|message|>", "<|end|>",
                                        "<|start|>",   "<|return|>",  "<|constrain|>"};

class Constrained : public ::testing::Test {
 protected:
  Constrained() {
    nlohmann::json vocab, json;
    int id = 0;
    for (std::string text : kPlain) {
      if (const size_t space = text.find(' '); space != std::string::npos) text.replace(space, 1, "Ġ");
      vocab[text] = id++;
    }
    json["added_tokens"] = nlohmann::json::array();
    for (const std::string& text : kSpecial)
      json["added_tokens"].push_back({{"id", id++}, {"content", text}, {"special", true}});
    json["model"] = {{"type", "BPE"}, {"vocab", vocab}, {"merges", nlohmann::json::array()}};
    json["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
    json["decoder"] = {{"type", "ByteLevel"}};
    tokenizer.emplace(load_tokenizer_json_text(json.dump(), nullptr));
    tokenizer = tokenizer->with_eog(std::vector<TokenId>{id_of("<|return|>"), id_of("<|end|>")});
    order.emplace(*tokenizer);
    size = id;
  }
  TokenId id_of(const std::string& text) const {
    for (size_t i = 0; i < kPlain.size() + kSpecial.size(); ++i)
      if ((i < kPlain.size() ? kPlain[i] : kSpecial[i - kPlain.size()]) == text) return TokenId(i);
    throw std::out_of_range(text);
  }
  // What the model would write, each token with its second thought where the first is not taken.
  std::string answer(std::shared_ptr<const Grammar> grammar,
                     const std::vector<std::pair<std::string, std::string>>& wishes) {
    CompletionRequest request;
    request.prompt = {0};
    request.sampler.temperature = 0;
    request.show_special = true;
    request.grammar = std::move(grammar);
    std::string text;
    finish.reset();
    ManualClock clock;
    Completion::Context context;
    context.tokenizer = &*tokenizer, context.token_order = &*order, context.clock = &clock;
    context.vocab = size, context.length = 100;
    Completion completion(request, context, [&](CompletionEvent&& event) {
      text += event.text;
      if (event.finish) finish = event.finish;
    });
    for (const auto& [first, second] : wishes) {
      std::vector<float> logits(size_t(size), -5.f);
      logits[size_t(id_of(second))] = 1;
      logits[size_t(id_of(first))] = 2;
      if (!completion.next({logits, {}, {}})) break;
    }
    return text;
  }
  std::optional<Tokenizer> tokenizer;
  std::optional<TokenOrder> order;
  int64_t size = 0;
  std::optional<CompletionEvent::Finish> finish;
};

TEST_F(Constrained, ReasoningIsFreeAndTheFinalChannelIsNot) {
  const nlohmann::ordered_json schema{{"type", "boolean"}};
  const auto grammar = json_answer_grammar(&schema, {OutputStyle::kHarmony});
  const std::string text = answer(grammar, {{"No.", "<|channel|>"},  // no text outside of a channel
                                            {"analysis", "a"},
                                            {"<|message|>", "a"},
                                            {"so", "a"},
                                            {"<|return|>", "so"},  // the answer has not come yet
                                            {"{", "a"},
                                            {"<|end|>", "a"},  // a mark here, and not the end
                                            {"<|return|>", "<|start|>"},
                                            {"assistant", "a"},
                                            {"<|channel|>", "a"},
                                            {"final", "a"},
                                            {"<|message|>", "a"},
                                            {"No.", "true"},
                                            {"No.", "<|return|>"}});
  EXPECT_EQ(text, "<|channel|>analysis<|message|>soso{<|end|><|start|>assistant<|channel|>final<|message|>true");
  EXPECT_EQ(finish, CompletionEvent::Finish::kStop);
}

TEST_F(Constrained, ACallIsMadeWithTheModelsOwnTokens) {
  const auto grammar = tool_call_grammar({{"f", nlohmann::ordered_json::object()}}, {OutputStyle::kHarmony});
  const std::string text = answer(grammar, {{"<|channel|>", "a"},
                                            {"final", "commentary to=functions."},
                                            {"a", "f"},
                                            {" ", "a"},
                                            {"<|constrain|>", "a"},
                                            {"json", "a"},
                                            {"<|message|>", "a"},
                                            {"true", "{"},
                                            {"<|end|>", "}"}});
  EXPECT_EQ(text, "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}");
  EXPECT_EQ(finish, CompletionEvent::Finish::kStop);
}

}  // namespace
}  // namespace ef::testing
