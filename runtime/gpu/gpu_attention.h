// Causal attention of a GPU from products and a softmax of whole matrices of scores: right for every shape, and the
// measure of what replaces it. It works on a sample's heads of some keys and values at a time, one query head of each.
#pragma once

#include <absl/status/status.h>

#include <cstdint>

#include "optimizer/model/gpu_workspace.h"
#include "runtime/backend/backend.h"
#include "runtime/gpu/gpu_device.h"
#include "runtime/gpu/gpu_products.h"

namespace geopipe {

// The steps in which attention of a shape is computed.
GpuAttentionSteps StepsOf(const AttentionShape& shape, DType dtype);

// Enqueues them on the compute queue. One thread.
class GpuAttention {
 public:
  // All outlive it.
  GpuAttention(GpuDevice& device, GpuProducts& products, GpuWorkspace& workspace)
      : device_(device), products_(products), workspace_(workspace) {}

  // The calls are Backend's.
  void RunDry(bool on) { dry_ = on; }
  absl::Status Forward(const AttentionShape& shape, const ConstMatrixView& query, const ConstMatrixView& key,
                       const ConstMatrixView& value, const MatrixView& out, VectorView<float> statistics);
  absl::Status Backward(const AttentionShape& shape, const ConstMatrixView& query, const ConstMatrixView& key,
                        const ConstMatrixView& value, VectorView<const float> statistics,
                        const ConstMatrixView& grad_out, const MatrixView& grad_query, const MatrixView& grad_key,
                        const MatrixView& grad_value);

 private:
  GpuDevice& device_;
  GpuProducts& products_;
  GpuWorkspace& workspace_;
  bool dry_ = false;
};

}  // namespace geopipe
