// run: golden tokens through the binary, at every budget; prompts from everywhere; conversations.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "expertflow/engine/model_files.h"
#include "expertflow/engine/text_model.h"
#include "tests/cli/cli.h"

namespace ef::testing {
namespace {

std::string golden_ids(const std::string& fixture, size_t i) {
  return ids_text(read_golden(hf(fixture) + "/golden.safetensors")[i].greedy) + "\n";
}

TEST(CliRun, TokenIdsGiveTheGoldenTokens) {
  for (const std::string name : {"mixtral", "deepseek_v3"}) {
    const auto golden = read_golden(hf(name) + "/golden.safetensors");
    for (const std::string& model : {hf(name), gguf(name)})
      for (const std::string budget : {"100%", "min"}) {
        const auto result = expertflow({"run", "-q", "-m", model, "--token-ids", ids_text(golden[2].ids), "-n", "24",
                                        "--temp", "0", "--expert-memory", budget, "-ctk", "f32", "-ctv", "f32"});
        EXPECT_EQ(result.exit_code, 0) << result.err;
        EXPECT_EQ(result.out, golden_ids(name, 2)) << model << " at " << budget;
      }
  }
}

// The bundled model against llama.cpp on the same weights dequantised to float32.
class CliDemo : public ::testing::Test {
 protected:
  CliDemo() {
    const nlohmann::json golden =
        nlohmann::json::parse(std::ifstream(std::string(EF_SOURCE_DIR) + "/tests/data/demo/golden-llamacpp.json"));
    prompts = golden.at("files").at("demo-Q5_K_M.gguf dequantised to F32");
    tokenizer = load_tokenizer(open_model(demo())->checkpoint);
  }
  std::string continuation(size_t i, size_t tokens = 64) const {
    const std::vector<TokenId> ids = prompts.at(i).at("greedy");
    return tokenizer->decode(std::span(ids).first(tokens));
  }
  std::string prompt(size_t i) const { return prompts.at(i).at("prompt"); }
  static Arguments greedy(const Arguments& more) {
    return Arguments{"run", "-q", "-m", demo(), "--temp", "0", "--ignore-eos", "--activations", "f32"} + more;
  }
  nlohmann::json prompts;
  std::optional<Tokenizer> tokenizer;
};

TEST_F(CliDemo, GreedyTextIsTheGoldenOne) {
  for (const std::string budget : {"100%", "40%"}) {
    const auto result = expertflow(greedy({"-p", prompt(0), "-n", "64", "--expert-memory", budget}));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.out, prompt(0) + continuation(0) + "\n") << budget;
  }
}

TEST_F(CliDemo, PromptFromFlagFileAndStandardInput) {
  const TempFolder folder;
  write_file(folder.path / "prompt.txt", prompt(1));
  const std::string expected = continuation(1, 8) + "\n";
  const Arguments more = {"-n", "8", "--no-display-prompt"};
  EXPECT_EQ(expertflow(greedy(more + Arguments{"-p", prompt(1)})).out, expected);
  EXPECT_EQ(expertflow(greedy(more + Arguments{"-f", folder.path / "prompt.txt"})).out, expected);
  EXPECT_EQ(expertflow(greedy(more), {}, prompt(1)).out, expected);
  EXPECT_EQ(expertflow(greedy({"-n", "8"}), {}, prompt(1)).out, prompt(1) + expected);
}

// E4: nothing to start from but the beginning of a text.
TEST_F(CliDemo, E4_AnEmptyPrompt) {
  const auto result = expertflow(greedy({"-n", "2", "--no-display-prompt"}), {}, "");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_GT(result.out.size(), 1u);
}

TEST_F(CliDemo, TextsThatLookLikeFlagsAreTexts) {
  for (const char* text : {"-ub", "-cnv", "-sys", "--help"}) {
    const auto result = expertflow(greedy({"-n", "1", "-p", text}));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_TRUE(result.out.starts_with(text)) << result.out;
  }
}

TEST_F(CliDemo, RepeatedReversePromptsStopBeforeTheFirstThatComes) {
  const std::string text = continuation(0);
  const std::string early = text.substr(20, 6), late = text.substr(40, 6);
  ASSERT_EQ(text.find(early), 20u);
  const auto result = expertflow(greedy({"-n", "64", "--no-display-prompt", "-p", prompt(0), "-r", late, "-r", early}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, text.substr(0, 20) + "\n");
}

TEST_F(CliDemo, E5_APromptLongerThanTheContext) {
  const auto result = expertflow(greedy({"-n", "1", "-p", prompt(0), "-c", "8"}));
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_EQ(result.out, "");
  const size_t tokens = prompts.at(0).at("tokens").size();
  EXPECT_TRUE(holds(result.err, fmt::format("{} tokens", tokens))) << result.err;
  EXPECT_TRUE(holds(result.err, "8 tokens")) << result.err;
}

TEST_F(CliDemo, PromptAndAnswerFillTheContext) {
  const size_t tokens = prompts.at(0).at("tokens").size();
  const auto result = expertflow(greedy({"--no-display-prompt", "-p", prompt(0), "-c", std::to_string(tokens + 5)}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, continuation(0, 5) + "\n");
}

// What the model would answer to a prompt that a template wrote.
TEST_F(CliDemo, AConversationOfTwoTurns) {
  const Arguments chat = {"run",
                          "-m",
                          demo(),
                          "--temp",
                          "0",
                          "-n",
                          "6",
                          "--conversation",
                          "--chat-template",
                          "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"};
  const auto first = expertflow({"run", "-q", "-m", demo(), "--temp", "0", "-n", "6", "--no-display-prompt", "-p",
                                 "<system>kind<user>Hello there"});
  const auto result = expertflow(chat + Arguments{"-sys", "kind"}, {}, "Hello there\nAnd then?\n\n");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  ASSERT_TRUE(result.out.starts_with(first.out)) << result.out << " expected to begin with " << first.out;
  const std::string answer = first.out.substr(0, first.out.size() - 1);
  const auto second = expertflow({"run", "-q", "-m", demo(), "--temp", "0", "-n", "6", "--no-display-prompt", "-p",
                                  "<system>kind<user>Hello there<assistant>" + answer + "<user>And then?"});
  EXPECT_EQ(result.out, first.out + second.out);
  EXPECT_TRUE(holds(result.err, "> "));
  // One turn only, the message from a flag.
  EXPECT_EQ(expertflow(chat + Arguments{"-q", "-sys", "kind", "-st", "-p", "Hello there"}).out, first.out);
}

TEST_F(CliDemo, TheModelsOwnTemplateIsUsed) {
  const auto result = expertflow({"run", "-q", "-m", demo(), "--temp", "0", "-n", "6", "-cnv", "-st", "-p", "Hello"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto plain = expertflow({"run", "-q", "-m", demo(), "--temp", "0", "-n", "6", "--no-display-prompt", "-p",
                                 "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"});
  EXPECT_EQ(result.out, plain.out);
}

TEST_F(CliDemo, TemplateVariables) {
  const Arguments chat = {"run",
                          "-q",
                          "-m",
                          demo(),
                          "--temp",
                          "0",
                          "-n",
                          "4",
                          "-cnv",
                          "-st",
                          "-p",
                          "Once",
                          "--chat-template",
                          "{{ start }} {{ messages[0].content }}"};
  const auto plain =
      expertflow({"run", "-q", "-m", demo(), "--temp", "0", "-n", "4", "--no-display-prompt", "-p", "Well: Once"});
  EXPECT_EQ(expertflow(chat + Arguments{"--chat-template-kwargs", "{\"start\": \"Well:\"}"}).out, plain.out);
  EXPECT_REFUSED(expertflow(chat + Arguments{"--chat-template-kwargs", "{start"}), 2, "--chat-template-kwargs",
                 "{start");
  EXPECT_REFUSED(expertflow(chat + Arguments{"--chat-template-kwargs", "[1]"}), 2, "--chat-template-kwargs", "[1]");
}

TEST_F(CliDemo, D11_ATemplateThatRaisesFailsTheRequestWithItsMessage) {
  const TempFolder folder;
  write_file(folder.path / "template", "{{ raise_exception('roles must alternate') }}");
  EXPECT_REFUSED(
      expertflow({"run", "-q", "-m", demo(), "-cnv", "-p", "Hello", "--chat-template-file", folder.path / "template"}),
      5, "roles must alternate");
}

// D10: a template that does not parse costs nobody anything who does not chat.
TEST_F(CliDemo, D10_ATemplateThatDoesNotParseFailsOnlyConversations) {
  const TempFolder folder;
  for (const char* file : {"config.json", "model.safetensors"})
    std::filesystem::copy_file(hf("mixtral") + "/" + file, folder.path / file);
  write_file(folder.path / "chat_template.jinja", "{% for %}");
  nlohmann::json vocab;
  for (int id = 0; id < 256; ++id) vocab[std::string{char('a' + id % 16), char('a' + id / 16)}] = id;
  for (int id = 0; id < 16; ++id) vocab.erase(std::string{char('a' + id), 'p'});
  for (int id = 0; id < 16; ++id) vocab[std::string{char('a' + id)}] = 240 + id;
  const nlohmann::json tokenizer = {{"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"a a", "b b"}}}},
                                    {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
                                    {"decoder", {{"type", "ByteLevel"}}}};
  write_file(folder.path / "tokenizer.json", tokenizer.dump());
  const Arguments run = {"run", "-q", "-m", folder.path, "-n", "2", "--temp", "0", "-p", "aabc"};
  const auto plain = expertflow(run);
  EXPECT_EQ(plain.exit_code, 0) << plain.err;
  EXPECT_TRUE(plain.out.starts_with("aabc")) << plain.out;
  EXPECT_REFUSED(expertflow(run + Arguments{"-cnv"}), 5, "chat template");
  EXPECT_REFUSED(expertflow(run + Arguments{"--tokenizer-pre", "qwen2"}), 2, "--tokenizer-pre", "GGUF");
}

TEST(CliChat, AModelWithoutTemplateSaysSo) {
  EXPECT_REFUSED(expertflow({"run", "-q", "-m", hf("mixtral"), "-cnv"}), 3, "tokenizer");
}

}  // namespace
}  // namespace ef::testing
