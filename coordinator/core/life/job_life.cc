#include "coordinator/core/life/job_life.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "proto/wire/checkpoint_wire.h"
#include "proto/wire/schedule_wire.h"
#include "proto/wire/telemetry_wire.h"

namespace geopipe {

int64_t EndIteration(const JobSpec& job, const RunOptions& run) {
  return run.stop_after_iterations > 0 ? std::min(run.stop_after_iterations, job.training.iterations)
                                       : job.training.iterations;
}

JobLife::JobLife(JobSpec job_spec, RunOptions options, Allocation devices, uint64_t run_incarnation)
    : job(std::move(job_spec)),
      run(std::move(options)),
      allocation(std::move(devices)),
      incarnation(run_incarnation),
      choices(job) {
  SetCheckpoints({});
  uint64_t number = incarnation;
  for (const WorkerKey& worker : allocation.workers()) {
    posts[worker].incarnation = ++number;
    nodes.insert(worker.node_key());
  }
}

// --- Earlier runs, and the plan -----------------------------------------------------------------------------------

bool JobLife::Earlier::CanGoOnAt(const std::set<NodeKey>& nodes) const {
  const bool has_state =
      std::ranges::any_of(checkpoints.listed, [&](const ListedCheckpoint& each) { return each.IsAt(nodes); });
  return has_state || (checkpoints.Kept().empty() && !told);
}

void JobLife::GoOnFrom(Earlier earlier) {
  epochs_before = earlier.epochs;
  last_worker_before = earlier.last_worker;
  SetCheckpoints(std::move(earlier.checkpoints));
  may_go_back = true;  // also to the state behind the last iteration, where nothing is left to do but to end
  must_find_state = earlier.told || !checkpoints.Kept().empty();
  Choose(earlier.micro_batch_size, earlier.sequence_length);
}

// A list that was stored by an older version has no mark.
void JobLife::SetCheckpoints(CheckpointList list) {
  checkpoints = std::move(list);
  if (checkpoints.mark.empty()) {
    checkpoints.mark = fmt::format("{}-{:x}", job.name, incarnation);
  }
}

void JobLife::Choose(int64_t micro_batch_size, int64_t sequence_length) {
  if (micro_batch_size > 0) {
    choices.search.micro_batch_size = {micro_batch_size};
    choices.search.sequence_length = {sequence_length};
  }
}

absl::Status JobLife::SetPlan(PlanResult* result) {
  Plan& planned = result->plan;
  std::vector<WorkerKey> ranks;
  std::set<WorkerKey> used;
  for (int32_t rank = 0; rank < planned.grid.size(); ++rank) {
    DevicePlace& place = planned.devices[rank];
    const AllocatedNode* node = NodeAt(planned.SiteOfRank(rank), place.node);
    if (node == nullptr || place.device < 0 || place.device >= std::ssize(node->devices)) {
      return absl::InternalError(
          fmt::format("the plan puts rank {} on device {} of node {} of site {}, which the job does not have", rank,
                      place.device, place.node, planned.SiteOfRank(rank)));
    }
    place.device = node->devices[place.device];
    ranks.push_back({planned.SiteOfRank(rank), node->spec.node(), place.device});
    if (!used.insert(ranks.back()).second) {
      return absl::InternalError(
          fmt::format("the plan puts rank {} on device {}, which is not free", rank, DisplayName(ranks.back())));
    }
  }
  for (IdleDevices& idle : planned.idle) {
    const AllocatedNode* node = NodeAt(idle.site, idle.node);
    for (int32_t& device : idle.devices) {
      device = node != nullptr && device < std::ssize(node->devices) ? node->devices[device] : device;
    }
  }
  plan = std::make_shared<PlanResult>(*result);
  members = std::move(ranks);
  return absl::OkStatus();
}

std::vector<WorkerKey> JobLife::DismissIdle() {
  std::vector<WorkerKey> idle;
  nodes.clear();
  for (auto& [key, post] : posts) {
    if (RankOf(key) >= 0) {
      nodes.insert(key.node_key());
    } else if (std::exchange(post.duty, Post::Duty::kStopped) != Post::Duty::kStopped) {
      idle.push_back(key);
    }
  }
  return idle;
}

// --- What it has --------------------------------------------------------------------------------------------------

bool JobLife::Has(const WorkerKey& worker) const {
  const auto found = posts.find(worker);
  return found != posts.end() && found->second.duty != Post::Duty::kStopped;
}

bool JobLife::Has(const WorkerKey& worker, uint64_t number) const {
  return Has(worker) && posts.at(worker).incarnation == number;
}

uint64_t JobLife::last_incarnation() const {
  uint64_t last = incarnation;
  for (const auto& [key, post] : posts) {
    last = std::max(last, post.incarnation);
  }
  return last;
}

int32_t JobLife::RankOf(const WorkerKey& worker) const {
  const auto found = std::ranges::find(members, worker);
  return found == members.end() ? -1 : static_cast<int32_t>(found - members.begin());
}

std::vector<EpochMember> JobLife::Members() const {
  std::vector<EpochMember> all;
  for (const WorkerKey& member : members) {
    all.push_back({member, posts.at(member).incarnation});
  }
  return all;
}

std::set<NodeKey> JobLife::MemberNodes() const {
  std::set<NodeKey> all;
  for (const WorkerKey& member : members) {
    all.insert(member.node_key());
  }
  return all;
}

const AllocatedNode* JobLife::NodeAt(std::string_view site, int32_t node) const {
  const auto found = std::ranges::find(allocation.sites, site, &AllocatedSite::name);
  return found == allocation.sites.end() || node < 0 || node >= std::ssize(found->nodes) ? nullptr
                                                                                         : &found->nodes[node];
}

const AllocatedNode& JobLife::NodeOf(const NodeKey& node) const {
  for (const AllocatedSite& site : allocation.sites) {
    const auto found = std::ranges::find_if(
        site.nodes, [&](const AllocatedNode& each) { return site.name == node.site && each.spec.node() == node.node; });
    if (found != site.nodes.end()) {
      return *found;
    }
  }
  GP_CHECK(false, "node {} is none of job {}", DisplayName(node), job.name);
}

std::vector<CheckpointIdentity> JobLife::Checkpoints() const {
  const std::set<NodeKey> at = MemberNodes();
  std::vector<CheckpointIdentity> found;
  for (const ListedCheckpoint& each : checkpoints.listed) {
    // Nodes have what this run has written, unless they have lost it since.
    if ((each.identity.incarnation == incarnation && !each.IsUnreadableAt(at)) || each.IsAt(at)) {
      found.push_back(each.identity);
    }
  }
  if (epochs_before == 0) {
    std::ranges::copy(checkpoints.resumable, std::back_inserter(found));
  }
  return found;
}

// --- The record ---------------------------------------------------------------------------------------------------

v1::JobRecord JobLife::Record() const {
  v1::JobRecord record;
  record.set_run_incarnation(incarnation);
  record.set_pause_wanted(wants.pause);
  record.set_moving(wants.move);
  record.set_next_secret(secret);
  record.set_may_go_back(may_go_back);
  record.set_epochs_before(epochs_before);
  record.set_progressed(progressed);
  record.set_outrun(outrun);
  record.set_from_store(from_store);
  checkpoints.Write(record);
  for (const AllocatedSite& site : allocation.sites) {
    v1::RecordedSite& recorded = *record.add_sites();
    recorded.set_name(site.name);
    for (const AllocatedNode& node : site.nodes) {
      v1::RecordedNode& each = *recorded.add_nodes();
      *each.mutable_spec() = node.spec;
      each.mutable_devices()->Assign(node.devices.begin(), node.devices.end());
      each.set_orphan_grace_ns(node.orphan_grace_ns);
    }
  }
  for (const auto& [key, post] : posts) {
    v1::RecordedWorker& recorded = *record.add_crew();
    recorded.set_site(key.site);
    recorded.set_node(key.node);
    recorded.set_device(key.device);
    recorded.set_incarnation(post.incarnation);
    recorded.set_stopped(post.duty == Post::Duty::kStopped);
    recorded.set_lost(post.duty == Post::Duty::kLost);
    recorded.set_exchange_address(post.exchange_address);
  }
  if (epoch.has_value()) {
    v1::RecordedEpoch& recorded = *record.mutable_epoch();
    recorded.set_number(epoch->number);
    recorded.set_secret(epoch->secret);
    recorded.set_first_iteration(epoch->first_iteration);
    recorded.set_state_epoch(epoch->state_epoch);
    for (const EpochMember& member : epoch->members) {
      recorded.add_incarnations(member.incarnation);
    }
    recorded.mutable_state_ranks()->Assign(epoch->state_ranks.begin(), epoch->state_ranks.end());
    recorded.set_committed(committed);
    recorded.set_ending(ending);
    if (epoch->from_checkpoint.has_value()) {
      *recorded.mutable_from_checkpoint() = ToProto(*epoch->from_checkpoint);
    }
    if (ended_at.has_value()) {
      recorded.set_next_iteration(*ended_at);
    }
  }
  return record;
}

absl::StatusOr<JobLife> JobLife::Restore(const JobSpec& job, const RunOptions& run, const v1::JobDetail& detail,
                                         const v1::JobRecord& record, bool told) {
  Allocation allocation;
  for (const v1::RecordedSite& site : record.sites()) {
    AllocatedSite& allocated = allocation.sites.emplace_back(AllocatedSite{.name = site.name(), .nodes = {}});
    for (const v1::RecordedNode& node : site.nodes()) {
      allocated.nodes.push_back({.spec = node.spec(),
                                 .devices = {node.devices().begin(), node.devices().end()},
                                 .orphan_grace_ns = node.orphan_grace_ns()});
    }
  }
  JobLife life(job, run, std::move(allocation), record.run_incarnation());
  life.state = detail.summary().state();
  life.wants = {.pause = record.pause_wanted(), .move = record.moving(), .move_cause = "the job goes on elsewhere"};
  life.secret = record.next_secret();
  life.may_go_back = record.may_go_back();
  life.epochs_before = record.epochs_before();
  life.progressed = record.progressed();
  life.outrun = record.outrun();
  life.from_store = record.from_store();
  if (record.crew_size() != std::ssize(life.posts)) {
    return absl::DataLossError("its workers are not those of its devices");
  }
  life.nodes.clear();
  for (const v1::RecordedWorker& recorded : record.crew()) {
    const WorkerKey key{recorded.site(), recorded.node(), recorded.device()};
    const auto post = life.posts.find(key);
    if (post == life.posts.end()) {
      return absl::DataLossError(fmt::format("its worker {} has none of its devices", DisplayName(key)));
    }
    post->second = {.incarnation = recorded.incarnation(),
                    .duty = recorded.stopped() ? Post::Duty::kStopped
                            : recorded.lost()  ? Post::Duty::kLost
                                               : Post::Duty::kServes,
                    .exchange_address = recorded.exchange_address()};
    if (!recorded.stopped()) {
      life.nodes.insert(key.node_key());
    }
  }
  GP_ASSIGN_OR_RETURN(CheckpointList checkpoints, CheckpointList::Read(record));
  life.SetCheckpoints(std::move(checkpoints));
  GP_ASSIGN_OR_RETURN(life.checkpoints.listed, ListedOf(detail));
  GP_ASSIGN_OR_RETURN(life.profile, FromProto(detail.profile()));
  if (life.epochs_before > 0) {
    life.Choose(detail.plan().micro_batch_size(), detail.plan().sequence_length());
    life.must_find_state = told || !life.checkpoints.Kept().empty();
  }
  if (life.state != v1::JOB_STATE_PROFILING && life.state != v1::JOB_STATE_PLANNING) {
    GP_RETURN_IF_ERROR(life.RestorePlan(detail));
    GP_RETURN_IF_ERROR(life.RestoreEpoch(record.epoch()));
  }
  return life;
}

absl::Status JobLife::RestorePlan(const v1::JobDetail& detail) {
  plan = std::make_shared<PlanResult>();
  GP_ASSIGN_OR_RETURN(plan->plan, FromProto(detail.plan()));
  GP_ASSIGN_OR_RETURN(plan->schedule, FromProto(detail.schedule()));
  GP_ASSIGN_OR_RETURN(plan->costs, FromProto(detail.costs()));
  GP_ASSIGN_OR_RETURN(plan->prediction, FromProto(detail.prediction()));
  for (int32_t rank = 0; rank < plan->plan.grid.size(); ++rank) {
    const DevicePlace& place = plan->plan.devices[rank];
    const AllocatedNode* node = NodeAt(plan->plan.SiteOfRank(rank), place.node);
    members.push_back({plan->plan.SiteOfRank(rank), node == nullptr ? "" : node->spec.node(), place.device});
    if (!posts.contains(members.back())) {
      return absl::DataLossError(fmt::format("rank {} of its plan is on none of its devices", rank));
    }
  }
  return absl::OkStatus();
}

absl::Status JobLife::RestoreEpoch(const v1::RecordedEpoch& recorded) {
  epoch = Epoch{.number = recorded.number(),
                .members = Members(),
                .secret = recorded.secret(),
                .first_iteration = recorded.first_iteration(),
                .state_epoch = recorded.state_epoch(),
                .from_checkpoint = std::nullopt,
                .state_ranks = {recorded.state_ranks().begin(), recorded.state_ranks().end()}};
  if (!epoch->state_ranks.empty() && epoch->state_ranks.size() != members.size()) {
    return absl::DataLossError(fmt::format("its epoch has {} ranks that are given states, its plan {}",
                                           epoch->state_ranks.size(), members.size()));
  }
  for (size_t rank = 0; rank < std::min<size_t>(recorded.incarnations_size(), members.size()); ++rank) {
    epoch->members[rank].incarnation = recorded.incarnations(static_cast<int>(rank));
  }
  if (recorded.has_from_checkpoint()) {
    GP_ASSIGN_OR_RETURN(epoch->from_checkpoint, FromProto(recorded.from_checkpoint()));
  }
  committed = recorded.committed();
  ending = recorded.ending();
  if (recorded.has_next_iteration()) {
    ended_at = recorded.next_iteration();
  }
  return absl::OkStatus();
}

}  // namespace geopipe
