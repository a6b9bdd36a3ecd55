// In-order queues of work that one thread runs one piece at a time, in an order drawn from a seed: at some seed, any
// order that the events between the queues allow. Work whose dependency was forgotten gives other results at some seed.
// Work also comes late: the thread runs a queue's head only when somebody waits, or (unless that is ruled out) when
// nothing was enqueued for a moment.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

namespace geopipe {

// Thread-safe. Its own clock, `modelled`, counts the durations that work is given, as if queues ran at the same time
// and the host took no time but where it waits.
class SeededQueues {
 public:
  // A point in a queue: happens when all work before it has been done.
  class Event {
   public:
    bool happened() const;
    // REQUIRES: happened(). Times of the monotonic clock, and of the modelled one.
    int64_t real_ns() const;
    int64_t modelled_ns() const;

   private:
    friend class SeededQueues;
    mutable std::mutex mutex_;
    bool happened_ = false;
    int64_t real_ns_ = 0;
    int64_t modelled_ns_ = 0;
  };
  using EventPtr = std::shared_ptr<const Event>;

  SeededQueues(uint64_t seed, int queues);
  SeededQueues(const SeededQueues&) = delete;
  SeededQueues& operator=(const SeededQueues&) = delete;
  // Does what can be done; work behind a held queue is dropped.
  ~SeededQueues();

  // Appends work that takes `duration_ns` of modelled time. It runs on the queues' thread and must not wait for them.
  void Enqueue(int queue, std::function<void()> work, int64_t duration_ns = 0);
  EventPtr Record(int queue);
  // The same with an event of the caller's, which happens right after `work`.
  void Record(int queue, std::shared_ptr<Event> event, std::function<void()> work);
  // Makes later work of the queue wait for the event.
  void WaitFor(int queue, EventPtr event);
  // Waits until the event has happened; false: it has not by `deadline_ns` (monotonic).
  bool Await(const EventPtr& event, int64_t deadline_ns);
  // Makes the thread run what it can until nothing is left, or all is held back; for those who look but do not wait.
  void Hurry();

  // Lets work run only while somebody waits from now on, so that a seed always gives the same order.
  void RunOnlyWhenAwaited();

  // Stops a queue at its present end, as a kernel does that never ends; Release lets it go on.
  void Hold(int queue);
  void Release(int queue);

  // Pieces of work not done yet.
  int64_t pending() const;
  // Modelled time at which all that was done so far was over.
  int64_t modelled_ns() const;

 private:
  struct Item {
    std::function<void()> work;  // empty: a wait or a hold
    EventPtr awaited;            // null: none
    std::shared_ptr<Event> recorded = nullptr;
    int64_t duration_ns = 0;
    int64_t from_ns = 0;  // modelled: the host gave it then
    bool holds = false;
  };
  struct Line {
    std::deque<Item> items;
    int64_t free_ns = 0;  // modelled
    double weight = 1;    // of the draw, for a while
    bool released = false;
  };

  void Append(int queue, Item item);
  void Run();
  // A queue whose head can run; -1: none.
  int Draw();
  bool CanRun(const Line& line) const;
  void RunHead(std::unique_lock<std::mutex>& lock, Line& line);

  mutable std::mutex mutex_;
  std::condition_variable changed_;   // for the thread
  std::condition_variable happened_;  // for those who wait
  std::mt19937_64 random_;
  std::vector<Line> lines_;
  int64_t pending_ = 0;
  int64_t appended_ = 0;   // ever
  int64_t quiet_at_ = 0;   // appended_, when nothing had been enqueued for a moment
  int64_t host_ns_ = 0;    // modelled: what the host has waited for was over
  int64_t latest_ns_ = 0;  // modelled
  int draws_left_ = 0;     // with the present weights
  int waiting_ = 0;
  bool hurries_ = false;
  bool only_awaited_ = false;
  bool busy_ = false;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace geopipe
