#include "runtime/checkpoint/exchange/checkpoint_fetcher.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/backoff.h"

namespace geopipe {
namespace {

constexpr int64_t kFirstRestNs = 20'000'000;
constexpr int64_t kMaxRestNs = 1'000'000'000;
constexpr int64_t kConnectLimitNs = 5'000'000'000;
constexpr int64_t kGivenUpLimitNs = 500'000'000;  // to connect, and for a word
constexpr int32_t kMaxBreaks = 100;               // of the connection, in one file
// Receive buffer of a fetch that must not delay other traffic: few bytes that the source has sent wait for this end.
constexpr int kSlowReceiveBytes = 64 * 1024;

// True when asking the same source again may help: one that has another secret may be about to be told a new one.
bool MayPass(const absl::Status& status) { return absl::IsUnavailable(status) || absl::IsUnauthenticated(status); }

// True when the source has answered that it does not have the file intact.
bool HasAnswered(const absl::Status& status) {
  return absl::IsNotFound(status) || absl::IsDataLoss(status) || absl::IsFailedPrecondition(status);
}

int64_t RealNowNs() { return Clock::Real().NowNs(); }

}  // namespace

CheckpointFetcher::CheckpointFetcher(FetchOptions options)
    : options_(std::move(options)),
      jitter_(options_.seed),
      limit_(options_.bytes_per_second),
      room_(static_cast<size_t>(kExchangePieceBytes)) {
  GP_CHECK(options_.clock != nullptr && options_.stop != nullptr);
}

std::string CheckpointFetcher::senders() const {
  std::vector<std::string> each;
  for (const auto& [site, files] : sent_) {
    each.push_back(fmt::format("{} ({} file{})", site, files, files == 1 ? "" : "s"));
  }
  return fmt::format("{}", fmt::join(each, ", "));
}

absl::Status CheckpointFetcher::FetchFile(std::span<const ExchangeSource> sources, int64_t iteration,
                                          const FileEntry& entry, const std::string& folder) {
  ArrivingFile arrival(folder, entry);
  return Fetch(sources, iteration, arrival);
}

absl::Status CheckpointFetcher::FetchManifest(std::span<const ExchangeSource> sources, const CheckpointIdentity& wanted,
                                              const std::string& folder) {
  ArrivingManifest arrival(folder, wanted);
  return Fetch(sources, wanted.iteration, arrival);
}

absl::Status CheckpointFetcher::Fetch(std::span<const ExchangeSource> sources, int64_t iteration,
                                      FileArrival& arrival) {
  const int64_t patient_until_ns = options_.clock->NowNs() + options_.patience_ns;
  std::vector<absl::Status> verdicts(sources.size(), absl::UnavailableError("it was not asked"));
  for (int32_t round = 1;; ++round) {
    bool is_worth_waiting = false;
    for (size_t i = 0; i < sources.size(); ++i) {
      if (round > 1 && (!MayPass(verdicts[i]) || given_up_.contains(sources[i].address))) {
        continue;
      }
      verdicts[i] = FetchFrom(sources[i], iteration, arrival);
      if (verdicts[i].ok()) {
        ++files_;
        bytes_ += arrival.received();
        ++sent_[sources[i].site];
        given_up_.erase(sources[i].address);
        return absl::OkStatus();
      }
      if (arrival.failed_here() || absl::IsCancelled(verdicts[i])) {
        return verdicts[i];
      }
      if (absl::IsDeadlineExceeded(verdicts[i])) {
        given_up_.insert(sources[i].address);
      }
      is_worth_waiting = is_worth_waiting || (MayPass(verdicts[i]) && !given_up_.contains(sources[i].address));
    }
    if (!is_worth_waiting || options_.clock->NowNs() >= patient_until_ns) {
      break;
    }
    Rest(round);
  }
  for (size_t i = 0; i < sources.size(); ++i) {
    if (MayPass(verdicts[i])) {
      given_up_.insert(sources[i].address);
    }
  }
  return NoSource(sources, verdicts, iteration, arrival.name());
}

absl::Status CheckpointFetcher::NoSource(std::span<const ExchangeSource> sources,
                                         std::span<const absl::Status> verdicts, int64_t iteration,
                                         const std::string& name) const {
  std::vector<std::string> reasons;
  bool all_answered = true;
  for (size_t i = 0; i < sources.size(); ++i) {
    all_answered = all_answered && HasAnswered(verdicts[i]);
    reasons.push_back(
        fmt::format("{} at {}: {}", sources[i].site, sources[i].address, std::string(verdicts[i].message())));
  }
  std::string message = fmt::format("{} of the checkpoint before iteration {} cannot be fetched ({}); {}", name,
                                    iteration, fmt::join(reasons, "; "),
                                    all_answered ? "copy the file from a node that has it or choose another checkpoint"
                                                 : "check the network between the sites, and the nodes that have it");
  return all_answered ? absl::DataLossError(message) : absl::UnavailableError(message);
}

// Fetches the whole file, over as many connections as that takes.
absl::Status CheckpointFetcher::FetchFrom(const ExchangeSource& source, int64_t iteration, FileArrival& arrival) {
  arrival.Restart();
  int64_t moved_at_ns = options_.clock->NowNs();
  int32_t breaks_in_a_row = 0;
  for (int32_t breaks = 0; breaks < kMaxBreaks; ++breaks) {
    const int64_t before = arrival.received();
    absl::Status status = Resume(source, iteration, arrival);
    if (status.ok()) {
      return arrival.Finish();
    }
    if (!MayPass(status) || arrival.failed_here() || arrival.received() == 0) {
      return status;
    }
    const int64_t now_ns = options_.clock->NowNs();
    const bool moved = arrival.received() > before;
    moved_at_ns = moved ? now_ns : moved_at_ns;
    breaks_in_a_row = moved ? 1 : breaks_in_a_row + 1;
    if (now_ns - moved_at_ns >= options_.stall_ns) {
      return absl::DeadlineExceededError(
          fmt::format("nothing came for {} s ({})", options_.stall_ns / 1'000'000'000, std::string(status.message())));
    }
    Rest(breaks_in_a_row);
    if (options_.stop->is_set()) {
      return absl::CancelledError("stopped");
    }
  }
  return absl::DeadlineExceededError(fmt::format("the connection broke {} times", kMaxBreaks));
}

// Makes one request, on the open connection or a new one. An error in the middle of an answer closes the connection.
absl::Status CheckpointFetcher::Resume(const ExchangeSource& source, int64_t iteration, FileArrival& arrival) {
  const auto ask = [&]() -> absl::Status {
    GP_RETURN_IF_ERROR(Connect(source));
    const FileRequest request{.iteration = iteration, .offset = arrival.received(), .name = arrival.name()};
    GP_RETURN_IF_ERROR(SendMessage(stream_, request, RealNowNs() + StallNs(source)));
    GP_ASSIGN_OR_RETURN(const FileAnswer answer, ReceiveAnswer(stream_, RealNowNs() + StallNs(source)));
    if (answer.verdict != FileVerdict::kSent) {
      return ReceiveText(answer);
    }
    GP_RETURN_IF_ERROR(arrival.Expect(arrival.received() + answer.bytes));
    return Receive(answer.bytes, arrival);
  };
  absl::Status status = ask();
  if (!status.ok() && !absl::IsNotFound(status)) {
    stream_ = TcpStream();
  }
  return status;
}

absl::Status CheckpointFetcher::ReceiveText(const FileAnswer& answer) {
  std::string text(static_cast<size_t>(answer.bytes), '\0');
  GP_RETURN_IF_ERROR(stream_.Receive(std::as_writable_bytes(std::span(text)), RealNowNs() + options_.stall_ns));
  switch (answer.verdict) {
    case FileVerdict::kNotFound:
      return absl::NotFoundError(text);
    case FileVerdict::kUnavailable:
      return absl::UnavailableError(text);
    default:
      return absl::FailedPreconditionError(text);
  }
}

absl::Status CheckpointFetcher::Receive(int64_t bytes, FileArrival& arrival) {
  while (bytes > 0) {
    const std::span<std::byte> room =
        std::span(room_).first(static_cast<size_t>(std::min(bytes, static_cast<int64_t>(room_.size()))));
    GP_ASSIGN_OR_RETURN(const size_t got, stream_.ReceiveSome(room, RealNowNs() + options_.stall_ns));
    GP_RETURN_IF_ERROR(arrival.Write(room.first(got)));
    bytes -= static_cast<int64_t>(got);
    options_.clock->SleepUntilNs(limit_.Take(options_.clock->NowNs(), static_cast<int64_t>(got)));
  }
  return absl::OkStatus();
}

absl::Status CheckpointFetcher::Connect(const ExchangeSource& source) {
  if (stream_.valid() && connected_to_ == source.address) {
    return absl::OkStatus();
  }
  const bool is_slow = options_.bytes_per_second > 0;
  const int64_t connect_limit_ns = std::min(kConnectLimitNs, StallNs(source));
  absl::StatusOr<TcpStream> stream = TcpStream::Connect(source.address, RealNowNs() + connect_limit_ns, *options_.stop,
                                                        is_slow ? kSlowReceiveBytes : 0);
  if (absl::IsDeadlineExceeded(stream.status())) {
    return absl::DeadlineExceededError("it does not answer");
  }
  GP_RETURN_IF_ERROR(stream.status());
  const int64_t deadline_ns = RealNowNs() + StallNs(source);
  const ExchangeGreeting greeting{.nonce = FreshNonce(), .site = options_.site};
  GP_RETURN_IF_ERROR(SendMessage(*stream, greeting, deadline_ns));
  GP_ASSIGN_OR_RETURN(const ExchangeChallenge challenge, ReceiveChallenge(*stream, deadline_ns));
  if (!SameProof(challenge.proof, ExchangeProof(options_.secret, ExchangeSide::kServer, greeting, challenge.nonce))) {
    return absl::UnauthenticatedError("it does not know the run's secret");
  }
  const Proof proof = ExchangeProof(options_.secret, ExchangeSide::kClient, greeting, challenge.nonce);
  GP_RETURN_IF_ERROR(stream->Send(proof, deadline_ns));
  stream_ = *std::move(stream);
  connected_to_ = source.address;
  return absl::OkStatus();
}

int64_t CheckpointFetcher::StallNs(const ExchangeSource& source) const {
  return given_up_.contains(source.address) ? std::min(kGivenUpLimitNs, options_.stall_ns) : options_.stall_ns;
}

void CheckpointFetcher::Rest(int32_t failures) {
  options_.clock->SleepUntilNs(options_.clock->NowNs() + BackoffNs(kFirstRestNs, kMaxRestNs, failures, jitter_));
}

}  // namespace geopipe
