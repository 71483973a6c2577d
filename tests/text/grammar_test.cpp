// Grammars of JSON and JSON Schemas: what they take and what they do not, decided by hand.
#include "expertflow/text/json_grammar.h"

#include <gtest/gtest.h>

#include "expertflow/base/errors.h"
#include "tests/text/grammar_accepts.h"

namespace ef {
namespace {

using Json = nlohmann::ordered_json;

std::shared_ptr<const Grammar> of(const char* schema) { return json_schema_grammar(Json::parse(schema)); }

TEST(Grammar, JsonObjects) {
  const auto g = json_object_grammar();
  for (const char* text : {"{}", "{ }", R"({"a": 1})", R"({"a":[1,2.5e-3,{"b":null}],"c":true})",
                           R"({"\u00e9\n": "\"x\""})", "{\"ä\": \"日\xF0\x9F\x90\x88\"}", R"({"a": -0.5, "b": []})"})
    EXPECT_TRUE(accepts(g, text)) << text;
  for (const char* text :
       {"", "[]", "1", "{", R"({"a"})", R"({"a": 01})", R"({"a": .5})", R"({a: 1})", R"({"a": 1,})", "{\"a\": \"\n\"}",
        "{\"a\": \"\xff\"}", "{\"a\": \"\xed\xa0\x80\"}", R"({"a": 1} x)", R"({"a": +1})", R"({"a": tru})"})
    EXPECT_FALSE(accepts(g, text)) << text;
}

TEST(Grammar, ObjectsOfASchema) {
  const auto g = of(
      R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}, "c": {"type": "boolean"}},
                        "required": ["b"], "additionalProperties": false})");
  for (const char* text :
       {R"({"b": "x"})", R"({"a": 1, "b": "x"})", R"({"b": "x", "c": true})", R"({"a": -7,"b": "","c": false})"})
    EXPECT_TRUE(accepts(g, text)) << text;
  for (const char* text : {"{}", R"({"a": 1})", R"({"b": "x", "a": 1})", R"({"b": 1})", R"({"b": "x", "d": 1})",
                           R"({"a": 1.5, "b": "x"})", R"({"b": "x",})", R"({, "b": "x"})"})
    EXPECT_FALSE(accepts(g, text)) << text;
}

TEST(Grammar, AllOptional) {
  const auto g = of(R"({"properties": {"a": {"const": 1}, "b": {"const": "two"}}})");
  for (const char* text : {"{}", R"({"a": 1})", R"({"b": "two"})", R"({"a": 1, "b": "two"})"})
    EXPECT_TRUE(accepts(g, text)) << text;
  for (const char* text : {R"({"b": "two", "a": 1})", R"({"a": 2})", R"({"a": 1 "b": "two"})"})
    EXPECT_FALSE(accepts(g, text)) << text;
}

TEST(Grammar, ArraysStringsAndChoices) {
  const auto list =
      of(R"({"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1, "maxItems": 3})");
  for (const char* text : {"[1]", "[1, 2]", "[0,10,200]"}) EXPECT_TRUE(accepts(list, text)) << text;
  for (const char* text : {"[]", "[1,2,3,4]", "[-1]", "[1,]", "[\"1\"]"}) EXPECT_FALSE(accepts(list, text)) << text;
  const auto word = of(R"({"type": "string", "minLength": 2, "maxLength": 3})");
  for (const char* text : {R"("ab")", R"("äöü")", R"("a\n")"}) EXPECT_TRUE(accepts(word, text)) << text;
  for (const char* text : {R"("a")", R"("abcd")"}) EXPECT_FALSE(accepts(word, text)) << text;
  const auto any = of(R"({"anyOf": [{"type": "null"}, {"enum": ["x", 2]}, {"type": ["boolean", "number"]}]})");
  for (const char* text : {"null", R"("x")", "2", "true", "1.5", "-3e10"}) EXPECT_TRUE(accepts(any, text)) << text;
  for (const char* text : {R"("y")", "[]", "nul"}) EXPECT_FALSE(accepts(any, text)) << text;
  const auto pair = of(R"({"prefixItems": [{"type": "string"}, {"type": "integer"}], "type": "array"})");
  EXPECT_TRUE(accepts(pair, R"(["a", 1])"));
  EXPECT_FALSE(accepts(pair, R"(["a"])"));
  const auto date = of(R"({"type": "string", "format": "date-time"})");
  EXPECT_TRUE(accepts(date, R"("2026-11-28T23:59:59.5+01:00")"));
  EXPECT_FALSE(accepts(date, R"("2026-13-28T23:59:59Z")"));
}

