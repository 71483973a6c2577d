// A small hub on this machine: its listing, which files are taken, whole pulls.
#include "expertflow/hub/pull.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/http_server.h"
#include "tests/support/temp_folder.h"

namespace ef::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const std::string kCommit = "0123456789abcdef0123456789abcdef01234567";
// sha256sum of "weights of the model\n"
constexpr const char* kWeights = "weights of the model\n";
constexpr const char* kWeightsSha256 = "eb28295a5a77caec1801a0b0e1034711134460719d6e7b89ba4baf6387eaafd4";
// git hash-object of "{}\n"
constexpr const char* kConfigBlob = "0967ef424bce6791893e9a57bb952f80fd536e93";

std::string sha256_of(const std::string& text) {
  Digest digest(Digest::Kind::kSha256);
  digest.update(std::as_bytes(std::span(text)));
  return digest.finish();
}

using Files = std::map<std::string, std::string>;

/// owner/name with these files; all in one page but the last.
class Hub {
 public:
  explicit Hub(Files files) : files_(std::move(files)), server_([this](const ServedRequest& r) { return answer(r); }) {}

  std::string url() const { return server_.url(); }
  std::vector<ServedRequest> requests() const { return server_.requests(); }
  std::string token;  ///< asked for if not empty
  std::string bad;    ///< path that the listing shows

 private:
  ServedAnswer answer(const ServedRequest& r) const {
    if (!token.empty() && r.header("authorization") != "Bearer " + token) return {401, {}, "", {}};
    const std::string api = "/api/models/owner/name", resolve = "/owner/name/resolve/" + kCommit + "/";
    if (r.path == api + "/revision/main" || r.path == api + "/revision/v1%2F2")
      return {200, {}, json{{"sha", kCommit}}.dump(), {}};
    if (r.path == api + "/tree/" + kCommit + "?recursive=true")
      return {200,
              {{"Link", "<" + url() + api + "/tree/" + kCommit + "?recursive=true&cursor=2>; rel=\"next\""}},
              list(true).dump(),
              {}};
    if (r.path == api + "/tree/" + kCommit + "?recursive=true&cursor=2") return {200, {}, list(false).dump(), {}};
    if (!r.path.starts_with(resolve)) return {404, {}, "", {}};
    const auto it = files_.find(r.path.substr(resolve.size()));
    return it == files_.end() ? ServedAnswer{404, {}, "", {}} : serve_file(r, it->second, "\"tag\"");
  }

  json list(bool first_page) const {
    json out = json::array();
    if (first_page) out.push_back({{"type", "directory"}, {"path", "original"}, {"oid", kCommit}, {"size", 0}});
    if (first_page && !bad.empty()) out.push_back({{"type", "file"}, {"path", bad}, {"size", 1}, {"oid", kCommit}});
    for (const auto& [path, body] : files_) {
      if ((path == files_.rbegin()->first) == first_page) continue;
      json entry = {{"type", "file"}, {"path", path}, {"size", body.size()}};
      if (body == "{}\n")
        entry["oid"] = kConfigBlob;
      else
        entry["lfs"] = {{"oid", sha256_of(body)}, {"size", body.size()}, {"pointerSize", 134}};
      out.push_back(std::move(entry));
    }
    return out;
  }

  std::map<std::string, std::string> files_;
  HttpServer server_;
};

PullOptions options_for(const Hub& hub, const fs::path& out, const std::string& address = "owner/name") {
  PullOptions options;
  options.address = address, options.out = out, options.endpoint = hub.url();
  options.policy.sleep = [](std::chrono::milliseconds) {};
  options.make_client = [] { return make_curl_client(std::chrono::seconds(10)); };
  return options;
}

std::map<std::string, std::string> files_in(const fs::path& folder) {
  std::map<std::string, std::string> out;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream in(entry.path(), std::ios::binary);
    out[entry.path().lexically_relative(folder).string()] = {std::istreambuf_iterator<char>(in), {}};
  }
  return out;
}

std::vector<std::string> names_of(const std::vector<HubFile>& files) {
  std::vector<std::string> out;
  for (const HubFile& file : files) out.push_back(file.path);
  return out;
}

std::string refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was refused";
}

