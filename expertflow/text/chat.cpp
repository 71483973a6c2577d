#include "expertflow/text/chat.h"

#include <fmt/ranges.h>

#include "expertflow/base/errors.h"

namespace ef {
namespace {

std::tm local_now() {
  const std::time_t now = std::time(nullptr);
  std::tm result{};
  localtime_r(&now, &result);
  return result;
}

void check_messages(const nlohmann::ordered_json& messages) {
  EF_CHECK(messages.is_array(), RequestError, "messages: expected an array, found {}", messages.type_name());
  for (size_t i = 0; i < messages.size(); ++i) {
    EF_CHECK(messages[i].is_object(), RequestError, "messages[{}]: expected an object, found {}", i,
             messages[i].type_name());
    const auto role = messages[i].find("role");
    EF_CHECK(role != messages[i].end() && role->is_string(), RequestError, "messages[{}].role: expected a string", i);
  }
}

}  // namespace

ChatTemplate::ChatTemplate(std::string source) : source_(std::move(source)) {
  try {
    template_ = std::make_shared<const jinja::Template>(source_);
  } catch (const RequestError& e) {
    error_ = e.what();
  }
}

std::string ChatTemplate::render(const ChatInput& input, const jinja::Limits& limits) const {
  if (!template_) fail<RequestError>("the model's chat template cannot be used: {}", error_);
  check_messages(input.messages);
  nlohmann::ordered_json context = nlohmann::ordered_json::object();
  context["messages"] = input.messages;
  context["tools"] = input.tools;
  context["documents"] = input.documents;
  context["add_generation_prompt"] = input.add_generation_prompt;
  for (const auto& [name, token] : input.special_tokens) context[name] = token;
  EF_CHECK(input.extra.is_null() || input.extra.is_object(), RequestError,
           "chat_template_kwargs: expected an object, found {}", input.extra.type_name());
  for (const auto& [name, value] : input.extra.items()) context[name] = value;
  return template_->render(context, input.now ? *input.now : local_now(), limits);
}

ChatTemplates ChatTemplates::from_config(const nlohmann::json& chat_template,
                                         const std::optional<std::string>& jinja_file) {
  ChatTemplates templates;
  if (chat_template.is_string()) {
    templates.add("default", chat_template.get<std::string>());
  } else if (chat_template.is_array()) {
    for (const auto& row : chat_template) {
      const bool good = row.is_object() && row.contains("name") && row["name"].is_string() &&
                        row.contains("template") && row["template"].is_string();
      EF_CHECK(good, ModelError, "tokenizer_config.json: chat_template: expected a list of {{name, template}} strings");
      templates.add(row["name"].get<std::string>(), row["template"].get<std::string>());
    }
  } else {
    EF_CHECK(chat_template.is_null(), ModelError,
             "tokenizer_config.json: chat_template: expected a string or a list, found {}", chat_template.type_name());
  }
  if (jinja_file) templates.add("default", *jinja_file);
  return templates;
}

void ChatTemplates::add(std::string name, std::string source) {
  templates_.insert_or_assign(std::move(name), ChatTemplate(std::move(source)));
}

std::vector<std::string> ChatTemplates::names() const {
  std::vector<std::string> names;
  for (const auto& [name, t] : templates_) names.push_back(name);
  return names;
}

const ChatTemplate& ChatTemplates::select(bool has_tools, std::string_view name) const {
  EF_CHECK(!templates_.empty(), RequestError, "the model has no chat template: pass one, or send a plain prompt");
  std::string_view wanted = name;
  if (wanted.empty()) wanted = has_tools && templates_.contains("tool_use") ? "tool_use" : "default";
  const auto it = templates_.find(wanted);
  EF_CHECK(it != templates_.end(), RequestError, "the model has no chat template '{}', only: {}", wanted,
           fmt::join(names(), ", "));
  return it->second;
}

}  // namespace ef
