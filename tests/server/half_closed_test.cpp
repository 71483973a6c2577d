// Clients that shut their sending side: those that still read get their answer, those that are gone give their slot
// back. What differs is whether their machine refuses what it is sent.
#include <gtest/gtest.h>

#include "tests/server/rig.h"

namespace ef::testing {
namespace {

class HalfClosed : public ::testing::TestWithParam<bool> {
 protected:
  StepGate gate;
  RigSetup setup() {
    RigSetup s;
    s.parallel = 1;
    s.before_step = gate.hook();
    return s;
  }
  std::string request(int64_t tokens = 6) const {
    Json b = completion_body(kStory, tokens);
    b["stream"] = GetParam();
    b["ignore_eos"] = true;
    return Client::request("POST", "/v1/completions", b.dump());
  }
  static size_t tokens_of(const HttpAnswer& answer) {
    if (!GetParam()) return answer.json()["usage"]["completion_tokens"];
    EXPECT_EQ(answer.events().back(), "[DONE]");
    size_t n = 0;
    for (const Json& chunk : answer.chunks()) n += chunk["choices"][0]["finish_reason"].is_null();
    return n;
  }
  static bool idle(ServerRig& rig) {
    const auto s = rig.loop().snapshot().scheduler;
    return s.running == 0 && s.waiting == 0;
  }
};

TEST_P(HalfClosed, ThoseThatReadAreAnsweredFromEveryStage) {
  ServerRig rig(setup());
  rig.before_end = [&] { gate.open(); };
  Client running(rig.port()), waiting(rig.port());
  running.send(request());
  gate.permit(3);
  gate.wait_arrived(4);  // it decodes
  waiting.send(request());
  ASSERT_TRUE(eventually([&] { return rig.loop().queued() == 1; }));
  running.shut_sending();
  waiting.shut_sending();
  waiting.wait_bytes(1);  // the server has seen it, and asks
  gate.open();
  const HttpAnswer first = running.answer(), second = waiting.answer();
  EXPECT_EQ(first.status, 200);
  EXPECT_EQ(second.status, 200);
  EXPECT_LE(tokens_of(first), 6u);
  EXPECT_GE(waiting.interim_responses(), 1);
  EXPECT_TRUE(running.at_end());
  EXPECT_TRUE(waiting.at_end());
  EXPECT_EQ(rig.http().lost_clients(), 0u);
}

TEST_P(HalfClosed, ThoseThatGoAfterwardsAreSeenToo) {
  ServerRig rig(setup());
  rig.before_end = [&] { gate.open(); };
  Client client(rig.port());
  client.send(request(500));
  gate.permit(3);
  gate.wait_arrived(4);
  client.shut_sending();
  // Nothing is sent at a close any more: only the next probe finds out.
  ASSERT_TRUE(eventually([&] { return rig.http().probes() >= 1; }));
  EXPECT_EQ(rig.http().lost_clients(), 0u);
  client.close();
  ASSERT_TRUE(eventually([&] { return rig.http().lost_clients() == 1; }));
  gate.permit();
  ASSERT_TRUE(eventually([&] { return idle(rig); }));
  EXPECT_EQ(gate.arrived(), 4);
}

TEST_P(HalfClosed, WhatWasSentBeforeIsAnsweredInOrder) {
  ServerRig rig(setup());
  gate.open();
  Client client(rig.port());
  client.send(request() + request() + Client::request("GET", "/health"));
  client.shut_sending();
  EXPECT_EQ(client.answer().status, 200);
  EXPECT_EQ(client.answer().status, 200);
  EXPECT_EQ(client.answer().json()["status"], "ok");
  EXPECT_TRUE(client.at_end());
}

// HTTP/1.0 has no interim responses: there the end of sending is the end.
TEST_P(HalfClosed, OldClientsCountAsGone) {
  ServerRig rig(setup());
  rig.before_end = [&] { gate.open(); };
  Client client(rig.port());
  std::string text = request(500);
  client.send(text.replace(text.find("HTTP/1.1"), 8, "HTTP/1.0"));
  gate.wait_arrived(1);
  client.shut_sending();
  ASSERT_TRUE(eventually([&] { return rig.http().lost_clients() == 1; }));
  gate.permit();
  ASSERT_TRUE(eventually([&] { return idle(rig); }));
  EXPECT_EQ(gate.arrived(), 1);
}

INSTANTIATE_TEST_SUITE_P(WholeAndStreamed, HalfClosed, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Streamed" : "Whole"; });

// A refusal reaches clients that are still sending: no reset overtakes it.
TEST(HalfClosed, ARefusalReachesWhoStillSends) {
  RigSetup setup;
  setup.server.max_body_mib = 1;
  setup.load = false;
  ServerRig rig(setup);
  for (int i = 0; i < 20; ++i) {
    Client client(rig.port());
    client.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 4000000\r\n\r\n" +
                std::string(4000000, 'x'));
    EXPECT_EQ(client.answer().status, 413);
    EXPECT_TRUE(client.at_end());
  }
}

}  // namespace
}  // namespace ef::testing
