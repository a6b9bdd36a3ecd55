#include "coordinator/core/run/failure.h"

#include <absl/status/status.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "runtime/base/utf8.h"

namespace geopipe {
namespace {

using Worth = FailureEvidence::Worth;

constexpr size_t kMaxQuotedBytes = 500;
constexpr int32_t kSigInt = 2;
constexpr int32_t kSigKill = 9;
constexpr int32_t kSigTerm = 15;

// Signal numbers of Linux on x86-64 and arm64, which agents run on, whatever this machine is.
std::string_view SignalName(int32_t signal) {
  static constexpr std::array<std::string_view, 32> kNames = {
      "",          "SIGHUP",  "SIGINT",    "SIGQUIT", "SIGILL",   "SIGTRAP", "SIGABRT", "SIGBUS",
      "SIGFPE",    "SIGKILL", "SIGUSR1",   "SIGSEGV", "SIGUSR2",  "SIGPIPE", "SIGALRM", "SIGTERM",
      "SIGSTKFLT", "SIGCHLD", "SIGCONT",   "SIGSTOP", "SIGTSTP",  "SIGTTIN", "SIGTTOU", "SIGURG",
      "SIGXCPU",   "SIGXFSZ", "SIGVTALRM", "SIGPROF", "SIGWINCH", "SIGIO",   "SIGPWR",  "SIGSYS"};
  return signal > 0 && signal < static_cast<int32_t>(kNames.size()) ? kNames[signal] : "a signal without a name";
}

// The last line that is not empty, shortened, so that a sentence remains one sentence.
std::string LastLine(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' ')) {
    text.remove_suffix(1);
  }
  const size_t line = text.rfind('\n');
  if (line != std::string_view::npos) {
    text.remove_prefix(line + 1);
  }
  return ToUtf8(text.substr(0, kMaxQuotedBytes));
}

}  // namespace

FailureEvidence EvidenceOf(const WorkerKey& worker, const v1::WorkerExit& exit, bool attached) {
  const std::string who = fmt::format("worker {} (site {}, pid {})", DisplayName(worker), worker.site, exit.pid());
  const std::string words = LastLine(exit.last_words());
  if (exit.not_started()) {
    return {
        .worth = Worth::kRoot,
        .sentence = fmt::format("worker {} (site {}) cannot be started: {}", DisplayName(worker), worker.site, words),
        .kind = "unfit",
        .of_node = true};
  }
  const std::string said = words.empty() ? "" : fmt::format("; its last words: {}", words);
  if (exit.signal() != 0) {
    // Last words do not explain an end that was caused from outside.
    const bool from_outside = exit.signal() == kSigKill || exit.signal() == kSigTerm || exit.signal() == kSigInt;
    const std::string_view hint =
        exit.signal() == kSigKill ? "; likely the out-of-memory killer (check dmesg) or a manual kill" : "";
    return {.worth = Worth::kRoot,
            .sentence = fmt::format("{} was killed by signal {} ({}){}{}", who, exit.signal(),
                                    SignalName(exit.signal()), hint, from_outside ? "" : said),
            .kind = "killed",
            .of_node = !attached};
  }
  const std::string how = exit.exit_code() < 0 ? "ended; its exit code is not known"  // nobody was there to be told
                                               : fmt::format("exited by itself with code {}", exit.exit_code());
  return {.worth = Worth::kUnexplained,
          .sentence = fmt::format("{} {}{}", who, how, said),
          .kind = attached ? "exited" : "unfit",
          .of_node = !attached};
}

FailureEvidence EvidenceOf(const WorkerKey& worker, const v1::FailureReport& report) {
  const auto code = static_cast<absl::StatusCode>(report.code());
  const bool broken = code == absl::StatusCode::kUnavailable || code == absl::StatusCode::kDeadlineExceeded ||
                      code == absl::StatusCode::kAborted || code == absl::StatusCode::kCancelled;
  const bool consequence = broken && !report.of_node();
  const bool bug = code == absl::StatusCode::kInternal || code == absl::StatusCode::kUnknown;
  return {.worth = consequence ? Worth::kConsequence : Worth::kRoot,
          .sentence = fmt::format("worker {} (site {}) failed: {}", DisplayName(worker), worker.site, report.message()),
          .kind = consequence ? "cut" : "failed",
          .permanent = !broken && !bug,
          .of_node = report.of_node(),
          .diverged = code == absl::StatusCode::kOutOfRange};
}

void FailureDiagnosis::Add(int64_t now_ns, FailureEvidence evidence) {
  if (!best_.has_value()) {
    since_ns_ = now_ns;
    best_ = std::move(evidence);
  } else if (evidence.worth > best_->worth) {
    best_ = std::move(evidence);
  }
}

std::optional<FailureEvidence> FailureDiagnosis::Verdict(int64_t now_ns, int64_t grace_ns, bool more_may_come) const {
  if (!best_.has_value() || (best_->worth != Worth::kRoot && (more_may_come || now_ns - since_ns_ < grace_ns))) {
    return std::nullopt;
  }
  return best_;
}

}  // namespace geopipe
