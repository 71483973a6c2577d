// Decoders of tokenizer.json: token texts back to text, as a chain of steps over the list of tokens.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "expertflow/text/tokenizer_fields.h"

namespace ef {

struct DecoderToken {
  std::string text;
  bool added = false;  ///< an added token: its text is not in the byte alphabet
  bool bytes = false;  ///< already raw bytes (from a byte token)
};

class DecoderStep {
 public:
  virtual ~DecoderStep() = default;
  /// The whole list at once, as upstream does.
  virtual void apply(std::vector<DecoderToken>& tokens) const = 0;
  /// One token on its own, for streaming. after_fuse: upstream sees all tokens joined here.
  virtual void apply_one(DecoderToken& token, bool at_start, bool after_fuse) const = 0;
  virtual bool fuses() const { return false; }
};

class Decoder {
 public:
  /// No steps: upstream joins the tokens with spaces.
  Decoder() = default;
  /// ModelError for unknown kinds. Known: ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace, Sequence. A null
  /// node: no steps.
  explicit Decoder(const fields::Node& node);

  std::string decode(std::vector<DecoderToken> tokens) const;  ///< well-formed UTF-8
  std::string decode_one(DecoderToken token, bool at_start) const;

 private:
  void add_steps(const fields::Node& node);
  std::vector<std::unique_ptr<DecoderStep>> steps_;
};

}  // namespace ef
