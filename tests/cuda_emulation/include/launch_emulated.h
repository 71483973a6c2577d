// The second half of device/launch.cuh.
#pragma once
#include <tuple>

#include <cuda_runtime.h>

#define EF_DYNAMIC_SHARED(type, name) type* name = static_cast<type*>(::ef::emulated::dynamic_shared())

namespace ef::emulated {

/// A stream, and where it was handed over: that names the kernel in messages.
struct StreamHere {
  cudaStream_t stream;
  Place where;
  StreamHere(cudaStream_t s, Place here = Place::current()) : stream(s), where(here) {}
};

}  // namespace ef::emulated

namespace ef::cuda {

inline void wait_for_earlier() { emulated::wait_for_earlier(); }
inline void let_later_start() {}

template <class... P, class... A>
cudaError_t launch(void (*kernel)(P...), const Shape& shape, emulated::StreamHere to, A&&... args) {
  emulated::Launch launch;
  launch.grid = shape.grid, launch.block = shape.block, launch.shared = shape.shared;
  launch.early = shape.start == Start::kEarly && starts_early() && !launch_watch();
  launch.together = shape.together;
  launch.where = to.where;
  launch.run = [kernel, copies = std::tuple<P...>(P(args)...)] { std::apply(kernel, copies); };
  return watched(reinterpret_cast<const void*>(kernel), to.stream,
                 [&] { return emulated::submit(std::move(launch), to.stream); });
}

}  // namespace ef::cuda
