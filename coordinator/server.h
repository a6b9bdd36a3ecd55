// A whole coordinator in one object: store, core, its thread, the planner's thread and the gRPC server.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <functional>
#include <memory>
#include <string>

#include "coordinator/config.h"
#include "coordinator/planner.h"
#include "runtime/base/clock.h"

namespace geopipe {

struct ServerHooks {
  PlannerThread::Plan plan;        // PlanJob, unless a test has another
  std::function<void()> on_fatal;  // the core has stopped by itself; any thread, Stop() then says why
};

class CoordinatorServer {
 public:
  // Returns a server that is listening. Errors are one sentence: the store's, or the address's (in use, not this
  // machine's). The clock outlives the server.
  static absl::StatusOr<std::unique_ptr<CoordinatorServer>> Start(const CoordinatorConfig& config, const Clock& clock,
                                                                  ServerHooks hooks);
  // Ends every call with UNAVAILABLE, and all threads. Returns the error that stopped the core before, if any.
  // Idempotent.
  virtual absl::Status Stop() = 0;
  virtual ~CoordinatorServer() = default;

  // "127.0.0.1:40123".
  virtual std::string endpoint() const = 0;
  // Address that Prometheus may scrape, likewise; empty: none.
  virtual std::string metrics_address() const = 0;
};

}  // namespace geopipe