TEST(Grammar, EnumConstAndTypeAllHold) {
  const auto mixed = of(R"({"type": ["string", "integer"], "enum": ["a", 1, 2.5, null, 3.0]})");
  for (const char* text : {R"("a")", "1", "3.0"}) EXPECT_TRUE(accepts(mixed, text)) << text;
  for (const char* text : {"2.5", "null"}) EXPECT_FALSE(accepts(mixed, text)) << text;
  const auto one = of(R"({"const": 2, "enum": [1, 2]})");
  EXPECT_TRUE(accepts(one, "2"));
  EXPECT_FALSE(accepts(one, "1"));
}

// As many as can be followed, and one more.
TEST(Grammar, OptionalPropertiesInARowHaveALimit) {
  Json properties;
  for (int i = 0; i < 80; ++i) properties["p" + std::to_string(i)] = {{"type", "boolean"}};
  Json schema{{"type", "object"}, {"properties", properties}};
  const auto g = json_schema_grammar(schema);
  EXPECT_TRUE(accepts(g, R"({"p79": true})"));
  EXPECT_TRUE(accepts(g, R"({"p0": true, "p7": false, "p78": true, "p79": true})"));
  schema["properties"]["p80"] = {{"type", "boolean"}};
  EXPECT_THROW(json_schema_grammar(schema), RequestError);
  schema["required"] = {"p60"};
  EXPECT_TRUE(accepts(json_schema_grammar(schema), R"({"p60": true, "p80": true})"));
}

TEST(Grammar, SchemasMayReferToThemselves) {
  const auto g = of(R"({"$defs": {"node": {"type": "object", "properties": {"value": {"type": "integer"}, "next":
      {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}}, "required": ["value", "next"]}}, "$ref": "#/$defs/node"})");
  EXPECT_TRUE(accepts(g, R"({"value": 1, "next": {"value": 2, "next": null}})"));
  EXPECT_FALSE(accepts(g, R"({"value": 1, "next": {"value": 2}})"));
}

TEST(Grammar, ATypeBesideAlternativesThatAgree) {
  const auto any = of(R"({"type": ["number", "null"], "anyOf": [{"type": "integer"}, {"type": ["null", "number"]}]})");
  for (const char* text : {"7", "1.5", "null"}) EXPECT_TRUE(accepts(any, text)) << text;
  EXPECT_TRUE(accepts(of(R"({"type": "null", "allOf": [{"type": "null"}]})"), "null"));
  EXPECT_FALSE(accepts(of(R"({"type": "string", "format": "date"})"), R"("0000-01-01")"));
}

TEST(Grammar, WhatCannotBeHonouredIsNamed) {
  const std::vector<std::pair<const char*, const char*>> bad{
      {R"({"type": "string", "pattern": "a"})", "pattern"},
      {R"({"type": "integer", "maximum": 3})", "maximum"},
      {R"({"type": "integer", "minimum": 3})", "minimum"},
      {R"({"type": ["number", "null"], "minimum": 0})", "minimum"},
      {R"({"type": "string", "anyOf": [{"type": "string"}, {"type": "integer"}]})", "anyOf[1]"},
      {R"({"type": "object", "oneOf": [{"enum": [1]}]})", "oneOf[0]"},
      {R"({"type": "string", "allOf": [{"type": ["string", "null"]}]})", "allOf[0]"},
      {R"({"allOf": [{"type": "null"}, {"type": "null"}]})", "allOf"},
      {R"({"type": "thing"})", "thing"},
      {R"({"$ref": "#/$defs/none"})", "#/$defs/none"},
      {R"({"$ref": "http://x/y"})", "http://x/y"},
      {R"({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": true}}})", "schema.properties.a"},
      {R"({"type": "object", "required": ["a"]})", "required"},
      {R"({"type": "string", "minLength": 5, "maxLength": 3})", "minLength"},
      {R"({"type": "string", "maxLength": 1000000000})", "maxLength"},
      {R"({"type": "string", "format": "hostname"})", "hostname"},
      {R"([])", "schema"},
      {R"({"enum": []})", "enum"},
      {R"({"type": "string", "enum": [1, 2]})", "no value is left"},
      {R"({"const": 1, "enum": [2]})", "no value is left"}};
  for (const auto& [schema, part] : bad) {
    try {
      of(schema);
      ADD_FAILURE() << schema;
    } catch (const RequestError& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
}

TEST(Grammar, LoopsWithoutProgressAndDeepSchemasAreRefused) {
  const auto loop =
      of(R"({"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}}, "anyOf": [{"$ref": "#/$defs/a"}]})");
  EXPECT_THROW(GrammarMatcher{loop}, RequestError);
  std::string deep = R"({"type": "null"})";
  for (int i = 0; i < 100; ++i) deep = R"({"type": "array", "items": )" + deep + "}";
  EXPECT_THROW(of(deep.c_str()), RequestError);
}

