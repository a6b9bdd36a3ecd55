#include <catch2/catch.hpp>
#include <cstring>
#include <string>
#include <vector>

#include "tests/runtime/gpu/product_trial.h"
#include "tests/support/gpu_emulator/emulated_gpu.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

using Catch::Matchers::Contains;

class EmulatedTrialDevice final : public TrialDevice {
 public:
  const GpProducts& products() const override { return gpu_.port().products; }
  void* Memory(int64_t bytes) override { return gpu_.DeviceMemory(bytes); }
  void Write(const void* from, void* to, int64_t bytes) override {
    void* pinned = gpu_.PinnedMemory(bytes);
    std::memcpy(pinned, from, static_cast<size_t>(bytes));
    REQUIRE(gpu_.runtime().copy(pinned, to, bytes, stream_) == kGpOk);
  }
  void Read(const void* from, void* to, int64_t bytes) override {
    void* pinned = gpu_.PinnedMemory(bytes);
    REQUIRE(gpu_.runtime().copy(from, pinned, bytes, stream_) == kGpOk);
    REQUIRE(gpu_.runtime().stream_synchronize(stream_) == kGpOk);
    std::memcpy(to, pinned, static_cast<size_t>(bytes));
  }
  GpStream stream() override { return stream_; }

 private:
  EmulatedGpu gpu_;
  GpStream stream_ = gpu_.Stream();
};

TEST_CASE("emulated products are those of fp64, of all types, transposes, addends and odd shapes") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  for (const ProductCase& product : ProductCases()) {
    EmulatedTrialDevice device;
    INFO(product.Name());
    CHECK(TryProduct(device, product, seed).Wrong() == "");
  }
}

TEST_CASE("shapes that the port does not have are refused") {
  const EmulatedGpu gpu;
  struct Case {
    std::string why;
    GpResult result;
    void (*change)(GpProductShape&);
  };
  const std::vector<Case> cases = {
      {"products are of fp32", kGpUnsupported, [](GpProductShape& s) { s.operand_type = kGpInt32; }},
      {"products are of fp32", kGpUnsupported, [](GpProductShape& s) { s.result_type = kGpBf16; }},
      {"products are of fp32", kGpUnsupported, [](GpProductShape& s) { s.result_type = kGpFp64; }},
      {"a row is added", kGpUnsupported, [](GpProductShape& s) { s.has_row = 1; }},
      {"a row is added", kGpUnsupported,
       [](GpProductShape& s) {
         s.operand_type = s.result_type = kGpBf16;
         s.batch = 1;
         s.has_row = 1;
       }},
      {"at least 1", kGpInvalid, [](GpProductShape& s) { s.k = 0; }},
      {"at least 1", kGpInvalid, [](GpProductShape& s) { s.batch = 0; }},
      {"shorter than the rows", kGpInvalid, [](GpProductShape& s) { s.a_stride = s.k - 1; }},
      {"shorter than the rows", kGpInvalid, [](GpProductShape& s) { s.b_stride = s.n - 1; }},
      {"shorter than the rows", kGpInvalid, [](GpProductShape& s) { s.c_stride = s.n - 1; }},
      {"shorter than the rows", kGpInvalid, [](GpProductShape& s) { s.d_stride = s.n - 1; }},
      {"results of the batch overlap", kGpInvalid, [](GpProductShape& s) { s.d_batch_stride = 0; }},
      {"results of the batch overlap", kGpInvalid,
       [](GpProductShape& s) {
         s.d_stride = 2 * s.n;
         s.d_batch_stride = s.n - 1;
       }},
      {"results of the batch overlap", kGpInvalid,
       [](GpProductShape& s) {
         s.d_stride = 2 * s.n - 1;
         s.d_batch_stride = s.n;
       }},
      {"power of two", kGpInvalid, [](GpProductShape& s) { s.a_alignment_bytes = 12; }},
      {"power of two", kGpInvalid, [](GpProductShape& s) { s.b_alignment_bytes = 2; }},
      {"power of two", kGpInvalid, [](GpProductShape& s) { s.c_alignment_bytes = 512; }},
      {"power of two", kGpInvalid, [](GpProductShape& s) { s.d_alignment_bytes = 0; }},
      {"power of two", kGpInvalid,
       [](GpProductShape& s) {
         s.batch = 1;
         s.has_row = 1;
         s.row_alignment_bytes = 3;
       }},
      {"negative", kGpInvalid, [](GpProductShape& s) { s.multiprocessors = -1; }},
      {"negative", kGpInvalid, [](GpProductShape& s) { s.workspace_limit_bytes = -1; }},
  };
  for (const Case& c : cases) {
    GpProductShape shape = ShapeOf(kGpFp32, kGpFp32, false, false, 3, 5, 7, 2, With::kAddend);
    GpProductPlan* plan = nullptr;
    REQUIRE(gpu.port().products.make(&shape, &plan) == kGpOk);
    gpu.port().products.destroy(plan);
    c.change(shape);
    INFO(c.why);
    CHECK(gpu.port().products.make(&shape, &plan) == c.result);
    CHECK(plan == nullptr);
    CHECK_THAT(gpu.runtime().last_error(), Contains(c.why));
  }
}

