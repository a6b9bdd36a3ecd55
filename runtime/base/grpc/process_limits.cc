#include "runtime/base/grpc/process_limits.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <new>
#include <string_view>
#include <system_error>

#include "runtime/base/output.h"

namespace geopipe {
namespace {

constexpr rlim_t kMinDescriptors = 16;
constexpr rlim_t kGoodDescriptors = 1024;

const char* program_name = "";

// Runs where an exception has met nobody: nothing is unwound, and other threads run on.
[[noreturn]] void EndOrAbort() {
  std::string_view wanting;
  if (const std::exception_ptr thrown = std::current_exception()) {
    try {
      std::rethrow_exception(thrown);
    } catch (const std::bad_alloc&) {
      wanting = "no memory is left for this process; give it more (ulimit -v, the container's limit)";
    } catch (const std::system_error& error) {
      if (error.code() == std::errc::resource_unavailable_try_again) {
        wanting = "the system gives this process no further thread; raise its limits (ulimit -u, ulimit -v)";
      }
    } catch (const std::exception&) {
      wanting = "";  // a fault of ours
    }
  }
  if (wanting.empty()) {
    std::abort();
  }
  PrintErr("{}: {}\n", program_name, wanting);
  _exit(1);
}

}  // namespace

absl::Status EnoughDescriptors() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return absl::OkStatus();
  }
  if (limit.rlim_cur < kGoodDescriptors && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = std::min(kGoodDescriptors, limit.rlim_max);
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  return limit.rlim_cur >= kMinDescriptors
             ? absl::OkStatus()
             : absl::ResourceExhaustedError(
                   fmt::format("this process may have {} files and connections open, and needs {}; raise their number "
                               "(ulimit -n {})",
                               limit.rlim_cur, kMinDescriptors, kGoodDescriptors));
}

void EndWhereResourcesEnd(const char* program) {
  program_name = program;
  std::set_terminate(&EndOrAbort);
}

}  // namespace geopipe
