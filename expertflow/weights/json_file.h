// Small JSON files of a checkpoint.
#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>

namespace ef {

/// A file that holds one JSON object. ModelError names the file and, for a syntax error, line and column.
nlohmann::json read_json_object(const std::filesystem::path& path);
/// The same of a text; `name` stands in messages.
nlohmann::json parse_json_object(const std::string& text, const std::string& name);

inline constexpr uint64_t kMaxJsonFile = 128u << 20;  ///< the index of a model with 100k tensors has 10 MB

}  // namespace ef
