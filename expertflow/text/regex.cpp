#define PCRE2_CODE_UNIT_WIDTH 8
#include "expertflow/text/regex.h"

#include <pcre2.h>

#include <optional>

#include "expertflow/base/errors.h"
#include "expertflow/text/unicode.h"

namespace ef {
namespace {

// Far above what the patterns of real tokenizers need on a text of some megabytes, far below a hang.
constexpr uint32_t kMatchLimit = 400'000'000;
constexpr uint32_t kHeapLimitKib = 1u << 20;

struct MatchDataFree {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
using MatchData = std::unique_ptr<pcre2_match_data, MatchDataFree>;

std::string message_of(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

}  // namespace

struct Regex::Compiled {
  pcre2_code* code = nullptr;
  pcre2_match_context* context = nullptr;
  bool jit = false;

  ~Compiled() {
    pcre2_match_context_free(context);
    pcre2_code_free(code);
  }
  // The next match at or after start.
  std::optional<Match> search(std::string_view text, size_t start, pcre2_match_data* data,
                              const std::string& pattern) const {
    const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    int rc = pcre2_match(code, subject, text.size(), start, PCRE2_NO_UTF_CHECK, data, context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {  // the interpreter keeps its frames on the heap
      rc = pcre2_match(code, subject, text.size(), start, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data, context);
    }
    if (rc == PCRE2_ERROR_NOMATCH) return std::nullopt;
    EF_CHECK(rc >= 0, RequestError, "text of {} bytes cannot be split by the tokenizer's pattern '{}': {}", text.size(),
             pattern, message_of(rc));
    const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(data);
    return Match{offsets[0], offsets[1]};
  }
};

Regex::Regex(std::string_view pattern, std::string_view where)
    : pattern_(pattern), compiled_(std::make_unique<Compiled>()) {
  const std::string translated = oniguruma_to_pcre2(pattern, where);
  const std::unique_ptr<pcre2_compile_context, void (*)(pcre2_compile_context*)> options(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  pcre2_set_newline(options.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  compiled_->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &offset, options.get());
  EF_CHECK(compiled_->code != nullptr, ModelError,
           "{}: expected a regular expression, found '{}': {} (at byte {} of '{}')", where, pattern, message_of(error),
           offset, translated);
  compiled_->jit = pcre2_jit_compile(compiled_->code, PCRE2_JIT_COMPLETE) == 0;
  compiled_->context = pcre2_match_context_create(nullptr);
  pcre2_set_match_limit(compiled_->context, kMatchLimit);
  pcre2_set_heap_limit(compiled_->context, kHeapLimitKib);
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

std::vector<Regex::Match> Regex::find_all(std::string_view text, const StopCheck& stop) const {
  std::vector<Match> matches;
  const MatchData data(pcre2_match_data_create(1, nullptr));
  size_t position = 0;
  while (position <= text.size()) {
    stop();
    const std::optional<Match> match = compiled_->search(text, position, data.get(), pattern_);
    if (!match) break;
    const bool empty = match->first == match->second;
    if (empty && !matches.empty() && matches.back().second == match->first) {
      if (match->first >= text.size()) break;
      position = match->first + utf8_length(text, match->first);
      continue;
    }
    matches.push_back(*match);
    position = match->second;
  }
  return matches;
}

}  // namespace ef
