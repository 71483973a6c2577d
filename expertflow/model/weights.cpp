#include "expertflow/model/weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "expertflow/base/errors.h"
#include "expertflow/quant/scalars.h"
#include "expertflow/quant/tiles.h"
#include "expertflow/weights/expert_store.h"
#include "expertflow/weights/load.h"

namespace ef {

namespace {

constexpr uint64_t kChunk = 8 << 20;  // host memory that loading takes beside the weights

bool is_plain(Format f) { return f == Format::kF32 || f == Format::kF16 || f == Format::kBF16; }

/// One buffer a layer (and one for the model), filled from its start.
class Arena {
 public:
  Arena(Backend& backend, uint64_t bytes, LayerId layer)
      : buffer_(bytes ? backend.allocate(bytes, {Region::kStatic, "weights", layer}) : Buffer()) {}
  std::byte* take(uint64_t bytes) {
    std::byte* out = buffer_.data() + used_;
    used_ += aligned(bytes);
    EF_DCHECK(used_ <= buffer_.size());
    return out;
  }
  Buffer release() { return std::move(buffer_); }

 private:
  Buffer buffer_;
  uint64_t used_ = 0;
};

class Loader {
 public:
  Loader(const Config& config, const Binding& binding, const TensorDirectory& directory, Backend& backend,
         const std::function<void(uint64_t, uint64_t)>& progress)
      : config_(config),
        binding_(binding),
        directory_(directory),
        backend_(backend),
        progress_(progress),
        stream_(backend.make_stream()) {}

  Weights run() {
    out_.layers.resize(config_.layers.size());
    load_group(-1);
    for (size_t l = 0; l < config_.layers.size(); ++l) load_group(LayerId(l));
    if (!out_.head) out_.head = out_.embed;
    return std::move(out_);
  }

 private:
  void load_group(LayerId layer) {
    uint64_t bytes = 0;
    for (const BoundTensor& b : binding_.tensors)
      if (b.layer == layer) bytes += loaded_bytes(config_, b);
    Arena arena(backend_, bytes, layer);
    for (const BoundTensor& b : binding_.tensors) {
      if (b.layer != layer || b.spec->role == Role::kRopeFreqs) continue;
      if (b.spec->rows == Dim::kNone)
        set_vector(b, load_vector(b, arena));
      else if (b.spec->role == Role::kKvB)
        load_kv_b(b, arena);
      else
        set_matrix(b, load_matrix(b, arena));
      done_ += b.tensor.bytes;
      if (progress_) progress_(done_, total());
    }
    if (bytes == 0) return;
    out_.bytes += bytes;
    out_.owned.push_back(arena.release());
  }

  uint64_t total() const {
    uint64_t sum = 0;
    for (const BoundTensor& b : binding_.tensors) sum += b.tensor.bytes;
    return sum;
  }

  void to_device(std::byte* device, const void* host, uint64_t bytes) {
    backend_.copy_to_device(device, host, bytes, *stream_);
    stream_->synchronize();
  }

  void check_finite(const BoundTensor& b, std::span<const float> values) const {
    for (float v : values)
      EF_CHECK(std::isfinite(v), ModelError, "{}: tensor {}{}: expected finite numbers, found {}",
               directory_.file_name(b.tensor), b.tensor.name, b.layer < 0 ? "" : fmt::format(" (layer {})", b.layer),
               v);
  }

  const float* load_vector(const BoundTensor& b, Arena& arena) {
    std::vector<float> values = directory_.read_f32(b.tensor);
    check_finite(b, values);
    std::byte* device = arena.take(values.size() * sizeof(float));
    to_device(device, values.data(), values.size() * sizeof(float));
    return reinterpret_cast<const float*>(device);
  }

  std::vector<float> read_scales(const BoundTensor& b) const {
    std::vector<float> scales;
    if (b.scales.format == Format::kU8) {
      for (std::byte e : directory_.read(b.scales)) scales.push_back(e8m0_to_f32(uint8_t(e)));
    } else {
      scales = directory_.read_f32(b.scales);
    }
    check_block_scales(scales, directory_.file_name(b.scales), b.scales.name);
    return scales;
  }

  // The backend's wish, except where a matrix is met in other ways too: router logits stay as exact as they are, a
  // fused matrix is cut where tiles may not end, and an embedding is a product only if it is the head as well.
  MatrixLayout layout_of(const BoundTensor& b, Op op) const {
    const Role role = b.spec->role;
    if (role == Role::kRouter) return MatrixLayout::kRows;
    if (role == Role::kQkv && (dim_value(config_, Dim::kQ) % kTileRows || dim_value(config_, Dim::kKv) % kTileRows))
      return MatrixLayout::kRows;
    if (role == Role::kEmbed)
      op = std::any_of(binding_.tensors.begin(), binding_.tensors.end(),
                       [](const BoundTensor& t) { return t.spec->role == Role::kHead; })
               ? Op::kEmbed
               : Op::kLinear;
    return backend_.weight_layout(op, b.tensor.format);
  }

