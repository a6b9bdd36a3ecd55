// Damaged messages: never a crash, and what is taken is valid.
#include <google/protobuf/stubs/logging.h>

#include <catch2/catch.hpp>
#include <string>

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

TEST_CASE("Random damage of a stream's messages is refused or harmless") {
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
  for (int i = 0; i < 2000; ++i) {
    v1::ConnectRequest damaged;
    if (damaged.ParseFromString(Damage(request.SerializeAsString(), random))) {
      const absl::Status status = ValidateMessage(damaged);
      CHECK((status.ok() || status.code() == absl::StatusCode::kInvalidArgument));
    }
  }
}

}  // namespace
}  // namespace geopipe
