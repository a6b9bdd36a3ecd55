// Fetches files of checkpoints from the workers of other nodes (exchange_wire.h).
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "optimizer/base/splitmix64.h"
#include "optimizer/model/checkpoint_identity.h"
#include "runtime/base/clock.h"
#include "runtime/base/stop_event.h"
#include "runtime/base/tcp_stream.h"
#include "runtime/checkpoint/exchange/exchange_wire.h"
#include "runtime/checkpoint/exchange/file_arrival.h"
#include "runtime/checkpoint/exchange/rate_limit.h"
#include "runtime/checkpoint/manifest.h"

namespace geopipe {

// A worker that is asked for files.
struct ExchangeSource {
  std::string site{};
  std::string address{};  // "ip:port"

  friend bool operator==(const ExchangeSource&, const ExchangeSource&) = default;
};

struct FetchOptions {
  std::string site{};    // of this worker
  std::string secret{};  // of the run
  // Paces and waits between attempts; its sleeps end when `stop` is set. Both outlive the fetcher.
  Clock* clock = nullptr;
  const StopEvent* stop = nullptr;  // ends the fetch under way
  // Time for which a source is asked again when it is not reached, or does not serve this run yet.
  int64_t patience_ns = 12'000'000'000;
  // Longest time without a byte from a source that is reached.
  int64_t stall_ns = 30'000'000'000;
  double bytes_per_second = 0;  // at most; 0: no limit
  uint64_t seed = 1;            // of the backoff's jitter
};

// One thread. It keeps the connection to the source that it asked last.
//
// Each file is asked of one source after the other until one has it intact. A connection that breaks is made again and
// the file resumes. A file gets its name, replacing an older one, when it is whole, right and on disk.
//
// Errors name the file. DataLoss: no source has it intact; says what is wrong with each. Unavailable: the same, but a
// source that may have it could not be asked. Cancelled: stopped. Others: this node cannot write it (NewFile's).
class CheckpointFetcher {
 public:
  explicit CheckpointFetcher(FetchOptions options);

  // Fetches a file of the checkpoint before `iteration` into its folder, which exists.
  absl::Status FetchFile(std::span<const ExchangeSource> sources, int64_t iteration, const FileEntry& entry,
                         const std::string& folder);
  // Fetches its manifest, if it is of the wanted run and epoch.
  absl::Status FetchManifest(std::span<const ExchangeSource> sources, const CheckpointIdentity& wanted,
                             const std::string& folder);

  // Files and bytes fetched so far.
  int64_t files() const { return files_; }
  int64_t bytes() const { return bytes_; }
  // Their senders: "north (3 files), south (1 file)".
  std::string senders() const;

 private:
  absl::Status Fetch(std::span<const ExchangeSource> sources, int64_t iteration, FileArrival& arrival);
  absl::Status FetchFrom(const ExchangeSource& source, int64_t iteration, FileArrival& arrival);
  absl::Status Resume(const ExchangeSource& source, int64_t iteration, FileArrival& arrival);
  absl::Status Connect(const ExchangeSource& source);
  absl::Status Receive(int64_t bytes, FileArrival& arrival);
  absl::Status ReceiveText(const FileAnswer& answer);
  absl::Status NoSource(std::span<const ExchangeSource> sources, std::span<const absl::Status> verdicts,
                        int64_t iteration, const std::string& name) const;
  void Rest(int32_t failures);
  int64_t StallNs(const ExchangeSource& source) const;

  const FetchOptions options_;
  SplitMix64 jitter_;
  RateLimit limit_;
  TcpStream stream_;
  std::string connected_to_;        // of stream_
  std::set<std::string> given_up_;  // addresses that were not reached in time: no time is spent on them again
  std::vector<std::byte> room_;
  int64_t files_ = 0;
  int64_t bytes_ = 0;
  std::map<std::string, int64_t> sent_;  // files by site
};

}  // namespace geopipe
