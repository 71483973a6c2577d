#include "expertflow/hub/repository.h"

#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <nlohmann/json.hpp>

namespace ef {
namespace {

using nlohmann::json;

constexpr size_t kMaxAnswer = 64u << 20;
constexpr int kMaxPages = 1000;

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return char(std::tolower(c)); });
  return text;
}

bool is_hex(const std::string& text, size_t length) {
  return text.size() == length && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

/// A JSON answer; next: the address of the next page, if there is one.
json get_json(HttpClient& client, const std::string& url, const DownloadPolicy& policy, std::string* next) {
  std::string text;
  const HttpResponse response = get_patiently(policy, [&] {
    text.clear();
    HttpResponse r = get_following(client, {url, {}}, policy.credentials, [&](const HttpResponse&) -> HttpSink {
      return [&](std::span<const std::byte> bytes) {
        EF_CHECK(text.size() + bytes.size() <= kMaxAnswer, ModelError, "{}: expected an answer of at most {} bytes",
                 url, kMaxAnswer);
        text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      };
    });
    if (r.status != 200) throw_status(url, r, !policy.credentials.token.empty());
    return r;
  });
  if (next) {
    // Link: <https://...>; rel="next"
    const std::string link = response.header("link");
    const size_t open = link.find('<'), close = link.find('>');
    const bool more = link.find("rel=\"next\"") != std::string::npos && open < close;
    *next = more ? resolve_location(url, link.substr(open + 1, close - open - 1)) : "";
  }
  json out = json::parse(text, nullptr, false);
  EF_CHECK(!out.is_discarded(), ModelError, "{}: expected JSON, found something else (is this a hub?)", url);
  return out;
}

HubFile read_file(const json& entry, const std::string& url) {
  HubFile file;
  file.path = entry.value("path", "");
  EF_CHECK(is_safe_path(file.path), ModelError, "{}: expected a path inside the repository, found \"{}\"", url,
           file.path);
  EF_CHECK(entry.contains("size") && entry["size"].is_number_unsigned(), ModelError,
           "{}: {}: expected a size, found none", url, file.path);
  file.size = entry["size"].get<uint64_t>();
  if (entry.contains("lfs") && entry["lfs"].is_object()) {
    std::string oid = entry["lfs"].value("oid", "");
    if (oid.starts_with("sha256:")) oid.erase(0, 7);
    if (is_hex(oid, 64)) file.checksum.sha256 = oid;
  } else if (const std::string oid = entry.value("oid", ""); is_hex(oid, 40)) {
    file.checksum.git_blob = oid;
  }
  return file;
}

bool matches(const std::string& pattern, const std::string& path) {
  return fnmatch(pattern.c_str(), path.c_str(), 0) == 0;
}

/// "dir/name-00001-of-00003.gguf" -> "dir/name-of-00003.gguf": equal for all parts of a model.
std::string gguf_group(const std::string& path) {
  constexpr size_t kTail = sizeof("-00001-of-00001.gguf") - 1;
  if (path.size() <= kTail) return path;
  const std::string tail = path.substr(path.size() - kTail);
  return fnmatch("-[0-9][0-9][0-9][0-9][0-9]-of-[0-9][0-9][0-9][0-9][0-9].gguf", tail.c_str(), 0) == 0
             ? path.substr(0, path.size() - kTail) + tail.substr(6)
             : path;
}

bool is_gguf(const HubFile& file) {
  return file.path.ends_with(".gguf") && file.path.find("mmproj") == std::string::npos;
}

std::map<std::string, std::vector<HubFile>> gguf_models(const std::vector<HubFile>& files) {
  std::map<std::string, std::vector<HubFile>> out;
  for (const HubFile& file : files)
    if (is_gguf(file)) out[gguf_group(file.path)].push_back(file);
  return out;
}

std::string some_paths(const std::vector<HubFile>& files) {
  std::vector<std::string> shown;
  for (const HubFile& file : files)
    if (shown.size() < 40) shown.push_back(file.path);
  return fmt::format("{}{}", fmt::join(shown, ", "), files.size() > shown.size() ? ", ..." : "");
}

std::vector<HubFile> needed_by_model(const HubRepository& repository) {
  static constexpr const char* kNeeded[] = {"config.json",
                                            "generation_config.json",
                                            "tokenizer.json",
                                            "tokenizer.model",
                                            "tokenizer_config.json",
                                            "special_tokens_map.json",
                                            "added_tokens.json",
                                            "chat_template.jinja",
                                            "model.safetensors",
                                            "model-*-of-*.safetensors",
                                            "model.safetensors.index.json",
                                            "LICENSE*"};
  std::vector<HubFile> out;
  bool weights = false;
  for (const HubFile& file : repository.files) {
    const bool inside = file.path.find('/') != std::string::npos;  // other forms of the weights lie in folders
    if (inside || std::none_of(std::begin(kNeeded), std::end(kNeeded),
                               [&](const char* pattern) { return matches(pattern, file.path); }))
      continue;
    weights |= file.path.ends_with(".safetensors");
    out.push_back(file);
  }
  return weights ? out : std::vector<HubFile>{};
}

}  // namespace

