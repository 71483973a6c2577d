// Small JSON files of a checkpoint.
#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>

namespace ef {

/// A file that holds one JSON object. ModelError names the file and, for a syntax error, line and column.
nlohmann::json read_json_object(const std::filesystem::path& path);

}  // namespace ef
