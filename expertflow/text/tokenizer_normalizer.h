// Normalizers of tokenizer.json: text in, text out, before pre-tokenisation.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "expertflow/base/stop_check.h"
#include "expertflow/text/tokenizer_fields.h"

namespace ef {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  /// Well-formed UTF-8 in and out.
  virtual std::string apply(std::string text, const StopCheck& stop) const = 0;
  /// A text becomes at most so many times shorter (in bytes, rounded up); nothing: there is no such bound.
  virtual std::optional<size_t> most_shrinking() const = 0;
};

/// Null for a null node. Known: NFC, NFD, NFKC, NFKD, Lowercase, Strip, Prepend, Replace, Sequence; else ModelError.
std::unique_ptr<Normalizer> make_normalizer(const fields::Node& node);

}  // namespace ef
