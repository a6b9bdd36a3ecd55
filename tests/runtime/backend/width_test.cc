// Kernels compiled for vectors of both widths give the same bits. Skipped without AVX-512, where there is only one.
#include <random>

#include "runtime/backend/cpu_head_attention.h"
#include "runtime/backend/cpu_views.h"
#include "tests/runtime/backend/kernel_test.h"

namespace geopipe {
namespace {

using cpu::Narrow;
using cpu::Wide;

[[maybe_unused]] bool HasWide() {
  bool wide = false;
  WithWidth([&]<class W>(W) { wide = std::is_same_v<W, Wide>; });
  return wide;
}

// Bits of every matrix and vector that a kernel wrote.
using Results = std::vector<std::vector<std::byte>>;

template <class T>
std::vector<std::byte> Bytes(const std::vector<T>& values) {
  const auto* const first = reinterpret_cast<const std::byte*>(values.data());
  return {first, first + values.size() * sizeof(T)};
}

constexpr int64_t kRows = 70;
constexpr int64_t kColumns = 77;  // of no width's lanes a multiple

// Operands of a seed, the same for both widths, and what kernels write to.
template <class T>
struct Operands {
  explicit Operands(uint64_t seed) : random(seed) {}

  cpu::Rows<const T> In() {
    ins.push_back(Fill<T>(kRows * kColumns));
    return {ins.back().data(), kRows, kColumns, kColumns};
  }
  template <class Out = T>
  cpu::Rows<Out> Out1() {
    auto& of_type = std::get<std::vector<std::vector<Out>>>(outs);
    of_type.push_back(Fill<Out>(kRows * kColumns));
    return {of_type.back().data(), kRows, kColumns, kColumns};
  }

  template <class Value>
  std::vector<Value> Fill(int64_t count) {
    std::normal_distribution<float> normal;
    std::vector<Value> values(count);
    for (Value& value : values) {
      const float drawn = normal(random);
      if constexpr (std::is_same_v<Value, float>) {
        value = drawn;
      } else {
        value = NearestBf16(drawn);
      }
    }
    return values;
  }

  Results Written() const {
    Results results;
    std::apply([&](const auto&... lists) { (Append(lists, results), ...); }, outs);
    return results;
  }
  template <class Lists>
  static void Append(const Lists& lists, Results& results) {
    for (const auto& list : lists) {
      results.push_back(Bytes(list));
    }
  }