TEST(Grammar, UntilFindsTheFirstOccurrence) {
  auto grammar = std::make_shared<Grammar>();
  grammar->set_root(grammar->until("aab") + grammar->literal("."));
  for (const char* text : {"aab.", "aaaab.", "abaab.", "xaabaxaab."}) {
    const bool once = std::string(text).find("aab") == std::string(text).size() - 4;
    EXPECT_EQ(accepts(grammar, text), once) << text;
  }
}

// Beginnings in common are followed once: many values do not mean many ways.
TEST(Grammar, ManyValuesThatBeginAlike) {
  Json values = Json::array();
  for (int i = 0; i < 5000; ++i) values.push_back("value " + std::to_string(i));
  values.push_back("value");
  const Json schema{{"enum", values}};
  const auto g = json_schema_grammar(schema);
  for (const char* text : {"\"value 0\"", "\"value 4999\"", "\"value 77\"", "\"value\""}) EXPECT_TRUE(accepts(g, text));
  for (const char* text : {"\"value 5000\"", "\"value \"", "\"val\"", "\"value 007\""}) EXPECT_FALSE(accepts(g, text));
  const auto same = of(R"({"enum": ["a", "a", "ab"]})");
  EXPECT_TRUE(accepts(same, R"("a")"));
  EXPECT_TRUE(accepts(same, R"("ab")"));
  EXPECT_FALSE(accepts(same, R"("aab")"));
}

// A string that each of very many alternatives would end otherwise: every byte of it would cost all of them.
TEST(Grammar, TooManyWaysAtOnceAreRefused) {
  Json any = Json::array();
  for (int i = 0; i < 300; ++i)
    any.push_back({{"type", "array"}, {"prefixItems", {{{"type", "string"}, {"maxLength", 5}}, {{"const", i}}}}});
  const auto g = json_schema_grammar({{"anyOf", any}});
  GrammarMatcher matcher(g);
  EXPECT_THROW(accepts(g, "[\"abc\""), RequestError);
}

TEST(Grammar, MarksAreSpecialTokensOrTheirTexts) {
  auto grammar = std::make_shared<Grammar>();
  grammar->set_root(grammar->until("<|end|>") + grammar->mark("<|go|>"));
  for (const char* text :
       {"<|end|><|go|>", "so <|en <|end|>\xff<|go|>", "\xff<|end|><|go|>", "so\xff<|end|>\xff<|go|>"})
    EXPECT_TRUE(accepts(grammar, text)) << text;
  for (const char* text : {"\xff<|go|>", "so \xff<|start|>", "<|end|>\xff<|end|>", "<|end|>\xff\xff<|go|>", "\xff so"})
    EXPECT_FALSE(accepts(grammar, text)) << text;
}

TEST(Grammar, OnlyCompleteWhereNothingMayFollow) {
  const auto g = of(R"({"type": "object", "additionalProperties": false})");
  GrammarMatcher matcher(g);
  EXPECT_FALSE(matcher.complete());
  matcher.advance("{}");
  EXPECT_TRUE(matcher.only_complete());
  GrammarMatcher number(of(R"({"type": "integer"})"));
  number.advance("1");
  EXPECT_TRUE(number.complete());
  EXPECT_FALSE(number.only_complete());
}

// The tokens that are found together are those that are taken one by one.
TEST(Grammar, TokensOfAVocabulary) {
  nlohmann::json vocab, json;
  int id = 0;
  for (const char* text : {"{", "}", "{}", "{\"", "\"", "a", "ab", "abc", "\":", "1", "12", "{\"a", "}}", ",", "x", "[",
                           "true", "tr", "ue"})
    vocab[text] = id++;
  json["model"] = {{"type", "BPE"}, {"vocab", vocab}, {"merges", nlohmann::json::array()}};
  json["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  json["decoder"] = {{"type", "ByteLevel"}};
  json["added_tokens"] = nlohmann::json::array();
  const Tokenizer tokenizer = load_tokenizer_json_text(json.dump(), nullptr);
  const TokenOrder order(tokenizer);
  const auto g = json_object_grammar();
  GrammarMatcher matcher(g);
  for (const char* step : {"{\"", "abc", "\":", "12", ",", "\"", "x", "\":", "{}", "}"}) {
    std::vector<TokenId> together, single;
    matcher.for_each_taken(order, [&](TokenId token) { together.push_back(token); });
    for (TokenId token = 0; token < id; ++token)
      if (matcher.takes(grammar_bytes(tokenizer, token))) single.push_back(token);
    std::sort(together.begin(), together.end());
    EXPECT_EQ(together, single) << step;
    ASSERT_TRUE(matcher.takes(step)) << step;
    matcher.advance(step);
  }
  EXPECT_TRUE(matcher.complete());
}

}  // namespace
}  // namespace ef
