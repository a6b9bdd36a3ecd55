#include "runtime/executor/rank_collectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "optimizer/base/status_macros.h"
#include "runtime/collective/host_communicator.h"
#include "runtime/collective/staged_communicator.h"

namespace geopipe {
namespace {

constexpr std::array<std::string_view, 3> kNames{"tensor ranks", "tensor ranks that share a key-value head",
                                                 "replicas"};

bool OnOneNode(const Plan& plan, const std::vector<int32_t>& ranks) {
  return std::ranges::all_of(ranks, [&](int32_t rank) {
    return plan.SiteOfRank(rank) == plan.SiteOfRank(ranks.front()) &&
           plan.devices[rank].node == plan.devices[ranks.front()].node;
  });
}

// The tensor ranks that have the same part of keys and values.
std::vector<int32_t> Sharers(const Plan& plan, const ModelSpec& model, int32_t rank) {
  const int64_t heads = std::min<int64_t>(plan.grid.tensor, model.num_key_value_heads);
  const auto head_of = [&](int32_t each) { return plan.grid.At(each).tensor * heads / plan.grid.tensor; };
  std::vector<int32_t> sharers;
  std::ranges::copy_if(plan.grid.TensorGroupOf(rank), std::back_inserter(sharers),
                       [&](int32_t other) { return head_of(other) == head_of(rank); });
  return sharers;
}

}  // namespace

RankGrouping::RankGrouping(const Plan& plan, const ModelSpec& model, int32_t rank) {
  const auto add = [&](Kind kind, std::vector<int32_t> ranks) {
    if (ranks.size() > 1) {
      const auto own = static_cast<int32_t>(std::ranges::find(ranks, rank) - ranks.begin());
      const bool one_node = OnOneNode(plan, ranks);
      groups_.push_back({.kind = kind, .ranks = std::move(ranks), .own = own, .one_node = one_node});
    }
  };
  add(kTensor, plan.grid.TensorGroupOf(rank));
  add(kKeyValue, Sharers(plan, model, rank));
  add(kData, plan.grid.ReplicasOf(rank));
}

std::vector<ChannelSpec> RankGrouping::Channels() const {
  std::vector<ChannelSpec> channels;
  for (const Group& group : groups_) {
    if (!group.one_node) {
      std::ranges::move(CollectiveChannels({.id = group.kind, .ranks = group.ranks}, group.own),
                        std::back_inserter(channels));
    }
  }
  return channels;
}

absl::StatusOr<std::unique_ptr<RankCollectives>> RankCollectives::Join(const RankGrouping& grouping,
                                                                       const Options& options,
                                                                       MessageTransport& transport) {
  std::unique_ptr<RankCollectives> collectives(new RankCollectives());
  if (options.watch != nullptr) {
    collectives->watch_ = std::make_unique<Watch>(*options.watch, *options.clock);
  }
  const bool staged = options.allocator->space() == MemorySpace::kDevice;
  // All ranks join their groups in one order, so that no rank waits for one that waits for it in another group.
  for (const RankGrouping::Group& group : grouping.groups_) {
    const CommunicatorOptions communicator{.rank = group.own,
                                           .size = static_cast<int32_t>(group.ranks.size()),
                                           .own_thread = group.kind == RankGrouping::kData && !staged,
                                           .longest_wait_ns = options.longest_wait_ns,
                                           .allocator = &options.allocator->staging(),
                                           .watch = staged ? nullptr : collectives->watch_.get(),
                                           .clock = options.clock};
    std::unique_ptr<Communicator>& made = collectives->of_kind_[group.kind];
    if (group.one_node) {
      const SharedGroup shared{
          .name = fmt::format("{} of rank {}, {}", kNames[group.kind], group.ranks.front(), options.epoch),
          .secret = options.secret,
          .join_deadline_ns = options.join_deadline_ns,
          .stop = options.stop};
      GP_ASSIGN_OR_RETURN(made, MakeSharedMemoryCommunicator(communicator, shared));
    } else {
      GP_ASSIGN_OR_RETURN(made,
                          MakeMessageCommunicator(communicator, {.id = group.kind, .ranks = group.ranks}, transport));
    }
    if (staged) {
      GP_ASSIGN_OR_RETURN(made, MakeStagedCommunicator({.allocator = options.allocator,
                                                        .longest_wait_ns = options.longest_wait_ns,
                                                        .watch = collectives->watch_.get()},
                                                       std::move(made)));
    }
  }
  return collectives;
}

RankGroups RankCollectives::groups() const {
  return {.tensor = of_kind_[RankGrouping::kTensor].get(),
          .key_value = of_kind_[RankGrouping::kKeyValue].get(),
          .data = of_kind_[RankGrouping::kData].get()};
}

void RankCollectives::Finish() {
  for (const std::unique_ptr<Communicator>& communicator : of_kind_) {
    if (communicator != nullptr) {
      const absl::StatusOr<Completion> done = communicator->Barrier();
      if (done.ok()) {
        (void)communicator->Join(*done);  // training reports the error
      }
    }
  }
}

void RankCollectives::Abort(const absl::Status& why) {
  for (const std::unique_ptr<Communicator>& communicator : of_kind_) {
    if (communicator != nullptr) {
      communicator->Abort(why);
    }
  }
}

}  // namespace geopipe
