// The cases of the W3C working group's own test suite for level 1, as a table; and those of the grammar beside them.
#include "apps/server/tracing/trace_context.h"

#include <gtest/gtest.h>

#include <vector>

namespace ef::server {
namespace {

const std::string kTrace = "12345678901234567890123456789012", kSpan = "1234567890123456";

TEST(Traceparent, ValidOnesAreRead) {
  struct Case {
    std::string value;
    bool sampled;
  };
  const std::vector<Case> cases{{"00-" + kTrace + "-" + kSpan + "-01", true},
                                {"00-" + kTrace + "-" + kSpan + "-00", false},
                                {"00-" + kTrace + "-" + kSpan + "-02", false},
                                {"00-" + kTrace + "-" + kSpan + "-ff", true},
                                {" 00-" + kTrace + "-" + kSpan + "-01", true},
                                {"\t 00-" + kTrace + "-" + kSpan + "-01 \t", true},
                                // Versions to come: what is known of them is read.
                                {"cc-" + kTrace + "-" + kSpan + "-01", true},
                                {"cc-" + kTrace + "-" + kSpan + "-01-what-the-future-will-be-like", true},
                                {"fe-" + kTrace + "-" + kSpan + "-00-", false}};
  for (const Case& c : cases) {
    const auto read = parse_traceparent(c.value);
    ASSERT_TRUE(read) << c.value;
    EXPECT_EQ(read->trace_id, kTrace);
    EXPECT_EQ(read->span_id, kSpan);
    EXPECT_EQ(read->sampled, c.sampled) << c.value;
  }
}

TEST(Traceparent, MalformedOnesAreNot) {
  const std::string zero32(32, '0'), zero16(16, '0');
  const std::vector<std::string> cases{
      "",
      "00",
      "00-" + kTrace + "-" + kSpan + "-01.",
      "00-" + kTrace + "-" + kSpan + "-01-what-the-future-will-be-like",
      "cc-" + kTrace + "-" + kSpan + "-01.what-the-future-will-be-like",
      "ff-" + kTrace + "-" + kSpan + "-01",
      ".0-" + kTrace + "-" + kSpan + "-01",
      "0.-" + kTrace + "-" + kSpan + "-01",
      "000-" + kTrace + "-" + kSpan + "-01",
      "0000-" + kTrace + "-" + kSpan + "-01",
      "0-" + kTrace + "-" + kSpan + "-01",
      "00-" + zero32 + "-" + kSpan + "-01",
      "00-.2345678901234567890123456789012-" + kSpan + "-01",
      "00-1234567890123456789012345678901.-" + kSpan + "-01",
      "00-123456789012345678901234567890123-" + kSpan + "-01",
      "00-1234567890123456789012345678901-" + kSpan + "-01",
      "00-" + kTrace + "-" + zero16 + "-01",
      "00-" + kTrace + "-.234567890123456-01",
      "00-" + kTrace + "-123456789012345.-01",
      "00-" + kTrace + "-12345678901234567-01",
      "00-" + kTrace + "-123456789012345-01",
      "00-" + kTrace + "-" + kSpan + "-.0",
      "00-" + kTrace + "-" + kSpan + "-0.",
      "00-" + kTrace + "-" + kSpan + "-001",
      "00-" + kTrace + "-" + kSpan + "-1",
      "00-ABCDEF78901234567890123456789012-" + kSpan + "-01",
      "00_" + kTrace + "-" + kSpan + "-01",
      "00-" + kTrace + "-" + kSpan + "-01,00-" + kTrace + "-" + kSpan + "-01"};  // two headers
  for (const std::string& value : cases) EXPECT_FALSE(parse_traceparent(value)) << value;
}

TEST(Traceparent, IsWrittenAsItIsRead) {
  EXPECT_EQ(traceparent_of({kTrace, kSpan, true, ""}), "00-" + kTrace + "-" + kSpan + "-01");
  EXPECT_EQ(traceparent_of({kTrace, kSpan, false, "a=b"}), "00-" + kTrace + "-" + kSpan + "-00");
}

std::string members(int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += (i ? ",bar" : "bar") + std::to_string(i) + "=" + std::to_string(i);
  return all;
}

TEST(Tracestate, ValidOnesAreKept) {
  std::string value;
  for (char c = ' '; c <= '~'; ++c)
    if (c != ',' && c != '=') value += c;
  const std::string key = "abcdefghijklmnopqrstuvwxyz0123456789_-*/";
  const std::vector<std::pair<std::string, std::string>> cases{
      {"foo=1", "foo=1"},
      {"foo=1,bar=2", "foo=1,bar=2"},
      {"", ""},
      {"foo=1,", "foo=1"},
      {",foo=1", "foo=1"},
      {"foo=1 \t , \t bar=2, \t baz=3", "foo=1,bar=2,baz=3"},
      {"\t foo=1 \t", "foo=1"},
      {key + "=1" + value, key + "=1" + value},
      {key + "@a-z0-9_-*/=1", key + "@a-z0-9_-*/=1"},
      {"0tenant@system=1", "0tenant@system=1"},
      {std::string(256, 'z') + "=1", std::string(256, 'z') + "=1"},
      {std::string(241, 't') + "@" + std::string(14, 'v') + "=1",
       std::string(241, 't') + "@" + std::string(14, 'v') + "=1"},
      {"foo=" + std::string(256, 'x'), "foo=" + std::string(256, 'x')},
      {members(32), members(32)}};
  for (const auto& [value_in, expected] : cases) EXPECT_EQ(parse_tracestate(value_in), expected) << value_in;
}

TEST(Tracestate, MalformedOnesAreDiscardedWhole) {
  const std::vector<std::string> cases{"foo",
                                       "foo=",
                                       "=1",
                                       "foo=1,foo=1",
                                       "foo=1,foo=2",
                                       "foo =1",
                                       "FOO=1",
                                       "foo.bar=1",
                                       "1foo=1",
                                       "foo@=1,bar=2",
                                       "@foo=1,bar=2",
                                       "foo@@bar=1,bar=2",
                                       "foo@bar@baz=1,bar=2",
                                       "foo@1bar=1",
                                       std::string(257, 'z') + "=1",
                                       std::string(242, 't') + "@v=1",
                                       "t@" + std::string(15, 'v') + "=1",
                                       "foo=bar=baz",
                                       "foo=bar\tbaz",
                                       "foo=\xC3\xA9",
                                       "foo=" + std::string(257, 'x'),
                                       members(33)};
  for (const std::string& value : cases) EXPECT_FALSE(parse_tracestate(value)) << value;
}

}  // namespace
}  // namespace ef::server
