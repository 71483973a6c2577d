// What the server can be told beside the engine and the scheduler, named as llama-server names it.
#pragma once
#include <string>
#include <vector>

#include "apps/server/latency_report.h"
#include "expertflow/base/options.h"

namespace ef::server {

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 8080;
  std::string alias;
  std::vector<std::string> api_key;
  std::string api_key_file;
  std::string cors_origins;
  int http_threads = 2, reading_threads = 2;
  int max_queue = 512;
  int max_body_mib = 32;
  double timeout = 60, drain_timeout = 30, ping_interval = 30;
  std::string chat_template, chat_template_file, chat_template_kwargs, tokenizer_pre;
  int predict = -1;
  double sla_ttft = 1, sla_itl = 0.1;
  int cold = 32;
  std::string otlp_endpoint;
  double otlp_sample = 0.05;

  template <class Visitor>
  void for_each(Visitor&& visit) {
    visit(host, {"--host", "address to listen on; 0.0.0.0: every one of this machine"});
    visit(port, {"--port", "0: any that is free; the log says which"});
    visit(alias, {"-a,--alias,--served-model-name", "name of the model in answers; default: the file's"});
    visit(api_key, {"--api-key",
                    "key that clients must bring (Authorization: Bearer, or X-Api-Key; repeat for more; the variable: "
                    "one a line)"});
    visit(api_key_file, {"--api-key-file", "file with keys, one a line"});
    visit(cors_origins, {"--cors-origins,--allowed-origins",
                         "web pages from elsewhere that may call: origins separated by commas, or *; default: none"});
    visit(http_threads, {"--threads-http", "threads that serve connections, any number of them"});
    visit(reading_threads, {"--threads-reading", "threads that read long requests (JSON, chat template, tokens)"});
    visit(max_queue, {"--max-queue",
                      "requests that may wait for a slot, and long ones that may wait to be read; more are answered "
                      "with 503"});
    visit(max_body_mib, {"--max-body", "largest request in MiB"});
    visit(timeout, {"--timeout", "seconds for a request to arrive, and for a client to take what it is sent (-to)"});
    visit(drain_timeout, {"--drain-timeout", "seconds that answers under way have left after SIGTERM"});
    visit(ping_interval,
          {"--sse-ping-interval", "seconds without a token after which a stream gets a comment; 0: none"});
    visit(chat_template, {"--chat-template", "Jinja source instead of the model's template"});
    visit(chat_template_file, {"--chat-template-file", "file with the Jinja source"});
    visit(chat_template_kwargs,
          {"--chat-template-kwargs", "further template variables as a JSON object, {\"enable_thinking\": false}"});
    visit(tokenizer_pre, {"--tokenizer-pre", "use this pre-tokenizer instead of the GGUF's tokenizer.ggml.pre"});
    visit(sla_ttft, {"--sla-ttft", "service level: seconds to the first token that an answer may take"});
    visit(sla_itl, {"--sla-itl", "service level: seconds between its tokens, on average"});
    visit(cold, {"--cold", "the report keeps the first so many requests apart: those that may have met a cold tier"});
    visit(
        otlp_endpoint,
        {"--otlp-endpoint",
         "send traces to this collector, http://host:4318 (OTLP over HTTP); off: not even if OTEL_* variables say so"});
    visit(otlp_sample,
          {"--otlp-sample", "share of the requests that are traced; those that fail are, whatever this says"});
    visit(predict, {"-n,--predict,--n-predict", "tokens of an answer whose request does not say; -1: until the end"});
  }
  SlaOptions sla() const { return {sla_ttft, sla_itl, cold}; }
};

}  // namespace ef::server
