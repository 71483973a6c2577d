// Trained predictors as files: GGUF containers (version 3, general.architecture "expertflow-predictor"), so that what
// shows GGUF files shows these. Beside the tensors: expertflow.predictor.version, .fingerprint, .layers, .hidden,
// .experts, .top_k, .best, and .checksum, XXH3 with 64 bits over names, formats, shapes and data of all tensors in the
// order of their names.
#pragma once
#include <filesystem>
#include <memory>
#include <string>

#include "expertflow/engine/model_files.h"
#include "expertflow/predict/predictor.h"
#include "expertflow/predict/trained.h"
#include "expertflow/quant/formats.h"

namespace ef {

inline constexpr int kPredictorVersion = 1;

/// Matrices are stored in `format` where its blocks fit their width, else in the next larger one; vectors as F32.
void write_predictor(const TrainedPredictor& trained, Format format, const std::string& license,
                     const std::filesystem::path& file);
/// ModelError naming the file and what is wrong: not a predictor, another version, a damaged file (checksum), NaN.
TrainedPredictor read_predictor(const std::filesystem::path& file);

/// What `--predictor` names: a row of the table, or a file, of which the best kind is taken ("FILE:KIND" another).
/// `trained` receives the file and must outlive what is made with it. ConfigError or ModelError, also for a file that
/// was made for another model.
struct PredictorChoice {
  std::string name;
  std::unique_ptr<TrainedPredictor> trained;  ///< null: the name needs none
};
PredictorChoice choose_predictor(const std::string& spec, const ModelFiles& files);

/// Where a model's own predictor is looked for.
std::filesystem::path predictor_beside(std::filesystem::path model);

}  // namespace ef
