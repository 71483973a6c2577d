// The golden archive tests/data/text/tokenizers.tar.xz, unpacked by CMake. Made by tools/tokenizer_goldens.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "expertflow/base/io.h"
#include "expertflow/text/tokenizer.h"
#include "expertflow/text/unicode.h"

namespace ef::goldens {

using nlohmann::json;

inline std::string path_of(const std::string& name) { return std::string(EF_TOKENIZERS) + "/" + name; }
inline std::string text_of(const std::string& name) { return read_text_file(path_of(name)); }
inline json json_of(const std::string& name) { return json::parse(text_of(name)); }

inline std::vector<std::string> lines_of(const std::string& name) {
  std::vector<std::string> lines;
  std::istringstream in(text_of(name));
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

inline std::string fnv(std::string_view bytes) {
  uint32_t h = 0x811c9dc5;
  for (const char c : bytes) h = (h ^ static_cast<unsigned char>(c)) * 0x01000193u;
  return fmt::format("{:08x}", h);
}

/// As the makers write them: "1 2 3", long lists as "#count hash".
inline std::string ids_line(const std::vector<TokenId>& ids) {
  std::string line;
  if (ids.size() <= 160) {
    for (const TokenId id : ids) line += (line.empty() ? "" : " ") + std::to_string(id);
    return line;
  }
  std::string bytes;
  for (const TokenId id : ids) {
    for (int shift = 0; shift < 32; shift += 8) bytes.push_back(static_cast<char>(id >> shift & 255));
  }
  return fmt::format("#{} {}", ids.size(), fnv(bytes));
}

/// A full vocabulary out of its compact form (tools/tokenizer_goldens/common.mjs says how it works).
struct FullVocabulary {
  json skeleton;
  std::vector<std::string> tokens;  ///< by id
  std::vector<std::pair<std::string, std::string>> merges;

  explicit FullVocabulary(const std::string& name)
      : skeleton(json_of(name + "/skeleton.json")), tokens(json_of(name + "/tokens.json")) {
    std::istringstream in(text_of(name + "/merges.txt"));
    std::string rule;
    in >> rule;
    if (rule == "lefts") {
      for (const std::string& token : tokens) {
        size_t left = 0;
        in >> left;
        if (left == 0) continue;
        size_t at = 0;
        while (left-- > 0) utf8_next(token, at);
        merges.emplace_back(token.substr(0, at), token.substr(at));
      }
    } else {
      add_all_splits(rule == "splits_spaces_last");
    }
  }

  std::string to_json() const {
    std::string vocab = "{";
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (i > 0) vocab += ',';
      vocab += json(tokens[i]).dump() + ":" + std::to_string(i);
    }
    std::string list = "[";
    for (size_t i = 0; i < merges.size(); ++i) {
      if (i > 0) list += ',';
      list += json(merges[i].first + " " + merges[i].second).dump();
    }
    std::string text = skeleton.dump();
    text.replace(text.find("\"vocab\":null") + 8, 4, vocab + "}");
    text.replace(text.find("\"merges\":null") + 9, 4, list + "]");
    return text;
  }

  std::string merges_fnv() const {
    std::string all;
    for (const auto& [left, right] : merges) all += (all.empty() ? "" : "\n") + left + " " + right;
    return fnv(all);
  }

  /// As a GGUF writes it: added tokens in place, special ones as control tokens.
  GgufVocab to_gguf() const {
    GgufVocab vocab;
    vocab.tokens = tokens;
    vocab.token_types.assign(tokens.size(), 1);
    for (const json& token : skeleton["added_tokens"]) {
      const auto id = token["id"].get<size_t>();
      if (id >= vocab.tokens.size()) {
        vocab.tokens.resize(id + 1);
        vocab.token_types.resize(id + 1, 1);
      }
      vocab.tokens[id] = token["content"];
      vocab.token_types[id] = token["special"] ? 3 : 4;
    }
    for (const auto& [left, right] : merges) vocab.merges.push_back(left + " " + right);
    return vocab;
  }

 private:
  void add_all_splits(bool spaces_last) {
    std::map<std::string, size_t> id_of;
    for (size_t i = 0; i < tokens.size(); ++i) id_of[tokens[i]] = i;
    const auto only_spaces = [](const std::string& text) {
      for (size_t i = 0; i < text.size();) {
        if (utf8_next(text, i) != 0x2581) return false;
      }
      return true;
    };
    std::vector<std::tuple<size_t, size_t, size_t, size_t, size_t>>
        order;  // last, id, left, right, bytes of the left part
    for (size_t id = 0; id < tokens.size(); ++id) {
      const std::string& token = tokens[id];
      const size_t last = spaces_last && only_spaces(token) ? 1 : 0;
      for (size_t at = 0; at < token.size();) {
        utf8_next(token, at);
        if (at == token.size()) break;
        const auto left = id_of.find(token.substr(0, at));
        const auto right = id_of.find(token.substr(at));
        if (left != id_of.end() && right != id_of.end()) order.emplace_back(last, id, left->second, right->second, at);
      }
    }
    std::sort(order.begin(), order.end());
    for (const auto& [last, id, left, right, at] : order) merges.emplace_back(tokens[left], tokens[right]);
  }
};

}  // namespace ef::goldens