  MatrixView load_matrix(const BoundTensor& b, Arena& arena) {
    const TensorInfo& t = b.tensor;
    const Op op = b.spec->role == Role::kEmbed                             ? Op::kEmbed
                  : b.spec->role == Role::kKB || b.spec->role == Role::kVB ? Op::kHeadLinear
                                                                           : Op::kLinear;
    EF_CHECK(backend_.supports(op, t.format), ModelError, "{}: tensor {}: backend {} does not compute with {} here",
             directory_.file_name(t), t.name, backend_.name(), format_info(t.format).name);
    std::byte* device = arena.take(t.bytes);
    MatrixView view{t.format, t.rows(), t.cols(), device, nullptr, layout_of(b, op)};
    const bool tiles = view.layout == MatrixLayout::kTiles16;
    std::vector<std::byte> tiled;
    const bool check = b.spec->role == Role::kRouter;
    std::vector<float> row(check ? size_t(view.cols) : 0);
    const uint64_t row_size = row_bytes(t.format, view.cols);
    for_each_rows(directory_, t, kChunk, [&](int64_t first, int64_t rows, std::span<const std::byte> bytes) {
      for (int64_t r = 0; check && r < rows; ++r) {
        format_info(t.format).dequantize(bytes.data() + uint64_t(r) * row_size, row.data(), view.cols);
        check_finite(b, row);
      }
      if (tiles) {
        tiled.resize(bytes.size());
        tile_matrix({t.format, rows, view.cols, bytes.data()}, tiled.data());
        bytes = tiled;
      }
      to_device(device + uint64_t(first) * row_size, bytes.data(), bytes.size());
    });
    if (!b.scales.name.empty()) {
      std::vector<float> scales = read_scales(b);
      std::byte* at = arena.take(scales.size() * sizeof(float));
      to_device(at, scales.data(), scales.size() * sizeof(float));
      view.scales = reinterpret_cast<const float*>(at);
    }
    return view;
  }

  // kv_b_proj holds, head by head, nope rows for keys and v_dim rows for values. Keys are transposed, so that the query
  // can be taken into the latent space with the same op as every other product. One head at a time passes through host
  // memory.
  void load_kv_b(const BoundTensor& b, Arena& arena) {
    const TensorInfo& t = b.tensor;
    const LatentConfig& m = *config_.latent;
    const Format format = is_plain(t.format) ? t.format : Format::kF32;
    EF_CHECK(backend_.supports(Op::kHeadLinear, format), ModelError,
             "{}: tensor {}: backend {} does not compute with {} here", directory_.file_name(t), t.name,
             backend_.name(), format_info(format).name);
    const uint64_t unit = uint64_t(format_info(format).block_bytes), row = uint64_t(m.kv_lora) * unit;
    const int64_t head_rows = int64_t(m.nope) + m.v_dim;
    std::byte* k = arena.take(uint64_t(config_.heads) * uint64_t(m.nope) * row);
    std::byte* v = arena.take(uint64_t(config_.heads) * uint64_t(m.v_dim) * row);
    std::vector<float> scales = b.scales.name.empty() ? std::vector<float>{} : read_scales(b);
    std::vector<std::byte> head(uint64_t(head_rows) * row), keys(uint64_t(m.nope) * row);
    for (int h = 0; h < config_.heads; ++h) {
      read_rows(t, scales, h * head_rows, head_rows, format, head);
      for (int64_t i = 0; i < m.kv_lora; ++i)
        for (int64_t j = 0; j < m.nope; ++j)
          std::memcpy(keys.data() + uint64_t(i * m.nope + j) * unit,
                      head.data() + uint64_t(j) * row + uint64_t(i) * unit, unit);
      to_device(k + uint64_t(h) * keys.size(), keys.data(), keys.size());
      to_device(v + uint64_t(h) * uint64_t(m.v_dim) * row, head.data() + keys.size(), uint64_t(m.v_dim) * row);
    }
    LayerWeights& w = out_.layers[size_t(b.layer)];
    w.k_b = {format, int64_t(config_.heads) * m.kv_lora, m.nope, k, nullptr};
    w.v_b = {format, int64_t(config_.heads) * m.v_dim, m.kv_lora, v, nullptr};
  }

  void read_rows(const TensorInfo& t, const std::vector<float>& scales, int64_t first, int64_t rows, Format as,
                 std::span<std::byte> out) {
    const uint64_t row_size = row_bytes(t.format, t.cols());
    if (as == t.format) {
      directory_.read(t, uint64_t(first) * row_size, out);
      return;
    }
    std::vector<std::byte> bytes(uint64_t(rows) * row_size);
    directory_.read(t, uint64_t(first) * row_size, bytes);
    std::vector<float> values(static_cast<size_t>(t.cols()));
    for (int64_t r = 0; r < rows; ++r) {
      format_info(t.format).dequantize(bytes.data() + uint64_t(r) * row_size, values.data(), t.cols());
      const int64_t blocks = (t.cols() + 127) / 128;
      for (int64_t c = 0; !scales.empty() && c < t.cols(); ++c)
        values[size_t(c)] *= scales[size_t((first + r) / 128 * blocks + c / 128)];
      std::memcpy(out.data() + uint64_t(r) * values.size() * sizeof(float), values.data(),
                  values.size() * sizeof(float));
    }
  }

