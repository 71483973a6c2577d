#include "expertflow/text/tokenizer_decoder.h"

#include <algorithm>

#include "expertflow/text/bpe.h"
#include "expertflow/text/tokenizer_pattern.h"
#include "expertflow/text/unicode.h"

namespace ef {
namespace {

std::string join(const std::vector<DecoderToken>& tokens) {
  std::string all;
  for (const auto& token : tokens) all += token.text;
  return all;
}

class ByteLevelStep final : public DecoderStep {
 public:
  void apply(std::vector<DecoderToken>& tokens) const override {
    for (auto& token : tokens) apply_one(token, false, false);
    tokens = {DecoderToken{utf8_lossy(join(tokens))}};
  }
  void apply_one(DecoderToken& token, bool, bool) const override {
    if (token.added) return;
    if (auto bytes = printable_to_bytes(token.text)) token.text = std::move(*bytes);
  }
};

class ByteFallbackStep final : public DecoderStep {
 public:
  // A run of byte tokens that is not UTF-8 as a whole becomes one U+FFFD a byte.
  void apply(std::vector<DecoderToken>& tokens) const override {
    std::vector<DecoderToken> out;
    std::string run;
    const auto flush = [&] {
      if (run.empty()) return;
      if (!utf8_valid(run)) {
        std::string replaced;
        for (size_t i = 0; i < run.size(); ++i) utf8_append(replaced, kReplacementCharacter);
        run = std::move(replaced);
      }
      out.push_back({std::move(run)});
      run.clear();
    };
    for (auto& token : tokens) {
      if (const auto byte = byte_of_token(token.text)) {
        run.push_back(static_cast<char>(*byte));
        continue;
      }
      flush();
      out.push_back(std::move(token));
    }
    flush();
    tokens = std::move(out);
  }
  void apply_one(DecoderToken& token, bool, bool) const override {
    if (const auto byte = byte_of_token(token.text)) {
      token.text.assign(1, static_cast<char>(*byte));
      token.bytes = true;
    }
  }
};

class FuseStep final : public DecoderStep {
 public:
  void apply(std::vector<DecoderToken>& tokens) const override { tokens = {DecoderToken{join(tokens)}}; }
  void apply_one(DecoderToken&, bool, bool) const override {}
  bool fuses() const override { return true; }
};

class ReplaceStep final : public DecoderStep {
 public:
  ReplaceStep(Pattern pattern, std::string content) : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void apply(std::vector<DecoderToken>& tokens) const override {
    for (auto& token : tokens) token.text = pattern_.replace(token.text, content_);
  }
  void apply_one(DecoderToken& token, bool, bool) const override {
    if (!token.bytes) token.text = pattern_.replace(token.text, content_);
  }

 private:
  Pattern pattern_;
  std::string content_;
};

class StripStep final : public DecoderStep {
 public:
  StripStep(std::string content, size_t start, size_t stop)
      : content_(std::move(content)), start_(start), stop_(stop) {}
  void apply(std::vector<DecoderToken>& tokens) const override {
    for (auto& token : tokens) strip(token.text, start_, stop_);
  }
  // What is cut at the end of the joined text cannot be known in a stream; no tokenizer of these models asks for it.
  void apply_one(DecoderToken& token, bool at_start, bool after_fuse) const override {
    if (!after_fuse) strip(token.text, start_, stop_);
    if (after_fuse && at_start) strip(token.text, start_, 0);
  }

 private:
  void strip(std::string& text, size_t start, size_t stop) const {
    std::string_view view = text;
    for (; start > 0 && view.starts_with(content_); --start) view.remove_prefix(content_.size());
    for (; stop > 0 && view.ends_with(content_); --stop) view.remove_suffix(content_.size());
    text = std::string(view);
  }
  std::string content_;
  size_t start_, stop_;
};

class MetaspaceStep final : public DecoderStep {
 public:
  MetaspaceStep(std::string replacement, bool prepends) : replacement_(std::move(replacement)), prepends_(prepends) {}
  void apply(std::vector<DecoderToken>& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) apply_one(tokens[i], i == 0, false);
  }
  // Upstream drops every replacement character of the first token, not only the leading one.
  void apply_one(DecoderToken& token, bool at_start, bool) const override {
    std::string out;
    for (size_t i = 0; i < token.text.size();) {
      if (std::string_view(token.text).substr(i).starts_with(replacement_)) {
        if (!at_start || !prepends_) out += ' ';
        i += replacement_.size();
      } else {
        out += token.text[i++];
      }
    }
    token.text = std::move(out);
  }

 private:
  std::string replacement_;
  bool prepends_;
};

}  // namespace

Decoder::Decoder(const fields::Node& node) {
  if (!node.value.is_null()) add_steps(node);
}

void Decoder::add_steps(const fields::Node& node) {
  const std::string type = fields::type_of(node);
  if (type == "Sequence") {
    const fields::Node list = fields::member(node, "decoders");
    for (size_t i = 0; i < fields::array_size(list); ++i) add_steps(fields::element(list, i));
  } else if (type == "ByteLevel") {
    steps_.push_back(std::make_unique<ByteLevelStep>());
  } else if (type == "ByteFallback") {
    steps_.push_back(std::make_unique<ByteFallbackStep>());
  } else if (type == "Fuse") {
    steps_.push_back(std::make_unique<FuseStep>());
  } else if (type == "Replace") {
    steps_.push_back(std::make_unique<ReplaceStep>(Pattern(fields::member(node, "pattern")),
                                                   fields::required_string(node, "content")));
  } else if (type == "Strip") {
    std::string content = fields::required_string(node, "content");
    if (content.empty()) fields::wrong(fields::member(node, "content"), "one character");
    steps_.push_back(std::make_unique<StripStep>(std::move(content), fields::count_or(node, "start", 0),
                                                 fields::count_or(node, "stop", 0)));
  } else if (type == "Metaspace") {
    std::string replacement = fields::string_or(node, "replacement", "\xE2\x96\x81");
    if (replacement.empty()) fields::wrong(fields::member(node, "replacement"), "one character");
    const bool add_prefix_space = fields::boolean_or(node, "add_prefix_space", true);
    const std::string scheme = fields::string_or(node, "prepend_scheme", add_prefix_space ? "always" : "never");
    steps_.push_back(std::make_unique<MetaspaceStep>(std::move(replacement), scheme != "never"));
  } else {
    fields::unknown_type(node, "decoder", "ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace, Sequence");
  }
}

std::string Decoder::decode(std::vector<DecoderToken> tokens) const {
  if (steps_.empty()) {
    std::string all;
    for (size_t i = 0; i < tokens.size(); ++i) all += (i == 0 ? "" : " ") + tokens[i].text;
    return utf8_lossy(all);
  }
  for (const auto& step : steps_) step->apply(tokens);
  return utf8_lossy(join(tokens));
}

std::string Decoder::decode_one(DecoderToken token, bool at_start) const {
  if (steps_.empty()) return (at_start ? "" : " ") + token.text;
  bool fused = false;
  for (const auto& step : steps_) {
    step->apply_one(token, at_start, fused);
    fused = fused || step->fuses();
  }
  return std::move(token.text);
}

}  // namespace ef
