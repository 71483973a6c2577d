// What goes wrong with a request, in the form that OpenAI's clients read.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "expertflow/base/errors.h"

namespace ef::server {

using Json = nlohmann::ordered_json;

class ApiError : public RequestError {
 public:
  ApiError(int status, std::string type, const std::string& message, std::string param = "", Json code = nullptr)
      : RequestError(message), status(status), type(std::move(type)), param(std::move(param)), code(std::move(code)) {}
  int status;
  std::string type, param;
  Json code;            ///< null: the status
  Json extra;           ///< further members of the error object
  int retry_after = 0;  ///< seconds after which it may be otherwise, for the header; 0: not known
};

/// 503: not now. retry_after: seconds.
ApiError unavailable(const std::string& message, int retry_after);

template <class... Args>
[[noreturn]] void refuse(const std::string& param, fmt::format_string<Args...> format, Args&&... args) {
  throw ApiError(400, "invalid_request_error", fmt::format(format, std::forward<Args>(args)...), param);
}

/// {"error": {...}}, always valid JSON whatever bytes the message holds.
std::string error_json(const ApiError& error);
/// The status and type for an exception of the engine.
ApiError to_api_error(const std::exception& error);
/// Text of any JSON, ill-formed UTF-8 replaced.
std::string dump(const Json& json);

}  // namespace ef::server
