// One file from a server on this machine, over libcurl: cuts, changes, refusals. Digests are published vectors or come
// from coreutils and git.
#include "expertflow/hub/download.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/http_server.h"
#include "tests/support/temp_folder.h"

namespace ef::testing {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

const std::string kBody = "The quick brown fox jumps over the lazy dog";
// printf '%s' "..." | sha256sum
constexpr const char* kSha256 = "d7a8fbb307d7809469ca9abcb0082e4f8d5651e46d3cdb762d02d0bf37c9e592";

class Download : public ::testing::Test {
 protected:
  Download() {
    policy.sleep = [this](milliseconds wait) { waits.push_back(wait); };
    policy.warn = [this](const std::string& text) { warnings.push_back(text); };
  }
  DownloadFile file(const HttpServer& server, const std::string& path = "/file") const {
    return {server.url() + path, folder.path / "file", std::nullopt, {kSha256, ""}};
  }
  std::string content() const { return read(folder.path / "file"); }
  static std::string read(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder.path / name, std::ios::binary) << text;
  }
  bool only_the_file() const {
    return !fs::exists(folder.path / "file.part") && !fs::exists(folder.path / "file.part.etag");
  }

  TempFolder folder;
  DownloadPolicy policy;
  std::vector<milliseconds> waits;
  std::vector<std::string> warnings;
  std::unique_ptr<HttpClient> client = make_curl_client(std::chrono::seconds(10));
};

template <class E>
std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const E& error) {
    return error.what();
  }
  return "no such exception";
}

#define EXPECT_HOLDS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST_F(Download, WholeFileAndProgress) {
  HttpServer server([](const ServedRequest& r) { return serve_file(r, kBody, "\"one\""); });
  uint64_t last = 0;
  const auto result =
      download(*client, file(server), policy, [&](uint64_t done, std::optional<uint64_t>) { last = done; });
  EXPECT_EQ(result, DownloadResult::kDownloaded);
  EXPECT_EQ(content(), kBody);
  EXPECT_EQ(last, kBody.size());
  EXPECT_TRUE(only_the_file());
  // Again: nothing is asked for.
  EXPECT_EQ(download(*client, file(server), policy), DownloadResult::kAlreadyThere);
  EXPECT_EQ(server.requests().size(), 1u);
  EXPECT_TRUE(waits.empty());
}

TEST_F(Download, ACutConnectionIsContinued) {
  int answers = 0;
  HttpServer server([&](const ServedRequest& r) {
    ServedAnswer answer = serve_file(r, kBody, "\"one\"");
    if (answers++ < 2) answer.cut_after = 10;
    return answer;
  });
  download(*client, file(server), policy);
  EXPECT_EQ(content(), kBody);
  const auto requests = server.requests();
  ASSERT_EQ(requests.size(), 3u);
  EXPECT_EQ(requests[0].header("range"), "");
  EXPECT_EQ(requests[1].header("range"), "bytes=10-");
  EXPECT_EQ(requests[1].header("if-range"), "\"one\"");
  EXPECT_EQ(requests[2].header("range"), "bytes=20-");
  EXPECT_EQ(waits, (std::vector{milliseconds(1000), milliseconds(2000)}));
}

TEST_F(Download, APartOfAnEarlierRunIsContinued) {
  HttpServer server([](const ServedRequest& r) { return serve_file(r, kBody, "\"one\""); });
  write("file.part", kBody.substr(0, 20));
  write("file.part.etag", "\"one\"\n");
  download(*client, file(server), policy);
  EXPECT_EQ(content(), kBody);
  EXPECT_EQ(server.requests()[0].header("range"), "bytes=20-");
  EXPECT_TRUE(only_the_file());
}

TEST_F(Download, AFileThatChangedMeanwhileStartsAnew) {
  HttpServer server([](const ServedRequest& r) { return serve_file(r, kBody, "\"two\""); });
  write("file.part", "other bytes of another day");
  write("file.part.etag", "\"one\"\n");
  download(*client, file(server), policy);
  EXPECT_EQ(content(), kBody);
  EXPECT_EQ(server.requests()[0].header("if-range"), "\"one\"");
  EXPECT_EQ(server.requests().size(), 1u);
}

TEST_F(Download, APartWithoutATagIsNotTrusted) {
  HttpServer server([](const ServedRequest& r) { return serve_file(r, kBody, "\"one\""); });
  write("file.part", "who knows");
  download(*client, file(server), policy);
  EXPECT_EQ(content(), kBody);
  EXPECT_EQ(server.requests()[0].header("range"), "");
}