#define EXPECT_HOLDS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST(Pull, WhatAModelNeedsFromAFolderOfSafetensors) {
  const Hub hub(Files{{"config.json", "{}\n"},
                      {"model-00001-of-00002.safetensors", kWeights},
                      {"model-00002-of-00002.safetensors", "more weights"},
                      {"model.safetensors.index.json", "{\"weight_map\": 1}"},
                      {"tokenizer.json", "{ }"},
                      {"README.md", "about"},
                      {"pytorch_model.bin", "pickled"},
                      {"original/model.safetensors", "another form"},
                      {"consolidated.safetensors", "another form"}});
  const TempFolder folder;
  uint64_t done = 0, total = 0;
  const PullReport report =
      pull(options_for(hub, folder.path / "m"), [&](uint64_t d, uint64_t t) { done = d, total = t; });
  const std::map<std::string, std::string> expected = {{"config.json", "{}\n"},
                                                       {"model-00001-of-00002.safetensors", kWeights},
                                                       {"model-00002-of-00002.safetensors", "more weights"},
                                                       {"model.safetensors.index.json", "{\"weight_map\": 1}"},
                                                       {"tokenizer.json", "{ }"}};
  EXPECT_EQ(files_in(folder.path / "m"), expected);
  EXPECT_EQ(report.downloaded.size(), 5u);
  EXPECT_EQ(done, total);
  EXPECT_EQ(total, report.bytes);
  // A second time everything is there.
  const PullReport again = pull(options_for(hub, folder.path / "m"));
  EXPECT_EQ(again.downloaded.size(), 0u);
  EXPECT_EQ(again.already_there.size(), 5u);
}

TEST(Pull, FilesAndPatterns) {
  HubRepository repository;
  for (const char* path : {"m-Q4_K_M.gguf", "m-Q8_0-00001-of-00003.gguf", "m-Q8_0-00002-of-00003.gguf",
                           "m-Q8_0-00003-of-00003.gguf", "mmproj-f16.gguf", "README.md", "sub/notes.txt"})
    repository.files.push_back({path, 1, {}});
  const auto chosen = [&](const std::string& pattern) {
    HubAddress address;
    address.repository = "owner/name", address.pattern = pattern;
    return names_of(choose_files(repository, address));
  };
  const std::vector<std::string> parts = {"m-Q8_0-00001-of-00003.gguf", "m-Q8_0-00002-of-00003.gguf",
                                          "m-Q8_0-00003-of-00003.gguf"};
  EXPECT_EQ(chosen("m-Q4_K_M.gguf"), std::vector<std::string>{"m-Q4_K_M.gguf"});
  EXPECT_EQ(chosen("m-Q8_0-00002-of-00003.gguf"), parts);
  EXPECT_EQ(chosen("q8_0"), parts);
  EXPECT_EQ(chosen("q4_k_m"), std::vector<std::string>{"m-Q4_K_M.gguf"});
  EXPECT_EQ(chosen("*.md"), std::vector<std::string>{"README.md"});
  EXPECT_EQ(chosen("sub/*"), std::vector<std::string>{"sub/notes.txt"});
  const std::string several = refusal([&] { chosen(""); });
  EXPECT_HOLDS(several, "m-Q4_K_M.gguf");
  EXPECT_HOLDS(several, "m-Q8_0-00001-of-00003.gguf");
  EXPECT_HOLDS(refusal([&] { chosen("q"); }), "expected one GGUF model");
  EXPECT_HOLDS(refusal([&] { chosen("Q5_K_M"); }), "no such file");
  repository.files.erase(repository.files.begin());
  EXPECT_EQ(chosen(""), parts) << "the only model";
  repository.files = {{"README.md", 1, {}}};
  EXPECT_HOLDS(refusal([&] { chosen(""); }), "README.md");
}

TEST(Pull, AddressesAndRevisions) {
  const std::string endpoint = "https://hub.example";
  const auto parse = [&](const std::string& text) { return parse_hub_address(text, endpoint); };
  EXPECT_EQ(parse("owner/name").repository, "owner/name");
  EXPECT_EQ(parse("owner/name").revision, "main");
  const HubAddress full = parse("hf://owner/name@v1/2:*.gguf");
  EXPECT_EQ(full.repository, "owner/name");
  EXPECT_EQ(full.revision, "v1/2");
  EXPECT_EQ(full.pattern, "*.gguf");
  EXPECT_EQ(parse("owner/name:Q4_K_M").pattern, "Q4_K_M");
  EXPECT_EQ(parse("https://hub.example/owner/name").repository, "owner/name");
  const HubAddress blob = parse("https://hub.example/owner/name/blob/dev/sub/a.gguf");
  EXPECT_EQ(blob.revision, "dev");
  EXPECT_EQ(blob.pattern, "sub/a.gguf");
  EXPECT_EQ(parse("https://hub.example/owner/name/resolve/main/a.gguf").url,
            "https://hub.example/owner/name/resolve/main/a.gguf");
  EXPECT_EQ(parse("https://elsewhere.example/owner/name").url, "https://elsewhere.example/owner/name");
  for (const char* bad : {"name", "a/b/c", "../name", "owner/..", "owner/na me", "owner/name@",
                          "owner/name:", "s3://a/b", "https://", "owner/", "/name", ""})
    EXPECT_THROW(parse(bad), ConfigError) << bad;
  for (const char* bad : {"/etc/passwd", "../x", "a/../b", "a//b", "a\\b", "", "a/", "x\ny"})
    EXPECT_FALSE(is_safe_path(bad)) << bad;
  EXPECT_TRUE(is_safe_path("a/b.c"));
}

