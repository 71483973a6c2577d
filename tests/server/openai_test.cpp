// Chat and completions as OpenAI's clients see them, over a raw connection, on the bundled model. Texts are compared
// with the same model's run without a server. Names carry the report that an input broke another engine by.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "expertflow/engine/generate.h"
#include "tests/server/rig.h"

namespace ef::testing {
namespace {

// What `run` gives: an engine of its own, one sequence.
const std::string& solo_story(int64_t tokens) {
  static std::map<int64_t, std::string> texts;
  if (texts.contains(tokens)) return texts[tokens];
  static const Log quiet(LogLevel::kOff, nullptr);
  EngineOptions o;
  o.threads = 2;
  Engine engine(open_model(demo_model()), o, quiet);
  Generator generator(engine, &shared_rig().tokenizer());
  GenerateRequest r;
  r.prompt = shared_rig().tokenizer().encode(kStory);
  r.max_tokens = tokens;
  r.sampler.temperature = 0;
  return texts[tokens] = generator.generate(r).text;
}

std::string text_of(const HttpAnswer& answer) {
  EXPECT_EQ(answer.status, 200) << answer.body;
  return answer.json()["choices"][0]["text"].get<std::string>();
}
std::string streamed_text(const HttpAnswer& answer) {
  std::string text;
  for (const Json& chunk : answer.chunks())
    for (const Json& choice : chunk["choices"]) text += choice["text"].get<std::string>();
  return text;
}

TEST(OpenAi, ACompletionIsWhatTheModelAloneGives) {
  const HttpAnswer answer = shared_rig().post("/v1/completions", completion_body(kStory, 48));
  EXPECT_EQ(text_of(answer), solo_story(48));
  const Json json = answer.json();
  EXPECT_EQ(json["object"], "text_completion");
  EXPECT_TRUE(json["id"].get<std::string>().starts_with("cmpl-"));
  EXPECT_EQ(json["model"], "demo-Q5_K_M.gguf");
  EXPECT_GT(json["created"].get<int64_t>(), 1700000000);
  EXPECT_EQ(json["usage"]["completion_tokens"], 48);
  EXPECT_EQ(json["usage"]["prompt_tokens"], shared_rig().tokenizer().encode(kStory).size());
  EXPECT_EQ(json["timings"]["predicted_n"], 48);
}

TEST(OpenAi, E16_FinishReasonIsLengthWhereTokensRanOut) {
  EXPECT_EQ(shared_rig().post("/v1/completions", completion_body(kStory, 5)).json()["choices"][0]["finish_reason"],
            "length");
  EXPECT_EQ(shared_rig()
                .post("/v1/chat/completions", chat_body("Continue: the cat", 3))
                .json()["choices"][0]["finish_reason"],
            "length");
}

TEST(OpenAi, E16_WithoutALimitTheContextIsOne) {
  RigSetup setup;
  setup.parallel = 1;
  setup.ctx_size = 64;
  ServerRig rig(setup);
  const size_t prompt = rig.tokenizer().encode(kStory).size();
  for (const Json& limit : {Json(-1), Json(100000)}) {
    Json body = completion_body(kStory);
    body["max_tokens"] = limit;
    body["ignore_eos"] = true;
    const Json json = rig.post("/v1/completions", body).json();
    EXPECT_EQ(json["usage"]["total_tokens"], 64);
    EXPECT_EQ(json["usage"]["prompt_tokens"], prompt);
    EXPECT_EQ(json["choices"][0]["finish_reason"], "length");
  }
}

// null is absent. Completions have OpenAI's own default there, 16; of chats the context is the limit.
TEST(OpenAi, E16_NoLimitAndNullAreTheSame) {
  RigSetup setup;
  setup.parallel = 1;
  setup.ctx_size = 64;
  ServerRig rig(setup);
  for (const char* name : {"max_tokens", "max_completion_tokens", ""}) {
    Json completion = completion_body("a cat"), chat = chat_body("a cat");
    for (Json* body : {&completion, &chat}) {
      body->erase("max_tokens");
      (*body)["ignore_eos"] = true;
      if (*name) (*body)[name] = nullptr;
    }
    const Json whole = rig.post("/v1/completions", completion).json(),
               said = rig.post("/v1/chat/completions", chat).json();
    EXPECT_EQ(whole["usage"]["completion_tokens"], 16) << name;
    EXPECT_EQ(said["usage"]["total_tokens"], 64) << name;
    for (const Json& answer : {whole, said}) EXPECT_EQ(answer["choices"][0]["finish_reason"], "length") << name;
  }
}

TEST(OpenAi, AStreamHoldsTheSameText) {
  Json body = completion_body(kStory, 48);
  body["stream"] = true;
  const HttpAnswer answer = shared_rig().post("/v1/completions", body);
  EXPECT_EQ(answer.status, 200);
  EXPECT_TRUE(answer.headers.at("content-type").starts_with("text/event-stream"));
  EXPECT_EQ(streamed_text(answer), solo_story(48));
  EXPECT_EQ(answer.events().back(), "[DONE]");
  const auto chunks = answer.chunks();
  EXPECT_EQ(chunks.back()["choices"][0]["finish_reason"], "length");
  for (const Json& chunk : chunks) EXPECT_FALSE(chunk.contains("usage"));
}

TEST(OpenAi, AChatStreamBeginsWithTheRoleAndEndsWithAReason) {
  Json body = chat_body("Continue: the cat", 12);
  const std::string whole = shared_rig().post("/v1/chat/completions", body).json()["choices"][0]["message"]["content"];
  EXPECT_FALSE(whole.empty());
  body["stream"] = true;
  const HttpAnswer answer = shared_rig().post("/v1/chat/completions", body);
  const auto chunks = answer.chunks();
  EXPECT_EQ(chunks[0]["choices"][0]["delta"]["role"], "assistant");
  std::string text;
  std::set<std::string> ids;
  for (const Json& chunk : chunks) {
    EXPECT_EQ(chunk["object"], "chat.completion.chunk");
    ids.insert(chunk["id"]);
    const Json& delta = chunk["choices"][0]["delta"];
    if (delta.contains("content")) text += delta["content"].get<std::string>();
  }
  EXPECT_EQ(ids.size(), 1u);
  EXPECT_EQ(text, whole);
  EXPECT_TRUE(chunks.back()["choices"][0]["delta"].empty());
  EXPECT_EQ(chunks.back()["choices"][0]["finish_reason"], "length");
}

TEST(OpenAi, E1_StopStringsAcrossTokensAreNeverShown) {
  const std::string text = solo_story(48);
  for (size_t at = 10; at + 9 < text.size() && at < 60; at += 7)
    for (const size_t length : {1, 4, 9}) {
      const std::string stop = text.substr(at, length);
      for (const bool stream : {false, true}) {
        Json body = completion_body(kStory, 48);
        body["stop"] = Json::array({"never this", stop});
        body["stream"] = stream;
        const HttpAnswer answer = shared_rig().post("/v1/completions", body);
        EXPECT_EQ(stream ? streamed_text(answer) : text_of(answer), text.substr(0, text.find(stop))) << stop;
        const Json last = stream ? answer.chunks().back() : answer.json();
        EXPECT_EQ(last["choices"][0]["finish_reason"], "stop");
      }
    }
}

TEST(OpenAi, E3_StreamsShowWholeTokensBeforeAPossibleStop) {
  Json body = completion_body(kStory, 48);
  const std::string text = solo_story(48);
  body["stop"] = text.substr(20, 3) + "\x01";  // begins often, never completes
  body["stream"] = true;
  EXPECT_EQ(streamed_text(shared_rig().post("/v1/completions", body)), text);
}

TEST(OpenAi, E4_EmptyPromptsAndMessages) {
  ServerRig& rig = shared_rig();
  for (const Json& prompt : {Json::array(), Json::array({Json::array()}), Json(), Json(7), Json::array({true})}) {
    const HttpAnswer answer = rig.post("/v1/completions", completion_body(prompt));
    EXPECT_EQ(answer.status, 400) << prompt;
    EXPECT_EQ(answer.json()["error"]["param"], "prompt");
  }
  for (const Json& prompt : {Json(""), Json::array({""})}) {
    const int status = rig.post("/v1/completions", completion_body(prompt)).status;  // begins with BOS if there is one
    EXPECT_EQ(status, rig.tokenizer().bos() ? 200 : 400);
  }
  Json body = chat_body("x");
  body["messages"] = Json::array();
  EXPECT_EQ(rig.post("/v1/chat/completions", body).status, 400);
  body.erase("messages");
  EXPECT_EQ(rig.post("/v1/chat/completions", body).status, 400);
  EXPECT_EQ(rig.post("/v1/chat/completions", chat_body("", 3)).status, 200);
  EXPECT_EQ(text_of(rig.post("/v1/completions", completion_body(kStory, 48))), solo_story(48));  // it lives
}

TEST(OpenAi, E5_APromptLongerThanTheContextIsRefusedWithTheCounts) {
  RigSetup setup;
  setup.parallel = 2;
  setup.ctx_size = 64;
  ServerRig rig(setup);
  std::string text;
  for (int i = 0; i < 80; ++i) text += " cat";
  const size_t n = rig.tokenizer().encode(text).size();
  for (const bool stream : {false, true}) {
    Json body = completion_body(text);
    body["stream"] = stream;
    const HttpAnswer answer = rig.post("/v1/completions", body);
    EXPECT_EQ(answer.status, 400);
    const Json error = answer.json()["error"];
    EXPECT_EQ(error["code"], "context_length_exceeded");
    EXPECT_EQ(error["type"], "exceed_context_size_error");
    EXPECT_EQ(error["n_prompt_tokens"], n);
    EXPECT_EQ(error["n_ctx"], 64);
    const std::string message = error["message"];
    EXPECT_NE(message.find("maximum context length is 64 tokens"), std::string::npos) << message;
    EXPECT_NE(message.find("context_length_exceeded"), std::string::npos) << message;
  }
  EXPECT_EQ(rig.post("/v1/completions", completion_body("a cat", 4)).status, 200);
}

TEST(OpenAi, E6_MaxTokensZeroGivesThePromptAlone) {
  Json body = completion_body(kStory, 0);
  EXPECT_EQ(text_of(shared_rig().post("/v1/completions", body)), "");
  body["echo"] = true;
  EXPECT_EQ(text_of(shared_rig().post("/v1/completions", body)), kStory);
  body["logprobs"] = 2;
  const Json json = shared_rig().post("/v1/completions", body).json();
  EXPECT_EQ(json["choices"][0]["text"], kStory);
  EXPECT_EQ(json["usage"]["completion_tokens"], 0);
  const Json logprobs = json["choices"][0]["logprobs"];
  const size_t n = shared_rig().tokenizer().encode(kStory).size();
  ASSERT_EQ(logprobs["tokens"].size(), n);
  EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
  for (size_t i = 1; i < n; ++i) {
    EXPECT_LE(logprobs["token_logprobs"][i].get<double>(), 0);
    EXPECT_EQ(logprobs["top_logprobs"][i].size(), 2u);
  }
  std::string joined;
  for (const Json& token : logprobs["tokens"]) joined += token.get<std::string>();
  EXPECT_EQ(joined, kStory);
  body["max_tokens"] = -2;
  EXPECT_EQ(shared_rig().post("/v1/completions", body).status, 400);
}

TEST(OpenAi, E8_LogprobsInBothShapes) {
  Json body = completion_body(kStory, 6);
  body["logprobs"] = 3;
  body["logit_bias"] = {{"5", -100}, {"6", false}};
  Json choice = shared_rig().post("/v1/completions", body).json()["choices"][0];
  ASSERT_EQ(choice["logprobs"]["tokens"].size(), 6u);
  for (size_t i = 0; i < 6; ++i) {
    const double logprob = choice["logprobs"]["token_logprobs"][i];
    EXPECT_TRUE(std::isfinite(logprob) && logprob <= 0 && logprob >= -9999);
    EXPECT_EQ(choice["logprobs"]["top_logprobs"][i].size(), 3u);
  }
  EXPECT_EQ(choice["logprobs"]["text_offset"][0], 0);

  body = chat_body("Continue: the cat", 5);
  body["logprobs"] = true;
  body["top_logprobs"] = 4;
  choice = shared_rig().post("/v1/chat/completions", body).json()["choices"][0];
  const Json content = choice["logprobs"]["content"];
  ASSERT_EQ(content.size(), 5u);
  std::string text;
  for (const Json& token : content) {
    text += token["token"].get<std::string>();
    ASSERT_EQ(token["top_logprobs"].size(), 4u);
    EXPECT_EQ(token["top_logprobs"][0]["token"], token["token"]);  // greedy: it is the most likely
    EXPECT_EQ(token["top_logprobs"][0]["logprob"], token["logprob"]);
    double sum = 0;
    for (const Json& top : token["top_logprobs"]) sum += std::exp(top["logprob"].get<double>());
    EXPECT_LE(sum, 1.0001);
    EXPECT_FALSE(token["bytes"].empty());
  }
  EXPECT_EQ(text, choice["message"]["content"].get<std::string>());
  // And streamed: as many of them, in order.
  body["stream"] = true;
  size_t streamed = 0;
  for (const Json& chunk : shared_rig().post("/v1/chat/completions", body).chunks()) {
    if (chunk["choices"][0]["logprobs"].is_null()) continue;
    for (const Json& token : chunk["choices"][0]["logprobs"]["content"])
      EXPECT_EQ(token["token"], content[streamed++]["token"]);
  }
  EXPECT_EQ(streamed, 5u);
}

TEST(OpenAi, E9_UsageComesInALastChunkOfItsOwn) {
  Json body = chat_body("Continue: the cat", 7);
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  const auto chunks = shared_rig().post("/v1/chat/completions", body).chunks();
  for (size_t i = 0; i + 1 < chunks.size(); ++i) {
    EXPECT_TRUE(chunks[i]["usage"].is_null());
    EXPECT_EQ(chunks[i]["choices"].size(), 1u);
  }
  EXPECT_TRUE(chunks.back()["choices"].empty());
  EXPECT_EQ(chunks.back()["usage"]["completion_tokens"], 7);
  body["stream"] = false;
  const HttpAnswer refused = shared_rig().post("/v1/chat/completions", body);
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.json()["error"]["param"], "stream_options");
}

TEST(OpenAi, E19_GreedyAnswersAreEqualAndSeedsAreHonoured) {
  RigSetup setup;
  setup.parallel = 8;  // all in one batch
  ServerRig rig(setup);
  std::vector<std::thread> threads;
  std::vector<std::string> texts(8);
  for (size_t i = 0; i < texts.size(); ++i)
    threads.emplace_back([&, i] { texts[i] = text_of(rig.post("/v1/completions", completion_body(kStory, 48))); });
  for (auto& thread : threads) thread.join();
  for (const std::string& text : texts) EXPECT_EQ(text, solo_story(48));

  Json body = completion_body(kStory, 24);
  body["temperature"] = 1.8;
  body["top_k"] = 0;
  body["top_p"] = 1;
  body["min_p"] = 0;
  EXPECT_NE(text_of(rig.post("/v1/completions", body)), text_of(rig.post("/v1/completions", body)));
  body["seed"] = 42;
  EXPECT_EQ(text_of(rig.post("/v1/completions", body)), text_of(rig.post("/v1/completions", body)));
}

TEST(OpenAi, SeveralAnswersAndSeveralPrompts) {
  Json body = completion_body(Json::array({kStory, "The cat"}), 8);
  body["n"] = 3;
  body["ignore_eos"] = true;
  body["temperature"] = 1.0;
  body["seed"] = 7;
  const Json json = shared_rig().post("/v1/completions", body).json();
  ASSERT_EQ(json["choices"].size(), 6u);
  std::set<std::string> texts;
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(json["choices"][i]["index"], i);
    texts.insert(json["choices"][i]["text"]);
  }
  EXPECT_GT(texts.size(), 3u);
  EXPECT_EQ(json["usage"]["completion_tokens"], 48);
  // Token ids are a prompt too.
  Json ids = Json::array();
  for (const TokenId id : shared_rig().tokenizer().encode(kStory)) ids.push_back(id);
  EXPECT_EQ(text_of(shared_rig().post("/v1/completions", completion_body(ids, 48))), solo_story(48));
  EXPECT_EQ(shared_rig().post("/v1/completions", completion_body(Json::array({1, 99999999}), 4)).status, 400);
}

