#include "runtime/gpu/gpu_products.h"

#include <algorithm>
#include <bit>
#include <type_traits>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/model/gpu_workspace.h"
#include "runtime/gpu/port/product_rules.h"

namespace geopipe {
namespace {

// The bytes that a thread reads at once; plans do not get better beyond.
constexpr uint64_t kMaxAlignment = 16;

// Power of two that divides the distances of a matrix's rows and of a batch's matrices, and its address.
int32_t AlignmentOf(const void* address, GpDType type, int64_t stride, int64_t batch_stride) {
  const auto distances = static_cast<uint64_t>((stride | batch_stride) * gpu::ElementBytes(type));
  const uint64_t bits = distances | reinterpret_cast<uintptr_t>(address) | kMaxAlignment;
  return static_cast<int32_t>(uint64_t{1} << std::countr_zero(bits));
}

void SetAlignments(const GpProductOperands& operands, GpProductShape& s) {
  s.a_alignment_bytes = AlignmentOf(operands.a, s.operand_type, s.a_stride, s.a_batch_stride);
  s.b_alignment_bytes = AlignmentOf(operands.b, s.operand_type, s.b_stride, s.b_batch_stride);
  s.c_alignment_bytes = AlignmentOf(operands.c, s.result_type, s.c_stride, s.c_batch_stride);
  s.d_alignment_bytes = AlignmentOf(operands.d, s.result_type, s.d_stride, s.d_batch_stride);
  s.row_alignment_bytes = AlignmentOf(operands.row, kGpFp32, 0, 0);
}

}  // namespace

absl::StatusOr<std::byte*> GpuWorkspace::Take(int64_t bytes) {
  if (bytes > buffer_.size()) {
    buffer_ = Buffer();
    GP_ASSIGN_OR_RETURN(buffer_, allocator_.Allocate(bytes, MemoryCategory::kWorkspace));
  }
  return buffer_.data();
}

GpDType PortTypeOf(DType dtype) {
  GP_CHECK(dtype == DType::kFp32 || dtype == DType::kBf16, "GPU kernels do not compute in {}", DTypeName(dtype));
  return dtype == DType::kFp32 ? kGpFp32 : kGpBf16;
}

GpProductShape ProductShapeOf(Product product, const ConstMatrixView& a, const ConstMatrixView& b, const Addend& addend,
                              const ConstMatrixView& c) {
  const int64_t m = product == Product::kTN ? a.columns : a.rows;
  const int64_t k = product == Product::kTN ? a.rows : a.columns;
  const int64_t n = product == Product::kNT ? b.rows : b.columns;
  const int64_t b_k = product == Product::kNT ? b.columns : b.rows;
  GP_CHECK(c.rows == m && c.columns == n && b_k == k, "[{}, {}] = [{}, {}] * [{}, {}]", c.rows, c.columns, m, k, b_k,
           n);
  GP_CHECK(a.dtype == b.dtype, "a product of {} and {}", DTypeName(a.dtype), DTypeName(b.dtype));
  const bool adds = addend.matrix.data != nullptr;
  GP_CHECK(!adds || (addend.matrix.rows == m && addend.matrix.columns == n && addend.matrix.dtype == c.dtype));
  GP_CHECK(addend.row.data == nullptr || addend.row.size == n);
  GpProductShape shape = {};
  shape.operand_type = PortTypeOf(a.dtype);
  shape.result_type = PortTypeOf(c.dtype);
  shape.a_transposed = product == Product::kTN ? 1 : 0;
  shape.b_transposed = product == Product::kNT ? 1 : 0;
  shape.m = m;
  shape.n = n;
  shape.k = k;
  shape.a_stride = a.stride;
  shape.b_stride = b.stride;
  shape.c_stride = adds ? addend.matrix.stride : c.stride;
  shape.d_stride = c.stride;
  shape.batch = 1;
  shape.has_addend = adds ? 1 : 0;
  shape.has_row = addend.row.data != nullptr ? 1 : 0;
  return shape;
}

absl::StatusOr<GpProductPlan*> GpuProducts::PlanOf(const GpProductShape& shape) {
  static_assert(std::has_unique_object_representations_v<GpProductShape>);
  std::string key(reinterpret_cast<const char*>(&shape), sizeof(shape));
  if (const auto found = plans_.find(key); found != plans_.end()) {
    return found->second.get();
  }
  GpProductPlan* plan = nullptr;
  GP_RETURN_IF_ERROR(device_.StatusOf(device_.port().products.make(&shape, &plan), "planning a product"));
  plans_.emplace(std::move(key), Plan(plan, Destroy{&device_.port()}));
  return plan;
}

absl::Status GpuProducts::Run(GpProductShape shape, const GpProductOperands& operands) {
  GP_RETURN_IF_ERROR(device_.Enter());
  SetAlignments(operands, shape);
  shape.multiprocessors = 0;
  shape.workspace_limit_bytes = kGpuProductWorkspaceBytes;
  GP_ASSIGN_OR_RETURN(GpProductPlan * plan, PlanOf(shape));
  const GpProducts& products = device_.port().products;
  const int64_t workspace_bytes = products.workspace_bytes(plan);
  GP_CHECK(workspace_bytes <= kGpuProductWorkspaceBytes, "a product with {} bytes of workspace", workspace_bytes);
  // Whole, as the planner counts it, whatever this product wants of it.
  GP_ASSIGN_OR_RETURN(std::byte * workspace, workspace_.Take(kGpuProductWorkspaceBytes));
  if (dry_) {
    return absl::OkStatus();
  }
  return device_.StatusOf(products.run(plan, &operands, workspace, workspace_bytes, device_.stream(Queue::kCompute)),
                          "enqueuing a product");
}

}  // namespace geopipe
