#include "runtime/tensor/tensor.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <utility>

namespace geopipe {
namespace {

TEST_CASE("a tensor knows its shape, elements and bytes") {
  Allocator allocator(1 << 20);
  const Tensor tensor = *Tensor::Create(allocator, MemoryCategory::kWeights, DType::kBf16, {3, 5, 7});
  CHECK(tensor.shape() == std::vector<int64_t>{3, 5, 7});
  CHECK(tensor.elements() == 105);
  CHECK(tensor.bytes() == 210);
  CHECK(allocator.usage(MemoryCategory::kWeights).bytes == 210);
  CHECK(tensor.bf16().size() == 105);
  CHECK(static_cast<void*>(tensor.bf16().data()) == tensor.data());
}

TEST_CASE("Zeros is zero even where the memory was used before") {
  Allocator allocator(1 << 20);
  {
    const Tensor used = *Tensor::Create(allocator, MemoryCategory::kWorkspace, DType::kFp32, {100});
    std::ranges::fill(used.fp32(), 3.0F);
  }
  const Tensor zeros = *Tensor::Zeros(allocator, MemoryCategory::kWorkspace, DType::kFp32, {100});
  CHECK(std::ranges::all_of(zeros.fp32(), [](float value) { return value == 0.0F; }));
}

TEST_CASE("a moved-from tensor is empty") {
  Allocator allocator(1 << 20);
  Tensor a = *Tensor::Create(allocator, MemoryCategory::kActivations, DType::kInt32, {4});
  const Tensor b = std::move(a);
  CHECK(a.empty());  // NOLINT(bugprone-use-after-move): the state after the move is what is tested
  CHECK(a.elements() == 0);
  CHECK(a.shape().empty());
  CHECK(b.int32().size() == 4);
}

TEST_CASE("a tensor's memory changes its category") {
  Allocator allocator(1 << 20);
  Tensor tensor = *Tensor::Create(allocator, MemoryCategory::kTransport, DType::kFp32, {8});
  tensor.SetCategory(MemoryCategory::kActivations);
  CHECK(allocator.usage(MemoryCategory::kTransport).bytes == 0);
  CHECK(allocator.usage(MemoryCategory::kActivations).bytes == 32);
}

TEST_CASE("a tensor that does not fit reports the allocator's error") {
  Allocator allocator(100);
  CHECK(Tensor::Create(allocator, MemoryCategory::kWeights, DType::kFp32, {26}).status().code() ==
        absl::StatusCode::kResourceExhausted);
}

TEST_CASE("names and sizes of the element types") {
  CHECK(DTypeName(DType::kFp32) == "fp32");
  CHECK(DTypeName(DType::kBf16) == "bf16");
  CHECK(DTypeName(DType::kFp16) == "fp16");
  CHECK(DTypeName(DType::kInt32) == "int32");
  CHECK(ByteSize(DType::kFp32) == 4);
  CHECK(ByteSize(DType::kBf16) == 2);
}

}  // namespace
}  // namespace geopipe
