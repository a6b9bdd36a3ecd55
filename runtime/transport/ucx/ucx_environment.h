// Opens UCX the way this product uses it, and sends its log to ours.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <ucp/api/ucp.h>

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/base/network_limits.h"

namespace geopipe {

struct UcpContextDeleter {
  void operator()(ucp_context_h context) const { ucp_cleanup(context); }
};
using UcpContext = std::unique_ptr<ucp_context, UcpContextDeleter>;

struct UcpWorkerDeleter {
  void operator()(ucp_worker_h worker) const { ucp_worker_destroy(worker); }
};
using UcpWorker = std::unique_ptr<ucp_worker, UcpWorkerDeleter>;

struct UcpContextOptions {
  int64_t frame_bytes = 0;           // the largest frame: on TCP it travels as one segment
  int64_t send_buffer_bytes = 0;     // of a TCP socket; 0: the kernel's
  int64_t receive_buffer_bytes = 0;  // as above
  PortRange ports = {};              // UCX 1.13 listens on one more port per device, for data
};

// A context for active messages and wake-up. UCX's own environment (UCX_TLS, UCX_NET_DEVICES and what else the user
// sets) holds; rendezvous is off in any case. From here on UCX's log lines, of the whole process, go to
// runtime/base/log.h. Unavailable names UCX_TLS and UCX_NET_DEVICES.
absl::StatusOr<UcpContext> OpenUcpContext(const UcpContextOptions& options);

// A worker whose event descriptor can be waited on.
absl::StatusOr<UcpWorker> OpenUcpWorker(ucp_context_h context);

// "operation: UCX's word for the status".
absl::Status UcxError(const std::string& operation, ucs_status_t status);

}  // namespace geopipe
