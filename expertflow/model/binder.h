// What both halves of binding share: finding tensors by pattern, remembering which were used and which are missing,
// checking shapes.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "expertflow/base/errors.h"
#include "expertflow/model/binding.h"

namespace ef {

struct Extent {
  int64_t value;
  std::string_view meaning;  ///< "hidden"
};

class Binder {
 public:
  Binder(const Architecture& arch, const Config& config, const Checkpoint& checkpoint);
  Binding run();

 private:
  struct ExpertPlan;
  bool gguf() const { return checkpoint_.kind == Checkpoint::Kind::kGguf; }
  std::string where() const { return checkpoint_.path.string(); }

  // binding.cpp
  const TensorInfo* find(std::string_view pattern, LayerId layer, ExpertId expert = -1) const;
  void use(const TensorInfo& tensor) { used_[size_t(&tensor - directory_.tensors().data())] = 1; }
  void note_missing(std::string name);
  void check_shape(const TensorInfo& tensor, const std::vector<Extent>& expected) const;
  TensorInfo block_scales(const TensorInfo& matrix, std::vector<Extent> leading, int64_t rows, int64_t cols);
  void bind_tensors();
  void bind_tensor(const TensorSpec& spec, LayerId layer);
  void check_matrix_format(const TensorInfo& tensor) const;
  void fail_if_missing() const;
  void fail_if_dense_only() const;
  void sort_out_unused();
  bool of_skipped_layer(std::string_view name) const;

  // binding_experts.cpp
  void bind_experts(LayerId layer);
  void bind_packed_experts(LayerId layer);
  const ExpertSpec* choose_experts(LayerId layer) const;
  void note_missing_experts(const ExpertSpec& spec, LayerId layer);
  std::vector<PartSource> expert_sources(const ExpertSpec& spec, LayerId layer, ExpertId expert,
                                         std::vector<ExpertPart>& parts);
  void add_matrix(ExpertPlan& plan, ExpertRole role, const char* pattern, int64_t rows, int64_t cols, int64_t file_rows,
                  int64_t row_begin, int64_t row_step, Unpack unpack);
  void add_mxfp4(ExpertPlan& plan, ExpertRole role, const char* pattern, int64_t rows, int64_t cols, int64_t file_rows,
                 int64_t row_begin, int64_t row_step);
  void add_scales(ExpertPlan& plan, ExpertRole role, const TensorInfo& matrix, const PartSource& of,
                  const ExpertPart& part, int64_t file_rows);
  void add_bias(ExpertPlan& plan, ExpertRole role, const char* pattern, int64_t n, int64_t file_n, int64_t begin,
                int64_t step);
  const TensorInfo* require(const ExpertPlan& plan, std::string_view pattern);

  const Architecture& arch_;
  const Config& config_;
  const Checkpoint& checkpoint_;
  const TensorDirectory& directory_;
  Binding out_;
  std::vector<char> used_;  ///< by place in directory_.tensors()
  std::vector<std::string> missing_;
  size_t missing_count_ = 0;
};

/// The pattern's first alternative with {l} and {e} filled in ("*" for a negative expert).
std::string tensor_name(std::string_view pattern, LayerId layer, ExpertId expert);

}  // namespace ef
