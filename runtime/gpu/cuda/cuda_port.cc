#include "runtime/gpu/cuda/cublaslt_products.h"
#include "runtime/gpu/cuda/cuda_runtime.h"
#include "runtime/gpu/kernels/launchers.h"
#include "runtime/gpu/port/gpu_port.h"

// The one symbol that the library exports.
extern "C" {
extern __attribute__((visibility("default"))) const GpPort geopipe_gpu_port;
const GpPort geopipe_gpu_port = {
    .version = kGpPortVersion,
    .bytes = sizeof(GpPort),
    .runtime = geopipe::cuda::kRuntime,
    .kernels = geopipe::gpu::kKernels,
    .products = geopipe::cuda::kProducts,
};
}
