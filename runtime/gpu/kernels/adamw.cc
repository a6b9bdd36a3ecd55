#include "runtime/gpu/kernels/launchers.h"
#include "runtime/gpu/kernels/tiles.h"

namespace geopipe::gpu {
namespace {

struct Coefficients {
  float grad_scale;
  float decay;
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float sqrt_bias_correction2;
  float eps;
  float step_size;
};

__global__ void __launch_bounds__(kTileThreads)
    AdamWKernel(Tiling tiling, Coefficients c, Rows<const float> gradient, Rows<float> parameter,
                Rows<float> first_moment, Rows<float> second_moment, Rows<Bf16> compute_weight) {
  const int64_t j = tiling.Column();
  const int64_t count = tiling.columns - j;
  float g[kGroup];
  float p[kGroup];
  float m[kGroup];
  float v[kGroup];
  Load(gradient.data + j, gradient.vector, count, g);
  Load(parameter.data + j, parameter.vector, count, p);
  Load(first_moment.data + j, first_moment.vector, count, m);
  Load(second_moment.data + j, second_moment.vector, count, v);
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    const float scaled = g[i] * c.grad_scale;
    m[i] = m[i] * c.beta1 + scaled * c.one_minus_beta1;
    v[i] = v[i] * c.beta2 + scaled * scaled * c.one_minus_beta2;
    const float denominator = sqrtf(v[i]) / c.sqrt_bias_correction2 + c.eps;
    p[i] = p[i] * c.decay - c.step_size * (m[i] / denominator);
  }
  Store(parameter.data + j, parameter.vector, count, p);
  Store(first_moment.data + j, first_moment.vector, count, m);
  Store(second_moment.data + j, second_moment.vector, count, v);
  if (compute_weight.data != nullptr) {
    Store(compute_weight.data + j, compute_weight.vector, count, p);
  }
}

}  // namespace

int32_t AdamW(const GpAdamW* args, void* stream) {
  if (args->size == 0) {
    return 0;
  }
  const Tiling tiling(args->size);
  const Coefficients coefficients = {.grad_scale = args->grad_scale,
                                     .decay = args->decay,
                                     .beta1 = args->beta1,
                                     .one_minus_beta1 = args->one_minus_beta1,
                                     .beta2 = args->beta2,
                                     .one_minus_beta2 = args->one_minus_beta2,
                                     .sqrt_bias_correction2 = args->sqrt_bias_correction2,
                                     .eps = args->eps,
                                     .step_size = args->step_size};
  return Launch(stream, tiling.Grid(1), kTileThreads, AdamWKernel, tiling, coefficients,
                RowsOf<const float>(args->gradient, 0, kGroup), RowsOf<float>(args->parameter, 0, kGroup),
                RowsOf<float>(args->first_moment, 0, kGroup), RowsOf<float>(args->second_moment, 0, kGroup),
                RowsOf<Bf16>(args->compute_weight, 0, kGroup));
}

}  // namespace geopipe::gpu
