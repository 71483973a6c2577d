#include "apps/server/openai_request.h"

#include <charconv>
#include <cmath>
#include <limits>

#include "expertflow/text/answer_grammar.h"
#include "expertflow/text/bounded_json.h"

namespace ef::server {

namespace {

constexpr int kMostAnswers = 128, kMostLogprobs = 20;
constexpr size_t kMostStops = 32, kMostStopBytes = 1024, kMostStopTokens = 1024, kMostKwargs = 1024;

// Members of a body: absent and null are the same; another type than the one asked for is an error that names it.
class Fields {
 public:
  explicit Fields(const Json& body) : body_(body) {}
  const Json* find(const char* name) const {
    const auto it = body_.find(name);
    return it == body_.end() || it->is_null() ? nullptr : &*it;
  }
  bool boolean(const char* name, bool otherwise = false) const {
    const Json* v = find(name);
    if (!v) return otherwise;
    if (!v->is_boolean()) refuse(name, "{}: expected true or false, found {}", name, dump(*v));
    return v->get<bool>();
  }
  int64_t integer(const char* name, int64_t otherwise, int64_t least, int64_t most) const {
    const Json* v = find(name);
    if (!v) return otherwise;
    const bool whole =
        v->is_number_integer() ||
        (v->is_number_float() && std::floor(v->get<double>()) == v->get<double>() && std::abs(v->get<double>()) < 9e15);
    // A number beyond 63 bits is unsigned here.
    const bool fits = whole && !(v->is_number_unsigned() && v->get<uint64_t>() > uint64_t(INT64_MAX));
    const int64_t value = fits ? v->get<int64_t>() : 0;
    if (!fits || value < least || value > most)
      refuse(name, "{}: expected a whole number of {} to {}, found {}", name, least, most, dump(*v));
    return value;
  }
  float number(const char* name, float otherwise) const {
    const Json* v = find(name);
    if (!v) return otherwise;
    if (!v->is_number()) refuse(name, "{}: expected a number, found {}", name, dump(*v));
    const double value = v->get<double>();
    if (!(std::abs(value) <= double(std::numeric_limits<float>::max())))
      refuse(name, "{}: expected a number of 32 bits, found {}", name, dump(*v));
    return float(value);
  }
  std::string text(const char* name, const std::string& otherwise) const {
    const Json* v = find(name);
    if (!v) return otherwise;
    if (!v->is_string()) refuse(name, "{}: expected a string, found {}", name, dump(*v));
    return v->get<std::string>();
  }

