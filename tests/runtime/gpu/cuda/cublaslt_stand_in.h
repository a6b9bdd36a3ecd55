// A stand-in for the part of cuBLASLt that the port calls: it does what the headers say of each function, on host
// memory, with cuda_stand_in.h for the CUDA runtime. It proves that the port asks for the right products; which
// algorithm the real library takes, and its bits, it cannot tell.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace geopipe {

struct CublasLtStandIn {
  // Answers to the next calls.
  cublasStatus_t create_status = CUBLAS_STATUS_SUCCESS;
  cublasStatus_t heuristic_status = CUBLAS_STATUS_SUCCESS;
  cublasStatus_t found_state = CUBLAS_STATUS_SUCCESS;
  cublasStatus_t matmul_status = CUBLAS_STATUS_SUCCESS;
  int found = 1;
  size_t workspace_bytes = 512;

  // Answers: what it was asked for last.
  int handles = 0;  // made in all
  int objects = 0;  // descriptors, layouts and preferences that live
  cublasComputeType_t compute_type = CUBLAS_COMPUTE_16F;
  uint32_t reductions = 0;
  uint64_t workspace_limit = 0;
  uint32_t alignment_a = 0;
  uint32_t alignment_b = 0;
  uint32_t alignment_c = 0;
  uint32_t alignment_d = 0;
  uint64_t row_alignment = 0;  // of the bias at the heuristic: the greatest power of two
  int32_t multiprocessors = -1;
  cudaStream_t stream = nullptr;
};

CublasLtStandIn& TheCublasLt();

}  // namespace geopipe