TEST_F(Download, ServersWithoutRangesStartAnew) {
  int answers = 0;
  HttpServer server([&](const ServedRequest&) {
    ServedAnswer answer;
    answer.headers.emplace_back("ETag", "\"one\"");
    answer.body = kBody;
    if (answers++ == 0) answer.cut_after = 10;
    return answer;
  });
  download(*client, file(server), policy);
  EXPECT_EQ(content(), kBody);
  EXPECT_EQ(server.requests().size(), 2u);
}

TEST_F(Download, APartThatIsTheWholeFile) {
  HttpServer server([](const ServedRequest& r) { return serve_file(r, kBody, "\"one\""); });
  write("file.part", kBody);
  write("file.part.etag", "\"one\"\n");
  download(*client, file(server), policy);
  EXPECT_EQ(content(), kBody);
}

TEST_F(Download, APartLongerThanTheFile) {
  HttpServer server([](const ServedRequest& r) { return serve_file(r, kBody, "\"one\""); });
  write("file.part", kBody + "and more");
  write("file.part.etag", "\"one\"\n");
  download(*client, file(server), policy);
  EXPECT_EQ(content(), kBody);
}

TEST_F(Download, AnAnswerWithAnotherRangeIsNotAppended) {
  int answers = 0;
  HttpServer server([&](const ServedRequest& r) {
    ServedAnswer answer = serve_file(r, kBody, "\"one\"");
    if (answers++ == 0) {
      answer.status = 206;
      answer.body = kBody.substr(5);
      answer.headers = {{"ETag", "\"one\""}, {"Content-Range", "bytes 5-42/43"}};
    }
    return answer;
  });
  write("file.part", kBody.substr(0, 20));
  write("file.part.etag", "\"one\"\n");
  download(*client, file(server), policy);
  EXPECT_EQ(content(), kBody);
}

TEST_F(Download, AWrongChecksumIsTriedOnceMore) {
  int answers = 0;
  HttpServer server([&](const ServedRequest& r) {
    return serve_file(r, answers++ == 0 ? "The quick brown fox jumps over the lazy cat" : kBody, "\"one\"");
  });
  download(*client, file(server), policy);
  EXPECT_EQ(content(), kBody);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_HOLDS(warnings[0], kSha256);
  // Twice wrong: nothing is left.
  fs::remove(folder.path / "file");
  HttpServer wrong([](const ServedRequest& r) { return serve_file(r, "something else", "\"one\""); });
  EXPECT_HOLDS(message_of<DeviceError>([&] { download(*client, file(wrong), policy); }), kSha256);
  EXPECT_TRUE(fs::is_empty(folder.path));
  EXPECT_EQ(wrong.requests().size(), 2u);
}

TEST_F(Download, GitsNameOfTheContent) {
  HttpServer server([](const ServedRequest& r) { return serve_file(r, "hello world\n", "\"one\""); });
  // echo 'hello world' | git hash-object --stdin
  DownloadFile f = file(server);
  f.checksum = {"", "3b18e512dba79e4c8300dd08aeb37f8e728b8dad"};
  f.size = 12;
  EXPECT_EQ(download(*client, f, policy), DownloadResult::kDownloaded);
  EXPECT_EQ(download(*client, f, policy), DownloadResult::kAlreadyThere);
  f.size = 11;
  EXPECT_HOLDS(message_of<RequestError>([&] { download(*client, f, policy); }), "expected 11 bytes");
}

TEST_F(Download, Refusals) {
  int status = 0;
  HttpServer server([&](const ServedRequest&) { return ServedAnswer{status, {}, "no", {}}; });
  for (const auto& [code, part] :
       {std::pair{401, "HF_TOKEN"}, {403, "conditions"}, {404, "revision"}, {416, "range"}, {418, "418"}}) {
    status = code;
    EXPECT_HOLDS(message_of<RequestError>([&] { download(*client, file(server), policy); }), part);
  }
  EXPECT_EQ(server.requests().size(), 5u) << "none is tried again";
  EXPECT_FALSE(fs::exists(folder.path / "file"));
}

TEST_F(Download, BusyServersAreAskedAgain) {
  int answers = 0;
  HttpServer server([&](const ServedRequest& r) {
    ++answers;
    if (answers == 1) return ServedAnswer{503, {}, "", {}};
    if (answers == 2) return ServedAnswer{429, {{"Retry-After", "7"}}, "", {}};
    return serve_file(r, kBody, "\"one\"");
  });
  download(*client, file(server), policy);
  EXPECT_EQ(content(), kBody);
  EXPECT_EQ(waits, (std::vector{milliseconds(1000), milliseconds(7000)}));
}

