// From how many rows on tensor cores win over matrix-vector products: measured once a machine for every shape that a
// model has, and kept in a file.
#pragma once
#include <compare>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace ef::cuda {

/// A product: a matrix, or (experts > 0) the gate matrices of a layer's routed experts.
struct TunedShape {
  std::string format;  ///< of the weights; of gate, up and down
  int64_t n = 0, cols = 0;
  int experts = 0, top_k = 0;
  auto operator<=>(const TunedShape&) const = default;
  std::string text() const;  ///< "Q4_K 4096x2048", "Q4_K/Q4_K/Q6_K 768x2048, 8 of 128"
};

class Tuning {
 public:
  /// machine: whatever a measurement depends on (device, driver, version of this program).
  explicit Tuning(std::string machine) : machine_(std::move(machine)) {}

  /// The measured number, else the fallback.
  int64_t rows(const TunedShape& shape, int64_t fallback) const;
  bool knows(const TunedShape& shape) const { return rows_.contains(shape.text()); }
  void learn(const TunedShape& shape, int64_t rows) { rows_[shape.text()] = rows; }

  /// Takes over what the file holds for this machine. A file that is missing or not what it should be is no error: it
  /// is measured and written anew. Whether anything was taken.
  bool read(const std::filesystem::path& file);
  /// Keeps what others wrote for other machines. False if it could not be written: measurements then last for one run.
  bool write(const std::filesystem::path& file) const;

 private:
  std::string machine_;
  std::map<std::string, int64_t> rows_;
};

/// The candidate (ascending) from which on to take `many`, by seconds for so many rows: where least is lost beside the
/// better of both, over all candidates. The last candidate plus one: never.
int64_t crossover(const std::vector<int64_t>& candidates, const std::function<double(int64_t)>& few,
                  const std::function<double(int64_t)>& many);

}  // namespace ef::cuda
