#include "apps/server/api.h"

#include <strings.h>

#include <algorithm>
#include <sstream>

#include "apps/server/answer.h"
#include "apps/server/openai_request.h"
#include "apps/server/page.h"
#include "apps/server/percent.h"
#include "expertflow/base/device_lost.h"
#include "expertflow/base/io.h"
#include "expertflow/base/trim.h"

namespace ef::server {

namespace {

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, at);) {
    if (const std::string_view text = trimmed(part, " \t\r"); !text.empty()) parts.emplace_back(text);
  }
  return parts;
}

// What is no code stays as it is.
std::string percent_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const std::optional<char> code = percent_code(text, i);
    out += code.value_or(text[i]);
    if (code) i += 2;
  }
  return out;
}

// In a time that does not tell how much of it is right.
bool same_key(const std::string& a, const std::string& b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i) difference |= uint8_t(a[i]) ^ uint8_t(b[i % std::max<size_t>(1, b.size())]);
  return difference == 0 && !b.empty();
}

// Names of OpenTelemetry's conventions for generative AI.
Attributes asked_of(const OpenAiRequest& request) {
  const CompletionRequest& c = request.completion;
  const auto decimal = [](float v) { return std::stod(fmt::format("{}", v)); };  // 0.1 and not 0.10000000149
  Attributes a{{"gen_ai.response.id", request.id},
               {"gen_ai.output.type", std::string(c.grammar ? "json" : "text")},
               {"gen_ai.request.temperature", decimal(c.sampler.temperature)},
               {"gen_ai.request.top_p", decimal(c.sampler.top_p)},
               {"gen_ai.request.choice.count", int64_t(request.n)},
               {"gen_ai.request.stream", request.stream}};
  if (c.max_tokens >= 0) a.emplace_back("gen_ai.request.max_tokens", c.max_tokens);
  if (c.sampler.top_k > 0) a.emplace_back("gen_ai.request.top_k", double(c.sampler.top_k));
  if (c.sampler.seed) a.emplace_back("gen_ai.request.seed", int64_t(*c.sampler.seed));
  if (!c.stop.empty()) a.emplace_back("gen_ai.request.stop_sequences", c.stop);
  return a;
}

Json advice_json(const BatchAdvice& a) {
  return {{"sequences", a.sequences},
          {"kv_sequences", a.kv_sequences},
          {"expert_sequences", a.expert_sequences ? Json(*a.expert_sequences) : Json(nullptr)},
          {"text", a.text}};
}

constexpr int kSoon = 5;  // seconds: another server takes over, or the model has been read

ApiError shutting_down() { return unavailable("the server is shutting down", kSoon); }

bool is_valid_utf8(const std::string& text) {
  Utf8Stream stream;
  return stream.push(text) == text && !stream.pending();
}

int checked_threads(const ServerOptions& o) {
  EF_CHECK(o.reading_threads >= 1 && o.reading_threads <= 256, ConfigError,
           "--threads-reading: expected 1 to 256, found {}", o.reading_threads);
  return o.reading_threads;
}

}  // namespace

struct Api::Route {
  const char* method;
  const char* path;
  void (Api::*run)(const Call&);
  bool open = false;  ///< without a key
  bool needs_model = true;
  bool traced = false;
  bool named = false;  ///< a name follows the path
  bool is(const std::string& asked) const { return named ? asked.starts_with(path) : asked == path; }
};