TEST_F(Download, PatienceEnds) {
  HttpServer server([](const ServedRequest&) { return ServedAnswer{500, {}, "", {}}; });
  policy.attempts = 3;
  EXPECT_HOLDS(message_of<DeviceError>([&] { download(*client, file(server), policy); }), "500");
  EXPECT_EQ(server.requests().size(), 3u);
  EXPECT_EQ(waits.size(), 2u);
}

TEST_F(Download, ATokenStaysWithItsHost) {
  HttpServer cdn([](const ServedRequest& r) { return serve_file(r, kBody, "\"cdn\""); });
  HttpServer hub([&](const ServedRequest& r) {
    if (r.path == "/file") return ServedAnswer{302, {{"Location", "/moved"}, {"X-Linked-ETag", "x"}}, "", {}};
    return ServedAnswer{302, {{"Location", cdn.url() + "/blob?signature=1"}}, "", {}};
  });
  policy.credentials = {http_origin(hub.url()), "hf_secret"};
  download(*client, file(hub), policy);
  EXPECT_EQ(content(), kBody);
  ASSERT_EQ(hub.requests().size(), 2u);
  EXPECT_EQ(hub.requests()[0].header("authorization"), "Bearer hf_secret");
  EXPECT_EQ(hub.requests()[1].header("authorization"), "Bearer hf_secret");
  ASSERT_EQ(cdn.requests().size(), 1u);
  EXPECT_EQ(cdn.requests()[0].headers.count("authorization"), 0u);
}

TEST_F(Download, RedirectsWithoutEndOrToOtherSchemes) {
  std::string location = "/file";
  HttpServer server([&](const ServedRequest&) { return ServedAnswer{302, {{"Location", location}}, "", {}}; });
  EXPECT_HOLDS(message_of<DeviceError>([&] { download(*client, file(server), policy); }), "redirects");
  location = "file:///etc/passwd";
  EXPECT_HOLDS(message_of<DeviceError>([&] { download(*client, file(server), policy); }), "not followed");
}

TEST_F(Download, TlsToAServerWithoutIt) {
  HttpServer server([](const ServedRequest& r) { return serve_file(r, kBody, "\"one\""); });
  DownloadFile f = file(server);
  f.url.replace(0, 4, "https");
  EXPECT_HOLDS(message_of<DeviceError>([&] { download(*client, f, policy); }), "TLS");
  EXPECT_TRUE(waits.empty());
}

TEST_F(Download, NobodyListens) {
  std::string url;
  {
    HttpServer gone([](const ServedRequest&) { return ServedAnswer{}; });
    url = gone.url();
  }
  policy.attempts = 2;
  EXPECT_THROW(download(*client, {url + "/file", folder.path / "file", {}, {}}, policy), HttpFailure);
  EXPECT_EQ(waits.size(), 1u);
}

TEST(Http, Origins) {
  EXPECT_EQ(http_origin("https://Hub.example/a"), "https://hub.example:443");
  EXPECT_EQ(http_origin("http://h:8080?x"), "http://h:8080");
  EXPECT_EQ(http_origin("https://user@hub.example/a"), "https://hub.example:443");
  EXPECT_EQ(http_origin("https://[::1]/a"), "https://[::1]:443");
  EXPECT_EQ(http_origin("ftp://h/"), "");
  EXPECT_EQ(http_origin("owner/name"), "");
}

// RFC 3986, section 5.4, those of its examples that servers use.
TEST(Http, Locations) {
  const std::string base = "http://a/b/c/d;p?q";
  EXPECT_EQ(resolve_location(base, "g"), "http://a/b/c/g");
  EXPECT_EQ(resolve_location(base, "/g"), "http://a/g");
  EXPECT_EQ(resolve_location(base, "//g"), "http://g");
  EXPECT_EQ(resolve_location(base, "http://x/y"), "http://x/y");
}

TEST(Digest, PublishedVectors) {
  // FIPS 180-2, appendix B.1 and A.1: "abc".
  const std::string abc = "abc";
  Digest sha256(Digest::Kind::kSha256), sha1(Digest::Kind::kSha1);
  sha256.update(std::as_bytes(std::span(abc)));
  sha1.update(std::as_bytes(std::span(abc)));
  EXPECT_EQ(sha256.finish(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha1.finish(), "a9993e364706816aba3e25717850c26c9cd0d89d");
}

}  // namespace
}  // namespace ef::testing
