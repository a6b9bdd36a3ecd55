#include "runtime/executor/channels.h"

#include <catch2/catch.hpp>
#include <map>

#include "optimizer/schedule/lowering.h"
#include "optimizer/schedule/schedule_table.h"
#include "tests/support/tiny_model.h"

namespace geopipe {
namespace {

Schedule GeoPipe(int32_t stages, int32_t micro_batches, const std::vector<int32_t>& delta_n) {
  return *Lower(*MakeSchedule(ScheduleKind::kGeoPipe, PipelineShape::Linear(stages, micro_batches), delta_n));
}

TEST_CASE("a boundary needs as many slots as its lower stage has micro-batches in flight") {
  const Schedule schedule = GeoPipe(4, 32, {0, 3, 1});
  const std::vector<int32_t> in_flight{4 + 4, 3 + 4, 2 + 1};  // P - p + advance(p)
  for (int32_t boundary = 0; boundary < 3; ++boundary) {
    CHECK(SlotsNeeded(schedule, MessageKind::kActivation, boundary) == in_flight[boundary]);
    CHECK(SlotsNeeded(schedule, MessageKind::kGradient, boundary) == in_flight[boundary]);
  }
}

TEST_CASE("few micro-batches need no more slots than there are messages") {
  const Schedule schedule = GeoPipe(3, 2, {5, 5});
  CHECK(SlotsNeeded(schedule, MessageKind::kActivation, 0) == 2);
}

TEST_CASE("gpipe can send every activation before the first is taken") {
  const Schedule schedule = *Lower(*MakeSchedule(ScheduleKind::kGpipe, PipelineShape::Linear(3, 7)));
  CHECK(SlotsNeeded(schedule, MessageKind::kActivation, 1) == 7);
}

TEST_CASE("a rank has the channels of its boundaries, of the norm, and of a tied embedding") {
  const Schedule schedule = GeoPipe(3, 8, {1, 1});
  const PayloadLayout small = PayloadLayout::Of(DType::kBf16, {5, 10});
  const PayloadLayout large = PayloadLayout::Of(DType::kFp32, {50});
  const ChannelMessages messages{.boundaries = {small, large},
                                 .norm_bytes = {10, 20, 30},
                                 .tied_gradient = PayloadLayout::Of(DType::kFp32, {250})};
  const std::vector<PeerId> pipeline{1, 5, 9};  // of a grid with other pipelines beside it
  std::map<ChannelId, int> ends;
  for (int32_t pipeline_rank = 0; pipeline_rank < 3; ++pipeline_rank) {
    const PeerId rank = pipeline[pipeline_rank];
    for (const ChannelSpec& channel : ChannelsOf(schedule, pipeline_rank, pipeline, messages)) {
      CHECK((channel.id.from_rank == rank || channel.id.to_rank == rank));
      CHECK(channel.slots >= 2);
      const bool has_layout = channel.id.kind != MessageKind::kNormTerms;
      REQUIRE(channel.layout.has_value() == has_layout);
      CHECK((!has_layout || channel.layout->bytes() == channel.slot_bytes));
      if (channel.id.kind == MessageKind::kActivation || channel.id.kind == MessageKind::kGradient) {
        CHECK(channel.layout == (channel.id.boundary == 0 ? small : large));
      }
      ++ends[channel.id];
    }
  }
  CHECK(ends.size() == 4 + 6 + 2);
  for (const auto& [id, count] : ends) {
    CHECK(count == 2);
  }
  const std::vector<ChannelSpec> middle = ChannelsOf(schedule, 1, pipeline, messages);
  CHECK(middle.size() == 4 + 4);
}

TEST_CASE("messages of a plan: norms only when clipped, tied gradients only between two stages") {
  JobSpec job;
  job.model = TinyModel(2);
  job.model.hidden_size = 8;
  job.model.vocab_size = 10;
  job.model.tie_word_embeddings = true;
  Plan plan;
  plan.micro_batch_size = 2;
  plan.sequence_length = 3;
  plan.Append({}, {.first = 0, .last = 0, .has_embedding = true, .has_head = false});
  plan.Append({}, {.first = 1, .last = 1, .has_embedding = false, .has_head = true});
  ChannelMessages messages = MessagesOfPlan(plan, job, true);
  CHECK(messages.boundaries == std::vector{PayloadLayout::Of(DType::kFp32, {2 * 3, 8})});
  REQUIRE(messages.norm_bytes.size() == 2);
  // Untied, the last stage tells of its head, too; tied, the first stage tells of both uses.
  JobSpec untied = job;
  untied.model.tie_word_embeddings = false;
  const std::vector<int64_t> of_untied = MessagesOfPlan(plan, untied, true).norm_bytes;
  CHECK(messages.norm_bytes == std::vector<int64_t>{of_untied[0], of_untied[1] - (4 + 16 + 8)});
  CHECK(messages.tied_gradient == PayloadLayout::Of(DType::kFp32, {10 * 8}));
  JobSpec divided = job;
  divided.precision = Precision::kBf16;
  plan.grid.tensor = 2;
  CHECK(MessagesOfPlan(plan, divided, true).boundaries ==
        std::vector{PayloadLayout::Of(DType::kBf16, {2 * 3 * 8 / 2})});
  divided.parallelism.sequence_parallel = true;
  CHECK(MessagesOfPlan(plan, divided, true).boundaries == std::vector{PayloadLayout::Of(DType::kBf16, {2 * 3 / 2, 8})});
  plan.grid.tensor = 1;
  plan.stages[1].pipeline_rank = 0;  // both on one rank, whose terms go together
  plan.grid.pipeline = 1;
  CHECK(MessagesOfPlan(plan, job, true).norm_bytes.front() == messages.norm_bytes[0] + messages.norm_bytes[1] - 4);
  plan.stages.resize(1);
  messages = MessagesOfPlan(plan, job, false);
  CHECK(messages == ChannelMessages{});
}

}  // namespace
}  // namespace geopipe
