// Exceptions typed by cause. Thrown where the cause is known, mapped once to an exit code (apps) or HTTP status
// (server).
#pragma once
#include <fmt/format.h>

#include <stdexcept>
#include <string>

namespace ef {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
/// A flag, environment variable or option cannot be honoured. Exit code 2.
class ConfigError : public Error {
 public:
  using Error::Error;
};
/// A model file is malformed, incomplete or of an unsupported kind. Exit code 3.
class ModelError : public Error {
 public:
  using Error::Error;
};
/// Reading a file, a copy, or a device failed. Exit code 4.
class DeviceError : public Error {
 public:
  using Error::Error;
};
/// One request cannot be answered; other requests go on. Exit code 5.
class RequestError : public Error {
 public:
  using Error::Error;
};

/// fail<ModelError>("{}: tensor {}: expected {}, found {}", ...)
template <class E, class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw E(fmt::format(format, std::forward<Args>(args)...));
}

[[noreturn]] void invariant_failed(const char* expression, const char* file, int line);

}  // namespace ef

/// Always on: for data from outside (files, requests, flags). The message names what was expected and what was found.
#define EF_CHECK(condition, ErrorType, ...)               \
  do {                                                    \
    if (!(condition)) ::ef::fail<ErrorType>(__VA_ARGS__); \
  } while (0)

/// Invariants of our own code: on in debug builds, never reachable by user input.
#ifdef EF_DEBUG
#define EF_DCHECK(condition)                                                  \
  do {                                                                        \
    if (!(condition)) ::ef::invariant_failed(#condition, __FILE__, __LINE__); \
  } while (0)
#else
#define EF_DCHECK(condition) \
  do {                       \
  } while (0)
#endif
