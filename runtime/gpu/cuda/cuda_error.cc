#include "runtime/gpu/cuda/cuda_error.h"

#include <array>
#include <cstdio>

namespace geopipe::cuda {
namespace {

thread_local std::array<char, 512> last_error = {};

GpResult ResultOf(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return kGpOk;
    case cudaErrorNotReady:
      return kGpNotReady;
    case cudaErrorMemoryAllocation:
    case cudaErrorMemoryValueTooLarge:
      return kGpOutOfMemory;
    // Errors after which, by the documentation, every call fails until the process ends; and those of a device that
    // failed or left the bus.
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorAssert:
    case cudaErrorContained:
    case cudaErrorContextIsDestroyed:
    case cudaErrorExternalDevice:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorMpsClientTerminated:
    case cudaErrorUnknown:
      return kGpDeviceLost;
    case cudaErrorInsufficientDriver:
    case cudaErrorStubLibrary:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorNotSupported:
      return kGpUnsupported;
    case cudaErrorInvalidValue:
    case cudaErrorInvalidDevice:
    case cudaErrorInvalidResourceHandle:
    case cudaErrorHostMemoryAlreadyRegistered:
    case cudaErrorHostMemoryNotRegistered:
      return kGpInvalid;
    default:
      return kGpInternal;
  }
}

GpResult ResultOf(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return kGpOk;
    case CUBLAS_STATUS_ALLOC_FAILED:
      return kGpOutOfMemory;
    case CUBLAS_STATUS_NOT_SUPPORTED:
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return kGpUnsupported;
    case CUBLAS_STATUS_INVALID_VALUE:
      return kGpInvalid;
    default:
      return kGpInternal;
  }
}

}  // namespace

GpResult Report(const char* call, GpResult result, const char* why) {
  std::snprintf(last_error.data(), last_error.size(), "%s: %s", call, why);
  return result;
}

GpResult Report(const char* call, cudaError_t error) {
  const GpResult result = ResultOf(error);
  if (result == kGpOk) {
    return result;
  }
  cudaGetLastError();
  if (result != kGpNotReady) {
    std::snprintf(last_error.data(), last_error.size(), "%s: %s (%s)", call, cudaGetErrorString(error),
                  cudaGetErrorName(error));
  }
  return result;
}

GpResult Report(const char* call, cublasStatus_t status) {
  if (status == CUBLAS_STATUS_SUCCESS) {
    return kGpOk;
  }
  if (const cudaError_t error = cudaPeekAtLastError(); ResultOf(error) == kGpDeviceLost) {
    return Report(call, error);
  }
  return Report(call, ResultOf(status), cublasLtGetStatusName(status));
}

const char* LastError() { return last_error.data(); }

}  // namespace geopipe::cuda
