#include "apps/server/answer.h"

#include <algorithm>
#include <ctime>
#include <optional>
#include <random>

namespace ef::server {

std::string random_id(std::string_view prefix) {
  static constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
  thread_local std::mt19937_64 random{std::random_device{}()};
  std::string id(prefix);
  for (int i = 0; i < 24; ++i) id += kLetters[random() % kLetters.size()];
  return id;
}

void send_error(HttpReply& reply, const ApiError& error, HttpHeaders headers) {
  if (error.retry_after > 0) headers.emplace_back("Retry-After", std::to_string(error.retry_after));
  reply.send(error.status, "application/json", error_json(error), headers);
}

namespace {

using Finish = CompletionEvent::Finish;

// Bytes that may be a part of a character as JSON text.
std::string valid_text(const std::string& bytes) {
  Utf8Stream stream;
  std::string text = stream.push(bytes);
  return text + stream.finish();
}

Json byte_list(const std::string& bytes) {
  Json list = Json::array();
  for (const char c : bytes) list.push_back(int(uint8_t(c)));
  return list;
}

// One of the choices as it comes.
struct Choice {
  int index = 0;
  ChatOutput output{ChatOutput::Options{}};
  std::string content, reasoning;  // all of it so far
  Json tool_calls = Json::array();
  Json logprobs = Json::array();  // chat: of content; completions: in four lists
  Json tokens = Json::array(), token_logprobs = Json::array(), top_logprobs = Json::array(), offsets = Json::array();
  int64_t text_offset = 0;
  int64_t generated = 0;
  bool role_sent = false;
  std::optional<std::string> finish;
  EngineLoop::Handle handle;
};

class Answer : public std::enable_shared_from_this<Answer> {
 public:
  Answer(OpenAiRequest request, std::shared_ptr<ServedModel> model, std::shared_ptr<HttpReply> reply,
         HttpHeaders headers)
      : request_(std::move(request)),
        model_(std::move(model)),
        reply_(std::move(reply)),
        headers_(std::move(headers)),
        id_(request_.id),
        created_(int64_t(std::time(nullptr))) {}

  void start();
  void ping() {
    if (done_) return;
    begin();
    reply_->write(": ping\n\n");
  }

 private:
  void on_event(size_t index, CompletionEvent&& event);
  void fail(const std::exception_ptr& error);
  void add_logprobs(Choice& choice, const CompletionEvent& event, Json& now);
  Json chat_logprob(const TokenReport& token) const;
  void add_completion_logprobs(Choice& choice, const TokenReport& token, Json& now);
  void take(Choice& choice, const CompletionEvent& event, ChatDelta& delta, std::string& text);
  void send_chunks(Choice& choice, const ChatDelta& delta, const std::string& text, const Json& logprobs);
  void finish_all();
  void begin();
  Json frame(const char* object) const;
  Json usage() const;
  Json timings() const;
  Json whole_choice(const Choice& choice) const;
  void chunk(Json choices, bool last);
  std::string token_text(TokenId token) const {
    return model_->tokenizer ? valid_text(model_->tokenizer->token_to_bytes(token)) : std::to_string(token);
  }

