// What a conversion writes: header and tensors, each with the places that its numbers come from.
#pragma once
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "expertflow/base/errors.h"
#include "expertflow/convert/row_source.h"
#include "expertflow/model/arch.h"
#include "expertflow/model/binding.h"

namespace ef {

struct OutTensor {
  std::string name;
  std::vector<int64_t> shape;  ///< row-major; the product is rows->rows() * rows->cols()
  Rows rows;
  Format format = Format::kF32;  ///< to write
};

/// A GGUF to be written.
struct GgufPlan {
  GgufMetadata metadata;
  std::vector<OutTensor> tensors;
  std::vector<std::string> notes;  ///< what is lost without harm, for people
};

/// A Hugging Face folder to be written.
struct HfPlan {
  nlohmann::ordered_json config;
  nlohmann::ordered_json generation_config;                ///< null: none
  std::vector<std::pair<std::string, std::string>> files;  ///< tokenizer.json and what belongs to it
  std::vector<OutTensor> tensors;
  std::vector<std::string> notes;
};

/// A checkpoint, understood.
struct SourceModel {
  Checkpoint checkpoint;
  const Architecture* arch = nullptr;
  Config config;
  Binding binding;
};
SourceModel open_source(const std::filesystem::path& path);

/// Tensors in F32 whatever the type asked for, as llama.cpp keeps them: vectors, norms, biases, the router.
bool stays_f32_in_gguf(const std::string& gguf_name, const std::vector<int64_t>& shape);

/// tokenizer_pre overrides the name of the pre-tokenizer (empty: found from tokenizer.json). All matrices are in the
/// source's own format (FP8: BF16), what stays_f32_in_gguf says in F32. ModelError: GGUF cannot carry something,
/// naming it.
GgufPlan plan_gguf(const SourceModel& source, const std::string& tokenizer_pre = {});

/// to: the format of all tensors; none: that of the source, MXFP4 experts in gpt-oss's own layout. ModelError: a part
/// cannot be written (named), or a block format without `to`.
HfPlan plan_hf(const SourceModel& source, std::optional<Format> to, const std::string& tokenizer_pre = {});

/// Runs `plan` so that an error names the source: a ModelError in front of its text unless it is there, and malformed
/// JSON or UTF-8 of tokenizer and texts as a ModelError.
template <class F>
auto naming_source(const std::string& source, const F& plan) {
  try {
    return plan();
  } catch (const ModelError& error) {
    const std::string text = error.what();
    fail<ModelError>("{}", text.starts_with(source) ? text : source + ": " + text);
  } catch (const nlohmann::json::exception& error) {
    fail<ModelError>("{}: expected a tokenizer and texts in well-formed JSON and UTF-8, found an error: {}", source,
                     error.what());
  }
}

/// ModelError unless the two say the same model; `target` names the file kind in the message.
void require_same_model(const Config& source, const Config& result, std::string_view target);

}  // namespace ef
