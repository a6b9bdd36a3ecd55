// Measures whole training iterations of the cpu backend, on one thread and one stage, against a floor of the same run:
// the iteration's matrix products timed alone with oneDNN, plus 30 bytes a parameter at the rate at which this machine
// copies memory. Prints medians of several rounds, and where the time of an iteration goes, by kernel.
//
//   engine_bench --precision bf16 --rounds 5
//   engine_bench --precision fp32 --step          # one round for each line that comes; see engine_pairs.py
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dnnl.hpp>
#include <iostream>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <unordered_map>
#include <vector>

#include "optimizer/base/quantities.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/model/transformer.h"
#include "runtime/backend/cpu_backend.h"
#include "runtime/base/flags.h"
#include "runtime/model/dry_run.h"
#include "runtime/model/init.h"
#include "runtime/model/transformer_stage.h"
#include "tests/bench/timed_backend.h"

namespace geopipe {
namespace {

struct Flags {
  std::string precision = "fp32";
  int64_t hidden = 512;
  int64_t intermediate = 1408;
  int64_t layers = 8;
  int64_t heads = 8;
  int64_t kv_heads = 8;
  int64_t vocabulary = 32000;
  int64_t sequence = 512;
  int64_t tokens = 2048;
  int64_t micro_batch = 4;
  int64_t threads = 1;
  int64_t rounds = 5;
  bool step = false;
};

double Seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

class UniformTokens final : public TokenSource {
 public:
  explicit UniformTokens(int64_t vocabulary) : vocabulary_(static_cast<uint64_t>(vocabulary)) {}
  absl::Status Read(int64_t iteration, int64_t first_sample, int64_t /*samples*/, std::span<int32_t> inputs,
                    std::span<int32_t> targets) override {
    uint64_t state = static_cast<uint64_t>(iteration * 1000 + first_sample + 1);
    for (const std::span<int32_t> ids : {inputs, targets}) {
      for (int32_t& id : ids) {
        state = state * 6364136223846793005ULL + 1442695040888963407ULL;
        id = static_cast<int32_t>((state >> 33) % vocabulary_);
      }
    }
    return absl::OkStatus();
  }

 private:
  uint64_t vocabulary_;
};

// The engine with all layers on one stage.
class Training {
 public:
  static absl::StatusOr<std::unique_ptr<Training>> Create(const Flags& flags) {
    std::unique_ptr<Training> training(new Training(flags));
    GP_RETURN_IF_ERROR(training->Open(flags));
    return training;
  }

  // Returns the seconds of one iteration.
  absl::StatusOr<double> Iterate() {
    const double begun = Seconds();
    GP_RETURN_IF_ERROR(stage_->BeginIteration(iteration_));
    for (int32_t i = 0; i < micro_batches_; ++i) {
      GP_RETURN_IF_ERROR(stage_->Forward(i, {}).status());
      GP_RETURN_IF_ERROR(stage_->Backward(i, {}).status());
    }
    GP_ASSIGN_OR_RETURN(const Timed<ScalarReader> scalars, stage_->ReadScalars(/*norm_terms=*/true));
    const IterationScalars values = scalars.value();
    double sum = 0;
    for (const NormTerm& term : values.norm_terms) {
      sum += term.sum_of_squares;
    }
    GP_RETURN_IF_ERROR(stage_->Update(iteration_, std::sqrt(sum), 0).status());
    loss_ = values.loss.value_or(0);
    ++iteration_;
    return Seconds() - begun;
  }

  TimedBackend& backend() { return *backend_; }
  Allocator& allocator() { return allocator_; }
  double loss() const { return loss_; }

 private:
  explicit Training(const Flags& flags) : tokens_(flags.vocabulary) {}

