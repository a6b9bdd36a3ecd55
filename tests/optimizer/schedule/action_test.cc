#include "optimizer/schedule/action.h"

#include <catch2/catch.hpp>
#include <limits>
#include <string>

#include "optimizer/schedule/schedule_table.h"

namespace geopipe {
namespace {

TEST_CASE("actions have PyTorch's text form") {
  CHECK(ToString({2, ActionKind::kForward, 0}) == "2F0");
  CHECK(ToString({0, ActionKind::kBackward, 17}) == "0B17");
  CHECK(ToString({10, ActionKind::kInputGradient, 3}) == "10I3");
  CHECK(ToString({1, ActionKind::kWeightGradient, 1}) == "1W1");
  CHECK(ToString({2, ActionKind::kSendForward, 4}) == "2SEND_F4");
  CHECK(ToString({2, ActionKind::kRecvForward, 4}) == "2RECV_F4");
  CHECK(ToString({2, ActionKind::kSendBackward, 4}) == "2SEND_B4");
  CHECK(ToString({2, ActionKind::kRecvBackward, 4}) == "2RECV_B4");
}

TEST_CASE("every action reads back as itself") {
  constexpr int32_t kMax = std::numeric_limits<int32_t>::max();
  for (const int32_t stage : {0, 1, 9, 10, 123, kMax}) {
    for (int kind = 0; kind < 8; ++kind) {
      for (const int32_t micro_batch : {0, 7, 99, 100, kMax}) {
        const Action action{stage, static_cast<ActionKind>(kind), micro_batch};
        CAPTURE(ToString(action));
        REQUIRE(ParseAction(ToString(action)).value() == action);
      }
    }
  }
}

TEST_CASE("text that is not exactly an action is named in the error") {
  for (const std::string text : {"", "F0", "0F", "0X0", "0f0", "-1F0", "+1F0", "00F0", "0F00", "0F1 ", " 0F1", "0F1F",
                                 "0SEND_0", "0SENDF0", "2147483648F0", "0F99999999999", "0F0,0F1"}) {
    const absl::StatusOr<Action> action = ParseAction(text);
    CAPTURE(text);
    REQUIRE(action.status().code() == absl::StatusCode::kInvalidArgument);
    CHECK(action.status().ToString().find("'" + text + "' is not an action: expected") != std::string::npos);
  }
}

TEST_CASE("names of schedules and modes read back, unknown ones list the known") {
  for (const ScheduleRow& row : kSchedules) {
    CHECK(ParseScheduleKind(ScheduleKindName(row.kind)).value() == row.kind);
  }
  for (const CommMode mode : {CommMode::kNonBlocking, CommMode::kBlocking, CommMode::kRendezvous}) {
    CHECK(ParseCommMode(CommModeName(mode)).value() == mode);
  }
  CHECK(ParseScheduleKind("pipedream").status().message() ==
        "unknown schedule 'pipedream': use one of gpipe, 1f1b, geopipe, interleaved, zb-h1, zb-h2, zb-v, "
        "geopipe-zb, auto");
  CHECK(ParseCommMode("async").status().message() ==
        "unknown comm mode 'async': use one of nonblocking, blocking, rendezvous");
}

}  // namespace
}  // namespace geopipe
