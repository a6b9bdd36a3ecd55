#include "coordinator/core/life/crew_facts.h"

#include <algorithm>
#include <iterator>

namespace geopipe {

bool CrewFacts::heard(const NodeKey& node) const {
  return std::ranges::find(silences, node, &NodeSilence::node) == silences.end();
}

std::vector<NodeKey> CrewFacts::unheard() const {
  std::vector<NodeKey> nodes;
  std::ranges::transform(silences, std::back_inserter(nodes), &NodeSilence::node);
  return nodes;
}

std::vector<CheckpointIdentity> CrewFacts::Readable(int64_t now_ns, std::vector<CheckpointIdentity> checkpoints) const {
  std::vector<CheckpointIdentity> readable = checkpoints;
  std::erase_if(readable, [&](const CheckpointIdentity& each) {
    const auto found = std::ranges::find(unread, each, &Unread::checkpoint);
    return found != unread.end() && now_ns < found->passed_over_until_ns;
  });
  return readable.empty() ? checkpoints : readable;
}

void CrewFacts::Forgive(int64_t pause_ns) {
  times.since_ns += pause_ns;
  times.recover_at_ns += pause_ns;
  times.progress_ns += pause_ns;
  times.told_ns += pause_ns;
  diagnosis.Forgive(pause_ns);
}

}  // namespace geopipe
