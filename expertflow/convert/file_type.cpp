#include "expertflow/convert/file_type.h"

#include <algorithm>
#include <map>

#include "expertflow/convert/families.h"

namespace ef {

int file_type_of(Format format) {
  switch (format) {
    case Format::kF32:
      return 0;
    case Format::kF16:
      return 1;
    case Format::kQ4_0:
      return 2;
    case Format::kQ4_1:
      return 3;
    case Format::kQ8_0:
      return 7;
    case Format::kQ5_0:
      return 8;
    case Format::kQ5_1:
      return 9;
    case Format::kQ2K:
      return 10;
    case Format::kQ3K:
      return 11;
    case Format::kQ4K:
      return 14;
    case Format::kQ5K:
      return 16;
    case Format::kQ6K:
      return 18;
    case Format::kIQ4NL:
      return 25;
    case Format::kIQ4XS:
      return 30;
    case Format::kBF16:
      return 32;
    case Format::kMXFP4:
      return 38;
    default:
      return 1024;
  }
}

void set_file_type(GgufPlan& plan) {
  std::map<Format, int64_t> elements;
  for (const OutTensor& t : plan.tensors) elements[t.format] += t.rows->rows() * t.rows->cols();
  const auto most = std::max_element(elements.begin(), elements.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most != elements.end()) set_integer(plan.metadata, "general.file_type", file_type_of(most->first));
}

}  // namespace ef
