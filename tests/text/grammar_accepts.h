#pragma once
#include <memory>
#include <string>

#include "expertflow/text/grammar.h"

namespace ef {

// Whether the whole text is a sentence, byte by byte.
inline bool accepts(const std::shared_ptr<const Grammar>& grammar, const std::string& text) {
  GrammarMatcher matcher(grammar);
  for (const char c : text) {
    if (!matcher.takes(std::string_view(&c, 1))) return false;
    matcher.advance(std::string_view(&c, 1));
  }
  return matcher.complete();
}

}  // namespace ef
