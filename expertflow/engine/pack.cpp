#include "expertflow/engine/pack.h"

#include <algorithm>
#include <charconv>
#include <unordered_set>

#include "expertflow/backend/cpu/cpu_backend.h"
#include "expertflow/base/align.h"
#include "expertflow/base/errors.h"
#include "expertflow/base/output_file.h"
#include "expertflow/engine/engine_options.h"
#include "expertflow/engine/model_files.h"
#include "expertflow/quant/tiles.h"
#include "expertflow/weights/load.h"
#include "expertflow/weights/packed.h"
#include "expertflow/weights/writers.h"

namespace ef {
namespace {

namespace fs = std::filesystem;

// What the tokenizer, the chat template and the config are read from, and what people look for beside a model.
constexpr const char* kSideFiles[] = {"config.json",
                                      "generation_config.json",
                                      "tokenizer.json",
                                      "tokenizer.model",
                                      "tokenizer_config.json",
                                      "special_tokens_map.json",
                                      "added_tokens.json",
                                      "vocab.json",
                                      "merges.txt",
                                      "chat_template.jinja",
                                      "chat_template.json",
                                      "LICENSE"};

constexpr uint64_t kTensorAlignment = 64;

void check_target(const PackOptions& o, const Checkpoint& source) {
  EF_CHECK(!source.packed, ConfigError, "pack: {}: expected a checkpoint, found a packed file ({})", o.model.string(),
           source.packed->layouts());
  EF_CHECK(!o.out.empty(), ConfigError, "pack: --output: expected a file to write, found none");
  check_output_file(source, o.out, o.force);
}

std::function<MatrixLayout(Format)> chosen_layout(const std::string& name) {
  if (name == "rows") return [](Format) { return MatrixLayout::kRows; };
  if (name == "tiles16") return [](Format f) { return has_tiles(f) ? MatrixLayout::kTiles16 : MatrixLayout::kRows; };
  EF_CHECK(name == "auto", ConfigError, "pack: --layout: expected auto, rows or tiles16, found \"{}\"", name);
  const auto pool = std::make_shared<ThreadPool>(1);
  const EngineOptions usual;
  const std::shared_ptr<Backend> backend =
      make_cpu_backend(*pool, parse_isa(usual.isa), parse_activations(usual.activations));
  return [pool, backend](Format f) { return backend->weight_layout(Op::kExperts, f); };
}

// "blk.61.nextn...": tensors of layers behind the decoder's, which the model skips.
bool of_skipped_layer(const std::string& name, const Config& config) {
  for (const std::string_view prefix : {std::string_view("model.layers."), std::string_view("blk.")}) {
    if (!name.starts_with(prefix)) continue;
    size_t layer = 0;
    const auto [end, error] = std::from_chars(name.data() + prefix.size(), name.data() + name.size(), layer);
    return error == std::errc() && end != name.data() + name.size() && *end == '.' && layer >= config.layers.size();
  }
  return false;
}

class Packer {
 public:
  Packer(const PackOptions& options, const ModelFiles& files, const PackProgress& progress)
      : options_(options), files_(files), directory_(files.checkpoint.directory), progress_(progress) {}

  PackReport run() {
    plan_tensors();
    plan_experts();
    check_space();
    OutputFile out(options_.out);
    out_ = &out;
    at_ = kPackedBlock;
    write_side_files();
    write_tensors();
    write_experts();
    const std::string index = packed_index_text(index_);
    const uint64_t index_offset = round_up(at_, kTensorAlignment), size = index_offset + index.size();
    put(index_offset, std::as_bytes(std::span(index)));
    const std::string front = packed_front(size, index_offset, index);
    put(0, std::as_bytes(std::span(front)));
    out.complete(size);
    out.publish();
    report_.bytes_out = size;
    return report_;
  }

 private:
  void plan_tensors() {
    std::unordered_set<std::string> experts;
    for (const LayerExperts& layer : files_.store->layers())
      for (const auto& sources : layer.experts)
        for (const PartSource& source : sources) {
          experts.insert(source.tensor.name);
          if (!source.scales.name.empty()) experts.insert(source.scales.name);
        }
    for (const TensorInfo& t : directory_.tensors()) {
      report_.bytes_in += t.bytes;
      if (experts.count(t.name)) continue;
      if (of_skipped_layer(t.name, files_.config)) {
        report_.dropped.push_back(t.name);
        continue;
      }
      index_.tensors.push_back(t);
      total_ += t.bytes;
    }
  }

