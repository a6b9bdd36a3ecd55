// Fibers in place of CUDA's threads, on kernels with planted faults.
#include <numeric>

#include "runtime/gpu/kernels/device_language.h"
#include "runtime/gpu/kernels/reduce.h"
#include "tests/runtime/gpu/kernels/gpu_kernel_test.h"

namespace geopipe::gpu {
namespace {

#ifdef __SANITIZE_ADDRESS__
constexpr bool kAddressSanitized = true;
#else
constexpr bool kAddressSanitized = false;
#endif

constexpr int kThreads = 128;
constexpr int kColumns = 3 * kThreads;  // of more than one warp

enum class Plant : uint8_t { kNone, kMissingBarrier, kOverrun, kUnwritten };

// out [columns] = the sum of `in`. One block.
template <Plant kPlant>
__global__ void SumKernel(const float* in, int columns, float* out) {
  GP_SHARED(float, parts, kThreads / kWarp);
  float sum = 0;
  for (int j = static_cast<int>(threadIdx.x); j < columns; j += kThreads) {
    sum += in[j];
  }
  sum = FoldWarp(sum, Add());
  if (threadIdx.x % kWarp == 0) {
    parts[threadIdx.x / kWarp] = sum;
  }
  if constexpr (kPlant != Plant::kMissingBarrier) {
    __syncthreads();
  }
  sum = 0;
  for (int warp = 0; warp < kThreads / kWarp; ++warp) {
    sum += parts[warp];
  }
  const int end = kPlant == Plant::kOverrun ? columns + 1 : kPlant == Plant::kUnwritten ? columns - 1 : columns;
  for (int j = static_cast<int>(threadIdx.x); j < end; j += kThreads) {
    out[j] = sum;
  }
}

template <Plant kPlant>
void Sum(const std::vector<float>& in, float* out) {
  REQUIRE(Launch(nullptr, dim3(1), kThreads, SumKernel<kPlant>, in.data(), kColumns, out) == 0);
}

template <Plant kPlant>
std::vector<float> SumOf(const std::vector<float>& in) {
  std::vector<float> out = Poison(kColumns);
  Sum<kPlant>(in, out.data());
  return out;
}

std::vector<float> Operand() {
  std::vector<float> values(kColumns);
  for (int i = 0; i < kColumns; ++i) {
    values[i] = static_cast<float>(i % 7) + 0.25F;
  }
  return values;
}

// The last words of a process that a launch of the kernel ends.
template <class... Parameters, class... Arguments>
std::string LastWords(void (*kernel)(Parameters...), Arguments... arguments) {
  const ProcessEnd end = InProcess([&] { return Launch(nullptr, dim3(1), kThreads, kernel, arguments...); });
  CHECK(end.status != 0);
  return end.words;
}

TEST_CASE("a kernel's threads meet at barriers and in shuffles") {
  const std::vector<float> in = Operand();
  float sum = 0;
  std::ranges::for_each(in, [&](float value) { sum += value; });  // exact
  CHECK(SumOf<Plant::kNone>(in) == std::vector<float>(kColumns, sum));
  CheckSameInAllOrders([&] { return Results().Add(SumOf<Plant::kNone>(in)); });
}

TEST_CASE("blocks, warps and lanes run in the order that the settings say") {
  const auto kernel = +[](std::vector<unsigned>* order) { order->push_back(blockIdx.x * 64 + threadIdx.x); };
  const auto order_of = [&](const emulation::Settings& settings) {
    const WithSettings with(settings);
    std::vector<unsigned> order;
    REQUIRE(Launch(nullptr, dim3(3), 64, kernel, &order) == 0);
    return order;
  };
  std::vector<unsigned> ascending(3 * 64);
  std::iota(ascending.begin(), ascending.end(), 0U);
  CHECK(order_of({.order = emulation::ThreadOrder::kAscending}) == ascending);
  CHECK(order_of({.order = emulation::ThreadOrder::kDescending}) ==
        std::vector<unsigned>(ascending.rbegin(), ascending.rend()));
  std::vector<unsigned> shuffled = order_of({.order = emulation::ThreadOrder::kShuffled, .seed = 1});
  CHECK(shuffled == order_of({.order = emulation::ThreadOrder::kShuffled, .seed = 1}));
  CHECK(shuffled != order_of({.order = emulation::ThreadOrder::kShuffled, .seed = 2}));
  CHECK(shuffled != ascending);
  std::ranges::sort(shuffled);
  CHECK(shuffled == ascending);
}

TEST_CASE("planted: a missing barrier gives other bits in nearly all orders of threads") {
  const std::vector<float> in = Operand();
  const std::vector<float> right = SumOf<Plant::kNone>(in);
  int found = 0;
  for (const emulation::Settings& order : ThreadOrders()) {
    const WithSettings settings(order);
    found += static_cast<int>(
        std::memcmp(SumOf<Plant::kMissingBarrier>(in).data(), right.data(), right.size() * sizeof(float)) != 0);
  }
  CHECK(found >= 5);
}

TEST_CASE("planted: an element that no thread writes keeps its poison") {
  const std::vector<float> out = SumOf<Plant::kUnwritten>(Operand());
  CHECK(std::isnan(out.back()));
  CHECK(OutsideBound(DType::kFp32, out, std::vector<Expected>(kColumns, {.value = out[0], .terms = out[0]})) != "");
}

TEST_CASE("planted: an element written beyond the end is found") {
  const Matrix guarded(DType::kFp32, 1, kColumns, {}, 1);
  auto* const out = reinterpret_cast<float*>(guarded.view().data);
  Sum<Plant::kNone>(Operand(), out);
  CHECK(guarded.IntactBetweenRows());
  Sum<Plant::kOverrun>(Operand(), out);
  CHECK(!guarded.IntactBetweenRows());
  if (kAddressSanitized) {
    const std::vector<float> in = Operand();
    std::vector<float> exact(kColumns);
    const std::string words = LastWords(SumKernel<Plant::kOverrun>, in.data(), kColumns, exact.data());
    CHECK(words.find("heap-buffer-overflow") != std::string::npos);
    CHECK(words.find("SumKernel") != std::string::npos);
    CHECK(words.find("fibers_test.cc") != std::string::npos);
  }
}

TEST_CASE("memory that a block shares is poisoned for each block, and as large as it says") {
  const auto kernel = +[](float* out) {
    GP_SHARED(float, parts, kThreads);
    out[blockIdx.x * kThreads + threadIdx.x] = parts[threadIdx.x];
    parts[threadIdx.x] = 1;
  };
  std::vector<float> out(2 * kThreads);
  REQUIRE(Launch(nullptr, dim3(2), kThreads, kernel, out.data()) == 0);
  CHECK(std::ranges::all_of(out, [](float value) { return std::isnan(value); }));
  const auto overrun = +[] {
    GP_SHARED(float, parts, kThreads);
    parts[threadIdx.x + 1] = 1;
  };
  if (kAddressSanitized) {
    CHECK(LastWords(overrun).find("heap-buffer-overflow") != std::string::npos);
  }
}

__global__ void EarlyReturnKernel() {
  if (threadIdx.x == 70) {
    return;
  }
  __syncthreads();
}

__global__ void TwoBarriersKernel() {
  if (threadIdx.x < 64) {
    __syncthreads();
  }
  if (threadIdx.x >= 64) {
    __syncthreads();
  }
}

__global__ void LaneMissingKernel() {
  if (threadIdx.x % kWarp != 5) {
    __shfl_xor_sync(0xffffffffU, 1, 1);
  }
}

__global__ void ForeignLaneKernel() {
  if (threadIdx.x % kWarp < 4) {
    __shfl_xor_sync(0xfU, 1, 4);
  }
}

__global__ void MisalignedKernel() {
  alignas(16) const float values[8] = {};
  const uint4 word = WordAt<uint4>(values + 1);
  __shfl_xor_sync(0xffffffffU, word.x, 1);
}

__global__ void WrongMaskKernel() { __shfl_xor_sync(0xfU, 1, 1); }

TEST_CASE("threads that miss each other or access what is not aligned end the process with a sentence") {
  struct Case {
    void (*kernel)();
    const char* sentence;
  };
  const Case planted = GENERATE(
      Case{EarlyReturnKernel, "thread 70 of block 0 returned while thread 0 waits at the barrier "},
      Case{TwoBarriersKernel, "threads of block 0 wait at different barriers, "},
      Case{LaneMissingKernel, "lanes of warp 0 of block 0 wait in a shuffle that others of its mask never reach"},
      Case{ForeignLaneKernel, "lane 0 shuffles with lane 4, which mask 0xf lacks"},
      Case{MisalignedKernel, "thread 0 of block 0 accesses 16 bytes at "},
      Case{WrongMaskKernel, "lane 4 shuffles with mask 0xf, which lacks it"});
  const std::string words = LastWords(planted.kernel);
  CAPTURE(words);
  CHECK(words.find(planted.sentence) != std::string::npos);
}

TEST_CASE("lanes of a mask shuffle among themselves, while others do something else") {
  const auto kernel = +[](int* out) {
    int value = static_cast<int>(threadIdx.x);
    for (unsigned i = 0; i < threadIdx.x % kWarp / 8; ++i) {  // each eight lanes as often as they like
      value = __shfl_xor_sync(0xffU << (threadIdx.x % kWarp / 8 * 8), value, 1);
    }
    out[threadIdx.x] = __shfl_xor_sync(0xffffffffU, value, 0);
  };
  for (const emulation::Settings& order : ThreadOrders()) {
    const WithSettings settings(order);
    std::vector<int> out(64);
    REQUIRE(Launch(nullptr, dim3(1), 64, kernel, out.data()) == 0);
    for (int i = 0; i < 64; ++i) {
      CHECK(out[i] == (i / 8 % 2 == 0 ? i : i ^ 1));
    }
  }
}

TEST_CASE("a launch may be queued, its work done later, at the processor's addresses") {
  std::vector<std::function<void()>> queue;
  emulation::Settings settings;
  settings.submit = [&](void* stream, std::function<void()> work) {
    CHECK(stream == &queue);
    queue.push_back(std::move(work));
    return queue.size() < 3 ? 0 : 46;
  };
  settings.processor_address = [](void* address) -> void* { return static_cast<std::byte*>(address) - 4096; };
  const WithSettings with(settings);
  float out = 0;
  const auto kernel = +[](float* to, float value) { *to = value; };
  auto* const foreign = reinterpret_cast<float*>(reinterpret_cast<std::byte*>(&out) + 4096);
  CHECK(Launch(&queue, dim3(1), 32, kernel, foreign, 1.0F) == 0);
  CHECK(Launch(&queue, dim3(1), 32, kernel, foreign, 2.0F) == 0);
  CHECK(Launch(&queue, dim3(1), 32, kernel, foreign, 3.0F) == 46);
  CHECK(out == 0);
  queue[1]();
  CHECK(out == 2);
  queue[0]();
  CHECK(out == 1);
}

}  // namespace
}  // namespace geopipe::gpu