  void set_vector(const BoundTensor& b, const float* v);
  void set_matrix(const BoundTensor& b, const MatrixView& m);
  LayerWeights& layer(const BoundTensor& b) { return out_.layers[size_t(b.layer)]; }

  const Config& config_;
  const Binding& binding_;
  const TensorDirectory& directory_;
  Backend& backend_;
  const std::function<void(uint64_t, uint64_t)>& progress_;
  std::unique_ptr<Stream> stream_;
  Weights out_;
  uint64_t done_ = 0;
};

void Loader::set_vector(const BoundTensor& b, const float* v) {
  switch (b.spec->role) {
    case Role::kFinalNorm:
      out_.final_norm = v;
      break;
    case Role::kFinalNormBias:
      out_.final_norm_bias = v;
      break;
    case Role::kHeadBias:
      out_.head_bias = v;
      break;
    case Role::kAttnNorm:
      layer(b).attn_norm = v;
      break;
    case Role::kAttnNormBias:
      layer(b).attn_norm_bias = v;
      break;
    case Role::kQBias:
      layer(b).q_bias = v;
      break;
    case Role::kKBias:
      layer(b).k_bias = v;
      break;
    case Role::kVBias:
      layer(b).v_bias = v;
      break;
    case Role::kOBias:
      layer(b).o_bias = v;
      break;
    case Role::kQkvBias:
      layer(b).q_bias = v;
      layer(b).k_bias = v + dim_value(config_, Dim::kQ);
      layer(b).v_bias = layer(b).k_bias + dim_value(config_, Dim::kKv);
      break;
    case Role::kQNorm:
      layer(b).q_norm = v;
      break;
    case Role::kKNorm:
      layer(b).k_norm = v;
      break;
    case Role::kSinks:
      layer(b).sinks = v;
      break;
    case Role::kQANorm:
      layer(b).q_a_norm = v;
      break;
    case Role::kKvANorm:
      layer(b).kv_a_norm = v;
      break;
    case Role::kFfnNorm:
      layer(b).ffn_norm = v;
      break;
    case Role::kFfnNormBias:
      layer(b).ffn_norm_bias = v;
      break;
    case Role::kRouterBias:
      layer(b).router_bias = v;
      break;
    case Role::kSelectionBias:
      layer(b).selection_bias = v;
      break;
    default:
      EF_DCHECK(false);
  }
}

MatrixView rows_of(const MatrixView& m, int64_t first, int64_t rows) {
  MatrixView out = m;
  out.rows = rows;
  out.data += uint64_t(first) * row_bytes(m.format, m.cols);
  return out;
}

void Loader::set_matrix(const BoundTensor& b, const MatrixView& m) {
  const int64_t q = dim_value(config_, Dim::kQ), kv = dim_value(config_, Dim::kKv);
  switch (b.spec->role) {
    case Role::kEmbed:
      out_.embed = m;
      break;
    case Role::kHead:
      out_.head = m;
      break;
    case Role::kQ:
      layer(b).q = m;
      break;
    case Role::kK:
      layer(b).k = m;
      break;
    case Role::kV:
      layer(b).v = m;
      break;
    case Role::kO:
      layer(b).o = m;
      break;
    case Role::kQkv:
      // A row block of 128 scales would not follow the split; the format exists in Hugging Face files only, which are
      // not fused.
      EF_CHECK(!m.scales, ModelError, "{}: tensor {}: FP8 is not supported in fused q, k, v",
               directory_.file_name(b.tensor), b.tensor.name);
      layer(b).q = rows_of(m, 0, q);
      layer(b).k = rows_of(m, q, kv);
      layer(b).v = rows_of(m, q + kv, kv);
      break;
    case Role::kQA:
      layer(b).q_a = m;
      break;
    case Role::kQB:
      layer(b).q = m;
      break;
    case Role::kKvA:
      layer(b).kv_a = m;
      break;
    case Role::kKB:
      layer(b).k_b = m;
      break;
    case Role::kVB:
      layer(b).v_b = m;
      break;
    case Role::kRouter:
      layer(b).router = m;
      break;
    case Role::kDenseGate:
      layer(b).dense_gate = m;
      break;
    case Role::kDenseUp:
      layer(b).dense_up = m;
      break;
    case Role::kDenseDown:
      layer(b).dense_down = m;
      break;
    case Role::kSharedGate:
      layer(b).shared_gate = m;
      break;
    case Role::kSharedUp:
      layer(b).shared_up = m;
      break;
    case Role::kSharedDown:
      layer(b).shared_down = m;
      break;
    case Role::kSharedExpertGate:
      layer(b).shared_expert_gate = m;
      break;
    default:
      EF_DCHECK(false);
  }
}

}  // namespace

Weights load_weights(const Config& config, const Binding& binding, const TensorDirectory& directory, Backend& backend,
                     const std::function<void(uint64_t, uint64_t)>& progress) {
  return Loader(config, binding, directory, backend, progress).run();
}

}  // namespace ef
