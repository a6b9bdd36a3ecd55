#include "runtime/gpu/open_port.h"

#include <absl/status/status.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <string_view>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/base/trouble.h"

namespace geopipe {
namespace {

constexpr std::string_view kLibrary = "libgeopipe_cuda.so";
// The oldest versions with all that the library calls; as GpVersions has them.
constexpr int32_t kMinRuntime = 12040;
constexpr int32_t kMinArchitecture = 80;  // of the oldest kernels compiled

std::string LoaderError() {
  const char* error = dlerror();  // NOLINT(concurrency-mt-unsafe): glibc's is of the thread
  return error == nullptr ? "the loader gives no reason" : error;
}

// The error of dlopen, told apart by its text, since the loader has no codes: "<file>: cannot open shared object file:
// No such file or directory" names the library itself, or one that it needs.
absl::Status CannotLoad(const std::string& library, const std::string& error) {
  constexpr std::string_view kMissing = ": cannot open shared object file: No such file or directory";
  if (!error.ends_with(kMissing)) {
    return absl::FailedPreconditionError(
        fmt::format("GPUs cannot be used: {} does not load ({}); install the {} of this program's build", library,
                    error, kLibrary));
  }
  const std::string missing = error.substr(0, error.size() - kMissing.size());
  if (missing == library) {
    return absl::NotFoundError(
        fmt::format("GPUs cannot be used: {} is neither beside the program nor on the library path; install it, or add "
                    "its folder to LD_LIBRARY_PATH",
                    library));
  }
  return absl::FailedPreconditionError(
      fmt::format("GPUs cannot be used: {} needs {}, which is not on the library path; install CUDA's libraries (CUDA "
                  "runtime and cuBLAS, {} or newer), or add their folder to LD_LIBRARY_PATH",
                  library, missing, CudaVersionText(kMinRuntime)));
}

absl::Status CheckTable(const std::string& library, const GpPort& port) {
  if (port.version != kGpPortVersion || port.bytes != sizeof(GpPort)) {
    return absl::FailedPreconditionError(
        fmt::format("GPUs cannot be used: {} has a port of version {} with {} bytes, this program one of version {} "
                    "with {}; install the library of this program's build",
                    library, port.version, port.bytes, static_cast<int>(kGpPortVersion), sizeof(GpPort)));
  }
  return absl::OkStatus();
}

absl::Status CheckVersions(const GpPort& port) {
  GpVersions versions = {};
  if (const GpResult result = port.runtime.versions(&versions); result != kGpOk) {
    return GpuError(port, result, "asking for CUDA's versions");
  }
  if (versions.runtime < kMinRuntime) {
    return absl::FailedPreconditionError(
        fmt::format("GPUs cannot be used: the CUDA runtime is {}, and {} or newer is needed; install a newer one",
                    CudaVersionText(versions.runtime), CudaVersionText(kMinRuntime)));
  }
  if (versions.driver == 0) {
    return absl::FailedPreconditionError(
        "GPUs cannot be used: no NVIDIA driver is installed; install one, or run the job with backend cpu");
  }
  // A driver runs every minor version of its major one.
  const int32_t min_driver = versions.runtime / 1000 * 1000;
  if (versions.driver < min_driver) {
    return absl::FailedPreconditionError(
        fmt::format("GPUs cannot be used: the NVIDIA driver runs CUDA up to {}, and CUDA runtime {} needs {} or newer; "
                    "install a newer driver",
                    CudaVersionText(versions.driver), CudaVersionText(versions.runtime), CudaVersionText(min_driver)));
  }
  return absl::OkStatus();
}

absl::Status CheckDevices(const GpPort& port) {
  int32_t devices = 0;
  if (const GpResult result = port.runtime.device_count(&devices); result != kGpOk) {
    return GpuError(port, result, "counting GPUs");
  }
  if (devices == 0) {
    return absl::UnavailableError(
        "GPUs cannot be used: the NVIDIA driver sees none; check nvidia-smi and CUDA_VISIBLE_DEVICES");
  }
  return absl::OkStatus();
}

absl::StatusOr<const GpPort*> OpenAndCheck(const std::string& library) {
  // Never closed: streams' threads of the driver may be in it until the process ends.
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return CannotLoad(library, LoaderError());
  }
  const auto* port = static_cast<const GpPort*>(dlsym(handle, GP_PORT_SYMBOL));
  if (port == nullptr) {
    return absl::FailedPreconditionError(
        fmt::format("GPUs cannot be used: {} has no {}; it is not {}", library, GP_PORT_SYMBOL, kLibrary));
  }
  GP_RETURN_IF_ERROR(CheckTable(library, *port));
  GP_RETURN_IF_ERROR(CheckVersions(*port));
  GP_RETURN_IF_ERROR(CheckDevices(*port));
  return port;
}

}  // namespace

std::string CudaVersionText(int32_t version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

std::string DefaultGpuLibrary() {
  std::array<char, 4096> program = {};
  const ssize_t length = readlink("/proc/self/exe", program.data(), program.size());
  if (length > 0 && static_cast<size_t>(length) < program.size()) {
    const std::string_view path(program.data(), static_cast<size_t>(length));
    std::string beside = fmt::format("{}/{}", path.substr(0, path.rfind('/')), kLibrary);
    if (access(beside.c_str(), F_OK) == 0) {
      return beside;
    }
  }
  return std::string(kLibrary);
}

absl::StatusOr<const GpPort*> OpenGpuPort(const std::string& library) {
  absl::StatusOr<const GpPort*> port = OpenAndCheck(library);
  return port.ok() ? std::move(port) : OfNode(port.status());
}

absl::Status CheckGpuDevice(const GpDeviceProperties& properties) {
  if (properties.architecture < kMinArchitecture) {
    return absl::FailedPreconditionError(
        fmt::format("{} ({}) has compute capability {}.{}, and {}.{} or newer is needed; run the job on another device",
                    properties.name, properties.uuid, properties.architecture / 10, properties.architecture % 10,
                    kMinArchitecture / 10, kMinArchitecture % 10));
  }
  return absl::OkStatus();
}

absl::Status GpuError(const GpPort& port, GpResult result, std::string_view doing) {
  GP_CHECK(result != kGpOk && result != kGpNotReady, "{} is no error", result);
  const std::string message = fmt::format("{}: {}", doing, port.runtime.last_error());
  switch (result) {
    case kGpOutOfMemory:
      return OfNode(absl::ResourceExhaustedError(message));
    case kGpUnsupported:
      return absl::UnimplementedError(message);
    default:
      return absl::InternalError(message);
  }
}

}  // namespace geopipe
