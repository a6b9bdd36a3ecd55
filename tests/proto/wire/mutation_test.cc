// Damaged messages: never a crash, and what is taken is valid.
#include <google/protobuf/stubs/logging.h>

#include <catch2/catch.hpp>
#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>
#include <random>
#include <string>

#include "optimizer/model/cluster.h"
#include "optimizer/model/job_spec.h"
#include "optimizer/schedule/action.h"
#include "proto/wire/schedule_wire.h"
#include "proto/wire/session_wire.h"
#include "tests/proto/wire/random_values.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

std::string Damage(std::string bytes, std::mt19937_64& random) {
  for (uint64_t change = 0; change <= random() % 3 && !bytes.empty(); ++change) {
    const size_t position = random() % bytes.size();
    switch (random() % 3) {
      case 0:
        bytes[position] = static_cast<char>(random());
        break;
      case 1:
        bytes.erase(position, 1 + random() % 4);
        break;
      default:
        bytes.insert(position, 1, static_cast<char>(random()));
        break;
    }
  }
  return bytes;
}

template <class T>
void CheckDamaged(const T& value, std::mt19937_64& random) {
  auto message = ToProto(value);
  if (!message.ParseFromString(Damage(message.SerializeAsString(), random))) {
    return;
  }
  const absl::StatusOr<T> read = FromProto(message);
  if (!read.ok()) {
    CHECK(read.status().code() == absl::StatusCode::kInvalidArgument);
    CHECK_FALSE(read.status().message().empty());
    return;
  }
  const absl::StatusOr<T> again = FromProto(ToProto(*read));  // what is taken once is valid
  INFO(again.status().ToString());
  REQUIRE(again.ok());
  CHECK(*again == *read);
}

TEST_CASE("Random damage is refused or gives a valid value") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  const google::protobuf::LogSilencer silencer;  // it reports text that is not UTF-8
  RandomValues values(seed);
  for (int i = 0; i < 1000; ++i) {
    CheckDamaged(values.Run(), values.random());
    CheckDamaged(values.RandomPlan(), values.random());
    CheckDamaged(values.RandomSchedule(), values.random());
    CheckDamaged(values.Costs(), values.random());
  }
}

// Says anew whether what receivers rely on holds in a report of an iteration; nullopt for messages of other kinds.
std::optional<bool> IsSound(const v1::ConnectRequest& request) {
  if (!request.has_reports()) {
    return std::nullopt;
  }
  constexpr int64_t kYearNs = int64_t{365} * 24 * 3600 * 1'000'000'000;
  const auto within = [](int64_t value, int64_t least, int64_t most) { return least <= value && value <= most; };
  bool sound = request.reports().first_sequence() > 0;
  for (const v1::NodeReport& each : request.reports().reports()) {
    const v1::IterationReport& report = each.worker().report().iteration();
    if (!each.worker().report().has_iteration() || report.has_peaks() || report.clocks_size() > 0) {
      return std::nullopt;
    }
    const v1::WorkerId& worker = each.worker().worker();
    sound = sound && IsSiteName(worker.site()) && IsSiteName(worker.node()) && IsJobName(worker.job()) &&
            within(worker.device(), 0, 1023) && report.iteration() >= 0 && within(report.rank(), 0, 65'535) &&
            within(report.duration_ns(), 0, kYearNs) && within(report.busy_ns(), 0, kYearNs) &&
            within(report.begin_ns(), 0, int64_t{1} << 60);
    for (const v1::ActionTiming& timing : report.actions()) {
      sound = sound && ParseAction(timing.action()).ok() && within(timing.start_ns(), -kYearNs, kYearNs) &&
              within(timing.end_ns(), timing.start_ns(), kYearNs);
    }
  }
  return sound;
}

// Gives one number of the message a value at, or beyond, an end of some range.
void DamageNumber(v1::ConnectRequest& request, std::mt19937_64& random) {
  constexpr int64_t kNumbers[] = {-2,
                                  -1,
                                  0,
                                  1,
                                  1023,
                                  1024,
                                  65'535,
                                  65'536,
                                  int64_t{1} << 31,
                                  int64_t{1} << 60,
                                  int64_t{1} << 62,
                                  std::numeric_limits<int64_t>::max(),
                                  std::numeric_limits<int64_t>::min()};
  const int64_t value = kNumbers[random() % std::size(kNumbers)];
  v1::RelayedReport& relayed = *request.mutable_reports()->mutable_reports(0)->mutable_worker();
  v1::IterationReport& report = *relayed.mutable_report()->mutable_iteration();
  switch (random() % 9) {
    case 0:
      return request.mutable_reports()->set_first_sequence(static_cast<uint64_t>(value));
    case 1:
      return relayed.mutable_worker()->set_device(static_cast<int32_t>(value));
    case 2:
      return report.set_iteration(value);
    case 3:
      return report.set_rank(static_cast<int32_t>(value));
    case 4:
      return report.set_duration_ns(value);
    case 5:
      return report.set_busy_ns(value);
    case 6:
      return report.set_begin_ns(value);
    case 7:
      return report.mutable_actions(0)->set_start_ns(value);
    default:
      return report.mutable_actions(0)->set_end_ns(value);
  }
}

TEST_CASE("Of damaged messages of a stream those are refused that a receiver could not rely on, and no others") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  const google::protobuf::LogSilencer silencer;
  std::mt19937_64 random(seed);
  v1::ConnectRequest request;
  request.mutable_reports()->set_first_sequence(1);
  v1::RelayedReport& relayed = *request.mutable_reports()->add_reports()->mutable_worker();
  relayed.mutable_worker()->set_site("north");
  relayed.mutable_worker()->set_node("n");
  relayed.mutable_worker()->set_job("tiny");
  v1::IterationReport* report = relayed.mutable_report()->mutable_iteration();
  report->set_loss(2.5);
  v1::ActionTiming* timing = report->add_actions();
  timing->set_action("0F0");
  timing->set_end_ns(5);
  REQUIRE(ValidateMessage(request).ok());
  int sound = 0;
  int unsound = 0;
  for (int i = 0; i < 4000; ++i) {
    v1::ConnectRequest damaged = request;
    if (i % 2 == 0) {
      DamageNumber(damaged, random);
    } else if (!damaged.ParseFromString(Damage(request.SerializeAsString(), random))) {
      continue;
    }
    const absl::Status status = ValidateMessage(damaged);
    INFO(damaged.ShortDebugString() << ": " << status.ToString());
    CHECK((status.ok() || status.code() == absl::StatusCode::kInvalidArgument));
    if (const std::optional<bool> is_sound = IsSound(damaged); is_sound.has_value()) {
      CHECK(status.ok() == *is_sound);
      ++(*is_sound ? sound : unsound);
    }
  }
  CHECK(sound > 500);
  CHECK(unsound > 500);
}

}  // namespace
}  // namespace geopipe