  OpenAiRequest request_;
  std::shared_ptr<ServedModel> model_;
  std::shared_ptr<HttpReply> reply_;
  HttpHeaders headers_;
  std::string id_;
  int64_t created_;
  std::vector<Choice> choices_;
  size_t open_ = 0;
  bool begun_ = false, done_ = false;
};

void Answer::start() {
  std::vector<CompletionRequest> requests;
  std::vector<Completion::Sink> sinks;
  for (const auto& prompt : request_.prompts)
    for (int i = 0; i < request_.n; ++i) {
      CompletionRequest c = request_.completion;
      c.prompt = prompt;
      if (c.sampler.seed) *c.sampler.seed += uint64_t(i);
      requests.push_back(std::move(c));
      const size_t index = choices_.size();
      Choice& choice = choices_.emplace_back();
      choice.index = int(index);
      choice.output = ChatOutput(request_.output);
      if (request_.echo) {
        choice.content = model_->tokenizer ? model_->tokenizer->decode(prompt, false) : "";
      }
      auto self = shared_from_this();
      sinks.push_back([self, index](CompletionEvent&& event) {
        // Off the engine's thread.
        self->reply_->post(
            [self, index, event = std::move(event)]() mutable { self->on_event(index, std::move(event)); });
      });
    }
  open_ = choices_.size();
  // We are on the connection's strand: events come after this. Completions hold their sinks, and these the answer, so
  // handles are given up at the end.
  const auto handles = model_->loop->submit(std::move(requests), std::move(sinks));
  for (size_t i = 0; i < handles.size(); ++i) choices_[i].handle = handles[i];
  reply_->on_gone([self = shared_from_this()] {
    self->done_ = true;
    for (Choice& choice : self->choices_) {
      if (choice.handle) self->model_->loop->cancel(choice.handle);
      choice.handle.reset();
    }
  });
}

Json Answer::frame(const char* object) const {
  return {{"id", id_},
          {"object", object},
          {"created", created_},
          {"model", model_->name},
          {"system_fingerprint", "expertflow"}};
}

Json Answer::usage() const {
  int64_t prompt = 0, generated = 0, cached = 0;
  for (const Choice& c : choices_) generated += c.generated;
  for (size_t i = 0; i < choices_.size(); i += size_t(request_.n)) {
    prompt += int64_t(request_.prompts[i / size_t(request_.n)].size());
    if (choices_[i].handle) cached += choices_[i].handle->times().cached_tokens;
  }
  return {{"prompt_tokens", prompt},
          {"completion_tokens", generated},
          {"total_tokens", prompt + generated},
          {"prompt_tokens_details", {{"cached_tokens", cached}}}};
}

// llama.cpp's; of the first choice.
Json Answer::timings() const {
  const auto& handle = choices_[0].handle;
  if (!handle) return nullptr;
  const CompletionTimes t = handle->times();
  const Duration end = t.first_token.count() ? t.first_token : t.ended;
  const double prompt = std::max(0.0, seconds(end - t.started)), decode = std::max(0.0, seconds(t.ended - end));
  const int64_t computed = t.prompt_tokens - t.cached_tokens, decoded = std::max<int64_t>(0, t.generated_tokens - 1);
  const auto rate = [](int64_t n, double s) { return s > 0 ? double(n) / s : 0.0; };
  return {{"cache_n", t.cached_tokens},
          {"prompt_n", computed},
          {"prompt_ms", prompt * 1e3},
          {"prompt_per_second", rate(computed, prompt)},
          {"predicted_n", t.generated_tokens},
          {"predicted_ms", decode * 1e3},
          {"predicted_per_second", rate(decoded, decode)}};
}

Json Answer::chat_logprob(const TokenReport& token) const {
  const auto entry = [](const std::string& bytes, TokenId id, float logprob) {
    return Json{{"token", valid_text(bytes)},
                {"logprob", std::max(logprob, kLogprobFloor)},
                {"bytes", byte_list(bytes)},
                {"id", id}};
  };
  Json e = entry(token.bytes, token.token, token.logprob.value_or(0));
  e["top_logprobs"] = Json::array();
  for (const TokenLogprob& t : token.top)
    e["top_logprobs"].push_back(
        entry(model_->tokenizer ? model_->tokenizer->token_to_bytes(t.token) : "", t.token, t.logprob));
  return e;
}

void Answer::add_completion_logprobs(Choice& choice, const TokenReport& token, Json& now) {
  const std::string text = token_text(token.token);
  Json top = nullptr;
  if (token.logprob && request_.completion.logprobs > 0) {
    top = Json::object();
    for (const TokenLogprob& t : token.top) top[token_text(t.token)] = t.logprob;
  }
  const Json logprob = token.logprob ? Json(std::max(*token.logprob, kLogprobFloor)) : Json(nullptr);
  const auto add = [&](Json& to, Json value, Json& all) {
    if (!request_.stream) all.push_back(value);
    to.push_back(std::move(value));
  };
  add(now["tokens"], text, choice.tokens);
  add(now["token_logprobs"], logprob, choice.token_logprobs);
  add(now["top_logprobs"], std::move(top), choice.top_logprobs);
  add(now["text_offset"], choice.text_offset, choice.offsets);
  choice.text_offset += int64_t(text.size());
}

void Answer::add_logprobs(Choice& choice, const CompletionEvent& event, Json& now) {
  if (request_.completion.logprobs < 0) return;
  if (!request_.chat)
    now = {{"tokens", Json::array()},
           {"token_logprobs", Json::array()},
           {"top_logprobs", Json::array()},
           {"text_offset", Json::array()}};
  else
    now = {{"content", Json::array()}};
  for (const TokenReport& token : event.tokens) {
    const bool end = event.finish == Finish::kStop && &token == &event.tokens.back();
    if (end && model_->tokenizer && model_->tokenizer->is_eog(token.token)) continue;
    if (!request_.chat) {
      add_completion_logprobs(choice, token, now);
      continue;
    }
    now["content"].push_back(chat_logprob(token));
    if (!request_.stream) choice.logprobs.push_back(now["content"].back());
  }
}

void Answer::take(Choice& choice, const CompletionEvent& event, ChatDelta& delta, std::string& text) {
  if (!request_.chat) {
    text = event.text;
    choice.content += text;
    return;
  }
  delta = choice.output.push(event.text);
  if (event.finish) {
    ChatDelta rest = choice.output.finish();
    delta.content += rest.content;
    delta.reasoning += rest.reasoning;
    for (ToolCall& call : rest.tool_calls) delta.tool_calls.push_back(std::move(call));
  }
  choice.content += delta.content;
  choice.reasoning += delta.reasoning;
}

void Answer::on_event(size_t index, CompletionEvent&& event) {
  if (done_) return;
  if (event.error) return fail(event.error);
  Choice& choice = choices_[index];
  choice.generated += int64_t(event.tokens.size() - event.prompt_reports);
  const bool first = !choice.role_sent;
  Json logprobs;
  add_logprobs(choice, event, logprobs);
  ChatDelta delta;
  std::string text = first && request_.echo ? choice.content : "";
  {
    std::string more;
    take(choice, event, delta, more);
    text += more;
  }
  for (const ToolCall& call : delta.tool_calls)
    choice.tool_calls.push_back({{"id", random_id("call_")},
                                 {"type", "function"},
                                 {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  if (event.finish)
    choice.finish = *event.finish == Finish::kLength ? "length" : choice.tool_calls.empty() ? "stop" : "tool_calls";
  if (request_.stream) send_chunks(choice, delta, text, logprobs);
  choice.role_sent = true;
  if (event.finish && --open_ == 0) finish_all();
}

void Answer::begin() {
  if (begun_) return;
  begun_ = true;
  HttpHeaders headers = headers_;
  headers.emplace_back("Cache-Control", "no-cache");
  headers.emplace_back("X-Accel-Buffering", "no");
  reply_->begin(200, "text/event-stream", headers, ": \n\n");
}

void Answer::chunk(Json choices, bool last) {
  begin();
  Json json = frame(request_.chat ? "chat.completion.chunk" : "text_completion");
  json["choices"] = std::move(choices);
  if (request_.include_usage) json["usage"] = last ? usage() : Json(nullptr);
  if (last) json["timings"] = timings();
  reply_->write("data: " + dump(json) + "\n\n");
}

void Answer::send_chunks(Choice& choice, const ChatDelta& delta, const std::string& text, const Json& logprobs) {
  const auto one = [&](Json body, const Json& finish) {
    Json c{{"index", choice.index}};
    if (request_.chat)
      c["delta"] = std::move(body);
    else
      c["text"] = std::move(body);
    c["logprobs"] = logprobs.is_null() || !finish.is_null() ? Json(nullptr) : logprobs;
    c["finish_reason"] = finish;
    chunk(Json::array({std::move(c)}), false);
  };
  const bool has_logprobs = !logprobs.is_null() && (!request_.chat || !logprobs["content"].empty());
  if (!request_.chat) {
    if (!text.empty() || has_logprobs) one(text, nullptr);
    if (choice.finish) one("", *choice.finish);
    return;
  }
  Json d = Json::object();
  if (!choice.role_sent) d["role"] = "assistant", d["content"] = "";
  if (!delta.reasoning.empty()) d["reasoning_content"] = delta.reasoning;
  if (!delta.content.empty()) d["content"] = delta.content;
  for (size_t i = 0; i < delta.tool_calls.size(); ++i) {
    const size_t at = choice.tool_calls.size() - delta.tool_calls.size() + i;
    Json call = choice.tool_calls[at];
    call["index"] = at;
    d["tool_calls"].push_back(std::move(call));
  }
  if (!d.empty() || has_logprobs) one(std::move(d), nullptr);
  if (choice.finish) one(Json::object(), *choice.finish);
}

Json Answer::whole_choice(const Choice& choice) const {
  Json c{{"index", choice.index}};
  const bool logprobs = request_.completion.logprobs >= 0;
  if (!request_.chat) {
    c["text"] = choice.content;
    c["logprobs"] = logprobs ? Json{{"tokens", choice.tokens},
                                    {"token_logprobs", choice.token_logprobs},
                                    {"top_logprobs", choice.top_logprobs},
                                    {"text_offset", choice.offsets}}
                             : Json(nullptr);
  } else {
    Json m{{"role", "assistant"}};
    m["content"] = choice.content.empty() && !choice.tool_calls.empty() ? Json(nullptr) : Json(choice.content);
    if (!choice.reasoning.empty()) m["reasoning_content"] = choice.reasoning;
    if (!choice.tool_calls.empty()) m["tool_calls"] = choice.tool_calls;
    c["message"] = std::move(m);
    c["logprobs"] = logprobs ? Json{{"content", choice.logprobs}} : Json(nullptr);
  }
  c["finish_reason"] = *choice.finish;
  return c;
}

void Answer::finish_all() {
  done_ = true;
  if (request_.stream) {
    if (request_.include_usage) chunk(Json::array(), true);
    reply_->write("data: [DONE]\n\n");
    reply_->end();
  } else {
    Json json = frame(request_.chat ? "chat.completion" : "text_completion");
    json["choices"] = Json::array();
    for (const Choice& choice : choices_) json["choices"].push_back(whole_choice(choice));
    json["usage"] = usage();
    json["timings"] = timings();
    reply_->send(200, "application/json", dump(json), headers_);
  }
  for (Choice& choice : choices_) choice.handle.reset();
}

void Answer::fail(const std::exception_ptr& error) {
  done_ = true;
  for (Choice& choice : choices_) {
    if (choice.handle && !choice.finish) model_->loop->cancel(choice.handle);
    choice.handle.reset();
  }
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    const ApiError api = to_api_error(e);
    if (!begun_) return send_error(*reply_, api, headers_);
    reply_->write("data: " + error_json(api) + "\n\n");
    reply_->end();
  }
}

}  // namespace

void answer_openai(OpenAiRequest request, std::shared_ptr<ServedModel> model, std::shared_ptr<HttpReply> reply,
                   const HttpHeaders& headers, double ping_seconds) {
  const bool stream = request.stream;
  const auto answer = std::make_shared<Answer>(std::move(request), std::move(model), reply, headers);
  answer->start();
  if (stream && ping_seconds > 0) {
    reply->when_silent(ping_seconds, [answer] { answer->ping(); });
  }
}

}  // namespace ef::server
