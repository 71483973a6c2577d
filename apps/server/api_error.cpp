#include "apps/server/api_error.h"

#include "expertflow/base/device_lost.h"
#include "expertflow/engine/engine_loop.h"

namespace ef::server {

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string error_json(const ApiError& error) {
  Json body{{"message", error.what()},
            {"type", error.type},
            {"param", error.param.empty() ? Json(nullptr) : Json(error.param)},
            {"code", error.code.is_null() ? Json(error.status) : error.code}};
  if (error.extra.is_object())
    for (const auto& [key, value] : error.extra.items()) body[key] = value;
  return dump({{"error", body}});
}

ApiError unavailable(const std::string& message, int retry_after) {
  ApiError e(503, "unavailable_error", message);
  e.retry_after = retry_after;
  return e;
}

ApiError to_api_error(const std::exception& error) {
  if (const auto* api = dynamic_cast<const ApiError*>(&error)) return *api;
  if (dynamic_cast<const BusyError*>(&error)) return unavailable(error.what(), 1);
  if (dynamic_cast<const DeviceLostError*>(&error)) return {503, "unavailable_error", error.what(), "", "device_lost"};
  if (const auto* length = dynamic_cast<const ContextLengthError*>(&error)) {
    ApiError e(400, "exceed_context_size_error", error.what(), "", "context_length_exceeded");
    e.extra = {{"n_prompt_tokens", length->prompt_tokens}, {"n_ctx", length->context}};
    return e;
  }
  if (dynamic_cast<const RequestError*>(&error)) return {400, "invalid_request_error", error.what()};
  return {500, "server_error", error.what()};
}

}  // namespace ef::server
