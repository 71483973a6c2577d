// A log is an object that is passed, not a global: text goes to a sink (stderr in the CLI, a vector in tests).
#pragma once
#include <fmt/format.h>

#include <functional>
#include <mutex>
#include <string_view>

namespace ef {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

class Log {
 public:
  using Sink = std::function<void(LogLevel, std::string_view)>;
  /// Default: warnings and worse to stderr.
  Log();
  Log(LogLevel level, Sink sink);

  template <class... Args>
  void debug(fmt::format_string<Args...> f, Args&&... args) const {
    write(LogLevel::kDebug, f, std::forward<Args>(args)...);
  }
  template <class... Args>
  void info(fmt::format_string<Args...> f, Args&&... args) const {
    write(LogLevel::kInfo, f, std::forward<Args>(args)...);
  }
  template <class... Args>
  void warn(fmt::format_string<Args...> f, Args&&... args) const {
    write(LogLevel::kWarning, f, std::forward<Args>(args)...);
  }
  template <class... Args>
  void error(fmt::format_string<Args...> f, Args&&... args) const {
    write(LogLevel::kError, f, std::forward<Args>(args)...);
  }

 private:
  template <class... Args>
  void write(LogLevel level, fmt::format_string<Args...> f, Args&&... args) const {
    if (level < level_) return;
    emit(level, fmt::format(f, std::forward<Args>(args)...));
  }
  void emit(LogLevel level, std::string_view text) const;

  LogLevel level_;
  Sink sink_;
  mutable std::mutex mutex_;
};

}  // namespace ef