  void plan_experts() {
    for (const LayerExperts& source : files_.store->layers()) {
      LayerExperts layer;
      layer.layer = source.layer;
      layer.layout = source.layout;
      layer.layout.bytes = round_up(source.layout.bytes, kPackedBlock);
      layer.images.resize(source.count());
      for (const ExpertPart& part : layer.layout.parts) layer.image_layouts.push_back(part.layout);
      total_ += layer.layout.bytes * layer.images.size();
      report_.experts += int64_t(layer.images.size());
      index_.layers.push_back(std::move(layer));
    }
  }

  void check_space() const {
    std::error_code error;
    const fs::path folder = options_.out.has_parent_path() ? options_.out.parent_path() : fs::path(".");
    const fs::space_info space = fs::space(folder, error);
    EF_CHECK(error || total_ <= space.available, DeviceError, "{}: expected {} bytes of free space, found {}",
             options_.out.string(), total_, space.available);
  }

  void put(uint64_t offset, std::span<const std::byte> bytes) { out_->write(offset, bytes); }

  void wrote(uint64_t bytes) {
    done_ += bytes;
    if (progress_) progress_(std::min(done_, total_), total_);
  }

  void add_side_file(const std::string& name, const std::string& text) {
    const auto bytes = std::as_bytes(std::span(text));
    put(at_, bytes);
    index_.files[name] = {at_, text.size(), image_checksum(bytes)};
    at_ = round_up(at_ + text.size(), kTensorAlignment);
  }

  void write_side_files() {
    const Checkpoint& source = files_.checkpoint;
    index_.source_name = source.path.filename().string();
    if (source.kind == Checkpoint::Kind::kGguf) {
      index_.source_kind = "gguf";
      add_side_file("metadata.gguf", gguf_metadata_bytes(source.gguf.metadata));
      return;
    }
    index_.source_kind = "huggingface";
    const auto side = source.side_files();
    for (const char* name : kSideFiles)
      if (const auto text = side->read(name)) add_side_file(name, *text);
  }

  void write_tensors() {
    for (TensorInfo& t : index_.tensors) {
      const uint64_t begin = round_up(at_, kTensorAlignment);
      uint64_t done = 0;
      for_each_rows(directory_, t, options_.buffer_bytes, [&](int64_t, int64_t, std::span<const std::byte> bytes) {
        put(begin + done, bytes);
        done += bytes.size();
        wrote(bytes.size());
      });
      t.offset = begin;
      at_ = begin + t.bytes;
    }
  }

  void write_experts() {
    std::vector<std::byte> slot, staging;
    for (LayerExperts& layer : index_.layers) {
      slot.assign(layer.layout.bytes, std::byte{0});  // what lies between the parts is zero in every image
      for (size_t e = 0; e < layer.images.size(); ++e) {
        files_.store->fill({layer.layer, ExpertId(e)}, slot, staging);
        at_ = round_up(at_, kPackedBlock);
        put(at_, slot);
        layer.images[e] = {0, at_, layer.layout.bytes, image_checksum(slot)};
        at_ += layer.layout.bytes;
        wrote(layer.layout.bytes);
      }
    }
  }

  const PackOptions& options_;
  const ModelFiles& files_;
  const TensorDirectory& directory_;
  const PackProgress& progress_;
  OutputFile* out_ = nullptr;
  PackedIndex index_;
  PackReport report_;
  uint64_t at_ = 0, done_ = 0, total_ = 0;
};

}  // namespace

PackReport pack(const PackOptions& options, const PackProgress& progress) {
  check_target(options, open_checkpoint(options.model));
  const auto files = open_model(options.model);
  files->store->choose_layouts(chosen_layout(options.layout));
  PackReport report = Packer(options, *files, progress).run();
  open_model(options.out);  // the result must open as a model
  return report;
}

}  // namespace ef
