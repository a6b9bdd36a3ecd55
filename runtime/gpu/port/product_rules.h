// The contract of GpProducts as code: every library of the port refuses the same shapes and operands, with the same
// words.
#pragma once

#include <cstdint>

#include "runtime/gpu/port/gpu_port.h"

namespace geopipe::gpu {

// A result, and why it is not kGpOk: a sentence without its end.
struct Verdict {
  GpResult result = kGpOk;
  const char* why = "";
};

inline int64_t ElementBytes(GpDType type) { return type == kGpBf16 ? 2 : 4; }

inline bool IsAlignment(int32_t bytes, GpDType type) {
  return bytes >= ElementBytes(type) && bytes <= 256 && (bytes & (bytes - 1)) == 0;
}

inline Verdict CheckTypes(const GpProductShape& shape) {
  const bool is_fp32 = shape.operand_type == kGpFp32 && shape.result_type == kGpFp32;
  const bool is_bf16 = shape.operand_type == kGpBf16 && (shape.result_type == kGpBf16 || shape.result_type == kGpFp32);
  if (!is_fp32 && !is_bf16) {
    return {kGpUnsupported, "products are of fp32 into fp32, or of bf16 into bf16 or fp32"};
  }
  if (shape.has_row != 0 && (shape.result_type != kGpFp32 || shape.batch != 1)) {
    return {kGpUnsupported, "a row is added to one fp32 result alone, not to bf16 or to a batch"};
  }
  return {};
}

inline Verdict CheckExtents(const GpProductShape& shape) {
  if (shape.m < 1 || shape.n < 1 || shape.k < 1 || shape.batch < 1) {
    return {kGpInvalid, "extents and the batch are at least 1"};
  }
  if (shape.a_stride < (shape.a_transposed != 0 ? shape.m : shape.k) ||
      shape.b_stride < (shape.b_transposed != 0 ? shape.k : shape.n) || shape.d_stride < shape.n ||
      (shape.has_addend != 0 && shape.c_stride < shape.n)) {
    return {kGpInvalid, "a stride is shorter than the rows"};
  }
  // Results lie behind one another, or side by side in the same rows, as heads do.
  const bool is_behind = shape.d_batch_stride >= (shape.m - 1) * shape.d_stride + shape.n;
  const bool is_beside =
      shape.d_batch_stride >= shape.n && (shape.batch - 1) * shape.d_batch_stride + shape.n <= shape.d_stride;
  if (shape.batch > 1 && !is_behind && !is_beside) {
    return {kGpInvalid, "results of the batch overlap"};
  }
  if (!IsAlignment(shape.a_alignment_bytes, shape.operand_type) ||
      !IsAlignment(shape.b_alignment_bytes, shape.operand_type) ||
      !IsAlignment(shape.d_alignment_bytes, shape.result_type) ||
      (shape.has_addend != 0 && !IsAlignment(shape.c_alignment_bytes, shape.result_type)) ||
      (shape.has_row != 0 && !IsAlignment(shape.row_alignment_bytes, kGpFp32))) {
    return {kGpInvalid, "an alignment is a power of two from the size of an element to 256"};
  }
  if (shape.multiprocessors < 0 || shape.workspace_limit_bytes < 0) {
    return {kGpInvalid, "neither SMs nor workspace are negative"};
  }
  return {};
}

inline Verdict CheckProductShape(const GpProductShape& shape) {
  const Verdict types = CheckTypes(shape);
  return types.result != kGpOk ? types : CheckExtents(shape);
}

inline bool IsAligned(const void* address, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(address) % static_cast<uintptr_t>(bytes) == 0;
}

// `needed_bytes`: what the plan asks for.
inline Verdict CheckProductRun(const GpProductShape& shape, const GpProductOperands& operands, const void* workspace,
                               int64_t workspace_bytes, int64_t needed_bytes) {
  const bool has_addend = shape.has_addend != 0;
  const bool has_row = shape.has_row != 0;
  if (operands.a == nullptr || operands.b == nullptr || operands.d == nullptr ||
      (operands.c != nullptr) != has_addend || (operands.row != nullptr) != has_row) {
    return {kGpInvalid, "an operand is missing, or not in the shape"};
  }
  if (!IsAligned(operands.a, shape.a_alignment_bytes) || !IsAligned(operands.b, shape.b_alignment_bytes) ||
      !IsAligned(operands.d, shape.d_alignment_bytes) ||
      (has_addend && !IsAligned(operands.c, shape.c_alignment_bytes)) ||
      (has_row && !IsAligned(operands.row, shape.row_alignment_bytes))) {
    return {kGpInvalid, "an operand is less aligned than the shape says"};
  }
  if (has_addend && operands.c == operands.d &&
      (shape.c_stride != shape.d_stride || (shape.batch > 1 && shape.c_batch_stride != shape.d_batch_stride))) {
    return {kGpInvalid, "an addend that is the result has other strides"};
  }
  if (workspace_bytes < needed_bytes || (needed_bytes > 0 && !IsAligned(workspace, 256)) ||
      (needed_bytes > 0 && workspace == nullptr)) {
    return {kGpInvalid, "the workspace is too small, or not aligned to 256 bytes"};
  }
  return {};
}

}  // namespace geopipe::gpu
