// Clients that go away, bodies that are none, faults in the middle, many at once.
#include <gtest/gtest.h>

#include <set>

#include "expertflow/base/device_lost.h"
#include "expertflow/base/errors.h"
#include "tests/server/rig.h"

namespace ef::testing {
namespace {

// One step at a time: where the request is when its client goes, and how many steps it lives on, are facts.
class Disconnect : public ::testing::TestWithParam<bool> {
 protected:
  StepGate gate;
  RigSetup setup(int parallel) {
    RigSetup s;
    s.parallel = parallel;
    s.before_step = gate.hook();
    s.scheduler.prefill_chunk = 0;
    return s;
  }
  Json body(const std::string& prompt, int64_t tokens) const {
    Json b = completion_body(prompt, tokens);
    b["stream"] = GetParam();
    b["ignore_eos"] = true;
    return b;
  }
  static bool idle(ServerRig& rig) {
    const auto s = rig.loop().snapshot().scheduler;
    return s.running == 0 && s.waiting == 0;
  }
};

TEST_P(Disconnect, E10_InDecode) {
  ServerRig rig(setup(1));
  rig.before_end = [&] { gate.open(); };
  Client client(rig.port());
  client.send(Client::request("POST", "/v1/completions", body(kStory, 500).dump()));
  gate.permit(5);
  gate.wait_arrived(6);  // five tokens; the sixth step waits
  client.close();
  ASSERT_TRUE(eventually([&] { return rig.http().lost_clients() == 1; }));
  gate.permit();
  ASSERT_TRUE(eventually([&] { return idle(rig); }));
  EXPECT_EQ(gate.arrived(), 6);
  EXPECT_EQ(rig.get("/slots").json()[0]["is_processing"], false);
}

TEST_P(Disconnect, E10_InPrefill) {
  ServerRig rig(setup(1));
  rig.before_end = [&] { gate.open(); };
  std::string longer;
  for (int i = 0; i < 1500; ++i) longer += " cat";
  Client client(rig.port());
  client.send(Client::request("POST", "/v1/completions", body(longer, 5).dump()));
  gate.wait_arrived(1);
  gate.permit();
  gate.wait_arrived(2);  // the second of three chunks
  EXPECT_EQ(gate.rows(), 512);
  client.close();
  ASSERT_TRUE(eventually([&] { return rig.http().lost_clients() == 1; }));
  gate.permit();
  ASSERT_TRUE(eventually([&] { return idle(rig); }));
  EXPECT_EQ(gate.arrived(), 2);
}

TEST_P(Disconnect, E10_InTheQueue) {
  ServerRig rig(setup(1));
  rig.before_end = [&] { gate.open(); };
  Client first(rig.port()), second(rig.port());
  first.send(Client::request("POST", "/v1/completions", body(kStory, 50).dump()));
  gate.wait_arrived(1);
  second.send(Client::request("POST", "/v1/completions", body(kStory, 50).dump()));
  ASSERT_TRUE(eventually([&] { return rig.loop().queued() == 1; }));
  gate.permit(2);
  gate.wait_arrived(3);  // the second step has met it, and has no slot for it
  EXPECT_EQ(rig.loop().snapshot().scheduler.waiting, 1);
  second.close();
  ASSERT_TRUE(eventually([&] { return rig.http().lost_clients() == 1; }));
  gate.permit(2);  // the step at hand, and the one that begins without it
  ASSERT_TRUE(eventually([&] { return rig.loop().snapshot().scheduler.waiting == 0; }));
  EXPECT_EQ(rig.loop().snapshot().scheduler.running, 1);
  gate.open();
  EXPECT_EQ(first.answer().status, 200);
}

INSTANTIATE_TEST_SUITE_P(WholeAndStreamed, Disconnect, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Streamed" : "Whole"; });

TEST(Robustness, E12_BodiesThatAreNoJson) {
  ServerRig& rig = shared_rig();
  const std::vector<std::string> bodies{"",
                                        "{",
                                        "nonsense",
                                        "[]",
                                        "5",
                                        "{\"prompt\": \"\xff\xfe\"}",
                                        "{\"prompt\": \"\xc4\xe3\xba\xc3\"}",  // GBK
                                        "{\"prompt\": \"\\ud83d\"}",
                                        std::string("{\"prompt\": \"a\0b\"}", 17),
                                        std::string(100000, '['),
                                        "{\"prompt\":" + std::string(5000, '[') + std::string(5000, ']') + "}"};
  for (const std::string& body : bodies)
    for (const char* path : {"/v1/completions", "/v1/chat/completions", "/tokenize"}) {
      const HttpAnswer answer = Client(rig.port()).post(path, body);
      EXPECT_EQ(answer.status, 400) << body.substr(0, 30);
      EXPECT_TRUE(answer.json()["error"]["message"].is_string());
    }
  EXPECT_EQ(rig.post("/v1/completions", completion_body("a cat", 2)).status, 200);
}

// What would cost much more than it takes to ask for: refused by name, at once.
TEST(Robustness, RequestsThatAskForTooMuch) {
  ServerRig& rig = shared_rig();
  const auto refused = [&](const Json& body, const char* param, const char* path = "/v1/completions") {
    const HttpAnswer answer = rig.post(path, body);
    EXPECT_EQ(answer.status, 400) << param;
    EXPECT_EQ(answer.json()["error"]["param"], param) << answer.body.substr(0, 200);
  };
  const auto with = [](const char* name, const Json& value) {
    Json body = completion_body("a cat", 2);
    body[name] = value;
    return body;
  };
  Json many = completion_body(Json(std::vector<std::string>(64, "a")), 1);
  many["n"] = 64;
  refused(many, "n");
  refused(completion_body(Json(std::vector<std::string>(100000, "a"))), "prompt");
  refused(with("stop", std::vector<std::string>(1000, "x")), "stop");
  refused(with("stop", std::string(100000, 'x')), "stop");
  refused(with("stop_token_ids", std::vector<int>(100000, 5)), "stop_token_ids");
  refused(with("stop_token_ids", {4294967301}), "stop_token_ids");  // 2^32 + 5
  refused(with("logit_bias", {{4294967301, 1}}), "logit_bias");
  refused(with("logit_bias", {{-1, 1}}), "logit_bias");
  refused(with("logit_bias", {{"4294967301", 1}}), "logit_bias");
  refused(with("logit_bias", {{"99999", 1}}), "logit_bias");
  // Arguments of earlier calls are JSON within JSON.
  Json body = chat_body("x", 2);
  const std::string deep = "{\"a\": " + std::string(200000, '[') + std::string(200000, ']') + "}";
  body["messages"].push_back(
      {{"role", "assistant"},
       {"content", nullptr},
       {"tool_calls", {{{"type", "function"}, {"function", {{"name", "f"}, {"arguments", deep}}}}}}});
  EXPECT_EQ(rig.post("/v1/chat/completions", body).status, 200);  // this template does not look at it
  EXPECT_EQ(rig.get("/health").status, 200);
}

// Requests sent ahead beyond what is read hide the client's end: it is found all the same.
TEST(Robustness, AClientThatSentFarAheadIsSeenToGo) {
  StepGate gate;
  RigSetup setup;
  setup.parallel = 1;
  setup.before_step = gate.hook();
  ServerRig rig(setup);
  rig.before_end = [&] { gate.open(); };
  Client client(rig.port());
  std::string text = Client::request("POST", "/v1/completions", completion_body(kStory, 500).dump());
  while (text.size() < 200000) text += Client::request("GET", "/health");
  client.send(text);
  gate.wait_arrived(1);
  client.close();
  ASSERT_TRUE(eventually([&] { return rig.http().lost_clients() == 1; }));
  gate.permit();
  ASSERT_TRUE(eventually([&] { return rig.loop().snapshot().scheduler.running == 0; }));
  EXPECT_EQ(gate.arrived(), 1);
}

TEST(Robustness, WhatIsNoHttpOrTooLarge) {
  RigSetup setup;
  setup.server.max_body_mib = 1;
  ServerRig rig(setup);
  Client raw(rig.port());
  raw.send("\x16\x03\x01 this is no HTTP\r\n\r\n");
  EXPECT_EQ(raw.answer().status, 400);
  EXPECT_TRUE(raw.at_end());
  Client large(rig.port());
  large.send("POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n");
  EXPECT_EQ(large.answer().status, 413);
  Client headers(rig.port());
  headers.send("GET /health HTTP/1.1\r\nX: " + std::string(100000, 'a') + "\r\n\r\n");
  EXPECT_EQ(headers.answer().status, 431);
  EXPECT_EQ(rig.get("/health").status, 200);
}

// A request has so long to arrive, however slowly it comes; who says nothing is let go.
TEST(Robustness, RequestsThatDoNotArrive) {
  RigSetup setup;
  setup.load = false;
  setup.server.timeout = 0.2;
  ServerRig rig(setup);
  Client silent(rig.port());
  EXPECT_TRUE(silent.at_end());
  for (const std::string& part :
       {std::string("GET /hea"), std::string("GET /health HTTP/1.1\r\nX: "),
        std::string("POST /v1/completions HTTP/1.1\r\nContent-Length: 100\r\n\r\n{\"prompt\":"),
        std::string("POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n20\r\n{\"pr")}) {
    Client slow(rig.port());
    slow.send(part);
    const HttpAnswer answer = slow.answer();
    EXPECT_EQ(answer.status, 408) << part;
    EXPECT_EQ(answer.json()["error"]["type"], "invalid_request_error");
    EXPECT_TRUE(slow.at_end());
  }
}

TEST(Robustness, TargetsInAbsoluteForm) {
  Client client(shared_rig().port());
  client.send("GET http://example.org:80/health HTTP/1.1\r\nHost: example.org\r\n\r\n");
  EXPECT_EQ(client.answer().json()["status"], "ok");
}

TEST(Robustness, ConnectionsAreKeptAndRequestsMayFollowAtOnce) {
  Client client(shared_rig().port());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(client.post("/v1/completions", completion_body("a cat", 2)).status, 200);
  client.send(Client::request("POST", "/v1/completions", completion_body("a cat", 3).dump()) +
              Client::request("GET", "/health") + Client::request("GET", "/v1/models"));
  EXPECT_EQ(client.answer().json()["usage"]["completion_tokens"], 3);
  EXPECT_EQ(client.answer().json()["status"], "ok");
  EXPECT_EQ(client.answer().json()["object"], "list");
  client.send("GET /health HTTP/1.0\r\n\r\n");
  EXPECT_EQ(client.answer().status, 200);
  EXPECT_TRUE(client.at_end());
}

TEST(Robustness, E17_OneSlotAndManyClients) {
  RigSetup setup;
  setup.parallel = 1;
  ServerRig rig(setup);
  const std::string expected = rig.post("/v1/completions", completion_body(kStory, 4)).json()["choices"][0]["text"];
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int i = 0; i < 24; ++i)
    threads.emplace_back([&, i] {
      Client client(rig.port());
      for (int k = 0; k < 4; ++k) {
        Json body = completion_body(kStory, 4);
        body["stream"] = (i + k) % 2 == 0;
        const HttpAnswer answer = client.post("/v1/completions", body);
        std::string text;
        if (body["stream"])
          for (const Json& chunk : answer.chunks()) text += chunk["choices"][0]["text"];
        else
          text = answer.json()["choices"][0]["text"];
        right += text == expected;
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(right, 96);
  EXPECT_EQ(rig.get("/slots").json().size(), 1u);
}

TEST(Robustness, E18_ShortPromptsBehindALongOneComeInTwoSteps) {
  StepGate gate;
  RigSetup setup;
  setup.parallel = 11;
  setup.ctx_size = 4096;
  setup.scheduler.prefill_chunk = 0;
  setup.before_step = gate.hook();
  ServerRig rig(setup);
  rig.before_end = [&] { gate.open(); };
  std::string longer;
  for (int i = 0; i < 1800; ++i) longer += " cat";
  Client lengthy(rig.port());
  lengthy.send(Client::request("POST", "/v1/completions", completion_body(longer, 2).dump()));
  gate.wait_arrived(1);
  std::vector<std::unique_ptr<Client>> shorts;
  for (int i = 0; i < 10; ++i) {
    shorts.push_back(std::make_unique<Client>(rig.port()));
    shorts.back()->send(Client::request("POST", "/v1/completions", completion_body("a cat and a dog", 1).dump()));
  }
  ASSERT_TRUE(eventually([&] { return rig.loop().queued() == 10; }));
  gate.permit(2);  // the chunk that was under way, and the step with all of them
  for (auto& client : shorts) EXPECT_EQ(client->answer().status, 200);
  EXPECT_LE(gate.arrived(), 3);
  gate.open();
  EXPECT_EQ(lengthy.answer().status, 200);
}

// A fault that only one request meets: it gets a 500, its neighbours get their answers.
TEST(Robustness, E20_AFaultFailsOnlyItsRequest) {
  const TokenId poison = shared_rig().tokenizer().encode(" zebra").front();
  RigSetup setup;
  setup.before_step = [poison](const Batch& batch) {
    for (const auto& piece : batch.pieces)
      for (const TokenId token : piece.tokens)
        if (token == poison) throw DeviceError("layer 3: expert 7 could not be read");
  };
  ServerRig rig(setup);
  const std::string expected = rig.post("/v1/completions", completion_body(kStory, 24)).json()["choices"][0]["text"];
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&] {
      right += rig.post("/v1/completions", completion_body(kStory, 24)).json()["choices"][0]["text"] == expected;
    });
  const HttpAnswer failed = rig.post("/v1/completions", completion_body(" zebra", 4));
  EXPECT_EQ(failed.status, 500);
  EXPECT_EQ(failed.json()["error"]["type"], "server_error");
  EXPECT_NE(failed.body.find("layer 3"), std::string::npos);
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(right, 3);
  // In the middle of a stream it is an event.
  Json body = completion_body("the", 4);
  body["stream"] = true;
  body["logit_bias"] = {{std::to_string(poison), 1e6}};
  const HttpAnswer streamed = rig.post("/v1/completions", body);
  EXPECT_EQ(streamed.status, 200);
  EXPECT_EQ(streamed.chunks().back()["error"]["code"], 500);
  EXPECT_EQ(rig.get("/health").status, 200);
}

// All under way, all that wait and all that come are told so; nothing is tried again.
TEST(Robustness, ALostDeviceIs503ForEverybody) {
  StepGate gate;
  std::atomic<int> steps{0};
  RigSetup setup;
  setup.parallel = 1;
  setup.before_step = [&, hold = gate.hook()](const Batch& batch) {
    hold(batch);
    if (++steps == 3) throw DeviceLostError("cuda: wait for a stream: cudaErrorIllegalAddress");
  };
  ServerRig rig(setup);
  rig.before_end = [&] { gate.open(); };
  Client decoding(rig.port()), waiting(rig.port());
  Json body = completion_body(kStory, 50);
  body["stream"] = true;
  decoding.send(Client::request("POST", "/v1/completions", body.dump()));
  gate.wait_arrived(1);
  waiting.send(Client::request("POST", "/v1/completions", completion_body("a cat", 2).dump()));
  ASSERT_TRUE(eventually([&] { return rig.loop().queued() == 1; }));
  EXPECT_EQ(rig.get("/health").status, 200);
  gate.open();
  const HttpAnswer streamed = decoding.answer();
  EXPECT_EQ(streamed.status, 200);
  EXPECT_EQ(streamed.chunks().back()["error"]["code"], "device_lost");
  for (const HttpAnswer& answer :
       {waiting.answer(), rig.post("/v1/completions", completion_body("a cat", 2)),
        rig.post("/v1/chat/completions", chat_body("a cat", 2)), rig.get("/health"), rig.get("/v1/health")}) {
    EXPECT_EQ(answer.status, 503);
    const Json error = answer.json()["error"];
    EXPECT_EQ(error["type"], "unavailable_error");
    EXPECT_EQ(error["code"], "device_lost");
    EXPECT_NE(error["message"].get<std::string>().find("cudaErrorIllegalAddress"), std::string::npos) << error;
  }
  EXPECT_EQ(steps, 3);
  EXPECT_EQ(rig.get("/metrics").status, 200);
}

TEST(Robustness, AFullQueueIs503) {
  StepGate gate;
  RigSetup setup;
  setup.parallel = 1;
  setup.server.max_queue = 2;
  setup.before_step = gate.hook();
  ServerRig rig(setup);
  rig.before_end = [&] { gate.open(); };
  std::vector<std::unique_ptr<Client>> clients;
  const auto ask = [&] {
    clients.push_back(std::make_unique<Client>(rig.port()));
    clients.back()->send(Client::request("POST", "/v1/completions", completion_body("a cat", 2).dump()));
  };
  ask();
  gate.wait_arrived(1);
  ask();
  ask();
  ASSERT_TRUE(eventually([&] { return rig.loop().queued() == 2; }));
  const HttpAnswer refused = rig.post("/v1/completions", completion_body("a cat", 2));
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.json()["error"]["type"], "unavailable_error");
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
  gate.open();
  for (auto& client : clients) EXPECT_EQ(client->answer().status, 200);
}

TEST(Robustness, DrainingFinishesWhatIsUnderWay) {
  StepGate gate;
  RigSetup setup;
  setup.before_step = gate.hook();
  ServerRig rig(setup);
  rig.before_end = [&] { gate.open(); };
  Client client(rig.port()), idle(rig.port());
  EXPECT_EQ(idle.get("/health").status, 200);
  client.send(Client::request("POST", "/v1/completions", completion_body(kStory, 6).dump()));
  gate.wait_arrived(1);
  rig.api().begin_shutdown();
  EXPECT_EQ(idle.get("/health").status, 503);
  const HttpAnswer late = idle.post("/v1/completions", completion_body("x", 1));
  EXPECT_EQ(late.status, 503);
  EXPECT_EQ(late.headers.at("retry-after"), "5");
  std::thread drain([&] { EXPECT_TRUE(rig.http().drain()); });
  gate.open();
  const HttpAnswer answer = client.answer();
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.json()["usage"]["completion_tokens"], 6);
  drain.join();
}

}  // namespace
}  // namespace ef::testing
