#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>

#include "proto/wire/cluster_wire.h"
#include "proto/wire/control_wire.h"
#include "proto/wire/schedule_wire.h"
#include "proto/wire/telemetry_wire.h"
#include "tests/proto/wire/random_values.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

// Converts to the bytes that travel, and back.
template <class T>
void CheckRoundTrip(const T& value) {
  const auto message = ToProto(value);
  std::decay_t<decltype(message)> received;
  REQUIRE(received.ParseFromString(message.SerializeAsString()));
  const absl::StatusOr<T> back = FromProto(received);
  INFO(back.status().ToString());
  REQUIRE(back.ok());
  CHECK(*back == value);
}

TEST_CASE("Every value comes back from the wire unchanged") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  RandomValues values(seed);
  for (int i = 0; i < 200; ++i) {
    CheckRoundTrip(values.Run());
    CheckRoundTrip(values.Costs());
    CheckRoundTrip(values.RandomSchedule());
    CheckRoundTrip(values.RandomPlan());
    CheckRoundTrip(values.RandomPrediction());
    CheckRoundTrip(values.Entry());
    CheckRoundTrip(values.RandomProfile());
    CheckRoundTrip(values.Device());
    CheckRoundTrip(values.Network());
  }
}

TEST_CASE("A baseline comes back from the wire unchanged") {
  const Baseline baseline{
      ScheduleKind::kOneFOneB, CommMode::kBlocking, BaselineScope::kSingleSite, "north", 2, 4096, 123, 0.25, false};
  const auto back = FromProto(ToProto(baseline));
  REQUIRE(back.ok());
  CHECK(back->schedule == ScheduleKind::kOneFOneB);
  CHECK(back->comm == CommMode::kBlocking);
  CHECK(back->scope == BaselineScope::kSingleSite);
  CHECK(back->site == "north");
  CHECK(back->micro_batch_size == 2);
  CHECK(back->sequence_length == 4096);
  CHECK(back->iteration_ns == 123);
  CHECK(back->bubble_ratio == 0.25);
  CHECK_FALSE(back->fits);
}

TEST_CASE("The default run options are the empty message") {
  CHECK(FromProto(v1::RunOptions()).value() == RunOptions{});
}

TEST_CASE("Every schedule has its number, and every number its schedule") {
  const v1::Plan plan = ToProto(RandomValues(1).RandomPlan());
  for (int number = v1::SCHEDULE_KIND_UNSPECIFIED + 1; v1::ScheduleKind_IsValid(number); ++number) {
    v1::Plan message = plan;
    message.set_schedule(static_cast<v1::ScheduleKind>(number));
    const absl::StatusOr<Plan> read = FromProto(message);
    REQUIRE(read.ok());
    CHECK(static_cast<int>(read->schedule) == number);
    REQUIRE((read->schedule == ScheduleKind::kCsv ||
             std::ranges::count(kSchedules, read->schedule, &ScheduleRow::kind) == 1));
    std::string name = "SCHEDULE_KIND_";
    for (const char c : ScheduleKindName(read->schedule)) {
      name += c == '-' ? '_' : static_cast<char>(std::toupper(c));
    }
    CHECK(v1::ScheduleKind_Name(number) ==
          (read->schedule == ScheduleKind::kOneFOneB ? "SCHEDULE_KIND_ONE_F_ONE_B" : name));
  }
  for (const ScheduleRow& row : kSchedules) {
    CHECK(v1::ScheduleKind_IsValid(static_cast<int>(row.kind)));
  }
}

TEST_CASE("An error begins with the path of the field") {
  RandomValues values(1);
  const auto error = [](const auto& message) { return std::string(FromProto(message).status().message()); };
  v1::Plan plan = ToProto(values.RandomPlan());
  plan.mutable_stages(0)->mutable_layers()->set_first(-1);
  CHECK(error(plan) == "stages[0].layers.first is -1; it must be from 0 to 16777216");
  plan = ToProto(values.RandomPlan());
  plan.set_schedule(static_cast<v1::ScheduleKind>(77));
  CHECK(error(plan) == "schedule is 77; this version knows no such value");
  plan = ToProto(values.RandomPlan());
  plan.mutable_stages(0)->set_pipeline_rank(plan.grid().pipeline());
  CHECK(error(plan) == fmt::format("stages[0].pipeline_rank is {}; it must be from 0 to {}", plan.grid().pipeline(),
                                   plan.grid().pipeline() - 1));
  plan = ToProto(values.RandomPlan());
  plan.clear_stages();
  CHECK(error(plan) == "pipeline_ranks[0] has no stage; every pipeline rank runs one at least");
  plan = ToProto(values.RandomPlan());
  plan.mutable_grid()->set_tensor(1 << 17);
  CHECK_THAT(error(plan), Catch::StartsWith("grid.tensor is 131072; it must be from 1 to "));
  plan = ToProto(values.RandomPlan());
  plan.mutable_devices()->RemoveLast();
  CHECK_THAT(error(plan), Catch::StartsWith("devices has "));
  v1::RunOptions run;
  run.add_delta_n(-1);
  CHECK(error(run) == "delta_n[0] is -1; it must be from 0 to 1024");
  v1::DeviceSpec device = ToProto(values.Device());
  device.set_kind("a\nb");
  CHECK(error(device) == "kind holds a control character; names are printable");
}

TEST_CASE("Job states have names") {
  CHECK(JobStateName(v1::JOB_STATE_RUNNING) == "RUNNING");
  CHECK(JobStateName(static_cast<v1::JobState>(99)) == "UNKNOWN");
  CHECK(IsFinal(v1::JOB_STATE_CANCELLED));
  CHECK_FALSE(IsFinal(v1::JOB_STATE_RUNNING));
}

}  // namespace
}  // namespace geopipe
