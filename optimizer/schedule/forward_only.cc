#include "optimizer/schedule/forward_only.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "optimizer/schedule/lower_device.h"

namespace geopipe {

Schedule ForwardOnly(const Schedule& schedule) {
  Schedule forwards{schedule.shape, {}};
  for (const std::vector<Action>& actions : schedule.devices) {
    std::vector<Action> compute;
    std::ranges::copy_if(actions, std::back_inserter(compute),
                         [](const Action& action) { return action.kind == ActionKind::kForward; });
    forwards.devices.push_back(LowerDevice(schedule.shape, compute));
  }
  return forwards;
}

}  // namespace geopipe
