// Errors of CUDA and cuBLASLt as results of the port, with the thread's last sentence.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "runtime/gpu/port/gpu_port.h"

namespace geopipe::cuda {

// Keeps "<call>: <why>" as this thread's last error and returns the result.
GpResult Report(const char* call, GpResult result, const char* why);

// Turns what a call of CUDA returned into a result. Takes the error out of CUDA's own memory of it, so that later calls
// do not return it again; an error that ended the device stays there by itself.
GpResult Report(const char* call, cudaError_t error);

// The same for cuBLASLt, which says no more than "execution failed" of a device that is lost.
GpResult Report(const char* call, cublasStatus_t status);

// See GpRuntime.
const char* LastError();

}  // namespace geopipe::cuda
