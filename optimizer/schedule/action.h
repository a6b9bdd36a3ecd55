// One action of a pipeline schedule: (stage, kind, micro-batch), with a reversible text form in the grammar of
// PyTorch's pipelining CSV: `2F0`, `2B0`, `2I0`, `2W0`, `2SEND_F0`, `2RECV_F0`, `2SEND_B0`, `2RECV_B0`.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace geopipe {

enum class ActionKind : uint8_t {
  kForward,         // F
  kBackward,        // B: full backward, I and W together
  kInputGradient,   // I
  kWeightGradient,  // W
  kSendForward,     // SEND_F: the stage's activation leaves for stage + 1
  kRecvForward,     // RECV_F: the activation of stage - 1 is needed from here on
  kSendBackward,    // SEND_B: the stage's input gradient leaves for stage - 1
  kRecvBackward,    // RECV_B: the output gradient from stage + 1 is needed from here on
};

// "F", "B", "I", "W", "SEND_F", "RECV_F", "SEND_B", "RECV_B".
std::string_view ActionKindName(ActionKind kind);

constexpr bool IsCompute(ActionKind kind) { return kind <= ActionKind::kWeightGradient; }
constexpr bool IsSend(ActionKind kind) { return kind == ActionKind::kSendForward || kind == ActionKind::kSendBackward; }
constexpr bool IsRecv(ActionKind kind) { return kind == ActionKind::kRecvForward || kind == ActionKind::kRecvBackward; }

struct Action {
  int32_t stage = 0;  // from 0
  ActionKind kind = ActionKind::kForward;
  int32_t micro_batch = 0;

  friend bool operator==(const Action&, const Action&) = default;
};

std::string ToString(const Action& action);

// Inverse of ToString. InvalidArgument names the text and the expected form.
absl::StatusOr<Action> ParseAction(std::string_view text);

}  // namespace geopipe
