#include "expertflow/transfer/expert_reader.h"

namespace ef {

CacheGeometry geometry_of(const ExpertStore& store, int layers) {
  CacheGeometry geometry;
  geometry.layers.resize(size_t(layers));
  for (LayerId layer = 0; layer < layers; ++layer)
    if (store.has_layer(layer)) geometry.layers[size_t(layer)] = {store.experts(layer), store.slot_bytes(layer)};
  return geometry;
}

}  // namespace ef
