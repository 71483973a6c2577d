#include "expertflow/engine/fingerprint.h"

#include <cstring>

#include "expertflow/base/errors.h"
#include "expertflow/quant/formats.h"

namespace ef {

namespace {

// FNV-1a, 64 bits.
class Hash {
 public:
  void add(const void* data, size_t bytes) {
    const auto* at = static_cast<const unsigned char*>(data);
    for (size_t i = 0; i < bytes; ++i) state_ = (state_ ^ at[i]) * 0x100000001b3u;
  }
  void add(int64_t value) {
    for (int i = 0; i < 8; ++i) {
      const auto byte = static_cast<unsigned char>(uint64_t(value) >> (8 * i));
      add(&byte, 1);
    }
  }
  uint64_t value() const { return state_; }

 private:
  uint64_t state_ = 0xcbf29ce484222325u;
};

// As float32 where the format has arithmetic, so that files of different formats agree.
void add_first_row(const TensorDirectory& directory, const TensorInfo& tensor, Hash& hash) {
  const int64_t cols = tensor.cols();
  std::vector<std::byte> raw(row_bytes(tensor.format, cols));
  directory.read(tensor, 0, raw);
  const FormatInfo& format = format_info(tensor.format);
  if (!format.dequantize) {
    hash.add(raw.data(), raw.size());
    return;
  }
  std::vector<float> row(static_cast<size_t>(cols));
  format.dequantize(raw.data(), row.data(), cols);
  hash.add(row.data(), row.size() * sizeof(float));
}

}  // namespace

std::string model_fingerprint(const ModelFiles& files) {
  const Config& c = files.config;
  Hash hash;
  hash.add(c.arch.data(), c.arch.size());
  for (const int64_t value : {int64_t(c.layers.size()), int64_t(c.sparse_layers()), int64_t(c.hidden),
                              int64_t(c.router.experts), int64_t(c.router.top_k)})
    hash.add(value);
  for (const BoundTensor& bound : files.binding.tensors)
    if (bound.spec->role == Role::kRouter) add_first_row(files.checkpoint.directory, bound.tensor, hash);
  return fmt::format("{:016x}", hash.value());
}

}  // namespace ef
