#include "tests/runtime/gpu/cuda/cublaslt_stand_in.h"

#include <cstring>

#include "tests/runtime/gpu/cuda/cuda_stand_in.h"
#include "tests/support/bf16.h"

namespace geopipe {
namespace {

constexpr uint64_t kAlgorithm = 0xa190;

struct Operation {
  cublasComputeType_t compute_type;
  cudaDataType_t scale_type;
  int32_t transa = CUBLAS_OP_N;
  int32_t transb = CUBLAS_OP_N;
  int32_t multiprocessors = 0;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  int32_t bias_type = -1;
  const void* bias = nullptr;
};

struct Layout {
  cudaDataType_t type;
  int64_t rows;
  int64_t cols;
  int64_t ld;
  int32_t batch = 1;
  int64_t batch_offset = 0;
};

Operation& Of(cublasLtMatmulDesc_t operation) { return *reinterpret_cast<Operation*>(operation); }
Layout& Of(cublasLtMatrixLayout_t layout) { return *reinterpret_cast<Layout*>(layout); }

// Takes an attribute of exactly the size that the header says.
template <class T>
cublasStatus_t Take(const void* from, size_t bytes, T& to) {
  if (bytes != sizeof(T)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  std::memcpy(&to, from, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

template <class T, class Opaque, class... Arguments>
cublasStatus_t MakeObject(Opaque* made, Arguments... arguments) {
  ++TheCublasLt().objects;
  *made = reinterpret_cast<Opaque>(new T{arguments...});
  return CUBLAS_STATUS_SUCCESS;
}

template <class T>
cublasStatus_t DestroyObject(void* object) {
  --TheCublasLt().objects;
  delete static_cast<T*>(object);
  return CUBLAS_STATUS_SUCCESS;
}

float Load(const void* data, const Layout& layout, int64_t row, int64_t col, int64_t of_batch) {
  const int64_t index = of_batch * layout.batch_offset + col * layout.ld + row;
  return layout.type == CUDA_R_16BF ? ValueOfBf16(static_cast<const uint16_t*>(data)[index])
                                    : static_cast<const float*>(data)[index];
}

void Store(void* data, const Layout& layout, int64_t row, int64_t col, int64_t of_batch, float value) {
  const int64_t index = of_batch * layout.batch_offset + col * layout.ld + row;
  if (layout.type == CUDA_R_16BF) {
    static_cast<uint16_t*>(data)[index] = Bf16Of(value);
  } else {
    static_cast<float*>(data)[index] = value;
  }
}

// The documentation's table of types, of fp32 sums, as far as it is used.
bool IsSupported(const Operation& operation, const Layout& a, const Layout& b, const Layout& c, const Layout& d) {
  const bool types = a.type == b.type && c.type == d.type &&
                     (a.type == CUDA_R_16BF ? d.type == CUDA_R_16BF || d.type == CUDA_R_32F
                                            : a.type == CUDA_R_32F && d.type == CUDA_R_32F);
  const bool bias = operation.epilogue == CUBLASLT_EPILOGUE_DEFAULT ||
                    (operation.epilogue == CUBLASLT_EPILOGUE_BIAS && operation.bias_type == d.type);
  return operation.compute_type == CUBLAS_COMPUTE_32F && operation.scale_type == CUDA_R_32F && types && bias;
}

bool IsConsistent(const Operation& operation, const Layout& a, const Layout& b, const Layout& c, const Layout& d) {
  const bool is_a_transposed = operation.transa == CUBLAS_OP_T;
  const bool is_b_transposed = operation.transb == CUBLAS_OP_T;
  const int64_t m = is_a_transposed ? a.cols : a.rows;
  const int64_t k = is_a_transposed ? a.rows : a.cols;
  const int64_t n = is_b_transposed ? b.rows : b.cols;
  for (const Layout* layout : {&a, &b, &c, &d}) {
    if (layout->ld < layout->rows || layout->batch != d.batch) {
      return false;
    }
  }
  return (is_b_transposed ? b.cols : b.rows) == k && c.rows == m && c.cols == n && d.rows == m && d.cols == n;
}

}  // namespace

CublasLtStandIn& TheCublasLt() {
  static CublasLtStandIn stand_in;
  return stand_in;
}

}  // namespace geopipe

using geopipe::DestroyObject;
using geopipe::Layout;
using geopipe::MakeObject;
using geopipe::Of;
using geopipe::Operation;
using geopipe::Take;
using geopipe::TheCublasLt;
using geopipe::TheCuda;

extern "C" {

const char* cublasLtGetStatusName(cublasStatus_t /*status*/) { return "CUBLAS_STATUS_OF_SOME_KIND"; }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  ++TheCublasLt().handles;
  static int handles[2];
  *handle = reinterpret_cast<cublasLtHandle_t>(&handles[TheCuda().device % 2]);
  return TheCublasLt().create_status;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t compute_type,
                                        cudaDataType_t scale_type) {
  TheCublasLt().compute_type = compute_type;
  return MakeObject<Operation>(made, compute_type, scale_type);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) { return DestroyObject<Operation>(operation); }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return Take(value, bytes, Of(operation).transa);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return Take(value, bytes, Of(operation).transb);
    case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET:
      return Take(value, bytes, Of(operation).multiprocessors);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return Take(value, bytes, Of(operation).epilogue);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return Take(value, bytes, Of(operation).bias_type);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return Take(value, bytes, Of(operation).bias);
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType type, uint64_t rows, uint64_t cols,
                                          int64_t ld) {
  return MakeObject<Layout>(made, type, static_cast<int64_t>(rows), static_cast<int64_t>(cols), ld);
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return DestroyObject<Layout>(layout); }
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                                                size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
      return Take(value, bytes, Of(layout).batch);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
      return Take(value, bytes, Of(layout).batch_offset);
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) { return MakeObject<int>(made, 0); }
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return DestroyObject<int>(preference);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t /*preference*/,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return Take(value, bytes, TheCublasLt().workspace_limit);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return Take(value, bytes, TheCublasLt().reductions);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return Take(value, bytes, TheCublasLt().alignment_a);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return Take(value, bytes, TheCublasLt().alignment_b);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return Take(value, bytes, TheCublasLt().alignment_c);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return Take(value, bytes, TheCublasLt().alignment_d);
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t /*handle*/, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t /*preference*/, int requested,
                                              cublasLtMatmulHeuristicResult_t results[], int* found) {
  const Operation& asked = Of(operation);
  TheCublasLt().multiprocessors = asked.multiprocessors;
  const auto bias = reinterpret_cast<uintptr_t>(asked.bias);
  TheCublasLt().row_alignment = bias & (~bias + 1);
  *found = 0;
  if (requested < 1 || !geopipe::IsConsistent(asked, Of(a), Of(b), Of(c), Of(d))) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (!geopipe::IsSupported(asked, Of(a), Of(b), Of(c), Of(d))) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  *found = TheCublasLt().found;
  results[0].algo.data[0] = geopipe::kAlgorithm;
  results[0].workspaceSize = TheCublasLt().workspace_bytes;
  results[0].state = TheCublasLt().found_state;
  return TheCublasLt().heuristic_status;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  const Operation& asked = Of(operation);
  const Layout& result = Of(d_layout);
  TheCublasLt().stream = stream;
  if (handle == nullptr || algorithm->data[0] != geopipe::kAlgorithm ||
      workspace_bytes < TheCublasLt().workspace_bytes || (workspace == nullptr && workspace_bytes > 0) ||
      !geopipe::IsConsistent(asked, Of(a_layout), Of(b_layout), Of(c_layout), result)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const auto scale = *static_cast<const float*>(alpha);
  const auto addend_scale = *static_cast<const float*>(beta);
  const bool is_a_transposed = asked.transa == CUBLAS_OP_T;
  const bool is_b_transposed = asked.transb == CUBLAS_OP_T;
  const int64_t k = is_a_transposed ? Of(a_layout).rows : Of(a_layout).cols;
  for (int32_t of_batch = 0; of_batch < result.batch; ++of_batch) {
    for (int64_t i = 0; i < result.rows; ++i) {
      for (int64_t j = 0; j < result.cols; ++j) {
        float sum = 0;
        for (int64_t p = 0; p < k; ++p) {
          sum += geopipe::Load(a, Of(a_layout), is_a_transposed ? p : i, is_a_transposed ? i : p, of_batch) *
                 geopipe::Load(b, Of(b_layout), is_b_transposed ? j : p, is_b_transposed ? p : j, of_batch);
        }
        sum *= scale;
        if (addend_scale != 0) {
          sum += addend_scale * geopipe::Load(c, Of(c_layout), i, j, of_batch);
        }
        if (asked.epilogue == CUBLASLT_EPILOGUE_BIAS) {
          sum += static_cast<const float*>(asked.bias)[i];
        }
        geopipe::Store(d, result, i, j, of_batch, sum);
      }
    }
  }
  return TheCublasLt().matmul_status;
}

}  // extern "C"
