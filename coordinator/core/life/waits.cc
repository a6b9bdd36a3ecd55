// Rules that say what a job waits for, where no other applies.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "coordinator/core/life/rules.h"

namespace geopipe {
namespace {

Answer AwaitsAgents(const Situation& s) {
  return s.crew.all_hear() || (s.life.state == v1::JOB_STATE_PAUSED && s.life.wants.pause)
             ? std::nullopt
             : Say(fmt::format("it goes on when {} can be heard", s.UnheardNames()));
}

Answer AwaitsFigures(const Situation& s) {
  return !s.life.wants.pause && s.MayTellMore() ? Say("it goes on when its workers have told what they have done")
                                                : std::nullopt;
}

Answer AwaitsFate(const Situation& s) {
  std::vector<WorkerKey> alone;
  for (const auto& [key, worker] : s.crew.workers) {
    if (s.life.posts.at(key).duty == Post::Duty::kLost && worker.alone_since_ns.has_value()) {
      alone.push_back(key);
    }
  }
  return alone.empty()
             ? std::nullopt
             : Say(fmt::format("no agent knows the fate of worker {}; another takes its place once it must have ended",
                               DisplayNames(alone)));
}

Answer AwaitsFitness(const Situation& s) {
  const auto found = std::ranges::find_if(s.crew.workers, [&](const auto& entry) {
    return (entry.second.of_node || entry.second.of_peer) && s.life.posts.at(entry.first).duty == Post::Duty::kLost;
  });
  return found == s.crew.workers.end()
             ? std::nullopt
             : Say(fmt::format("{}it is tried again every {}: {}",
                               found->second.of_node ? "its node is unfit, and " : "",
                               FormatSeconds(Restarts::kMaxNodeDelayNs), found->second.trouble));
}

Answer AwaitsEars(const Situation& s) {
  return s.Leaves() && !s.life.ending && !s.crew.all_hear()
             ? Say(fmt::format("it pauses when {} can be heard", s.UnheardNames()))
             : std::nullopt;
}

Answer AwaitsReports(const Situation& s) {
  return s.AllDone() && !s.crew.all_hear()
             ? Say(fmt::format("all iterations are done; it waits for the reports of {}", s.UnheardNames()))
             : std::nullopt;
}

Answer AwaitsLeaving(const Situation& s) {
  return s.life.wants.move ? Say(fmt::format("it leaves after the iteration under way: {}", s.life.wants.move_cause))
                           : std::nullopt;
}

Answer AwaitsLast(const Situation& s) {
  if (!s.AllDone() || s.LastSaved()) {
    return std::nullopt;
  }
  return Say(s.crew.checkpoint_trouble.empty()
                 ? "all iterations are done; the last state is being written"
                 : fmt::format("all iterations are done; the last state cannot be written and is tried again: {}",
                               s.crew.checkpoint_trouble));
}

Answer AwaitsAny(const Situation& s) {
  return std::ssize(s.crew.silences) == std::ssize(s.life.nodes)
             ? Say("none of its agents can be heard; it waits for one of them, and its workers go on meanwhile")
             : std::nullopt;
}

Answer AwaitsPause(const Situation& s) {
  return s.life.ending && s.life.wants.pause ? Say("it pauses after the iteration under way") : std::nullopt;
}

const Rule kWaits[] = {
    {"agents",
     {v1::JOB_STATE_PAUSED, v1::JOB_STATE_RECOVERING},
     "an agent is not heard",
     "it goes on when … can be heard",
     AwaitsAgents},
    {"figures",
     {v1::JOB_STATE_PAUSED},
     "it is to go on, and figures of the epoch that has ended may still come",
     "it goes on when its workers have told what they have done",
     AwaitsFigures},
    {"fate",
     {v1::JOB_STATE_RECOVERING},
     "a lost worker may still live",
     "no agent knows the fate of worker …",
     AwaitsFate},
    {"fitness",
     {v1::JOB_STATE_RECOVERING},
     "a worker was lost by its node's trouble, or another's",
     "its node is unfit, and it is tried again every 10.0 s: …",
     AwaitsFitness},
    {"ears",
     {v1::JOB_STATE_RUNNING},
     "an agent would not hear of the epoch's end",
     "it pauses when … can be heard",
     AwaitsEars},
    {"reports",
     {v1::JOB_STATE_RUNNING},
     "all is done, and an agent is not heard",
     "it waits for the reports of …",
     AwaitsReports},
    {"leaving", {v1::JOB_STATE_RUNNING}, "it is to move", "it leaves after the iteration under way: …", AwaitsLeaving},
    {"last",
     {v1::JOB_STATE_RUNNING},
     "all is done, and the last state is not safe",
     "the last state is being written",
     AwaitsLast},
    {"any",
     {v1::JOB_STATE_PROFILING, v1::JOB_STATE_PLANNING, v1::JOB_STATE_DEPLOYING, v1::JOB_STATE_RUNNING},
     "no agent is heard",
     "none of its agents can be heard; …",
     AwaitsAny},
    {"pause",
     {v1::JOB_STATE_RUNNING},
     "the epoch's end was ordered",
     "it pauses after the iteration under way",
     AwaitsPause},
};

}  // namespace

std::span<const Rule> Waits() { return kWaits; }

}  // namespace geopipe