 private:
  const Json& body_;
};

TokenId token_id(const Json& value, const char* name) {
  const bool fits = value.is_number_integer() && !(value.is_number_unsigned() && value.get<uint64_t>() > INT32_MAX);
  if (!fits || value.get<int64_t>() < 0 || value.get<int64_t>() > INT32_MAX)
    refuse(name, "{}: expected token ids of 0 or more, found {}", name, dump(value));
  return value.get<TokenId>();
}

void read_logit_bias(const Json& value, SamplerConfig& sampler) {
  const auto bias_of = [](const Json& v) {
    if (v.is_boolean() && !v.get<bool>()) return -std::numeric_limits<float>::infinity();
    if (!v.is_number()) refuse("logit_bias", "logit_bias: expected numbers, found {}", dump(v));
    return v.get<float>();
  };
  if (value.is_object()) {
    for (const auto& [key, bias] : value.items()) {
      TokenId id = 0;
      const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
      if (error != std::errc() || end != key.data() + key.size())
        refuse("logit_bias", "logit_bias: expected token ids as keys, found \"{}\"", key);
      sampler.logit_bias[id] = bias_of(bias);
    }
    return;
  }
  if (!value.is_array()) refuse("logit_bias", "logit_bias: expected an object, or a list of [id, bias]");
  for (const Json& pair : value) {
    if (!pair.is_array() || pair.size() != 2)
      refuse("logit_bias", "logit_bias: expected [id, bias], found {}", dump(pair));
    sampler.logit_bias[token_id(pair[0], "logit_bias")] = bias_of(pair[1]);
  }
}

SamplerConfig read_sampler(const Fields& f, const SamplerConfig& defaults) {
  SamplerConfig s = defaults;
  s.temperature = f.number("temperature", s.temperature);
  if (s.temperature < 0) refuse("temperature", "temperature: expected 0 to 100, found {}", s.temperature);
  s.top_p = f.number("top_p", s.top_p);
  s.min_p = f.number("min_p", s.min_p);
  s.top_k = int(f.integer("top_k", s.top_k, -1, INT32_MAX));
  s.presence_penalty = f.number("presence_penalty", s.presence_penalty);
  s.frequency_penalty = f.number("frequency_penalty", s.frequency_penalty);
  s.repetition_penalty = f.number("repeat_penalty", f.number("repetition_penalty", s.repetition_penalty));
  s.penalty_window = int(f.integer("repeat_last_n", s.penalty_window, -1, INT32_MAX));
  if (const int64_t seed = f.integer("seed", -2, INT64_MIN, INT64_MAX); f.find("seed"))
    s.seed = seed == -1 ? std::nullopt : std::optional<uint64_t>(uint64_t(seed));
  if (const Json* bias = f.find("logit_bias")) read_logit_bias(*bias, s);
  if (const std::string problem = s.problem(); !problem.empty())
    throw ApiError(400, "invalid_request_error", problem, problem.substr(0, problem.find_first_of(":[")));
  return s;
}

std::vector<std::string> read_stops(const Fields& f) {
  std::vector<std::string> stops;
  const Json* stop = f.find("stop");
  if (!stop) return stops;
  if (stop->is_string())
    stops.push_back(stop->get<std::string>());
  else if (stop->is_array())
    for (const Json& one : *stop) {
      if (!one.is_string()) refuse("stop", "stop: expected a string or a list of strings, found {}", dump(one));
      stops.push_back(one.get<std::string>());
    }
  else
    refuse("stop", "stop: expected a string or a list of strings, found {}", dump(*stop));
  std::erase(stops, "");  // clients send it for "none"
  if (stops.size() > kMostStops) refuse("stop", "stop: at most {} strings, found {}", kMostStops, stops.size());
  for (const std::string& one : stops)
    if (one.size() > kMostStopBytes)
      refuse("stop", "stop: strings of at most {} bytes, found one of {}", kMostStopBytes, one.size());
  return stops;
}

// What both endpoints have.
void read_common(const Fields& f, const ServedModel& model, int64_t default_tokens, OpenAiRequest& r) {
  CompletionRequest& c = r.completion;
  c.sampler = read_sampler(f, model.sampling);
  if (const std::string why = unknown_bias(c.sampler, model.engine->config().vocab); !why.empty())
    refuse("logit_bias", "{}", why);
  c.stop = read_stops(f);
  if (const Json* ids = f.find("stop_token_ids")) {
    if (!ids->is_array()) refuse("stop_token_ids", "stop_token_ids: expected a list of token ids");
    if (ids->size() > kMostStopTokens)
      refuse("stop_token_ids", "stop_token_ids: at most {} ids, found {}", kMostStopTokens, ids->size());
    for (const Json& id : *ids) c.stop_token_ids.push_back(token_id(id, "stop_token_ids"));
  }
  c.max_tokens = f.integer("n_predict", default_tokens, -1, INT64_MAX);
  c.max_tokens =
      f.integer("max_completion_tokens", f.integer("max_tokens", c.max_tokens, -1, INT64_MAX), -1, INT64_MAX);
  c.ignore_eos = f.boolean("ignore_eos");
  c.use_prefix_cache = f.boolean("cache_prompt", true);
  r.n = int(f.integer("n", 1, 1, kMostAnswers));
  if (const int64_t best = f.integer("best_of", r.n, 1, kMostAnswers); best != r.n)
    refuse("best_of", "best_of: only the value of n is supported, found {}", best);
  r.stream = f.boolean("stream");
  if (const Json* options = f.find("stream_options")) {
    if (!r.stream) refuse("stream_options", "stream_options: only allowed with stream: true");
    if (!options->is_object()) refuse("stream_options", "stream_options: expected an object");
    r.include_usage = Fields(*options).boolean("include_usage");
  }
  for (const char* name : {"grammar", "guided_regex", "guided_grammar", "guided_choice", "guided_json", "json_schema",
                           "structured_outputs"})
    if (f.find(name)) refuse(name, "{}: not supported; use response_format", name);
  if (f.integer("min_tokens", 0, 0, INT64_MAX) > 0) refuse("min_tokens", "min_tokens: not supported");
}

Json template_input_messages(const Json& body) {
  const auto it = body.find("messages");
  if (it == body.end() || !it->is_array()) refuse("messages", "messages: expected a list of messages");
  if (it->empty()) refuse("messages", "messages: expected at least one message, found none");
  Json messages = Json::array();
  for (size_t i = 0; i < it->size(); ++i) {
    Json m = (*it)[i];
    const std::string where = fmt::format("messages[{}]", i);
    if (!m.is_object()) refuse(where, "{}: expected an object", where);
    if (!m.contains("role") || !m["role"].is_string()) refuse(where + ".role", "{}.role: expected a string", where);
    const auto content = m.find("content");
    const bool has_calls = m.contains("tool_calls") && !m["tool_calls"].is_null();
    if (content != m.end() && content->is_array()) {
      std::string text;
      for (const Json& part : *content) {
        const bool texts = part.is_object() && part.value("type", Json("")) == "text";
        if (texts && !part.value("text", Json()).is_string())
          refuse(where + ".content", "{}.content: expected a string as the part's \"text\", found {}", where,
                 dump(part.value("text", Json())));
        if (!texts)
          refuse(where + ".content", "{}.content: this model takes text alone, found a part {}", where,
                 dump(part.is_object() ? part.value("type", Json()) : part));
        text += (text.empty() ? "" : "\n") + part["text"].get<std::string>();
      }
      *content = text;
    } else if (content == m.end() || content->is_null()) {
      if (!has_calls) refuse(where + ".content", "{}.content: expected a string or a list of parts", where);
      m["content"] = "";
    } else if (!content->is_string()) {
      refuse(where + ".content", "{}.content: expected a string or a list of parts, found {}", where,
             content->type_name());
    }
    // Templates take arguments as an object, as Hugging Face hands them over.
    if (has_calls) {
      if (!m["tool_calls"].is_array()) refuse(where + ".tool_calls", "{}.tool_calls: expected a list", where);
      for (Json& call : m["tool_calls"]) {
        if (!call.is_object() || !call.contains("function") || !call["function"].is_object())
          refuse(where + ".tool_calls", "{}.tool_calls: expected {{type, id, function}}", where);
        Json& function = call["function"];
        if (!function.contains("arguments") || !function["arguments"].is_string()) continue;
        Json parsed = parse_bounded_json(function["arguments"].get<std::string>());
        if (parsed.is_object()) function["arguments"] = std::move(parsed);
      }
    }
    messages.push_back(std::move(m));
  }
  return messages;
}

// Tools as the template takes them; null where there are none, or the client wants none to be called.
Json read_tools(const Fields& f) {
  const Json* tools = f.find("tools");
  if (!tools) return nullptr;
  if (!tools->is_array()) refuse("tools", "tools: expected a list");
  for (const Json& tool : *tools) {
    const bool fine = tool.is_object() && tool.value("type", Json("function")) == "function" &&
                      tool.contains("function") && tool["function"].is_object() &&
                      tool["function"].value("name", Json()).is_string();
    if (!fine)
      refuse("tools", "tools: expected {{\"type\": \"function\", \"function\": {{\"name\": ...}}}}, found {}",
             dump(tool));
  }
  const Json* choice = f.find("tool_choice");
  if (tools->empty() || (choice && *choice == "none")) return nullptr;
  return *tools;
}

ChatInput chat_input(const Json& body, const Json& tools, const ServedModel& model) {
  ChatInput input;
  input.messages = template_input_messages(body);
  input.tools = tools;
  input.special_tokens = model.special_tokens;
  input.extra = model.template_kwargs.is_object() ? model.template_kwargs : Json::object();
  if (const Json* more = Fields(body).find("chat_template_kwargs")) {
    if (!more->is_object()) refuse("chat_template_kwargs", "chat_template_kwargs: expected an object");
    if (more->size() > kMostKwargs)
      refuse("chat_template_kwargs", "chat_template_kwargs: at most {} members, found {}", kMostKwargs, more->size());
    for (const auto& [key, value] : more->items()) input.extra[key] = value;
  }
  if (const Json* effort = Fields(body).find("reasoning_effort")) input.extra["reasoning_effort"] = *effort;
  if (input.extra.empty()) input.extra = nullptr;
  input.add_generation_prompt = Fields(body).boolean("add_generation_prompt", true);
  return input;
}

jinja::Limits limited_by(const StopCheck& stop) {
  jinja::Limits limits;
  limits.stop = stop;
  return limits;
}

std::shared_ptr<const Grammar> call_grammar(const Json& choice, const Json& tools, const AnswerShape& shape) {
  std::string wanted;
  if (choice.is_object()) {
    const auto function = choice.find("function");
    if (function == choice.end() || !function->is_object() || !function->value("name", Json()).is_string())
      refuse("tool_choice",
             "tool_choice: expected {{\"type\": \"function\", \"function\": {{\"name\": ...}}}}, found {}",
             dump(choice));
    wanted = (*function)["name"].get<std::string>();
  } else if (choice != "required") {
    refuse("tool_choice", "tool_choice: expected \"auto\", \"none\", \"required\" or a function, found {}",
           dump(choice));
  }
  std::vector<std::pair<std::string, Json>> calls;
  for (const Json& tool : tools) {
    const Json& function = tool["function"];
    const std::string name = function["name"].get<std::string>();
    if (choice.is_object() && name != wanted) continue;
    const Json parameters = function.value("parameters", Json());
    calls.emplace_back(name, parameters.is_null() ? Json::object() : parameters);
  }
  if (calls.empty()) refuse("tool_choice", "tool_choice: there is no function \"{}\" in tools", wanted);
  try {
    return tool_call_grammar(calls, shape);
  } catch (const RequestError& error) {
    throw ApiError(400, "invalid_request_error", std::string("tool_choice: ") + error.what(), "tool_choice");
  }
}

// What the answer has to match; null: anything.
std::shared_ptr<const Grammar> read_format(const Fields& f, const Json& tools, const AnswerShape& shape) {
  const Json* format = f.find("response_format");
  const Json* choice = f.find("tool_choice");
  if (choice && *choice != "auto" && *choice != "none") {
    if (tools.is_null()) refuse("tool_choice", "tool_choice: only allowed with tools");
    return call_grammar(*choice, tools, shape);
  }
  if (!format) return nullptr;
  if (!format->is_object() || !format->value("type", Json()).is_string())
    refuse("response_format", "response_format: expected an object with a type");
  const std::string type = (*format)["type"].get<std::string>();
  if (type == "text") return nullptr;
  if (type != "json_object" && type != "json_schema")
    refuse("response_format", "response_format.type: expected text, json_object or json_schema, found \"{}\"", type);
  const Json* schema = nullptr;
  if (type == "json_schema") {
    const auto wrapped = format->find("json_schema");
    if (wrapped == format->end() || !wrapped->is_object() || !wrapped->contains("schema"))
      refuse("response_format", "response_format.json_schema: expected an object with a schema");
    schema = &(*wrapped)["schema"];
  } else if (format->contains("schema")) {
    schema = &(*format)["schema"];
  }
  try {
    return json_answer_grammar(schema, shape);
  } catch (const RequestError& error) {
    throw ApiError(400, "invalid_request_error", std::string("response_format: ") + error.what(), "response_format");
  }
}

// Before it is copied for each answer.
std::vector<TokenId> fitting(std::vector<TokenId> ids, const ServedModel& model) {
  const int64_t length = model.loop->context_length();
  if (int64_t(ids.size()) > length) throw ContextLengthError(int64_t(ids.size()), length);
  return ids;
}

std::vector<TokenId> read_ids(const Json& list, const ServedModel& model) {
  std::vector<TokenId> ids;
  const int64_t vocab = model.engine->config().vocab;
  for (const Json& id : list) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= vocab)
      refuse("prompt", "prompt: expected token ids of 0 to {}, found {}", vocab - 1, dump(id));
    ids.push_back(id.get<TokenId>());
  }
  if (ids.empty()) refuse("prompt", "prompt: expected at least one token, found none");
  return fitting(std::move(ids), model);
}

