#include "runtime/model/stage_context.h"

#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "runtime/tensor/staging.h"

namespace geopipe {
absl::StatusOr<Tensor> StageContext::NewRows(int64_t columns, MemoryCategory category) const {
  return Tensor::Create(*allocator, category, dtype(), {tokens(), columns});
}

absl::StatusOr<Tensor> StageContext::NewRegion(int64_t columns, MemoryCategory category) const {
  return Tensor::Create(*allocator, category, dtype(), {region_rows(), columns});
}

absl::StatusOr<Tensor> StageContext::NewStatistics(MemoryCategory category) const {
  return Tensor::Create(*allocator, category, DType::kFp32, {region_rows()});
}

MatrixView StageContext::RegionOf(const Tensor& rows) const {
  return divides_rows() ? RowsOf(ViewOf(rows), sharding.tensor_rank * region_rows(), region_rows()) : ViewOf(rows);
}

absl::StatusOr<Tensor> StageContext::Gathered(Tensor region, MemoryCategory category) const {
  if (!divides_rows()) {
    return region;
  }
  GP_ASSIGN_OR_RETURN(Tensor rows, NewRows(hidden(), category));
  GP_ASSIGN_OR_RETURN(const Completion done, groups.tensor->AllGather(ElementsOf(region), ElementsOf(rows)));
  GP_RETURN_IF_ERROR(groups.tensor->Join(done));
  return rows;
}

absl::StatusOr<ConstMatrixView> StageContext::Whole(const Tensor& region, Tensor& room) const {
  if (!divides_rows()) {
    return ConstMatrixView(ViewOf(region));
  }
  GP_ASSIGN_OR_RETURN(room, NewRows(hidden(), MemoryCategory::kWorkspace));
  GP_ASSIGN_OR_RETURN(const Completion done, groups.tensor->AllGather(ElementsOf(region), ElementsOf(room)));
  GP_RETURN_IF_ERROR(groups.tensor->Join(done));
  return ConstMatrixView(ViewOf(room));
}

absl::Status StageContext::SumOverRanks(const Tensor& partial) const {
  if (sharding.tensor == 1) {
    return absl::OkStatus();
  }
  if (!divides_rows()) {
    return AllReduce(ReduceOp::kSum, partial);
  }
  const int64_t own = partial.elements() / sharding.tensor;
  const Tensor region = partial.Part(sharding.tensor_rank * own, {own});
  GP_ASSIGN_OR_RETURN(const Completion done,
                      groups.tensor->ReduceScatter(ReduceOp::kSum, ElementsOf(partial), ElementsOf(region)));
  return groups.tensor->Join(done);
}

absl::StatusOr<Tensor> StageContext::SumToRegion(Tensor partial, MemoryCategory category) const {
  if (!divides_rows()) {
    GP_RETURN_IF_ERROR(SumOverRanks(partial));
    partial.SetCategory(category);
    return partial;
  }
  GP_ASSIGN_OR_RETURN(Tensor region, NewRegion(hidden(), category));
  GP_ASSIGN_OR_RETURN(const Completion done,
                      groups.tensor->ReduceScatter(ReduceOp::kSum, ElementsOf(partial), ElementsOf(region)));
  GP_RETURN_IF_ERROR(groups.tensor->Join(done));
  return region;
}

absl::Status StageContext::AllReduce(ReduceOp op, const Tensor& tensor) const {
  GP_ASSIGN_OR_RETURN(const Completion done, groups.tensor->AllReduce(op, ElementsOf(tensor), ElementsOf(tensor)));
  return groups.tensor->Join(done);
}

// One rank adds the residual as it multiplies, which saves a pass over it.
absl::StatusOr<Tensor> StageContext::AddProduct(const Tensor& residual, const Tensor& x, const Parameter& weight,
                                                const Parameter* bias, MemoryCategory category) const {
  GP_ASSIGN_OR_RETURN(Tensor sum, NewRows(hidden(), divides_rows() ? MemoryCategory::kWorkspace : category));
  const int64_t parts = divides_rows() ? sharding.tensor : 1;
  const int64_t rows = tokens() / parts;
  for (int64_t part = 0; part < parts; ++part) {
    const Tensor of_part = sum.Part(part * rows * hidden(), {rows, hidden()});
    Addend addend;
    if (sharding.tensor_rank == part) {
      addend.matrix = ViewOf(residual);
      addend.row = bias == nullptr ? VectorView<const float>() : VectorView<const float>(bias->value);
    }
    GP_RETURN_IF_ERROR(backend->MatMul(Product::kNT, RowsOf(ViewOf(x), part * rows, rows), ViewOf(weight.value), addend,
                                       ViewOf(of_part)));
  }
  return SumToRegion(std::move(sum), category);
}

absl::StatusOr<Tensor> StageContext::ToMessage(Tensor region) const {
  if (!cuts_messages()) {
    region.SetCategory(MemoryCategory::kTransport);
    return region;
  }
  const int64_t own = message_elements();
  GP_ASSIGN_OR_RETURN(Tensor message, Tensor::Create(*allocator, MemoryCategory::kTransport, region.dtype(), {own}));
  GP_RETURN_IF_ERROR(Copy(region.Part(sharding.tensor_rank * own, {own}), message));
  return message;
}

absl::StatusOr<Tensor> StageContext::FromMessage(Tensor message, MemoryCategory category) const {
  if (!cuts_messages()) {
    message.SetCategory(category);
    return message;
  }
  GP_ASSIGN_OR_RETURN(Tensor rows, NewRows(hidden(), category));
  GP_ASSIGN_OR_RETURN(const Completion done, groups.tensor->AllGather(ElementsOf(message), ElementsOf(rows)));
  GP_RETURN_IF_ERROR(groups.tensor->Join(done));
  return rows;
}

}  // namespace geopipe
