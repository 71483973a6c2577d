// Long requests are read apart from the threads that serve connections, by a few threads, and only while they are
// wanted.
#include <gtest/gtest.h>

#include "tests/server/rig.h"

namespace ef::testing {
namespace {

std::string long_text(size_t bytes = 100000) {
  std::string text;
  while (text.size() < bytes) text += "Once upon a time. ";
  return text;
}
std::string tokenize_request(const std::string& text = long_text()) {
  return Client::request("POST", "/tokenize", Json{{"content", text}}.dump());
}

// Every look of the readers waits at the gate.
class Reading : public ::testing::Test {
 protected:
  StepGate gate;
  static RigSetup setup(int threads, int max_queue = 512) {
    RigSetup s;
    s.server.reading_threads = threads;
    s.server.max_queue = max_queue;
    return s;
  }
  void hold(ServerRig& rig) {
    rig.before_end = [this] { gate.open(); };
    rig.api().reading().on_check = [hook = gate.hook()] { hook(Batch{}); };
  }
};

TEST_F(Reading, OthersAreServedMeanwhile) {
  ServerRig rig(setup(1));
  hold(rig);
  Client reader(rig.port());
  reader.send(tokenize_request());
  gate.wait_arrived(1);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(rig.get("/health").status, 200);  // more than there are I/O threads
  EXPECT_EQ(rig.post("/tokenize", Json{{"content", "a cat"}}).status, 200);
  EXPECT_EQ(rig.post("/v1/completions", completion_body("a cat", 2)).status, 200);
  const auto counts = rig.api().reading().counts();
  EXPECT_EQ(counts.threads, 1);
  EXPECT_EQ(counts.running, 1);
  const std::string metrics = rig.get("/metrics").body;
  EXPECT_NE(metrics.find("expertflow:reading_threads{model_name=\"demo-Q5_K_M.gguf\",engine=\"0\"} 1\n"),
            std::string::npos);
  EXPECT_NE(metrics.find("state=\"running\"} 1\n"), std::string::npos);
  EXPECT_EQ(gate.arrived(), 1);  // the short ones were read at once, where they came
  gate.open();
  const HttpAnswer answer = reader.answer();
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.json()["tokens"], Json(rig.tokenizer().encode(long_text(), {false, true})));
  EXPECT_TRUE(eventually([&] { return rig.api().reading().counts().running == 0; }));
}

// Of every kind: none is read a bit further when its client has left, and none has an answer computed.
TEST_F(Reading, StopsWhenTheClientLeaves) {
  ServerRig rig(setup(1));
  hold(rig);
  const std::string text = long_text();
  Json list = Json::array({text, text});
  const std::vector<std::pair<const char*, Json>> kinds{{"/tokenize", {{"content", text}}},
                                                        {"/v1/completions", completion_body(text)},
                                                        {"/v1/completions", completion_body(list)},
                                                        {"/v1/chat/completions", chat_body(text)},
                                                        {"/apply-template", chat_body(text)}};
  int looks = 0;
  uint64_t lost = 0;
  for (const auto& [path, body] : kinds) {
    Client client(rig.port());
    client.send(Client::request("POST", path, body.dump()));
    gate.wait_arrived(looks + 1);
    gate.permit(2);  // into the body
    gate.wait_arrived(looks += 3);
    client.close();
    ++lost;
    ASSERT_TRUE(eventually([&] { return rig.http().lost_clients() == lost; })) << path;
    gate.permit();
    ASSERT_TRUE(eventually([&] { return rig.api().reading().counts().running == 0; })) << path;
    EXPECT_EQ(gate.arrived(), looks) << path;
  }
  EXPECT_EQ(rig.loop().snapshot().scheduler.steps, 0u);
}

TEST_F(Reading, EndsWithTheServer) {
  ServerRig rig(setup(1));
  hold(rig);
  Client running(rig.port()), waiting(rig.port());
  running.send(tokenize_request());
  gate.wait_arrived(1);
  waiting.send(tokenize_request());
  ASSERT_TRUE(eventually([&] { return rig.api().reading().counts().waiting == 1; }));
  rig.api().begin_shutdown();
  gate.permit(2);  // one look of each
  for (Client* client : {&running, &waiting}) {
    const HttpAnswer answer = client->answer();
    EXPECT_EQ(answer.status, 503);
    EXPECT_EQ(answer.json()["error"]["message"], "the server is shutting down");
    EXPECT_EQ(answer.headers.at("retry-after"), "5");
  }
  EXPECT_TRUE(rig.http().drain());
  EXPECT_EQ(gate.arrived(), 2);
}

TEST_F(Reading, AFullQueueIsSaidAndThoseThatLeaveMakeRoom) {
  ServerRig rig(setup(1, 1));
  hold(rig);
  Client first(rig.port()), second(rig.port()), third(rig.port());
  first.send(tokenize_request());
  gate.wait_arrived(1);
  second.send(tokenize_request());
  ASSERT_TRUE(eventually([&] { return rig.api().reading().counts().waiting == 1; }));
  third.send(tokenize_request());
  const HttpAnswer refused = third.answer();
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
  EXPECT_NE(refused.json()["error"]["message"].get<std::string>().find("the queue is full"), std::string::npos);
  second.close();
  ASSERT_TRUE(eventually([&] { return rig.api().reading().counts().waiting == 0; }));
  third.send(tokenize_request());
  ASSERT_TRUE(eventually([&] { return rig.api().reading().counts().waiting == 1; }));
  EXPECT_EQ(rig.api().reading().counts().threads, 1);
  EXPECT_EQ(gate.arrived(), 1);
  gate.open();
  EXPECT_EQ(first.answer().status, 200);
  EXPECT_EQ(third.answer().status, 200);
}

// Nothing is tokenized to find out what the bytes say already.
TEST_F(Reading, WhatCannotFitIsRefusedByItsBytes) {
  ServerRig rig(setup(1));
  int looks = 0;
  rig.api().reading().on_check = [&] { ++looks; };
  const int64_t context = rig.loop().context_length();
  const auto most = rig.tokenizer().most_bytes_per_token();
  ASSERT_TRUE(most);
  const std::string text(size_t(context) * *most + 1, 'a');
  for (const auto& [path, body] :
       std::vector<std::pair<const char*, Json>>{{"/v1/completions", completion_body(text)},
                                                 {"/v1/completions", completion_body(Json::array({"a", text}))},
                                                 {"/v1/chat/completions", chat_body(text)}}) {
    looks = 0;
    const HttpAnswer answer = rig.post(path, body);
    EXPECT_EQ(answer.status, 400) << path;
    const Json error = answer.json()["error"];
    EXPECT_EQ(error["code"], "context_length_exceeded");
    EXPECT_EQ(error["n_ctx"], context);
    EXPECT_GT(error["n_prompt_tokens"], context);
    const std::string message = error["message"];
    EXPECT_NE(message.find("maximum context length is " + std::to_string(context) + " tokens"), std::string::npos);
    EXPECT_NE(message.find(std::to_string(error["n_prompt_tokens"].get<int64_t>()) + " tokens"), std::string::npos);
    EXPECT_LT(looks, 200) << path;  // the JSON and the template
  }
  EXPECT_EQ(rig.post("/tokenize", Json{{"content", text}}).status, 200);
  // What may fit is counted, and then said exactly.
  const std::string less(size_t(context) * 2, '!');
  EXPECT_EQ(rig.post("/v1/completions", completion_body(less)).json()["error"]["n_prompt_tokens"],
            rig.tokenizer().encode(less).size());
}

}  // namespace
}  // namespace ef::testing
