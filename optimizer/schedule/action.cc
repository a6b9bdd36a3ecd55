#include "optimizer/schedule/action.h"

#include <absl/status/status.h>
#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cstddef>
#include <system_error>

namespace geopipe {
namespace {

constexpr std::array<std::string_view, 8> kKindNames = {"F", "B", "I", "W", "SEND_F", "RECV_F", "SEND_B", "RECV_B"};

constexpr bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// Takes a canonical non-negative number (no sign, no leading zero) off the front of `text`.
bool TakeNumber(std::string_view& text, int32_t& value) {
  const char* const begin = text.data();
  const char* const end = begin + text.size();
  if (text.empty() || !IsDigit(text.front())) {
    return false;
  }
  const auto [stop, error] = std::from_chars(begin, end, value);
  if (error != std::errc() || (*begin == '0' && stop - begin > 1)) {
    return false;
  }
  text.remove_prefix(static_cast<size_t>(stop - begin));
  return true;
}

bool TakeKind(std::string_view& text, ActionKind& kind) {
  size_t length = 0;
  while (length < text.size() && !IsDigit(text[length])) {
    ++length;
  }
  for (size_t i = 0; i < kKindNames.size(); ++i) {
    if (text.substr(0, length) == kKindNames[i]) {
      kind = static_cast<ActionKind>(i);
      text.remove_prefix(length);
      return true;
    }
  }
  return false;
}

}  // namespace

std::string_view ActionKindName(ActionKind kind) { return kKindNames[static_cast<size_t>(kind)]; }

std::string ToString(const Action& action) {
  return fmt::format("{}{}{}", action.stage, ActionKindName(action.kind), action.micro_batch);
}

absl::StatusOr<Action> ParseAction(std::string_view text) {
  Action action;
  std::string_view rest = text;
  if (TakeNumber(rest, action.stage) && TakeKind(rest, action.kind) && TakeNumber(rest, action.micro_batch) &&
      rest.empty()) {
    return action;
  }
  constexpr size_t kMaxShown = 40;
  return absl::InvalidArgumentError(fmt::format(
      "'{}{}' is not an action: expected <stage><kind><micro-batch>, such as 2F0, where kind is one of F, B, "
      "I, W, SEND_F, RECV_F, SEND_B, RECV_B and numbers have no leading zero",
      text.substr(0, kMaxShown), text.size() > kMaxShown ? "…" : ""));
}

}  // namespace geopipe