TEST(OpenAi, ASecondPromptComputesOnlyWhatIsNew) {
  RigSetup setup;
  setup.parallel = 2;
  ServerRig rig(setup);
  std::string text;
  for (int i = 0; i < 40; ++i) text += "The little cat number " + std::to_string(i) + " went to the sea. ";
  const Json first = rig.post("/v1/completions", completion_body(text, 8)).json();
  const Json second = rig.post("/v1/completions", completion_body(text, 8)).json();
  EXPECT_EQ(second["choices"][0]["text"], first["choices"][0]["text"]);
  EXPECT_EQ(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
  const int64_t prompt = first["usage"]["prompt_tokens"],
                cached = second["usage"]["prompt_tokens_details"]["cached_tokens"];
  EXPECT_GE(cached, prompt - 32);
  Json body = completion_body(text, 8);
  body["cache_prompt"] = false;
  EXPECT_EQ(rig.post("/v1/completions", body).json()["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
}

TEST(OpenAi, ParametersOutOfRangeAreNamed) {
  using Member = std::pair<const char*, Json>;
  const std::vector<Member> bad{{"temperature", -1},
                                {"temperature", "hot"},
                                {"top_p", 2},
                                {"n", 0},
                                {"n", 1000},
                                {"max_tokens", 1.5},
                                {"stop", 5},
                                {"logit_bias", {{"cat", 1}}},
                                {"logit_bias", 3},
                                {"seed", "x"},
                                {"stream", "yes"},
                                {"presence_penalty", 3},
                                {"frequency_penalty", -3},
                                {"response_format", "json"},
                                {"best_of", 3},
                                {"json_schema", {{"type", "null"}}},
                                {"structured_outputs", {{"regex", "a"}}},
                                {"min_tokens", 3},
                                {"temperature", 1e308},
                                {"max_tokens", 1e300}};
  for (const auto& [name, value] : bad) {
    Json body = chat_body("x", 4);
    body[name] = value;
    const HttpAnswer answer = shared_rig().post("/v1/chat/completions", body);
    EXPECT_EQ(answer.status, 400) << name << " " << value;
    EXPECT_EQ(answer.json()["error"]["param"], name) << answer.body;
    EXPECT_EQ(answer.json()["error"]["type"], "invalid_request_error");
  }
  Json body = chat_body("x", 4);  // null is absent, and what is not known is left alone
  for (const char* name : {"temperature", "top_p", "n", "stop", "seed", "logit_bias", "tools", "response_format"})
    body[name] = nullptr;
  body["user"] = "somebody";
  EXPECT_EQ(shared_rig().post("/v1/chat/completions", body).status, 200);
  body.erase("max_tokens"), body["n_predict"] = 2;
  EXPECT_EQ(shared_rig().post("/v1/chat/completions", body).json()["usage"]["completion_tokens"], 2);
  body["messages"] = {{{"role", "user"}, {"content", {{{"type", "text"}}}}}};
  EXPECT_NE(shared_rig().post("/v1/chat/completions", body).body.find("part's \\\"text\\\""), std::string::npos);
}

TEST(OpenAi, AJsonSchemaIsMatched) {
  const Json schema = {{"type", "object"},
                       {"properties",
                        {{"name", {{"type", "string"}, {"maxLength", 8}}},
                         {"age", {{"type", "integer"}, {"minimum", 0}}},
                         {"kind", {{"enum", {"cat", "dog"}}}},
                         {"tags", {{"type", "array"}, {"items", {{"type", "boolean"}}}, {"maxItems", 2}}}}},
                       {"required", {"name", "age", "kind", "tags"}},
                       {"additionalProperties", false}};
  Json body = chat_body("Continue: the cat", 120);
  body["response_format"] = {{"type", "json_schema"}, {"json_schema", {{"name", "pet"}, {"schema", schema}}}};
  for (const double temperature : {0.0, 1.5}) {
    body["temperature"] = temperature;
    body["seed"] = 3;
    const Json choice = shared_rig().post("/v1/chat/completions", body).json()["choices"][0];
    ASSERT_EQ(choice["finish_reason"], "stop") << choice;
    const Json value = Json::parse(choice["message"]["content"].get<std::string>());
    EXPECT_TRUE(value["name"].is_string());
    EXPECT_TRUE(value["age"].is_number_integer());
    EXPECT_TRUE(value["kind"] == "cat" || value["kind"] == "dog");
    EXPECT_LE(value["tags"].size(), 2u);
    EXPECT_EQ(value.size(), 4u);
  }
  body["response_format"]["json_schema"]["schema"]["properties"]["name"]["pattern"] = "a+";
  const HttpAnswer refused = shared_rig().post("/v1/chat/completions", body);
  EXPECT_EQ(refused.status, 400);
  EXPECT_NE(refused.json()["error"]["message"].get<std::string>().find("pattern"), std::string::npos);
}

TEST(OpenAi, JsonObjectBeginsAsOne) {
  Json body = chat_body("Continue: the cat", 40);
  body["response_format"] = {{"type", "json_object"}};
  const Json choice = shared_rig().post("/v1/chat/completions", body).json()["choices"][0];
  EXPECT_EQ(choice["message"]["content"].get<std::string>().front(), '{');
}

TEST(OpenAi, ToolsReachTheTemplateAndCallsAreParsed) {
  RigSetup setup;
  setup.server.chat_template =
      "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
      "{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.arguments.city }}{% endfor %}<|im_end|>\n"
      "{% endfor %}<|im_start|>assistant\n{# <tool_call> #}";
  ServerRig rig(setup);
  Json body = chat_body("What is the weather?", 100);
  body["tools"] = Json::array({{{"type", "function"},
                                {"function",
                                 {{"name", "weather"},
                                  {"parameters",
                                   {{"type", "object"},
                                    {"properties", {{"city", {{"enum", {"Paris", "Rome"}}}}}},
                                    {"required", {"city"}}}}}}}});
  body["tool_choice"] = "required";
  const Json prompt = rig.post("/apply-template", body).json();
  EXPECT_TRUE(prompt["prompt"].get<std::string>().starts_with("[weather]"));
  const Json choice = rig.post("/v1/chat/completions", body).json()["choices"][0];
  ASSERT_EQ(choice["finish_reason"], "tool_calls") << choice;
  EXPECT_TRUE(choice["message"]["content"].is_null());
  const Json call = choice["message"]["tool_calls"][0];
  EXPECT_EQ(call["type"], "function");
  EXPECT_EQ(call["function"]["name"], "weather");
  const std::string city = Json::parse(call["function"]["arguments"].get<std::string>())["city"];
  EXPECT_TRUE(city == "Paris" || city == "Rome");
  // Streamed.
  body["stream"] = true;
  const auto chunks = rig.post("/v1/chat/completions", body).chunks();
  Json streamed;
  for (const Json& chunk : chunks)
    if (chunk["choices"][0]["delta"].contains("tool_calls")) streamed = chunk["choices"][0]["delta"]["tool_calls"][0];
  EXPECT_EQ(streamed["index"], 0);
  EXPECT_EQ(streamed["function"]["arguments"], call["function"]["arguments"]);
  EXPECT_EQ(chunks.back()["choices"][0]["finish_reason"], "tool_calls");
  // The round trip: what was called, as the template wants it.
  body = chat_body("What is the weather?", 4);
  body["messages"].push_back({{"role", "assistant"}, {"content", nullptr}, {"tool_calls", Json::array({call})}});
  body["messages"].push_back({{"role", "tool"}, {"tool_call_id", call["id"]}, {"content", "rain"}});
  EXPECT_NE(rig.post("/apply-template", body).json()["prompt"].get<std::string>().find(city), std::string::npos);
  EXPECT_EQ(rig.post("/v1/chat/completions", body).status, 200);
}

}  // namespace
}  // namespace ef::testing
