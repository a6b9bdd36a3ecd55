// The node's keeper, and the ends of its workers.
#include <algorithm>
#include <csignal>
#include <utility>

#include "tests/simulation/node.h"

namespace geopipe::simulation {

void Node::StartKeeper() {
  keeper_ = std::make_shared<KeeperLife>(world_.now_ns(), table_);
  const std::shared_ptr<KeeperLife> life = keeper_;
  life->process->name = fmt::format("keeper {}", config_.site);
  world_.Trace("{} starts", life->process->name);
  life->process->on_death = [this, keeper = life.get()] {
    // A worker that was not released yet has not begun, and never does. Of one that is in the table the next keeper
    // finds that it has ended, and cannot tell how; only an agent that ordered it knows that it is to be started again.
    for (const auto& [pid, worker] : workers_) {
      if (worker->begun() || !worker->process()->alive) {
        continue;
      }
      if (std::ranges::find(table_.running(), pid, &v1::KeptWorker::pid) != table_.running().end()) {
        not_begun_.insert(worker->id().job());
      }
      worker->Kill();
    }
    LoseMemory(*keeper);
    if (table_is_stale_) {  // the next keeper does not know of a worker, or of an end
      for (const auto& [pid, worker] : workers_) {
        ledger_.Excuse(worker->id().job(), "a keeper dies, and its table is out of date");
      }
      for (const v1::KeptWorker& child : table_.running()) {
        ledger_.Excuse(child.worker().job(), "a keeper dies, and its table is out of date");
      }
    }
    if (agent_ == nullptr || !agent_->process->alive) {
      ExcuseNotBegun();
    }
    if (agent_ != nullptr && agent_->process->alive) {
      world_.In(100 * kMillisecondNs, agent_->process, [this, agent = agent_] { FindKeeper(agent); });
    }
  };
  std::map<int32_t, v1::KeptWorker> running = life->core.running();
  world_.In(0, life->process, [this, life, running = std::move(running)] {
    for (const auto& [device, child] : running) {
      const auto found = workers_.find(child.pid());
      if (table_boot_ != boot_ || found == workers_.end() || !found->second->process()->alive) {
        if (found != workers_.end()) {  // nobody held its memory
          ledger_.LoseMemory(found->second->trainer().memory()->run);
          workers_.erase(found);
        }
        Take(life, agent::MemoryLost{{device, child.worker().incarnation()}});
        Take(life, agent::ChildEnded{{device, child.worker().incarnation()}, agent::kUnknownExitCode, 0, ""});
      } else {
        life->memory[device] = found->second->trainer().memory();
      }
    }
    Take(life, agent::Tick{});
  });
}

void Node::ExcuseNotBegun() {
  for (const std::string& job : std::exchange(not_begun_, {})) {
    ledger_.Excuse(job, "a keeper dies between the table and the release of a worker, and the agent dies, too");
  }
}

void Node::Take(const std::shared_ptr<KeeperLife>& life, agent::KeeperEvent event) {
  life->events.push_back(std::move(event));
  while (!life->events.empty()) {
    event = std::move(life->events.front());
    life->events.pop_front();
    if (const auto* connected = std::get_if<agent::AgentConnected>(&event)) {
      life->agent = connected->connection;
    }
    agent::KeeperEffects effects = life->core.Step(world_.now_ns(), std::move(event));
    for (agent::KeeperEffect& effect : effects) {
      life->process->BeforeEffect();
      std::visit([&](auto& each) { Carry(*life, each); }, effect);
      if (!life->process->alive) {
        return;
      }
    }
  }
  Look(life);
}

void Node::Look(const std::shared_ptr<KeeperLife>& life) {
  if (life->core.next_deadline_ns() < world_.now_ns() + 3600 * kSecondNs) {
    world_.In(std::max<int64_t>(life->core.next_deadline_ns() - world_.now_ns(), kMillisecondNs), life->process,
              [this, life] {
                if (world_.now_ns() >= life->core.next_deadline_ns()) {
                  Take(life, agent::Tick{});
                }
              });
  }
}

void Node::Carry(KeeperLife& life, agent::Spawn& effect) {
  const int64_t pid = next_pid_++;
  const v1::WorkerId& id = effect.start.worker();
  for (const auto& [other, worker] : workers_) {
    if (worker->process()->alive && worker->id().device() == id.device()) {
      world_.Break(fmt::format("{} is started beside {}", fmt::format("worker {:x}", id.incarnation()),
                               worker->process()->name));
    }
  }
  for (const std::shared_ptr<Worker>& stray : strays_) {
    // A coordinator that its agent has never told of it cannot know of it.
    if (stray->process()->alive && stray->id().device() == id.device() &&
        coordinator_.started_ns() <= stray->told_ns_) {
      world_.Break(fmt::format("{} is started beside {}, which no agent knows",
                               fmt::format("worker {:x}", id.incarnation()), stray->process()->name));
    }
  }
  std::shared_ptr<KeptMemory>& memory = life.memory[id.device()];
  if (!effect.hands_memory_on || memory == nullptr) {
    if (memory != nullptr) {
      ledger_.LoseMemory(memory->run);
    }
    memory = std::make_shared<KeptMemory>();
  }
  const auto worker = std::make_shared<Worker>(*this, id, pid, memory);
  worker->process()->on_death = [this, raw = worker.get()] { OnWorkerDeath(*raw); };
  workers_[pid] = worker;
  v1::KeptWorker child;
  *child.mutable_worker() = id;
  child.set_pid(pid);
  child.set_memory_fd(effect.start.takes_memory() ? 3 : 0);
  life.events.emplace_back(agent::ChildStarted{std::move(child)});
}

// Agents hold no memory here.
void Node::Carry(KeeperLife& life, agent::TakeMemory& effect) {
  life.events.emplace_back(agent::MemoryGone{effect.device});
}

void Node::Carry(KeeperLife& life, agent::DropMemory& effect) {
  if (const auto found = life.memory.find(effect.device); found != life.memory.end()) {
    ledger_.LoseMemory(found->second->run);
    life.memory.erase(found);
  }
}

void Node::LoseMemory(const KeeperLife& life) {
  for (const auto& [device, memory] : life.memory) {
    const bool held = std::ranges::any_of(workers_, [&](const auto& entry) {
      return entry.second->process()->alive && entry.second->trainer().memory() == memory;
    });
    if (!held) {
      ledger_.LoseMemory(memory->run);
    }
  }
}

void Node::Carry(KeeperLife& life, agent::ReleaseChild& effect) {
  const auto at = workers_.find(life.core.running().at(effect.worker.device).pid());
  if (table_is_stale_ || starts_fail) {
    const std::shared_ptr<Worker> worker = at->second;
    workers_.erase(at);
    worker->Kill();
    ledger_.Excuse(worker->id().job(), "a worker cannot be started");
    life.events.emplace_back(
        agent::ChildFailed{worker->id(), starts_fail ? absl::UnavailableError("Resource temporarily unavailable")
                                                     : absl::ResourceExhaustedError("the disk is full")});
    return;
  }
  at->second->Begin();
  life.events.emplace_back(agent::ChildReleased{effect.worker});
}

void Node::Carry(KeeperLife& /*life*/, agent::SignalChild& effect) {
  const std::shared_ptr<Worker> worker = FindWorker(effect.worker.device, effect.worker.incarnation);
  if (worker == nullptr) {
    return;
  }
  if (effect.signal == SIGKILL || !worker->begun()) {
    worker->Kill();
  } else if (effect.signal == SIGTERM) {
    world_.In(0, worker->process(), [worker] { worker->Take(ShutdownRequested{"SIGTERM"}); });
  }
}

void Node::Carry(KeeperLife& life, agent::TellAgent& effect) {
  if (effect.connection != life.agent || agent_ == nullptr) {
    return;
  }
  world_.In(kLocalNs, agent_->process,
            [this, agent = agent_, connection = effect.connection, news = std::move(effect.news)] {
              if (agent->keeper_connection == connection) {
                OnNews(agent, news);
              }
            });
}

void Node::Carry(KeeperLife& /*life*/, agent::SaveTable& effect) {
  table_is_stale_ = disk_full;
  if (!disk_full) {
    table_ = effect.table;
    table_boot_ = boot_;
  }
}

void Node::Carry(KeeperLife& life, agent::WriteLog& effect) { world_.Trace("{}: {}", life.process->name, effect.text); }

void Node::Carry(KeeperLife& life, agent::LeaveKeeper& effect) {
  if (effect.reason == agent::LeaveKeeper::Reason::kNobodyAsks && table_is_stale_) {
    life.events.emplace_back(agent::MustStay{});
  } else {
    world_.Kill(life.process);
  }
}

void Node::OnWorkerDeath(Worker& worker) {
  ledger_.OnGone(worker.id().job(), worker.id().incarnation());
  worker.trainer().Interrupt();
  if (agent_ != nullptr && agent_->process->alive) {
    for (const auto& [session, attachment] : agent_->attachments) {
      if (attachment->worker.lock().get() == &worker) {
        // The worker's last messages are read before the end of its stream is.
        world_.In(kLocalNs, agent_->process, [this, agent = agent_, id = session] {
          const auto found = agent->attachments.find(id);
          if (found == agent->attachments.end()) {
            return;
          }
          const std::shared_ptr<Attachment> ending = found->second;
          while (!ending->unread.empty() && agent->process->alive && agent->attachments.contains(id)) {
            ending->read_on = true;
            Read(agent, ending);
          }
          if (agent->process->alive && agent->attachments.erase(id) > 0) {
            Take(agent, agent::WorkerClosed{id});
          }
        });
      }
    }
  }
  const int64_t pid = worker.pid();
  if (keeper_ != nullptr && keeper_->process->alive) {
    world_.In(2 * kLocalNs, keeper_->process, [this, keeper = keeper_, pid] {
      const auto found = workers_.find(pid);
      if (found == workers_.end()) {
        return;
      }
      const std::shared_ptr<Worker> dead = found->second;
      workers_.erase(found);
      Take(keeper, agent::ChildEnded{{dead->id().device(), dead->id().incarnation()},
                                     dead->killed() ? 0 : dead->exit_code(),
                                     dead->killed() ? SIGKILL : 0,
                                     "last words"});
    });
  }
}

void Node::LoseState() {
  for (const auto& [pid, worker] : workers_) {
    ledger_.LoseMemory(worker->trainer().memory()->run);
  }
  if (keeper_ != nullptr) {
    LoseMemory(*keeper_);
    keeper_->process->on_death = nullptr;
    world_.Kill(keeper_->process);
    keeper_ = nullptr;
  }
  if (agent_ != nullptr) {
    world_.Kill(agent_->process);
  }
  for (const auto& [pid, worker] : std::exchange(workers_, {})) {
    if (!worker->begun() || worker->status().epoch() == 0) {  // that it was started may not be known anywhere
      worker->Kill();
    }
    if (worker->process()->alive) {
      ledger_.OnGone(worker->id().job(), worker->id().incarnation());
      worker->process()->on_death = [raw = worker.get()] { raw->trainer().Interrupt(); };
      worker->stray_ns_ = world_.now_ns();
      worker->told_ns_ = registered_ns_;
      strays_.push_back(worker);
    }
  }
  table_ = {};
  table_is_stale_ = false;
  not_begun_.clear();
  known_coordinator_ = 0;
  federation_.clear();
}

void Node::Replace() {
  Reboot();
  checkpoints_.Lose();
  ledger_.OnDiskLost();
  table_ = {};
  table_is_stale_ = false;
  not_begun_.clear();
  known_coordinator_ = 0;
  federation_.clear();
}

void Node::Leave() {
  if (keeper_ != nullptr && keeper_->process->alive) {
    world_.In(0, keeper_->process, [this, keeper = keeper_] { Take(keeper, agent::ToldToLeave{}); });
  }
}

// Everything on it dies at once; the disk stays.
void Node::Reboot() {
  ++boot_;
  if (keeper_ != nullptr) {
    LoseMemory(*keeper_);
    keeper_->process->on_death = nullptr;
    world_.Kill(keeper_->process);
  }
  if (agent_ != nullptr) {
    world_.Kill(agent_->process);
  }
  const std::map<int64_t, std::shared_ptr<Worker>> workers = std::exchange(workers_, {});
  for (const auto& [pid, worker] : workers) {
    ledger_.LoseMemory(worker->trainer().memory()->run);
    worker->Kill();
  }
  const std::vector<std::shared_ptr<Worker>> strays = std::exchange(strays_, {});
  for (const std::shared_ptr<Worker>& stray : strays) {
    stray->Kill();
  }
}

}  // namespace geopipe::simulation