TEST_CASE("runs refuse operands that are missing, misaligned or too small, and too little workspace") {
  const EmulatedGpu gpu;
  const GpProducts& products = gpu.port().products;
  GpStream stream = gpu.Stream();
  GpProductShape shape = ShapeOf(kGpFp32, kGpFp32, false, false, 8, 8, 8, 1, With::kAddendAndRow);
  shape.a_stride = shape.b_stride = shape.c_stride = shape.d_stride = 8;
  shape.a_alignment_bytes = shape.b_alignment_bytes = shape.c_alignment_bytes = 16;
  shape.d_alignment_bytes = shape.row_alignment_bytes = 16;
  GpProductPlan* plan = nullptr;
  REQUIRE(products.make(&shape, &plan) == kGpOk);
  const int64_t workspace_bytes = products.workspace_bytes(plan);
  CHECK(workspace_bytes == 256);
  auto* memory = static_cast<float*>(gpu.DeviceMemory(4096));
  auto* workspace = static_cast<std::byte*>(gpu.DeviceMemory(1024));
  const GpProductOperands good = {
      .a = memory, .b = memory + 64, .c = memory + 128, .row = memory + 192, .d = memory + 256};
  const auto run = [&](const GpProductOperands& operands) {
    return products.run(plan, &operands, workspace, workspace_bytes, stream);
  };
  const auto with = [&](auto change) {
    GpProductOperands operands = good;
    change(operands);
    return run(operands);
  };
  CHECK(run(good) == kGpOk);
  CHECK(with([](GpProductOperands& o) { o.a = nullptr; }) == kGpInvalid);
  CHECK(with([](GpProductOperands& o) { o.c = nullptr; }) == kGpInvalid);
  CHECK(with([](GpProductOperands& o) { o.row = nullptr; }) == kGpInvalid);
  CHECK_THAT(gpu.runtime().last_error(), Contains("missing"));
  CHECK(with([&](GpProductOperands& o) { o.a = memory + 1; }) == kGpInvalid);
  CHECK_THAT(gpu.runtime().last_error(), Contains("less aligned"));
  CHECK(with([&](GpProductOperands& o) { o.b = memory + 65; }) == kGpInvalid);
  CHECK(with([&](GpProductOperands& o) { o.c = memory + 129; }) == kGpInvalid);
  CHECK(with([&](GpProductOperands& o) { o.row = memory + 193; }) == kGpInvalid);
  CHECK(with([&](GpProductOperands& o) { o.d = memory + 257; }) == kGpInvalid);
  CHECK_THAT(gpu.runtime().last_error(), Contains("less aligned"));
  CHECK(with([&](GpProductOperands& o) { o.a = memory + 1024 - 60; }) == kGpInvalid);
  CHECK_THAT(gpu.runtime().last_error(), Contains("a reaches beyond its device memory"));
  CHECK(with([&](GpProductOperands& o) { o.d = memory + 1024 - 60; }) == kGpInvalid);
  CHECK(products.run(plan, &good, workspace, workspace_bytes - 1, stream) == kGpInvalid);
  CHECK_THAT(gpu.runtime().last_error(), Contains("workspace is too small"));
  CHECK(products.run(plan, &good, workspace + 16, workspace_bytes, stream) == kGpInvalid);
  CHECK(products.run(plan, &good, workspace, workspace_bytes, nullptr) == kGpInvalid);
  products.destroy(plan);

  shape.workspace_limit_bytes = 255;
  REQUIRE(products.make(&shape, &plan) == kGpOk);
  CHECK(products.workspace_bytes(plan) == 0);
  CHECK(products.run(plan, &good, nullptr, 0, stream) == kGpOk);
  products.destroy(plan);
}

// True when a product on each of two streams comes out, while they share a workspace or have their own.
bool BothRight(uint64_t seed, bool is_shared) {
  const EmulatedGpu gpu("seed=" + std::to_string(seed));
  const GpRuntime& runtime = gpu.runtime();
  const GpProducts& products = gpu.port().products;
  const GpProductShape shape = ShapeOf(kGpFp32, kGpFp32, false, false, 4, 4, 4, 1, With::kNothing);
  GpProductPlan* plan = nullptr;
  REQUIRE(products.make(&shape, &plan) == kGpOk);
  const int64_t bytes = products.workspace_bytes(plan);
  void* workspace = gpu.DeviceMemory(bytes);
  void* zeros = gpu.DeviceMemory(1024);
  GpStream first = gpu.Stream();
  REQUIRE(runtime.fill(zeros, 0, 1024, first) == kGpOk);
  REQUIRE(runtime.stream_synchronize(first) == kGpOk);
  bool right = true;
  std::vector<GpStream> streams = {first, gpu.Stream()};
  std::vector<float*> results;
  for (GpStream stream : streams) {
    void* d = gpu.DeviceMemory(1024);
    results.push_back(static_cast<float*>(gpu.PinnedMemory(1024)));
    const GpProductOperands operands = {.a = zeros, .b = zeros, .c = nullptr, .row = nullptr, .d = d};
    void* own = is_shared ? workspace : gpu.DeviceMemory(bytes);
    REQUIRE(products.run(plan, &operands, own, bytes, stream) == kGpOk);
    REQUIRE(runtime.copy(d, results.back(), 1024, stream) == kGpOk);
  }
  for (size_t i = 0; i < streams.size(); ++i) {
    REQUIRE(runtime.stream_synchronize(streams[i]) == kGpOk);
    right = right && results[i][0] == 0;
  }
  products.destroy(plan);
  return right;
}

TEST_CASE("a workspace that two streams share shows in a result at some seed") {
  int wrong = 0;
  for (uint64_t seed = 0; seed < 30; ++seed) {
    INFO("seed " << seed);
    CHECK(BothRight(seed, /*is_shared=*/false));
    wrong += BothRight(seed, /*is_shared=*/true) ? 0 : 1;
  }
  CHECK(wrong > 0);
}

}  // namespace
}  // namespace geopipe