// Where the bytes alone say that it cannot fit, nobody waits for the tokens.
std::vector<TokenId> encode_fitting(std::string_view text, const EncodeOptions& options, const ServedModel& model) {
  const Tokenizer& tokenizer = model.need_tokenizer();
  const int64_t length = model.loop->context_length();
  if (const auto most = tokenizer.most_bytes_per_token()) {
    const auto least = int64_t((text.size() + *most - 1) / *most);
    if (least > length) throw ContextLengthError(least, length, text.size());
  }
  return tokenizer.encode(text, options);
}

std::vector<TokenId> encode_prompt(const std::string& text, const ServedModel& model, const StopCheck& stop) {
  std::vector<TokenId> ids = encode_fitting(text, {true, true, stop}, model);
  if (ids.empty() && model.tokenizer->bos()) ids = {*model.tokenizer->bos()};
  if (ids.empty()) refuse("prompt", "prompt: expected at least one token, found none");
  return fitting(std::move(ids), model);
}

std::vector<std::vector<TokenId>> read_prompts(const Fields& f, const ServedModel& model, const StopCheck& stop) {
  const Json* prompt = f.find("prompt");
  if (!prompt) refuse("prompt", "prompt: expected a string, a list of token ids, or a list of these; found none");
  if (prompt->is_string()) return {encode_prompt(prompt->get_ref<const std::string&>(), model, stop)};
  if (!prompt->is_array()) refuse("prompt", "prompt: expected a string or a list, found {}", prompt->type_name());
  if (prompt->empty()) refuse("prompt", "prompt: expected at least one prompt, found none");
  if ((*prompt)[0].is_number()) return {read_ids(*prompt, model)};
  if (prompt->size() > size_t(kMostAnswers))
    refuse("prompt", "prompt: at most {} prompts, found {}", kMostAnswers, prompt->size());
  std::vector<std::vector<TokenId>> prompts;
  for (const Json& one : *prompt) {
    if (one.is_string())
      prompts.push_back(encode_prompt(one.get_ref<const std::string&>(), model, stop));
    else if (one.is_array())
      prompts.push_back(read_ids(one, model));
    else
      refuse("prompt", "prompt: expected strings or lists of token ids, found {}", dump(one));
  }
  return prompts;
}

}  // namespace

