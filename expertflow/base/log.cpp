#include "expertflow/base/log.h"

#include <cstdio>

namespace ef {

namespace {
void to_stderr(LogLevel level, std::string_view text) {
  static constexpr const char* kPrefix[] = {"debug: ", "", "warning: ", "error: ", ""};
  std::fprintf(stderr, "%s%.*s\n", kPrefix[int(level)], int(text.size()), text.data());
}
}  // namespace

Log::Log() : Log(LogLevel::kWarning, to_stderr) {}
Log::Log(LogLevel level, Sink sink) : level_(level), sink_(sink ? std::move(sink) : Sink(to_stderr)) {}

void Log::emit(LogLevel level, std::string_view text) const {
  std::lock_guard lock(mutex_);
  sink_(level, text);
}

}  // namespace ef
