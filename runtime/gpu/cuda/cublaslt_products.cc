#include "runtime/gpu/cuda/cublaslt_products.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <array>
#include <memory>
#include <mutex>
#include <new>
#include <type_traits>

#include "runtime/gpu/cuda/cuda_error.h"
#include "runtime/gpu/cuda/cuda_runtime.h"
#include "runtime/gpu/port/product_rules.h"

namespace geopipe::cuda {
namespace {

// Owns an object of cuBLASLt.
template <class T, cublasStatus_t (*kDestroy)(T)>
struct Destroyer {
  void operator()(T object) const { kDestroy(object); }
};
template <class T, cublasStatus_t (*kDestroy)(T)>
using Owned = std::unique_ptr<std::remove_pointer_t<T>, Destroyer<T, kDestroy>>;

using Operation = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

}  // namespace
}  // namespace geopipe::cuda

// cuBLASLt's matrices are column-major: our row-major matrix is to it the transposed one. So it is asked for D' =
// op(B)'
// * op(A)' + C', with our B as its first operand and our A as its second: "first" and "second" below.
struct GpProductPlan {
  GpProductShape shape = {};
  cublasLtHandle_t handle = nullptr;  // of the device
  geopipe::cuda::Operation operation;
  geopipe::cuda::Layout first;
  geopipe::cuda::Layout second;
  geopipe::cuda::Layout c;
  geopipe::cuda::Layout d;
  cublasLtMatmulAlgo_t algorithm = {};
  int64_t workspace_bytes = 0;
};

namespace geopipe::cuda {
namespace {

cudaDataType_t TypeOf(GpDType type) { return type == kGpBf16 ? CUDA_R_16BF : CUDA_R_32F; }

// The library's handle on the current device, made at the first call and kept.
GpResult HandleOfDevice(cublasLtHandle_t* handle) {
  static std::mutex mutex;
  static std::array<cublasLtHandle_t, kMaxDevices> handles = {};
  int device = 0;
  if (const GpResult result = Report("cudaGetDevice", cudaGetDevice(&device)); result != kGpOk) {
    return result;
  }
  if (device < 0 || device >= kMaxDevices) {
    return Report("cublasLtCreate", cudaErrorInvalidDevice);
  }
  const std::lock_guard lock(mutex);
  cublasLtHandle_t& kept = handles[static_cast<size_t>(device)];
  if (kept == nullptr) {
    cublasLtHandle_t made = nullptr;
    if (const GpResult result = Report("cublasLtCreate", cublasLtCreate(&made)); result != kGpOk) {
      return result;
    }
    kept = made;
  }
  *handle = kept;
  return kGpOk;
}

// Calls that must all succeed; remembers the first that does not.
class Steps {
 public:
  void Do(const char* call, cublasStatus_t status) {
    if (result_ == kGpOk) {
      result_ = Report(call, status);
    }
  }
  bool ok() const { return result_ == kGpOk; }
  GpResult result() const { return result_; }

 private:
  GpResult result_ = kGpOk;
};

template <class T>
void SetOperation(Steps& steps, const Operation& operation, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  steps.Do("cublasLtMatmulDescSetAttribute",
           cublasLtMatmulDescSetAttribute(operation.get(), attribute, &value, sizeof(value)));
}

template <class T>
void SetPreference(Steps& steps, const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute,
                   const T& value) {
  steps.Do("cublasLtMatmulPreferenceSetAttribute",
           cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value)));
}

// A row-major matrix [rows, columns] as a column-major one [columns, rows].
Layout MakeLayout(Steps& steps, GpDType type, int64_t rows, int64_t columns, int64_t stride, int64_t batch,
                  int64_t batch_stride) {
  cublasLtMatrixLayout_t made = nullptr;
  steps.Do("cublasLtMatrixLayoutCreate", cublasLtMatrixLayoutCreate(&made, TypeOf(type), static_cast<uint64_t>(columns),
                                                                    static_cast<uint64_t>(rows), stride));
  Layout layout(made);
  if (steps.ok() && batch > 1) {
    const auto count = static_cast<int32_t>(batch);
    steps.Do("cublasLtMatrixLayoutSetAttribute",
             cublasLtMatrixLayoutSetAttribute(made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count)));
    steps.Do("cublasLtMatrixLayoutSetAttribute",
             cublasLtMatrixLayoutSetAttribute(made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &batch_stride,
                                              sizeof(batch_stride)));
  }
  return layout;
}

