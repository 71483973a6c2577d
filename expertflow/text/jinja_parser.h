// Tokens to statements. Follows Jinja2's grammar and precedence; include, import and extends are refused.
#pragma once
#include <string_view>

#include "expertflow/text/jinja_ast.h"

namespace ef::jinja {

/// RequestError with the line for a template that cannot be parsed.
Block parse_template(std::string_view source);

}  // namespace ef::jinja
