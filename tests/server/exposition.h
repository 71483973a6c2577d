// Prometheus's text exposition (version 0.0.4), read by its specification and found fault with: independent of the code
// that writes it.
#pragma once
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace ef::testing {

struct MetricSample {
  std::string name;
  std::map<std::string, std::string> labels;
  double value = 0;
  /// Name and labels but the named one, in an order of their own.
  std::string key(const std::string& without = "") const {
    std::string text = name;
    for (const auto& [label, v] : labels)
      if (label != without) text += "|" + label + "=" + v;
    return text;
  }
};

struct MetricFamily {
  std::string name, type, help;
  std::vector<MetricSample> samples;
};

class ExpositionText {
 public:
  explicit ExpositionText(const std::string& text) {
    if (text.empty() || text.back() != '\n') fault("the last line does not end");
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find('\n', at), text.size());
      line_ = text.substr(at, end - at);
      at = end + 1;
      if (line_.empty()) continue;
      if (line_[0] == '#')
        comment();
      else
        sample();
    }
    for (const MetricFamily& family : families) check(family);
  }

  std::vector<MetricFamily> families;
  std::vector<std::string> faults;

  const MetricFamily* family(const std::string& name) const {
    for (const MetricFamily& f : families)
      if (f.name == name) return &f;
    return nullptr;
  }
  /// Of the one sample with these labels among its own; NaN and a fault where there is not exactly one.
  double value(const std::string& name, const std::map<std::string, std::string>& labels = {}) {
    const std::vector<double> found = values(name, labels);
    if (found.size() == 1) return found[0];
    faults.push_back(name + ": " + std::to_string(found.size()) + " samples");
    return std::nan("");
  }
  std::vector<double> values(const std::string& name, const std::map<std::string, std::string>& labels = {}) const {
    std::vector<double> found;
    for (const MetricFamily& f : families)
      for (const MetricSample& s : f.samples) {
        bool fits = s.name == name;
        for (const auto& [label, v] : labels) fits = fits && s.labels.count(label) && s.labels.at(label) == v;
        if (fits) found.push_back(s.value);
      }
    return found;
  }
  std::map<std::string, double> counters() const {
    std::map<std::string, double> all;
    for (const MetricFamily& f : families)
      for (const MetricSample& s : f.samples) {
        const bool counts =
            f.type == "counter" || f.type == "histogram" || (f.type == "summary" && !s.labels.count("quantile"));
        if (counts) all[s.key()] = s.value;
      }
    return all;
  }

 private:
  void fault(const std::string& what) { faults.push_back(what + ": " + line_); }
  static bool is_name(const std::string& text, bool colons) {
    if (text.empty() || std::isdigit(static_cast<unsigned char>(text[0]))) return false;
    for (const char c : text)
      if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_' && !(colons && c == ':')) return false;
    return true;
  }
  static bool number(const std::string& text, double& value) {
    if (text == "+Inf" || text == "-Inf" || text == "NaN") {
      value = text == "NaN" ? std::nan("") : (text[0] == '-' ? -1 : 1) * std::numeric_limits<double>::infinity();
      return true;
    }
    char* end = nullptr;
    value = std::strtod(text.c_str(), &end);
    return !text.empty() && *end == '\0' && std::isfinite(value);
  }

  void comment() {
    const bool help = line_.rfind("# HELP ", 0) == 0, type = line_.rfind("# TYPE ", 0) == 0;
    if (!help && !type) return;
    const size_t space = std::min(line_.find(' ', 7), line_.size());
    const std::string name = line_.substr(7, space - 7);
    const std::string rest = space < line_.size() ? line_.substr(space + 1) : "";
    if (!is_name(name, true)) fault("no metric name");
    if (families.empty() || families.back().name != name) {
      if (family(name)) fault("a second HELP or TYPE, or lines that are not together");
      families.push_back({name, "", "", {}});
    }
    MetricFamily& f = families.back();
    if (!f.samples.empty()) fault("HELP or TYPE after a sample");
    std::string& into = help ? f.help : f.type;
    if (!into.empty()) fault("HELP or TYPE twice");
    if (rest.empty()) fault("nothing said");
    into = rest;
    static const std::set<std::string> kTypes{"counter", "gauge", "histogram", "summary", "untyped"};
    if (type && !kTypes.count(rest)) fault("no type");
  }

  // name{label="value",...} value
  void sample() {
    MetricSample s;
    size_t at = 0;
    while (at < line_.size() && line_[at] != '{' && line_[at] != ' ') s.name += line_[at++];
    if (!is_name(s.name, true)) fault("no metric name");
    if (at < line_.size() && line_[at] == '{' && !labels(s, ++at)) return fault("malformed labels");
    if (at >= line_.size() || line_[at] != ' ') return fault("no value");
    if (!number(line_.substr(at + 1), s.value)) return fault("no number");
    if (families.empty() || !belongs(s.name, families.back())) return fault("a sample apart from its HELP and TYPE");
    if (!seen_.insert(s.key()).second) fault("a sample twice");
    families.back().samples.push_back(std::move(s));
  }
  bool labels(MetricSample& s, size_t& at) {
    while (at < line_.size() && line_[at] != '}') {
      std::string name, value;
      while (at < line_.size() && line_[at] != '=') name += line_[at++];
      if (!is_name(name, false) || s.labels.count(name)) return false;
      if (line_.compare(at, 2, "=\"") != 0) return false;
      for (at += 2; at < line_.size() && line_[at] != '"'; ++at) {
        if (line_[at] != '\\') {
          value += line_[at];
          continue;
        }
        if (++at >= line_.size()) return false;
        if (line_[at] != 'n' && line_[at] != '\\' && line_[at] != '"') return false;
        value += line_[at] == 'n' ? '\n' : line_[at];
      }
      if (at >= line_.size()) return false;
      s.labels[name] = value;
      ++at;
      if (at < line_.size() && line_[at] == ',') ++at;
    }
    return at < line_.size() && line_[at++] == '}';
  }
  static bool belongs(const std::string& name, const MetricFamily& f) {
    if (f.type == "histogram")
      return name == f.name + "_bucket" || name == f.name + "_sum" || name == f.name + "_count";
    if (f.type == "summary") return name == f.name || name == f.name + "_sum" || name == f.name + "_count";
    return name == f.name;
  }

  void check(const MetricFamily& f) {
    line_ = f.name;
    if (f.type.empty() || f.help.empty()) fault("HELP or TYPE is missing");
    if (f.samples.empty()) fault("no sample");
    const std::string total = "_total";
    const bool named =
        f.name.size() > total.size() && f.name.compare(f.name.size() - total.size(), total.size(), total) == 0;
    if (named != (f.type == "counter")) fault("counters, and they alone, end in _total");
    if (f.type == "counter")
      for (const MetricSample& s : f.samples)
        if (!(s.value >= 0)) fault("a counter below 0");
    if (f.type == "histogram") check_histogram(f);
    if (f.type == "summary") check_summary(f);
  }
  void check_histogram(const MetricFamily& f) {
    struct Seen {
      double bound = -std::numeric_limits<double>::infinity(), count = 0;
      bool ended = false;
    };
    std::map<std::string, Seen> series;
    for (const MetricSample& s : f.samples) {
      if (s.name != f.name + "_bucket") continue;
      Seen& seen = series[s.key("le").substr(s.name.size())];
      double bound = 0;
      if (!s.labels.count("le") || !number(s.labels.at("le"), bound)) return fault("a bucket without bound");
      if (bound <= seen.bound) fault("bounds do not rise");
      if (s.value < seen.count) fault("buckets are not cumulative");
      seen = {bound, s.value, std::isinf(bound)};
    }
    if (series.empty()) fault("no bucket");
    for (const auto& [labels, seen] : series) {
      if (!seen.ended) fault("no +Inf bucket");
      double count = -1;
      bool sum = false;
      for (const MetricSample& s : f.samples) {
        if (s.name == f.name + "_count" && s.key().substr(s.name.size()) == labels) count = s.value;
        sum = sum || (s.name == f.name + "_sum" && s.key().substr(s.name.size()) == labels);
      }
      if (count != seen.count) fault("the +Inf bucket is not the count");
      if (!sum) fault("no sum");
    }
  }
  void check_summary(const MetricFamily& f) {
    for (const MetricSample& s : f.samples) {
      if (s.name != f.name) continue;
      double quantile = -1;
      if (!s.labels.count("quantile") || !number(s.labels.at("quantile"), quantile) || quantile < 0 || quantile > 1)
        fault("no quantile");
    }
  }

  std::string line_;
  std::set<std::string> seen_;
};

}  // namespace ef::testing
