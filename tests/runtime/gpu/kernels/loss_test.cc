#include "tests/runtime/gpu/kernels/gpu_kernel_test.h"

namespace geopipe {
namespace {

constexpr double kScale = 0.25;

// Blocks of 128 threads and, from 4,097 classes on, of 1,024; rows that a thread reads in one step and in several.
MatrixShape AnyLogits() {
  return GENERATE(MatrixShape{1, 1}, MatrixShape{5, 7, 3, 1}, MatrixShape{3, 1000, 8}, MatrixShape{2, 4096, 1},
                  MatrixShape{3, 4100, 4}, MatrixShape{2, 20001, 0, 1});
}

// Operands, and the results in fp64.
struct Loss {
  MatrixShape shape;
  DType type;  // of the gradient
  std::vector<float> logits;
  std::vector<int32_t> targets;
  std::vector<Expected> gradient;
  double loss = 3;  // what was there before, and the rows'

  Loss(KernelTest& test, const MatrixShape& shape, DType type)
      : shape(shape), type(type), logits(test.Normal(shape.size(), 3)), gradient(shape.size()) {
    for (int64_t i = 0; i < shape.rows; ++i) {
      targets.push_back(static_cast<int32_t>(test.Integer(0, shape.columns - 1)));
      const LossRow row = LossRowOf(Floats(logits.data() + i * shape.columns, shape.columns), targets[i], kScale);
      loss += row.loss;
      std::ranges::copy(row.gradient, gradient.begin() + i * shape.columns);
    }
  }

  // `moved`: elements further from where memory is aligned.
  Matrix Logits(int64_t moved = 0) const {
    return Matrix(DType::kFp32, shape.rows, shape.columns, logits, shape.apart + moved, shape.shift + moved);
  }
  Matrix Gradient() const {
    return Matrix(type, shape.rows, shape.columns, Poison(shape.size()), shape.apart, shape.shift);
  }

