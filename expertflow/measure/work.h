// What a model's arithmetic must at least read and do, from its headers alone: the numerators of every bound.
#pragma once
#include <cstdint>

#include "expertflow/engine/engine_options.h"
#include "expertflow/engine/model_files.h"

namespace ef {

/// Multiply-adds counted as two operations, by the arithmetic that the weights' format allows: block formats multiply
/// in 8-bit integers, 16-bit floats in pairs, the rest in float32.
struct Operations {
  double blocks = 0, half = 0, f32 = 0;
  double total() const { return blocks + half + f32; }
  Operations& operator+=(const Operations& other);
};
Operations operator*(double factor, const Operations& operations);

struct ModelWork {
  uint64_t resident_bytes = 0;  ///< weights that every step reads once: no routed experts, embedding or head
  uint64_t head_bytes = 0;      ///< read by steps that give logits; the embedding if tied
  uint64_t embedding_row = 0;   ///< bytes of one token's embedding
  uint64_t expert_bytes = 0;    ///< routed experts of one token, stored formats, all sparse layers
  Operations token;             ///< of one token's matrices, without head
  Operations head;              ///< of one row of logits
};
ModelWork work_of(const ModelFiles& files);

/// Keys and values read by the row at `position` (0-based; windows respected), bytes.
uint64_t kv_bytes_read(const Config& config, KvType type, int64_t position);
/// Attention's products for that row.
Operations attention_operations(const Config& config, int64_t position);

/// Bytes of the routed matrices, biases and scales of one expert, without the slot's padding.
uint64_t expert_bytes(const ExpertLayout& layout);

}  // namespace ef