// The one table of endpoints.
const std::vector<Api::Route>& Api::routes() {
  static const std::vector<Route> kRoutes{
      {"GET", "/health", &Api::health, true, false},
      {"GET", "/v1/health", &Api::health, true, false},
      {"GET", "/version", &Api::version, true, false},
      {"GET", "/", &Api::page, true, false},
      {"GET", "/index.html", &Api::page, true, false},
      {"GET", "/health/experts", &Api::expert_health},
      {"GET", "/dashboard.json", &Api::dashboard},
      {"GET", "/report", &Api::report},
      {"GET", "/v1/models", &Api::models},
      {"GET", "/models", &Api::models},
      {"GET", "/v1/models/", &Api::model, false, true, false, true},
      {"GET", "/models/", &Api::model, false, true, false, true},
      {"POST", "/v1/chat/completions", &Api::chat, false, true, true},
      {"POST", "/chat/completions", &Api::chat, false, true, true},
      {"POST", "/v1/completions", &Api::completions, false, true, true},
      {"POST", "/completions", &Api::completions, false, true, true},
      {"POST", "/v1/embeddings", &Api::embeddings, false, false},
      {"POST", "/embeddings", &Api::embeddings, false, false},
      {"POST", "/tokenize", &Api::tokenize},
      {"POST", "/detokenize", &Api::detokenize},
      {"POST", "/apply-template", &Api::apply_template},
      {"GET", "/props", &Api::props},
      {"GET", "/slots", &Api::slots},
      {"GET", "/metrics", &Api::metrics},
  };
  return kRoutes;
}

Api::Api(const ServerOptions& options, const Log& log, std::shared_ptr<Tracer> tracer)
    : options_(options),
      log_(log),
      tracer_(std::move(tracer)),
      reading_(checked_threads(options), std::max(1, options.max_queue)) {
  if (!tracer_) tracer_ = std::make_shared<Tracer>(nullptr, 0, real_trace_sources());
  for (const std::string& lines : options.api_key) {
    // As in the file: no header has a line break.
    std::vector<std::string> keys = split(lines, '\n');
    EF_CHECK(!keys.empty(), ConfigError, "--api-key: expected a key, found \"{}\"", lines);
    for (std::string& key : keys) keys_.push_back(std::move(key));
  }
  if (!options.api_key_file.empty()) {
    constexpr uint64_t kMostBytes = 1 << 20;
    try {
      for (std::string& key : split(read_text_file(options.api_key_file, kMostBytes), '\n'))
        keys_.push_back(std::move(key));
    } catch (const ModelError& error) {
      fail<ConfigError>("--api-key-file: {}", error.what());
    }
    EF_CHECK(!keys_.empty(), ConfigError, "--api-key-file: {}: expected a key a line, found none",
             options.api_key_file);
  }
  origins_ = split(options.cors_origins, ',');
  for (const std::string& origin : origins_) {
    // What browsers send: scheme://host:port, or null where a page has none.
    const size_t host = origin.find("://");
    EF_CHECK(origin == "*" || origin == "null" ||
                 (host != origin.npos && host + 3 < origin.size() && origin.find('/', host + 3) > origin.size()),
             ConfigError, "--cors-origins: expected https://host:port and the like, or *, found \"{}\"", origin);
  }
}

void Api::set_model(std::shared_ptr<ServedModel> model) { std::atomic_store(&model_, std::move(model)); }
void Api::drop_model() {
  reading_.stop();  // nothing holds a reply any more
  const auto model = std::atomic_exchange(&model_, std::shared_ptr<ServedModel>());
  if (model) model->stop();
}

HttpHeaders Api::cors(const HttpRequest& request) const {
  const std::string origin = request.header("origin");
  const bool any = std::find(origins_.begin(), origins_.end(), "*") != origins_.end();
  if (origin.empty() || (!any && std::find(origins_.begin(), origins_.end(), origin) == origins_.end())) return {};
  return {{"Access-Control-Allow-Origin", any ? "*" : origin},
          {"Access-Control-Expose-Headers", "traceparent, Retry-After"},
          {"Vary", "Origin"}};
}

void Api::check_key(const HttpRequest& request) const {
  if (keys_.empty()) return;
  std::string key = request.header("x-api-key");
  const std::string bearer = request.header("authorization");
  constexpr std::string_view kBearer = "Bearer ";  // in any case, says RFC 9110
  if (strncasecmp(bearer.c_str(), kBearer.data(), kBearer.size()) == 0) key = bearer.substr(kBearer.size());
  const bool known = std::any_of(keys_.begin(), keys_.end(), [&](const std::string& k) { return same_key(key, k); });
  if (!known) throw ApiError(401, "authentication_error", "Invalid API Key", "", "invalid_api_key");
}

