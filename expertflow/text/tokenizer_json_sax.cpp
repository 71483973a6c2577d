#include "expertflow/text/tokenizer_json_sax.h"

#include <limits>

#include "expertflow/base/errors.h"
#include "expertflow/text/tokenizer_fields.h"

namespace ef {
namespace {

using nlohmann::json;
constexpr size_t kMaxDepth = 64;

class Handler {
 public:
  using number_integer_t = json::number_integer_t;
  using number_unsigned_t = json::number_unsigned_t;
  using number_float_t = json::number_float_t;
  using string_t = json::string_t;
  using binary_t = json::binary_t;

  Handler(TokenizerJson& out, std::string_view name) : out_(out), name_(name) {}

  bool null() { return value(json(nullptr)); }
  bool boolean(bool b) { return value(json(b)); }
  bool number_integer(number_integer_t n) { return value(json(n)); }
  bool number_unsigned(number_unsigned_t n) { return value(json(n)); }
  bool number_float(number_float_t n, const string_t&) { return value(json(n)); }
  bool binary(binary_t&) { return false; }

  bool string(string_t& text) {
    if (mode_ == Mode::kMerges) return merge_text(text);
    if (mode_ == Mode::kMergePair) {
      pair_.push_back(std::move(text));
      return true;
    }
    return value(json(std::move(text)));
  }

  bool key(string_t& text) {
    key_ = std::move(text);
    return true;
  }

  bool start_object(size_t) {
    if (mode_ != Mode::kTree) return value(json::object());
    if (in_model("vocab")) {
      EF_CHECK(!out_.has_vocab, ModelError, "{}: model.vocab: expected one, found a second", name_);
      out_.has_vocab = true;
      mode_ = Mode::kVocab;
      return true;
    }
    open(json::object());
    return true;
  }

  bool end_object() {
    if (mode_ == Mode::kVocab) {
      mode_ = Mode::kTree;
    } else {
      close();
    }
    return true;
  }

  bool start_array(size_t) {
    if (mode_ == Mode::kMerges) {
      mode_ = Mode::kMergePair;
      pair_.clear();
      return true;
    }
    if (mode_ != Mode::kTree) return value(json::array());
    if (in_model("merges")) {
      EF_CHECK(!out_.has_merges, ModelError, "{}: model.merges: expected one, found a second", name_);
      out_.has_merges = true;
      mode_ = Mode::kMerges;
      return true;
    }
    open(json::array());
    return true;
  }

  bool end_array() {
    if (mode_ == Mode::kMergePair) {
      if (pair_.size() != 2) wrong_merge(fmt::format("an array of {}", pair_.size()));
      out_.merges.emplace_back(std::move(pair_[0]), std::move(pair_[1]));
      mode_ = Mode::kMerges;
    } else if (mode_ == Mode::kMerges) {
      mode_ = Mode::kTree;
    } else {
      close();
    }
    return true;
  }

  bool parse_error(size_t position, const std::string&, const json::exception& e) {
    fail<ModelError>("{}: expected json, found an error at byte {}: {}", name_, position, e.what());
  }

 private:
  enum class Mode { kTree, kVocab, kMerges, kMergePair };
  struct Open {
    json value;
    std::string key;  // under which it goes into its parent
  };

  bool in_model(std::string_view key) const { return stack_.size() == 2 && stack_[1].key == "model" && key_ == key; }

  [[noreturn]] void wrong_merge(const std::string& found) const {
    fail<ModelError>("{}: model.merges[{}]: expected \"left right\" or [left, right], found {}", name_,
                     out_.merges.size(), found);
  }

  bool merge_text(const std::string& text) {
    const size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos)
      wrong_merge(fields::describe(json(text)));
    out_.merges.emplace_back(text.substr(0, space), text.substr(space + 1));
    return true;
  }

  bool value(json&& value) {
    if (mode_ == Mode::kVocab) {
      const bool fits =
          value.is_number_integer() && (!value.is_number_unsigned() || value.get<uint64_t>() <= INT32_MAX);
      EF_CHECK(fits, ModelError, "{}: model.vocab[{}]: expected a token id, found {}", name_,
               fields::describe(json(key_)), fields::describe(value));
      out_.vocab.emplace_back(std::move(key_), value.get<int64_t>());
      return true;
    }
    if (mode_ == Mode::kMerges || mode_ == Mode::kMergePair) wrong_merge(fields::describe(value));
    if (stack_.empty()) {
      out_.rest = std::move(value);
    } else {
      attach(std::move(value), std::move(key_));
    }
    return true;
  }

  void attach(json&& value, std::string&& key) {
    json& parent = stack_.back().value;
    if (parent.is_array()) {
      parent.push_back(std::move(value));
    } else {
      parent[std::move(key)] = std::move(value);
    }
  }

  void open(json&& value) {
    EF_CHECK(stack_.size() < kMaxDepth, ModelError, "{}: expected a nesting of at most {}, found more", name_,
             kMaxDepth);
    stack_.push_back({std::move(value), std::move(key_)});
    key_.clear();
  }

  void close() {
    Open done = std::move(stack_.back());
    stack_.pop_back();
    if (stack_.empty()) {
      out_.rest = std::move(done.value);
    } else {
      attach(std::move(done.value), std::move(done.key));
    }
  }

  TokenizerJson& out_;
  std::string_view name_;
  Mode mode_ = Mode::kTree;
  std::vector<Open> stack_;
  std::string key_;
  std::vector<std::string> pair_;
};

}  // namespace

TokenizerJson parse_tokenizer_json(std::string_view text, std::string_view name) {
  TokenizerJson out;
  Handler handler(out, name);
  const bool ok = json::sax_parse(text, &handler);
  EF_CHECK(ok && out.rest.is_object(), ModelError, "{}: expected a json object, found {}", name,
           fields::describe(out.rest));
  return out;
}

}  // namespace ef
