#include "expertflow/text/bounded_json.h"

#include <fmt/format.h>

#include <unordered_map>
#include <vector>

namespace ef {

namespace {

using Json = nlohmann::ordered_json;

// The library's own builders look through all members for each new one of an ordered object, and, with a callback,
// through all elements of the list that an object is in.
class Builder final : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(const StopCheck& stop) : stop_(stop) {}
  BoundedJson take(bool read) {
    if (!read && result_.error.empty()) result_.error = "is not valid JSON";
    return std::move(result_);
  }

  bool null() override { return put(nullptr); }
  bool boolean(bool v) override { return put(v); }
  bool number_integer(number_integer_t v) override { return put(v); }
  bool number_unsigned(number_unsigned_t v) override { return put(v); }
  bool number_float(number_float_t v, const string_t&) override { return put(v); }
  bool string(string_t& v) override { return put(std::move(v)); }
  bool binary(binary_t&) override { return false; }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_array() override { return close(); }
  bool start_object(size_t) override { return open(Json::object()); }
  bool end_object() override { return close(); }
  bool key(string_t& name) override;
  bool parse_error(size_t, const std::string&, const Json::exception& error) override {
    result_.error = fmt::format("is not valid JSON: {}", error.what());
    return false;
  }

 private:
  struct Level {
    Json* value;
    Json* member = nullptr;                         ///< of an object: the one whose key was read last
    std::unordered_map<std::string, size_t> known;  ///< members by key, once there are many
  };
  bool put(Json value) { return place(std::move(value)) != nullptr; }
  Json* place(Json value) {
    stop_();
    if (levels_.empty()) return &(result_.value = std::move(value));
    Level& level = levels_.back();
    if (level.member) return &(*level.member = std::move(value));
    auto& list = level.value->get_ref<Json::array_t&>();
    return &list.emplace_back(std::move(value));
  }
  bool open(Json value) {
    if (levels_.size() >= size_t(kMostJsonDepth)) {
      result_.error = fmt::format("nests more than {} deep", kMostJsonDepth);
      return false;
    }
    levels_.push_back({place(std::move(value)), nullptr, {}});
    return true;
  }
  bool close() {
    levels_.pop_back();
    return true;
  }

  const StopCheck& stop_;
  BoundedJson result_;
  std::vector<Level> levels_;  // open; a list does not grow while one of its elements is
};

// Of a key that comes twice the last counts.
bool Builder::key(string_t& name) {
  constexpr size_t kFew = 16;
  Level& level = levels_.back();
  auto& object = level.value->get_ref<Json::object_t&>();
  if (object.size() >= kMostJsonMembers) {
    result_.error = fmt::format("has an object of more than {} members", kMostJsonMembers);
    return false;
  }
  if (object.size() < kFew) {
    level.member = &object[std::move(name)];
    return true;
  }
  if (level.known.empty())
    for (size_t i = 0; i < object.size(); ++i) level.known.emplace((object.begin() + std::ptrdiff_t(i))->first, i);
  const auto [at, fresh] = level.known.emplace(name, object.size());
  std::vector<std::pair<const std::string, Json>>& members = object;
  if (fresh) members.emplace_back(std::move(name), nullptr);
  level.member = &members[at->second].second;
  return true;
}

}  // namespace

BoundedJson read_bounded_json(std::string_view text, const StopCheck& stop) {
  Builder builder(stop);
  // A NUL would end the text for the parser; none may be in JSON.
  const size_t end = std::min(text.find('\0'), text.size());
  const bool read = Json::sax_parse(text, &builder);
  BoundedJson out = builder.take(read);
  if (read && end < text.size()) out.error = fmt::format("is not valid JSON: byte {} is NUL", end);
  return out;
}

}  // namespace ef
