#include "expertflow/backend/cuda/cuda_tuning.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

namespace ef::cuda {

namespace {

using Json = nlohmann::json;

// An object, empty where the file holds none.
Json read_object(const std::filesystem::path& file) {
  std::ifstream in(file);
  Json json = Json::parse(in, nullptr, false);
  return json.is_object() ? json : Json::object();
}

}  // namespace

std::string TunedShape::text() const {
  const std::string matrix = fmt::format("{} {}x{}", format, n, cols);
  return experts == 0 ? matrix : fmt::format("{}, {} of {}", matrix, top_k, experts);
}

int64_t Tuning::rows(const TunedShape& shape, int64_t fallback) const {
  const auto it = rows_.find(shape.text());
  return it == rows_.end() ? fallback : it->second;
}

bool Tuning::read(const std::filesystem::path& file) {
  const Json all = read_object(file);
  const auto mine = all.find(machine_);
  if (mine == all.end() || !mine->is_object()) return false;
  bool any = false;
  for (const auto& [shape, rows] : mine->items()) {
    if (!rows.is_number_integer() || rows.get<int64_t>() < 1) continue;
    rows_[shape] = rows.get<int64_t>();
    any = true;
  }
  return any;
}

bool Tuning::write(const std::filesystem::path& file) const {
  std::error_code error;
  std::filesystem::create_directories(file.parent_path(), error);
  Json all = read_object(file);
  Json& mine = all[machine_];
  if (!mine.is_object()) mine = Json::object();
  for (const auto& [shape, rows] : rows_) mine[shape] = rows;
  // Another process may write at the same time: each puts a whole file in place.
  const std::filesystem::path part = fmt::format("{}.{}", file.string(), getpid());
  {
    std::ofstream out(part);
    out << all.dump(1) << '\n';
    if (!out.flush()) {
      std::filesystem::remove(part, error);
      return false;
    }
  }
  std::filesystem::rename(part, file, error);
  return !error;
}

int64_t crossover(const std::vector<int64_t>& candidates, const std::function<double(int64_t)>& few,
                  const std::function<double(int64_t)>& many) {
  // Times by the better one's, up to twice, so that one that was disturbed does not decide.
  double lost = 0;  // with `many` from the first candidate on
  std::vector<double> gain;
  for (const int64_t rows : candidates) {
    const double a = few(rows), b = many(rows), best = std::max(std::min(a, b), 1e-9);
    gain.push_back(std::min(b / best, 2.) - std::min(a / best, 2.)), lost += std::min(b / best, 2.);
  }
  double least = lost;
  int64_t from = candidates.front();
  for (size_t i = 0; i < candidates.size(); ++i) {
    lost -= gain[i];
    if (lost < least) least = lost, from = i + 1 < candidates.size() ? candidates[i + 1] : candidates.back() + 1;
  }
  return from;
}

}  // namespace ef::cuda
