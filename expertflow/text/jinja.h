// The part of Jinja2 that chat templates of the model hubs use, as Hugging Face runs it: trim_blocks, lstrip_blocks,
// loop controls, an immutable sandbox, tojson without escapes, and the globals raise_exception and strftime_now.
//
// Not there: include, import, extends, block, do, recursive loops, i18n, Markup (|safe changes nothing), integers past
// 64 bits.
#pragma once
#include <ctime>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "expertflow/text/jinja_runtime.h"

namespace ef::jinja {

class Template {
 public:
  /// RequestError with the line where the template cannot be parsed.
  explicit Template(std::string_view source);
  ~Template();
  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;

  /// `context` is an object: its members are the template's variables, in their order. `now` is what strftime_now
  /// formats. TemplateRaised for raise_exception; RequestError for any other failure, and past a limit. Safe from
  /// several threads.
  std::string render(const nlohmann::ordered_json& context, const std::tm& now, const Limits& limits = {}) const;

 private:
  struct Parsed;
  std::unique_ptr<const Parsed> parsed_;
};

}  // namespace ef::jinja