  absl::Status Open(const Flags& flags) {
    GP_ASSIGN_OR_RETURN(std::unique_ptr<CpuBackend> cpu,
                        CpuBackend::Create(static_cast<int>(flags.threads), allocator_));
    backend_ = std::make_unique<TimedBackend>(std::move(cpu));
    TransformerStageOptions options;
    options.model = {.hidden_size = flags.hidden,
                     .intermediate_size = flags.intermediate,
                     .num_hidden_layers = flags.layers,
                     .num_attention_heads = flags.heads,
                     .num_key_value_heads = flags.kv_heads,
                     .vocab_size = flags.vocabulary,
                     .max_position_embeddings = flags.sequence};
    options.layers = {.first = 0, .last = flags.layers - 1, .has_embedding = true, .has_head = true};
    options.micro_batch_size = flags.micro_batch;
    options.sequence_length = flags.sequence;
    micro_batches_ = static_cast<int32_t>(flags.tokens / (flags.micro_batch * flags.sequence));
    options.micro_batches = micro_batches_;
    options.training.tokens_per_iteration = flags.tokens;
    options.training.iterations = 1000;
    options.training.learning_rate = 1e-4;
    options.training.grad_clip = 1.0;
    options.sharding.precision = flags.precision == "bf16" ? Precision::kBf16 : Precision::kFp32;
    GP_ASSIGN_OR_RETURN(stage_, TransformerStage::Create(options, allocator_, *backend_, &tokens_, weights_));
    std::vector<Action> actions;
    for (int32_t i = 0; i < micro_batches_; ++i) {
      actions.push_back({.kind = ActionKind::kForward, .micro_batch = i});
      actions.push_back({.kind = ActionKind::kBackward, .micro_batch = i});
    }
    GP_RETURN_IF_ERROR(DryRun(actions, {stage_.get()}, 0, 0));
    return absl::OkStatus();
  }

  Allocator allocator_{int64_t{1} << 40};
  std::unique_ptr<TimedBackend> backend_;
  UniformTokens tokens_;
  RandomWeights weights_{1};
  std::unique_ptr<TransformerStage> stage_;
  int32_t micro_batches_ = 0;
  int64_t iteration_ = 0;
  double loss_ = 0;
};

// The iteration's products alone: for each of a layer's four weights and of the head's its forward, input gradient and
// weight gradient, on row-major matrices that each layer has of its own.
class Floor {
 public:
  explicit Floor(const Flags& flags)
      : bf16_(flags.precision == "bf16"),
        rows_(flags.micro_batch * flags.sequence),
        engine_(dnnl::engine::kind::cpu, 0),
        stream_(engine_) {
    const int64_t micro_batches = flags.tokens / rows_;
    const int64_t h = flags.hidden;
    const int64_t kv = h / flags.heads * flags.kv_heads;
    for (int64_t q = 0; q < micro_batches; ++q) {
      for (int64_t layer = 0; layer < flags.layers; ++layer) {
        Add(layer, h + 2 * kv, h);
        Add(layer, h, h);
        Add(layer, 2 * flags.intermediate, h);
        Add(layer, h, flags.intermediate);
      }
      Add(-1, flags.vocabulary, h);
    }
    const int64_t parameters =
        2 * flags.vocabulary * h + flags.layers * (h * (2 * h + 2 * kv) + 3 * h * flags.intermediate);
    update_bytes_ = 30 * parameters;
  }

  double flops() const { return flops_; }

  double ProductSeconds() {
    const double begun = Seconds();
    for (Call& call : calls_) {
      call.primitive.execute(stream_, call.arguments);
    }
    stream_.wait();
    return Seconds() - begun;
  }

  // Seconds in which 30 bytes a parameter are read and written, half each.
  double CopySeconds() {
    constexpr size_t kBytes = size_t{256} << 20;
    if (from_.empty()) {
      from_.assign(kBytes, 1);
      to_.assign(kBytes, 2);
    }
    const double begun = Seconds();
    std::memcpy(to_.data(), from_.data(), kBytes);
    const double seconds = Seconds() - begun;
    return seconds * static_cast<double>(update_bytes_) / (2.0 * static_cast<double>(kBytes));
  }

