// Chat templates: which one a model brings, and messages to prompt text.
#pragma once
#include <ctime>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "expertflow/text/jinja.h"

namespace ef {

/// What Hugging Face's apply_chat_template hands to a template. Objects keep their order: parse requests as
/// ordered_json.
struct ChatInput {
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  nlohmann::ordered_json tools;      // null: none
  nlohmann::ordered_json documents;  // null: none
  bool add_generation_prompt = true;
  /// Further variables (enable_thinking, reasoning_effort, ...): an object or null. They win over the ones above.
  nlohmann::ordered_json extra;
  /// bos_token, eos_token, ...: a token that the model lacks is left out, and undefined in the template.
  std::map<std::string, std::string> special_tokens;
  /// What strftime_now sees; the local time of the call where absent.
  std::optional<std::tm> now;
};

/// A template that cannot be parsed does not stop a model from loading: the error waits until the template is used.
class ChatTemplate {
 public:
  explicit ChatTemplate(std::string source);

  const std::string& source() const { return source_; }
  /// Empty where the template is usable.
  const std::string& error() const { return error_; }

  /// RequestError: the template cannot be parsed, fails, or calls raise_exception (then what() is its message alone).
  std::string render(const ChatInput& input, const jinja::Limits& limits = {}) const;

 private:
  std::string source_;
  std::string error_;
  std::shared_ptr<const jinja::Template> template_;
};

/// The templates that a model brings. Copies share the parsed templates.
class ChatTemplates {
 public:
  /// The value of `chat_template` in tokenizer_config.json: null, a string, or a list of {name, template}. The text of
  /// a chat_template.jinja beside it, where there is one, takes the place of the default. Never throws for a bad
  /// template; ModelError where the value has another shape.
  static ChatTemplates from_config(const nlohmann::json& chat_template,
                                   const std::optional<std::string>& jinja_file = {});

  void add(std::string name, std::string source);
  bool empty() const { return templates_.empty(); }
  std::vector<std::string> names() const;
  /// The template named `name`; without a name "tool_use" for requests with tools where the model has it, else
  /// "default". RequestError naming the templates that exist.
  const ChatTemplate& select(bool has_tools, std::string_view name = {}) const;

 private:
  std::map<std::string, ChatTemplate, std::less<>> templates_;
};

}  // namespace ef
