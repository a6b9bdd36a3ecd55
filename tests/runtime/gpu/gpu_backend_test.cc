// Every function of the GPU backend against the processor's, on the emulated GPU: odd shapes, rows that are apart, and
// results in operands' memory.
#include "runtime/gpu/gpu_backend.h"

#include "tests/runtime/gpu/backend_trial.h"

namespace geopipe {
namespace {

using Place = BackendTrial::Place;

DType AnyType() { return GENERATE(DType::kFp32, DType::kBf16); }

TEST_CASE("products of every kind, with every addend") {
  const auto product = GENERATE(Product::kNN, Product::kNT, Product::kTN);
  const auto [m, n, k] = GENERATE(std::array<int64_t, 3>{5, 7, 3}, std::array<int64_t, 3>{1, 1, 1},
                                  std::array<int64_t, 3>{16, 24, 40}, std::array<int64_t, 3>{3, 4, 0});
  const auto [operands, result] = GENERATE(std::pair{DType::kFp32, DType::kFp32}, std::pair{DType::kBf16, DType::kBf16},
                                           std::pair{DType::kBf16, DType::kFp32});
  const int64_t apart = GENERATE(0, 3);
  const int64_t shift = GENERATE(0, 1);
  BackendTrial trial;
  const bool a_lies_down = product == Product::kTN;
  const bool b_lies_down = product == Product::kNT;
  const MatrixView a = trial->Normal(operands, a_lies_down ? k : m, a_lies_down ? m : k, apart, shift);
  const MatrixView b = trial->Normal(operands, b_lies_down ? n : k, b_lies_down ? k : n, apart);
  for (const bool adds_matrix : {false, true}) {
    for (const bool in_place : {false, true}) {
      for (const bool adds_row : {false, true}) {
        if (k == 0 && adds_row) {
          continue;  // a row is added to no product
        }
        INFO(static_cast<int>(product) << ": " << m << ", " << n << ", " << k << " matrix " << adds_matrix
                                       << " in place " << in_place << " row " << adds_row);
        const MatrixView c = trial->Normal(result, m, n, apart);
        const MatrixView other = trial->Normal(result, m, n, apart + 2);
        const VectorView<float> row = trial->Floats(n);
        trial.Run([&](Backend& backend, const Place& at) {
          Addend addend;
          if (adds_matrix) {
            addend.matrix = at(in_place ? c : other);
          }
          if (adds_row) {
            addend.row = at(row);
          }
          return backend.MatMul(product, at(a), at(b), addend, at(c));
        });
        CHECK(trial.Error(c) < TrialTolerance(result));
        CHECK(trial->IsRestUntouched());
      }
    }
  }
}

TEST_CASE("a product with a row that is rounded goes through fp32 some rows at a time") {
  BackendTrial trial(int64_t{90} << 20);
  constexpr int64_t kColumns = 1 << 20;
  const MatrixView a = trial->Normal(DType::kBf16, 17, 1);
  const MatrixView b = trial->Normal(DType::kBf16, 1, kColumns);
  const MatrixView c = trial->Empty(DType::kBf16, 17, kColumns);
  const VectorView<float> row = trial->Floats(kColumns);
  trial.Run([&](Backend& backend, const Place& at) {
    return backend.MatMul(Product::kNN, at(a), at(b), {.matrix = {}, .row = at(row)}, at(c));
  });
  CHECK(trial.Error(c) < TrialTolerance(DType::kBf16));
  CHECK(trial->allocator().usage(MemoryCategory::kWorkspace).peak_bytes < int64_t{120} << 20);
}

TEST_CASE("embeddings of a part of the vocabulary, and their gradients") {
  const DType dtype = AnyType();
  BackendTrial trial;
  const VectorView<int32_t> tokens = trial->Integers(23, [&](int64_t) { return trial->Draw(12); });
  const MatrixView table = trial->Normal(dtype, 7, 5, 2);
  const MatrixView out = trial->Empty(dtype, 23, 5, 1);
  const MatrixView grad_out = trial->Normal(dtype, 23, 5, 3);
  const MatrixView grad_table = trial->Normal(DType::kFp32, 7, 5, 1);
  trial.Run([&](Backend& backend, const Place& at) {
    absl::Status status = backend.Embedding(at(tokens), at(table), 3, at(out));
    status.Update(backend.EmbeddingGrad(at(tokens), at(grad_out), 3, at(grad_table)));
    return status;
  });
  CHECK(trial.Error(out) == 0);
  CHECK(trial.Error(grad_table) == 0);
  CHECK(trial->IsRestUntouched());
}

TEST_CASE("norms of whole rows and of heads, and their gradients, with a residual or in place") {
  const DType dtype = AnyType();
  const int64_t groups = GENERATE(1, 3);
  const auto variant = GENERATE(0, 1, 2);  // no residual; a residual; into grad_y's memory
  BackendTrial trial;
  constexpr int64_t kRows = 19;
  constexpr int64_t kWidth = 10;
  const int64_t columns = groups * kWidth;
  const MatrixView x = trial->Normal(dtype, kRows, columns, 2);
  const VectorView<float> weight = trial->Floats(kWidth);
  const MatrixView y = trial->Empty(dtype, kRows, columns, 1);
  const VectorView<float> inverse_rms = trial->EmptyFloats(kRows * groups);
  const MatrixView grad_y = trial->Normal(dtype, kRows, columns);
  const MatrixView residual = variant == 1 ? trial->Normal(dtype, kRows, columns, 3) : MatrixView{};
  const MatrixView grad_x = variant == 2 ? grad_y : trial->Empty(dtype, kRows, columns, 1);
  const VectorView<float> grad_weight = trial->Floats(kWidth);
  trial.Run([&](Backend& backend, const Place& at) {
    absl::Status status = backend.RmsNorm(at(x), at(weight), 1e-5, at(y), at(inverse_rms));
    status.Update(
        backend.RmsNormGrad(at(x), at(weight), at(inverse_rms), at(grad_y), at(residual), at(grad_x), at(grad_weight)));
    return status;
  });
  CHECK(trial.Error(y) < TrialTolerance(dtype));
  CHECK(trial.Error(inverse_rms) < 1e-5);
  CHECK(trial.Error(grad_x) < TrialTolerance(dtype));
  CHECK(trial.Error(grad_weight) < 1e-5);
  CHECK(trial->IsRestUntouched());
}

TEST_CASE("rotations there and back, SwiGLU and its gradient in place, sums of rows") {
  const DType dtype = AnyType();
  BackendTrial trial;
  const MatrixView x = trial->Normal(dtype, 14, 18, 1);
  const MatrixView back = trial->Normal(dtype, 14, 18, 1);
  const RopeTable table = {.cosine = trial->Floats(7 * 3), .sine = trial->Floats(7 * 3)};
  const MatrixView both = trial->Normal(dtype, 9, 26, 1);
  const MatrixView gate = ColumnsOf(both, 0, 13);
  const MatrixView up = ColumnsOf(both, 13, 13);
  const MatrixView out = trial->Empty(dtype, 9, 13, 2);
  const MatrixView grad_out = trial->Normal(dtype, 9, 13);
  const VectorView<float> sum = trial->Floats(13);
  trial.Run([&](Backend& backend, const Place& at) {
    const RopeTable there = {.cosine = at(table.cosine), .sine = at(table.sine)};
    absl::Status status = backend.Rope(at(x), there, 7, 6, RopeDirection::kForward);
    status.Update(backend.Rope(at(back), there, 7, 6, RopeDirection::kBackward));
    status.Update(backend.SwiGlu(at(gate), at(up), at(out)));
    status.Update(backend.SwiGluGrad(at(gate), at(up), at(grad_out), at(gate), at(up)));
    status.Update(backend.SumRows(at(grad_out), at(sum)));
    return status;
  });
  for (const MatrixView& result : {x, back, out, gate, up}) {
    CHECK(trial.Error(result) < TrialTolerance(dtype));
  }
  CHECK(trial.Error(sum) < 1e-5);
  CHECK(trial->IsRestUntouched());
}

TEST_CASE("cross-entropy with a gradient of its own, in the logits' memory, or none") {
  const DType dtype = AnyType();
  const auto variant = GENERATE(0, 1, 2);
  BackendTrial trial;
  const MatrixView logits = trial->Normal(DType::kFp32, 11, 30);
  const VectorView<int32_t> targets = trial->Integers(11, [&](int64_t) { return trial->Draw(30); });
  MatrixView gradient = logits;
  gradient.dtype = dtype;
  gradient.stride = logits.stride * ByteSize(DType::kFp32) / ByteSize(dtype);
  if (variant != 1) {
    gradient = variant == 0 ? trial->Empty(dtype, 11, 30, 2) : MatrixView{};
  }
  const VectorView<double> loss = trial->Doubles(1);
  trial.Run([&](Backend& backend, const Place& at) {
    return backend.CrossEntropy(at(logits), at(targets), 0.125, at(gradient), at(loss));
  });
  CHECK(trial.Error(loss) < 1e-5);
  if (variant != 2) {
    CHECK(trial.Error(gradient) < TrialTolerance(dtype));
  }
  trial->Changed(logits);
  CHECK(trial->IsRestUntouched());
}

TEST_CASE("cross-entropy of a slice of the classes, in three parts") {
  const DType dtype = AnyType();
  BackendTrial trial;
  const MatrixView logits = trial->Normal(DType::kFp32, 11, 30, 1);
  const VectorView<int32_t> targets = trial->Integers(11, [&](int64_t i) { return i == 3 ? 2 : 20 + trial->Draw(30); });
  const VectorView<float> max = trial->EmptyFloats(11);
  const VectorView<float> sums = trial->EmptyFloats(22);
  const MatrixView gradient = trial->Empty(dtype, 11, 30);
  const VectorView<double> loss = trial->Doubles(1);
  trial.Run([&](Backend& backend, const Place& at) {
    absl::Status status = backend.CrossEntropyMax(at(logits), at(max));
    status.Update(backend.CrossEntropySums(at(logits), at(max), at(targets), 20, at(sums)));
    status.Update(
        backend.CrossEntropyGrad(at(logits), at(max), at(sums), at(targets), 20, 0.5, at(gradient), at(loss)));
    return status;
  });
  CHECK(trial.Error(max) == 0);
  CHECK(trial.Error(sums) < 1e-5);
  CHECK(trial.Error(loss) < 1e-5);
  CHECK(trial.Error(gradient) < TrialTolerance(dtype));
  trial->Changed(logits);
  CHECK(trial->IsRestUntouched());
}

TEST_CASE("vectors: zeros, sums, conversions and squares, of which runs may be empty") {
  const DType from = AnyType();
  const DType to = AnyType();
  BackendTrial trial;
  const VectorView<float> x = trial->Floats(77);
  const VectorView<float> y = trial->Floats(77);
  const VectorView<float> zeros = trial->Floats(5);
  const MatrixView source = trial->Normal(from, 6, 9, 3);
  const MatrixView converted = trial->Empty(to, 6, 9, 1);
  const MatrixView dense = trial->Normal(from, 6, 9);
  const VectorView<double> square = trial->Doubles(1);
  const VectorView<double> squares = trial->Doubles(3);
  trial.Run([&](Backend& backend, const Place& at) {
    absl::Status status = backend.Axpy(0.3, at(x), at(y));
    status.Update(backend.Zero(at(zeros)));
    status.Update(backend.Convert(at(source), at(converted)));
    status.Update(backend.SumOfSquares(at(dense), at(square)));
    status.Update(backend.SumsOfSquares(at(x), {{0, 40}, {50, 50}, {41, 77}}, at(squares)));
    return status;
  });
  CHECK(trial.Error(y) < 1e-6);
  CHECK(trial.Error(zeros) == 0);
  CHECK(trial.Error(converted) == 0);
  CHECK(trial.Error(square) < 1e-12);
  CHECK(trial.Error(squares) < 1e-12);
  CHECK(trial->IsRestUntouched());
}

TEST_CASE("an update has the processor's bits") {
  const bool rounds = GENERATE(false, true);
  BackendTrial trial;
  const AdamWStep step = {.parameter = trial->Floats(100),
                          .gradient = trial->Floats(100),
                          .first_moment = trial->Floats(100),
                          .second_moment = trial->EmptyFloats(100),
                          .learning_rate = 0.01,
                          .beta1 = 0.9,
                          .beta2 = 0.95,
                          .eps = 1e-8,
                          .weight_decay = 0.1,
                          .grad_scale = 0.5,
                          .step = 3};
  std::fill_n(step.second_moment.data, 100, 0.5F);
  const MatrixView weight = trial->Empty(DType::kBf16, 1, 100);
  trial.Run([&](Backend& backend, const Place& at) {
    AdamWStep there = step;
    there.parameter = at(step.parameter);
    there.gradient = at(step.gradient);
    there.first_moment = at(step.first_moment);
    there.second_moment = at(step.second_moment);
    if (rounds) {
      there.compute_weight = at(VectorView<BFloat16>(reinterpret_cast<BFloat16*>(weight.data), 100));
    }
    return backend.AdamW(there);
  });
  CHECK(trial.Error(step.parameter) == 0);
  CHECK(trial.Error(step.first_moment) == 0);
  CHECK(trial.Error(step.second_moment) == 0);
  CHECK((!rounds || trial.Error(weight) == 0));
  CHECK(trial->IsRestUntouched());
}

TEST_CASE("attention and its gradients, of grouped heads, with and without starts") {
  const DType dtype = AnyType();
  const auto [heads, kv_heads] = GENERATE(std::pair<int64_t, int64_t>{1, 1}, std::pair<int64_t, int64_t>{3, 3},
                                          std::pair<int64_t, int64_t>{6, 2}, std::pair<int64_t, int64_t>{4, 1});
  const auto sizes = GENERATE(std::pair<int64_t, int64_t>{7, 6}, std::pair<int64_t, int64_t>{1, 8},
                              std::pair<int64_t, int64_t>{33, 16});
  const int64_t sequence = sizes.first;
  const int64_t head_dim = sizes.second;
  const bool packed = GENERATE(false, true);
  INFO(heads << " heads, " << kv_heads << " of keys, sequence " << sequence << ", starts " << packed);
  BackendTrial trial;
  constexpr int64_t kBatch = 2;
  const int64_t tokens = kBatch * sequence;
  AttentionShape shape = {
      .batch = kBatch, .sequence = sequence, .heads = heads, .kv_heads = kv_heads, .head_dim = head_dim};
  const VectorView<int32_t> starts = trial->Integers(tokens, [&](int64_t i) { return i % sequence / 5 * 5; });
  const int64_t q = heads * head_dim;
  const int64_t kv = kv_heads * head_dim;
  const MatrixView qkv = trial->Normal(dtype, tokens, q + 2 * kv);
  const MatrixView grad_qkv = trial->Empty(dtype, tokens, q + 2 * kv);
  const MatrixView out = trial->Empty(dtype, tokens, q, 1);
  const MatrixView grad_out = trial->Normal(dtype, tokens, q);
  const VectorView<float> statistics = trial->EmptyFloats(tokens * heads);
  const auto part = [&](const MatrixView& all, int which) {
    return which == 0 ? ColumnsOf(all, 0, q) : ColumnsOf(all, q + (which - 1) * kv, kv);
  };
  trial.Run([&](Backend& backend, const Place& at) {
    AttentionShape there = shape;
    there.starts = packed ? at(starts) : VectorView<int32_t>();
    const auto of = [&](const MatrixView& all, int which) { return at(part(all, which)); };
    absl::Status status = backend.Attention(there, of(qkv, 0), of(qkv, 1), of(qkv, 2), at(out), at(statistics));
    status.Update(backend.AttentionGrad(there, of(qkv, 0), of(qkv, 1), of(qkv, 2), at(out), at(statistics),
                                        at(grad_out), of(grad_qkv, 0), of(grad_qkv, 1), of(grad_qkv, 2)));
    return status;
  });
  const double tolerance = dtype == DType::kFp32 ? 1e-5 : 0x1p-6;  // probabilities are rounded before products
  CHECK(trial.Error(out) < tolerance);
  for (const int which : {0, 1, 2}) {
    CHECK(trial.Error(part(grad_qkv, which)) < tolerance);
  }
  trial->Changed({.data = reinterpret_cast<std::byte*>(statistics.data),
                  .rows = 1,
                  .columns = statistics.size,
                  .stride = statistics.size});
  CHECK(trial->IsRestUntouched());
}

TEST_CASE("attention works on as many heads at once as the shape alone says, and takes 256 MiB at most, or one head") {
  AttentionShape shape = {.batch = 3, .sequence = 2048, .heads = 32, .kv_heads = 32, .head_dim = 128};
  const GpuAttentionSteps fp32 = StepsOf(shape, DType::kFp32);
  CHECK(fp32.heads == 8);
  CHECK(fp32.backward_bytes() == int64_t{256} << 20);
  const GpuAttentionSteps bf16 = StepsOf(shape, DType::kBf16);
  CHECK(bf16.heads == 5);
  CHECK(bf16.backward_bytes() == int64_t{5} * 2048 * 2048 * 12);
  CHECK(bf16.sums_bytes == 0);
  shape.heads = 64;
  CHECK(StepsOf(shape, DType::kBf16).sums_bytes == int64_t{5} * 2048 * 128 * 4);
  CHECK(StepsOf(shape, DType::kFp32).sums_bytes == 0);
  for (const int64_t sequence : {1, 13, 100, 5000, 8192, 40000}) {
    shape.sequence = sequence;
    for (const DType dtype : {DType::kFp32, DType::kBf16}) {
      const GpuAttentionSteps steps = StepsOf(shape, dtype);
      INFO(sequence << ": " << steps.heads);
      CHECK(steps.score_stride % 8 == 0);
      CHECK((steps.heads == 1 || steps.backward_bytes() <= kMaxGpuAttentionBytes));
      CHECK((steps.heads >= 1 && steps.heads <= shape.kv_heads));
    }
  }
}

TEST_CASE("what a dry run has seen makes no plan, takes no memory and launches nothing, and a run then makes none") {
  BackendTrial trial;
  const MatrixView a = trial->Normal(DType::kBf16, 16, 16);
  const MatrixView c = trial->Empty(DType::kBf16, 16, 16);
  const VectorView<float> row = trial->Floats(16);
  const AttentionShape shape = {.batch = 1, .sequence = 16, .heads = 2, .kv_heads = 2, .head_dim = 8};
  const VectorView<float> statistics = trial->EmptyFloats(32);
  const auto call = [&](Backend& backend, const Place& at) {
    absl::Status status = backend.MatMul(Product::kNN, at(a), at(a), {.matrix = {}, .row = at(row)}, at(c));
    status.Update(backend.Attention(shape, at(a), at(a), at(a), at(c), at(statistics)));
    return status;
  };
  trial->gpu().RunDry(true);
  const int64_t launches = trial.counters().launches;
  REQUIRE(call(trial->gpu(), Place(0)).ok());
  CHECK(trial.counters().launches == launches);
  trial->gpu().RunDry(false);
  CHECK(trial->gpu().plans_built() == 3);
  CHECK(trial.counters().plans == 3);
  const int64_t allocations = trial->device().counts().allocations;
  trial.Run(call);
  CHECK(trial->gpu().plans_built() == 3);
  CHECK(trial->device().counts().allocations == allocations);
}

}  // namespace
}  // namespace geopipe
