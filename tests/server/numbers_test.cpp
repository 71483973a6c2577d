// Weights that are no numbers (E20): the requests that meet them get a 500, those beside them their tokens.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/server/rig.h"

namespace ef::testing {
namespace {

// All bits set: the scales of every k-quant are NaN then.
void spoil(EditableTensor& tensor, size_t part, size_t parts) {
  const size_t size = tensor.bytes.size() / parts;
  std::fill_n(tensor.bytes.begin() + std::ptrdiff_t(part * size), size, std::byte{0xff});
}

std::string text_of(const HttpAnswer& answer) {
  EXPECT_EQ(answer.status, 200) << answer.body;
  return answer.status == 200 ? answer.json()["choices"][0]["text"].get<std::string>() : "";
}

void expect_refused(const HttpAnswer& answer, const std::string& layer) {
  EXPECT_EQ(answer.status, 500) << answer.body;
  const Json error = answer.json()["error"];
  EXPECT_EQ(error["type"], "server_error");
  EXPECT_EQ(error["code"], 500);
  const std::string message = error["message"];
  EXPECT_NE(message.find("not finite"), std::string::npos) << message;
  EXPECT_NE(message.find(layer), std::string::npos) << message;
}

// The requests in `bad` fail, all at once with four whose answers are known, twice (what was kept of a bad prompt must
// not matter), and the server lives.
void expect_only_these_fail(ServerRig& rig, const std::vector<Json>& bad, const std::string& layer,
                            const std::string& expected) {
  for (int round = 0; round < 2; ++round) {
    std::vector<std::thread> threads;
    std::atomic<int> right{0};
    for (int i = 0; i < 4; ++i)
      threads.emplace_back(
          [&] { right += text_of(rig.post("/v1/completions", completion_body(kStory, 24))) == expected; });
    for (const Json& body : bad) expect_refused(rig.post("/v1/completions", body), layer);
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(right, 4);
  }
  EXPECT_EQ(rig.get("/health").status, 200);
  EXPECT_TRUE(eventually([&] { return rig.loop().snapshot().scheduler.running == 0; }));
}

TEST(NotANumber, E20_OneTokensEmbedding) {
  const std::string expected = text_of(shared_rig().post("/v1/completions", completion_body(kStory, 24)));
  const TokenId poison = shared_rig().tokenizer().encode(" zebra").front();
  RigSetup setup;
  setup.edit = [poison](EditableCheckpoint& model) {
    EditableTensor& embedding = model.tensors.at("token_embd.weight");
    model.tensors["output.weight"] = embedding;  // the logits of all stay as they are
    spoil(embedding, size_t(poison), 16384);
  };
  ServerRig rig(setup);
  std::string longer = " zebra";
  for (int i = 0; i < 300; ++i) longer += " cat";
  expect_only_these_fail(
      rig,
      {completion_body(" zebra", 4), completion_body(longer, 4), completion_body(std::string(kStory) + " zebra", 4)},
      "layer 0", expected);
  // In the middle of a stream it is an event, and the last one.
  Json body = completion_body("the", 4);
  body["stream"] = true;
  body["logit_bias"] = {{std::to_string(poison), 1e6}};
  const HttpAnswer streamed = rig.post("/v1/completions", body);
  EXPECT_EQ(streamed.status, 200);
  EXPECT_EQ(streamed.chunks().back()["error"]["code"], 500);
  // Logits of a prompt, too.
  body = completion_body("a zebra and a cat", 0);
  body["echo"] = true;
  body["logprobs"] = 1;
  expect_refused(rig.post("/v1/completions", body), "not finite");
}

// The expert of layer 5 that code uses most of those that the story never meets.
TEST(NotANumber, E20_OneExpert) {
  const Json code = completion_body("for (int i = 0; i < n; ++i) { sum += a[i] * b[i]; }\nreturn sum;", 24);
  constexpr int kLayer = 5;
  std::string expected;
  size_t expert = 0;
  {
    ServerRig rig;
    expected = text_of(rig.post("/v1/completions", completion_body(kStory, 24)));
    const auto story = rig.loop().expert_uses()[kLayer];
    text_of(rig.post("/v1/completions", code));
    const auto all = rig.loop().expert_uses()[kLayer];
    for (size_t e = 0; e < story.size(); ++e)
      if (story[e] == 0 && (story[expert] > 0 || all[e] > all[expert])) expert = e;
    ASSERT_EQ(story[expert], 0u);
    ASSERT_GT(all[expert], 0u);
  }
  RigSetup setup;
  setup.edit = [expert](EditableCheckpoint& model) {
    spoil(model.tensors.at("blk.5.ffn_down_exps.weight"), expert, 32);
  };
  ServerRig rig(setup);
  expect_only_these_fail(rig, {code}, "layer 6", expected);
}

}  // namespace
}  // namespace ef::testing
