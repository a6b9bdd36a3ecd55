// Coefficients of an AdamW update as all backends' kernels take them.
#pragma once

namespace geopipe {

struct AdamWStep;

// Computed in fp64 and rounded once, as PyTorch does.
struct AdamWConstants {
  float grad_scale;
  float decay;  // 1 - lr * weight_decay
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float sqrt_bias_correction2;
  float eps;
  float step_size;  // lr / bias_correction1
};

// REQUIRES: the step's vectors are of one size, but for a compute weight that may be empty, and it counts from 1.
AdamWConstants ConstantsOf(const AdamWStep& step);

}  // namespace geopipe
