#include "expertflow/base/errors.h"

#include <cstdio>
#include <cstdlib>

namespace ef {

void invariant_failed(const char* expression, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: invariant failed: %s\n", file, line, expression);
  std::abort();
}

}  // namespace ef
