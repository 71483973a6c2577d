// What an engine can be told. Every member is a flag, an environment variable and a key of the config file (for_each).
#pragma once
#include <cstdint>
#include <string>

#include "expertflow/backend/backend.h"
#include "expertflow/base/options.h"
#include "expertflow/transfer/disk_reader.h"

namespace ef {

struct EngineOptions {
  std::string expert_memory = "auto";
  std::string eviction_policy = "next-use";
  std::string offload_device = "disk";
  bool load_in_4bit = false;
  std::string device = "auto", device_memory = "auto";
  int threads = 0;
  std::string pin_threads = "auto";
  std::string isa = "auto";
  std::string activations = "q8";
  bool batch_invariant = false;
  int drift_check = 256;
  std::string autotune = "on";
  std::string io = "auto", direct_io = "auto";
  int io_threads = 4, io_depth = 32;
  std::string io_limit = "none";
  std::string predictor = "auto", prediction_horizon = "auto", async_prefetch = "auto", layer_wise_config;
  int prediction_topk = 0;
  std::string bandwidth_calibration = "start";
  std::string warmup = "auto", expert_profile = "auto";
  int64_t ctx_size = -1;
  int parallel = 1;
  int batch_size = 2048, ubatch = 512;
  std::string cache_type_k = "f16", cache_type_v = "f16";
  std::string max_kv_cache_memory = "30%";
  int64_t max_logit_rows = 0;  ///< rows whose logits a step may ask for; 0: parallel. Not a flag: callers know
  bool all_resident = false;   ///< every expert in memory, no cache: the oracle of verify. Not a flag

  template <class Visitor>
  void for_each(Visitor&& visit) {
    visit(expert_memory,
          {"--expert-memory,--expert-cache-size",
           "fast tier for experts: bytes (6GiB), a share of all experts (40%), 'min', or 'auto' (what memory allows)"});
    visit(eviction_policy,
          {"--eviction-policy",
           "who leaves the fast tier first: next-use, lru, lfu, lfru, least-stale, lru-high-low, arc, s3-fifo"});
    visit(offload_device, {"--offload-device", "where experts outside the fast tier are; a CPU build knows 'disk'"});
    visit(load_in_4bit,
          {"--load-in-4bit", "refuse a model whose experts take more than 4-bit formats do (write one with quantize)"});
    visit(device, {"--device", "where the model runs: cpu, cuda, cuda:N, or auto (cpu so far)"});
    visit(device_memory,
          {"--device-memory",
           "memory of the device that may be planned with: bytes, a share of what is free, or 'auto' (what is free, "
           "less a margin)"});
    visit(threads, {"-t,--threads", "compute threads, 0: one a core that this process may use"});
    visit(pin_threads, {"--pin-threads", "bind compute threads to cores: auto (if there are enough), on, off"});
    visit(isa, {"--isa", "CPU instruction set: auto, reference, avx2, avx2-vnni, avx512, avx512-vnni, avx512-bf16"});
    visit(activations, {"--activations",
                        "what meets weights of 8 bits and fewer: q8 (8-bit integers, fast), f32 (slow, the reference's "
                        "arithmetic)"});
    visit(batch_invariant,
          {"--batch-invariant",
           "on CUDA: a token's arithmetic does not depend on its company, at the price of slower kernels (on a CPU it "
           "never does)"});
    visit(drift_check,
          {"--drift-check",
           "on CUDA: every so many steps compute one MoE layer by exact ops as well, and use these for it from then on "
           "if it is off by more than its format allows; 0: never"});
    visit(autotune, {"--autotune",
                     "on CUDA: measure which kernels are fastest for this model's shapes, once a machine: on, off"});
    visit(io, {"--io", "how experts are read: uring, pread, or auto (io_uring where there is one)"});
    visit(direct_io, {"--direct-io", "read experts around the page cache: on, off, or auto (where it is allowed)"});
    visit(io_threads, {"--io-threads", "experts that are read from the slow tier at once, a thread each"});
    visit(io_depth, {"--io-depth", "reads that are with the kernel at once (io_uring)"});
    visit(io_limit, {"--io-limit", "bytes a second that reading experts may take: 500MB, or none"});
    visit(predictor,
          {"--predictor",
           "what guesses the experts of layers to come: a name, a file that train-predictor wrote, or auto"});
    visit(prediction_horizon, {"--prediction-horizon,--read-ahead",
                               "layers ahead that are guessed: auto (as the link needs), or 0 (none) to N"});
    visit(prediction_topk,
          {"--prediction-topk", "guesses a layer at most; 0: as many as are likely, up to twice the router's choice"});
    visit(async_prefetch,
          {"--async-prefetch",
           "read guessed experts while a token is computed: on, off, or auto (where trials show a gain)"});
    visit(layer_wise_config,
          {"--layer-wise-config", "guesses by layer: a JSON file, or the JSON itself; see docs/guide.md"});
    visit(bandwidth_calibration,
          {"--bandwidth-calibration",
           "measure the slow tier by a short read of some experts: start (once, for the first prediction distance), "
           "periodic (every 5 minutes as well), or off"});
    visit(warmup,
          {"--warmup",
           "fill the fast tier before the first token: profile (experts that earlier runs used most), tokens (by "
           "computing a few), off, or auto (profile if there is one; serve without one: tokens)"});
    visit(expert_profile, {"--expert-profile",
                           "where use of experts is remembered: a file, off, or auto (in the user's cache folder)"});
    visit(ctx_size, {"-c,--ctx-size",
                     "tokens of context, all sequences together; 0: as many as the model was made for, -1: that, but "
                     "at most 4096"});
    visit(batch_size, {"-b,--batch-size", "tokens of one step at most; the smaller of this and --ubatch-size holds"});
    visit(ubatch, {"--ubatch-size", "tokens of one forward call at most, the prefill chunk (-ub)"});
    visit(cache_type_k, {"--cache-type-k", "numbers of the cached keys: f16, bf16, f32 (-ctk)"});
    visit(cache_type_v, {"--cache-type-v", "numbers of the cached values; must equal --cache-type-k (-ctv)"});
    visit(max_kv_cache_memory,
          {"--max-kv-cache-memory", "refuse a larger KV cache: bytes or a share of available memory"});
  }
};

/// The options as an engine takes them: checked, and those that follow from others set. ConfigError naming the flag,
/// what is expected and what was found.
EngineOptions settled(EngineOptions options);

/// ConfigError naming the flag and the known ones.
IoKind parse_io(const std::string& text);
DirectIo parse_direct_io(const std::string& text);
/// ConfigError naming the known ones.
KvType parse_kv_type(const std::string& text);
std::string kv_type_name(KvType type);

}  // namespace ef
