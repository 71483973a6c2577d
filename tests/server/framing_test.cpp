// How requests are framed and coded: what is not understood is named, and never taken for the next request.
#include <gtest/gtest.h>

#include "tests/server/rig.h"

namespace ef::testing {
namespace {

TEST(Framing, TransferCodingsOtherThanChunkedAreNotImplemented) {
  ServerRig& rig = shared_rig();
  const std::string smuggled = "GET /health HTTP/1.1\r\nHost: x\r\n\r\n";
  for (const char* coding : {"gzip", "identity", "gzip, chunked", "chunked, chunked", "x"})
    for (const bool half_closed : {false, true}) {
      Client client(rig.port());
      client.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: " + std::string(coding) + "\r\n\r\n" +
                  smuggled);
      if (half_closed) client.shut_sending();
      const HttpAnswer answer = client.answer();
      EXPECT_EQ(answer.status, 501) << coding;
      EXPECT_TRUE(answer.json()["error"]["message"].is_string());
      EXPECT_EQ(answer.headers.at("connection"), "close");
      EXPECT_TRUE(client.at_end()) << coding << ": what follows is no request";
    }
  Client chunked(rig.port());
  const std::string body = completion_body("a cat", 2).dump();
  chunked.send(
      fmt::format("POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\n\r\n{:x}\r\n{}\r\n"
                  "0\r\n\r\n",
                  body.size(), body));
  EXPECT_EQ(chunked.answer().status, 200);
}

// What stands beside chunks has to fit the buffer: it does not fill the memory.
TEST(Framing, NothingBesideChunksIsKeptWithoutLimit) {
  ServerRig& rig = shared_rig();
  const std::string head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
  std::string trailers = "2\r\n{}\r\n0\r\n";
  while (trailers.size() < 2 << 20) trailers += "A: some trailer\r\n";
  for (const std::string& rest : {"1;a=" + std::string(2 << 20, 'x'), trailers}) {
    Client client(rig.port());
    client.send(head + rest);
    EXPECT_EQ(client.answer().status, 400);
    EXPECT_TRUE(client.at_end());
  }
}

TEST(Framing, ContentCodingsAreRefused) {
  ServerRig& rig = shared_rig();
  for (const char* path : {"/v1/completions", "/v1/chat/completions", "/tokenize"}) {
    Client client(rig.port());
    const HttpAnswer answer = client.post(path, std::string("\x1f\x8b\x08"), "Content-Encoding: gzip\r\n");
    EXPECT_EQ(answer.status, 415);
    EXPECT_EQ(answer.headers.at("accept-encoding"), "identity");
    EXPECT_NE(answer.json()["error"]["message"].get<std::string>().find("gzip"), std::string::npos);
    EXPECT_EQ(client.post("/v1/completions", completion_body("a cat", 2), "Content-Encoding: identity\r\n").status, 200)
        << "on the same connection";
  }
}

TEST(Framing, ExpectationsAreMetOrRefused) {
  ServerRig& rig = shared_rig();
  Client client(rig.port());
  const std::string body = completion_body("a cat", 2).dump();
  EXPECT_EQ(client.post("/v1/completions", body, "Expect: 100-Continue\r\n").status, 200);
  EXPECT_EQ(client.interim_responses(), 1);
  EXPECT_EQ(client.post("/v1/completions", body, "Expect: miracles\r\n").status, 417);
  EXPECT_TRUE(client.at_end());
}

}  // namespace
}  // namespace ef::testing
