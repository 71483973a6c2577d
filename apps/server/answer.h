// The answer to one request of OpenAI's kinds: events of its completions become one JSON object or a stream of chunks.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "apps/server/http_server.h"
#include "apps/server/openai_request.h"

namespace ef::server {

/// Submits the request's completions and answers when they come. ApiError or RequestError where it cannot begin.
/// ping_seconds: a stream gets a comment when so long nothing else was sent; 0: never.
void answer_openai(OpenAiRequest request, std::shared_ptr<ServedModel> model, std::shared_ptr<HttpReply> reply,
                   const HttpHeaders& headers, double ping_seconds);

/// The whole answer that an error is. headers: of any answer to this request.
void send_error(HttpReply& reply, const ApiError& error, HttpHeaders headers);

/// "chatcmpl-..." and the like.
std::string random_id(std::string_view prefix);

}  // namespace ef::server
