// Matrix products of a GPU, through the library's plans, each made once.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "runtime/backend/backend.h"
#include "runtime/gpu/gpu_device.h"
#include "runtime/tensor/allocator.h"

namespace geopipe {

// A buffer of workspace that kernels of the compute queue use one after another. It grows with its greatest request.
class GpuWorkspace {
 public:
  explicit GpuWorkspace(Allocator& allocator) : allocator_(allocator) {}

  // At least so many bytes, aligned to 256. What the last request returned may be released. Errors: the allocator's.
  absl::StatusOr<std::byte*> Take(int64_t bytes);

 private:
  Allocator& allocator_;
  Buffer buffer_;
};

// One thread.
class GpuProducts {
 public:
  // Both outlive it.
  GpuProducts(GpuDevice& device, Allocator& allocator) : device_(device), workspace_(allocator) {}

  // Makes plans and takes workspace while on, but runs nothing.
  void RunDry(bool on) { dry_ = on; }
  int64_t plans_built() const { return static_cast<int64_t>(plans_.size()); }

  // Enqueues the product on the compute queue. The plan's alignment, SMs and workspace are set here. An operand whose
  // address is less aligned than its strides has a plan of its own, which may round otherwise; where parameters are
  // multiples of 16 bytes there is none such.
  absl::Status Run(GpProductShape shape, const GpProductOperands& operands);

 private:
  struct Destroy {
    const GpPort* port;
    void operator()(GpProductPlan* plan) const { port->products.destroy(plan); }
  };
  using Plan = std::unique_ptr<GpProductPlan, Destroy>;

  absl::StatusOr<GpProductPlan*> PlanOf(const GpProductShape& shape);

  GpuDevice& device_;
  GpuWorkspace workspace_;
  bool dry_ = false;
  std::unordered_map<std::string, Plan> plans_;  // by the shape's bytes
};

// The type as the port has it. REQUIRES: fp32 or bf16.
GpDType PortTypeOf(DType dtype);

// The shape of C = A * B + addend, each matrix as it lies in memory. REQUIRES: extents and types fit.
GpProductShape ProductShapeOf(Product product, const ConstMatrixView& a, const ConstMatrixView& b, const Addend& addend,
                              const ConstMatrixView& c);

}  // namespace geopipe
