#include "expertflow/text/tokenizer_normalizer.h"

#include <vector>

#include "expertflow/text/regex.h"
#include "expertflow/text/tokenizer_pattern.h"
#include "expertflow/text/unicode.h"

namespace ef {
namespace {

class UnicodeForm final : public Normalizer {
 public:
  explicit UnicodeForm(NormalForm form) : form_(form) {}
  std::string apply(std::string text, const StopCheck&) const override { return unicode_normalize(text, form_); }
  std::optional<size_t> most_shrinking() const override { return kMostUnicodeShrinking; }

 private:
  NormalForm form_;
};

class Lowercase final : public Normalizer {
 public:
  std::string apply(std::string text, const StopCheck&) const override { return unicode_lower(text); }
  std::optional<size_t> most_shrinking() const override { return kMostUnicodeShrinking; }
};

class Strip final : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  std::optional<size_t> most_shrinking() const override { return std::nullopt; }
  std::string apply(std::string text, const StopCheck&) const override {
    size_t begin = 0;
    size_t end = 0;
    bool seen = false;
    for (size_t i = 0; i < text.size();) {
      const size_t at = i;
      if (is_white_space(utf8_next(text, i))) continue;
      if (!seen) begin = at;
      seen = true;
      end = i;
    }
    if (!left_) begin = 0;
    if (!right_) end = text.size();
    if (!seen && (left_ || right_)) return "";
    return text.substr(begin, end - begin);
  }

 private:
  bool left_, right_;
};

class Prepend final : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  std::string apply(std::string text, const StopCheck&) const override { return text.empty() ? text : prefix_ + text; }
  std::optional<size_t> most_shrinking() const override { return 1; }

 private:
  std::string prefix_;
};

class Replace final : public Normalizer {
 public:
  Replace(Pattern pattern, std::string content) : pattern_(std::move(pattern)), content_(std::move(content)) {}
  std::string apply(std::string text, const StopCheck& stop) const override {
    return pattern_.replace(text, content_, stop);
  }
  std::optional<size_t> most_shrinking() const override { return pattern_.most_shrinking(content_); }

 private:
  Pattern pattern_;
  std::string content_;
};

class NormalizerSequence final : public Normalizer {
 public:
  explicit NormalizerSequence(std::vector<std::unique_ptr<Normalizer>> parts) : parts_(std::move(parts)) {}
  std::string apply(std::string text, const StopCheck& stop) const override {
    for (const auto& part : parts_) {
      stop();
      text = part->apply(std::move(text), stop);
    }
    return text;
  }
  std::optional<size_t> most_shrinking() const override {
    size_t product = 1;
    for (const auto& part : parts_) {
      const auto one = part->most_shrinking();
      if (!one) return std::nullopt;
      product *= *one;
    }
    return product;
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> parts_;
};

}  // namespace

std::unique_ptr<Normalizer> make_normalizer(const fields::Node& node) {
  if (node.value.is_null()) return nullptr;
  const std::string type = fields::type_of(node);
  if (type == "NFC") return std::make_unique<UnicodeForm>(NormalForm::kNfc);
  if (type == "NFD") return std::make_unique<UnicodeForm>(NormalForm::kNfd);
  if (type == "NFKC") return std::make_unique<UnicodeForm>(NormalForm::kNfkc);
  if (type == "NFKD") return std::make_unique<UnicodeForm>(NormalForm::kNfkd);
  if (type == "Lowercase") return std::make_unique<Lowercase>();
  if (type == "Strip") {
    return std::make_unique<Strip>(fields::boolean_or(node, "strip_left", true),
                                   fields::boolean_or(node, "strip_right", true));
  }
  if (type == "Prepend") return std::make_unique<Prepend>(fields::required_string(node, "prepend"));
  if (type == "Replace") {
    return std::make_unique<Replace>(Pattern(fields::member(node, "pattern")),
                                     fields::required_string(node, "content"));
  }
  if (type == "Sequence") {
    const fields::Node list = fields::member(node, "normalizers");
    std::vector<std::unique_ptr<Normalizer>> parts;
    for (size_t i = 0; i < fields::array_size(list); ++i) {
      if (auto part = make_normalizer(fields::element(list, i))) parts.push_back(std::move(part));
    }
    return std::make_unique<NormalizerSequence>(std::move(parts));
  }
  fields::unknown_type(node, "normalizer", "NFC, NFD, NFKC, NFKD, Lowercase, Strip, Prepend, Replace, Sequence");
}

}  // namespace ef
