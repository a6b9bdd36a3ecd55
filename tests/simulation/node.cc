#include "tests/simulation/node.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "optimizer/base/check.h"

namespace geopipe::simulation {
namespace {

constexpr size_t kUnreadMessages = 16;  // that a socket holds

agent::AgentConfig ConfigOf(const std::string& site, const std::vector<std::string>& sites, int32_t devices) {
  agent::AgentConfig config;
  config.site = site;
  config.node = "n0";
  config.devices = devices;
  config.state_dir = "/state";
  config.device.memory_bytes = 1 << 30;
  config.device.efficiency = 0.5;
  for (const std::string& to : sites) {
    if (to != site) {
      agent::LinkConfig& link = config.links.emplace_back();
      link.to = to;
      link.latency_ns = 20 * kMillisecondNs;
      link.bandwidth_bytes_per_s = 1.25e8;
    }
  }
  return config;
}

}  // namespace

// --- Worker -------------------------------------------------------------------------------------------------------

namespace {

RunStates KeptIn(const KeptMemory& memory) {
  RunStates states{.run_incarnation = memory.run, .held = std::nullopt, .kept = {}};
  for (const RankState& state : memory.states) {
    states.kept.push_back(state.identity);
  }
  return states;
}

}  // namespace

Worker::Worker(Node& node, const v1::WorkerId& id, int64_t pid, std::shared_ptr<KeptMemory> memory)
    : node_(node),
      world_(node.world_),
      id_(id),
      pid_(pid),
      process_(std::make_shared<Process>()),
      control_({.worker = id,
                .version = "1.2.3",
                .pid = pid,
                .seed = node.world_.Number(),
                .kept = KeptIn(*memory),
                .exchange_address = fmt::format("{}/{}", id.site(), id.device())},
               node.world_.now_ns()),
      trainer_(node.world_, node.plane_, process_, id, std::move(memory), node.checkpoints_,
               [this](WorkerEvent event) { Take(std::move(event)); }) {
  process_->name = fmt::format("worker {}/{} of {} ({:x})", id.site(), id.device(), id.job(), id.incarnation());
}

void Worker::Begin() {
  begun_ = true;
  if (world_.now_ns() < node_.deadly_until_ns) {
    node_.ledger_.Excuse(id_.job(), "workers die soon after their start");
    world_.In(world_.Between(100, 1500) * kMillisecondNs, process_, [this] { Kill(); });
  }
  world_.In(world_.Between(50, 300) * kMillisecondNs, process_, [this] { Tick(); });
}

void Worker::Tick() {
  WorkerTick tick = trainer_.Progress();
  tick.has_home = stray_ns_ == 0;
  Take(std::move(tick));
}

void Worker::Take(WorkerEvent event) {
  if (auto* returned = std::get_if<TrainingReturned>(&event)) {
    returned->unmet_requests = trainer_.TakeRequests();
  }
  WorkerEffects effects = control_.Step(world_.now_ns(), std::move(event));
  for (WorkerEffect& effect : effects) {
    process_->BeforeEffect();
    std::visit([this](auto& each) { Carry(each); }, effect);
    if (!process_->alive) {
      return;
    }
  }
  Look();
}

// One call of Look is on its way at any time, and it comes early enough.
void Worker::Look() {
  const int64_t due_ns = std::max(control_.next_deadline_ns(), world_.now_ns() + kMillisecondNs);
  if (look_ns_ > world_.now_ns() && look_ns_ <= due_ns) {
    return;
  }
  look_ns_ = due_ns;
  world_.In(due_ns - world_.now_ns(), process_, [this, due_ns] {
    if (look_ns_ != due_ns) {
      return;
    }
    look_ns_ = 0;
    if (world_.now_ns() >= control_.next_deadline_ns()) {
      Tick();
    } else {
      Look();
    }
  });
}

void Worker::Carry(DialAgent& effect) {
  const std::shared_ptr<AgentLife> agent = node_.agent_;
  const bool refused = agent == nullptr || !agent->process->alive || stray_ns_ > 0;
  if (refused || agent->process->paused) {
    world_.In(refused ? kLocalNs : kSecondNs, process_, [this, stream = effect.stream] {
      Take(StreamClosed{stream, absl::UnavailableError("no agent listens")});
    });
    return;
  }
  const auto attachment = std::make_shared<Attachment>();
  attachment->session = node_.next_session_++;
  attachment->stream = effect.stream;
  attachment->worker = node_.workers_.at(pid_);
  attachment->unread.push_back(std::move(effect.hello));
  agent->attachments[attachment->session] = attachment;
  world_.In(kLocalNs, process_, [this, stream = effect.stream] { Take(StreamOpened{stream}); });
  world_.In(kLocalNs, agent->process, [this, agent, attachment] { node_.Read(agent, attachment); });
}

void Worker::Carry(geopipe::HangUp& effect) {
  const std::shared_ptr<AgentLife> agent = node_.agent_;
  if (agent == nullptr) {
    return;
  }
  for (const auto& [session, attachment] : agent->attachments) {
    if (attachment->stream == effect.stream && attachment->worker.lock().get() == this) {
      attachment->ended = true;
      world_.In(kLocalNs, agent->process, [this, agent, id = session] {
        if (agent->attachments.erase(id) > 0) {
          node_.Take(agent, agent::WorkerClosed{id});
        }
      });
    }
  }
}

void Worker::Carry(TellAgent& effect) {
  const std::shared_ptr<AgentLife> agent = node_.agent_;
  if (agent == nullptr || !agent->process->alive) {
    return;
  }
  for (const auto& [session, attachment] : agent->attachments) {
    if (attachment->stream == effect.stream && attachment->worker.lock().get() == this && !attachment->ended) {
      attachment->unread.push_back(std::move(effect.request));
      if (attachment->unread.size() <= kUnreadMessages) {
        world_.In(kLocalNs, process_, [this, stream = effect.stream] { Take(ReportWritten{stream}); });
      }
      world_.In(kLocalNs, agent->process, [this, agent, kept = attachment] { node_.Read(agent, kept); });
      return;
    }
  }
}

void Worker::Carry(WorkerLog& effect) {
  if (effect.level >= LogLevel::kInfo) {
    world_.Trace("{}: {}", process_->name, effect.text);
  }
}

void Worker::Carry(ExitWorker& effect) {
  exit_code_ = effect.code;
  if (effect.code != 0) {
    node_.ledger_.OnSelfEnded(id_.job(), id_.incarnation());
  }
  world_.Trace("{} exits with {}: {}", process_->name, effect.code, effect.reason);
  world_.Kill(process_);
}

void Worker::Kill() {
  killed_ = true;
  world_.Kill(process_);
}

// --- Node ---------------------------------------------------------------------------------------------------------

Node::Node(World& world, DataPlane& plane, Ledger& ledger, Listener& coordinator, std::string site,
           const std::vector<std::string>& sites, int32_t devices)
    : world_(world),
      plane_(plane),
      ledger_(ledger),
      coordinator_(coordinator),
      config_(ConfigOf(site, sites, devices)) {}

std::shared_ptr<Worker> Node::FindWorker(int32_t device, uint64_t incarnation) {
  for (const auto& [pid, worker] : workers_) {
    if (worker->process()->alive && worker->id().device() == device && worker->id().incarnation() == incarnation) {
      return worker;
    }
  }
  return nullptr;
}

void Node::HealPath() {
  path_.up.held = path_.up.swallowed = path_.down.held = path_.down.swallowed = path_.blocked = false;
  path_.up.extra_delay_ns = path_.down.extra_delay_ns = 0;
  path_.up.duplicates = path_.down.duplicates = 0;
  std::erase_if(path_.streams, [](const auto& stream) { return stream.expired(); });
  for (const std::weak_ptr<ControlStream>& stream : path_.streams) {
    if (const std::shared_ptr<ControlStream> held = stream.lock()) {
      held->Heal();
    }
  }
}

// --- Agent --------------------------------------------------------------------------------------------------------

void Node::StartAgent() {
  GP_CHECK(agent_ == nullptr || !agent_->process->alive, "an agent lives");
  agent::AgentOptions options;
  options.incarnation = world_.Number() | 1;
  options.seed = world_.Number();
  options.version = "1.2.3";
  options.host = config_.site;
  options.pid = next_pid_++;
  options.known_coordinator = known_coordinator_;
  options.federation = federation_;
  if (federation_.empty()) {
    checkpoints_.ForgetListed();
  }
  agent_ = std::make_shared<AgentLife>(config_, options);
  agent_->process->name = fmt::format("agent {} ({:x})", config_.site, options.incarnation & 0xffff);
  agent_->process->on_death = [this, life = agent_.get()] { OnAgentDeath(*life); };
  world_.Trace("{} starts", agent_->process->name);
  world_.In(20 * kMillisecondNs, agent_->process, [this, life = agent_] {
    FindKeeper(life);
    Take(life, agent::Tick{});
  });
}

void Node::OnAgentDeath(AgentLife& life) {
  ExcuseNotBegun();
  if (life.stream != nullptr) {
    life.stream->client_closed = nullptr;
    const std::shared_ptr<ControlStream> stream = life.stream;
    stream->Send(ControlStream::Way::kUp, [stream] {
      if (stream->server_closed) {
        stream->server_closed();
      }
    });
  }
  for (const auto& [session, attachment] : life.attachments) {
    EndAttachment(attachment, absl::UnavailableError("the agent's process has ended"));
  }
  life.attachments.clear();
  if (keeper_ != nullptr && life.keeper_connection != 0) {
    world_.In(kLocalNs, keeper_->process, [this, keeper = keeper_, connection = life.keeper_connection] {
      Take(keeper, agent::AgentLeft{connection});
    });
  }
}

void Node::EndAttachment(const std::shared_ptr<Attachment>& attachment, const absl::Status& status) {
  attachment->ended = true;
  if (const std::shared_ptr<Worker> worker = attachment->worker.lock()) {
    world_.In(kLocalNs, worker->process(), [worker, stream = attachment->stream, status] {
      worker->Take(StreamClosed{stream, status});
    });
  }
}

void Node::Take(const std::shared_ptr<AgentLife>& life, agent::Event event) {
  agent::Effects effects = life->core.Step(world_.now_ns(), std::move(event));
  for (agent::Effect& effect : effects) {
    life->process->BeforeEffect();
    std::visit([&](auto& each) { Carry(*life, each); }, effect);
    if (!life->process->alive) {
      return;
    }
  }
  Look(life);
}

void Node::Look(const std::shared_ptr<AgentLife>& life) {
  const int64_t due_ns = std::max(life->core.next_deadline_ns(), world_.now_ns() + kMillisecondNs);
  if (due_ns > world_.now_ns() + 3600 * kSecondNs || (life->look_ns > world_.now_ns() && life->look_ns <= due_ns)) {
    return;
  }
  life->look_ns = due_ns;
  world_.In(due_ns - world_.now_ns(), life->process, [this, life, due_ns] {
    if (life->look_ns != due_ns) {
      return;
    }
    life->look_ns = 0;
    if (world_.now_ns() >= life->core.next_deadline_ns()) {
      Take(life, agent::Tick{});
    } else {
      Look(life);
    }
  });
}

void Node::Carry(AgentLife& life, agent::Dial& effect) {
  const std::shared_ptr<AgentLife> self = agent_;
  const agent::ConnectionId connection = effect.connection;
  life.connection = connection;
  const auto stream = std::make_shared<ControlStream>(world_, path_);
  life.stream = stream;
  path_.streams.push_back(stream);
  const ProcessPtr process = life.process;
  stream->client_closed = [this, self, process, connection] {
    world_.In(0, process, [this, self, connection] {
      Take(self, agent::CoordinatorClosed{connection, absl::UnavailableError("the connection broke")});
    });
  };
  if (path_.blocked) {
    world_.In(kSecondNs, [stream] {
      if (stream->client_closed) {
        std::exchange(stream->client_closed, nullptr)();
      }
    });
    return;
  }
  stream->Send(ControlStream::Way::kUp, [this, self, process, stream, connection, hello = std::move(effect.hello)] {
    const ProcessPtr listening = coordinator_.listening();
    if (listening == nullptr) {
      stream->Reset();
      return;
    }
    const auto send_down = [this, self, process, stream, connection](v1::ConnectResponse message) {
      const bool may_double = message.sequence() != 0 || message.has_reports_taken();
      stream->Send(
          ControlStream::Way::kDown,
          [this, self, process, connection, message = std::move(message)] {
            world_.In(0, process, [this, self, connection, message] {
              Take(self, agent::CoordinatorMessage{connection, message});
            });
          },
          may_double);
    };
    const auto close = [this, self, process, stream, connection](const absl::Status& status) {
      stream->Send(ControlStream::Way::kDown, [this, self, process, stream, connection, status] {
        stream->client_closed = nullptr;
        world_.In(0, process, [this, self, connection, status] {
          Take(self, agent::CoordinatorClosed{connection, status});
        });
      });
    };
    world_.In(0, listening,
              [this, stream, hello, send_down, close] { coordinator_.Accept(stream, hello, send_down, close); });
  });
}

void Node::Carry(AgentLife& life, agent::HangUp& effect) {
  if (life.stream == nullptr || life.connection != effect.connection) {
    return;
  }
  const std::shared_ptr<ControlStream> stream = std::exchange(life.stream, nullptr);
  stream->client_closed = nullptr;
  stream->Send(ControlStream::Way::kUp, [stream] {
    if (stream->server_closed) {
      stream->server_closed();
    }
  });
}

void Node::Carry(AgentLife& life, agent::SendToCoordinator& effect) {
  if (life.stream == nullptr || life.connection != effect.connection) {
    return;
  }
  const std::shared_ptr<AgentLife> self = agent_;
  const std::shared_ptr<ControlStream> stream = life.stream;
  if (!path_.up.held) {
    world_.In(kMillisecondNs, life.process,
              [this, self, connection = effect.connection] { Take(self, agent::CoordinatorSent{connection}); });
  }
  stream->Send(
      ControlStream::Way::kUp,
      [this, stream, message = std::move(effect.message)] {
        if (const ProcessPtr listening = coordinator_.listening()) {
          world_.In(0, listening, [this, stream, message] { coordinator_.Hear(stream.get(), message); });
        }
      },
      true);
}

void Node::Ask(AgentLife& life, v1::KeeperRequest request) {
  if (life.keeper_connection == 0 || keeper_ == nullptr) {
    return;
  }
  world_.In(kLocalNs, keeper_->process,
            [this, keeper = keeper_, connection = life.keeper_connection, request = std::move(request)] {
              Take(keeper, agent::AgentAsked{connection, request});
            });
}

void Node::Carry(AgentLife& life, agent::StartWorker& effect) {
  v1::KeeperRequest request;
  *request.mutable_start()->mutable_worker() = effect.worker;
  request.mutable_start()->set_program("geopipe-worker");
  request.mutable_start()->set_takes_memory(true);
  request.mutable_start()->set_log_path("log");
  Ask(life, std::move(request));
}

void Node::Carry(AgentLife& life, agent::SignalWorker& effect) {
  v1::KeeperRequest request;
  request.mutable_signal()->set_device(effect.worker.device);
  request.mutable_signal()->set_incarnation(effect.worker.incarnation);
  request.mutable_signal()->set_signal(effect.signal);
  Ask(life, std::move(request));
}

void Node::Carry(AgentLife& life, agent::ForgetExit& effect) {
  v1::KeeperRequest request;
  request.mutable_forget()->set_device(effect.worker.device);
  request.mutable_forget()->set_incarnation(effect.worker.incarnation);
  Ask(life, std::move(request));
}

void Node::Read(const std::shared_ptr<AgentLife>& life, const std::shared_ptr<Attachment>& attachment) {
  if (!attachment->read_on || attachment->unread.empty() || !life->attachments.contains(attachment->session)) {
    return;
  }
  attachment->read_on = false;
  v1::AttachRequest message = std::move(attachment->unread.front());
  attachment->unread.pop_front();
  if (const std::shared_ptr<Worker> worker = attachment->worker.lock();
      worker != nullptr && attachment->unread.size() >= kUnreadMessages) {
    world_.In(kLocalNs, worker->process(),
              [worker, stream = attachment->stream] { worker->Take(ReportWritten{stream}); });
  }
  Take(life, agent::WorkerMessage{attachment->session, std::move(message)});
}

void Node::Carry(AgentLife& life, agent::AcceptSession& effect) {
  agent::ReadOn read_on{effect.session};
  Carry(life, read_on);
}

void Node::Carry(AgentLife& life, agent::ReadOn& effect) {
  const auto found = life.attachments.find(effect.session);
  if (found == life.attachments.end()) {
    return;
  }
  found->second->read_on = true;
  world_.In(0, life.process, [this, self = agent_, attachment = found->second] { Read(self, attachment); });
}

void Node::Carry(AgentLife& life, agent::SendToWorker& effect) {
  const auto found = life.attachments.find(effect.session);
  if (found == life.attachments.end() || found->second->ended) {
    return;
  }
  if (const std::shared_ptr<Worker> worker = found->second->worker.lock()) {
    if (effect.message.command().has_stop()) {
      ledger_.OnStopOrdered(worker->id().job(), worker->id().incarnation());
    }
    world_.In(kLocalNs, worker->process(),
              [worker, stream = found->second->stream, message = std::move(effect.message)] {
                worker->Take(AgentSaid{stream, message});
              });
  }
}

void Node::Carry(AgentLife& life, agent::CloseSession& effect) {
  const auto found = life.attachments.find(effect.session);
  if (found == life.attachments.end()) {
    return;
  }
  EndAttachment(found->second, effect.status);
  life.attachments.erase(found);
  world_.In(kLocalNs, life.process,
            [this, self = agent_, session = effect.session] { Take(self, agent::WorkerClosed{session}); });
}

void Node::Carry(AgentLife& life, agent::StartProbe& effect) {
  v1::ProbeReport report;
  report.set_probe(effect.order.probe());
  if (effect.order.address().empty()) {
    report.mutable_opened()->set_address("address");
    report.mutable_opened()->set_secret("secret");
  } else {
    for (v1::LinkMeasurement* way :
         {report.mutable_measured()->mutable_outbound(), report.mutable_measured()->mutable_inbound()}) {
      way->set_latency_ns(20 * kMillisecondNs);
      way->set_bandwidth_bytes_per_s(1.2e8);
    }
  }
  world_.In(world_.Between(100, 2000) * kMillisecondNs, life.process,
            [this, self = agent_, report] { Take(self, agent::ProbeNews{report}); });
}

void Node::Carry(AgentLife& /*life*/, agent::StopProbe& /*effect*/) {}

void Node::Carry(AgentLife& /*life*/, agent::RememberCoordinator& effect) {
  if (effect.incarnation < known_coordinator_) {
    world_.Break(fmt::format("agent {} obeys an older coordinator", config_.site));
  }
  if (federation_.empty()) {  // a machine that is new is told so by now
    checkpoints_.ForgetListed();
  }
  if (!disk_full) {
    known_coordinator_ = effect.incarnation;
    registered_ns_ = world_.now_ns();
    federation_ = effect.federation;
  }
}

void Node::Carry(AgentLife& /*life*/, agent::Announce& /*effect*/) {}

void Node::Carry(AgentLife& life, agent::WriteLog& effect) { world_.Trace("{}: {}", life.process->name, effect.text); }

void Node::Carry(AgentLife& life, agent::Exit& effect) {
  world_.Trace("{} exits: {}", life.process->name, effect.status.ToString());
  world_.Kill(life.process);
}

// Mirrors the agent's supervisor: connects to the keeper, starts one when there is none, and gathers the list.
void Node::FindKeeper(const std::shared_ptr<AgentLife>& life) {
  life->keeper_connection = 0;
  if (keeper_ == nullptr || !keeper_->process->alive) {
    if (world_.now_ns() < life->no_keeper_until_ns) {
      return world_.In(life->no_keeper_until_ns - world_.now_ns(), life->process, [this, life] { FindKeeper(life); });
    }
    StartKeeper();
  }
  const std::shared_ptr<KeeperLife> keeper = keeper_;
  const uint64_t connection = next_keeper_connection_++;
  life->keeper_connection = connection;
  life->list.emplace();
  life->is_told = false;
  world_.In(kLocalNs, keeper->process, [this, keeper, connection] { Take(keeper, agent::AgentConnected{connection}); });
}

void Node::OnNews(const std::shared_ptr<AgentLife>& life, v1::KeeperNews news) {
  if (news.has_running()) {
    v1::KeptWorker& child = *news.mutable_running();
    if (life->list.has_value()) {
      life->list->running.push_back({child.worker(), child.pid()});
    } else {
      Take(life, agent::WorkerStarted{{child.worker().device(), child.worker().incarnation()}, child.pid()});
    }
  } else if (news.has_exited()) {
    const v1::WorkerExit& exit = news.exited();
    if (life->list.has_value()) {
      life->list->ended.push_back(exit);
    } else {
      Take(life, agent::WorkerExited{{exit.worker().device(), exit.worker().incarnation()},
                                     exit.pid(),
                                     exit.exit_code(),
                                     exit.signal(),
                                     exit.last_words()});
    }
  } else if (news.has_failed()) {
    Take(life, agent::WorkerStartFailed{
                   {news.failed().worker().device(), news.failed().worker().incarnation()},
                   absl::Status(static_cast<absl::StatusCode>(news.failed().code()), news.failed().message())});
  } else if (news.has_leaving()) {
    life->is_told = life->leaves = true;
    life->no_keeper_until_ns = world_.now_ns() + news.leaving().within_ns() + 120 * kSecondNs;
    Take(life, agent::NodeLeaves{news.leaving().within_ns()});
  } else if (news.has_listed() && life->list.has_value()) {
    if (!life->is_told && std::exchange(life->leaves, false)) {
      Take(life, agent::NodeLeaves{});
    }
    agent::KeeperListed listed = *std::move(life->list);
    life->list.reset();
    Take(life, std::move(listed));
    not_begun_.clear();
  }
}

}  // namespace geopipe::simulation
