#include "coordinator/core/life/orders.h"

#include <algorithm>
#include <set>
#include <utility>

#include "coordinator/core/run/worker_commands.h"
#include "optimizer/base/check.h"
#include "proto/wire/checkpoint_wire.h"
#include "runtime/base/utf8.h"

namespace geopipe {
namespace {

constexpr size_t kMaxReasonBytes = 8192;

v1::CheckpointMark MarkFor(const CheckpointList& checkpoints, const WorkerKey& worker) {
  v1::CheckpointMark mark;
  mark.set_id(checkpoints.mark);
  mark.set_expected(checkpoints.marked.contains(worker.node_key()));
  return mark;
}

v1::WorkerCommand ProfileOrder(const Situation& s, const WorkerKey& worker) {
  v1::WorkerCommand command;
  v1::ProfileCommand& profile = *command.mutable_profile();
  profile = ProfileMessage(s.life.job, s.life.run.backend, s.crew.rounds.round(), s.crew.rounds.candidate());
  if (s.crew.rounds.round() == 0) {
    profile.set_checkpoint_path(s.life.job.checkpoint.path);
    *profile.mutable_checkpoint_mark() = MarkFor(s.life.checkpoints, worker);
  }
  profile.set_memory_limit_bytes(s.life.NodeOf(worker.node_key()).spec.device().memory_bytes());
  return command;
}

// One worker of each other node, those of the same site first.
void AddFileSources(const JobLife& life, const WorkerKey& reader, v1::PrepareCommand& prepare) {
  for (const bool own_site : {true, false}) {
    std::set<NodeKey> nodes{reader.node_key()};
    for (const WorkerKey& member : life.members) {
      const std::string& address = life.posts.at(member).exchange_address;
      if ((member.site == reader.site) == own_site && !address.empty() && nodes.insert(member.node_key()).second) {
        v1::FileSource& source = *prepare.add_file_sources();
        source.set_site(member.site);
        source.set_address(address);
      }
    }
  }
}

void AddLinkShapes(const JobLife& life, const std::string& own_site, const LinkTable& links,
                   v1::PrepareCommand& prepare) {
  std::vector<std::string> sites;
  for (const PipelineRankPlan& pipeline_rank : life.plan->plan.pipeline_ranks) {
    if (sites.empty() || sites.back() != pipeline_rank.site) {
      sites.push_back(pipeline_rank.site);
    }
  }
  for (v1::LinkShape& shape : links.ShapesFor(own_site, sites)) {
    *prepare.add_shapes() = std::move(shape);
  }
}

v1::WorkerCommand PrepareOrder(const Situation& s, int32_t rank, const LinkTable& links) {
  const Epoch& epoch = *s.life.epoch;
  v1::WorkerCommand command;
  command.set_epoch(epoch.number);
  v1::PrepareCommand& prepare = *command.mutable_prepare();
  prepare = PrepareForAll(s.life.job, s.life.run, *s.life.plan);
  prepare.set_rank(rank);
  prepare.set_first_iteration(epoch.first_iteration);
  prepare.set_state_epoch(epoch.state_epoch);
  if (epoch.from_checkpoint.has_value()) {
    *prepare.mutable_from_checkpoint() = ToProto(*epoch.from_checkpoint);
  }
  if (!epoch.state_ranks.empty()) {
    prepare.set_given_state_bytes(s.GivenStateBytes());
    if (const int32_t giver = epoch.state_ranks[rank]; giver != Epoch::kNobody) {
      prepare.set_state_of_rank(giver);
    }
  }
  prepare.set_exchange_secret(epoch.secret);
  const WorkerKey& member = s.life.members[rank];
  *prepare.mutable_checkpoint_mark() = MarkFor(s.life.checkpoints, member);
  AddFileSources(s.life, member, prepare);
  prepare.set_run_incarnation(s.life.incarnation);
  const v1::NodeSpec& node = s.life.NodeOf(member.node_key()).spec;
  prepare.set_memory_limit_bytes(node.device().memory_bytes());
  prepare.set_staging_limit_bytes(node.host_memory_bytes() / std::max(1, node.devices()));
  AddLinkShapes(s.life, member.site, links, prepare);
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

v1::WorkerCommand CommitOrder(const Situation& s) {
  v1::WorkerCommand command;
  command.set_epoch(s.life.epoch->number);
  v1::CommitCommand& commit = *command.mutable_commit();
  commit.set_start_iteration(s.life.epoch->first_iteration);
  commit.set_end_iteration(s.life.end());
  commit.set_secret(s.life.epoch->secret);
  // Twice a second at most, and of all ranks the same iterations.
  commit.set_actions_every(1 +
                           s.limits.actions_interval_ns / std::max<int64_t>(1, s.life.plan->prediction.iteration_ns));
  commit.set_orphan_grace_ns(s.SlowestIterationNs());
  commit.set_rest_grace_ns(s.limits.rest_ns);
  // The same for all ranks, whenever it is sent: a rank that does not know it holds up the next evaluation.
  commit.set_evaluate_from(s.told.evaluations.next());
  for (v1::Peer& peer : s.crew.rollout.Peers()) {
    *commit.add_peers() = std::move(peer);
  }
  return command;
}

v1::WorkerCommand EndOrder(const JobLife& life, const Order& order) {
  v1::WorkerCommand command;
  command.set_epoch(life.epoch->number);
  v1::EndEpochCommand& end = *command.mutable_end_epoch();
  if (order.iteration != Order::kOpen) {
    end.set_next_iteration(order.iteration);
  }
  return command;
}

// Copies take half of the time until the next checkpoint: slowly, because training's messages share the link. While
// nothing trains, they are made as fast as possible.
double CopyRate(const JobLife& life, int64_t bytes) {
  constexpr double kMinBytesPerSecond = 1e6;
  constexpr int64_t kEvery = 10;  // if the job does not say
  const int64_t every = life.job.checkpoint.every == 0 ? kEvery : life.job.checkpoint.every;
  const double between_s = static_cast<double>(every) * static_cast<double>(life.plan->prediction.iteration_ns) / 1e9;
  return life.state != v1::JOB_STATE_RUNNING || between_s <= 0
             ? 0
             : std::max(kMinBytesPerSecond, 2 * static_cast<double>(bytes) / between_s);
}

}  // namespace

Order DueFor(const Situation& s, const WorkerKey& key) {
  const Post& post = s.life.posts.at(key);
  const WorkerFacts& worker = s.Of(key);
  if (post.duty == Post::Duty::kStopped) {
    return {};
  }
  if (post.duty == Post::Duty::kLost) {  // at once, since nothing that it holds is needed
    return worker.stage == WorkerFacts::Stage::kEnded
               ? Order()
               : Order{.kind = Order::Kind::kReplace, .number = post.incarnation};
  }
  if (worker.stage == WorkerFacts::Stage::kStarting) {
    return {.kind = Order::Kind::kStart, .number = post.incarnation};
  }
  if (s.life.state == v1::JOB_STATE_PROFILING) {
    return s.crew.measuring && s.crew.rounds.awaits(key)
               ? Order{.kind = Order::Kind::kProfile, .number = static_cast<uint64_t>(s.crew.rounds.round())}
               : Order();
  }
  const int32_t rank = s.life.RankOf(key);
  if (rank < 0 || !s.life.epoch.has_value()) {
    return {};
  }
  const uint64_t epoch = s.life.epoch->number;
  if (s.life.state == v1::JOB_STATE_DEPLOYING) {  // also for who has answered: its agent may not know what
    switch (s.crew.rollout.phase()) {
      case PlanRollout::Phase::kPreparing:
        return {.kind = Order::Kind::kPrepare, .number = epoch};
      case PlanRollout::Phase::kCommitting:
        return {.kind = Order::Kind::kCommit, .number = epoch};
      case PlanRollout::Phase::kCommitted:
        return {};
    }
  }
  // No iteration can be finished any more after a loss. Before one, a rank that does not hear of the end that others
  // hear of would be left alone.
  const bool recovers = s.life.state == v1::JOB_STATE_RECOVERING;
  const bool ends =
      s.life.state == v1::JOB_STATE_RUNNING && s.life.ending && (s.crew.ends_at.has_value() || s.crew.all_hear());
  const bool is_member = s.life.epoch->members[rank].incarnation == post.incarnation;
  if ((!recovers && !ends) || !is_member || worker.HasLeft(epoch)) {
    return {};
  }
  return {
      .kind = Order::Kind::kEnd, .number = epoch, .iteration = recovers ? 0 : s.crew.ends_at.value_or(Order::kOpen)};
}

NodeMessage MessageOf(const Situation& s, const WorkerKey& worker, const Order& order, const LinkTable& links) {
  switch (order.kind) {
    case Order::Kind::kStart:
      return {worker.node_key(), StartMessage(s.life.job.name, s.life.incarnation, order.number, {worker.device})};
    case Order::Kind::kReplace:
      return {worker.node_key(),
              StopMessage(s.life.job.name, 0, "another is started in its place", {worker.device}, order.number, true)};
    case Order::Kind::kProfile:
      return CommandTo(s.life, worker, ProfileOrder(s, worker));
    case Order::Kind::kPrepare:
      return CommandTo(s.life, worker, PrepareOrder(s, s.life.RankOf(worker), links));
    case Order::Kind::kCommit:
      return CommandTo(s.life, worker, CommitOrder(s));
    case Order::Kind::kEnd:
      return CommandTo(s.life, worker, EndOrder(s.life, order));
    case Order::Kind::kNone:
      break;
  }
  GP_CHECK(false, "no order is due for worker {}", DisplayName(worker));
}

NodeMessage CommandTo(const JobLife& life, const WorkerKey& worker, v1::WorkerCommand command) {
  NodeMessage message{worker.node_key(), {}};
  v1::RelayedCommand& relayed = *message.message.mutable_command();
  *relayed.mutable_worker() = MakeWorkerId(worker, life.job.name, life.posts.at(worker).incarnation);
  *relayed.mutable_command() = std::move(command);
  return message;
}

std::vector<NodeMessage> CommandAll(const JobLife& life, v1::WorkerCommand command) {
  command.set_epoch(life.epoch->number);
  std::vector<NodeMessage> sends;
  for (const WorkerKey& member : life.members) {
    sends.push_back(CommandTo(life, member, command));
  }
  return sends;
}

NodeMessage CopyMessage(const JobLife& life, const RunCheckpoints::CopyOrder& order) {
  v1::WorkerCommand command;
  command.set_epoch(life.epoch->number);
  v1::ReplicateCommand& replicate = *command.mutable_replicate();
  replicate.set_iteration(order.iteration);
  replicate.set_bytes_per_second(CopyRate(life, order.bytes));
  for (const RunCheckpoints::CopyOrder::Source& from : order.sources) {
    v1::FileSource& source = *replicate.add_sources();
    source.set_site(from.worker.site);
    source.set_address(life.posts.at(from.worker).exchange_address);
    source.mutable_files()->Assign(from.files.begin(), from.files.end());
  }
  return CommandTo(life, order.worker, std::move(command));
}

std::vector<NodeMessage> StopMessages(const JobLife& life, const std::vector<WorkerKey>& workers, int64_t grace_ns,
                                      const std::string& reason) {
  std::vector<NodeMessage> sends;
  sends.reserve(workers.size());
  for (const WorkerKey& worker : workers) {
    sends.push_back({worker.node_key(),
                     StopMessage(life.job.name, grace_ns, ToUtf8(std::string_view(reason).substr(0, kMaxReasonBytes)),
                                 {worker.device}, life.posts.at(worker).incarnation)});
  }
  return sends;
}

}  // namespace geopipe