TEST(Pull, ARevisionWithASlash) {
  const Hub hub(Files{{"a.txt", "text"}, {"b.txt", "more"}});
  const TempFolder folder;
  pull(options_for(hub, folder.path, "hf://owner/name@v1/2:a.txt"));
  EXPECT_EQ(files_in(folder.path), (std::map<std::string, std::string>{{"a.txt", "text"}}));
}

TEST(Pull, TokensAndRefusals) {
  Hub hub(Files{{"config.json", "{}\n"}, {"model.safetensors", kWeights}});
  hub.token = "hf_secret";
  const TempFolder folder;
  PullOptions options = options_for(hub, folder.path / "m");
  const std::string none = refusal([&] { pull(options); });
  EXPECT_HOLDS(none, "HF_TOKEN");
  options.token = "hf_wrong";
  const std::string wrong = refusal([&] { pull(options); });
  EXPECT_HOLDS(wrong, "not accepted");
  EXPECT_EQ(wrong.find("hf_wrong"), std::string::npos) << "a token is never shown";
  options.token = "hf_secret";
  EXPECT_EQ(pull(options).downloaded.size(), 2u);
  options.address = "owner/other";
  EXPECT_HOLDS(refusal([&] { pull(options); }), "404");
  options.address = "owner/name@nowhere";
  EXPECT_HOLDS(refusal([&] { pull(options); }), "404");
}

TEST(Pull, PathsThatLeaveTheFolder) {
  Hub hub(Files{{"config.json", "{}\n"}, {"model.safetensors", kWeights}});
  hub.bad = "../outside";
  const TempFolder folder;
  EXPECT_HOLDS(refusal([&] { pull(options_for(hub, folder.path / "m")); }), "../outside");
  EXPECT_TRUE(files_in(folder.path).empty());
}

TEST(Pull, APlainUrl) {
  HttpServer server([](const ServedRequest& r) { return serve_file(r, kWeights, "\"tag\""); });
  const Hub hub(Files{{"a", "b"}});
  const TempFolder folder;
  PullOptions options = options_for(hub, folder.path, server.url() + "/models/m.gguf?download=true");
  options.token = "hf_secret";
  options.sha256 = kWeightsSha256;
  const PullReport report = pull(options);
  EXPECT_EQ(report.downloaded, std::vector<std::string>{"m.gguf"});
  EXPECT_EQ(files_in(folder.path), (std::map<std::string, std::string>{{"m.gguf", kWeights}}));
  EXPECT_EQ(server.requests()[0].headers.count("authorization"), 0u) << "not the hub";
  options.sha256 = "12";
  EXPECT_THROW(pull(options), ConfigError);
  options.sha256 = "";
  options.address = server.url() + "/";
  EXPECT_THROW(pull(options), ConfigError);
}

TEST(Pull, OneFailureEndsAll) {
  std::map<std::string, std::string> files = {{"config.json", "{}\n"}};
  for (int i = 1; i <= 6; ++i) files[fmt::format("model-{:05d}-of-00006.safetensors", i)] = std::string(size_t(i), 'x');
  const Hub hub(files);
  const TempFolder folder;
  fs::create_directories(folder.path / "m" / "model-00003-of-00006.safetensors");  // cannot be replaced by a file
  EXPECT_HOLDS(refusal([&] { pull(options_for(hub, folder.path / "m")); }), "model-00003-of-00006.safetensors");
}

TEST(Pull, MoreThanTheDiskHolds) {
  const Hub hub(Files{{"config.json", "{}\n"}, {"model.safetensors", kWeights}});
  HttpServer lying([&](const ServedRequest& r) {
    if (r.path.find("/revision/") != std::string::npos) return ServedAnswer{200, {}, json{{"sha", kCommit}}.dump(), {}};
    return ServedAnswer{200, {}, R"([{"type": "file", "path": "model.safetensors", "size": 9000000000000000000}])", {}};
  });
  const TempFolder folder;
  PullOptions options = options_for(hub, folder.path / "m");
  options.endpoint = lying.url();
  EXPECT_HOLDS(refusal([&] { pull(options); }), "free space");
}

TEST(Pull, AnswersThatAreNoHubs) {
  std::string body = "<html>";
  HttpServer server([&](const ServedRequest&) { return ServedAnswer{200, {}, body, {}}; });
  const Hub hub(Files{{"a", "b"}});
  const TempFolder folder;
  PullOptions options = options_for(hub, folder.path / "m");
  options.endpoint = server.url();
  EXPECT_THROW(pull(options), ModelError);
  body = R"({"sha": "main"})";
  EXPECT_THROW(pull(options), ModelError);
  options.endpoint = "nowhere";
  EXPECT_THROW(pull(options), ConfigError);
}

}  // namespace
}  // namespace ef::testing