HubRepository list_repository(HttpClient& client, const std::string& endpoint, const HubAddress& address,
                              const DownloadPolicy& policy) {
  const std::string base = endpoint + "/api/models/" + address.repository;
  const std::string info_url = base + "/revision/" + url_encode(address.revision);
  HubRepository out;
  const json info = get_json(client, info_url, policy, nullptr);
  out.commit = info.is_object() ? info.value("sha", "") : "";
  EF_CHECK(is_hex(out.commit, 40), ModelError, "{}: sha: expected a commit of 40 hexadecimal digits, found \"{}\"",
           info_url, out.commit.substr(0, 60));
  std::string url = base + "/tree/" + out.commit + "?recursive=true";
  for (int page = 0; !url.empty(); ++page) {
    EF_CHECK(page < kMaxPages, ModelError, "{}: expected at most {} pages of files, found more", url, kMaxPages);
    std::string next;
    const json list = get_json(client, url, policy, &next);
    EF_CHECK(list.is_array(), ModelError, "{}: expected a list of files, found {}", url, list.type_name());
    for (const json& entry : list)
      if (entry.is_object() && entry.value("type", "") == "file") out.files.push_back(read_file(entry, url));
    url = next;
  }
  return out;
}

std::vector<HubFile> choose_files(const HubRepository& repository, const HubAddress& address) {
  const std::string& where = address.repository;
  const auto models = gguf_models(repository.files);
  const auto several = [&](const std::vector<std::string>& names) {
    fail<RequestError>("{}: expected one GGUF model, found {}: name one behind a colon: {}", where, names.size(),
                       fmt::join(names, ", "));
  };
  if (address.pattern.empty()) {
    std::vector<HubFile> needed = needed_by_model(repository);
    if (!needed.empty()) return needed;
    std::vector<std::string> names;
    for (const auto& [name, parts] : models) names.push_back(parts.front().path);
    EF_CHECK(!models.empty(), RequestError, "{}: expected safetensors or a GGUF, found {}", where,
             some_paths(repository.files));
    if (models.size() > 1) several(names);
    return models.begin()->second;
  }
  std::vector<HubFile> chosen;
  for (const HubFile& file : repository.files)
    if (file.path == address.pattern) chosen = is_gguf(file) ? models.at(gguf_group(file.path)) : std::vector{file};
  if (!chosen.empty()) return chosen;
  for (const HubFile& file : repository.files)
    if (matches(address.pattern, file.path)) chosen.push_back(file);
  if (!chosen.empty()) return chosen;
  // A quantisation's name, as people write it: owner/name:Q4_K_M.
  std::vector<std::string> names;
  for (const auto& [name, parts] : models) {
    if (lower(name).find(lower(address.pattern)) == std::string::npos) continue;
    names.push_back(parts.front().path);
    chosen = parts;
  }
  EF_CHECK(!names.empty(), RequestError, "{}: {}: no such file; there are {}", where, address.pattern,
           some_paths(repository.files));
  if (names.size() > 1) several(names);
  return chosen;
}

std::string file_url(const std::string& endpoint, const HubAddress& address, const std::string& commit,
                     const std::string& path) {
  return endpoint + "/" + address.repository + "/resolve/" + commit + "/" + url_encode(path, "/");
}

}  // namespace ef
