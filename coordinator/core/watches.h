// The open watches of jobs: each is told everything that the job does, as far as its credits go, in the order in which
// it happened.
//
// Rules: a watcher is sent no more than it has given credits for; iterations that are in the store alone are asked for,
// those that nobody has any more are passed over; a watch ends when it has told of its job's end, and when another job
// takes the place of its job.
//
// Callers: the coordinator, with the watchers' events, and with changed jobs at the end of a step; submissions.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "coordinator/core/jobs.h"
#include "coordinator/core/outbox.h"

namespace geopipe {

class Watches {
 public:
  struct Watch {
    std::string job;
    int next_transition = 0;
    int64_t from_iteration = 0;  // asked for
    int64_t next_iteration = 0;
    int64_t evaluation = -1;  // the last that it was told, by the iteration behind it
    int64_t credits = 0;
    bool loading = false;     // its iterations are asked for
    bool greeted = false;     // was told what goes wrong as it began
    int64_t next_notice = 0;  // of all that the job had
  };
  using Ended = std::map<CallId, Watch>;

  Watches(const CoordinatorOptions& options, Outbox& outbox, const Jobs& jobs)
      : options_(options), outbox_(outbox), jobs_(jobs) {}

  void On(Now now, const WatchStart& event);
  void On(Now now, const WatchMore& event);
  void On(Now /*now*/, const WatchStop& event) { watches_.erase(event.call); }

  // Tells those who watch the job what they have not seen.
  void Feed(const std::string& job);
  // The job has its past in memory: watches that waited for it go on.
  void OnLoaded(const Job& job);

  // Ends the watches of a job that is replaced; PutBack: it is not replaced after all.
  Ended EndAll(const std::string& job);
  void PutBack(Ended ended) { watches_.merge(ended); }

 private:
  // The next message for the watcher; nullopt: it has seen everything.
  static std::optional<v1::WatchJobResponse> Next(Watch& watch, const Job& job);
  void Feed(CallId call);

  const CoordinatorOptions& options_;
  Outbox& outbox_;
  const Jobs& jobs_;
  std::map<CallId, Watch> watches_;
};

}  // namespace geopipe
