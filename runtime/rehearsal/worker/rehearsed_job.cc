#include "runtime/rehearsal/worker/rehearsed_job.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "optimizer/base/status_macros.h"
#include "runtime/base/log.h"
#include "runtime/rehearsal/device/modelled_engine.h"
#include "runtime/rehearsal/device/paced_engine.h"
#include "runtime/rehearsal/host/quick_wakeup.h"
#include "runtime/rehearsal/link/link_shaper.h"
#include "runtime/rehearsal/worker/rank_meeting.h"
#include "runtime/rehearsal/worker/rank_shapes.h"
#include "runtime/worker/rank_job.h"

namespace geopipe {
namespace {

constexpr int64_t kMinMessageBytes = 2;

bool Modelled(const RankPreparation& preparation) { return preparation.run.backend == BackendKind::kModelled; }

// Bytes of each boundary's message in a modelled run: this tensor rank's part of the bytes in the costs, at least one
// element.
std::vector<int64_t> BoundaryBytes(const RankPreparation& preparation) {
  const int64_t tensor = preparation.plan.grid.tensor;
  std::vector<int64_t> bytes;
  for (const BoundaryCost& boundary : preparation.costs.boundaries) {
    const int64_t part_bytes = (boundary.message_bytes + tensor - 1) / tensor;
    bytes.push_back(std::max(kMinMessageBytes, (part_bytes + 1) / 2 * 2));
  }
  return bytes;
}

ActionCosts Slowed(ActionCosts costs, double slowdown) {
  for (int64_t* cost_ns : {&costs.forward_ns, &costs.input_grad_ns, &costs.weight_grad_ns}) {
    *cost_ns = std::llround(static_cast<double>(*cost_ns) * slowdown);
  }
  return costs;
}

class RehearsedJob final : public JobExtension {
 public:
  RehearsedJob(const RankPreparation& preparation, Allocator& allocator, Clock& clock)
      : preparation_(preparation), allocator_(allocator), device_(clock, allocator.device()) {
    const ProcessGrid& grid = preparation.plan.grid;
    const auto meeting = [&](std::vector<int32_t> ranks) -> Meeting* {
      if (ranks.size() == 1) {
        return nullptr;
      }
      meetings_.push_back(std::make_unique<RankMeeting>(std::move(ranks), preparation.rank,
                                                        ProgressDeadlineNs(preparation.costs), allocator, clock));
      return meetings_.back().get();
    };
    if (keeps_time()) {
      groups_ = {.tensor_ranks = meeting(grid.TensorGroupOf(preparation.rank)),
                 .replicas = meeting(grid.ReplicasOf(preparation.rank))};
    }
  }

  absl::StatusOr<std::unique_ptr<StageEngine>> Engine(int32_t stage, const BuildEngine& build) override {
    std::unique_ptr<StageEngine> engine;
    if (Modelled(preparation_)) {
      engine = Model(stage);
    } else {
      GP_ASSIGN_OR_RETURN(engine, build());
    }
    if (!keeps_time()) {
      return engine;
    }
    ActionCosts costs = CostsOfStage(preparation_.costs, stage);
    if (const auto& slow = preparation_.run.slowdown; slow.has_value() && slow->stage == stage) {
      LogWarning("REHEARSED SLOWDOWN: stage {} takes {} times as long as its plan says", stage, slow->factor);
      costs = Slowed(costs, slow->factor);
    }
    return std::make_unique<PacedEngine>(std::move(engine), costs, device_, groups_);
  }

  std::optional<ChannelMessages> Messages(bool norms) override {
    if (!Modelled(preparation_)) {
      return std::nullopt;
    }
    ChannelMessages messages;
    for (const int64_t bytes : BoundaryBytes(preparation_)) {
      messages.boundaries.push_back(PayloadLayout::Of(DType::kBf16, {bytes / 2}));
    }
    if (norms) {
      messages.norm_bytes.assign(preparation_.costs.shape.devices, sizeof(int32_t));  // no terms
    }
    return messages;
  }

  std::vector<ChannelSpec> Channels() override {
    std::vector<ChannelSpec> channels;
    for (const std::unique_ptr<RankMeeting>& meeting : meetings_) {
      std::ranges::move(meeting->Channels(), std::back_inserter(channels));
    }
    return channels;
  }

  MakeFrameLayer Layer() override {
    return [options = LinkShaperOptions{
                .shapes = ShapesOfRank(preparation_.plan, preparation_.shapes, preparation_.rank),
                .keeps_time = keeps_time()}](FrameCarrier& below) -> absl::StatusOr<std::unique_ptr<FrameLayer>> {
      return LinkShaper::Create(below, options);
    };
  }

  void OnTrain(MessageTransport& transport, ActionWatch& watch) override {
    for (const std::unique_ptr<RankMeeting>& meeting : meetings_) {
      meeting->Use(transport, watch);
    }
    if (Modelled(preparation_)) {
      // The thread computes nothing: it sleeps through each action and hands its message over, for which a real device
      // would not have to wait for a processor.
      PreferQuickWakeup();
    } else if (keeps_time()) {
      PreciseTimers();
    }
  }

 private:
  bool keeps_time() const { return KeepsDeviceTime(preparation_.run); }

  std::unique_ptr<StageEngine> Model(int32_t stage) const {
    const std::vector<int64_t> bytes = BoundaryBytes(preparation_);
    const auto boundaries = static_cast<int32_t>(bytes.size());
    ModelledEngine::Options options;
    options.first = stage == 0;
    options.last = stage == boundaries;
    options.activation_bytes = stage < boundaries ? bytes[stage] : 0;
    options.gradient_bytes = stage > 0 ? bytes[stage - 1] : 0;
    options.micro_batches = preparation_.plan.micro_batches;
    return std::make_unique<ModelledEngine>(options, allocator_);
  }

  const RankPreparation& preparation_;
  Allocator& allocator_;
  PacedDevice device_;
  std::vector<std::unique_ptr<RankMeeting>> meetings_;
  RankMeetings groups_;
};

}  // namespace

std::unique_ptr<JobExtension> RehearseJob(const RankPreparation& preparation, Allocator& allocator, Clock& clock) {
  const bool rehearses = KeepsDeviceTime(preparation.run) || !preparation.shapes.empty();
  return rehearses ? std::make_unique<RehearsedJob>(preparation, allocator, clock) : nullptr;
}

}  // namespace geopipe
