#include "expertflow/text/chat.h"

#include <gtest/gtest.h>

#include "expertflow/base/errors.h"

namespace ef {
namespace {

using Json = nlohmann::ordered_json;

ChatInput hello() {
  ChatInput input;
  input.messages = Json::array({{{"role", "user"}, {"content", "Hi"}}});
  return input;
}

template <class Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const RequestError& e) {
    return e.what();
  }
  return "no error";
}

TEST(Chat, D10_BrokenTemplateLoadsAndFailsOnlyWhenUsed) {
  const ChatTemplates templates = ChatTemplates::from_config("{% for m in messages %}{{ m.content }}");
  const ChatTemplate& chat = templates.select(false);
  EXPECT_EQ(chat.error(), "chat template, line 1: the template ends, expected 'endfor'");
  EXPECT_EQ(error_of([&] { chat.render(hello()); }),
            "the model's chat template cannot be used: chat template, line 1: the template ends, expected 'endfor'");
}

TEST(Chat, D10_HubHelpersAreThere) {
  ChatInput input = hello();
  input.messages.push_back({{"role", "assistant"}, {"content", "<think>\nx</think>\n\nYo"}});
  std::tm now{};
  now.tm_year = 124;
  now.tm_mon = 6;
  now.tm_mday = 26;
  input.now = now;
  const ChatTemplate chat(
      "{{ bos_token }}{% for m in messages %}{% generation %}{{ m.content.split('</think>')[-1].lstrip('\\n') }}{% "
      "endgeneration %}"
      "{% if loop.index == 2 %}{% break %}{% endif %} {% endfor %} {{ strftime_now('%d %b %Y') }}");
  EXPECT_EQ(chat.error(), "");
  EXPECT_EQ(chat.render(input), "Hi Yo 26 Jul 2024");
  input.special_tokens["bos_token"] = "<s>";
  EXPECT_EQ(chat.render(input), "<s>Hi Yo 26 Jul 2024");
}

TEST(Chat, D10_UnknownFilterFailsOnlyWhereItIsReached) {
  const ChatTemplate chat("{% if tools %}{{ tools | frobnicate }}{% endif %}{{ messages[0].content }}");
  EXPECT_EQ(chat.error(), "");
  EXPECT_EQ(chat.render(hello()), "Hi");
}

TEST(Chat, D11_RaiseExceptionGivesTheTemplatesMessage) {
  const ChatTemplate chat(
      "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}");
  try {
    chat.render(hello());
    FAIL() << "no error";
  } catch (const RequestError& e) {
    EXPECT_STREQ(e.what(), "Conversation roles must alternate user/assistant/user/assistant/...");
  }
}

TEST(Chat, VariablesAreThoseOfHuggingFace) {
  const ChatTemplate chat(
      "{{ tools is defined }} {{ tools is none }} {{ documents is none }} {{ add_generation_prompt }} {{ eos_token is "
      "defined }} {{ x | tojson }}");
  ChatInput input = hello();
  EXPECT_EQ(error_of([&] { chat.render(input); }),
            "chat template, line 1: tojson: Object of type Undefined is not JSON serializable");
  input.extra = {{"x", {{"z", 1}, {"a", 2}}}, {"add_generation_prompt", false}};
  EXPECT_EQ(chat.render(input), R"(True True True False False {"z": 1, "a": 2})");
}

TEST(Chat, BadMessagesAreNamed) {
  const ChatTemplate chat("{{ messages | length }}");
  ChatInput input;
  EXPECT_EQ(chat.render(input), "0");
  input.messages = "text";
  EXPECT_EQ(error_of([&] { chat.render(input); }), "messages: expected an array, found string");
  input.messages = Json::array({"text"});
  EXPECT_EQ(error_of([&] { chat.render(input); }), "messages[0]: expected an object, found string");
  input.messages = Json::array({{{"role", "user"}}, {{"role", 1}}});
  EXPECT_EQ(error_of([&] { chat.render(input); }), "messages[1].role: expected a string");
  input = hello();
  input.extra = Json::array();
  EXPECT_EQ(error_of([&] { chat.render(input); }), "chat_template_kwargs: expected an object, found array");
}

TEST(Chat, FormsOfTheConfig) {
  const auto text = [](const ChatTemplates& t, bool tools, std::string_view name = {}) {
    return t.select(tools, name).source();
  };
  EXPECT_TRUE(ChatTemplates::from_config(nullptr).empty());
  EXPECT_EQ(error_of([] { ChatTemplates::from_config(nullptr).select(false); }),
            "the model has no chat template: pass one, or send a plain prompt");

  EXPECT_EQ(text(ChatTemplates::from_config("A"), false), "A");
  EXPECT_EQ(text(ChatTemplates::from_config("A"), true), "A");
  EXPECT_EQ(text(ChatTemplates::from_config("A", "FILE"), false), "FILE");
  EXPECT_EQ(text(ChatTemplates::from_config(nullptr, "FILE"), false), "FILE");

  const auto named = ChatTemplates::from_config(nlohmann::json::array({{{"name", "default"}, {"template", "D"}},
                                                                       {{"name", "tool_use"}, {"template", "T"}},
                                                                       {{"name", "rag"}, {"template", "R"}}}));
  EXPECT_EQ(text(named, false), "D");
  EXPECT_EQ(text(named, true), "T");
  EXPECT_EQ(text(named, true, "rag"), "R");
  EXPECT_EQ(error_of([&] { named.select(false, "x"); }),
            "the model has no chat template 'x', only: default, rag, tool_use");

  EXPECT_THROW(ChatTemplates::from_config(5), ModelError);
  EXPECT_THROW(ChatTemplates::from_config(nlohmann::json::array({"x"})), ModelError);
  EXPECT_THROW(ChatTemplates::from_config(nlohmann::json::array({{{"name", "x"}}})), ModelError);
}

TEST(Chat, OneTemplateServesManyRequests) {
  const ChatTemplate chat(
      "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}");
  EXPECT_EQ(chat.render(hello()), "1");
  EXPECT_EQ(chat.render(hello()), "1");
}

}  // namespace
}  // namespace ef