Operation MakeOperation(Steps& steps, const GpProductShape& shape) {
  // fp32 operands stay fp32: CUBLAS_COMPUTE_32F_FAST_TF32 would be another type.
  cublasLtMatmulDesc_t made = nullptr;
  steps.Do("cublasLtMatmulDescCreate", cublasLtMatmulDescCreate(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  Operation operation(made);
  if (!steps.ok()) {
    return operation;
  }
  const int32_t first = shape.b_transposed != 0 ? CUBLAS_OP_T : CUBLAS_OP_N;
  const int32_t second = shape.a_transposed != 0 ? CUBLAS_OP_T : CUBLAS_OP_N;
  SetOperation(steps, operation, CUBLASLT_MATMUL_DESC_TRANSA, first);
  SetOperation(steps, operation, CUBLASLT_MATMUL_DESC_TRANSB, second);
  SetOperation(steps, operation, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, shape.multiprocessors);
  if (shape.has_row != 0) {
    // Our row runs along the columns of D, which are its D's rows, as its bias does.
    const uint32_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    const int32_t type = CUDA_R_32F;
    SetOperation(steps, operation, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
    SetOperation(steps, operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type);
    // The heuristic takes the alignment of the row from its address, which is not known yet: here is one of the least.
    alignas(512) static constexpr std::array<char, 512> kPlace = {};
    SetOperation(steps, operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                 static_cast<const void*>(&kPlace[static_cast<size_t>(shape.row_alignment_bytes)]));
  }
  return operation;
}

void MakeLayouts(Steps& steps, GpProductPlan& plan) {
  const GpProductShape& s = plan.shape;
  const auto rows_of = [](int32_t transposed, int64_t rows, int64_t columns) {
    return transposed != 0 ? columns : rows;
  };
  plan.first = MakeLayout(steps, s.operand_type, rows_of(s.b_transposed, s.k, s.n), rows_of(s.b_transposed, s.n, s.k),
                          s.b_stride, s.batch, s.b_batch_stride);
  plan.second = MakeLayout(steps, s.operand_type, rows_of(s.a_transposed, s.m, s.k), rows_of(s.a_transposed, s.k, s.m),
                           s.a_stride, s.batch, s.a_batch_stride);
  plan.d = MakeLayout(steps, s.result_type, s.m, s.n, s.d_stride, s.batch, s.d_batch_stride);
  plan.c = s.has_addend != 0 ? MakeLayout(steps, s.result_type, s.m, s.n, s.c_stride, s.batch, s.c_batch_stride)
                             : MakeLayout(steps, s.result_type, s.m, s.n, s.d_stride, s.batch, s.d_batch_stride);
}

// Sums that are divided among blocks are added up in fp32 in workspace: in place, or in the result's type, their bits
// would depend on the order in which the blocks end, or be rounded twice.
Preference MakePreference(Steps& steps, const GpProductShape& shape) {
  cublasLtMatmulPreference_t made = nullptr;
  steps.Do("cublasLtMatmulPreferenceCreate", cublasLtMatmulPreferenceCreate(&made));
  Preference preference(made);
  if (!steps.ok()) {
    return preference;
  }
  const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  const auto workspace = static_cast<uint64_t>(shape.workspace_limit_bytes);
  SetPreference(steps, preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions);
  SetPreference(steps, preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
  const auto set_alignment = [&](cublasLtMatmulPreferenceAttributes_t attribute, int32_t bytes) {
    SetPreference(steps, preference, attribute, static_cast<uint32_t>(bytes));
  };
  set_alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, shape.b_alignment_bytes);
  set_alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, shape.a_alignment_bytes);
  set_alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                shape.has_addend != 0 ? shape.c_alignment_bytes : shape.d_alignment_bytes);
  set_alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, shape.d_alignment_bytes);
  return preference;
}

