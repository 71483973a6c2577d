// Bodies of /v1/chat/completions and /v1/completions: read, checked, and turned into what the engine takes.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "apps/server/api_error.h"
#include "apps/server/served_model.h"

namespace ef::server {

struct OpenAiRequest {
  bool chat = false, stream = false, include_usage = false, echo = false;
  int n = 1;
  std::vector<std::vector<TokenId>> prompts;  ///< completions may bring several
  CompletionRequest completion;               ///< all but the prompt
  ChatOutput::Options output;                 ///< chat alone
  bool timings = true;
  std::string id;  ///< of the answer: "chatcmpl-..."
};

/// stop: asked all along whether the result is still wanted.
/// JSON of a body; ApiError (400) where it is none, is no object, or nests too deep.
Json parse_body(const std::string& body, const StopCheck& stop = {});
/// ApiError naming the parameter.
OpenAiRequest read_chat_request(const Json& body, const ServedModel& model, const StopCheck& stop);
OpenAiRequest read_completion_request(const Json& body, const ServedModel& model, const StopCheck& stop);
/// The prompt that the messages of a body become.
std::string render_chat(const Json& body, const ServedModel& model, const StopCheck& stop);

}  // namespace ef::server
