#include "expertflow/text/stream.h"

#include <gtest/gtest.h>

#include <utility>

namespace ef {
namespace {

const std::string kBad = "\xEF\xBF\xBD";

std::string all(const std::vector<std::string>& pieces) {
  Utf8Stream stream;
  std::string out;
  for (const auto& piece : pieces) out += stream.push(piece);
  return out + stream.finish();
}

TEST(Stream, D1_CharactersOverTokensComeOutWhole) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("\xF0\x9F"), "");
  EXPECT_TRUE(stream.pending());
  EXPECT_EQ(stream.push("\x98"), "");
  EXPECT_EQ(stream.push("\x80 x"), "😀 x");
  EXPECT_EQ(stream.push("a\xE6\x97"), "a");
  EXPECT_EQ(stream.push("\xA5\xE6\x9C\xAC"), "日本");
  EXPECT_FALSE(stream.pending());
  EXPECT_EQ(stream.finish(), "");
}

TEST(Stream, D1_IncompleteCharacterBeforeASpace) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("\xF0\x9F"), "");
  EXPECT_EQ(stream.push(" next"), kBad + " next");
  EXPECT_EQ(stream.finish(), "");
}

TEST(Stream, D1_DanglingRestIsFlushedAtTheEnd) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("ok\xE6\x97"), "ok");
  EXPECT_EQ(stream.finish(), kBad);
  EXPECT_EQ(stream.finish(), "");
}

TEST(Stream, D1_InvalidBytesDoNotStall) {
  for (const char* bytes : {"\x80", "\xC0", "\xC1", "\xF5", "\xFF", "\xFE"}) {
    Utf8Stream stream;
    EXPECT_EQ(stream.push(bytes), kBad) << int(uint8_t(bytes[0]));
    EXPECT_FALSE(stream.pending());
  }
}

TEST(Stream, D1_IllFormedPartsAsPythonReplacesThem) {
  // bytes.decode("utf-8", errors="replace") of Python: the number of replacement characters, and the text after them.
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"\xE0\x80\x80.", kBad + kBad + kBad + "."},             // overlong
      {"\xED\xA0\x80.", kBad + kBad + kBad + "."},             // surrogate
      {"\xF4\x90\x80\x80.", kBad + kBad + kBad + kBad + "."},  // above U+10FFFF
      {"\xF0\x90\x80.", kBad + "."},                           // cut off
      {"\xE6\x97.\xA5", kBad + "." + kBad},
      {"\xC3\xC3\xA9", kBad + "é"},
      {"\xF0\x9F\x98\xF0\x9F\x98\x80", kBad + "😀"},
      {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF.", kBad + kBad + kBad + kBad + "."},  // example of the Unicode standard
      {"\xEF\xBF\xBD\xF4\x8F\xBF\xBF", kBad + "\xF4\x8F\xBF\xBF"},
  };
  for (const auto& [bytes, text] : cases) {
    EXPECT_EQ(all({bytes}), text);
    std::vector<std::string> single;
    for (const char c : bytes) single.emplace_back(1, c);
    EXPECT_EQ(all(single), text);
  }
}

TEST(Stream, D1_EveryCutGivesTheSameText) {
  const std::string text = "aé日😀\xF0\x9F\xFF\xE2\x82z";
  const std::string whole = all({text});
  EXPECT_EQ(whole, "aé日😀" + kBad + kBad + kBad + "z");
  for (size_t i = 0; i <= text.size(); ++i) {
    for (size_t j = i; j <= text.size(); ++j) {
      ASSERT_EQ(all({text.substr(0, i), text.substr(i, j - i), text.substr(j)}), whole) << i << " " << j;
    }
  }
}

TEST(Stream, E1_StopStringWithSplitCharacters) {
  TextStream stream({"終わり"});
  EXPECT_EQ(stream.push("はい\xE7"), "はい");
  EXPECT_EQ(stream.push("\xB5\x82\xE3\x82"), "");
  EXPECT_EQ(stream.push("\x8F"), "");
  EXPECT_EQ(stream.push("りもっと"), "");
  EXPECT_TRUE(stream.stopped());
  EXPECT_EQ(stream.matched(), 0u);
  EXPECT_EQ(stream.push("x"), "");
  EXPECT_EQ(stream.finish(), "");
}

TEST(Stream, FinishShowsWhatWasHeld) {
  TextStream stream({"###"});
  EXPECT_EQ(stream.push("a ##"), "");
  EXPECT_EQ(stream.push("\xF0\x9F"), "");
  EXPECT_EQ(stream.finish(), "a ##" + kBad);
  EXPECT_FALSE(stream.stopped());
}

}  // namespace
}  // namespace ef
