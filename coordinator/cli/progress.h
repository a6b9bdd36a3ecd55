// Shows on standard error how far long work is: on a terminal in one line that is updated, in a log by a plain line now
// and then.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace geopipe {

// State of a piece of work. Zeros are not known and not shown.
struct Progress {
  std::string what;         // "planning"
  int64_t evaluations = 0;  // candidates looked at
  int64_t best_ns = 0;      // iteration of the best plan so far
  int64_t done = 0;         // steps of `total`
  int64_t total = 0;
  int64_t points = 0;    // that people count, where a point has several steps
  int64_t limit_ns = 0;  // after which it ends at the latest
};

// "planning: 12 s, 1,834 evaluations, best 9.880 s", "sweep: 5 of 13 points, about 20 s left".
std::string ProgressText(const Progress& progress, int64_t elapsed_ns);

// Decides when something is written, and what. The time of a piece of work begins with Begin.
class ProgressPacer {
 public:
  // `columns` of the terminal; 0: it is none.
  explicit ProgressPacer(int32_t columns) : columns_(columns) {}

  // Begins the next piece of work.
  void Begin(int64_t now_ns);
  // Returns what to write now; empty: nothing.
  std::string At(int64_t now_ns, const Progress& progress);
  // Returns what to write at the end, which takes the line away.
  std::string End();
  // Earliest time at which At may have something to write.
  int64_t next_ns() const { return next_ns_; }

 private:
  const int32_t columns_;
  int64_t begun_ns_ = 0;
  int64_t next_ns_ = 0;
  bool shown_ = false;
};

// Shows the progress of what the program does, from a thread of its own that sleeps in between, until it is destroyed
// or told to end. Thread-safe.
class ProgressMeter {
 public:
  ProgressMeter();
  ~ProgressMeter();
  ProgressMeter(const ProgressMeter&) = delete;
  ProgressMeter& operator=(const ProgressMeter&) = delete;

  // Begins a piece of work; nothing is shown before the first.
  void Begin(Progress progress);
  // Reports that a search has looked at `evaluations` candidates, the best of which takes `best_ns` (0: none fits).
  void Searched(int64_t evaluations, int64_t best_ns);
  // Reports that `done` of `total` steps are done.
  void Did(int64_t done, int64_t total);
  // Takes the line away, until the next Begin.
  void End();

 private:
  void Run();

  std::mutex mutex_;
  std::condition_variable changed_;
  ProgressPacer pacer_;     // guarded by mutex_, as all below
  Progress progress_ = {};  // of the work under way; `what` is empty where there is none
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace geopipe
