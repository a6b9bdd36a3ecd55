#include "tests/simulation/world.h"

namespace geopipe::simulation {

void World::In(int64_t delay_ns, const ProcessPtr& process, std::function<void()> act) {
  In(delay_ns, [this, process, act = std::move(act)] { Enter(process, act); });
}

void World::Enter(const ProcessPtr& process, const std::function<void()>& act) {
  if (!process->alive) {
    return;
  }
  if (process->paused) {
    process->waiting.push_back(act);
    return;
  }
  try {
    act();
  } catch (const Crashed&) {
    Kill(process);
  }
}

void World::RunUntil(int64_t at_ns) {
  while (!queue_.empty() && queue_.top().at_ns <= at_ns && broken_.empty()) {
    // The queue gives its top away as const alone; it is removed right after.
    Event event = std::move(const_cast<Event&>(queue_.top()));  // NOLINT(cppcoreguidelines-pro-type-const-cast)
    queue_.pop();
    now_ns_ = std::max(now_ns_, event.at_ns);
    event.act();
  }
  if (broken_.empty()) {
    now_ns_ = std::max(now_ns_, at_ns);
  }
}

void World::Kill(const ProcessPtr& process) {
  if (!process->alive) {
    return;
  }
  Trace("{} dies", process->name);
  process->alive = false;
  process->waiting.clear();
  if (const std::function<void()> on_death = std::exchange(process->on_death, nullptr)) {
    on_death();
  }
}

void World::Pause(const ProcessPtr& process) {
  if (process->alive && !process->paused) {
    Trace("{} is stopped", process->name);
    process->paused = true;
    process->paused_ns = now_ns_;
  }
}

void World::Resume(const ProcessPtr& process) {
  if (!process->alive || !process->paused) {
    return;
  }
  Trace("{} goes on", process->name);
  process->paused = false;
  while (!process->waiting.empty()) {
    In(0, process, std::move(process->waiting.front()));
    process->waiting.pop_front();
  }
}

}  // namespace geopipe::simulation
