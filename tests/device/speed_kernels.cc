#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "optimizer/base/status_macros.h"
#include "runtime/gpu/gpu_attention.h"
#include "tests/device/speed.h"

namespace geopipe {
namespace {

using Operands = std::span<const Tensor>;

constexpr double kEps = 1e-5;
constexpr DType kFp32 = DType::kFp32;

// Makes the trials of a shape. Where a kernel may change what it reads, its results lie apart, so that every run sees
// random numbers; losses alone leave other logits behind.
class KernelTrials {
 public:
  KernelTrials(GpuDevice& device, Backend& backend, const SpeedShape& shape)
      : device_(device), backend_(backend), shape_(shape), bytes_(BytesOfKernels(shape)) {}

  std::vector<Trial> All() {
    AddNorms();
    AddRopeAndSwiGlu();
    AddSoftmax();
    AddLosses();
    AddEmbedding();
    AddVectors();
    return std::move(trials_);
  }

 private:
  static Operand Matrix(int64_t rows, int64_t columns, DType dtype = DType::kBf16) {
    return {.dtype = dtype, .shape = {rows, columns}};
  }
  static Operand Vector(int64_t size) { return {.dtype = kFp32, .shape = {size}}; }
  Operand Tokens(int64_t count) const {
    return {.dtype = DType::kInt32, .shape = {count}, .below = shape_.model.vocab_size};
  }
  static Operand Sums(int64_t size) {
    return {.dtype = DType::kFp64, .shape = {size}, .contents = Operand::Contents::kZero};
  }

  void Add(std::string_view name, const std::string& shape, int64_t bytes, std::vector<Operand> operands,
           std::function<absl::Status(Operands)> enqueue) {
    trials_.push_back({.row = {.name = fmt::format("kernel {}", name),
                               .shape = fmt::format("{} {}", shape_.name, shape),
                               .type = "bf16",
                               .bytes = bytes,
                               .against = SpeedRow::Against::kCopies},
                       .operands = std::move(operands),
                       .enqueue = std::move(enqueue)});
  }

  void AddNorms() {
    const int64_t n = shape_.tokens;
    const int64_t h = shape_.model.hidden_size;
    const std::string shape = fmt::format("{}x{}", n, h);
    Backend& backend = backend_;
    Add("rms_norm", shape, bytes_.rms_norm, {Matrix(n, h), Vector(h), Matrix(n, h), Vector(n)},
        [&backend](Operands x) { return backend.RmsNorm(ViewOf(x[0]), x[1], kEps, ViewOf(x[2]), x[3]); });
    Add("rms_norm_grad", shape, bytes_.rms_norm_grad,
        {Matrix(n, h), Vector(h), Vector(n), Matrix(n, h), Matrix(n, h), Matrix(n, h), Vector(h)},
        [&backend](Operands x) {
          return backend.RmsNormGrad(ViewOf(x[0]), x[1], x[2], ViewOf(x[3]), ViewOf(x[4]), ViewOf(x[5]), x[6]);
        });
  }

  void AddRopeAndSwiGlu() {
    const int64_t n = shape_.tokens;
    const int64_t f = shape_.model.intermediate_size;
    const int64_t turned = shape_.model.query_width() + shape_.model.key_value_width();
    const int64_t head_dim = shape_.model.head_dim();
    Backend& backend = backend_;
    Add("rope", fmt::format("{}x{}", n, turned), bytes_.rope,
        {Matrix(n, shape_.qkv_width()), Matrix(n, head_dim / 2, kFp32), Matrix(n, head_dim / 2, kFp32)},
        [&backend, n, turned, head_dim](Operands x) {
          return backend.Rope(ColumnsOf(ViewOf(x[0]), 0, turned), {x[1], x[2]}, n, head_dim, RopeDirection::kForward);
        });
    const std::string shape = fmt::format("{}x{}", n, f);
    Add("swiglu", shape, bytes_.swiglu, {Matrix(n, 2 * f), Matrix(n, f)}, [&backend, f](Operands x) {
      const MatrixView both = ViewOf(x[0]);
      return backend.SwiGlu(ColumnsOf(both, 0, f), ColumnsOf(both, f, f), ViewOf(x[1]));
    });
    Add("swiglu_grad", shape, bytes_.swiglu_grad, {Matrix(n, 2 * f), Matrix(n, f), Matrix(n, 2 * f)},
        [&backend, f](Operands x) {
          const MatrixView both = ViewOf(x[0]);
          const MatrixView gradients = ViewOf(x[2]);
          return backend.SwiGluGrad(ColumnsOf(both, 0, f), ColumnsOf(both, f, f), ViewOf(x[1]),
                                    ColumnsOf(gradients, 0, f), ColumnsOf(gradients, f, f));
        });
  }

