// Orders to the workers of a run.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "coordinator/core/job_run/job_run.h"
#include "coordinator/core/run/worker_commands.h"
#include "proto/wire/checkpoint_wire.h"

namespace geopipe {

NodeMessage JobRun::Command(const WorkerKey& worker, v1::WorkerCommand command) const {
  NodeMessage message{worker.node_key(), {}};
  v1::RelayedCommand& relayed = *message.message.mutable_command();
  *relayed.mutable_worker() = MakeWorkerId(worker, job_.name, workers_.at(worker).incarnation);
  *relayed.mutable_command() = std::move(command);
  return message;
}

NodeMessage JobRun::Start(const WorkerKey& worker) const {
  return {worker.node_key(), StartMessage(job_.name, workers_.at(worker).incarnation, {worker.device})};
}

v1::WorkerCommand JobRun::ProfileOrder(const WorkerKey& worker) const {
  v1::WorkerCommand command;
  *command.mutable_profile() = ProfileMessage(job_, run_.backend, rounds_.round(), rounds_.candidate());
  if (rounds_.round() == 0) {
    command.mutable_profile()->set_checkpoint_path(job_.checkpoint.path);
  }
  for (const AllocatedSite& site : allocation_.sites) {
    for (const AllocatedNode& node : site.nodes) {
      if (site.name == worker.site && node.spec.node() == worker.node) {
        command.mutable_profile()->set_memory_limit_bytes(node.spec.device().memory_bytes());
      }
    }
  }
  return command;
}

v1::WorkerCommand JobRun::PrepareOrder(int32_t rank, const LinkTable& links) const {
  const Plan& plan = plan_->plan;
  v1::WorkerCommand command;
  command.set_epoch(epoch_->number);
  v1::PrepareCommand& prepare = *command.mutable_prepare();
  prepare = PrepareForAll(job_, run_, *plan_);
  prepare.set_rank(rank);
  prepare.set_first_iteration(epoch_->first_iteration);
  prepare.set_state_epoch(epoch_->state_epoch);
  if (epoch_->from_checkpoint.has_value()) {
    *prepare.mutable_from_checkpoint() = ToProto(*epoch_->from_checkpoint);
  }
  if (!epoch_->state_ranks.empty()) {
    prepare.set_given_state_bytes(GivenStateBytes());
    if (const int32_t giver = epoch_->state_ranks[rank]; giver != Epoch::kNobody) {
      prepare.set_state_of_rank(giver);
    }
  }
  prepare.set_exchange_secret(epoch_->secret);
  AddFileSources(members_[rank].worker, prepare);
  prepare.set_run_incarnation(incarnation_);
  const v1::NodeSpec& node = NodeAt(plan.SiteOfRank(rank), plan.devices[rank].node)->spec;
  prepare.set_memory_limit_bytes(node.device().memory_bytes());
  prepare.set_staging_limit_bytes(node.host_memory_bytes() / std::max(1, node.devices()));
  std::vector<std::string> sites;
  for (const PipelineRankPlan& pipeline_rank : plan.pipeline_ranks) {
    if (sites.empty() || sites.back() != pipeline_rank.site) {
      sites.push_back(pipeline_rank.site);
    }
  }
  for (v1::LinkShape& shape : links.ShapesFor(plan.SiteOfRank(rank), sites)) {
    *prepare.add_shapes() = std::move(shape);
  }
  if (node.network_is_shaped()) {
    v1::LinkShape& shape = *prepare.add_shapes();
    shape.set_from_site(node.site());
    shape.set_to_site(node.site());
    shape.set_latency_ns(node.network().latency_ns());
    shape.set_bandwidth_bytes_per_s(node.network().bandwidth_bytes_per_s());
    shape.set_is_per_device(node.network().per() == v1::NETWORK_SHARE_DEVICE);
  }
  return command;
}

// One worker of each other node, those of the same site first.
void JobRun::AddFileSources(const WorkerKey& reader, v1::PrepareCommand& prepare) const {
  for (const bool own_site : {true, false}) {
    std::set<NodeKey> nodes{reader.node_key()};
    for (const EpochMember& member : members_) {
      const std::string& address = workers_.at(member.worker).exchange_address;
      if ((member.worker.site == reader.site) == own_site && !address.empty() &&
          nodes.insert(member.worker.node_key()).second) {
        v1::FileSource& source = *prepare.add_file_sources();
        source.set_site(member.worker.site);
        source.set_address(address);
      }
    }
  }
}

v1::WorkerCommand JobRun::CommitOrder() const {
  v1::WorkerCommand command;
  command.set_epoch(epoch_->number);
  v1::CommitCommand& commit = *command.mutable_commit();
  commit.set_start_iteration(epoch_->first_iteration);
  commit.set_end_iteration(EndIteration(job_, run_));
  commit.set_secret(epoch_->secret);
  // Twice a second at most, and of all ranks the same iterations.
  commit.set_actions_every(1 + limits_.actions_interval_ns / std::max<int64_t>(1, plan_->prediction.iteration_ns));
  commit.set_orphan_grace_ns(SlowestIterationNs());
  commit.set_rest_grace_ns(limits_.rest_ns);
  // The same for all ranks, whenever it is sent: a rank that does not know it holds up the next evaluation.
  commit.set_evaluate_from(evaluations_.next());
  for (v1::Peer& peer : rollout_.Peers()) {
    *commit.add_peers() = std::move(peer);
  }
  return command;
}

v1::WorkerCommand JobRun::EndOrder() const {
  v1::WorkerCommand command;
  command.set_epoch(epoch_->number);
  command.mutable_end_epoch();
  if (may_go_back_ || ends_at_.has_value()) {  // after a loss no iteration can be finished any more
    command.mutable_end_epoch()->set_next_iteration(may_go_back_ ? 0 : *ends_at_);
  }
  return command;
}

std::vector<NodeMessage> JobRun::ProfileRound(int64_t now_ns) {
  SetDeadline(now_ns);
  undriven_.clear();
  std::vector<NodeMessage> sends;
  for (const WorkerKey& worker : allocation_.workers()) {
    sends.push_back(Command(worker, ProfileOrder(worker)));
  }
  return sends;
}

std::vector<NodeMessage> JobRun::CommitAll(int64_t now_ns) {
  SetDeadline(now_ns);
  undriven_.clear();
  const v1::WorkerCommand command = CommitOrder();
  std::vector<NodeMessage> sends;
  for (const EpochMember& member : members_) {
    sends.push_back(Command(member.worker, command));
  }
  return sends;
}

std::vector<NodeMessage> JobRun::EndAll() const {
  const v1::WorkerCommand command = EndOrder();
  std::vector<NodeMessage> sends;
  for (const EpochMember& member : members_) {
    if (const Worker& worker = workers_.at(member.worker); !worker.lost && !HasLeft(worker)) {
      sends.push_back(Command(member.worker, command));
    }
  }
  return sends;
}

std::optional<v1::WorkerCommand> JobRun::OutstandingFor(const WorkerKey& key, const LinkTable& links) const {
  const auto missing = [&](const std::vector<WorkerKey>& workers) {
    return std::ranges::find(workers, key) != workers.end();
  };
  if (state_ == v1::JOB_STATE_PROFILING && measuring_ && missing(rounds_.missing())) {
    return ProfileOrder(key);
  }
  const int32_t rank = RankOf(key);
  if (rank < 0 || !epoch_.has_value()) {
    return std::nullopt;
  }
  if (state_ == v1::JOB_STATE_DEPLOYING && rollout_.phase() == PlanRollout::Phase::kPreparing) {
    return PrepareOrder(rank, links);  // also for who has answered: its agent may not know what to answer others
  }
  if (state_ == v1::JOB_STATE_DEPLOYING && rollout_.phase() == PlanRollout::Phase::kCommitting) {
    return CommitOrder();
  }
  if (state_ == v1::JOB_STATE_RECOVERING && !HasLeft(workers_.at(key))) {
    return EndOrder();
  }
  return std::nullopt;
}

std::vector<NodeMessage> JobRun::OnAllConnected(const LinkTable& links) {
  end_due_ = ending_ && (end_due_ || !undriven_.empty());
  if (!undriven_.empty() && (state_ == v1::JOB_STATE_REPLANNING || AllDone())) {
    // Orders and answers may have been lost with an agent, and nothing else would reveal it, so they are asked for
    // again.
    checkpoints_.Abandon();
    heard_all_ = false;
  }
  std::vector<NodeMessage> sends;
  for (const NodeKey& node : std::exchange(undriven_, {})) {
    for (const auto& [key, worker] : workers_) {
      if (key.node_key() != node || worker.stopped || worker.lost) {
        continue;
      }
      if (!worker.hello) {
        sends.push_back(Start(key));
      } else if (std::optional<v1::WorkerCommand> command = OutstandingFor(key, links); command.has_value()) {
        sends.push_back(Command(key, *std::move(command)));
      }
    }
  }
  return sends;
}

}  // namespace geopipe
