// How the two files of filters meet.
#pragma once
#include "expertflow/text/jinja_runtime.h"

namespace ef::jinja {

struct FilterRow {
  std::string_view name;
  FilterFunction function;
};

/// nullptr where there is no such filter over sequences.
FilterFunction find_list_filter(std::string_view name);

}  // namespace ef::jinja