  std::mt19937_64 random;
  std::vector<std::vector<T>> ins;
  std::tuple<std::vector<std::vector<float>>, std::vector<std::vector<BFloat16>>> outs;
};

template <class T, class Width>
Results Norm(uint64_t seed) {
  Operands<T> operands(seed);
  const auto x = operands.In();
  const auto grad = operands.In();
  const auto residual = operands.In();
  const std::vector<float> weight = operands.template Fill<float>(11);
  std::vector<float> inverse(kRows * 7);
  std::vector<float> sums(2 * 11);
  cpu::NormKernels<T, Width>::RmsNorm(1, x, 11, weight.data(), 1e-5F, operands.Out1(), inverse.data());
  cpu::NormKernels<T, Width>::RmsNormGrad(1, x, 11, weight.data(), inverse.data(), grad, residual, operands.Out1(),
                                          sums.data());
  Results results = operands.Written();
  results.push_back(Bytes(inverse));
  results.push_back(Bytes(sums));
  return results;
}

template <class T, class Width>
Results Attention(uint64_t seed) {
  Operands<T> operands(seed);
  Operands<float> fp32(seed + 1);
  const cpu::Rows<const float> raw = fp32.In();
  const auto exponentials = operands.Out1();
  const auto sums = fp32.Out1();
  std::vector<float> maxima(kRows, 0.5F);
  std::vector<float> totals(kRows, 2);
  std::vector<float> statistics(kRows);
  using Kernels = cpu::AttentionKernels<T, Width>;
  Kernels::SoftmaxBlock(raw, exponentials, /*first_query=*/90, /*first_key=*/64, nullptr, 0.3F, maxima.data(),
                        totals.data(), sums);
  Kernels::EndSoftmax({sums.data, kRows, kColumns, kColumns}, maxima.data(), totals.data(), operands.Out1(),
                      statistics.data());
  std::vector<float> products(kRows);
  Kernels::RowProducts(operands.In(), operands.In(), products.data());
  const std::vector<float> angles = operands.template Fill<float>(kRows * 5);
  const auto turned = operands.Out1();
  Kernels::Rope(1, {turned.data, kRows, 70, kColumns}, angles.data(), angles.data(), kRows, 10, -1.0F);
  Results results = operands.Written();
  for (const auto& more : {fp32.Written(), Results{Bytes(maxima), Bytes(totals), Bytes(statistics), Bytes(products)}}) {
    results.insert(results.end(), more.begin(), more.end());
  }
  return results;
}

// Kernels of one head with documents, whose blocks end early.
template <class T, class Width>
Results HeadAttention(uint64_t seed) {
  Operands<T> operands(seed);
  std::vector<int32_t> starts;
  for (int32_t i = 0; i < kRows; ++i) {
    starts.push_back(i < 67 ? 0 : 67);
  }
  const cpu::AttentionHead<T> head{operands.In(), operands.In(), operands.In(), starts.data(), 0.2F};
  const cpu::Rows<const T> grad_out = operands.In();
  const cpu::Rows<T> out = operands.Out1();
  const cpu::Rows<T> grad_query = operands.Out1();
  std::vector<float> statistics(kRows);
  std::vector<float> grad_key(kRows * kColumns);
  std::vector<float> grad_value(kRows * kColumns);
  using Kernel = cpu::BlockAttention<T, Width>;
  std::vector<cpu::RoomLine> room(Kernel::RoomLines(kColumns));
  Kernel::Forward(head, out, statistics.data(), room.data());
  Kernel::Backward(head,
                   {{out.data, kRows, kColumns, kColumns},
                    statistics.data(),
                    grad_out,
                    grad_query,
                    grad_key.data(),
                    grad_value.data()},
                   room.data());
  Results results = operands.Written();
  for (const auto& more : {statistics, grad_key, grad_value}) {
    results.push_back(Bytes(more));
  }
  return results;
}

template <class T, class Width>
Results Elementwise(uint64_t seed) {
  Operands<T> operands(seed);
  Operands<float> fp32(seed + 1);
  using Kernels = cpu::ElementwiseKernels<T, Width>;
  const auto gate = operands.In();
  const auto up = operands.In();
  const auto grad = operands.In();
  Kernels::SwiGlu(1, gate, up, operands.Out1());
  const auto grad_gate = operands.Out1();
  Kernels::SwiGluGrad(1, gate, up, grad, grad_gate, operands.Out1());
  std::vector<float> sum(kColumns, 1);
  Kernels::SumRows(1, gate, sum.data());
  std::vector<double> squares(2);
  Kernels::SumOfSquares(1, kRows * kColumns, gate.data, squares.data());
  using Vectors = cpu::VectorKernels<Width>;
  Vectors::Convert(1, gate, operands.template Out1<float>());
  Vectors::Convert(1, gate, operands.template Out1<BFloat16>());
  Vectors::Axpy(1, 77, 0.7F, fp32.In().data, fp32.Out1().data);
  const AdamWConstants constants{0.5F, 0.99F, 0.9F, 0.1F, 0.95F, 0.05F, 0.3F, 1e-8F, 1e-3F};
  std::vector<float> parameter = fp32.Fill<float>(77);
  std::vector<float> first = fp32.Fill<float>(77);
  std::vector<float> second(77, 0.25F);
  std::vector<BFloat16> rounded(77);
  Vectors::AdamW(1, 77, constants, parameter.data(), fp32.In().data, first.data(), second.data(), rounded.data());
  Results results = operands.Written();
  for (const auto& more : {fp32.Written(), Results{Bytes(sum), Bytes(squares), Bytes(parameter), Bytes(first),
                                                   Bytes(second), Bytes(rounded)}}) {
    results.insert(results.end(), more.begin(), more.end());
  }
  return results;
}

template <class T, class Width>
Results Loss(uint64_t seed) {
  Operands<T> operands(seed);
  Operands<float> fp32(seed + 1);
  std::vector<int32_t> targets(kRows);
  for (int32_t& target : targets) {
    target = static_cast<int32_t>(operands.random() % kColumns);
  }
  std::vector<double> losses(2 * kRows);
  cpu::LossKernels<T, Width>::CrossEntropy(1, fp32.Out1(), targets.data(), 0.1F, operands.Out1(), losses.data());
  std::vector<float> max(kRows);
  std::vector<float> sums(2 * kRows);
  const auto logits = fp32.Out1();
  const cpu::Rows<const float> read{logits.data, kRows, kColumns, kColumns};
  cpu::SlicedLossKernels<Width>::CrossEntropyMax(1, read, max.data());
  cpu::SlicedLossKernels<Width>::CrossEntropySums(1, logits, max.data(), targets.data(), 40, sums.data());
  cpu::LossKernels<T, Width>::CrossEntropyGrad(1, read, max.data(), sums.data(), targets.data(), 40, 0.1F,
                                               operands.Out1(), losses.data() + kRows);
  const auto table = fp32.Out1();
  cpu::EmbeddingKernels<T, Width>::EmbeddingGrad(1, targets.data(), operands.In(), 3, table);
  Results results = operands.Written();
  for (const auto& more : {fp32.Written(), Results{Bytes(losses), Bytes(max), Bytes(sums)}}) {
    results.insert(results.end(), more.begin(), more.end());
  }
  return results;
}

#if defined(__x86_64__)  // elsewhere there is one width
TEMPLATE_TEST_CASE("kernels for vectors of both widths give the same bits", "", float, BFloat16) {
  if (!HasWide()) {
    return;
  }
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  CHECK(Norm<TestType, Narrow>(seed) == Norm<TestType, Wide>(seed));
  CHECK(Attention<TestType, Narrow>(seed) == Attention<TestType, Wide>(seed));
  CHECK(HeadAttention<TestType, Narrow>(seed) == HeadAttention<TestType, Wide>(seed));
  CHECK(Elementwise<TestType, Narrow>(seed) == Elementwise<TestType, Wide>(seed));
  CHECK(Loss<TestType, Narrow>(seed) == Loss<TestType, Wide>(seed));
}
#endif

}  // namespace
}  // namespace geopipe
