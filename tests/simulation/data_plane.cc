#include "tests/simulation/data_plane.h"

#include <algorithm>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/splitmix64.h"
#include "optimizer/base/trouble.h"
#include "proto/wire/checkpoint_wire.h"
#include "runtime/manifest/job_manifest.h"
#include "runtime/transport/ucx/handshake.h"

namespace geopipe::simulation {
namespace {

constexpr int64_t kRedialNs = 20 * kSecondNs;    // how long a lost neighbour is dialled
constexpr int64_t kPatienceNs = 60 * kSecondNs;  // for messages that are due

}  // namespace

Trainer::Trainer(World& world, DataPlane& plane, ProcessPtr process, v1::WorkerId worker,
                 std::shared_ptr<KeptMemory> memory, CheckpointDisk& disk, std::function<void(WorkerEvent)> post)
    : world_(world),
      plane_(plane),
      process_(std::move(process)),
      worker_(std::move(worker)),
      post_(std::move(post)),
      address_(fmt::format("{}/{}", worker_.site(), worker_.device())),
      memory_(std::move(memory)),
      disk_(disk),
      checkpointer_(
          world, process_, worker_.site(), disk, [this](const std::string& address) { return FindServer(address); },
          post_) {
  plane_.trainers_.push_back(this);
}

Trainer::~Trainer() { Return(absl::OkStatus()); }

void Trainer::Answer(int64_t delay_ns, WorkerEvent event) {
  busy_ = true;
  world_.In(delay_ns, process_, [this, event = std::move(event)] {
    if (interrupted_ || stuck_) {
      return;
    }
    busy_ = false;
    post_(event);
  });
}

void Trainer::Run(RunProfile order) {
  if (busy_) {
    world_.Break("a trainer is given an order before it has answered the last one");
  }
  const v1::ProfileCommand& command = order.command;
  v1::ProfileReport report;
  report.set_round(command.round());
  if (!command.skip_compute()) {
    v1::ProfileEntry& entry = *report.mutable_entry();
    entry.set_site(worker_.site());
    entry.set_node(worker_.node());
    entry.set_device(worker_.device());
    entry.set_micro_batch_size(command.micro_batch_size());
    entry.set_sequence_length(command.sequence_length());
    entry.mutable_embedding();
    entry.mutable_block();
    entry.mutable_head();
  }
  if (command.message_bytes() > 0) {
    v1::MessageCost& message = *report.mutable_message();
    message.set_site(worker_.site());
    message.set_node(worker_.node());
    message.set_device(worker_.device());
    message.set_bytes(command.message_bytes());
    message.set_whole_ns(300'000);
    message.set_fixed_ns(200'000);
  }
  const std::string& path = command.checkpoint_path();
  for (const CheckpointIdentity& found : disk_.Complete(path)) {
    *report.add_checkpoints() = ToProto(found);
  }
  const int64_t delay_ns = world_.Between(100, 600) * kMillisecondNs;
  const absl::Status root =
      path.empty() ? absl::OkStatus() : disk_.CheckRoot(path, MarkOf(path, command.checkpoint_mark()));
  if (!path.empty() && (disk_.full || !root.ok())) {
    plane_.ledger_.Excuse(worker_.job(), "a disk for checkpoints is full, or away");
    Answer(
        delay_ns,
        Profiled{root.ok() ? OfNode(absl::ResourceExhaustedError(fmt::format("{}: the disk is full", path))) : root});
  } else {
    Answer(delay_ns, Profiled{std::move(report)});
  }
}

// Mirrors the worker's trainer: reads the state from a checkpoint, goes on from a held, kept or initial one, or
// refuses.
void Trainer::Run(RunPrepare order) {
  if (busy_ || session_ != nullptr) {
    world_.Break("a trainer is given an order before it has answered the last one");
  }
  const v1::PrepareCommand& command = order.command;
  const StateIdentity wanted{.iteration = command.first_iteration(), .epoch = command.state_epoch()};
  const bool same_run = run_ == command.run_incarnation() && rank_ == command.rank();
  spec_ = plane_.JobOf(command.manifest()).checkpoint;
  evaluation_ = plane_.JobOf(command.manifest()).evaluation;
  mark_ = MarkOf(spec_.path, command.checkpoint_mark());
  exchange_secret_ = command.exchange_secret();
  epoch_ = order.epoch;
  ranks_ = command.plan().devices_size();
  sequence_length_ = command.plan().sequence_length();
  rank_ = command.rank();
  run_ = command.run_incarnation();
  if (disk_.unreadable) {
    const bool reads = command.has_from_checkpoint();
    held_.reset();
    plane_.ledger_.Excuse(worker_.job(), "no file can be opened on a node");
    if (reads) {
      plane_.ledger_.OnUnread(run_, command.from_checkpoint().iteration());
    }
    Answer(
        world_.Between(100, 600) * kMillisecondNs,
        Prepared{.epoch = order.epoch,
                 .report = OfNode(reads ? absl::DataLossError("a file cannot be read: Input/output error")
                                        : absl::FailedPreconditionError("a file cannot be opened: Stale file handle")),
                 .states = States(),
                 .unreadable = reads ? std::optional(command.from_checkpoint()) : std::nullopt});
    return;
  }
  if (command.has_from_checkpoint()) {
    held_.reset();
    busy_ = true;
    std::vector<std::string> addresses;
    for (const v1::FileSource& source : command.file_sources()) {
      addresses.push_back(source.address());
    }
    checkpointer_.Restore(ContextOf(order.epoch), *FromProto(command.from_checkpoint()), std::move(addresses),
                          [this, order](const absl::StatusOr<uint64_t>& lineage) { OnRestored(order, lineage); });
    return;
  }
  const int64_t delay_ns = world_.Between(100, 1500) * kMillisecondNs;
  receives_ = false;
  giver_ = command.state_of_rank();
  if (!same_run || !held_.has_value() || held_->identity != wanted) {
    held_.reset();
    const bool is_ours = memory_->run == run_ && memory_->rank == rank_;
    const auto kept = std::ranges::find_if(memory_->states,
                                           [&](const RankState& state) { return is_ours && state.identity == wanted; });
    if (wanted == StateIdentity{}) {
      held_ = RankState{.identity = {}, .lineage = kFirstLineage};
    } else if (kept != memory_->states.end()) {
      held_ = *kept;
    } else if (command.has_state_of_rank() && giver_ != rank_) {
      receives_ = true;
    } else {
      Answer(delay_ns, Prepared{order.epoch,
                                absl::FailedPreconditionError(fmt::format(
                                    "the epoch begins with iteration {} of epoch {}, and there is no such state here",
                                    wanted.iteration, wanted.epoch)),
                                {}});
      return;
    }
    TakeMemory(command);
  }
  Answer(delay_ns, Prepared{order.epoch, Report(), States()});
}

void Trainer::TakeMemory(const v1::PrepareCommand& command) {
  if (memory_->run != command.run_incarnation() || memory_->rank != command.rank()) {
    *memory_ = {.run = command.run_incarnation(), .rank = command.rank(), .states = {}};
  }
}

CheckpointMark Trainer::MarkOf(const std::string& path, const v1::CheckpointMark& message) const {
  if (!message.expected() && disk_.MustBear(path, message.id())) {
    world_.Break(fmt::format("worker {} of {} is not told that its folder of checkpoints must bear its mark", address_,
                             worker_.job()));
  }
  return {.id = message.id(), .expected = message.expected()};
}

v1::PreparedReport Trainer::Report() {
  v1::PreparedReport report;
  if (!spec_.path.empty()) {
    report.set_checkpoint_trouble(std::string(disk_.MarkRoot(spec_.path, mark_).message()));
  }
  report.set_rank(rank_);
  report.set_address(address_);
  report.set_data_bytes(100);
  report.set_data_checksum(7);
  return report;
}

void Trainer::OnRestored(const RunPrepare& order, const absl::StatusOr<uint64_t>& lineage) {
  if (interrupted_ || stuck_) {
    return;
  }
  const v1::CheckpointIdentity& from = order.command.from_checkpoint();
  if (lineage.ok()) {
    plane_.ledger_.OnRestored(run_, from.incarnation(), from.epoch(), from.iteration(), *lineage);
    held_ = RankState{.identity = {.iteration = from.iteration(), .epoch = order.epoch}, .lineage = *lineage};
    TakeMemory(order.command);
    Answer(0, Prepared{order.epoch, Report(), States()});
    return;
  }
  world_.Trace("{} cannot read the checkpoint of iteration {}: {}", process_->name, from.iteration(),
               lineage.status().ToString());
  plane_.ledger_.OnRefused(worker_.job(), std::string(lineage.status().message()));
  Prepared refused{.epoch = order.epoch, .report = lineage.status(), .states = States(), .unreadable = std::nullopt};
  // A source whose disk is away has none of its files, either.
  if (std::ranges::any_of(plane_.trainers_, [](const Trainer* each) { return each->disk_.away; })) {
    plane_.ledger_.Excuse(worker_.job(), "a disk for checkpoints is away");
  }
  if (!disk_.away && (absl::IsNotFound(lineage.status()) || absl::IsDataLoss(lineage.status()) ||
                      absl::IsUnavailable(lineage.status()))) {
    refused.unreadable = from;
  }
  if (absl::IsUnavailable(lineage.status())) {
    plane_.ledger_.OnUnread(run_, from.iteration());
  }
  if (absl::IsResourceExhausted(lineage.status()) || absl::IsUnavailable(lineage.status())) {
    plane_.ledger_.Excuse(worker_.job(), "a disk for checkpoints is full, or a source of files cannot be asked");
  }
  Answer(0, std::move(refused));
}

RunStates Trainer::States() const {
  RunStates states{.run_incarnation = run_, .held = std::nullopt, .kept = {}};
  if (held_.has_value()) {
    states.held = held_->identity;
  }
  for (const RankState& state : memory_->states) {
    states.kept.push_back(state.identity);
  }
  return states;
}

// Keeps the state between two iterations.
void Trainer::Keep() {
  if (!plane_.keeps(worker_.job()) || !held_.has_value() ||
      (!memory_->states.empty() && memory_->states.front().identity == held_->identity)) {
    return;
  }
  plane_.ledger_.Keeps(run_);
  std::erase_if(memory_->states, [&](const RankState& state) { return state.identity == held_->identity; });
  memory_->states.push_front(*held_);
  memory_->states.resize(std::min<size_t>(2, memory_->states.size()));
}

void Trainer::Run(RunCommit order) {
  if (busy_ || session_ != nullptr) {
    world_.Break(fmt::format("worker {}: a commit is carried out before the last order was answered", address_));
    return;
  }
  session_ = std::make_unique<Session>();
  Session& session = *session_;
  session.trainer = this;
  session.epoch = order.epoch;
  session.rank = rank_;
  session.secret = order.command.secret();
  session.start = order.command.start_iteration();
  session.end = order.command.end_iteration();
  session.evaluate_from = order.command.evaluate_from();
  session.alone_since_ns = world_.now_ns();
  session.peers.resize(static_cast<size_t>(order.command.peers_size()));
  for (const v1::Peer& peer : order.command.peers()) {
    session.peers.at(static_cast<size_t>(peer.rank())) = peer.address();
  }
  if (order.command.start_iteration() != next() && !receives_) {
    Return(absl::FailedPreconditionError("the commit begins with another iteration"));
    return;
  }
  plane_.sessions_.push_back(&session);
}

// --- Checkpoints --------------------------------------------------------------------------------------------------

Checkpointer::Context Trainer::ContextOf(uint64_t epoch) const {
  return {.path = spec_.path,
          .keep = spec_.keep,
          .run = run_,
          .epoch = epoch,
          .rank = rank_,
          .ranks = ranks_,
          .sequence_length = sequence_length_,
          .mark = mark_};
}

std::vector<int64_t> Trainer::TakeRequests(int64_t last) {
  const auto end = requested_.upper_bound(last);
  std::vector<int64_t> taken(requested_.begin(), end);
  requested_.erase(requested_.begin(), end);
  return taken;
}

void Trainer::OnState() {
  const bool is_turn = (spec_.every > 0 && next() % spec_.every == 0) || next() == session_->end;
  if (!spec_.path.empty() && next() > session_->start && is_turn) {
    Request(next());
  }
  for (const int64_t iteration : TakeRequests(next())) {
    const absl::Status status = iteration == next() ? Save() : absl::FailedPreconditionError("the rank has gone on");
    world_.In(0, process_, [this, taken = CheckpointTaken{session_->epoch, iteration, status}] { post_(taken); });
  }
}

absl::Status Trainer::Save() {
  return held_.has_value() ? checkpointer_.Write(ContextOf(epoch_), next(), held_->lineage)
                           : absl::FailedPreconditionError("the rank has no state before a replica gives it one");
}

void Trainer::Run(RunCheckpoint order) {
  if (busy_ || session_ != nullptr) {
    world_.Break("a trainer is to save a state before it has answered the last order");
    return;
  }
  Answer(0, CheckpointTaken{order.epoch, next(), Save()});
}

void Trainer::Complete(CompleteCheckpoint order) {
  checkpointer_.Complete(ContextOf(order.epoch), std::move(order.command));
}

void Trainer::Replicate(FetchReplica order) { checkpointer_.Fetch(ContextOf(order.epoch), std::move(order.command)); }

const CheckpointDisk* Trainer::FindServer(const std::string& address) const {
  for (const Trainer* other : plane_.trainers_) {
    if (other->address_ == address && other->process_->alive && !other->process_->paused && !exchange_secret_.empty() &&
        other->exchange_secret_ == exchange_secret_ && plane_.Passes(worker_.site(), other->worker_.site())) {
      return &other->disk_;
    }
  }
  return nullptr;
}

// --- Training -----------------------------------------------------------------------------------------------------

void Trainer::End(std::optional<int64_t> abandon_from) {
  if (session_ != nullptr) {
    session_->ending = true;
    session_->abandon_from = abandon_from.has_value() ? abandon_from : session_->abandon_from;
  }
}

void Trainer::Interrupt() {
  if (!std::exchange(interrupted_, true)) {
    plane_.trainers_.remove(this);
  }
  if (session_ != nullptr) {
    plane_.Unlink(*session_);
    session_.reset();
  }
}

void Trainer::Return(const absl::Status& status) {
  if (session_ == nullptr) {
    return;
  }
  const uint64_t epoch = session_->epoch;
  const bool has_trained = session_->connected && status.ok();
  plane_.Unlink(*session_);
  if (process_->alive) {
    Keep();
    if (has_trained) {
      OnState();
    }
  }
  session_.reset();
  if (process_->alive) {
    Answer(0, TrainingReturned{epoch, status, States(), {}});
  }
}

void Trainer::GetStuck() {
  stuck_ = true;
  stuck_ns_ = world_.now_ns();
}

WorkerTick Trainer::Progress() const {
  WorkerTick tick;
  tick.next_iteration = next();
  if (session_ != nullptr && session_->begun) {
    tick.action = fmt::format("{}F0", rank_);
    tick.action_ns = stuck_ ? world_.now_ns() - stuck_ns_ : 10 * kMillisecondNs;
  }
  return tick;
}

bool DataPlane::AbandonsInVain(const std::string& job) const {
  return std::ranges::any_of(trainers_, [&](const Trainer* each) {
    const Session* session = each->session_.get();
    return each->worker_.job() == job && each->stuck_ && each->process_->alive && !each->process_->paused &&
           session != nullptr && session->abandon_from.has_value() && *session->abandon_from <= each->next();
  });
}

void DataPlane::Unlink(Session& session) {
  for (Session* neighbour : {session.left, session.right}) {
    if (neighbour != nullptr) {
      (neighbour->left == &session ? neighbour->left : neighbour->right) = nullptr;
      neighbour->alone_since_ns = world_.now_ns();
    }
  }
  sessions_.remove(&session);
}

const JobSpec& DataPlane::JobOf(const std::string& manifest) {
  const auto [found, is_new] = jobs_.try_emplace(manifest);
  if (is_new) {
    const absl::StatusOr<JobSpec> job = ParseManifest(manifest);
    GP_CHECK(job.ok(), "a job's manifest cannot be read: {}", job.status().ToString());
    found->second = *job;
  }
  return found->second;
}

bool DataPlane::Passes(const Session& a, const Session& b) const {
  return Passes(a.trainer->worker_.site(), b.trainer->worker_.site());
}

bool DataPlane::Passes(const std::string& x, const std::string& y) const { return x == y || (!IsCut(x) && !IsCut(y)); }

// The listener trusts the proof, which covers everything that is said (handshake.h).
bool DataPlane::Proven(const Session& dialer, const Session& listener) {
  HandshakeMessage message;
  message.job_hash = dialer.trainer->run_;
  message.epoch = dialer.epoch;
  message.dialer_rank = dialer.rank;
  message.listener_rank = dialer.rank + 1;
  message.dialer_id = world_.Number();
  message.listener_id = world_.Number();
  return SameProof(MakeProof(dialer.secret, HandshakeSide::kDialer, message),
                   MakeProof(listener.secret, HandshakeSide::kDialer, message)) &&
         SameProof(MakeProof(listener.secret, HandshakeSide::kListener, message),
                   MakeProof(dialer.secret, HandshakeSide::kListener, message));
}

// The session that answers at the address: that of the worker of the device, or, while there is none, of another of its
// site that was given the port.
DataPlane::Session* DataPlane::ListenerAt(const Session& dialer, const std::string& address) {
  const auto listens = [&](const Session* other) { return other != &dialer && other->trainer->address_ == address; };
  if (const auto found = std::ranges::find_if(sessions_, listens); found != sessions_.end()) {
    return *found;
  }
  const std::string_view site = std::string_view(address).substr(0, address.find('/'));
  const auto is_near = [&](const Session* other) { return other != &dialer && other->trainer->worker_.site() == site; };
  const auto found = std::ranges::find_if(sessions_, is_near);
  return found == sessions_.end() ? nullptr : *found;
}

void DataPlane::Connect(Session& session) {
  Session* const found = ListenerAt(session, session.peers.at(static_cast<size_t>(session.rank) + 1));
  if (found == nullptr) {
    return;
  }
  Session& listener = *found;
  if (listener.left != nullptr || !listener.trainer->runs() || !Passes(session, listener) ||
      listener.rank != session.rank + 1 || !Proven(session, listener)) {
    return;
  }
  if (listener.trainer->run_ != session.trainer->run_ || listener.epoch != session.epoch) {
    world_.Break(fmt::format("rank {} of epoch {} of run {} is joined with rank {} of epoch {} of run {}", session.rank,
                             session.epoch, session.trainer->run_, listener.rank, listener.epoch,
                             listener.trainer->run_));
  }
  session.right = &listener;
  listener.left = &session;
}

bool DataPlane::Receive(Session& session) {
  Trainer& trainer = *session.trainer;
  const auto give = [&](const Session* at) {
    const std::optional<RankState>& held = at->trainer->held_;
    if (at->rank == trainer.giver_ && held.has_value() && held->identity.iteration == session.start) {
      trainer.held_ = *held;
      trainer.receives_ = false;
    }
  };
  for (const Session* at = session.left; at != nullptr; at = at->left) {
    give(at);
  }
  for (const Session* at = session.right; at != nullptr; at = at->right) {
    give(at);
  }
  return !trainer.receives_;
}

void DataPlane::Poll() {
  const std::vector<Session*> sessions(sessions_.begin(), sessions_.end());
  for (Session* session : sessions) {
    if (std::ranges::find(sessions_, session) != sessions_.end() && session->trainer->runs()) {
      PollOne(*session);
    }
  }
}

void DataPlane::ReportEvaluation(const Session& session) {
  Trainer& trainer = *session.trainer;
  const int64_t next = trainer.next();
  const bool last = session.rank + 1 == static_cast<int32_t>(session.peers.size());
  if (!last || next < session.evaluate_from || !trainer.evaluation_.IsDue(next, session.end)) {
    return;
  }
  v1::EvaluationReport report;
  report.set_iteration(next);
  report.set_rank(session.rank);
  report.set_loss(ValidationLossOf(next));
  report.set_duration_ns(iteration_ns(trainer.worker_.job()) / 3);
  world_.In(0, trainer.process_,
            [&trainer, event = EvaluationFinished{session.epoch, std::move(report)}] { trainer.post_(event); });
}

void DataPlane::PollOne(Session& session) {
  Trainer& trainer = *session.trainer;
  const int64_t now_ns = world_.now_ns();
  const bool last = session.rank + 1 == static_cast<int32_t>(session.peers.size());
  if (!last && session.right == nullptr) {
    Connect(session);
  }
  const bool joined = (session.rank == 0 || session.left != nullptr) && (last || session.right != nullptr);
  if (joined && !session.connected && (!trainer.receives_ || Receive(session))) {
    session.connected = true;
    ledger_.OnEpochBegun(trainer.run_, session.epoch,
                         {.rank = session.rank,
                          .ranks = static_cast<int32_t>(session.peers.size()),
                          .identity = trainer.held_->identity,
                          .lineage = trainer.held_->lineage,
                          .secret = session.secret});
    world_.In(0, trainer.process_, [&trainer, epoch = session.epoch] { trainer.post_(Connected{epoch}); });
  }
  if (session.assured && now_ns >= session.finish_ns) {
    ReportEvaluation(session);
    v1::IterationReport report;
    report.set_iteration(trainer.next());
    report.set_rank(session.rank);
    report.set_duration_ns(iteration_ns(trainer.worker_.job()));
    report.set_busy_ns(iteration_ns(trainer.worker_.job()) / 2);
    if (last) {
      report.set_loss(LossOf(trainer.next()));
    }
    RankState& held = *trainer.held_;
    held.lineage = SplitMix64(held.lineage ^ (session.epoch << 32) ^ static_cast<uint64_t>(trainer.next())).Next();
    ledger_.OnIteration(trainer.run_, session.epoch, session.rank, trainer.next(), held.lineage);
    held.identity = {.iteration = trainer.next() + 1, .epoch = session.epoch};
    session.begun = session.assured = false;
    world_.In(0, trainer.process_,
              [&trainer, event = IterationFinished{session.epoch, std::move(report)}] { trainer.post_(event); });
  }
  if (session.begun && !session.assured && session.abandon_from.has_value() &&
      trainer.next() >= *session.abandon_from) {
    trainer.Return(absl::OkStatus());
    return;
  }
  // The last one of a neighbour that is still to connect stays open for it (RankJob keeps its transport).
  const auto waits = [](const Session* neighbour) { return neighbour != nullptr && !neighbour->connected; };
  const bool is_over =
      trainer.next() >= session.end && session.connected && !waits(session.left) && !waits(session.right);
  if (!session.begun && (is_over || session.ending)) {
    if (session.connected && trainer.next() >= session.end) {
      ReportEvaluation(session);
    }
    trainer.Return(absl::OkStatus());
    return;
  }
  if (!joined && !session.assured && now_ns - session.alone_since_ns > kRedialNs) {
    trainer.Return(absl::UnavailableError(fmt::format("a neighbour of rank {} is lost", session.rank)));
    return;
  }
  if (session.connected && !session.begun && trainer.next() < session.end) {
    trainer.Keep();
    trainer.OnState();
    session.begun = true;
    session.begun_ns = now_ns;
  }
  if (session.begun && !session.assured) {
    if (session.rank == 0) {
      Assure(session);
    }
    if (!session.assured && now_ns - session.begun_ns > iteration_ns(trainer.worker_.job()) + kPatienceNs) {
      trainer.Return(absl::DeadlineExceededError(fmt::format("rank {} waits for messages in vain", session.rank)));
    }
  }
}

void DataPlane::Assure(Session& first) {
  std::vector<Session*> ranks;
  int64_t begun_ns = 0;
  for (Session* at = &first; at != nullptr; at = at->right) {
    if (!at->begun || at->trainer->next() != first.trainer->next() || !at->trainer->runs() ||
        (!ranks.empty() && !Passes(*ranks.back(), *at))) {
      return;
    }
    begun_ns = std::max(begun_ns, at->begun_ns);
    ranks.push_back(at);
  }
  if (ranks.size() != first.peers.size() ||
      world_.now_ns() < begun_ns + iteration_ns(first.trainer->worker_.job()) - 200 * kMillisecondNs) {
    return;
  }
  for (Session* rank : ranks) {
    if (rank->trainer->held_->lineage != first.trainer->held_->lineage) {
      world_.Break(fmt::format("ranks 0 and {} of run {} train on from states that came about otherwise", rank->rank,
                               first.trainer->run_));
    }
    rank->assured = true;
    rank->finish_ns = world_.now_ns() + world_.Between(0, 150) * kMillisecondNs;
  }
}

}  // namespace geopipe::simulation
