// Templates are foreign code: whatever they hold, rendering ends with a text or a RequestError, in bounded time and
// memory.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "expertflow/text/jinja.h"

namespace ef {
namespace {

using Json = nlohmann::ordered_json;

std::string error_of(const std::string& source, const jinja::Limits& limits = {},
                     const Json& context = Json::object()) {
  try {
    jinja::Template(source).render(context, std::tm{}, limits);
  } catch (const RequestError& e) {
    return e.what();
  }
  return "no error";
}

std::string repeat(const std::string& s, int n) {
  std::string out;
  for (int i = 0; i < n; ++i) out += s;
  return out;
}

TEST(JinjaHostile, EndlessWorkIsStopped) {
  const jinja::Limits limits{.steps = 100000};
  EXPECT_NE(
      error_of("{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}", limits).find("steps"),
      std::string::npos);
  EXPECT_NE(error_of("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}").find("deep"), std::string::npos);
  EXPECT_NE(error_of("{% macro f() %}{% for i in range(9) %}{{ f() }}{% endfor %}{% endmacro %}{{ f() }}").find("deep"),
            std::string::npos);
}

TEST(JinjaHostile, MemoryIsBounded) {
  const jinja::Limits limits{.steps = 1000000, .bytes = 1 << 20, .output = 1 << 16};
  for (const char* source : {
           "{{ 'x' * 2000000000 }}",
           "{{ [1] * 2000000000 }}",
           "{{ ('x' * 60000) * 60000 }}",
           "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
           "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
           "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
           "{% set ns = namespace(s='a') %}{% for i in range(60) %}{% set ns.s = ns.s | replace('a', 'aa') %}{% endfor "
           "%}",
           "{{ 'a' | center(2000000000) }}",
           "{{ 'a'.ljust(2000000000) }}",
           "{{ [1] | batch(2000000000, 0) | list }}",
           "{{ [1] | slice(2000000000) | list }}",
           "{% for i in range(90000) %}{{ 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' }}{% endfor %}",
           "{{ range(90000) | join('xxxxxxxxxxxxxxxxxxxxxxxx') }}",
       }) {
    EXPECT_NE(error_of(source, limits).find("bytes"), std::string::npos) << source << ": " << error_of(source, limits);
  }
}

TEST(JinjaHostile, SharedPartsCannotExplode) {
  // Sixty levels of [x, x] are 2^60 elements to print, compare or write as JSON.
  const std::string build =
      "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}";
  for (const char* use : {"", "{{ ns.s }}", "{{ ns.s | tojson }}", "{{ ns.s == ns.s }}"}) {
    EXPECT_NE(error_of(build + use).find("bytes"), std::string::npos) << use;
  }
}

TEST(JinjaHostile, NestingIsBounded) {
  EXPECT_NE(error_of("{{ " + repeat("(", 20000) + "1" + repeat(")", 20000) + " }}").find("deep"), std::string::npos);
  EXPECT_NE(error_of("{{ " + repeat("[", 20000) + repeat("]", 20000) + " }}").find("deep"), std::string::npos);
  EXPECT_NE(error_of("{{ " + repeat("not ", 20000) + "1 }}").find("deep"), std::string::npos);
  EXPECT_NE(error_of("{{ " + repeat("-", 20000) + "1 }}").find("deep"), std::string::npos);
  EXPECT_NE(error_of("{{ 1" + repeat(" + 1", 20000) + " }}").find("deep"), std::string::npos);
  EXPECT_NE(error_of("{{ x" + repeat(".x", 20000) + " }}").find("deep"), std::string::npos);
  EXPECT_NE(error_of("{{ x" + repeat("|e", 20000) + " }}").find("deep"), std::string::npos);
  EXPECT_NE(error_of("{{ 1" + repeat(" if 1 else 1", 20000) + " }}").find("deep"), std::string::npos);
  EXPECT_NE(error_of(repeat("{% if 1 %}", 20000) + repeat("{% endif %}", 20000)).find("deep"), std::string::npos);
  EXPECT_NE(error_of("{% for " + repeat("(", 20000) + "a" + repeat(")", 20000) + " in b %}").find("deep"),
            std::string::npos);
  EXPECT_NE(error_of("{% set ns = namespace(s=[]) %}{% for i in range(99999) %}{% set ns.s = [ns.s] %}{% endfor %}")
                .find("deep"),
            std::string::npos);
  EXPECT_NE(error_of("{% set ns = namespace(s=1) %}{% for i in range(99999) %}{% for j in [ns.s] %}{% set ns.s = loop "
                     "%}{% endfor %}{% endfor %}")
                .find("deep"),
            std::string::npos);
  EXPECT_EQ(error_of("{{ 1" + repeat("~ 1", 20000) + " }}"), "no error");
  EXPECT_EQ(error_of("{% if 0 %}" + repeat("{% elif 0 %}", 20000) + "{% endif %}"), "no error");
}

TEST(JinjaHostile, CyclesThroughNamespacesAreFreed) {
  // The leak sanitizer is the judge.
  EXPECT_EQ(
      error_of("{% set a = namespace() %}{% set b = namespace(a=a) %}{% set a.b = [b] %}{{ a.b[0].a.b is defined }}"),
      "no error");
  EXPECT_EQ(error_of("{% set a = namespace() %}{% for x in [a] %}{% set a.l = loop %}{% set _ = loop.changed(loop) "
                     "%}{% endfor %}"),
            "no error");
  EXPECT_EQ(error_of("{% macro f() %}{{ g }}{% endmacro %}{% set a = namespace(f=f) %}{% set a.a = a %}{{ a.f() }}"),
            "no error");
}

TEST(JinjaHostile, NumbersDoNotOverflow) {
  for (const char* source :
       {"{{ 9223372036854775807 + 1 }}", "{{ -9223372036854775807 - 2 }}", "{{ 9223372036854775807 * 2 }}",
        "{{ 10 ** 30 }}", "{{ (-9223372036854775807 - 1) // -1 }}", "{{ -(-9223372036854775807 - 1) }}", "{{ 1 / 0 }}",
        "{{ 1 // 0 }}", "{{ 1 % 0 }}", "{{ 1.0 / 0 }}", "{{ 1 is divisibleby 0 }}", "{{ [1][::0] }}",
        "{{ range(0, 5, 0) }}"}) {
    EXPECT_NE(error_of(source), "no error") << source;
  }
  EXPECT_EQ(
      error_of("{{ 'abc'[9223372036854775807:] }}{{ 'abc'[::9223372036854775807] }}{{ 'abc'[::-9223372036854775807] }}"
               "{{ 'abc'[-9223372036854775807:9223372036854775807] }}{{ [1, 2][-9223372036854775807] }}"
               "{{ range(-9223372036854775807, 9223372036854775807, 4611686018427387904) | list }}"),
      "no error");
}

TEST(JinjaHostile, TheInputIsBoundedToo) {
  Json deep = Json::array();
  for (int i = 0; i < 1000; ++i) deep = Json::array({std::move(deep)});
  EXPECT_NE(error_of("x", {}, {{"a", deep}}).find("deep"), std::string::npos);
}

TEST(JinjaHostile, ErrorsNameTheLine) {
  EXPECT_EQ(error_of("a\nb\n{{ x.y }}"), "chat template, line 3: 'x' is undefined");
  EXPECT_EQ(error_of("a\n{% frobnicate %}"), "chat template, line 2: the tag 'frobnicate' is not supported");
  EXPECT_EQ(error_of("{{ 1 | frobnicate }}"), "chat template, line 1: No filter named 'frobnicate'.");
}

TEST(JinjaHostile, InvalidUtf8PassesThrough) {
  const Json context = {{"x", 1}};
  const std::string text =
      jinja::Template("a\xff\xfe{{ x }}{{ '\xc3' | length }}{{ '\xf0\x9f' | upper | length }}\xe2\x82")
          .render(context, std::tm{});
  EXPECT_EQ(text,
            "a\xff\xfe"
            "112\xe2\x82");
}

// Damaged templates: pieces of the goldens with characters removed, doubled or swapped. Any outcome but a RequestError
// or a text is a defect.
TEST(JinjaHostile, DamagedTemplatesAreAnsweredOrRefused) {
  std::ifstream in(std::string(EF_TEST_DATA) + "/text/jinja_cases.json");
  const Json data = Json::parse(in);
  std::mt19937 random(7);
  const std::string alphabet = "{}%#()[]|.,:'\"\\-+~*/=<> \nx1_";
  const jinja::Limits limits{.steps = 20000, .bytes = 1 << 22, .output = 1 << 20};
  int texts = 0;
  int errors = 0;
  for (const Json& c : data["cases"]) {
    for (int round = 0; round < 8; ++round) {
      std::string source = c["source"];
      for (int edit = 0; edit < 1 + round % 3 && !source.empty(); ++edit) {
        const size_t at = random() % source.size();
        const char other = alphabet[random() % alphabet.size()];
        if (round % 4 == 0) {
          source.erase(at, 1);
        } else if (round % 4 == 1) {
          source[at] = other;
        } else if (round % 4 == 2) {
          source.insert(at, 1, other);
        } else {
          source.resize(at);
        }
      }
      try {
        jinja::Template(source).render(data["context"], std::tm{}, limits);
        ++texts;
      } catch (const RequestError&) {
        ++errors;
      }
    }
  }
  EXPECT_GT(texts, 800);
  EXPECT_GT(errors, 1000);
}

}  // namespace
}  // namespace ef
