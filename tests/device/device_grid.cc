#include "tests/device/device_grid.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <span>

#include "optimizer/base/status_macros.h"
#include "optimizer/model/collective_memory.h"
#include "runtime/compute/open.h"
#include "tests/runtime/executor/random_grid.h"
#include "tests/support/quick_numbers.h"

namespace geopipe {
namespace {

// Weights of a model of real size: RandomWeights' polynomials take minutes.
class QuickWeights final : public WeightSource {
 public:
  absl::Status Read(std::string_view name, const std::vector<int64_t>& shape, std::span<float> values) override {
    QuickNumbers numbers(std::hash<std::string_view>()(name));
    for (float& value : values) {
      value = shape.size() < 2 ? 1 + 0.1F * numbers.Normal() : 0.05F * numbers.Normal();
    }
    return absl::OkStatus();
  }
};

WeightSource& TheQuickWeights() {
  static QuickWeights weights;  // has no state
  return weights;
}

}  // namespace

GridOptions ModelOf(const DeviceCheckOptions& options, Precision precision) {
  GridOptions grid = SmallGrid(/*tied=*/false, /*kv_heads=*/2);
  grid.model.num_hidden_layers = 4;
  grid.precision = precision;
  grid.grid = {.pipeline = 1, .data = 1, .tensor = 1};
  grid.schedule = ScheduleKind::kGpipe;
  constexpr int64_t kMicroBatches = 4;
  if (!options.small) {
    grid.model = {.hidden_size = 1024,
                  .intermediate_size = 2816,
                  .num_hidden_layers = 4,
                  .num_attention_heads = 8,
                  .num_key_value_heads = 4,
                  .vocab_size = 8192,
                  .max_position_embeddings = 1024};
    grid.micro_batch_size = 1;
    grid.sequence_length = 1024;
    grid.training.learning_rate = 1e-3;
    grid.state = &TheQuickWeights();
    grid.memory_bytes = int64_t{24} << 30;
    grid.max_run_elements = kOffloadedRunElements;
    grid.piece_bytes = kStagedPieceBytes;
  }
  grid.training.tokens_per_iteration = kMicroBatches * grid.micro_batch_size * grid.sequence_length;
  grid.processors = options.processors;
  return grid;
}

GridOptions OnDevice(GridOptions grid, const DeviceCheckOptions& options) {
  grid.open_device = [library = options.library](int32_t /*rank*/) -> absl::StatusOr<GridDevice> {
    GP_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, OpenDevice(BackendKind::kCuda, library));
    return GridDevice{.device = std::move(device), .open_backend = [](Allocator& memory) {
                        return OpenBackend(BackendKind::kCuda, /*threads=*/1, memory);
                      }};
  };
  return grid;
}

absl::StatusOr<GridResult> Train(const GridOptions& grid) {
  GridResult result = TrainGrid(grid);
  GP_RETURN_IF_ERROR(result.status);
  return result;
}

std::string NameOf(Precision precision) { return precision == Precision::kBf16 ? "bf16" : "fp32"; }

void CheckSameBits(std::string_view thing, const GridResult& actual, const GridResult& expected, Report& report) {
  const auto same = [](const std::vector<double>& a, const std::vector<double>& b) {
    return !a.empty() && !b.empty() &&
           std::equal(a.begin(), a.begin() + std::min(std::ssize(a), std::ssize(b)), b.begin());
  };
  report.Check(fmt::format("{}: bits of the losses", thing), same(actual.losses, expected.losses));
  report.Check(fmt::format("{}: bits of the norms", thing), same(actual.norms, expected.norms));
}

std::string DigestOf(const GridResult& result) {
  std::string digest;
  for (const std::vector<double>* values : {&result.losses, &result.norms}) {
    for (const double value : *values) {
      digest += fmt::format("{:016x}", std::bit_cast<uint64_t>(value));
    }
  }
  return digest;
}

}  // namespace geopipe
