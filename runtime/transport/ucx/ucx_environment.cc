#include "runtime/transport/ucx/ucx_environment.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <ucs/debug/log_def.h>

#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "optimizer/base/status_macros.h"
#include "optimizer/base/trouble.h"
#include "runtime/base/log.h"
#include "runtime/base/unique_fd.h"

namespace geopipe {
namespace {

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string DescribeEnvironment() {
  const auto show = [](const char* name) {
    const std::string value = Environment(name);
    return value.empty() ? fmt::format("{} not set", name) : fmt::format("{}={}", name, value);
  };
  return fmt::format("{}, {}", show("UCX_TLS"), show("UCX_NET_DEVICES"));
}

// Logs UCX's line. UCX itself would write to stdout, where tables and JSON go, and as an error where a connection
// broke, which is normal here.
ucs_log_func_rc_t LogLine(const char* /*file*/, unsigned /*line*/, const char* /*function*/, ucs_log_level_t level,
                          const ucs_log_component_config_t* /*component*/, const char* format, va_list arguments) {
  std::array<char, 1024> text{};
  std::vsnprintf(text.data(), text.size(), format, arguments);
  if (level == UCS_LOG_LEVEL_FATAL) {
    LogError("UCX: {}", text.data());
  } else if (level <= UCS_LOG_LEVEL_WARN) {
    LogInfo("UCX: {}", text.data());
  } else {
    LogDebug("UCX: {}", text.data());
  }
  return UCS_LOG_FUNC_RC_STOP;
}

void RouteLog() {
  static std::once_flag once;
  std::call_once(once, [] { ucs_log_push_handler(&LogLine); });
}

struct ConfigDeleter {
  void operator()(ucp_config_t* config) const { ucp_config_release(config); }
};

absl::Status Configure(ucp_config_t* config, const UcpContextOptions& options) {
  struct Setting {
    const char* key;
    const char* variable;  // where the user's own choice would be; null: not to be chosen
    std::string value;
  };
  const std::string segment = fmt::format("{}", options.frame_bytes);
  const auto buffer = [](int64_t bytes) { return bytes > 0 ? fmt::format("{}", bytes) : std::string("auto"); };
  const std::vector<Setting> settings{
      // Never rendezvous: its handshake costs further round trips.
      {"RNDV_THRESH", nullptr, "inf"},
      // A frame in one segment is not assembled from pieces on arrival, which would copy it once more.
      {"TX_SEG_SIZE", "UCX_TCP_TX_SEG_SIZE", segment},
      {"RX_SEG_SIZE", "UCX_TCP_RX_SEG_SIZE", segment},
      // Connecting must not hold up the progress thread: on a path that is cut it would, for minutes.
      {"CONN_NB", "UCX_TCP_CONN_NB", "y"},
      {"SNDBUF", "UCX_TCP_SNDBUF", buffer(options.send_buffer_bytes)},
      {"RCVBUF", "UCX_TCP_RCVBUF", buffer(options.receive_buffer_bytes)},
      {"PORT_RANGE", "UCX_TCP_PORT_RANGE",
       options.ports.count() == 0 ? "0" : fmt::format("{}-{}", options.ports.first, options.ports.last)},
  };
  for (const Setting& setting : settings) {
    if (setting.variable != nullptr && !Environment(setting.variable).empty()) {
      continue;
    }
    const ucs_status_t status = ucp_config_modify(config, setting.key, setting.value.c_str());
    if (status != UCS_OK) {
      return UcxError(fmt::format("setting {}={}", setting.key, setting.value), status);
    }
  }
  return absl::OkStatus();
}

// More than a context has open while it looks for devices; with fewer than the least UCX ends the process.
constexpr int64_t kDescriptorsOfContext = 64;
constexpr int64_t kMinDescriptors = 8;

// Descriptors that this process may still open. Those it has are the lowest, but for gaps.
int64_t FreeDescriptors() {
  rlimit limit{};
  const UniqueFd next(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return std::numeric_limits<int64_t>::max();
  }
  return next.valid() ? static_cast<int64_t>(limit.rlim_cur) - next.get() : 0;
}

absl::Status TooFewDescriptors(int64_t left) {
  return OfNode(absl::ResourceExhaustedError(fmt::format(
      "UCX opens no device: this process may open {} more files only; raise their number (ulimit -n 1024)", left)));
}

// UCX says the same of a device that is not there and of a process that may open no more files.
absl::Status OpensNoDevice(ucs_status_t status) {
  if (const int64_t left = FreeDescriptors(); left < kDescriptorsOfContext) {
    return TooFewDescriptors(left);
  }
  return OfNode(UcxError(
      fmt::format("UCX opens no device ({}); check them against `ucx_info -d`", DescribeEnvironment()), status));
}

}  // namespace

absl::Status UcxError(const std::string& operation, ucs_status_t status) {
  return absl::UnavailableError(fmt::format("{}: {}", operation, ucs_status_string(status)));
}

absl::StatusOr<UcpContext> OpenUcpContext(const UcpContextOptions& options) {
  if (const int64_t left = FreeDescriptors(); left < kMinDescriptors) {
    return TooFewDescriptors(left);
  }
  RouteLog();
  ucp_config_t* read = nullptr;
  ucs_status_t status = ucp_config_read(nullptr, nullptr, &read);
  if (status != UCS_OK) {
    return UcxError("reading UCX's configuration from the environment", status);
  }
  const std::unique_ptr<ucp_config_t, ConfigDeleter> config(read);
  GP_RETURN_IF_ERROR(Configure(config.get(), options));
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.name = "geopipe";
  ucp_context_h context = nullptr;
  status = ucp_init(&params, config.get(), &context);
  if (status != UCS_OK) {
    return OpensNoDevice(status);
  }
  return UcpContext(context);
}

absl::StatusOr<UcpWorker> OpenUcpWorker(ucp_context_h context) {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  ucp_worker_h worker = nullptr;
  const ucs_status_t status = ucp_worker_create(context, &params, &worker);
  if (status != UCS_OK) {
    return OpensNoDevice(status);
  }
  return UcpWorker(worker);
}

}  // namespace geopipe
