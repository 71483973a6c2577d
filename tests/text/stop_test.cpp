#include "expertflow/text/stop.h"

#include <gtest/gtest.h>

#include "expertflow/base/errors.h"

namespace ef {
namespace {

/// What is shown at each push, with "$" and the rest at the end.
std::vector<std::string> shown(std::vector<std::string> stops, const std::vector<std::string>& pieces) {
  StopMatcher matcher(std::move(stops));
  std::vector<std::string> out;
  for (const auto& piece : pieces) out.push_back(matcher.push(piece));
  out.push_back((matcher.stopped() ? "stop " : "end ") + matcher.finish());
  return out;
}
using Texts = std::vector<std::string>;

TEST(Stop, E1_StopSpansTokensAndIsNeverShown) {
  EXPECT_EQ(shown({"beta gamma"}, {"alpha ", "be", "ta", " gam", "ma delta", "more"}),
            (Texts{"alpha ", "", "", "", "", "", "stop "}));
  EXPECT_EQ(shown({"beta gamma"}, {"alpha beta", " gamma"}), (Texts{"", "alpha ", "stop "}));
  EXPECT_EQ(shown({"beta gamma"}, {"x beta gamma y"}), (Texts{"x ", "stop "}));
}

TEST(Stop, E1_LongestPartialMatchIsHeldBack) {
  // "aab": after "aa" both a are held; a third a frees the first token.
  EXPECT_EQ(shown({"aab"}, {"a", "a", "a", "b"}), (Texts{"", "", "a", "", "stop "}));
  EXPECT_EQ(shown({"abcabd"}, {"ab", "c", "ab", "c", "ab", "d"}), (Texts{"", "", "", "abc", "", "", "stop "}));
  EXPECT_EQ(shown({"beta gamma"}, {"alpha ", "be", "ta", " del"}), (Texts{"alpha ", "", "", "beta del", "end "}));
  EXPECT_EQ(shown({"beta gamma"}, {"alpha ", "be", "ta"}), (Texts{"alpha ", "", "", "end beta"}));
}

TEST(Stop, E3_TokensAreHeldWhole) {
  // "k>" may begin at the end of <think: the marker is not cut into "<thin" and "k".
  EXPECT_EQ(shown({"k>end"}, {"a", "<think", ">", "b"}), (Texts{"a", "", "", "<think>b", "end "}));
  // Before a real stop the text is shown up to it.
  EXPECT_EQ(shown({"k>end"}, {"a", "<think", ">", "end"}), (Texts{"a", "", "", "<thin", "stop "}));
}

TEST(Stop, FirstStopInTheTextWins) {
  StopMatcher matcher({"later", "la", "now"});
  EXPECT_EQ(matcher.push("not later now"), "not ");
  EXPECT_EQ(matcher.matched(), 1u);
  StopMatcher two({"zz", "b"});
  EXPECT_EQ(two.push("abzz"), "a");
  EXPECT_EQ(two.matched(), 1u);
}

TEST(Stop, NoStopsHoldNothing) { EXPECT_EQ(shown({}, {"a", "", "b"}), (Texts{"a", "", "b", "end "})); }

TEST(Stop, NothingIsShownAfterAStop) {
  StopMatcher matcher({"x"});
  EXPECT_EQ(matcher.push("ax"), "a");
  EXPECT_EQ(matcher.push("more"), "");
  EXPECT_EQ(matcher.finish(), "");
}

TEST(Stop, EmptyStopStringIsRefused) {
  try {
    StopMatcher matcher({"a", ""});
    FAIL() << "no error";
  } catch (const RequestError& e) {
    EXPECT_STREQ(e.what(), "stop[1]: expected a text, found an empty string");
  }
}

TEST(Stop, EveryCutOfAText) {
  // However a text is cut into tokens, what is shown is the text before the stop.
  const std::string text = "aabaabab<|end|>tail";
  for (unsigned cuts = 0; cuts < (1u << 14); ++cuts) {
    StopMatcher matcher({"<|end|>", "aabaac", "|x"});
    std::string out;
    std::string piece;
    for (size_t i = 0; i < text.size(); ++i) {
      piece += text[i];
      if (i + 1 == text.size() || (cuts >> (i % 14)) & 1) out += matcher.push(std::exchange(piece, {}));
    }
    ASSERT_EQ(out, "aabaabab") << cuts;
    ASSERT_TRUE(matcher.stopped());
  }
}

}  // namespace
}  // namespace ef
