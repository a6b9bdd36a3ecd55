// A rank that saves states of known numbers to memory that outlives its process, for tests.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

#include "optimizer/base/status_macros.h"
#include "runtime/checkpoint/state/kept_states.h"
#include "tests/runtime/checkpoint/written_checkpoint.h"
#include "tests/support/seeded_device.h"

namespace geopipe {

using Identities = std::vector<StateIdentity>;

inline constexpr KeptStates::Owner kOwner{.run_incarnation = 17, .rank = 2};

inline UniqueFd NewMemory() {
  UniqueFd fd(memfd_create("kept-states-test", MFD_CLOEXEC));
  REQUIRE(fd.valid());
  return fd;
}

// The states that a process started with the memory has.
inline KeptStates Opened(const UniqueFd& memory) {
  absl::StatusOr<KeptStates> states = KeptStates::Open(UniqueFd(fcntl(memory.get(), F_DUPFD_CLOEXEC, 3)));
  INFO(states.status());
  REQUIRE(states.ok());
  return *std::move(states);
}

// The values of a state: each of a tensor, its moments and a stage has its own.
class StateNumbers final : public WeightSource {
 public:
  StateNumbers(const StateIdentity& state, int32_t stage) : state_(state), stage_(stage) {}

  absl::Status Read(std::string_view name, const std::vector<int64_t>& /*shape*/, std::span<float> values) override {
    Fill(std::string(name), values);
    return absl::OkStatus();
  }
  absl::StatusOr<bool> ReadMoments(std::string_view name, const std::vector<int64_t>& /*shape*/, std::span<float> first,
                                   std::span<float> second) override {
    Fill(FirstMomentName(name), first);
    Fill(SecondMomentName(name), second);
    return true;
  }

 private:
  void Fill(const std::string& name, std::span<float> values) const {
    const auto number = static_cast<int64_t>(static_cast<uint64_t>(state_.iteration) + (state_.epoch << 32U));
    std::ranges::copy(StateValues(number, fmt::format("{} {}", stage_, name), std::ssize(values)), values.begin());
  }

  const StateIdentity state_;
  const int32_t stage_;
};

// A rank with the stages 0 and 3 of a tied model, so that both have an embedding, on the processor or a device of its
// own.
class KeepingRank {
 public:
  explicit KeepingRank(bool on_device = false, int64_t hidden_size = 8)
      : KeepingRank(on_device ? std::make_unique<SeededDevice>() : nullptr, hidden_size) {}
  KeepingRank(std::unique_ptr<SeededDevice> device, int64_t hidden_size)
      : model_(SmallModel(4, /*tied=*/true)), device_(std::move(device)) {
    model_.hidden_size = hidden_size;
    if (device_ != nullptr) {
      allocator_ = std::make_unique<Allocator>(1 << 24, *device_);
      backend_ = std::make_unique<SeededBackend>(*device_, *allocator_);
    } else {
      allocator_ = std::make_unique<Allocator>(1 << 30);
      backend_ = *CpuBackend::Create(1, *allocator_);
    }
    Become({});
  }

  // The parameters get the values of a state. On the device this is under way when it returns.
  void Become(const StateIdentity& state) {
    sets_.clear();
    stages_.clear();
    for (const int32_t stage : {0, 3}) {
      StateNumbers numbers(state, stage);
      auto set = ParameterSet::Create(ParameterBuckets(model_, LayersOf(stage)), {}, numbers, *allocator_, *backend_);
      INFO(set.status());
      REQUIRE(set.ok());
      sets_.push_back(*std::move(set));
      stages_.push_back({.stage = stage, .parameters = sets_.back().all()});
    }
  }
  // Saves what the parameters are, and waits until it is held.
  absl::Status SaveNow(KeptStates& kept, const StateIdentity& state) {
    GP_ASSIGN_OR_RETURN(const Completion copied, kept.Save(state, stages_));
    Device& device = device_ != nullptr ? static_cast<Device&>(*device_) : HostDevice();
    GP_RETURN_IF_ERROR(device.Wait(copied, DeviceDeadlineNs()));
    return kept.Settle();
  }
  void Save(KeptStates& kept, const StateIdentity& state) {
    Become(state);
    const absl::Status status = SaveNow(kept, state);
    INFO(status);
    REQUIRE(status.ok());
  }

  static LayerRange LayersOf(int32_t stage) {
    return {.first = stage, .last = stage, .has_embedding = stage == 0, .has_head = stage == 3};
  }
  std::vector<ParameterTensor> TensorsOf(int32_t stage) const { return ParameterTensors(model_, LayersOf(stage)); }
  const std::vector<KeptStates::Stage>& stages() const { return stages_; }

  SeededDevice& device() { return *device_; }

  // True when everything kept of the state has the values of `content`.
  bool IsWhole(const KeptStates& kept, const StateIdentity& state, const StateIdentity& content) const {
    return std::ranges::all_of(std::vector{0, 3}, [&](int32_t stage) {
      const auto source = kept.Read(kOwner, state, stage);
      REQUIRE(source.ok());
      StateNumbers numbers(content, stage);
      return std::ranges::all_of(TensorsOf(stage), [&](const ParameterTensor& tensor) {
        return AllOf(**source, tensor) == AllOf(numbers, tensor);
      });
    });
  }
  bool IsWhole(const KeptStates& kept, const StateIdentity& state) const { return IsWhole(kept, state, state); }

 private:
  // The bits of the value and the moments.
  static std::vector<uint32_t> AllOf(WeightSource& source, const ParameterTensor& tensor) {
    const auto count = static_cast<size_t>(tensor.count());
    std::vector<uint32_t> bits(3 * count);
    const std::span<float> values(reinterpret_cast<float*>(bits.data()), bits.size());
    REQUIRE(source.Read(tensor.name, tensor.shape, values.first(count)).ok());
    REQUIRE(source.ReadMoments(tensor.name, tensor.shape, values.subspan(count, count), values.last(count)).value());
    return bits;
  }

  ModelSpec model_;
  std::unique_ptr<SeededDevice> device_;
  std::unique_ptr<Allocator> allocator_;
  std::unique_ptr<Backend> backend_;
  std::vector<ParameterSet> sets_;
  std::vector<KeptStates::Stage> stages_;
};

}  // namespace geopipe
