// Every barrier of every kernel is needed, and its absence shows: without it, some order of threads gives other bits,
// or threads miss each other at the next.
#include "tests/runtime/gpu/kernels/gpu_kernel_test.h"

namespace geopipe {
namespace {

// Runs a kernel on fixed operands, in columns that more than one warp has, and returns its results.
using KernelRun = Results (*)(KernelTest& test);

const float* Floats(const Matrix& matrix) { return reinterpret_cast<const float*>(matrix.view().data); }

Results RunNormGrad(KernelTest& test, int64_t rows, int64_t width) {
  const std::vector<float> x = test.Normal(rows * width);
  const std::vector<float> weight = test.Normal(width);
  const std::vector<float> rms = test.Normal(rows);
  std::vector<float> grad_x = test.Normal(rows * width);
  std::vector<float> grad_weight = test.Normal(width);
  std::vector<float> workspace = Poison(kGpRmsNormGradParts * width);
  const GpRmsNormGrad args = {.dtype = kGpFp32,
                              .rows = rows,
                              .groups = 1,
                              .width = width,
                              .x = x.data(),
                              .x_stride = width,
                              .weight = weight.data(),
                              .inverse_rms = rms.data(),
                              .grad_y = grad_x.data(),
                              .grad_y_stride = width,
                              .residual = nullptr,
                              .residual_stride = 0,
                              .grad_x = grad_x.data(),
                              .grad_x_stride = width,
                              .grad_weight = grad_weight.data(),
                              .workspace = workspace.data()};
  REQUIRE(gpu::RmsNormGrad(&args, nullptr) == 0);
  return Results().Add(grad_x).Add(grad_weight);
}

Results NormGradOfWarps(KernelTest& test) { return RunNormGrad(test, 20, 100); }
Results NormGradOfBlocks(KernelTest& test) { return RunNormGrad(test, 3 * kGpRmsNormGradParts, 1000); }

Results NormOfBlocks(KernelTest& test) {
  constexpr int64_t kWidth = 1000;
  const std::vector<float> x = test.Normal(2 * kWidth);
  const std::vector<float> weight = test.Normal(kWidth);
  std::vector<float> y = Poison(2 * kWidth);
  std::vector<float> rms = Poison(2);
  const GpRmsNorm args = {.dtype = kGpFp32,
                          .rows = 2,
                          .groups = 1,
                          .width = kWidth,
                          .x = x.data(),
                          .x_stride = kWidth,
                          .weight = weight.data(),
                          .eps = 1e-5F,
                          .y = y.data(),
                          .y_stride = kWidth,
                          .inverse_rms = rms.data()};
  REQUIRE(gpu::RmsNorm(&args, nullptr) == 0);
  return Results().Add(y).Add(rms);
}

constexpr int64_t kLossRows = 1030;  // more than are added up at once

// The bf16 gradient lies over the logits, and is written in four steps of a block of 128 threads.
Results WholeLoss(KernelTest& test) {
  constexpr int64_t kClasses = 4000;
  const Matrix logits(DType::kFp32, 2, kClasses, test.Normal(2 * kClasses));
  const std::vector<int32_t> targets = {5, 3999};
  std::vector<double> workspace(2, NAN);
  double loss = 0;
  const GpCrossEntropy args = {.gradient_type = kGpBf16,
                               .rows = 2,
                               .classes = kClasses,
                               .logits = reinterpret_cast<float*>(logits.view().data),
                               .logits_stride = kClasses,
                               .targets = targets.data(),
                               .grad_scale = 1,
                               .gradient = logits.view().data,
                               .gradient_stride = 2 * kClasses,
                               .loss = &loss,
                               .workspace = workspace.data()};
  REQUIRE(gpu::CrossEntropy(&args, nullptr) == 0);
  return Results().Add(std::span<const double>(&loss, 1)).Add(std::span(Floats(logits), 2 * kClasses));
}

Results LossOfRows(KernelTest& test) {
  const Matrix logits(DType::kFp32, kLossRows, 40, test.Normal(kLossRows * 40));
  const std::vector<int32_t> targets(kLossRows, 7);
  std::vector<double> workspace(kLossRows, NAN);
  double loss = 0;
  const GpCrossEntropy args = {.gradient_type = kGpFp32,
                               .rows = kLossRows,
                               .classes = 40,
                               .logits = reinterpret_cast<float*>(logits.view().data),
                               .logits_stride = 40,
                               .targets = targets.data(),
                               .grad_scale = 1,
                               .gradient = nullptr,
                               .gradient_stride = 0,
                               .loss = &loss,
                               .workspace = workspace.data()};
  REQUIRE(gpu::CrossEntropy(&args, nullptr) == 0);
  return Results().Add(std::span<const double>(&loss, 1));
}

Results LossMaxAndSums(KernelTest& test) {
  constexpr int64_t kClasses = 5000;
  const Matrix logits(DType::kFp32, 1, kClasses, test.Normal(kClasses));
  std::vector<float> max = Poison(1);
  std::vector<float> sums = Poison(2);
  const int32_t target = 4;
  const GpCrossEntropyMax first = {
      .rows = 1, .classes = kClasses, .logits = Floats(logits), .logits_stride = kClasses, .max = max.data()};
  REQUIRE(gpu::CrossEntropyMax(&first, nullptr) == 0);
  const GpCrossEntropySums second = {.rows = 1,
                                     .classes = kClasses,
                                     .logits = reinterpret_cast<float*>(logits.view().data),
                                     .logits_stride = kClasses,
                                     .max = max.data(),
                                     .targets = &target,
                                     .first_class = 0,
                                     .sums = sums.data()};
  REQUIRE(gpu::CrossEntropySums(&second, nullptr) == 0);
  return Results().Add(max).Add(sums).Add(logits);
}

Results EmbeddingGradOfRepeats(KernelTest& test) {
  constexpr int64_t kTokens = 300;
  std::vector<int32_t> tokens(kTokens);
  for (int32_t i = 0; i < kTokens; ++i) {
    tokens[i] = i / 40 % 2;
  }
  const std::vector<float> gradients = test.Normal(kTokens * 1000);
  std::vector<float> table = test.Normal(2 * 1000);
  const GpEmbeddingGrad args = {.dtype = kGpFp32,
                                .rows = kTokens,
                                .tokens = tokens.data(),
                                .columns = 1000,
                                .grad_out = gradients.data(),
                                .grad_out_stride = 1000,
                                .grad_table = table.data(),
                                .table_rows = 2,
                                .grad_table_stride = 1000,
                                .first_row = 0};
  REQUIRE(gpu::EmbeddingGrad(&args, nullptr) == 0);
  return Results().Add(table);
}

Results SumOfRows(KernelTest& test) {
  const std::vector<float> values = test.Normal(300 * 32);
  std::vector<float> sum = test.Normal(32);
  const GpSumRows args = {
      .dtype = kGpFp32, .rows = 300, .columns = 32, .values = values.data(), .values_stride = 32, .sum = sum.data()};
  REQUIRE(gpu::SumRows(&args, nullptr) == 0);
  return Results().Add(sum);
}

Results SquaresOfChunks(KernelTest& test) {
  const std::vector<float> values = test.Normal(70'000);
  const GpRun run = {0, 70'000};
  std::vector<double> workspace(2, NAN);
  double sum = NAN;
  const GpSumsOfSquares args = {.dtype = kGpFp32,
                                .values = values.data(),
                                .run_count = 1,
                                .runs = &run,
                                .sums = &sum,
                                .workspace = workspace.data()};
  REQUIRE(gpu::SumsOfSquares(&args, nullptr) == 0);
  return Results().Add(std::span<const double>(&sum, 1));
}

// Runs with settings of its own for each launch: `barrier` of launch `launch` is ignored (-1: none is). Returns the
// results and the number of barriers of that launch, 0 when there is no such launch.
struct Mutant {
  Results results;
  int barriers = 0;
};
Mutant RunWithout(KernelRun run, const gpu::emulation::Settings& order, int launch, int barrier) {
  Mutant mutant;
  int launches = 0;
  gpu::emulation::Settings settings = order;
  settings.submit = [&](void*, const std::function<void()>& work) {
    const bool is_mutated = launches++ == launch;
    gpu::emulation::TheSettings().ignored_barrier = is_mutated ? barrier : -1;
    work();
    mutant.barriers = is_mutated ? gpu::emulation::BarriersOfLastLaunch() : mutant.barriers;
    return 0;
  };
  const WithSettings with(settings);
  KernelTest test;
  mutant.results = run(test);
  return mutant;
}

TEST_CASE("without any one of its barriers, a kernel is wrong in some order of threads") {
  INFO("GEOPIPE_TEST_SEED=" << TestSeed());
  struct Case {
    const char* name;
    KernelRun run;
    int barriers;  // of all launches
  };
  const Case each =
      GENERATE(Case{"RMSNorm", NormOfBlocks, 1}, Case{"RMSNorm's gradients, warps", NormGradOfWarps, 2},
               Case{"RMSNorm's gradients, blocks", NormGradOfBlocks, 4}, Case{"cross-entropy", WholeLoss, 5},
               Case{"cross-entropy of many rows", LossOfRows, 5}, Case{"cross-entropy of a slice", LossMaxAndSums, 2},
               Case{"the embedding's gradient", EmbeddingGradOfRepeats, 6}, Case{"sums of rows", SumOfRows, 5},
               Case{"sums of squares", SquaresOfChunks, 2});
  CAPTURE(each.name);
  const std::vector<gpu::emulation::Settings> orders = ThreadOrders();
  const Results right = RunWithout(each.run, orders[0], -1, -1).results;
  int barriers = 0;
  for (int launch = 0; launch < 2; ++launch) {
    const int of_launch = RunWithout(each.run, orders[0], launch, -1).barriers;
    barriers += of_launch;
    for (int barrier = 0; barrier < of_launch; ++barrier) {
      CAPTURE(launch, barrier);
      CHECK(std::ranges::any_of(orders, [&](const gpu::emulation::Settings& order) {
        const auto is_right = [&] { return RunWithout(each.run, order, launch, barrier).results == right; };
        return InProcess([&] { return is_right() ? 0 : 1; }).status != 0;
      }));
    }
  }
  CHECK(barriers == each.barriers);
}

}  // namespace
}  // namespace geopipe
