// A server over the bundled model, on a port of its own.
#pragma once
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "apps/server/api.h"
#include "tests/engine/model_rig.h"
#include "tests/server/client.h"

namespace ef::testing {

inline std::string demo_model() { return std::string(EF_SOURCE_DIR) + "/models/demo/demo-Q5_K_M.gguf"; }

struct RigSetup {
  int parallel = 4;
  int64_t ctx_size = 2048;
  std::string budget = "auto", profile = "off";  ///< no test finds what another has left
  std::string warmup = "off";                    ///< counts are those of the requests
  server::ServerOptions server;
  SchedulerOptions scheduler;
  std::function<void(const Batch&)> before_step;
  std::function<void(EditableCheckpoint&)> edit;  ///< changes the model
  std::string max_kv_cache_memory;
  bool load = true;
  Log::Sink log;  ///< of warnings; empty: nobody hears of them
  double probe_seconds = 0.05;
  std::string prefetch = "auto";  ///< "off": how many copies there are is a fact, not a matter of speed
  std::shared_ptr<server::Tracer> tracer;
  RigSetup() { server.port = 0; }
};

class ServerRig {
 public:
  explicit ServerRig(RigSetup setup = {}) : setup_(std::move(setup)), api_(setup_.server, log_, setup_.tracer) {
    server::HttpOptions http;
    http.port = 0;
    http.max_body_bytes = uint64_t(setup_.server.max_body_mib) << 20;
    http.read_seconds = http.write_seconds = http.idle_seconds = setup_.server.timeout;
    http.probe_seconds = setup_.probe_seconds;
    http_ = std::make_unique<server::HttpServer>(
        http,
        [this](server::HttpRequest request, std::shared_ptr<server::HttpReply> reply) {
          api_.handle(std::move(request), reply);
        },
        [](int status, const std::string& message) {
          return server::error_json(server::ApiError(status, "invalid_request_error", message));
        },
        log_);
    if (setup_.load) load();
  }
  ~ServerRig() {
    if (before_end) before_end();
    model_.reset();
    api_.drop_model();
  }
  void load() {
    server::ModelSources sources;
    sources.model = demo_model();
    sources.engine.parallel = setup_.parallel;
    sources.engine.ctx_size = setup_.ctx_size;
    sources.engine.expert_memory = setup_.budget;
    sources.engine.threads = 2;
    sources.engine.expert_profile = setup_.profile;
    sources.engine.async_prefetch = setup_.prefetch;
    sources.engine.warmup = setup_.warmup;
    sources.engine.max_kv_cache_memory = setup_.max_kv_cache_memory;
    sources.scheduler = setup_.scheduler;
    sources.sampling.temperature = 0;
    sources.before_step = setup_.before_step;
    model_ = server::load_served_model(sources, setup_.server, log_,
                                       [this](std::unique_ptr<ModelFiles> files, const EngineOptions& options) {
                                         if (setup_.edit) files = edited();
                                         return std::make_unique<Engine>(std::move(files), options, log_);
                                       });
    api_.set_model(model_);
  }
  int port() const { return http_->port(); }
  server::HttpServer& http() { return *http_; }
  server::Api& api() { return api_; }
  EngineLoop& loop() { return *model_->loop; }
  server::ServedModel& model() { return *model_; }
  const Tokenizer& tokenizer() const { return *model_->tokenizer; }
  std::function<void()> before_end;  ///< opens what still holds the engine back

  HttpAnswer get(const std::string& path, const std::string& headers = "") { return Client(port()).get(path, headers); }
  HttpAnswer post(const std::string& path, const Json& body, const std::string& headers = "") {
    return Client(port()).post(path, body, headers);
  }

 private:
  std::unique_ptr<ModelFiles> edited() const {
    EditableCheckpoint checkpoint(demo_model());
    setup_.edit(checkpoint);
    return model_of(checkpoint.build());
  }

  RigSetup setup_;
  Log log_{setup_.log ? LogLevel::kWarning : LogLevel::kOff, setup_.log};
  server::Api api_;
  std::unique_ptr<server::HttpServer> http_;
  std::shared_ptr<server::ServedModel> model_;
};

/// Holds the engine at the beginning of each step until it is let go: how many steps there were is a fact then.
class StepGate {
 public:
  std::function<void(const Batch&)> hook() {
    return [this](const Batch& batch) {
      std::unique_lock lock(mutex_);
      ++arrived_;
      rows_ = batch.rows();
      change_.notify_all();
      change_.wait(lock, [&] { return open_ || permits_ > 0; });
      if (!open_) --permits_;
    };
  }
  void wait_arrived(int steps) {
    std::unique_lock lock(mutex_);
    change_.wait(lock, [&] { return arrived_ >= steps; });
  }
  void permit(int steps = 1) {
    const std::lock_guard lock(mutex_);
    permits_ += steps;
    change_.notify_all();
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    change_.notify_all();
  }
  int arrived() {
    const std::lock_guard lock(mutex_);
    return arrived_;
  }
  int64_t rows() {
    const std::lock_guard lock(mutex_);
    return rows_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable change_;
  int arrived_ = 0, permits_ = 0;
  int64_t rows_ = 0;
  bool open_ = false;
};

/// Waits for what another thread does. It is bounded, so that a failure is one.
inline bool eventually(const std::function<bool()>& holds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

/// The server that tests share which need nothing special.
inline ServerRig& shared_rig() {
  static ServerRig rig;
  return rig;
}

inline Json chat_body(const std::string& text, int64_t max_tokens = 24) {
  return {{"model", "demo"},
          {"messages", Json::array({{{"role", "user"}, {"content", text}}})},
          {"max_tokens", max_tokens},
          {"temperature", 0}};
}
inline Json completion_body(const Json& prompt, int64_t max_tokens = 24) {
  return {{"model", "demo"}, {"prompt", prompt}, {"max_tokens", max_tokens}, {"temperature", 0}};
}
inline const char* const kStory = "Once upon a time there was a little girl who lived near the forest.";

}  // namespace ef::testing