  // The backend has these two only within attention.
  void AddSoftmax() {
    const int64_t s = shape_.tokens;
    const int64_t matrices = SoftmaxMatrices(shape_);
    const int64_t stride = StepsOf(shape_.attention(), DType::kBf16).score_stride;
    const std::string shape = fmt::format("{}x{}x{}", matrices, s, s);
    GpuDevice& device = device_;
    GpCausalSoftmax forward = {};
    forward.dtype = kGpBf16;
    forward.matrices = matrices;
    forward.heads = matrices;
    forward.sequence = s;
    forward.scale = 0.1F;
    forward.scores_stride = stride;
    forward.probabilities_stride = stride;
    Add("causal_softmax", shape, bytes_.causal_softmax,
        {Matrix(matrices * s, stride, kFp32), Matrix(matrices * s, stride), Vector(matrices * s)},
        [&device, forward](Operands x) {
          GpCausalSoftmax args = forward;
          args.scores = reinterpret_cast<const float*>(x[0].address());
          args.probabilities = x[1].address();
          args.statistics = reinterpret_cast<float*>(x[2].address());
          return device.Launch(device.port().kernels.causal_softmax, args, Queue::kCompute);
        });
    GpCausalSoftmaxGrad backward = {};
    backward.dtype = kGpBf16;
    backward.matrices = matrices;
    backward.heads = matrices;
    backward.sequence = s;
    backward.scale = 0.1F;
    backward.scores_stride = stride;
    backward.grad_probabilities_stride = stride;
    backward.probabilities_stride = stride;
    backward.grad_scores_stride = stride;
    Add("causal_softmax_grad", shape, bytes_.causal_softmax_grad,
        {Matrix(matrices * s, stride, kFp32), Vector(matrices * s), Matrix(matrices * s, stride, kFp32),
         Matrix(matrices * s, stride), Matrix(matrices * s, stride)},
        [&device, backward](Operands x) {
          GpCausalSoftmaxGrad args = backward;
          args.scores = reinterpret_cast<const float*>(x[0].address());
          args.statistics = reinterpret_cast<const float*>(x[1].address());
          args.grad_probabilities = reinterpret_cast<const float*>(x[2].address());
          args.probabilities = x[3].address();
          args.grad_scores = x[4].address();
          return device.Launch(device.port().kernels.causal_softmax_grad, args, Queue::kCompute);
        });
  }

  void AddLosses() {
    const int64_t rows = LossRows(shape_);
    const int64_t classes = shape_.model.vocab_size;
    const double scale = 1.0 / static_cast<double>(rows);
    const std::string shape = fmt::format("{}x{}", rows, classes);
    const Operand logits = Matrix(rows, classes, kFp32);
    Backend& backend = backend_;
    Add("cross_entropy", shape, bytes_.cross_entropy, {logits, Tokens(rows), Matrix(rows, classes), Sums(1)},
        [&backend, scale](Operands x) { return backend.CrossEntropy(ViewOf(x[0]), x[1], scale, ViewOf(x[2]), x[3]); });
    Add("cross_entropy_max", shape, bytes_.cross_entropy_max, {logits, Vector(rows)},
        [&backend](Operands x) { return backend.CrossEntropyMax(ViewOf(x[0]), x[1]); });
    Add("cross_entropy_sums", shape, bytes_.cross_entropy_sums, {logits, Vector(rows), Tokens(rows), Vector(2 * rows)},
        [&backend](Operands x) { return backend.CrossEntropySums(ViewOf(x[0]), x[1], x[2], 0, x[3]); });
    Add("cross_entropy_grad", shape, bytes_.cross_entropy_grad,
        {logits, Vector(rows), Vector(2 * rows), Tokens(rows), Matrix(rows, classes), Sums(1)},
        [&backend, scale](Operands x) {
          return backend.CrossEntropyGrad(ViewOf(x[0]), x[1], x[2], x[3], 0, scale, ViewOf(x[4]), x[5]);
        });
  }

