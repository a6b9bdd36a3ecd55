// Trains a small model on a whole grid of ranks, each a thread with an executor, engines and memory of its own: what
// workers do, without processes between.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "optimizer/model/job_spec.h"
#include "optimizer/model/process_grid.h"
#include "optimizer/schedule/schedule_table.h"
#include "runtime/backend/backend.h"
#include "runtime/model/transformer_stage.h"
#include "runtime/tensor/device.h"
#include "tests/support/seeded_device.h"

namespace geopipe {

// Pass p of an evaluation has the random tokens of iteration kFirstOfValidation + p.
inline constexpr int64_t kFirstOfValidation = 1000;

// A rank's device, and what makes its backend.
struct GridDevice {
  std::unique_ptr<Device> device;
  std::function<absl::StatusOr<std::unique_ptr<Backend>>(Allocator&)> open_backend;
};
using OpenGridDevice = std::function<absl::StatusOr<GridDevice>(int32_t rank)>;
// Seeded devices, each of a seed of its own.
OpenGridDevice SeededGridDevices(uint64_t seed, DeviceFault fault = DeviceFault::kNone);

struct GridOptions {
  ModelSpec model;
  TrainingSpec training;  // tokens_per_iteration is what they train on, whatever the grid
  int64_t micro_batch_size = 2;
  int64_t sequence_length = 8;
  ProcessGrid grid;
  ScheduleKind schedule = ScheduleKind::kOneFOneB;
  int32_t stages_per_rank = 1;  // of a looped schedule
  int32_t delta_n = 0;          // at every boundary
  int32_t zero_stage = 0;
  bool sequence_parallel = false;
  bool offloads_optimizer = false;
  Precision precision = Precision::kFp32;
  std::optional<int64_t> document_end;  // the token after which attention begins anew
  std::vector<Recompute> recompute;     // by pipeline rank; empty: none
  int64_t iterations = 10;              // the last is the one before this
  int64_t first_iteration = 0;
  std::function<std::unique_ptr<TokenSource>(const Rank& rank)> tokens = {};  // of each rank anew; empty: random
  int64_t evaluate_every = 0;               // iterations, and after the last; 0: nothing is evaluated
  int64_t passes = 1;                       // of each evaluation
  OpenGridDevice open_device = {};          // of each rank, whose groups are then staged; empty: processors
  int processors = 1;                       // of each rank, where it has no device
  int64_t memory_bytes = int64_t{1} << 28;  // of each rank
  // The same for the ranks of each pipeline rank, which then rehearse an iteration first; empty: memory_bytes.
  std::vector<int64_t> limits = {};
  int64_t max_run_elements = 100;  // of shared rooms: so few that each bucket has several runs
  int64_t piece_bytes = 1 << 10;   // of staged groups: so few that many operations have several pieces
  WeightSource* state = nullptr;   // before the first iteration, read by all ranks at once; null: random weights
  // Called with each stage at the end, on its rank's thread; may be null.
  std::function<absl::Status(const Rank& rank, TransformerStage& stage, const TransformerStageOptions& options)> at_end;
  // Called before each iteration, on its rank's thread; may be null.
  std::function<void(int32_t rank, const Device& device, const Backend& backend)> on_begin = {};

  std::string name() const;
};

struct GridResult {
  absl::Status status;
  std::vector<double> losses;             // from the first iteration on; the same on every rank of the last stage
  std::vector<double> norms;              // the same on every rank
  std::vector<double> validation_losses;  // of each evaluation; the same on every rank of the last stage
  std::vector<int64_t> peak_bytes;        // of each rank's memory
};

GridResult TrainGrid(const GridOptions& options);

// Most bytes of the device's memory that each pipeline rank takes by its plan, without those of the GPU's backend,
// whose kernels a seeded device does not have.
std::vector<int64_t> PlannedBytes(const GridOptions& options);

}  // namespace geopipe