Json parse_body(const std::string& body, const StopCheck& stop) {
  BoundedJson read = read_bounded_json(body, stop);
  if (!read.error.empty()) refuse("", "the body {}", read.error);
  if (!read.value.is_object()) refuse("", "expected a JSON object as the body, found {}", read.value.type_name());
  return std::move(read.value);
}

std::string render_chat(const Json& body, const ServedModel& model, const StopCheck& stop) {
  const Json tools = read_tools(Fields(body));
  return model.template_for(!tools.is_null()).render(chat_input(body, tools, model), limited_by(stop));
}

OpenAiRequest read_chat_request(const Json& body, const ServedModel& model, const StopCheck& stop) {
  const Fields f(body);
  OpenAiRequest r;
  r.chat = true;
  const Json tools = read_tools(f);
  const ChatInput input = chat_input(body, tools, model);  // what is wrong with messages comes first
  read_common(f, model, model.predict, r);
  const bool logprobs = f.boolean("logprobs");
  const int64_t top = f.integer("top_logprobs", 0, 0, kMostLogprobs);
  if (f.find("top_logprobs") && !logprobs) refuse("top_logprobs", "top_logprobs: only allowed with logprobs: true");
  if (logprobs) r.completion.logprobs = int(top);
  const ChatTemplate& chat_template = model.template_for(!tools.is_null());
  const Tokenizer& tokenizer = model.need_tokenizer();
  const std::string prompt = chat_template.render(input, limited_by(stop));
  std::vector<TokenId> ids = encode_fitting(prompt, {false, true, stop}, model);
  tokenizer.ensure_one_bos(ids);
  if (ids.empty()) refuse("messages", "messages: the chat template made an empty prompt of them");
  r.prompts = {fitting(std::move(ids), model)};
  const AnswerShape shape = answer_shape(chat_template.source(), prompt);
  r.output = {shape.style, shape.in_reasoning, !tools.is_null()};
  r.completion.show_special = shows_special(shape.style);
  r.completion.grammar = read_format(f, tools, shape);
  return r;
}

OpenAiRequest read_completion_request(const Json& body, const ServedModel& model, const StopCheck& stop) {
  const Fields f(body);
  OpenAiRequest r;
  constexpr int64_t kDefaultTokens = 16;  // OpenAI's, and vLLM's
  read_common(f, model, model.predict >= 0 ? model.predict : kDefaultTokens, r);
  if (f.find("suffix") && !f.text("suffix", "").empty()) refuse("suffix", "suffix: not supported");
  r.echo = f.boolean("echo");
  r.completion.logprobs = int(f.integer("logprobs", -1, 0, kMostLogprobs));
  r.completion.prompt_logprobs = r.echo && r.completion.logprobs >= 0;
  r.prompts = read_prompts(f, model, stop);
  if (r.prompts.size() * size_t(r.n) > size_t(kMostAnswers))
    refuse("n", "n: at most {} answers to one request, found {} prompts and n {}", kMostAnswers, r.prompts.size(), r.n);
  r.completion.grammar = read_format(f, nullptr, {});
  return r;
}

}  // namespace ef::server
