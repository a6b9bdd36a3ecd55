#include "optimizer/schedule/dependencies.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "optimizer/base/check.h"

namespace geopipe {
namespace {

// Cycles longer than this are abridged in messages.
constexpr size_t kMaxShownLinks = 32;

struct Wait {
  int32_t device = 0;
  int64_t position = 0;
  int64_t input = kNoInput;
  int64_t producer_position = -1;  // on the producer's device; -1: no action makes the input
};

int64_t FindProducer(const Schedule& schedule, const OutputTable& outputs, int64_t output) {
  const auto& actions = schedule.devices[schedule.shape.placement[outputs.Stage(output)]];
  const auto found = std::find_if(actions.begin(), actions.end(), [&](const Action& action) {
    return IsCompute(action.kind) && outputs.OutputOf(action) == output;
  });
  return found == actions.end() ? -1 : found - actions.begin();
}

// "0B0 (device 0 position 1)".
std::string DescribeAction(const Schedule& schedule, int32_t device, int64_t position) {
  return fmt::format("{} (device {} position {})", ToString(schedule.devices[device][position]), device, position);
}

std::string DescribeMissing(const Schedule& schedule, const OutputTable& outputs, const Wait& wait) {
  return fmt::format("{} waits for {}{}{}, which device {} never runs",
                     DescribeAction(schedule, wait.device, wait.position), outputs.Stage(wait.input),
                     outputs.IsBackward(wait.input) ? "B" : "F", outputs.MicroBatch(wait.input),
                     schedule.shape.placement[outputs.Stage(wait.input)]);
}

// Describes a wait. `next`: the action at which the producer's device is stuck, the producer itself or one before it.
std::string DescribeWait(const Schedule& schedule, const Wait& wait, const Wait& next) {
  const std::string waiting = DescribeAction(schedule, wait.device, wait.position);
  const std::string producer = DescribeAction(schedule, next.device, wait.producer_position);
  if (wait.producer_position == next.position) {
    return fmt::format("{} waits for {}", waiting, producer);
  }
  return fmt::format("{} waits for {}, which stands behind {}", waiting, producer,
                     ToString(schedule.devices[next.device][next.position]));
}

}  // namespace

std::string DescribeDeadlock(const Schedule& schedule, std::span<const int64_t> stuck_position) {
  const OutputTable outputs(schedule.shape);
  const auto device_count = static_cast<int32_t>(schedule.devices.size());
  int32_t device = 0;
  while (device < device_count && stuck_position[device] == std::ssize(schedule.devices[device])) {
    ++device;
  }
  GP_CHECK(device < device_count, "no device is stuck");
  std::vector<Wait> chain;
  std::vector<int64_t> chain_index(schedule.devices.size(), -1);
  while (chain_index[device] < 0) {
    chain_index[device] = std::ssize(chain);
    const int64_t position = stuck_position[device];
    const int64_t input = outputs.InputOf(schedule.devices[device][position]);
    GP_CHECK(input != kNoInput, "device {} is stuck at an action without input", device);
    const int64_t producer_position = FindProducer(schedule, outputs, input);
    chain.push_back({device, position, input, producer_position});
    if (producer_position < 0) {
      return fmt::format("deadlock: {}", DescribeMissing(schedule, outputs, chain.back()));
    }
    device = schedule.shape.placement[outputs.Stage(input)];
  }
  chain.erase(chain.begin(), chain.begin() + chain_index[device]);
  std::string text = "deadlock: these actions wait for each other in a cycle:";
  for (size_t i = 0; i < chain.size() && i < kMaxShownLinks; ++i) {
    text += fmt::format("{} {}", i == 0 ? "" : ";", DescribeWait(schedule, chain[i], chain[(i + 1) % chain.size()]));
  }
  if (chain.size() > kMaxShownLinks) {
    text += fmt::format("; and {} more, back to the first", chain.size() - kMaxShownLinks);
  }
  return text + "; move one that is waited for ahead of what it stands behind";
}

}  // namespace geopipe
