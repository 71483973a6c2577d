// The server as a program: listens, loads, serves until a signal, drains.
#pragma once
#include <functional>
#include <memory>

#include "apps/server/served_model.h"

namespace ef::server {

using EngineMaker = std::function<std::unique_ptr<Engine>(std::unique_ptr<ModelFiles>, const EngineOptions&)>;

/// Exit code 0 after a graceful end (SIGTERM, SIGINT; a second signal ends at once). Throws what loading throws.
int serve(const ModelSources& sources, const ServerOptions& options, const Log& log, const EngineMaker& make_engine);

}  // namespace ef::server
