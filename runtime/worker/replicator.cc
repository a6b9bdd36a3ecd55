#include "runtime/worker/replicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "optimizer/base/status_macros.h"
#include "runtime/base/ids.h"
#include "runtime/base/log.h"
#include "runtime/base/thread_name.h"
#include "runtime/base/utf8.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/checkpoint_folders.h"
#include "runtime/checkpoint/checkpoint_root.h"
#include "runtime/worker/supplied_state.h"

namespace geopipe {
namespace {

constexpr size_t kMaxWaiting = 16;

}  // namespace

Replicator::Replicator(Clock& clock, std::function<void(WorkerEvent)> post)
    : clock_(clock), post_(std::move(post)), thread_([this] { Loop(); }) {}

Replicator::~Replicator() {
  Stop();
  thread_.join();
}

void Replicator::Stop() {
  stop_.Set();
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  ordered_.notify_all();
}

void Replicator::Fetch(Order order) {
  const std::lock_guard lock(mutex_);
  // A repeated order is answered once.
  std::erase_if(orders_, [&](const Order& waiting) {
    return waiting.context.epoch == order.context.epoch && waiting.command.iteration() == order.command.iteration();
  });
  if (orders_.size() >= kMaxWaiting) {
    orders_.pop_front();
  }
  orders_.push_back(std::move(order));
  ordered_.notify_all();
}

void Replicator::Loop() {
  NameThisThread("replicator");
  while (true) {
    std::deque<Order> orders;
    {
      std::unique_lock lock(mutex_);
      ordered_.wait(lock, [this] { return stopped_ || !orders_.empty(); });
      if (stopped_) {
        return;
      }
      orders.swap(orders_);
    }
    for (; orders.size() > 1; orders.pop_front()) {
      v1::ReplicaReport report;
      report.set_iteration(orders.front().command.iteration());
      Answer(orders.front(), std::move(report),
             absl::AbortedError(fmt::format("the checkpoint before iteration {} is fetched instead",
                                            orders.back().command.iteration())));
    }
    Do(orders.front());
  }
}

void Replicator::Do(const Order& order) {
  StoppableClock clock(clock_, stop_);
  CheckpointFetcher fetcher({.site = order.site,
                             .secret = order.secret,
                             .clock = &clock,
                             .stop = &stop_,
                             .bytes_per_second = order.command.bytes_per_second(),
                             .seed = RandomId()});
  const int64_t begin_ns = clock_.NowNs();
  const absl::Status status = FetchAll(order, fetcher);
  if (stop_.is_set()) {
    return;
  }
  v1::ReplicaReport report;
  report.set_iteration(order.command.iteration());
  report.set_bytes(fetcher.bytes());
  report.set_duration_ns(clock_.NowNs() - begin_ns);
  if (fetcher.files() > 0) {
    LogInfo("fetched copies of {} files ({} bytes) of the checkpoint before iteration {} in {:.1f} s from {}",
            fetcher.files(), fetcher.bytes(), order.command.iteration(),
            static_cast<double>(report.duration_ns()) * 1e-9, fetcher.senders());
  }
  Answer(order, std::move(report), status);
}

absl::Status Replicator::FetchAll(const Order& order, CheckpointFetcher& fetcher) {
  const std::string& root = order.context.job.checkpoint.path;
  if (root.empty() || order.command.iteration() > CheckpointLimits::kMaxIteration) {
    return absl::FailedPreconditionError(
        fmt::format("the job has no checkpoint before iteration {}; set checkpoint.path", order.command.iteration()));
  }
  CheckpointMark mark = order.context.mark;
  GP_RETURN_IF_ERROR(MarkCheckpointRoot(root, mark));
  GP_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(CheckpointFolder(root, order.command.iteration())));
  const CheckpointManifest& manifest = checkpoint.manifest();
  if (static_cast<uint64_t>(manifest.incarnation) != order.context.incarnation ||
      static_cast<uint64_t>(manifest.epoch) != order.context.epoch) {
    return absl::FailedPreconditionError(fmt::format(
        "{}: is of run {}, epoch {}, not of run {}, epoch {}; checkpoint.path is of another run here than on other "
        "nodes",
        checkpoint.folder(), manifest.incarnation, manifest.epoch, order.context.incarnation, order.context.epoch));
  }
  std::map<std::string_view, const FileEntry*> entries;
  for (const FileEntry& entry : manifest.files) {
    entries.emplace(entry.name, &entry);
  }
  std::map<std::string_view, std::vector<ExchangeSource>> sources;  // by file, in the order of the command
  for (const v1::FileSource& source : order.command.sources()) {
    for (const std::string& file : source.files()) {
      sources[file].push_back({.site = source.site(), .address = source.address()});
    }
  }
  absl::Status first_error;
  for (const auto& [file, from] : sources) {
    const auto entry = entries.find(file);
    if (entry == entries.end()) {
      first_error.Update(absl::InvalidArgumentError(
          fmt::format("{}: names no file {}; order files of this checkpoint", checkpoint.folder(), ToUtf8(file))));
    } else if (!IsHere(checkpoint.folder(), *entry->second)) {
      absl::Status status = fetcher.FetchFile(from, manifest.next_iteration, *entry->second, checkpoint.folder());
      if (!status.ok() && !absl::IsDataLoss(status)) {
        return status;
      }
      first_error.Update(status);  // the others are worth having
    }
  }
  return first_error;
}

void Replicator::Answer(const Order& order, v1::ReplicaReport report, const absl::Status& status) {
  if (!status.ok()) {
    report.set_error(ToUtf8(std::string(status.message())));
  }
  post_(ReplicaFetched{.epoch = order.context.epoch, .report = std::move(report)});
}

}  // namespace geopipe
