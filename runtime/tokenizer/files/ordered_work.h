// Work that several threads share, with its results in the order in which it came.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

namespace geopipe {

// Passes pieces from one thread that makes them to several that work, and their results, in order, to one that takes
// them. At most `limit` pieces are between the first and the last, so no thread runs far ahead. Thread-safe.
template <class Piece, class Result>
class OrderedWork {
 public:
  explicit OrderedWork(int64_t limit) : limit_(limit) {}

  // Waits for room. False: stopped.
  bool Put(Piece piece) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stopped_ || put_ - taken_ < limit_; });
    if (stopped_) {
      return false;
    }
    waiting_.emplace_back(put_++, std::move(piece));
    results_.emplace_back();
    changed_.notify_all();
    return true;
  }

  // Says that no more pieces come.
  void Close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }

  // Ends all waiting; what is under way is lost.
  void Stop() {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
  }

  // Waits for a piece to work on, with its number. Absent: there are no more.
  std::optional<std::pair<int64_t, Piece>> Get() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stopped_ || closed_ || !waiting_.empty(); });
    if (stopped_ || waiting_.empty()) {
      return std::nullopt;
    }
    std::pair<int64_t, Piece> piece = std::move(waiting_.front());
    waiting_.pop_front();
    return piece;
  }

  // Gives the result of the piece with this number.
  void Finish(int64_t number, Result result) {
    const std::lock_guard lock(mutex_);
    results_[static_cast<size_t>(number - taken_)] = std::move(result);
    changed_.notify_all();
  }

  // Waits for the next result. Absent: there are no more.
  std::optional<Result> Take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stopped_ || (results_.empty() ? closed_ : results_.front().has_value()); });
    if (stopped_ || results_.empty()) {
      return std::nullopt;
    }
    std::optional<Result> result = std::move(results_.front());
    results_.pop_front();
    ++taken_;
    changed_.notify_all();
    return result;
  }

 private:
  const int64_t limit_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<int64_t, Piece>> waiting_;  // guarded by mutex_, as all below
  std::deque<std::optional<Result>> results_;      // of pieces taken_ and on
  int64_t put_ = 0;
  int64_t taken_ = 0;
  bool closed_ = false;
  bool stopped_ = false;
};

}  // namespace geopipe
