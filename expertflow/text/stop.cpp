#include "expertflow/text/stop.h"

#include <algorithm>
#include <utility>

#include "expertflow/base/errors.h"

namespace ef {
namespace {

/// Length of the longest end of text that a stop string begins with.
size_t partial_match(std::string_view text, const std::vector<std::string>& stops) {
  size_t longest = 0;
  for (const std::string& stop : stops) {
    for (size_t n = std::min(text.size(), stop.size() - 1); n > longest; --n) {
      if (text.ends_with(std::string_view(stop).substr(0, n))) longest = n;
    }
  }
  return longest;
}

}  // namespace

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (size_t i = 0; i < stops_.size(); ++i) {
    EF_CHECK(!stops_[i].empty(), RequestError, "stop[{}]: expected a text, found an empty string", i);
  }
}

std::string StopMatcher::push(std::string_view piece) {
  if (stopped()) return {};
  if (stops_.empty()) return std::string(piece);
  starts_.push_back(held_.size());
  held_ += piece;
  // The stop that begins first wins; of two that begin together, the shorter one is complete first.
  size_t begin = std::string::npos;
  for (size_t i = 0; i < stops_.size(); ++i) {
    const size_t at = held_.find(stops_[i]);
    if (at == std::string::npos || at > begin) continue;
    if (at == begin && stops_[i].size() >= stops_[*matched_].size()) continue;
    begin = at;
    matched_ = i;
  }
  if (stopped()) {
    std::string shown = held_.substr(0, begin);
    held_.clear();
    starts_.clear();
    return shown;
  }
  size_t cut = held_.size() - partial_match(held_, stops_);
  if (cut < held_.size()) cut = *std::prev(std::upper_bound(starts_.begin(), starts_.end(), cut));
  std::string shown = held_.substr(0, cut);
  held_.erase(0, cut);
  std::erase_if(starts_, [&](size_t start) { return start < cut || held_.empty(); });
  for (size_t& start : starts_) start -= cut;
  return shown;
}

std::string StopMatcher::finish() {
  starts_.clear();
  return stopped() ? std::string() : std::exchange(held_, {});
}

}  // namespace ef