 private:
  struct Call {
    dnnl::matmul primitive;
    std::unordered_map<int, dnnl::memory> arguments;
  };

  dnnl::memory Matrix(int64_t layer, std::string_view what, int64_t rows, int64_t columns, bool is_fp32,
                      bool transposed) {
    const auto type = is_fp32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
    std::vector<std::byte>& bytes = memory_[fmt::format("{} {} {} {}", layer, what, rows, columns)];
    if (bytes.empty()) {
      bytes.resize(static_cast<size_t>(rows * columns) * 4);
      for (size_t i = 0; i < static_cast<size_t>(rows * columns); ++i) {
        const float value = static_cast<float>(i * 2654435761U % 1000) / 1000 - 0.5F;
        if (is_fp32) {
          std::memcpy(bytes.data() + 4 * i, &value, 4);
        } else {
          std::memcpy(bytes.data() + 2 * i, reinterpret_cast<const std::byte*>(&value) + 2, 2);
        }
      }
    }
    const dnnl::memory::dims dims = transposed ? dnnl::memory::dims{columns, rows} : dnnl::memory::dims{rows, columns};
    const dnnl::memory::dims strides = transposed ? dnnl::memory::dims{1, columns} : dnnl::memory::dims{columns, 1};
    return {{dims, type, strides}, engine_, bytes.data()};
  }

  void AddCall(const dnnl::memory& a, const dnnl::memory& b, const dnnl::memory& c, bool accumulate) {
    dnnl::primitive_attr attributes;
    if (accumulate) {
      dnnl::post_ops post_ops;
      post_ops.append_sum(1.0F);
      attributes.set_post_ops(post_ops);
    }
    const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(a.get_desc(), b.get_desc(), c.get_desc()),
                                                   attributes, engine_);
    calls_.push_back({dnnl::matmul(description), {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, c}}});
    const auto dims = a.get_desc().dims();
    flops_ += 2.0 * static_cast<double>(dims[0] * dims[1] * b.get_desc().dims()[1]);
  }

  // A weight [out, in] with x [rows, in] and y [rows, out].
  void Add(int64_t layer, int64_t out, int64_t in) {
    const auto matrix = [&](std::string_view what, int64_t rows, int64_t columns, bool is_fp32, bool transposed) {
      return Matrix(layer, what, rows, columns, is_fp32, transposed);
    };
    const bool fp32 = !bf16_;
    AddCall(matrix("x", rows_, in, fp32, false), matrix("w", out, in, fp32, true), matrix("y", rows_, out, fp32, false),
            false);
    AddCall(matrix("y", rows_, out, fp32, false), matrix("w", out, in, fp32, false),
            matrix("dx", rows_, in, fp32, false), false);
    AddCall(matrix("y", rows_, out, fp32, true), matrix("x", rows_, in, fp32, false),
            matrix("dw", out, in, true, false), true);
  }

  bool bf16_;
  int64_t rows_;
  dnnl::engine engine_;
  dnnl::stream stream_;
  std::map<std::string, std::vector<std::byte>> memory_;
  std::vector<Call> calls_;
  double flops_ = 0;
  int64_t update_bytes_ = 0;
  std::vector<char> from_;
  std::vector<char> to_;
};

struct Round {
  double iteration = 0;
  double products = 0;
  double copy = 0;
  double floor() const { return products + copy; }
};

absl::StatusOr<Round> Measure(Training& training, Floor& floor) {
  Round round;
  GP_ASSIGN_OR_RETURN(round.iteration, training.Iterate());
  round.products = floor.ProductSeconds();
  round.copy = floor.CopySeconds();
  return round;
}