  void AddEmbedding() {
    const int64_t n = shape_.tokens;
    const int64_t h = shape_.model.hidden_size;
    const int64_t rows = shape_.model.vocab_size;
    const std::string shape = fmt::format("{} of {}x{}", n, rows, h);
    Backend& backend = backend_;
    Add("embedding", shape, bytes_.embedding, {Tokens(n), Matrix(rows, h), Matrix(n, h)},
        [&backend](Operands x) { return backend.Embedding(x[0], ViewOf(x[1]), 0, ViewOf(x[2])); });
    Add("embedding_grad", shape, bytes_.embedding_grad, {Tokens(n), Matrix(n, h), Matrix(rows, h, kFp32)},
        [&backend](Operands x) { return backend.EmbeddingGrad(x[0], ViewOf(x[1]), 0, ViewOf(x[2])); });
  }

  void AddVectors() {
    const int64_t n = shape_.tokens;
    const int64_t h = shape_.model.hidden_size;
    const int64_t wide = shape_.qkv_width();
    const int64_t table = shape_.model.vocab_size * h;
    const int64_t parameters = LayerParameters(shape_);
    Backend& backend = backend_;
    Add("axpy", std::to_string(table), bytes_.axpy, {Vector(table), Vector(table)},
        [&backend](Operands x) { return backend.Axpy(1.0, x[0], x[1]); });
    Add("convert", fmt::format("{}x{}", n, h), bytes_.convert, {Matrix(n, h, kFp32), Matrix(n, h)},
        [&backend](Operands x) { return backend.Convert(ViewOf(x[0]), ViewOf(x[1])); });
    Add("sum_rows", fmt::format("{}x{}", n, wide), bytes_.sum_rows, {Matrix(n, wide), Vector(wide)},
        [&backend](Operands x) { return backend.SumRows(ViewOf(x[0]), x[1]); });
    Add("sums_of_squares", std::to_string(parameters), bytes_.sums_of_squares, {Vector(parameters), Sums(1)},
        [&backend, parameters](Operands x) {
          return backend.SumsOfSquares(x[0], {{0, parameters}}, x[1]);
        });
    const Operand moments = {.dtype = kFp32, .shape = {parameters}, .contents = Operand::Contents::kZero};
    Add("adamw", std::to_string(parameters), bytes_.adamw,
        {Vector(parameters), Vector(parameters), moments, moments, {.shape = {parameters}}}, [&backend](Operands x) {
          return backend.AdamW({.parameter = x[0],
                                .gradient = x[1],
                                .first_moment = x[2],
                                .second_moment = x[3],
                                .learning_rate = 1e-4,
                                .beta1 = 0.9,
                                .beta2 = 0.95,
                                .eps = 1e-8,
                                .weight_decay = 0.1,
                                .compute_weight = x[4]});
        });
  }

  GpuDevice& device_;
  Backend& backend_;
  const SpeedShape& shape_;
  const KernelBytes bytes_;
  std::vector<Trial> trials_;
};

}  // namespace

absl::Status MeasureKernels(SpeedRun& run, const SpeedShape& shape) {
  GP_ASSIGN_OR_RETURN(const std::unique_ptr<SpeedEngine> engine, SpeedEngine::Open(run));
  for (const Trial& trial : KernelTrials(run.bench().device(), *engine->backend, shape).All()) {
    const absl::Status status = run.Measure(engine->allocator, trial).status();
    if (absl::IsResourceExhausted(status)) {
      run.LeaveOut(trial.row.name + " " + trial.row.shape, std::string(status.message()));
      engine->allocator.GiveBack();
      continue;
    }
    GP_RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

}  // namespace geopipe
