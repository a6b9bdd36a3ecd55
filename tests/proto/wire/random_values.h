// Random valid values of everything that travels.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "optimizer/model/profile.h"
#include "optimizer/model/run_options.h"
#include "optimizer/plan/report/plan_result.h"

namespace geopipe {

class RandomValues {
 public:
  explicit RandomValues(uint64_t seed) : random_(seed) {}

  int64_t Int(int64_t least, int64_t greatest) {
    return std::uniform_int_distribution<int64_t>(least, greatest)(random_);
  }
  double Real(double least, double greatest) {
    return std::uniform_real_distribution<double>(least, greatest)(random_);
  }
  bool Bool() { return Int(0, 1) == 1; }
  std::string Name() { return "name-" + std::to_string(Int(0, 1'000'000)); }
  template <class Enum>
  Enum Pick(Enum last) {
    return static_cast<Enum>(Int(0, static_cast<int64_t>(last)));
  }
  template <class Make>
  auto List(int64_t size, Make make) {
    std::vector<decltype(make())> values;
    for (int64_t i = 0; i < size; ++i) {
      values.push_back(make());
    }
    return values;
  }

  ScheduleKind AnySchedule() { return kSchedules[static_cast<size_t>(Int(0, std::ssize(kSchedules) - 1))].kind; }

  PipelineCosts Costs() {
    PipelineCosts costs;
    const auto devices = static_cast<int32_t>(Int(1, 6));
    costs.shape = PipelineShape::Linear(devices, static_cast<int32_t>(Int(1, 8)));
    const auto duration = [this] { return Int(0, 1'000'000'000); };
    costs.forward_ns = List(devices, duration);
    costs.input_grad_ns = List(devices, duration);
    costs.weight_grad_ns = List(Bool() ? devices : 0, duration);
    for (int32_t i = 0; i + 1 < devices; ++i) {
      const bool crosses = Bool();
      costs.boundaries.push_back({crosses, crosses ? "wan" + std::to_string(i) : "", Int(0, 1'000'000),
                                  crosses ? duration() : 0, crosses ? duration() : 0, crosses ? duration() : 0,
                                  Bool() ? duration() : 0});
    }
    costs.comm = Pick(CommMode::kRendezvous);
    if (Bool()) {
      const auto bytes = [this] { return Int(0, int64_t{1} << 40); };
      costs.memory =
          MemoryCosts{List(devices, bytes), List(devices, bytes), List(devices, bytes), List(devices, bytes)};
    }
    costs.epilogue_ns = duration();
    return costs;
  }

  Schedule RandomSchedule() {
    Schedule schedule{PipelineShape::Linear(static_cast<int32_t>(Int(1, 5)), static_cast<int32_t>(Int(1, 6))), {}};
    for (int32_t device = 0; device < schedule.shape.devices; ++device) {
      schedule.devices.push_back(List(Int(0, 9), [&] {
        return Action{device, Pick(ActionKind::kRecvBackward), static_cast<int32_t>(Int(0, 5))};
      }));
    }
    return schedule;
  }

  Plan RandomPlan() {
    Plan plan{.schedule = AnySchedule(),
              .comm = Pick(CommMode::kRendezvous),
              .micro_batch_size = Int(1, 64),
              .sequence_length = Int(1, 8192),
              .delta_n = {},
              .micro_batches = static_cast<int32_t>(Int(1, 512)),
              .zero_stage = static_cast<int32_t>(Int(0, 3)),
              .grid = {.data = static_cast<int32_t>(Int(1, 3)), .tensor = static_cast<int32_t>(Int(1, 4))},
              .pipeline_ranks = {},
              .stages = {},
              .devices = {},
              .idle = {}};
    const int64_t stages = Int(1, 8);
    for (int32_t i = 0; i < stages; ++i) {
      plan.Append({Name(), Int(0, 1 << 30), Int(0, 1 << 30), Pick(Recompute::kFull)},
                  {i, i + Int(0, 3), i == 0, i == stages - 1}, static_cast<int32_t>(Int(0, 9)),
                  static_cast<int32_t>(Int(0, 3)));
    }
    plan.delta_n = List(Int(0, stages - 1), [this] { return static_cast<int32_t>(Int(0, 8)); });
    plan.idle = List(Int(0, 2), [this] { return IdleDevices{Name(), static_cast<int32_t>(Int(0, 3)), {2, 3}}; });
    return plan;
  }

  RunOptions Run() {
    RunOptions run;
    run.schedule = Bool() ? std::optional(AnySchedule()) : std::nullopt;
    run.comm = Pick(CommMode::kRendezvous);
    run.delta_n = List(Int(0, 3), [this] { return static_cast<int32_t>(Int(0, 8)); });
    run.backend = Pick(BackendKind::kModelled);
    run.pace = Bool();
    run.explicit_costs = Bool() ? std::optional<PipelineCosts>(Costs()) : std::nullopt;
    run.stop_after_iterations = Int(0, 100);
    if (Bool()) {
      run.slowdown = StageSlowdown{static_cast<int32_t>(Int(0, 7)), 1.5};
    }
    return run;
  }

  Prediction RandomPrediction() {
    return {Int(0, 1'000'000'000), Real(0, 1), Int(0, 1'000'000'000), Real(0, 1e9), Int(0, int64_t{1} << 50)};
  }

  ProfileEntry Entry() {
    const auto part = [this] { return PartCosts{Int(0, 1'000'000), Int(0, 1'000'000), Int(0, 1'000'000)}; };
    return {Name(), Name(),           static_cast<int32_t>(Int(0, 7)), Int(1, 8), Int(1, 4096), part(), part(),
            part(), Int(0, 1'000'000)};
  }

  MessageCost Message() {
    return {Name(), Name(), static_cast<int32_t>(Int(0, 7)), Int(1, 1 << 20), Int(0, 1'000'000), Int(0, 1'000'000)};
  }

  Profile RandomProfile() {
    return {List(Int(0, 3), [this] { return Entry(); }), List(Int(0, 3), [this] { return Message(); })};
  }

  DeviceSpec Device() {
    return {Name(), Int(1, int64_t{1} << 40), Real(0, 1e15), Real(0, 1e13), Real(0, 1e12), Real(0.1, 1)};
  }

  NetworkSpec Network() {
    return {Real(1, 1e12), Int(0, 1'000'000), Int(0, 1) == 0 ? NetworkSpec::Per::kDevice : NetworkSpec::Per::kNode};
  }

  std::mt19937_64& random() { return random_; }

 private:
  std::mt19937_64 random_;
};

}  // namespace geopipe