void Api::check_ready(const ServedModel* model) const {
  if (draining_) throw shutting_down();
  if (!model) throw unavailable("Loading model", kSoon);
}

const Api::Route& Api::route_of(Call& call) const {
  const HttpRequest& request = call.request;
  const Route* found = nullptr;
  std::string allowed;
  for (const Route& route : routes()) {
    if (!route.is(request.path)) continue;
    allowed += (allowed.empty() ? "" : ", ") + std::string(route.method);
    if (request.method == route.method || (request.method == "HEAD" && std::string_view(route.method) == "GET"))
      found = &route;
  }
  if (found && found->traced) {
    call.trace = tracer_->begin(request, found->path);
    call.reply = traced_reply(call.reply, call.trace);
  }
  if (!found || !found->open) check_key(request);
  if (!found) {
    if (allowed.empty()) throw ApiError(404, "not_found_error", fmt::format("there is no {} here", request.path));
    call.headers.emplace_back("Allow", allowed);
    throw ApiError(405, "invalid_request_error",
                   fmt::format("{}: expected {}, found {}", request.path, allowed, request.method));
  }
  if (const std::string coding = request.header("content-encoding");
      !coding.empty() && strcasecmp(coding.c_str(), "identity") != 0) {
    call.headers.emplace_back("Accept-Encoding", "identity");  // RFC 9110, 12.5.3: what would be taken
    throw ApiError(415, "invalid_request_error",
                   fmt::format("Content-Encoding: expected a body as it is, found {}", coding));
  }
  if (found->needs_model) check_ready(call.model.get());
  return *found;
}

// What goes wrong in it is the answer.
void Api::guarded(const Call& call, const std::function<void()>& work) const {
  try {
    work();
  } catch (const std::exception& error) {
    // Given up because the client left, or because the server ends: only then somebody hears of it.
    const bool stopped = dynamic_cast<const StoppedError*>(&error);
    if (stopped && !draining_) return;
    const ApiError api = stopped ? shutting_down() : to_api_error(error);
    if (api.status >= 500 && !stopped) {
      if (call.trace) call.trace->failed(error.what());
      // Of a lost device the loop has spoken, and this is every request from then on; of loading the log has.
      const bool loading = api.status == 503 && !draining_ && !std::atomic_load(&model_);
      if (!loading && !dynamic_cast<const DeviceLostError*>(&error))
        log_.warn("{} {}: {}{}", call.request.method, call.request.path, error.what(),
                  call.trace ? fmt::format(" (trace {})", call.trace->trace_id()) : "");
    }
    send_error(*call.reply, api, call.headers);
  }
}

void Api::handle(HttpRequest request, const std::shared_ptr<HttpReply>& reply) {
  Call call{std::move(request), reply, std::atomic_load(&model_), {}, nullptr};
  call.headers = cors(call.request);
  if (call.request.method == "OPTIONS") {
    if (!call.headers.empty()) {
      call.headers.emplace_back("Access-Control-Allow-Methods", "GET, POST, OPTIONS");
      // Clients add headers of their own (x-stainless-os); for a page that may call none of them is a danger.
      const std::string asked = call.request.header("access-control-request-headers");
      call.headers.emplace_back("Access-Control-Allow-Headers", asked.empty() ? "Authorization, Content-Type" : asked);
      call.headers.emplace_back("Access-Control-Max-Age", "86400");
    }
    return reply->send(204, "", "", call.headers);
  }
  guarded(call, [&] {
    const Route& route = route_of(call);
    // Read in a few milliseconds; what may take longer than others should wait goes elsewhere.
    constexpr size_t kShortBytes = 16 * 1024;
    if (call.request.body.size() <= kShortBytes) return (this->*route.run)(call);
    const auto kept = std::make_shared<Call>(std::move(call));
    call = {{kept->request.method, kept->request.path, {}, {}, {}}, kept->reply, nullptr, kept->headers, kept->trace};
    const auto job = reading_.submit([this, kept, run = route.run](const StopCheck& stop) {
      kept->stop = stop;
      guarded(*kept, [&] {
        stop();
        (this->*run)(*kept);
      });
    });
    call.reply->on_gone([this, job] { reading_.cancel(job); });
  });
}

