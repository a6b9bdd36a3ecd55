// Kernels take device memory at addresses that are none of the process's, whatever they are passed in.
#include "tests/runtime/gpu/kernels/gpu_kernel_test.h"

namespace geopipe {
namespace {

constexpr uintptr_t kForeign = uintptr_t{1} << 54;  // added to addresses; no process has memory there

void* OwnAddress(void* address) { return reinterpret_cast<std::byte*>(address) - kForeign; }

constexpr int64_t kSide = 4;  // of all matrices

// Device memory: [kSide, kSide] of any type.
class DeviceMatrix {
 public:
  template <class T>
  operator T*() {  // NOLINT(google-explicit-constructor): as CUDA's own functions take it
    return reinterpret_cast<T*>(reinterpret_cast<std::byte*>(&memory_) + kForeign);
  }

 private:
  std::array<double, kSide* kSide> memory_ = {};
};

TEST_CASE("every kernel takes foreign addresses") {
  gpu::emulation::Settings settings;
  settings.processor_address = OwnAddress;
  const WithSettings with(settings);
  std::array<DeviceMatrix, 8> m;
  const GpRmsNorm norm = {kGpFp32, kSide, 1, kSide, m[0], kSide, m[1], 1e-5F, m[2], kSide, m[3]};
  CHECK(gpu::RmsNorm(&norm, nullptr) == 0);
  const GpRmsNormGrad norm_grad = {kGpFp32, kSide, 1,    kSide, m[0], kSide, m[1], m[2],
                                   m[3],    kSide, m[4], kSide, m[5], kSide, m[6], m[7]};
  CHECK(gpu::RmsNormGrad(&norm_grad, nullptr) == 0);
  const GpRope rope = {kGpFp32, kSide, kSide, 1, kSide, m[0], kSide, m[1], m[2], 0};
  CHECK(gpu::Rope(&rope, nullptr) == 0);
  const GpCausalSoftmax softmax = {kGpFp32, 1, 1, kSide, m[0], 1, m[1], kSide, m[2], kSide, m[3]};
  CHECK(gpu::CausalSoftmax(&softmax, nullptr) == 0);
  const GpCausalSoftmaxGrad softmax_grad = {kGpFp32, 1,    1,     kSide, m[0],  1,    m[1], kSide,
                                            m[2],    m[3], kSide, m[4],  kSide, m[5], kSide};
  CHECK(gpu::CausalSoftmaxGrad(&softmax_grad, nullptr) == 0);
  const GpSwiGlu swiglu = {kGpFp32, kSide, kSide, m[0], kSide, m[1], kSide, m[2], kSide};
  CHECK(gpu::SwiGlu(&swiglu, nullptr) == 0);
  const GpSwiGluGrad swiglu_grad = {kGpFp32, kSide, kSide, m[0],  kSide, m[1], kSide,
                                    m[2],    kSide, m[3],  kSide, m[4],  kSide};
  CHECK(gpu::SwiGluGrad(&swiglu_grad, nullptr) == 0);
  const GpCrossEntropy loss = {kGpFp32, kSide, kSide, m[0], kSide, m[1], 1, m[2], kSide, m[3], m[4]};
  CHECK(gpu::CrossEntropy(&loss, nullptr) == 0);
  const GpCrossEntropyMax max = {kSide, kSide, m[0], kSide, m[1]};
  CHECK(gpu::CrossEntropyMax(&max, nullptr) == 0);
  const GpCrossEntropySums sums = {kSide, kSide, m[0], kSide, m[1], m[2], 0, m[3]};
  CHECK(gpu::CrossEntropySums(&sums, nullptr) == 0);
  const GpCrossEntropyGrad loss_grad = {kGpFp32, kSide, kSide, m[0], kSide, m[1], m[2],
                                        m[3],    0,     1,     m[4], kSide, m[5], m[6]};
  CHECK(gpu::CrossEntropyGrad(&loss_grad, nullptr) == 0);
  const GpEmbedding embedding = {kGpFp32, kSide, m[0], kSide, m[1], kSide, kSide, 0, m[2], kSide};
  CHECK(gpu::Embedding(&embedding, nullptr) == 0);
  const GpEmbeddingGrad embedding_grad = {kGpFp32, kSide, m[0], kSide, m[1], kSide, m[2], kSide, kSide, 0};
  CHECK(gpu::EmbeddingGrad(&embedding_grad, nullptr) == 0);
  const GpAxpy axpy = {kSide, 1, m[0], m[1]};
  CHECK(gpu::Axpy(&axpy, nullptr) == 0);
  const GpConvert convert = {kGpFp32, kGpBf16, kSide, kSide, m[0], kSide, m[1], kSide};
  CHECK(gpu::Convert(&convert, nullptr) == 0);
  const GpSumRows rows = {kGpFp32, kSide, kSide, m[0], kSide, m[1]};
  CHECK(gpu::SumRows(&rows, nullptr) == 0);
  const GpRun run = {0, kSide};  // of the host
  const GpSumsOfSquares squares = {kGpFp32, m[0], 1, &run, m[1], m[2]};
  CHECK(gpu::SumsOfSquares(&squares, nullptr) == 0);
  const GpAdamW adamw = {kSide, 1, 1, 1, 1, 1, 1, 1, 1, 1, m[0], m[1], m[2], m[3], m[4]};
  CHECK(gpu::AdamW(&adamw, nullptr) == 0);
}

}  // namespace
}  // namespace geopipe
