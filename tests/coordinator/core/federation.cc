#include "tests/coordinator/core/federation.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "optimizer/model/transformer.h"
#include "optimizer/schedule/lowering.h"
#include "optimizer/schedule/schedule_table.h"
#include "proto/wire/telemetry_wire.h"
#include "tests/support/durations.h"
#include "tests/support/tiny_model.h"

namespace geopipe {
namespace {  // As the store does, which keeps the rest elsewhere.
void StoreOutcome(v1::JobDetail outcome, v1::JobDetail& detail) {
  outcome.set_manifest(detail.manifest());
  *outcome.mutable_run() = detail.run();
  *outcome.mutable_transitions() = detail.transitions();
  detail = std::move(outcome);
}

}  // namespace

v1::WorkerReport HelloReport() {
  v1::WorkerReport report;
  report.mutable_hello()->set_version(Federation::kVersion);
  report.mutable_hello()->set_pid(100);
  return report;
}

v1::WorkerReport FailureReportOf(absl::StatusCode code, const std::string& message) {
  v1::WorkerReport report;
  report.mutable_failure()->set_code(static_cast<int32_t>(code));
  report.mutable_failure()->set_message(message);
  return report;
}

v1::WorkerReport PreparedReportOf(int32_t rank, uint64_t epoch, uint64_t checksum) {
  v1::WorkerReport report;
  report.set_epoch(epoch);
  report.mutable_prepared()->set_rank(rank);
  report.mutable_prepared()->set_address("address " + std::to_string(rank));
  report.mutable_prepared()->set_data_bytes(100);
  report.mutable_prepared()->set_data_checksum(checksum);
  return report;
}

v1::WorkerReport CommittedReportOf(int32_t rank, uint64_t epoch) {
  v1::WorkerReport report;
  report.set_epoch(epoch);
  report.mutable_committed()->set_rank(rank);
  return report;
}

v1::WorkerReport IterationReportOf(int32_t rank, uint64_t epoch, int64_t iteration) {
  v1::WorkerReport report;
  report.set_epoch(epoch);
  v1::IterationReport& each = *report.mutable_iteration();
  each.set_iteration(iteration);
  each.set_rank(rank);
  each.set_duration_ns(1000);
  each.set_busy_ns(500);
  each.set_loss(5.0 - static_cast<double>(iteration));
  return report;
}

v1::WorkerReport FinishedReportOf(int32_t rank, uint64_t epoch, int64_t iterations) {
  v1::WorkerReport report;
  report.set_epoch(epoch);
  report.mutable_finished()->set_rank(rank);
  report.mutable_finished()->set_iterations(iterations);
  v1::HeldState& state = *report.mutable_finished()->add_states();
  state.set_run_incarnation(Federation::kRun);
  state.set_iteration(iterations);
  state.set_epoch(epoch);
  return report;
}

CoordinatorOptions Federation::DefaultOptions() {
  CoordinatorOptions options;
  options.version = kVersion;
  options.incarnation = kRun - 1;
  options.probing.interval_ns = 0;
  options.run.restarts_per_hour = 0;
  return options;
}

CoordinatorOptions Federation::RecoveringOptions() {
  CoordinatorOptions options = DefaultOptions();
  options.run.restarts_per_hour = 4;
  return options;
}

Federation::Federation(CoordinatorOptions options, StoredState stored)
    : owned(std::make_unique<Coordinator>(std::move(options), stored)),
      stored_(std::move(stored.jobs)),
      drained_(stored.drained_sites.begin(), stored.drained_sites.end()) {
  for (const StoredJob& job : stored_) {
    const std::string& name = job.detail.summary().name();
    for (const v1::JobTransition& transition : job.detail.transitions()) {
      persisted[name].push_back(transition.state());
      ++reached[transition.state()];
    }
    finished[name] = job.next_iteration;
    for (const v1::RecordedWorker& worker : job.record.crew()) {
      incarnation_[{name, {worker.site(), worker.node(), worker.device()}}] = worker.incarnation();
    }
    epoch_ = std::max<uint64_t>(1, job.record.epoch().number());
  }
  last = core.Start({now_ns_, now_ns_});
  for (const Effect& effect : last) {
    CheckRules(effect);
  }
}

JobSpec Federation::TinyJob(std::vector<std::string> sites) {
  JobSpec job;
  job.parallelism.tensor = 1;
  job.parallelism.data = 1;
  job.name = "tiny";
  job.model = TinyModel();
  job.data.format = DataFormat::kText;
  job.data.paths = {"/usr/share/common-licenses/*"};
  job.training.iterations = 3;
  job.training.tokens_per_iteration = 512;
  job.search.micro_batch_size = {1, 2, 3};
  job.search.sequence_length = {64};
  job.placement.sites = std::move(sites);
  return job;
}

PlanResult Federation::PlanFor(const PlanningInput& input, int64_t iteration_ns) {
  PlanResult result;
  const auto stages = static_cast<int32_t>(input.cluster.sites.size());
  const std::vector<LayerRange> layers = SplitLayers(input.job.model, stages);
  result.plan.schedule = ScheduleKind::kOneFOneB;
  result.plan.micro_batch_size = 1;
  result.plan.sequence_length = 64;
  result.plan.micro_batches = 8;
  result.plan.delta_n.assign(stages - 1, 0);
  result.plan.grid.data = static_cast<int32_t>(input.job.parallelism.data);
  result.plan.grid.tensor = static_cast<int32_t>(input.job.parallelism.tensor);
  for (int32_t s = 0; s < stages; ++s) {
    result.plan.Append({.site = input.cluster.sites[s].name}, layers[s]);
  }
  result.prediction.iteration_ns = iteration_ns;
  result.costs.shape = result.plan.Shape();
  result.costs.forward_ns.assign(stages, 10);
  result.costs.input_grad_ns.assign(stages, 20);
  result.costs.weight_grad_ns.assign(stages, 0);
  result.costs.boundaries.resize(stages - 1);
  result.schedule = *Lower(*MakeSchedule(ScheduleKind::kOneFOneB, result.costs.shape));
  return result;
}

const Effects& Federation::Step(Event event) {
  const bool submits = std::holds_alternative<ApplyJob>(event);
  last = core.Step({now_ns_, now_ns_}, std::move(event));
  if (submits && !refuses_jobs) {
    std::ranges::move(core.Step({now_ns_, now_ns_}, JobStored{}), std::back_inserter(last));  // as the runner does
  }
  for (size_t i = 0; i < last.size(); ++i) {
    if (const auto* draw = std::get_if<DrawSecret>(&last[i]); draw != nullptr) {  // as the runner does
      std::ranges::move(core.Step({now_ns_, now_ns_}, SecretDrawn{draw->job, draw->incarnation, "drawn"}),
                        std::back_inserter(last));
    }
  }
  for (const Effect& effect : last) {
    CheckRules(effect);
    Store(effect);
  }
  return last;
}

void Federation::Store(const JobProgress& progress) {
  for (StoredJob& job : stored_) {
    if (job.detail.summary().name() != progress.job) {
      continue;
    }
    if (progress.begins_at.has_value()) {
      std::erase_if(job.iterations, [&](const auto& each) { return each.iteration() >= *progress.begins_at; });
      if (!job.iterations.empty() && job.iterations.back().iteration() + 1 < *progress.begins_at) {
        job.iterations.clear();
      }
      job.next_iteration = *progress.begins_at;
    }
    for (const v1::IterationSummary& summary : progress.finished) {
      if (summary.iteration() != job.next_iteration++) {
        broken = broken.empty() ? "iterations stored out of order: job " + progress.job : broken;
      }
      job.iterations.push_back(summary);
    }
    job.partial.insert(job.partial.end(), progress.partial.begin(), progress.partial.end());
    std::erase_if(job.partial, [&](const auto& partial) { return partial.iteration() < job.next_iteration; });
  }
}

// Stores the effect as the real store does.
void Federation::Store(const Effect& effect) {
  const auto find = [&](const std::string& name) {
    return std::find_if(stored_.begin(), stored_.end(),
                        [&](const StoredJob& job) { return job.detail.summary().name() == name; });
  };
  if (const auto* created = std::get_if<PersistNewJob>(&effect)) {
    if (!refuses_jobs) {
      StoredJob inserted;
      if (const auto old = find(created->detail.summary().name()); old != stored_.end() && created->keep_below > 0) {
        inserted.iterations = old->iterations;
        std::erase_if(inserted.iterations, [&](const auto& each) { return each.iteration() >= created->keep_below; });
        inserted.next_iteration = std::min(old->next_iteration, created->keep_below);
      }
      if (!created->keep_as.empty()) {
        find(created->detail.summary().name())->detail.mutable_summary()->set_name(created->keep_as);
      }
      std::erase_if(stored_, [&](const StoredJob& job) {
        return job.detail.summary().name() == created->detail.summary().name() ||
               job.detail.summary().name() == created->forget;
      });
      inserted.detail = created->detail;
      inserted.record = created->record;
      stored_.push_back(std::move(inserted));
    }
  } else if (const auto* persist = std::get_if<PersistTransition>(&effect)) {
    const auto job = find(persist->job);
    v1::JobDetail& detail = job->detail;
    if (persist->outcome.has_value()) {
      StoreOutcome(*persist->outcome, detail);
    }
    *detail.add_transitions() = persist->transition;
    detail.mutable_summary()->set_state(persist->transition.state());
    detail.mutable_summary()->set_cause(persist->transition.cause());
    job->record = persist->record.value_or(job->record);
    if (persist->progress.has_value()) {
      Store(*persist->progress);
    }
  } else if (const auto* record = std::get_if<PersistRecord>(&effect)) {
    StoredJob& job = *find(record->job);
    job.record = record->record;
    if (record->outcome.has_value()) {
      StoreOutcome(*record->outcome, job.detail);
    }
  } else if (const auto* drained = std::get_if<PersistDrained>(&effect)) {
    if (drained->drained) {
      drained_.insert(drained->site);
    } else {
      drained_.erase(drained->site);
    }
  } else if (const auto* progress = std::get_if<PersistProgress>(&effect)) {
    for (const JobProgress& each : progress->progress) {
      Store(each);
    }
    for (const StoredLink& link : progress->links) {
      stored_links_[{link.from_site, link.to_site}] = link;
    }
  }
}

StoredState Federation::Stored() const {
  StoredState state{.jobs = stored_, .links = {}, .drained_sites = {drained_.begin(), drained_.end()}};
  for (StoredJob& job : state.jobs) {
    if (IsFinal(job.detail.summary().state())) {
      job.iterations.clear();
      job.partial.clear();
    }
  }
  for (const auto& [pair, link] : stored_links_) {
    state.links.push_back(link);
  }
  return state;
}

void Federation::RunFor(int64_t ns) {
  for (int64_t passed = 0; passed < ns; passed += kSecond / 10) {
    now_ns_ += kSecond / 10;
    for (const SessionId session : std::set<SessionId>(open)) {
      Heartbeat(session);
    }
    Step(Tick{});
  }
}

// Checks the rules that every effect must keep, whatever has happened.
void Federation::CheckRules(const Effect& effect) {
  const auto fail = [&](const std::string& what) { broken = broken.empty() ? what : broken; };
  if (const auto* created = std::get_if<PersistNewJob>(&effect)) {
    persisted[created->detail.summary().name()] = {created->detail.summary().state()};
    finished[created->detail.summary().name()] = 0;
  } else if (const auto* persist = std::get_if<PersistTransition>(&effect)) {
    std::vector<JobState>& states = persisted[persist->job];
    if (!states.empty() && !MayFollow(states.back(), persist->transition.state())) {
      fail("a transition that the table does not allow: job " + persist->job);
    }
    if (!states.empty() && persist->sequence != static_cast<int64_t>(states.size())) {
      fail("a transition out of sequence: job " + persist->job);
    }
    states.push_back(persist->transition.state());
    ++reached[persist->transition.state()];
  } else if (const auto* send = std::get_if<SendToAgent>(&effect)) {
    if (!open.contains(send->session)) {
      fail("a message to a session that is not open");
    }
    CheckProbe(*send);
    CheckOrder(*send);
  } else if (const auto* close = std::get_if<CloseSession>(&effect)) {
    open.erase(close->session);
  } else if (const auto* plan = std::get_if<StartPlanning>(&effect)) {
    planning.push_back(*plan);
    if (persisted[plan->job].back() != v1::JOB_STATE_PLANNING) {
      fail("planning began before PLANNING was persisted");
    }
  } else if (const auto* iterations = std::get_if<IterationsFinished>(&effect)) {
    CheckFinished(*iterations);
  } else if (const auto* watch = std::get_if<SendToWatcher>(&effect)) {
    for (const v1::WatchJobResponse& message : watch->messages) {
      if (message.has_transition() && message.transition().state() == v1::JOB_STATE_UNSPECIFIED) {
        fail("a watcher was told of no state");
      }
    }
  }
}

void Federation::CheckOrder(const SendToAgent& send) {
  const auto fail = [&](const std::string& what) { broken = broken.empty() ? what : broken; };
  if (const uint64_t sequence = send.message.sequence(); sequence != 0) {
    uint64_t& sent = orders_sent_[{node_of_[send.session], agent_incarnation_[send.session]}];
    if (sequence <= sent) {
      return;  // sent again on a later stream
    }
    sent = sequence;
  }
  if (send.message.has_start_workers()) {
    const v1::StartWorkers& start = send.message.start_workers();
    for (const int32_t device : start.devices()) {
      incarnation_[{start.job(), {node_of_[send.session].site, node_of_[send.session].node, device}}] =
          start.incarnation();
    }
    const JobState durable = persisted[start.job()].empty() ? v1::JOB_STATE_PENDING : persisted[start.job()].back();
    if (durable != v1::JOB_STATE_PROFILING && durable != v1::JOB_STATE_RECOVERING) {
      fail("workers started before PROFILING or RECOVERING was persisted");
    }
  }
  if (send.message.has_command()) {
    const std::string& job = send.message.command().worker().job();
    const v1::WorkerCommand& command = send.message.command().command();
    // An order that an agent was not there for may reach it when the job is over, or a later one of its name is there.
    if ((command.has_prepare() || command.has_commit()) && reached[v1::JOB_STATE_DEPLOYING] == 0) {
      fail("a roll-out before DEPLOYING was persisted");
    }
    if (command.has_prepare()) {
      epoch_ = command.epoch();
    }
    if (command.has_commit()) {
      const v1::WorkerId& worker = send.message.command().worker();
      uint64_t& committed = committed_[{job, KeyOf(worker), worker.incarnation()}];
      if (command.epoch() < committed) {
        fail("an older epoch was committed after a newer one");
      }
      committed = command.epoch();
    }
  }
  const v1::StopWorkers& stop = send.message.stop_workers();
  const bool stale = std::ranges::none_of(stop.devices(), [&](int32_t device) {
    const WorkerKey key{node_of_[send.session].site, node_of_[send.session].node, device};
    return stop.incarnation() == incarnation_[{stop.job(), key}];
  });
  if (send.message.has_stop_workers() && persisted.contains(stop.job()) && !stale) {
    const JobState durable = persisted[stop.job()].back();
    // A PENDING job has none yet: those are an older run's. DEPLOYING gives idle devices back.
    if (!IsFinal(durable) && durable != v1::JOB_STATE_PENDING && durable != v1::JOB_STATE_DEPLOYING &&
        durable != v1::JOB_STATE_RECOVERING) {
      fail("workers of a live job were stopped");
    }
  }
}

void Federation::CheckFinished(const IterationsFinished& event) {
  const auto fail = [&](const std::string& what) { broken = broken.empty() ? what : broken; };
  if (event.iterations.empty() || event.tokens_per_iteration != TinyJob().training.tokens_per_iteration) {
    fail("iterations finished, but none, or of other tokens: job " + event.job);
  }
  if (persisted[event.job].empty() || IsFinal(persisted[event.job].back())) {
    fail("iterations finished after the end: job " + event.job);
  }
  for (const v1::IterationSummary& iteration : event.iterations) {
    if (iteration.iteration() != finished[event.job]++) {
      fail("iterations finished out of order: job " + event.job);
    }
  }
}

SessionId Federation::Register(const std::string& name, uint64_t incarnation, const std::vector<v1::WorkerId>& workers,
                               int32_t devices, const std::vector<v1::WorkerState>& states) {
  const auto [site, node] = NodeNamed(name);
  const SessionId session = next_session_++;
  AgentMessage event{session, {}};
  event.message.set_incarnation(incarnation);
  v1::AgentHello& hello = *event.message.mutable_hello();
  hello.set_version(kVersion);
  hello.set_host(one_host ? "laptop" : name + ".example");
  hello.set_pid(100 + static_cast<int64_t>(incarnation));
  hello.mutable_node()->set_site(site);
  hello.mutable_node()->set_node(node);
  hello.mutable_node()->set_devices(devices);
  hello.mutable_node()->mutable_device()->set_kind("cpu");
  hello.mutable_node()->mutable_device()->set_memory_bytes(1 << 30);
  hello.mutable_node()->set_host_memory_bytes(hello.node().devices() * kHostBytesPerDevice);
  hello.mutable_node()->mutable_device()->set_efficiency(0.5);
  if (network.has_value()) {
    *hello.mutable_node()->mutable_network() = *network;
    hello.mutable_node()->set_network_is_shaped(true);
  }
  if (!no_cuda.empty()) {
    v1::RefusedBackend& refused = *hello.mutable_node()->add_refused_backends();
    refused.set_backend(v1::BACKEND_KIND_CUDA);
    refused.set_reason(no_cuda);
  }
  for (const std::string& to : sites) {
    if (NodeNamed(to).site != site) {
      v1::LinkDeclaration& link = *hello.add_links();
      link.set_to_site(NodeNamed(to).site);
      link.set_latency_ns(20'000'000);
      link.set_bandwidth_bytes_per_s(1.25e8);
      link.set_shaped(shaped);
    }
  }
  hello.set_orphan_grace_ns(orphan_grace_ns);
  hello.set_federation(known_federation);
  hello.mutable_workers()->Assign(workers.begin(), workers.end());
  hello.mutable_worker_states()->Assign(states.begin(), states.end());
  open.insert(session);
  node_of_[session] = {site, node};
  agent_incarnation_[session] = incarnation;
  sessions[name] = session;
  Effects welcomed = Step(std::move(event));
  Heartbeat(session);  // as it does when it is welcome
  last = std::move(welcomed);
  return session;
}

void Federation::Heartbeat(SessionId session) {
  AgentMessage event{session, {}};
  event.message.set_incarnation(agent_incarnation_[session]);
  v1::AgentHeartbeat& heartbeat = *event.message.mutable_heartbeat();
  if (const auto leaves = leaving.find(node_of_[session]); leaves != leaving.end()) {
    heartbeat.mutable_leaving()->set_within_ns(leaves->second);
  }
  event.message.set_orders_taken(orders_sent_[{node_of_[session], agent_incarnation_[session]}]);
  Step(std::move(event));
}

void Federation::Close(SessionId session) {
  open.erase(session);
  Step(AgentClosed{session, "the connection broke"});
}

v1::WorkerId Federation::IdOf(const WorkerKey& worker) const {
  const auto found = incarnation_.find({"tiny", worker});
  return MakeWorkerId(worker, "tiny", found == incarnation_.end() ? 0 : found->second);
}

v1::NodeReport& Federation::AddReport(AgentMessage& event) {
  next_report = ++reports_of_[{node_of_[event.session], event.message.incarnation()}];
  event.message.mutable_reports()->set_first_sequence(next_report);
  return *event.message.mutable_reports()->add_reports();
}

void Federation::Report(const WorkerKey& worker, v1::WorkerReport report) {
  const SessionId session = sessions[NameOf(worker.node_key())];
  AgentMessage event{session, {}};
  event.message.set_incarnation(agent_incarnation_[session]);
  v1::RelayedReport& relayed = *AddReport(event).mutable_worker();
  *relayed.mutable_worker() = IdOf(worker);
  *relayed.mutable_report() = std::move(report);
  Step(std::move(event));
}

void Federation::Exit(const WorkerKey& worker, int signal, int code, const std::string& last_words) {
  const SessionId session = sessions[NameOf(worker.node_key())];
  AgentMessage event{session, {}};
  event.message.set_incarnation(agent_incarnation_[session]);
  v1::WorkerExit& exit = *AddReport(event).mutable_exit();
  *exit.mutable_worker() = IdOf(worker);
  exit.set_pid(100);
  exit.set_signal(signal);
  exit.set_exit_code(code);
  exit.set_last_words(last_words);
  Step(std::move(event));
}

void Federation::FailStart(const WorkerKey& worker, const std::string& why) {
  const SessionId session = sessions[NameOf(worker.node_key())];
  AgentMessage event{session, {}};
  event.message.set_incarnation(agent_incarnation_[session]);
  v1::WorkerExit& exit = *AddReport(event).mutable_exit();
  *exit.mutable_worker() = IdOf(worker);
  exit.set_exit_code(127);
  exit.set_last_words(why);
  exit.set_not_started(true);
  Step(std::move(event));
}

void Federation::HelloAll() {
  for (const std::string& site : sites) {
    Answer(site, HelloReport());
  }
}

namespace {

MessageCost MessageOf(const NodeKey& at) {
  return {.site = at.site, .node = at.node, .device = 0, .bytes = 1024, .whole_ns = 300'000, .fixed_ns = 200'000};
}

}  // namespace

void Federation::ProfileMessages() {
  for (const std::string& site : sites) {
    v1::WorkerReport report;
    *report.mutable_profile()->mutable_message() = ToProto(MessageOf(NodeNamed(site)));
    Answer(site, std::move(report));
  }
}

void Federation::ProfileAll() {
  const std::vector<ProfileCandidate> candidates = ProfileCandidates(job, run, sites.size());
  for (size_t round = 0; round < candidates.size(); ++round) {
    for (const std::string& site : sites) {
      ProfileEntry entry;
      entry.site = NodeNamed(site).site;
      entry.node = NodeNamed(site).node;
      entry.micro_batch_size = candidates[round].micro_batch_size;
      entry.sequence_length = candidates[round].sequence_length;
      v1::WorkerReport report;
      report.mutable_profile()->set_round(static_cast<int32_t>(round));
      *report.mutable_profile()->mutable_entry() = ToProto(entry);
      if (round == 0) {
        report.mutable_profile()->mutable_checkpoints()->Assign(found.begin(), found.end());
      }
      if (candidates[round].message_bytes > 0) {
        *report.mutable_profile()->mutable_message() = ToProto(MessageOf(NodeNamed(site)));
      }
      Answer(site, std::move(report));
    }
  }
}

void Federation::PlanNow() {
  const StartPlanning request = planning.back();
  planning.pop_back();
  Step(PlannerDone{request.job, request.incarnation, PlanFor(request.input, iteration_ns), "secret"});
}

void Federation::PrepareAll() {
  for (size_t rank = 0; rank < sites.size(); ++rank) {
    Answer(sites[rank], PreparedReportOf(static_cast<int32_t>(rank), epoch_));
  }
}

void Federation::CommitAll() {
  for (size_t rank = 0; rank < sites.size(); ++rank) {
    Answer(sites[rank], CommittedReportOf(static_cast<int32_t>(rank), epoch_));
  }
}

void Federation::IterateAll(int64_t iteration) {
  for (size_t rank = 0; rank < sites.size(); ++rank) {
    Answer(sites[rank], IterationReportOf(static_cast<int32_t>(rank), epoch_, iteration));
  }
}

void Federation::FinishAll() {
  for (size_t rank = 0; rank < sites.size(); ++rank) {
    Answer(sites[rank], FinishedReportOf(static_cast<int32_t>(rank), epoch_, 3));
  }
}

void Federation::DriveTo(JobState state) {
  Step(ApplyJob{next_call++, job, run});
  if (state == v1::JOB_STATE_PENDING) {
    return;
  }
  for (const std::string& site : sites) {
    Register(site);
  }
  const std::vector<std::pair<JobState, void (Federation::*)()>> steps = {
      {v1::JOB_STATE_PROFILING, &Federation::HelloAll},
      {v1::JOB_STATE_PROFILING, &Federation::ProfileAll},
      {v1::JOB_STATE_PLANNING, &Federation::PlanNow},
      {v1::JOB_STATE_DEPLOYING, &Federation::PrepareAll},
      {v1::JOB_STATE_DEPLOYING, &Federation::CommitAll}};
  for (const auto& [at, step] : steps) {
    if (at == state) {
      return;
    }
    (this->*step)();
  }
  if (state == v1::JOB_STATE_COMPLETED) {
    for (int64_t iteration = 0; iteration < 3; ++iteration) {
      IterateAll(iteration);
    }
    FinishAll();
  }
}

v1::JobDetail Federation::DetailOf(const std::string& job) {
  for (const Effect& effect : core.Step({now_ns_, now_ns_}, GetJob{next_call++, job})) {
    if (const auto* reply = std::get_if<ReplyToCall>(&effect); reply != nullptr && reply->reply.ok()) {
      return std::get<v1::GetJobResponse>(*reply->reply).job();
    }
  }
  return {};
}

JobState Federation::StateOf(const std::string& job) { return DetailOf(job).summary().state(); }

std::string Federation::CauseOf(const std::string& job) { return DetailOf(job).summary().cause(); }

int Federation::Commands(v1::WorkerCommand::CommandCase kind) const {
  int count = 0;
  for (const SendToAgent& send : Last<SendToAgent>()) {
    count += send.message.command().command().command_case() == kind ? 1 : 0;
  }
  return count;
}

int Federation::Stops() const {
  int count = 0;
  for (const SendToAgent& send : Last<SendToAgent>()) {
    count += send.message.has_stop_workers() ? 1 : 0;
  }
  return count;
}

}  // namespace geopipe
