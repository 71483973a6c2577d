#include "expertflow/transfer/expert_reader.h"

namespace ef {

uint64_t StoreReader::file_bytes(ExpertKey key) const { return store_.file_bytes(key); }

void StoreReader::fill(ExpertKey key, std::span<std::byte> slot, std::vector<std::byte>& staging) const {
  store_.fill(key, slot, staging);
}

CacheGeometry geometry_of(const ExpertStore& store, int layers) {
  CacheGeometry geometry;
  geometry.layers.resize(size_t(layers));
  for (LayerId layer = 0; layer < layers; ++layer)
    if (store.has_layer(layer)) geometry.layers[size_t(layer)] = {store.experts(layer), store.slot_bytes(layer)};
  return geometry;
}

}  // namespace ef