void Api::health(const Call& call) {
  check_ready(call.model.get());
  if (const std::string why = call.model->loop->lost(); !why.empty()) throw DeviceLostError(why);
  call.json({{"status", "ok"}});
}

void Api::version(const Call& call) { call.json({{"version", kVersion}}); }

// Nothing but this server is ever asked, whatever a text in the chat says.
void Api::page(const Call& call) {
  HttpHeaders headers = call.headers;
  headers.emplace_back("Content-Security-Policy",
                       "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; "
                       "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
  headers.emplace_back("X-Content-Type-Options", "nosniff");
  headers.emplace_back("Cache-Control", "no-cache");
  call.reply->send(200, "text/html; charset=utf-8", std::string(server::page()), headers);
}

Json Api::model_json(const ServedModel& model) {
  const Config& c = model.engine->config();
  const Json meta{{"n_vocab", c.vocab},
                  {"n_ctx_train", c.context_length},
                  {"n_embd", c.hidden},
                  {"architecture", c.arch},
                  {"n_layer", c.layers.size()},
                  {"n_expert", c.router.experts},
                  {"n_expert_used", c.router.top_k}};
  return {{"id", model.name},
          {"object", "model"},
          {"created", model.created},
          {"owned_by", "expertflow"},
          {"max_model_len", model.loop->context_length()},
          {"meta", meta}};
}

void Api::models(const Call& call) {
  call.json({{"object", "list"}, {"data", Json::array({model_json(*call.model)})}});
}

void Api::model(const Call& call) {
  constexpr std::string_view kBefore = "models/";
  const std::string& path = call.request.path;
  const std::string id = percent_decoded(path.substr(path.find(kBefore) + kBefore.size()));
  if (id != call.model->name)
    throw ApiError(404, "invalid_request_error", fmt::format("The model '{}' does not exist", id), "model",
                   "model_not_found");
  call.json(model_json(*call.model));
}

void Api::answer(const Call& call, OpenAiRequest request) {
  request.id = random_id(request.chat ? "chatcmpl-" : "cmpl-");
  request.completion.watch = call.trace;
  call.trace->describe(request.chat ? "chat" : "text_completion", call.model->name, asked_of(request));
  // Where the answer's events come, too: one after the other.
  auto kept = std::make_shared<std::pair<Call, OpenAiRequest>>(
      Call{{call.request.method, call.request.path, {}, {}, {}}, call.reply, call.model, call.headers, call.trace},
      std::move(request));
  call.reply->post([this, kept] {
    const Call& c = kept->first;
    guarded(c, [&] { answer_openai(std::move(kept->second), c.model, c.reply, c.headers, options_.ping_interval); });
  });
}

void Api::chat(const Call& call) {
  answer(call, read_chat_request(parse_body(call.request.body, call.stop), *call.model, call.stop));
}

void Api::completions(const Call& call) {
  answer(call, read_completion_request(parse_body(call.request.body, call.stop), *call.model, call.stop));
}

// 400 and not 501: clients try 5xx again.
void Api::embeddings(const Call&) {
  throw ApiError(400, "invalid_request_error",
                 "embeddings are not supported: the models served here generate text; use /v1/chat/completions or "
                 "/v1/completions",
                 "model", "unsupported_endpoint");
}

void Api::tokenize(const Call& call) {
  const Json body = parse_body(call.request.body, call.stop);
  const auto content = body.find("content");
  if (content == body.end() || !content->is_string()) refuse("content", "content: expected a string");
  const auto flag = [&](const char* name, bool otherwise) {
    const auto it = body.find(name);
    if (it == body.end() || it->is_null()) return otherwise;
    if (!it->is_boolean()) refuse(name, "{}: expected true or false, found {}", name, dump(*it));
    return it->get<bool>();
  };
  const Tokenizer& tokenizer = call.model->need_tokenizer();
  const bool pieces = flag("with_pieces", false);
  const auto ids = tokenizer.encode(content->get_ref<const std::string&>(),
                                    {flag("add_special", false), flag("parse_special", true), call.stop});
  // As text at once: as objects, millions of tokens would take gigabytes.
  std::string answer = "{\"tokens\":[";
  for (const TokenId id : ids) {
    call.stop();
    if (answer.back() != '[') answer += ',';
    if (!pieces) {
      answer += std::to_string(id);
      continue;
    }
    const std::string bytes = tokenizer.token_to_bytes(id);
    Json piece = bytes;
    if (!is_valid_utf8(bytes)) {
      piece = Json::array();
      for (const char c : bytes) piece.push_back(int(uint8_t(c)));
    }
    answer += dump({{"id", id}, {"piece", piece}});
  }
  call.reply->send(200, "application/json", answer + "]}", call.headers);
}

void Api::detokenize(const Call& call) {
  const Json body = parse_body(call.request.body, call.stop);
  const auto tokens = body.find("tokens");
  if (tokens == body.end() || !tokens->is_array()) refuse("tokens", "tokens: expected a list of token ids");
  std::vector<TokenId> ids;
  for (const Json& id : *tokens) {
    call.stop();
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= call.model->engine->config().vocab)
      refuse("tokens", "tokens: expected token ids of 0 to {}, found {}", call.model->engine->config().vocab - 1,
             dump(id));
    ids.push_back(id.get<TokenId>());
  }
  call.json({{"content", call.model->need_tokenizer().decode(ids, false)}});
}

