#include "tests/support/seeded_queues.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "optimizer/base/check.h"
#include "runtime/base/clock.h"

namespace geopipe {
namespace {

// Time without new work after which the thread begins by itself.
constexpr auto kMoment = std::chrono::milliseconds(1);
// A queue is starved or hurried for 1 to so many draws, of powers of two.
constexpr int kMaxMoodBits = 12;
constexpr std::array<double, 3> kMoods{0.01, 0.3, 1.0};

}  // namespace

bool SeededQueues::Event::happened() const {
  const std::lock_guard lock(mutex_);
  return happened_;
}

int64_t SeededQueues::Event::real_ns() const {
  const std::lock_guard lock(mutex_);
  GP_CHECK(happened_);
  return real_ns_;
}

int64_t SeededQueues::Event::modelled_ns() const {
  const std::lock_guard lock(mutex_);
  GP_CHECK(happened_);
  return modelled_ns_;
}

SeededQueues::SeededQueues(uint64_t seed, int queues)
    : random_(seed), lines_(static_cast<size_t>(queues)), thread_([this] { Run(); }) {}

SeededQueues::~SeededQueues() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void SeededQueues::Append(int queue, Item item) {
  const std::lock_guard lock(mutex_);
  item.from_ns = host_ns_;
  lines_.at(static_cast<size_t>(queue)).items.push_back(std::move(item));
  ++pending_;
  ++appended_;
  changed_.notify_all();
}

void SeededQueues::Enqueue(int queue, std::function<void()> work, int64_t duration_ns) {
  Append(queue, {.work = std::move(work), .awaited = nullptr, .duration_ns = duration_ns});
}

SeededQueues::EventPtr SeededQueues::Record(int queue) {
  auto event = std::make_shared<Event>();
  Record(queue, event, nullptr);
  return event;
}

void SeededQueues::Record(int queue, std::shared_ptr<Event> event, std::function<void()> work) {
  Append(queue, {.work = std::move(work), .awaited = nullptr, .recorded = std::move(event)});
}

void SeededQueues::WaitFor(int queue, EventPtr event) { Append(queue, {.work = nullptr, .awaited = std::move(event)}); }

void SeededQueues::RunOnlyWhenAwaited() {
  const std::lock_guard lock(mutex_);
  only_awaited_ = true;
}

void SeededQueues::Hold(int queue) { Append(queue, {.work = nullptr, .awaited = nullptr, .holds = true}); }

void SeededQueues::Release(int queue) {
  const std::lock_guard lock(mutex_);
  lines_.at(static_cast<size_t>(queue)).released = true;
  changed_.notify_all();
}

bool SeededQueues::Await(const EventPtr& event, int64_t deadline_ns) {
  const std::chrono::steady_clock::time_point deadline{std::chrono::nanoseconds(deadline_ns)};
  std::unique_lock lock(mutex_);
  ++waiting_;
  changed_.notify_all();
  const bool happened = happened_.wait_until(lock, deadline, [&] { return event->happened(); });
  --waiting_;
  if (happened) {
    host_ns_ = std::max(host_ns_, event->modelled_ns());
  }
  return happened;
}

void SeededQueues::Hurry() {
  const std::lock_guard lock(mutex_);
  hurries_ = true;
  changed_.notify_all();
}

int64_t SeededQueues::pending() const {
  const std::lock_guard lock(mutex_);
  return pending_;
}

int64_t SeededQueues::modelled_ns() const {
  const std::lock_guard lock(mutex_);
  return latest_ns_;
}

bool SeededQueues::CanRun(const Line& line) const {
  if (line.items.empty()) {
    return false;
  }
  const Item& head = line.items.front();
  return (head.awaited == nullptr || head.awaited->happened()) && (!head.holds || line.released);
}

int SeededQueues::Draw() {
  if (--draws_left_ < 0) {
    draws_left_ = 1 << (random_() % kMaxMoodBits);
    for (Line& line : lines_) {
      line.weight = kMoods.at(random_() % kMoods.size());
    }
  }
  double sum = 0;
  for (const Line& line : lines_) {
    sum += CanRun(line) ? line.weight : 0;
  }
  if (sum == 0) {
    return -1;
  }
  double left = sum * (static_cast<double>(random_() >> 11) * 0x1p-53);
  int drawn = -1;
  for (size_t i = 0; i < lines_.size(); ++i) {
    if (CanRun(lines_[i])) {
      drawn = static_cast<int>(i);
      left -= lines_[i].weight;
      if (left < 0) {
        break;
      }
    }
  }
  return drawn;
}

void SeededQueues::RunHead(std::unique_lock<std::mutex>& lock, Line& line) {
  Item item = std::move(line.items.front());
  line.items.pop_front();
  busy_ = true;
  lock.unlock();
  if (item.work) {
    item.work();
    item.work = nullptr;  // what it holds is freed outside the lock
  }
  lock.lock();
  busy_ = false;
  --pending_;
  line.free_ns = std::max(line.free_ns, item.from_ns);
  if (item.awaited != nullptr) {
    line.free_ns = std::max(line.free_ns, item.awaited->modelled_ns());
  }
  line.free_ns += item.duration_ns;
  latest_ns_ = std::max(latest_ns_, line.free_ns);
  line.released = line.released && !item.holds;
  if (item.recorded != nullptr) {
    {
      const std::lock_guard event_lock(item.recorded->mutex_);
      item.recorded->happened_ = true;
      item.recorded->real_ns_ = Clock::Real().NowNs();
      item.recorded->modelled_ns_ = line.free_ns;
    }
    happened_.notify_all();
  }
}

void SeededQueues::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return closing_ || (pending_ > 0 && (!only_awaited_ || waiting_ > 0 || hurries_)); });
    // Lets more be enqueued, which widens the choice.
    while (waiting_ == 0 && !hurries_ && !closing_ && quiet_at_ != appended_) {
      quiet_at_ = appended_;
      changed_.wait_for(lock, kMoment,
                        [this] { return waiting_ > 0 || hurries_ || closing_ || quiet_at_ != appended_; });
    }
    const int drawn = Draw();
    if (drawn >= 0) {
      RunHead(lock, lines_[static_cast<size_t>(drawn)]);
      continue;
    }
    hurries_ = false;
    if (closing_) {
      return;
    }
    // The thread waits until a queue is released or given more: events happen on this thread alone.
    const int64_t seen = appended_;
    changed_.wait(lock, [&] {
      return closing_ || appended_ != seen ||
             std::ranges::any_of(lines_, [this](const Line& line) { return CanRun(line); });
    });
  }
}

}  // namespace geopipe
