// Normalizers of tokenizer.json: text in, text out, before pre-tokenisation.
#pragma once
#include <memory>
#include <string>

#include "expertflow/text/tokenizer_fields.h"

namespace ef {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  /// Well-formed UTF-8 in and out.
  virtual std::string apply(std::string text) const = 0;
};

/// Null for a null node. Known: NFC, NFD, NFKC, NFKD, Lowercase, Strip, Prepend, Replace, Sequence; else ModelError.
std::unique_ptr<Normalizer> make_normalizer(const fields::Node& node);

}  // namespace ef
