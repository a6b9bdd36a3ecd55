// The groups of ranks with which one rank divides its stages in one epoch: they use shared memory where all of a group
// are on one node, else the transport.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "optimizer/model/model_spec.h"
#include "optimizer/model/plan/plan_params.h"
#include "runtime/base/clock.h"
#include "runtime/base/stop_event.h"
#include "runtime/collective/communicator.h"
#include "runtime/executor/action_watch.h"
#include "runtime/model/rank_groups.h"
#include "runtime/tensor/allocator.h"
#include "runtime/transport/stream/message_transport.h"

namespace geopipe {

// The groups of more than one rank that a rank of a plan is in.
class RankGrouping {
 public:
  RankGrouping(const Plan& plan, const ModelSpec& model, int32_t rank);

  // Channels of the transport for the groups that span nodes.
  std::vector<ChannelSpec> Channels() const;

 private:
  friend class RankCollectives;
  enum Kind : uint8_t { kTensor, kKeyValue, kData };
  struct Group {
    Kind kind = kTensor;
    std::vector<int32_t> ranks;
    int32_t own = 0;  // this rank's place
    bool one_node = false;
  };

  std::vector<Group> groups_;
};

class RankCollectives {
 public:
  struct Options {
    std::string epoch;   // names the job's epoch on the node
    std::string secret;  // of the epoch
    int64_t join_deadline_ns = 0;
    int64_t longest_wait_ns = 0;     // for others, in one operation
    Allocator* allocator = nullptr;  // of the device's memory
    ActionWatch* watch = nullptr;    // a rank that waits for others is not stuck
    Clock* clock = &Clock::Real();
    const StopEvent* stop = &StopEvent::Never();  // ends joining: Cancelled
  };

  // Returns when all ranks of the groups have come together. The references outlive the collectives. Errors: those of
  // MakeSharedMemoryCommunicator and MakeMessageCommunicator.
  static absl::StatusOr<std::unique_ptr<RankCollectives>> Join(const RankGrouping& grouping, const Options& options,
                                                               MessageTransport& transport);

  RankGroups groups() const;
  // Waits until all ranks of the groups have reached this call, so that no rank leaves while another still needs it.
  // Does nothing for groups that have failed.
  void Finish();
  // Any thread.
  void Abort(const absl::Status& why);

 private:
  // Suspends the executor's action while its thread waits for other ranks: it is not stuck.
  class Watch final : public WaitWatch {
   public:
    Watch(ActionWatch& watch, const Clock& clock) : watch_(watch), clock_(clock) {}
    void BeginWait() override { break_.emplace(watch_, clock_); }
    void EndWait() override { break_.reset(); }

   private:
    ActionWatch& watch_;
    const Clock& clock_;
    std::optional<ActionWatch::Break> break_;
  };

  RankCollectives() = default;

  std::unique_ptr<Watch> watch_;
  std::array<std::unique_ptr<Communicator>, 3> of_kind_;  // null: the rank is alone
};

}  // namespace geopipe