void Api::apply_template(const Call& call) {
  call.json({{"prompt", render_chat(parse_body(call.request.body, call.stop), *call.model, call.stop)}});
}

void Api::props(const Call& call) {
  const ServedModel& m = *call.model;
  const SamplerConfig& s = m.sampling;
  const Json params{{"temperature", s.temperature},
                    {"top_k", s.top_k},
                    {"top_p", s.top_p},
                    {"min_p", s.min_p},
                    {"repeat_penalty", s.repetition_penalty},
                    {"presence_penalty", s.presence_penalty},
                    {"frequency_penalty", s.frequency_penalty},
                    {"repeat_last_n", s.penalty_window},
                    {"n_predict", m.predict}};
  std::string source;
  if (m.chat_template || !m.templates.empty()) source = m.template_for(false).source();
  call.json({{"default_generation_settings", {{"n_ctx", m.loop->context_length()}, {"params", params}}},
             {"total_slots", m.engine->options().parallel},
             {"model_alias", m.name},
             {"model_path", m.path},
             {"modalities", {{"vision", false}, {"audio", false}}},
             {"chat_template", source},
             {"bos_token", m.special_tokens.contains("bos_token") ? m.special_tokens.at("bos_token") : ""},
             {"eos_token", m.special_tokens.contains("eos_token") ? m.special_tokens.at("eos_token") : ""},
             {"build_info", std::string("expertflow ") + kVersion},
             {"batch_advice", advice_json(m.advice)}});
}

void Api::slots(const Call& call) {
  const EngineLoop::Snapshot snapshot = call.model->loop->snapshot();
  Json list = Json::array();
  bool some_free = false;
  for (size_t i = 0; i < snapshot.slots.size(); ++i) {
    const Scheduler::Slot& slot = snapshot.slots[i];
    some_free |= slot.request == 0;
    list.push_back({{"id", i},
                    {"id_task", slot.request ? Json(slot.request) : Json(-1)},
                    {"n_ctx", call.model->loop->context_length()},
                    {"is_processing", slot.request != 0},
                    {"state", slot.request == 0 ? "idle"
                              : slot.prefilling ? "prefill"
                                                : "decode"},
                    {"n_prompt_tokens", slot.prompt_tokens},
                    {"n_past", slot.held_tokens}});
  }
  if (!some_free && call.request.query.find("fail_on_no_slot=1") != std::string::npos)
    throw ApiError(503, "unavailable_error", "no slot available");
  call.json(list);
}

}  // namespace ef::server