  // Returns the loss. `to` may be what a view of the logits' own memory says.
  double Run(const Matrix& from, const MatrixView& to) const {
    double sum = 3;
    std::vector<double> workspace(shape.rows, NAN);
    const GpCrossEntropy args = {.gradient_type = GpTypeOf(to.dtype),
                                 .rows = shape.rows,
                                 .classes = shape.columns,
                                 .logits = reinterpret_cast<float*>(from.view().data),
                                 .logits_stride = from.view().stride,
                                 .targets = targets.data(),
                                 .grad_scale = static_cast<float>(kScale),
                                 .gradient = to.data,
                                 .gradient_stride = to.stride,
                                 .loss = &sum,
                                 .workspace = workspace.data()};
    REQUIRE(gpu::CrossEntropy(&args, nullptr) == 0);
    return sum;
  }
};

// The gradient in its own type, in the memory of the logits.
MatrixView InPlace(const Matrix& logits, DType type) {
  MatrixView view = logits.view();
  view.stride = view.stride * ByteSize(DType::kFp32) / ByteSize(type);
  view.dtype = type;
  return view;
}

std::vector<float> ValuesOf(const MatrixView& view) {
  std::vector<float> values;
  for (int64_t i = 0; i < view.rows * view.columns; ++i) {
    const std::byte* at = view.data + (i / view.columns * view.stride + i % view.columns) * ByteSize(view.dtype);
    BFloat16 rounded{};
    float value = 0;
    std::memcpy(view.dtype == DType::kBf16 ? static_cast<void*>(&rounded) : &value, at, ByteSize(view.dtype));
    values.push_back(view.dtype == DType::kBf16 ? ValueOf(rounded) : value);
  }
  return values;
}

TEST_CASE("cross-entropy on a GPU is within its bound of fp64, and of the processor") {
  KernelTest test;
  INFO("GEOPIPE_TEST_SEED=" << test.seed());
  const bool many_rows = GENERATE(false, true);
  const MatrixShape shape = many_rows ? MatrixShape{1030, 5} : AnyLogits();  // more than are added up at once
  const auto type = GENERATE(DType::kFp32, DType::kBf16);
  CAPTURE(shape.rows, shape.columns, shape.apart, shape.shift);
  const Loss loss(test, shape, type);
  const Matrix gradient = loss.Gradient();
  const double sum = loss.Run(loss.Logits(), gradient.view());
  CHECK(std::abs(sum - loss.loss) <= 1e-5 * loss.loss);
  CHECK(OutsideBound(type, gradient.values(), loss.gradient) == "");
  CHECK(gradient.IntactBetweenRows());

  const Matrix logits = loss.Logits();
  const Matrix of_cpu = loss.Gradient();
  double sum_of_cpu = 3;
  REQUIRE(test.backend()
              .CrossEntropy(logits.view(), loss.targets, kScale, of_cpu.view(), VectorView<double>(&sum_of_cpu, 1))
              .ok());
  CHECK(std::abs(sum - sum_of_cpu) <= 1e-5 * loss.loss);
  CHECK(OutsideBound(type, gradient.values(), of_cpu.values(), loss.gradient) == "");

  CheckSameInAllOrders([&] {
    const Matrix in_place = loss.Logits();
    const double again = loss.Run(in_place, InPlace(in_place, type));
    return Results().Add(std::span(&again, 1)).Add(ValuesOf(InPlace(in_place, type)));
  });
  const Matrix in_place = loss.Logits();
  CHECK(loss.Run(in_place, InPlace(in_place, type)) == sum);
  CHECK(ValuesOf(InPlace(in_place, type)) == gradient.values());
  CHECK(in_place.IntactBetweenRows());
  CHECK(loss.Run(loss.Logits(), {}) == sum);
  const Matrix moved = loss.Gradient();
  CHECK(loss.Run(loss.Logits(1), moved.view()) == sum);
  CHECK(moved.values() == gradient.values());
}

// The slices' loss and gradient, of which the first has `first_classes` classes.
struct Sliced {
  double loss;
  std::vector<float> gradient;
};
Sliced RunSliced(const Loss& loss, int64_t first_classes, bool in_place) {
  const int64_t rows = loss.shape.rows;
  const std::vector<int64_t> begins = {0, first_classes, loss.shape.columns};
  std::vector<std::unique_ptr<Matrix>> slices;
  std::vector<float> max(rows, -INFINITY);
  std::vector<float> sums(2 * rows);
  for (size_t s = 0; s < 2; ++s) {
    const int64_t classes = begins[s + 1] - begins[s];
    std::vector<float> values;
    for (int64_t i = 0; i < rows; ++i) {
      const auto row = loss.logits.begin() + i * loss.shape.columns;
      values.insert(values.end(), row + begins[s], row + begins[s + 1]);
    }
    slices.push_back(std::make_unique<Matrix>(DType::kFp32, rows, classes, values, loss.shape.apart));
    std::vector<float> part = Poison(rows);
    const GpCrossEntropyMax args = {.rows = rows,
                                    .classes = classes,
                                    .logits = reinterpret_cast<const float*>(slices[s]->view().data),
                                    .logits_stride = slices[s]->view().stride,
                                    .max = part.data()};
    REQUIRE(gpu::CrossEntropyMax(&args, nullptr) == 0);
    std::ranges::transform(max, part, max.begin(), [](float a, float b) { return b > a ? b : a; });
  }
  for (size_t s = 0; s < 2; ++s) {
    const int64_t classes = slices[s]->view().columns;
    std::vector<float> part = Poison(2 * rows);
    const GpCrossEntropySums args = {.rows = rows,
                                     .classes = classes,
                                     .logits = reinterpret_cast<float*>(slices[s]->view().data),
                                     .logits_stride = slices[s]->view().stride,
                                     .max = max.data(),
                                     .targets = loss.targets.data(),
                                     .first_class = begins[s],
                                     .sums = part.data()};
    REQUIRE(gpu::CrossEntropySums(&args, nullptr) == 0);
    std::ranges::transform(sums, part, sums.begin(), std::plus());
  }
  Sliced result = {.loss = 3, .gradient = std::vector<float>(loss.shape.size())};
  for (size_t s = 0; s < 2; ++s) {
    const MatrixView slice = slices[s]->view();
    const Matrix apart(loss.type, rows, slice.columns, Poison(rows * slice.columns));
    const MatrixView to = in_place ? InPlace(*slices[s], loss.type) : apart.view();
    std::vector<double> workspace(rows, NAN);
    double of_slice = 3;
    const GpCrossEntropyGrad args = {.gradient_type = GpTypeOf(loss.type),
                                     .rows = rows,
                                     .classes = slice.columns,
                                     .exponentials = reinterpret_cast<const float*>(slice.data),
                                     .exponentials_stride = slice.stride,
                                     .max = max.data(),
                                     .sums = sums.data(),
                                     .targets = loss.targets.data(),
                                     .first_class = begins[s],
                                     .grad_scale = static_cast<float>(kScale),
                                     .gradient = to.data,
                                     .gradient_stride = to.stride,
                                     .loss = &of_slice,
                                     .workspace = workspace.data()};
    REQUIRE(gpu::CrossEntropyGrad(&args, nullptr) == 0);
    result.loss = of_slice;
    const std::vector<float> values = ValuesOf(to);
    for (int64_t i = 0; i < rows; ++i) {
      std::copy_n(values.begin() + i * slice.columns, slice.columns,
                  result.gradient.begin() + i * loss.shape.columns + begins[s]);
    }
  }
  return result;
}

TEST_CASE("cross-entropy of slices of the classes on a GPU agrees with the whole one, of one slice to the bit") {
  KernelTest test;
  INFO("GEOPIPE_TEST_SEED=" << test.seed());
  const MatrixShape shape = AnyLogits();
  const auto type = GENERATE(DType::kFp32, DType::kBf16);
  const bool in_place = GENERATE(false, true);
  CAPTURE(shape.rows, shape.columns, shape.apart);
  const Loss loss(test, shape, type);
  const Matrix gradient = loss.Gradient();
  const double sum = loss.Run(loss.Logits(), gradient.view());

  const Sliced one = RunSliced(loss, shape.columns, in_place);
  CHECK(one.loss == sum);
  CHECK(one.gradient == gradient.values());
  const Sliced two = RunSliced(loss, shape.columns / 3, in_place);
  CHECK(std::abs(two.loss - loss.loss) <= 1e-5 * loss.loss);
  CHECK(OutsideBound(type, two.gradient, loss.gradient) == "");
  CheckSameInAllOrders([&] {
    const Sliced again = RunSliced(loss, shape.columns / 3, in_place);
    return Results().Add(std::span(&again.loss, 1)).Add(again.gradient);
  });
}

}  // namespace
}  // namespace geopipe
