// The server's endpoints over a model that may still be loading.
#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "apps/server/http_server.h"
#include "apps/server/reading_pool.h"
#include "apps/server/served_model.h"
#include "apps/server/server_options.h"
#include "apps/server/tracing/request_trace.h"

namespace ef::server {

struct OpenAiRequest;

constexpr const char* kVersion = "0.1.0";

class Api {
 public:
  /// ConfigError where a key file cannot be read. tracer: null: one that sends nothing.
  Api(const ServerOptions& options, const Log& log, std::shared_ptr<Tracer> tracer = nullptr);

  /// Requests are answered with 503 before this.
  void set_model(std::shared_ptr<ServedModel> model);
  /// From now on new requests are answered with 503, and so are those that are still being read; the others go on.
  void begin_shutdown() {
    draining_ = true;
    reading_.stop_all();
  }
  /// Gives the model up: what is under way fails.
  void drop_model();
  /// Sends the traces that wait, within so long; after drop_model().
  void end_traces(Duration most) { tracer_->shutdown(most); }

  void handle(HttpRequest request, const std::shared_ptr<HttpReply>& reply);
  ReadingPool& reading() { return reading_; }

 private:
  struct Route;
  static const std::vector<Route>& routes();
  struct Call {
    HttpRequest request;
    std::shared_ptr<HttpReply> reply;
    std::shared_ptr<ServedModel> model;  ///< null where a route needs none
    HttpHeaders headers;
    std::shared_ptr<RequestTrace> trace;  ///< null where a route is not traced
    StopCheck stop{};                     ///< looked at while the body is read
    void json(const Json& body, int status = 200) const {
      reply->send(status, "application/json", dump(body), headers);
    }
  };
  void check_key(const HttpRequest& request) const;
  void check_ready(const ServedModel* model) const;
  HttpHeaders cors(const HttpRequest& request) const;
  const Route& route_of(Call& call) const;
  void guarded(const Call& call, const std::function<void()>& work) const;

  void answer(const Call& call, OpenAiRequest request);

  void health(const Call& call);
  static Json model_json(const ServedModel& model);
  void models(const Call& call);
  void model(const Call& call);
  void chat(const Call& call);
  void completions(const Call& call);
  void embeddings(const Call& call);
  void tokenize(const Call& call);
  void detokenize(const Call& call);
  void apply_template(const Call& call);
  void props(const Call& call);
  void slots(const Call& call);
  void metrics(const Call& call);
  void version(const Call& call);
  void page(const Call& call);
  void dashboard(const Call& call);
  void expert_health(const Call& call);
  void report(const Call& call);

  ServerOptions options_;
  const Log& log_;
  std::shared_ptr<Tracer> tracer_;
  std::vector<std::string> keys_;
  std::vector<std::string> origins_;
  std::shared_ptr<ServedModel> model_;  ///< atomically
  std::atomic<bool> draining_{false};
  ReadingPool reading_;  ///< last: its threads use all above
};

}  // namespace ef::server
