#include "optimizer/schedule/schedule.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <utility>

#include "optimizer/base/status_macros.h"

namespace geopipe {
namespace {

constexpr std::array<std::string_view, 3> kCommNames = {"nonblocking", "blocking", "rendezvous"};

std::string_view Trim(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  const size_t first = text.find_first_not_of(kBlank);
  return first == std::string_view::npos ? std::string_view()
                                         : text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

// Takes the text up to `separator` (or the end) off the front of `text`.
std::string_view TakeUntil(std::string_view& text, char separator) {
  const size_t end = text.find(separator);
  const std::string_view taken = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return taken;
}

absl::StatusOr<std::vector<Action>> ParseRow(std::string_view row, size_t row_number, size_t max_actions) {
  std::vector<Action> actions;
  for (size_t cell_number = 1; !row.empty(); ++cell_number) {
    const std::string_view cell = Trim(TakeUntil(row, ','));
    if (cell.empty()) {
      continue;
    }
    absl::StatusOr<Action> action = ParseAction(cell);
    if (!action.ok()) {
      return absl::InvalidArgumentError(fmt::format("schedule CSV, row {}, cell {}: {}", row_number, cell_number,
                                                    std::string(action.status().message())));
    }
    if (actions.size() == max_actions) {
      return absl::InvalidArgumentError(fmt::format(
          "schedule CSV, row {}, cell {}: more actions than any schedule of this shape has (at most {} on one device)",
          row_number, cell_number, max_actions));
    }
    actions.push_back(*action);
  }
  return actions;
}

}  // namespace

PipelineShape PipelineShape::Of(StageLayout layout, int32_t devices, int32_t micro_batches, int32_t per_device) {
  const int32_t rounds = layout == StageLayout::kLooped ? per_device : MinStagesPerDevice(layout);
  PipelineShape shape{devices, rounds * devices, micro_batches, {}};
  for (int32_t stage = 0; stage < shape.stages; ++stage) {
    const bool back = layout == StageLayout::kFolded && stage >= devices;
    shape.placement.push_back(back ? 2 * devices - 1 - stage : stage % devices);
  }
  return shape;
}

absl::Status ValidateShape(const PipelineShape& shape) {
  if (shape.devices < 1 || shape.devices > kMaxDevices) {
    return absl::InvalidArgumentError(
        fmt::format("devices is {}: it must lie between 1 and {}", shape.devices, kMaxDevices));
  }
  if (shape.stages < 1) {
    return absl::InvalidArgumentError(fmt::format("stages is {}: it must be at least 1", shape.stages));
  }
  if (shape.micro_batches < 1) {
    return absl::InvalidArgumentError(fmt::format("micro_batches is {}: it must be at least 1", shape.micro_batches));
  }
  if (int64_t{shape.stages} * shape.micro_batches > kMaxStageMicroBatches) {
    return absl::InvalidArgumentError(fmt::format("stages * micro_batches is {} * {}: it must be at most {}",
                                                  shape.stages, shape.micro_batches, kMaxStageMicroBatches));
  }
  if (std::ssize(shape.placement) != shape.stages) {
    return absl::InvalidArgumentError(fmt::format("placement has {} entries: it needs one for each of the {} stages",
                                                  shape.placement.size(), shape.stages));
  }
  for (size_t stage = 0; stage < shape.placement.size(); ++stage) {
    if (shape.placement[stage] < 0 || shape.placement[stage] >= shape.devices) {
      return absl::InvalidArgumentError(fmt::format("placement[{}] is {}: it must be a device from 0 to {}", stage,
                                                    shape.placement[stage], shape.devices - 1));
    }
  }
  return absl::OkStatus();
}

std::string_view CommModeName(CommMode mode) { return kCommNames[static_cast<size_t>(mode)]; }

absl::StatusOr<CommMode> ParseCommMode(std::string_view name) {
  const auto* const found = std::ranges::find(kCommNames, name);
  if (found == kCommNames.end()) {
    return absl::InvalidArgumentError(
        fmt::format("unknown comm mode '{}': use one of {}", name, fmt::join(kCommNames, ", ")));
  }
  return static_cast<CommMode>(found - kCommNames.begin());
}

std::string ToCsv(const Schedule& schedule) {
  std::string csv;
  for (const std::vector<Action>& actions : schedule.devices) {
    for (size_t i = 0; i < actions.size(); ++i) {
      fmt::format_to(std::back_inserter(csv), "{}{}{}{}", i == 0 ? "" : ",", actions[i].stage,
                     ActionKindName(actions[i].kind), actions[i].micro_batch);
    }
    csv += '\n';
  }
  return csv;
}

absl::StatusOr<Schedule> ParseCsv(std::string_view csv, const PipelineShape& shape) {
  GP_RETURN_IF_ERROR(ValidateShape(shape));
  Schedule schedule{shape, {}};
  // Each stage and micro-batch has at most F, I and W, each with a receive and a send.
  const auto max_actions = static_cast<size_t>(9 * int64_t{shape.stages} * shape.micro_batches);
  for (size_t row_number = 1; !csv.empty(); ++row_number) {
    const std::string_view row = TakeUntil(csv, '\n');
    if (std::ssize(schedule.devices) == shape.devices) {
      if (!Trim(row).empty()) {
        return absl::InvalidArgumentError(
            fmt::format("schedule CSV, row {}: only {} rows expected, one per device", row_number, shape.devices));
      }
      continue;
    }
    GP_ASSIGN_OR_RETURN(std::vector<Action> actions, ParseRow(row, row_number, max_actions));
    schedule.devices.push_back(std::move(actions));
  }
  if (std::ssize(schedule.devices) != shape.devices) {
    return absl::InvalidArgumentError(
        fmt::format("schedule CSV has {} rows: it needs {}, one per device", schedule.devices.size(), shape.devices));
  }
  return schedule;
}

}  // namespace geopipe
