#include "expertflow/text/bounded_json.h"

#include <gtest/gtest.h>

namespace ef {
namespace {

using Json = nlohmann::ordered_json;

TEST(BoundedJson, ReadsAsTheLibraryDoes) {
  for (const char* text : {"5", "-7", "18446744073709551615", "1.5e3", "\"a\\u00e9\\n\"", "null", "true", "[]", "{}",
                           R"([1, [2, {"a": [3, null]}], {"b": {}}])",
                           R"({"z": 1, "a": {"y": [1], "x": "2"}, "m": []})", R"({"a": 1, "b": 2, "a": {"c": 3}})"}) {
    const BoundedJson read = read_bounded_json(text);
    EXPECT_EQ(read.error, "") << text;
    EXPECT_EQ(read.value.dump(), Json::parse(text).dump()) << text;
  }
  for (const char* text : {"", "{", "[1,]", "{\"a\" 1}", "nul", "[1] 2", "\"\xff\"", "1e999", "{\"a\":1}//"})
    EXPECT_EQ(read_bounded_json(text).error.find("is not valid JSON: "), 0u) << text;
  EXPECT_EQ(read_bounded_json(std::string_view("[1]\0x", 5)).error, "is not valid JSON: byte 3 is NUL");
  EXPECT_TRUE(parse_bounded_json("[").is_discarded());
}

// Of a key that comes twice the last counts, however many others there are.
TEST(BoundedJson, ManyMembersAndTheirDoubles) {
  std::string text = "{";
  for (int round = 0; round < 2; ++round)
    for (int i = 0; i < 60000; ++i)
      text += (text.size() > 1 ? ",\"k" : "\"k") + std::to_string(i) + "\":" + std::to_string(i + round);
  const BoundedJson read = read_bounded_json(text + "}");
  EXPECT_EQ(read.error, "");
  ASSERT_EQ(read.value.size(), 60000u);
  EXPECT_EQ(read.value.begin().key(), "k0");
  EXPECT_EQ(read.value["k59999"], 60000);
  text.pop_back();
  for (int i = 60000; i < 66000; ++i) text += "1,\"k" + std::to_string(i) + "\":";
  EXPECT_EQ(read_bounded_json(text + "1}").error, "has an object of more than 65536 members");
}

// Objects in a long list: a builder that looks through the list for each of them would take minutes.
TEST(BoundedJson, LongListsOfObjects) {
  std::string text = "[{}";
  for (int i = 0; i < 1000000; ++i) text += ",{}";
  EXPECT_EQ(read_bounded_json(text + "]").value.size(), 1000001u);
}

TEST(BoundedJson, DepthHasALimit) {
  const std::string most(kMostJsonDepth, '['), end(kMostJsonDepth, ']');
  EXPECT_EQ(read_bounded_json(most + "1" + end).error, "");
  EXPECT_EQ(read_bounded_json(most + "[1]" + end).error, "nests more than 100 deep");
  EXPECT_NE(read_bounded_json(std::string(1000000, '[')).error, "");
}

TEST(BoundedJson, StopsWhereItIsAskedTo) {
  std::stop_source source;
  int looks = 0;
  const std::function<void()> watch = [&] {
    if (++looks == 5) source.request_stop();
  };
  EXPECT_THROW((void)read_bounded_json("[1,2,3,4,5,6,7,8]", StopCheck(source.get_token(), &watch)), StoppedError);
  EXPECT_EQ(looks, 5);
}

}  // namespace
}  // namespace ef