absl::Status PrintKernels(Training& training) {
  training.backend().Begin();
  GP_ASSIGN_OR_RETURN(const double seconds, training.Iterate());
  double rest = seconds;
  fmt::print("\n{:<28} {:>8} {:>9} {:>7}\n", "kernel", "calls", "seconds", "share");
  for (const TimedBackend::Kernel& kernel : training.backend().End()) {
    fmt::print("{:<28} {:>8} {:>9.4f} {:>6.1f}%\n", kernel.name, kernel.calls, kernel.seconds,
               100 * kernel.seconds / seconds);
    rest -= kernel.seconds;
  }
  fmt::print("{:<28} {:>8} {:>9.4f} {:>6.1f}%\n", "everything else", "", rest, 100 * rest / seconds);
  return absl::OkStatus();
}

absl::Status Run(const Flags& flags) {
  GP_ASSIGN_OR_RETURN(const std::unique_ptr<Training> training, Training::Create(flags));
  GP_ASSIGN_OR_RETURN(const double first, training->Iterate());
  Floor floor(flags);  // after the first product, which has set the number of oneDNN's threads
  GP_RETURN_IF_ERROR(Measure(*training, floor).status());  // a warm-up
  if (flags.step) {
    for (std::string line; std::getline(std::cin, line);) {
      GP_ASSIGN_OR_RETURN(const Round round, Measure(*training, floor));
      fmt::print("{:.6f} {:.6f} {:.6f}\n", round.iteration, round.products, round.copy);
      std::fflush(stdout);
    }
    return absl::OkStatus();
  }
  std::vector<double> iterations;
  std::vector<double> ratios;
  std::vector<double> rates;
  for (int64_t i = 0; i < flags.rounds; ++i) {
    GP_ASSIGN_OR_RETURN(const Round round, Measure(*training, floor));
    iterations.push_back(round.iteration);
    ratios.push_back(round.iteration / round.floor());
    rates.push_back(floor.flops() / round.products / 1e9);
    fmt::print("round {}: iteration {:.3f} s, products alone {:.3f} s, update alone {:.3f} s: {:.3f} x the floor\n", i,
               round.iteration, round.products, round.copy, ratios.back());
  }
  fmt::print("{}, {:.0f} GFLOP of products an iteration at {:.0f} GFLOP/s alone, peak memory {}\n", flags.precision,
             floor.flops() / 1e9, Median(rates), HumanBytes(training->allocator().total().peak_bytes));
  fmt::print("first iteration {:.3f} s, median {:.3f} s, {:.3f} x the floor, loss {:.4f}\n", first, Median(iterations),
             Median(ratios), training->loss());
  return PrintKernels(*training);
}

int Main(int argc, char** argv) {
  Flags flags;
  FlagSet set("engine_bench", "Times whole training iterations of the cpu backend.");
  set.Add("precision", &flags.precision, "fp32|bf16", "Of the activations.");
  set.Add("hidden", &flags.hidden, "N", "hidden_size.");
  set.Add("intermediate", &flags.intermediate, "N", "intermediate_size.");
  set.Add("layers", &flags.layers, "N", "num_hidden_layers.");
  set.Add("heads", &flags.heads, "N", "num_attention_heads.");
  set.Add("kv-heads", &flags.kv_heads, "N", "num_key_value_heads.");
  set.Add("vocabulary", &flags.vocabulary, "N", "vocab_size.");
  set.Add("sequence", &flags.sequence, "N", "Tokens of a sample.");
  set.Add("tokens", &flags.tokens, "N", "Tokens of an iteration.");
  set.Add("micro-batch", &flags.micro_batch, "N", "Samples of a micro-batch.");
  set.Add("threads", &flags.threads, "N", "Threads of the worker.");
  set.Add("rounds", &flags.rounds, "N", "Rounds, of which the median counts.");
  set.Add("step", &flags.step, "One round for each line of the standard input.");
  absl::Status status = set.Parse(argc - 1, argv + 1);
  if (status.ok() && set.help_requested()) {
    fmt::print("{}", set.Help());
    return 0;
  }
  status.Update(status.ok() ? Run(flags) : status);
  if (!status.ok()) {
    fmt::print(stderr, "engine_bench: {}\n", std::string(status.message()));
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace geopipe

int main(int argc, char** argv) { return geopipe::Main(argc, argv); }
