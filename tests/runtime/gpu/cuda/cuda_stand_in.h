// A stand-in for the part of the CUDA runtime that the port calls. It does nothing: it remembers the calls, with the
// meaning of their arguments, and answers with the error that the test sets.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <vector>

namespace geopipe {

struct CudaStandIn {
  std::vector<std::string> calls = {};   // "cudaMemsetAsync(16, 255, 8, stream 3)"; of pointers, the address
  cudaError_t error = cudaSuccess;       // of every call
  cudaError_t remembered = cudaSuccess;  // what cudaGetLastError takes
  int device = 0;
  int devices = 2;
  float elapsed_ms = 0;
};

CudaStandIn& TheCuda();

}  // namespace geopipe
