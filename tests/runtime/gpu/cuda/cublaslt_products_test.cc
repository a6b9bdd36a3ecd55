#include "runtime/gpu/cuda/cublaslt_products.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "runtime/gpu/cuda/cuda_error.h"
#include "tests/runtime/gpu/cuda/cublaslt_stand_in.h"
#include "tests/runtime/gpu/cuda/cuda_stand_in.h"
#include "tests/runtime/gpu/product_trial.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

using Catch::Matchers::Contains;

// Products on host memory.
class StandInDevice final : public TrialDevice {
 public:
  const GpProducts& products() const override { return cuda::kProducts; }
  void* Memory(int64_t bytes) override {
    const auto size = (static_cast<size_t>(bytes) + 255) / 256 * 256;
    memory_.emplace_back(static_cast<std::byte*>(std::aligned_alloc(256, size)), &std::free);
    return memory_.back().get();
  }
  void Write(const void* from, void* to, int64_t bytes) override { std::memcpy(to, from, static_cast<size_t>(bytes)); }
  void Read(const void* from, void* to, int64_t bytes) override { std::memcpy(to, from, static_cast<size_t>(bytes)); }
  GpStream stream() override { return &stream_; }

 private:
  std::vector<std::unique_ptr<std::byte, decltype(&std::free)>> memory_;
  int stream_ = 0;
};

GpProductShape Plain() { return ShapeOf(kGpBf16, kGpFp32, false, true, 8, 24, 16, 1, With::kAddendAndRow); }

GpResult MakeAndDestroy(const GpProductShape& shape) {
  GpProductPlan* plan = nullptr;
  const GpResult result = cuda::kProducts.make(&shape, &plan);
  CHECK((plan != nullptr) == (result == kGpOk));
  cuda::kProducts.destroy(plan);
  CHECK(TheCublasLt().objects == 0);
  return result;
}

TEST_CASE("cuBLASLt is asked, column by column, for the port's products") {
  TheCublasLt() = {};
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  for (const ProductCase& product : ProductCases()) {
    StandInDevice device;
    INFO(product.Name());
    CHECK(TryProduct(device, product, seed).Wrong() == "");
    CHECK(TheCublasLt().stream == device.stream());
  }
  CHECK(TheCublasLt().objects == 0);
}

TEST_CASE("cuBLASLt's choice hangs on the shape and on what keeps bits alike") {
  TheCublasLt() = {};
  GpProductShape shape = Plain();
  shape.a_alignment_bytes = 4;
  shape.b_alignment_bytes = 8;
  shape.c_alignment_bytes = 16;
  shape.d_alignment_bytes = 32;
  shape.row_alignment_bytes = 64;
  shape.multiprocessors = 128;
  shape.workspace_limit_bytes = 32 << 20;
  REQUIRE(MakeAndDestroy(shape) == kGpOk);
  CHECK(TheCublasLt().compute_type == CUBLAS_COMPUTE_32F);
  CHECK(TheCublasLt().reductions == (CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  CHECK(TheCublasLt().workspace_limit == 32 << 20);
  CHECK(TheCublasLt().alignment_a == 8);  // its first operand is our second
  CHECK(TheCublasLt().alignment_b == 4);
  CHECK(TheCublasLt().alignment_c == 16);
  CHECK(TheCublasLt().alignment_d == 32);
  CHECK(TheCublasLt().row_alignment == 64);
  CHECK(TheCublasLt().multiprocessors == 128);
  shape.has_addend = 0;
  REQUIRE(MakeAndDestroy(shape) == kGpOk);
  CHECK(TheCublasLt().alignment_c == 32);  // C is D then
}

TEST_CASE("a plan's workspace is what cuBLASLt asks for") {
  TheCublasLt() = {};
  TheCublasLt().workspace_bytes = 1 << 16;
  StandInDevice device;
  GpProductShape shape = ShapeOf(kGpFp32, kGpFp32, false, false, 4, 4, 4, 1, With::kNothing);
  GpProductPlan* plan = nullptr;
  REQUIRE(cuda::kProducts.make(&shape, &plan) == kGpOk);
  CHECK(cuda::kProducts.workspace_bytes(plan) == 1 << 16);
  float* memory = static_cast<float*>(device.Memory(1024));
  const GpProductOperands operands = {.a = memory, .b = memory + 64, .c = nullptr, .row = nullptr, .d = memory + 128};
  void* workspace = device.Memory(1 << 16);
  CHECK(cuda::kProducts.run(plan, &operands, workspace, (1 << 16) - 1, device.stream()) == kGpInvalid);
  CHECK_THAT(cuda::LastError(), Contains("workspace is too small"));
  CHECK(cuda::kProducts.run(plan, &operands, workspace, 1 << 16, nullptr) == kGpInvalid);
  CHECK_THAT(cuda::LastError(), Contains("the stream is null"));
  TheCublasLt().matmul_status = CUBLAS_STATUS_EXECUTION_FAILED;
  CHECK(cuda::kProducts.run(plan, &operands, workspace, 1 << 16, device.stream()) == kGpInternal);
  CHECK_THAT(cuda::LastError(), Contains("cublasLtMatmul: CUBLAS_STATUS"));
  TheCuda().remembered = cudaErrorIllegalAddress;
  CHECK(cuda::kProducts.run(plan, &operands, workspace, 1 << 16, device.stream()) == kGpDeviceLost);
  cuda::kProducts.destroy(plan);
}

TEST_CASE("what cuBLASLt refuses is refused, and leaves no plan") {
  TheCublasLt() = {};
  GpProductShape shape = Plain();
  TheCublasLt().found = 0;
  CHECK(MakeAndDestroy(shape) == kGpUnsupported);
  CHECK_THAT(cuda::LastError(), Contains("no algorithm"));
  TheCublasLt() = {};
  TheCublasLt().heuristic_status = CUBLAS_STATUS_NOT_SUPPORTED;
  CHECK(MakeAndDestroy(shape) == kGpUnsupported);
  TheCublasLt() = {};
  TheCublasLt().found_state = CUBLAS_STATUS_ARCH_MISMATCH;
  CHECK(MakeAndDestroy(shape) == kGpUnsupported);
  shape.operand_type = kGpInt32;
  CHECK(MakeAndDestroy(shape) == kGpUnsupported);
  CHECK_THAT(cuda::LastError(), Contains("products are of fp32"));
}

TEST_CASE("each device has one handle, made when it is first needed") {
  TheCublasLt() = {};
  TheCuda() = {};
  TheCuda().device = 7;
  TheCublasLt().create_status = CUBLAS_STATUS_NOT_INITIALIZED;
  CHECK(MakeAndDestroy(Plain()) == kGpInternal);
  CHECK_THAT(cuda::LastError(), Contains("cublasLtCreate"));
  TheCublasLt().create_status = CUBLAS_STATUS_SUCCESS;
  CHECK(MakeAndDestroy(Plain()) == kGpOk);
  CHECK(MakeAndDestroy(Plain()) == kGpOk);
  CHECK(TheCublasLt().handles == 2);
  TheCuda().device = 8;
  CHECK(MakeAndDestroy(Plain()) == kGpOk);
  CHECK(TheCublasLt().handles == 3);
  TheCuda().device = 64;
  CHECK(MakeAndDestroy(Plain()) == kGpInvalid);
  TheCuda() = {};
}

}  // namespace
}  // namespace geopipe
