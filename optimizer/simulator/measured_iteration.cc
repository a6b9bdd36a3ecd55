#include "optimizer/simulator/measured_iteration.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "optimizer/base/check.h"

namespace geopipe {
namespace {

using MessageKey = std::tuple<int32_t, bool, int32_t>;  // producing stage, upwards, micro-batch

// Delays of one device's compute actions, which are in the order they ran.
void AddDelays(const std::vector<ActionTiming>& computed, std::vector<ActionTiming> sends,
               const std::map<MessageKey, int64_t>& arrivals_ns, const PipelineShape& shape,
               MeasuredIteration& measured) {
  std::ranges::stable_sort(sends, {}, &ActionTiming::start_ns);
  auto send = sends.begin();
  for (size_t i = 1; i < computed.size(); ++i) {
    const auto& [action, start_ns, end_ns] = computed[i];
    int64_t ready_ns = computed[i - 1].end_ns;
    ActionDelay delay{.action = action};
    for (; send != sends.end() && send->start_ns < start_ns; ++send) {
      delay.sends_ns += send->end_ns - send->start_ns;
      ready_ns = std::max(ready_ns, send->end_ns);
    }
    const bool upwards = action.kind == ActionKind::kForward;
    const int32_t from = upwards ? action.stage - 1 : action.stage + 1;
    const bool waits = action.kind != ActionKind::kWeightGradient && from >= 0 && from < shape.stages &&
                       shape.placement[from] != shape.placement[action.stage];
    const auto arrived = arrivals_ns.find({from, upwards, action.micro_batch});
    if (waits && arrived != arrivals_ns.end()) {
      ready_ns = std::max(ready_ns, arrived->second);
    }
    const bool known = !waits || arrived != arrivals_ns.end();
    delay.late_ns = known ? std::max<int64_t>(0, start_ns - ready_ns) : 0;
    measured.delays.push_back(delay);
  }
}

}  // namespace

MeasuredIteration MakeMeasuredIteration(int64_t iteration, int64_t duration_ns,
                                        const std::vector<std::vector<ActionTiming>>& actions,
                                        const PipelineShape& shape) {
  MeasuredIteration measured{.iteration = iteration, .duration_ns = duration_ns, .timeline = {}, .messages = {}};
  measured.timeline.resize(actions.size());
  std::vector<std::vector<ActionTiming>> sends(actions.size());
  std::map<MessageKey, MessageTiming> messages;
  std::map<MessageKey, int64_t> arrivals_ns;
  for (size_t device = 0; device < actions.size(); ++device) {
    for (const ActionTiming& timing : actions[device]) {
      const auto& [action, start_ns, end_ns] = timing;
      if (IsCompute(action.kind)) {
        measured.timeline[device].push_back(timing);
      } else if (IsSend(action.kind)) {
        sends[device].push_back(timing);
        messages[{action.stage, action.kind == ActionKind::kSendForward, action.micro_batch}] = {action, start_ns,
                                                                                                 start_ns, 0};
      } else {
        const bool upwards = action.kind == ActionKind::kRecvForward;
        arrivals_ns[{upwards ? action.stage - 1 : action.stage + 1, upwards, action.micro_batch}] = start_ns;
      }
    }
  }
  for (size_t device = 0; device < actions.size(); ++device) {
    AddDelays(measured.timeline[device], std::move(sends[device]), arrivals_ns, shape, measured);
  }
  for (auto& [key, message] : messages) {
    const int32_t stage = std::get<0>(key);
    if (const auto arrived = arrivals_ns.find(key); arrived != arrivals_ns.end() && stage < shape.stages) {
      message.arrive_ns = arrived->second;
      measured.messages.push_back(message);
    }
  }
  std::ranges::stable_sort(measured.messages, {}, &MessageTiming::enter_ns);
  return measured;
}

int64_t WarmUpIterations(int64_t finished) {
  constexpr int64_t kMin = 3;
  constexpr int64_t kShare = 10;
  GP_CHECK(finished > 0);
  return std::min(std::max(kMin, (finished + kShare - 1) / kShare), finished - 1);
}

}  // namespace geopipe
