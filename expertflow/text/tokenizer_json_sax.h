// Reads tokenizer.json in one pass. The two large members, model.vocab and model.merges, go to flat lists (a vocabulary
// of 200,000 tokens with 450,000 merges would be a million small json values); the rest becomes a json value.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ef {

struct TokenizerJson {
  nlohmann::json rest;                                 ///< the file without model.vocab (if an object) and model.merges
  std::vector<std::pair<std::string, int64_t>> vocab;  ///< in file order
  std::vector<std::pair<std::string, std::string>> merges;  ///< in order of rank
  bool has_vocab = false, has_merges = false;
};

/// ModelError naming `name`, the field or the byte, for malformed json, for nesting deeper than any tokenizer's, and
/// for vocab entries or merges of a wrong type.
TokenizerJson parse_tokenizer_json(std::string_view text, std::string_view name);

}  // namespace ef
