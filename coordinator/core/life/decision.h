// A decision on what a job does next.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coordinator/core/life/situation.h"

namespace geopipe {

// A worker that is to be started again.
struct LostWorker {
  WorkerKey worker;
  std::string cause;     // one sentence
  bool of_node = false;  // its node's trouble: not counted against the worker
  bool of_peer = false;  // another node's trouble, which is not counted, either
};

struct Decision {
  enum class Kind : uint8_t {
    kWait,
    kEnter,    // the state `to`
    kLose,     // workers: the job recovers, or starts over where it has no epoch yet
    kExtend,   // the limit of the state begins anew
    kStart,    // workers in the place of lost ones
    kMeasure,  // the devices
    kAskPlan,
    kAskSecret,
    kBegin,  // the epoch
    kWantPause,
    kWantMove,
    kEnd,      // order the members to end the epoch
    kSave,     // the state before `iteration`
    kStay,     // saving it has failed too often: the job stays where it is
    kTellAll,  // complete iterations whose reports are lost
  };
  std::string_view rule = "wait";  // that decided
  Kind kind = Kind::kWait;
  JobState to = v1::JOB_STATE_UNSPECIFIED;
  std::string sentence = {};             // why: cause of a transition or loss, reason to wait
  int64_t iteration = 0;                 // of kSave; kEnter: that the ranks rest before
  std::string_view loss = {};            // kind of loss, one of kLossKinds
  std::vector<LostWorker> workers = {};  // of kLose
  Epoch epoch = {};
};

// nullopt: the rule does not apply.
using Answer = std::optional<Decision>;

inline Answer Enter(JobState to, std::string sentence, int64_t iteration = 0) {
  return Decision{.kind = Decision::Kind::kEnter, .to = to, .sentence = std::move(sentence), .iteration = iteration};
}
inline Answer Fail(std::string sentence) { return Enter(v1::JOB_STATE_FAILED, std::move(sentence)); }
inline Answer Do(Decision::Kind kind) { return Decision{.kind = kind}; }
inline Answer Say(std::string sentence) { return Decision{.sentence = std::move(sentence)}; }

}  // namespace geopipe
