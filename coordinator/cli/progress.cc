#include "coordinator/cli/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include "coordinator/cli/render/format.h"
#include "optimizer/base/quantities.h"
#include "runtime/base/clock.h"
#include "runtime/base/output.h"
#include "runtime/base/terminal.h"
#include "runtime/base/wrap.h"

namespace geopipe {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kFirstNs = kSecond;  // into a piece of work
constexpr int64_t kEveryOnTerminalNs = kSecond / 4;
constexpr int64_t kEveryInLogNs = 10 * kSecond;
constexpr std::string_view kEraseLine = "\r\x1b[K";

// The first `columns` characters.
std::string_view Cut(std::string_view text, int32_t columns) {
  size_t end = text.size();
  while (DisplayWidth(text.substr(0, end)) > columns) {
    --end;
  }
  return text.substr(0, end);
}

// Standard error may be closed or full; that is no reason to stop.
void WriteToError(std::string_view text) {
  if (!text.empty()) {
    WriteTo(stderr, text);
  }
}

}  // namespace

std::string ProgressText(const Progress& progress, int64_t elapsed_ns) {
  std::string text = progress.what + ":";
  if (progress.total > 0) {
    const int64_t points = progress.points > 0 ? progress.points : progress.total;
    const int64_t done = std::clamp<int64_t>(progress.done, 0, progress.total);
    text += fmt::format(" {} of {} points", HumanCount(done * points / progress.total), HumanCount(points));
    if (done > 0) {
      const double left = static_cast<double>(elapsed_ns) * Ratio(progress.total - done, done);
      text += fmt::format(", about {} left", HumanAge(static_cast<int64_t>(std::min(left, 9e18))));
    } else {
      text += fmt::format(", {}", HumanAge(elapsed_ns));
    }
  } else {
    text += fmt::format(" {}", HumanAge(elapsed_ns));
  }
  if (progress.limit_ns > 0) {
    text += fmt::format(" of at most {}", HumanAge(progress.limit_ns));
  }
  if (progress.evaluations > 0) {
    text += fmt::format(", {} evaluations", HumanCount(progress.evaluations));
  }
  if (progress.best_ns > 0) {
    text += fmt::format(", best {}", HumanDuration(progress.best_ns));
  }
  return text;
}

void ProgressPacer::Begin(int64_t now_ns) {
  begun_ns_ = now_ns;
  if (columns_ > 0) {
    next_ns_ = now_ns + (shown_ ? 0 : kFirstNs);
  } else {  // a log is not written to more often for many short pieces, and not less
    next_ns_ = next_ns_ == 0 ? now_ns + kEveryInLogNs : std::max(next_ns_, now_ns + kFirstNs);
  }
}

std::string ProgressPacer::At(int64_t now_ns, const Progress& progress) {
  if (now_ns < next_ns_) {
    return "";
  }
  const std::string text = ProgressText(progress, now_ns - begun_ns_);
  if (columns_ == 0) {
    next_ns_ = now_ns + kEveryInLogNs;
    return text + "\n";
  }
  next_ns_ = now_ns + kEveryOnTerminalNs;
  shown_ = true;
  // A character in the last column would make some terminals begin another line.
  return fmt::format("{}{}", kEraseLine, Cut(text, columns_ - 1));
}

std::string ProgressPacer::End() { return std::exchange(shown_, false) ? std::string(kEraseLine) : ""; }

ProgressMeter::ProgressMeter() : pacer_(ErrorTakesControl() ? TerminalColumns() : 0), thread_([this] { Run(); }) {}

ProgressMeter::~ProgressMeter() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_one();
  thread_.join();
  WriteToError(pacer_.End());
}

void ProgressMeter::Begin(Progress progress) {
  {
    const std::lock_guard lock(mutex_);
    progress_ = std::move(progress);
    pacer_.Begin(Clock::Real().NowNs());
  }
  changed_.notify_one();
}

void ProgressMeter::Searched(int64_t evaluations, int64_t best_ns) {
  const std::lock_guard lock(mutex_);
  progress_.evaluations = evaluations;
  progress_.best_ns = best_ns;
}

void ProgressMeter::Did(int64_t done, int64_t total) {
  const std::lock_guard lock(mutex_);
  progress_.done = done;
  progress_.total = total;
}

void ProgressMeter::End() {
  const std::lock_guard lock(mutex_);
  progress_ = {};
  WriteToError(pacer_.End());
}

void ProgressMeter::Run() {
  std::unique_lock lock(mutex_);
  while (!ends_) {
    if (progress_.what.empty()) {
      changed_.wait(lock);
      continue;
    }
    const int64_t now_ns = Clock::Real().NowNs();
    WriteToError(pacer_.At(now_ns, progress_));
    changed_.wait_for(lock, std::chrono::nanoseconds(std::max<int64_t>(pacer_.next_ns() - now_ns, 0)));
  }
}

}  // namespace geopipe
