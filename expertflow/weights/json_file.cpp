#include "expertflow/weights/json_file.h"

#include "expertflow/base/errors.h"
#include "expertflow/base/io.h"
#include "expertflow/weights/checked.h"

namespace ef {
namespace {

constexpr int kMaxDepth = 100;

}  // namespace

nlohmann::json read_json_object(const std::filesystem::path& path) {
  return parse_json_object(read_text_file(path, kMaxJsonFile), path.string());
}

nlohmann::json parse_json_object(const std::string& text, const std::string& name) {
  nlohmann::json json;
  try {
    json = nlohmann::json::parse(text, [&](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
      EF_CHECK(depth <= kMaxDepth, ModelError, "{}: expected JSON nested at most {} deep, found deeper", name,
               kMaxDepth);
      return true;
    });
  } catch (const nlohmann::json::parse_error& error) {
    // The library's text names line and column.
    fail<ModelError>("{}: expected JSON, found an error at byte {}: {}{}", name, error.byte,
                     printable(error.what(), 400), guess_content(text));
  } catch (const nlohmann::json::exception& error) {  // a number out of range
    fail<ModelError>("{}: expected JSON, found an error: {}", name, printable(error.what(), 400));
  }
  EF_CHECK(json.is_object(), ModelError, "{}: expected a JSON object, found {}", name, json.type_name());
  return json;
}

}  // namespace ef
