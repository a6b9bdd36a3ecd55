// Opening of the port (runtime/gpu/port/gpu_port.h): finds the library, and says in one sentence why GPUs cannot be
// used and what to do about it.
#pragma once

#include <absl/status/statusor.h>

#include <string>

#include "runtime/gpu/port/gpu_port.h"

namespace geopipe {

// Path of libgeopipe_cuda.so beside the running program where it lies there; else its name alone, which the loader
// looks for on its path (LD_LIBRARY_PATH, then the system's folders).
std::string DefaultGpuLibrary();

// Opens the library, whose table stays for the life of the process; a library is opened once, however often it is
// asked for. Makes no context on a device. Any thread. Errors, each marked as the node's:
//   NotFound: there is no such library.
//   FailedPrecondition: a library of CUDA is missing, or too old; no driver, or one too old; the library is none of
//   this
//     program's version.
//   Unavailable: the driver sees no device.
//   Internal: the driver's own error.
absl::StatusOr<const GpPort*> OpenGpuPort(const std::string& library);

// "13.0", of a version as GpVersions has CUDA's.
std::string CudaVersionText(int32_t version);

// FailedPrecondition: the device is older than the kernels are compiled for.
absl::Status CheckGpuDevice(const GpDeviceProperties& properties);

// The error that a call of the port returned, with its sentence: "<doing>: <sentence>". ResourceExhausted: out of
// memory. Unimplemented: unsupported. Internal: all others, a lost device among them, which a new process may find
// well. REQUIRES: `result` is neither kGpOk nor kGpNotReady; the calling thread made the call, and none since.
absl::Status GpuError(const GpPort& port, GpResult result, std::string_view doing);

}  // namespace geopipe
