#include "expertflow/measure/work.h"

#include <algorithm>

namespace ef {

namespace {

Operations matrix_operations(Format format, int64_t elements) {
  const double operations = 2.0 * double(elements);
  Operations out;
  const FormatInfo& info = format_info(format);
  if (info.block_elements > 1)
    out.blocks = operations;
  else if (info.block_bytes == 2)
    out.half = operations;
  else
    out.f32 = operations;
  return out;
}

int64_t reach(const LayerConfig& layer, int64_t position) {
  return layer.window > 0 ? std::min<int64_t>(layer.window, position + 1) : position + 1;
}

}  // namespace

Operations& Operations::operator+=(const Operations& other) {
  blocks += other.blocks, half += other.half, f32 += other.f32;
  return *this;
}

Operations operator*(double factor, const Operations& o) {
  return {factor * o.blocks, factor * o.half, factor * o.f32};
}

uint64_t expert_bytes(const ExpertLayout& layout) {
  uint64_t bytes = 0;
  for (const ExpertPart& part : layout.parts) bytes += part.bytes;
  return bytes;
}

ModelWork work_of(const ModelFiles& files) {
  const Config& config = files.config;
  ModelWork work;
  const TensorInfo *head = nullptr, *embedding = nullptr;
  for (const BoundTensor& bound : files.binding.tensors) {
    const TensorInfo& tensor = bound.tensor;
    if (bound.spec->role == Role::kEmbed) embedding = &tensor;
    if (bound.spec->role == Role::kHead) head = &tensor;
    if (bound.spec->role == Role::kEmbed || bound.spec->role == Role::kHead) continue;
    work.resident_bytes += tensor.bytes + (bound.scales.name.empty() ? 0 : bound.scales.bytes);
    if (tensor.shape.size() >= 2) work.token += matrix_operations(tensor.format, tensor.elements());
  }
  if (embedding) work.embedding_row = row_bytes(embedding->format, embedding->cols());
  if (!head) head = embedding;
  if (head) work.head_bytes = head->bytes, work.head = matrix_operations(head->format, head->elements());
  for (const LayerExperts& layer : files.store->layers()) {
    work.expert_bytes += uint64_t(config.router.top_k) * expert_bytes(layer.layout);
    for (const ExpertPart& part : layer.layout.parts)
      if (part.role == ExpertRole::kGate || part.role == ExpertRole::kUp || part.role == ExpertRole::kDown)
        work.token += double(config.router.top_k) * matrix_operations(part.format, part.rows * part.cols);
  }
  return work;
}

uint64_t kv_bytes_read(const Config& c, KvType type, int64_t position) {
  const int64_t width = c.latent ? c.latent->kv_lora + c.latent->rope : int64_t(c.kv_heads) * c.head_dim * 2;
  uint64_t bytes = 0;
  for (const LayerConfig& layer : c.layers) bytes += uint64_t(reach(layer, position) * width * kv_type_bytes(type));
  return bytes;
}

Operations attention_operations(const Config& c, int64_t position) {
  const int64_t key = c.latent ? c.latent->kv_lora + c.latent->rope : c.head_dim;
  const int64_t value = c.latent ? c.latent->kv_lora : c.head_dim;
  Operations out;
  for (const LayerConfig& layer : c.layers) out.f32 += 2.0 * double(c.heads * (key + value) * reach(layer, position));
  return out;
}

}  // namespace ef