// Takes the heuristic's first algorithm, which depends on the arguments, the device and the version alone.
GpResult ChooseAlgorithm(const Preference& preference, GpProductPlan& plan) {
  cublasLtMatmulHeuristicResult_t found = {};
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(plan.handle, plan.operation.get(), plan.first.get(), plan.second.get(),
                                     plan.c.get(), plan.d.get(), preference.get(), 1, &found, &count);
  if (status != CUBLAS_STATUS_SUCCESS) {
    return Report("cublasLtMatmulAlgoGetHeuristic", status);
  }
  if (count == 0) {
    return Report("cublasLtMatmulAlgoGetHeuristic", kGpUnsupported, "no algorithm for such a product");
  }
  if (found.state != CUBLAS_STATUS_SUCCESS) {
    return Report("cublasLtMatmulAlgoGetHeuristic", found.state);
  }
  plan.algorithm = found.algo;
  plan.workspace_bytes = static_cast<int64_t>(found.workspaceSize);
  return kGpOk;
}

GpResult Make(const GpProductShape* shape, GpProductPlan** plan) {
  *plan = nullptr;
  const gpu::Verdict verdict = gpu::CheckProductShape(*shape);
  if (verdict.result != kGpOk) {
    return Report("product", verdict.result, verdict.why);
  }
  std::unique_ptr<GpProductPlan> made(new (std::nothrow) GpProductPlan);
  if (made == nullptr) {
    return Report("product", kGpInternal, "the host has no memory left");
  }
  made->shape = *shape;
  Steps steps;
  made->operation = MakeOperation(steps, *shape);
  MakeLayouts(steps, *made);
  const Preference preference = MakePreference(steps, *shape);
  if (!steps.ok()) {
    return steps.result();
  }
  if (const GpResult result = HandleOfDevice(&made->handle); result != kGpOk) {
    return result;
  }
  if (const GpResult result = ChooseAlgorithm(preference, *made); result != kGpOk) {
    return result;
  }
  *plan = made.release();
  return kGpOk;
}

int64_t WorkspaceBytes(const GpProductPlan* plan) { return plan->workspace_bytes; }

GpResult Run(GpProductPlan* plan, const GpProductOperands* operands, void* workspace, int64_t workspace_bytes,
             GpStream stream) {
  const GpProductShape& shape = plan->shape;
  const gpu::Verdict verdict =
      gpu::CheckProductRun(shape, *operands, workspace, workspace_bytes, plan->workspace_bytes);
  if (verdict.result != kGpOk || stream == nullptr) {
    return Report("product", kGpInvalid, stream == nullptr ? "the stream is null" : verdict.why);
  }
  if (shape.has_row != 0) {
    Steps steps;
    SetOperation(steps, plan->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(operands->row));
    if (!steps.ok()) {
      return steps.result();
    }
  }
  const float alpha = 1;
  const float beta = shape.has_addend != 0 ? 1 : 0;  // 0: C is not read
  const void* c = shape.has_addend != 0 ? operands->c : operands->d;
  return Report(
      "cublasLtMatmul",
      cublasLtMatmul(plan->handle, plan->operation.get(), &alpha, operands->b, plan->first.get(), operands->a,
                     plan->second.get(), &beta, c, plan->c.get(), operands->d, plan->d.get(), &plan->algorithm,
                     workspace, static_cast<size_t>(workspace_bytes), static_cast<cudaStream_t>(stream)));
}

void Destroy(GpProductPlan* plan) { delete plan; }

}  // namespace

const GpProducts kProducts = {
    .make = Make,
    .workspace_bytes = WorkspaceBytes,
    .run = Run,
    .destroy = Destroy,
};

}  // namespace geopipe::cuda
