#include "expertflow/predict/host_router.h"

namespace ef {

namespace {

std::vector<float> fetch(Backend& backend, Stream& stream, const float* device, size_t n) {
  std::vector<float> host(device ? n : 0);
  if (device) backend.copy_to_host(host.data(), device, n * sizeof(float), stream);
  stream.synchronize();
  return host;
}

}  // namespace

std::vector<float> read_selection_bias(const Model& model, Backend& backend, LayerId layer) {
  const auto stream = backend.make_stream();
  return fetch(backend, *stream, model.weights.layers[size_t(layer)].selection_bias,
               size_t(model.config.router.experts));
}

HostRouter read_host_router(const Model& model, Backend& backend, LayerId layer) {
  const LayerWeights& w = model.weights.layers[size_t(layer)];
  const size_t experts = size_t(model.config.router.experts), hidden = size_t(model.config.hidden);
  const auto stream = backend.make_stream();
  HostRouter router;
  std::vector<std::byte> bytes(w.router.bytes());
  backend.copy_to_host(bytes.data(), w.router.data, bytes.size(), *stream);
  stream->synchronize();
  MatrixView host = w.router;
  host.data = bytes.data();
  router.weight.resize(experts * hidden);
  for (size_t e = 0; e < experts; ++e) dequantize_row(host, int64_t(e), &router.weight[e * hidden]);
  router.bias = fetch(backend, *stream, w.router_bias, experts);
  router.bias.resize(experts);
  router.selection_bias = fetch(backend, *stream, w.selection_bias, experts);
  router.norm = fetch(backend, *stream, w.ffn_norm, hidden);
  const std::vector<float> shift = fetch(backend, *stream, w.ffn_norm_bias, hidden);
  for (size_t e = 0; e < experts; ++e) {
    float* row = &router.weight[e * hidden];
    for (size_t i = 0; i < hidden && !shift.empty(); ++i) router.bias[e] += row[i] * shift[i];
    for (size_t i = 0; i < hidden; ++i) row[i] *= router.norm[i];
  }
  return router;
}

}  // namespace ef
