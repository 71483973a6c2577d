#include "expertflow/engine/predictor_file.h"

#include <algorithm>
#include <cmath>

#include "expertflow/base/errors.h"
#include "expertflow/engine/fingerprint.h"
#include "expertflow/weights/gguf.h"
#include "expertflow/weights/writers.h"

namespace ef {

namespace {

namespace fs = std::filesystem;
constexpr const char* kArchitecture = "expertflow-predictor";
const std::string kPrefix = "expertflow.predictor.";

struct Stored {
  std::string name;
  Format format;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
};

std::string checksum_of(const std::vector<Stored>& tensors) {
  std::string all;
  for (const Stored& t : tensors) {
    all += fmt::format("{} {} {} ", t.name, format_info(t.format).name, fmt::join(t.shape, " "));
    all += fmt::format("{:016x}\n", image_checksum(t.bytes));
  }
  return fmt::format("{:016x}", image_checksum(std::as_bytes(std::span(all))));
}

double bytes_of(Format f) { return double(format_info(f).block_bytes) / format_info(f).block_elements; }

// Heads of the first two layers, each just before its attention: no router can say anything of these, so they get eight
// bits or more.
bool alone(const std::string& name) {
  return name.starts_with("pre-attention.0.0.") || name.starts_with("pre-attention.1.1.");
}

// The wanted one, or where its blocks do not fit the smallest that has as many bits and does.
Format format_for(const std::string& name, const TrainedTensor& tensor, Format wanted) {
  if (tensor.rows == 1 || tensor.cols == 4) return Format::kF32;  // vectors, and nodes with their indices
  if (alone(name) && bytes_of(wanted) < bytes_of(Format::kQ8_0)) wanted = Format::kQ8_0;
  for (const Format f : {wanted, Format::kQ4_0, Format::kQ5_0, Format::kQ8_0})
    if (tensor.cols % format_info(f).block_elements == 0 && bytes_of(f) >= bytes_of(wanted)) return f;
  return Format::kF16;
}

void put(GgufMetadata& metadata, const std::string& key, const std::string& value) {
  GgufValue v;
  v.type = GgufValue::Type::kString, v.value = value;
  metadata.values[key] = v;
}
void put(GgufMetadata& metadata, const std::string& key, int64_t value) {
  GgufValue v;
  v.type = GgufValue::Type::kU32, v.value = value;
  metadata.values[key] = v;
}

}  // namespace

void write_predictor(const TrainedPredictor& trained, Format format, const std::string& license, const fs::path& file) {
  EF_CHECK(format_info(format).quantize != nullptr, ConfigError, "predictor format {}: nothing writes it",
           format_info(format).name);
  std::vector<Stored> stored;
  for (const auto& [name, tensor] : trained.tensors) {
    Stored s{name, format_for(name, tensor, format), {tensor.rows, tensor.cols}, {}};
    const uint64_t row = row_bytes(s.format, tensor.cols);
    s.bytes.resize(uint64_t(tensor.rows) * row);
    for (int64_t r = 0; r < tensor.rows; ++r)
      format_info(s.format).quantize(&tensor.values[size_t(r * tensor.cols)], &s.bytes[uint64_t(r) * row], tensor.cols);
    stored.push_back(std::move(s));
  }
  GgufMetadata metadata;
  put(metadata, "general.architecture", kArchitecture);
  put(metadata, "general.type", "adapter");
  put(metadata, "general.description", "predicts which experts come next; expertflow run --predictor FILE");
  if (!license.empty()) put(metadata, "general.license", license);
  put(metadata, kPrefix + "version", kPredictorVersion);
  put(metadata, kPrefix + "fingerprint", trained.fingerprint);
  put(metadata, kPrefix + "layers", trained.layers);
  put(metadata, kPrefix + "hidden", trained.hidden);
  put(metadata, kPrefix + "experts", trained.experts);
  put(metadata, kPrefix + "top_k", trained.top_k);
  put(metadata, kPrefix + "best", trained.best);
  put(metadata, kPrefix + "checksum", checksum_of(stored));
  const auto writer = make_gguf_writer(file, metadata);
  for (const Stored& s : stored) writer->declare(s.name, s.format, s.shape);
  for (const Stored& s : stored) writer->write(s.bytes);
  writer->finish();
}

TrainedPredictor read_predictor(const fs::path& file) {
  TensorDirectory directory;
  const auto source = std::make_shared<FileSource>(file);
  const GgufHeader header = read_gguf_header(source, directory);
  const GgufMetadata& m = header.metadata;
  TrainedPredictor trained;
  trained.file = file.string();
  const std::string architecture = m.str_or("general.architecture", "none");
  EF_CHECK(architecture == kArchitecture, ModelError,
           "{}: expected a predictor (general.architecture \"{}\"), found \"{}\"", trained.file, kArchitecture,
           architecture);
  const int64_t version = m.integer(kPrefix + "version");
  EF_CHECK(version == kPredictorVersion, ModelError, "{}: predictor version: expected {}, found {}", trained.file,
           kPredictorVersion, version);
  const auto number = [&](const char* key) {
    const int64_t value = m.integer(kPrefix + key);
    EF_CHECK(value >= 1 && value <= 1 << 24, ModelError, "{}: {}{}: expected 1 to {}, found {}", trained.file, kPrefix,
             key, 1 << 24, value);
    return int(value);
  };
  trained.layers = number("layers"), trained.hidden = number("hidden");
  trained.experts = number("experts"), trained.top_k = number("top_k");
  trained.fingerprint = m.str(kPrefix + "fingerprint");
  trained.best = m.str(kPrefix + "best");
  std::vector<Stored> stored;
  for (const TensorInfo& tensor : directory.tensors()) {
    EF_CHECK(tensor.shape.size() <= 2, ModelError, "{}: tensor {}: expected a matrix, found shape {}", trained.file,
             tensor.name, tensor.shape_text());
    stored.push_back({tensor.name, tensor.format, {tensor.rows(), tensor.cols()}, directory.read(tensor)});
    TrainedTensor t{tensor.rows(), tensor.cols(), directory.read_f32(tensor)};
    const bool finite = std::all_of(t.values.begin(), t.values.end(), [](float v) { return std::isfinite(v); });
    EF_CHECK(finite, ModelError, "{}: tensor {}: expected finite numbers, found others", trained.file, tensor.name);
    trained.tensors[tensor.name] = std::move(t);
  }
  std::sort(stored.begin(), stored.end(), [](const Stored& a, const Stored& b) { return a.name < b.name; });
  const std::string expected = m.str(kPrefix + "checksum"), found = checksum_of(stored);
  EF_CHECK(found == expected, ModelError, "{}: the file is damaged: checksum of its tensors expected {}, found {}",
           trained.file, expected, found);
  return trained;
}

fs::path predictor_beside(fs::path model) {
  std::error_code ignored;
  return fs::is_directory(model, ignored) ? model / "predictor.gguf" : model.replace_extension(".predictor.gguf");
}

PredictorChoice choose_predictor(const std::string& spec, const ModelFiles& files) {
  for (const PredictorInfo& info : predictors())
    if (info.name == spec) {
      EF_CHECK(!info.trained, ConfigError,
               "predictor '{}': expected the file of a trained predictor as well (FILE:{}), found the name alone", spec,
               spec);
      return {spec, nullptr};
    }
  fs::path path = spec;
  std::string kind;
  const size_t colon = spec.rfind(':');
  if (colon != std::string::npos && !fs::exists(path)) path = spec.substr(0, colon), kind = spec.substr(colon + 1);
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) {
    std::string known;
    for (const PredictorInfo& info : predictors())
      if (!info.trained) known += (known.empty() ? "" : ", ") + std::string(info.name);
    fail<ConfigError>("predictor '{}': expected a file that train-predictor wrote, or one of {}; found neither", spec,
                      known);
  }
  PredictorChoice choice;
  choice.trained = std::make_unique<TrainedPredictor>(read_predictor(path));
  choice.trained->check_made_for(files.config, model_fingerprint(files));
  choice.name = kind.empty() ? choice.trained->best : kind;
  const auto all = predictors();
  const auto info = std::find_if(all.begin(), all.end(), [&](const PredictorInfo& i) { return i.name == choice.name; });
  EF_CHECK(info != all.end(), ConfigError, "predictor '{}': kind '{}' is unknown", spec, choice.name);
  EF_CHECK(!info->trained || info->name == "trained" || choice.trained->has(info->name), ConfigError,
           "predictor '{}': {} holds none", choice.name, choice.trained->file);
  return choice;
}

}  // namespace ef
