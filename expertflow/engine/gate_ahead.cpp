#include "expertflow/engine/gate_ahead.h"

#include <algorithm>

#include "expertflow/base/errors.h"
#include "expertflow/model/blocks.h"

namespace ef {

GateAhead::GateAhead(const Model& model, const State& state, Backend& backend, int distance, int64_t max_rows)
    : model_(model), state_(state), backend_(backend), distance_(distance), max_rows_(max_rows) {
  EF_DCHECK(distance >= 1 && max_rows >= 1);
  const RouterConfig& r = model.config.router;
  memory_ = backend.allocate(uint64_t(max_rows) * uint64_t(model.config.hidden + r.experts + 2 * r.top_k) * 4,
                             {Region::kDynamic, "forecasts"});
}

void GateAhead::forecast(LayerId layer, int64_t rows, Stream& stream, std::vector<ExpertKey>& likely) {
  likely.clear();
  const Config& c = model_.config;
  const int top_k = c.router.top_k;
  // Of the lower ranks a third is wrong (the demo widened): they cost the disk more than they save.
  const int likelier = (top_k + 1) / 2;
  EF_DCHECK(rows <= max_rows_);
  float* const normed = memory_.as<float>();
  float* const logits = normed + max_rows_ * c.hidden;
  float* const weights = logits + max_rows_ * c.router.experts;
  auto* const ids = reinterpret_cast<int32_t*>(weights + max_rows_ * top_k);
  ids_.resize(size_t(rows * top_k));
  for (LayerId next = layer + 1; next <= layer + distance_ && size_t(next) < c.layers.size(); ++next) {
    if (!c.layers[size_t(next)].sparse) continue;
    const LayerWeights& w = model_.weights.layers[size_t(next)];
    backend_.norm(stream, {c.norm, rows, c.hidden, c.norm_eps, w.ffn_norm, w.ffn_norm_bias, state_.x, normed});
    route_rows(c, w, backend_, stream, {rows, normed, logits, ids, weights});
    backend_.copy_to_host(ids_.data(), ids, ids_.size() * sizeof(int32_t), stream);
    stream.synchronize();
    const size_t begin = likely.size();
    for (int rank = 0; rank < likelier; ++rank)
      for (int64_t row = 0; row < rows; ++row) {
        const ExpertKey key{next, ids_[size_t(row * top_k + rank)]};
        if (std::find(likely.begin() + std::ptrdiff_t(begin), likely.end(), key) == likely.end()) likely.push_back(key);
      }
  }
}

}  // namespace ef
