// The speed phase: what this card reaches, and what the engine reaches of it, from the whole to its parts. Everything
// is told in speed.tsv as soon as it is measured.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/device/report.h"
#include "tests/device/speed_bench.h"
#include "tests/device/speed_figures.h"
#include "tests/device/speed_shapes.h"

namespace geopipe {

// Time that the parts of a layer take, each timed alone.
struct PassParts {
  double products_us = 0;
  double attention_us = 0;
};

// Rates by which the time of a part is estimated, until a part has shown better ones: of the engine's FLOPs, and at
// which the host fills a stage's states.
struct EngineRates {
  double flops_per_s = 100e12;
  double fill_bytes_per_s = 0.8e9;
};

// State that the parts of the phase share: where figures go, and those that later ones are set against.
class SpeedRun {
 public:
  SpeedRun(std::unique_ptr<SpeedBench> bench, TsvTable table) : bench_(std::move(bench)), table_(std::move(table)) {}

  SpeedBench& bench() { return *bench_; }
  const SpeedSettings& settings() const { return bench_->settings(); }

  void Add(const SpeedRow& row) { table_.Add(CellsOf(row, ceilings)); }
  void Tell(std::string_view name, std::string_view note) { table_.Add(CellsOf(name, note)); }
  // Notes what was not measured, and why.
  void LeaveOut(const std::string& name, std::string_view why);
  const std::vector<std::string>& left_out() const { return left_out_; }
  // Measures a trial, and adds its row.
  absl::StatusOr<Figure> Measure(Allocator& allocator, Trial trial);

  Ceilings ceilings;
  EngineRates rates;
  std::map<std::pair<std::string, Pass>, PassParts> parts;  // by the shape's name
  std::vector<std::string> headlines;                       // for the phase's line

 private:
  std::unique_ptr<SpeedBench> bench_;
  TsvTable table_;
  std::vector<std::string> left_out_;
};

// An allocator and a backend of a part of the phase, whose memory goes back at its end.
struct SpeedEngine {
  static absl::StatusOr<std::unique_ptr<SpeedEngine>> Open(SpeedRun& run);
  explicit SpeedEngine(SpeedRun& run) : allocator(run.settings().memory_bytes, run.bench().device()) {}

  Allocator allocator;
  std::unique_ptr<Backend> backend;
};

// Each measures its part and adds its rows. Errors: the device's; ResourceExhausted: the card has too little memory,
// and the run can go on with other parts.

// Large products, for so long that the power limit shows; copies of device memory; copies from and to the host, both at
// once; the way from the end of work to its callback.
absl::Status MeasureCeilings(SpeedRun& run);
// The products of a layer, each alone; likewise attention, and the head's products.
absl::Status MeasureProducts(SpeedRun& run, const SpeedShape& shape);
absl::Status MeasureAttention(SpeedRun& run, const SpeedShape& shape);
absl::Status MeasureHead(SpeedRun& run, const SpeedShape& shape);
// A stage with one layer and no end of the model: F, I and W of its micro-batches, against the sum of their parts.
absl::Status MeasureLayer(SpeedRun& run, const SpeedShape& shape);
// Iterations of a whole model with the shape's layers, on one rank.
absl::Status MeasureIteration(SpeedRun& run, const SpeedShape& shape, int32_t micro_batches);
// Every kernel of the port.
absl::Status MeasureKernels(SpeedRun& run, const SpeedShape& shape);

}  // namespace geopipe
