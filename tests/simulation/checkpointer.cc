#include "tests/simulation/checkpointer.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "optimizer/base/trouble.h"

namespace geopipe::simulation {
namespace {

constexpr int64_t kFetchPatienceNs = 12 * kSecondNs;  // with a source that cannot be asked

absl::Status NoSpace(const std::string& path) {
  return OfNode(absl::ResourceExhaustedError(fmt::format("{}: the disk is full", path)));
}

}  // namespace

// --- The writer ---------------------------------------------------------------------------------------------------

absl::Status Checkpointer::Write(Context context, int64_t iteration, uint64_t lineage) {
  const std::pair state(context.epoch, iteration);
  if (snapshot_.has_value()) {
    return snapshot_ == state ? absl::OkStatus() : absl::UnavailableError("the one before is still being written");
  }
  snapshot_ = state;
  orders_.emplace_back(
      Snapshot{.context = std::move(context), .iteration = iteration, .lineage = lineage, .taken_ns = world_.now_ns()});
  WriteNext();
  return absl::OkStatus();
}

void Checkpointer::Complete(Context context, v1::WriteManifestCommand command) {
  orders_.emplace_back(Manifest{.context = std::move(context), .command = std::move(command)});
  WriteNext();
}

void Checkpointer::WriteNext() {
  if (writing_ || orders_.empty()) {
    return;
  }
  writing_ = true;
  const auto order = std::make_shared<std::variant<Snapshot, Manifest>>(std::move(orders_.front()));
  orders_.pop_front();
  if (const auto* snapshot = std::get_if<Snapshot>(order.get())) {
    // Writes in two parts, so that a process that dies meanwhile leaves the first.
    const int64_t takes_ns = world_.Between(25, world_.Chance(0.1) ? 5000 : 800) * kMillisecondNs;
    const int32_t begin = FirstUnit(snapshot->context.rank, snapshot->context.ranks);
    const int32_t end = FirstUnit(snapshot->context.rank + 1, snapshot->context.ranks);
    const int32_t middle = (begin + end) / 2;
    world_.In(takes_ns, process_, [this, order, snapshot, begin, middle, end, takes_ns] {
      if (const absl::Status status = WriteUnits(*snapshot, begin, middle); !status.ok()) {
        EndWriting(*snapshot, status);
        return;
      }
      world_.In(takes_ns, process_,
                [this, order, snapshot, middle, end] { EndWriting(*snapshot, WriteUnits(*snapshot, middle, end)); });
    });
    return;
  }
  world_.In(world_.Between(5, 300) * kMillisecondNs, process_, [this, order] {
    const Manifest& manifest = std::get<Manifest>(*order);
    ManifestWritten written{.epoch = manifest.context.epoch, .report = {}};
    written.report.set_iteration(manifest.command.iteration());
    CheckpointManifest complete{.identity = {.iteration = manifest.command.iteration(),
                                             .incarnation = manifest.context.run,
                                             .epoch = manifest.context.epoch,
                                             .sequence_length = manifest.context.sequence_length},
                                .files = {}};
    for (const v1::CheckpointFile& file : manifest.command.files()) {
      complete.files.push_back(file.name());
    }
    const std::vector<int64_t> kept(manifest.command.kept_iterations().begin(),
                                    manifest.command.kept_iterations().end());
    CheckpointMark mark = manifest.context.mark;
    absl::Status status = disk_.MarkRoot(manifest.context.path, mark);
    if (status.ok()) {
      status = disk_.Complete(manifest.context.path, std::move(complete), manifest.context.keep, kept);
    }
    written.report.set_error(std::string(status.message()));
    writing_ = false;
    post_(std::move(written));
    WriteNext();
  });
}

absl::Status Checkpointer::WriteUnits(const Snapshot& snapshot, int32_t from, int32_t to) {
  CheckpointMark mark = snapshot.context.mark;
  if (absl::Status status = disk_.MarkRoot(snapshot.context.path, mark); !status.ok()) {
    return status;
  }
  if (disk_.full) {
    return NoSpace(snapshot.context.path);
  }
  CheckpointFolder& folder = disk_.Begin(snapshot.context.path, snapshot.iteration);
  for (int32_t unit = from; unit < to; ++unit) {
    folder.files[UnitFile(unit, snapshot.context.run, snapshot.context.epoch)] = {.lineage = snapshot.lineage,
                                                                                  .writer = site_};
  }
  return absl::OkStatus();
}

void Checkpointer::EndWriting(const Snapshot& snapshot, const absl::Status& status) {
  const Context& context = snapshot.context;
  CheckpointWritten written{.epoch = context.epoch, .report = {}};
  written.report.set_rank(context.rank);
  written.report.set_iteration(snapshot.iteration);
  written.report.set_duration_ns(world_.now_ns() - snapshot.taken_ns);
  written.report.set_error(std::string(status.message()));
  const int32_t end = status.ok() ? FirstUnit(context.rank + 1, context.ranks) : 0;
  for (int32_t unit = FirstUnit(context.rank, context.ranks); unit < end; ++unit) {
    v1::CheckpointFile& file = *written.report.add_files();
    file.set_name(UnitFile(unit, context.run, context.epoch));
    file.set_bytes(1000);
  }
  snapshot_.reset();
  writing_ = false;
  post_(std::move(written));
  WriteNext();
}

// --- Fetching -----------------------------------------------------------------------------------------------------

void Checkpointer::Retry(int64_t until_ns, std::function<absl::Status()> attempt,
                         std::function<void(absl::Status)> done) {
  const absl::Status status = attempt();
  if (!absl::IsUnavailable(status) || world_.now_ns() >= until_ns) {
    done(status);
    return;
  }
  world_.In(kSecondNs, process_,
            [this, until_ns, attempt = std::move(attempt), done = std::move(done)] { Retry(until_ns, attempt, done); });
}

absl::Status Checkpointer::FetchFile(const std::string& path, int64_t iteration, const std::string& file,
                                     const std::vector<std::string>& addresses) {
  bool all_asked = true;
  for (const std::string& address : addresses) {
    const CheckpointDisk* server = find_server_(address);
    if (server == nullptr || !server->can_tell()) {
      all_asked = false;
      continue;
    }
    const CheckpointFolder* folder = server->See(path, iteration);
    if (folder == nullptr || !folder->files.contains(file)) {
      continue;
    }
    if (disk_.full) {
      return NoSpace(path);
    }
    const StateFile copy = folder->files.at(file);
    disk_.Begin(path, iteration).files[file] = copy;
    return absl::OkStatus();
  }
  return all_asked ? absl::DataLossError(fmt::format("no source has {} of iteration {}", file, iteration))
                   : absl::UnavailableError(fmt::format("a source of {} cannot be asked", file));
}

void Checkpointer::Fetch(Context context, v1::ReplicateCommand command) {
  // The same order again is answered once.
  std::erase_if(replicas_, [&](const Replica& waiting) {
    return waiting.context.epoch == context.epoch && waiting.command.iteration() == command.iteration();
  });
  replicas_.push_back({.context = std::move(context), .command = std::move(command)});
  if (!fetching_) {
    FetchNext();
  }
}

void Checkpointer::FetchNext() {
  for (; replicas_.size() > 1; replicas_.pop_front()) {
    Answer(replicas_.front(), absl::AbortedError("a later one is fetched instead"));
  }
  fetching_ = !replicas_.empty();
  if (!fetching_) {
    return;
  }
  const auto replica = std::make_shared<Replica>(std::move(replicas_.front()));
  replicas_.pop_front();
  world_.In(world_.Between(50, world_.Chance(0.1) ? 8000 : 2500) * kMillisecondNs, process_, [this, replica] {
    Retry(
        world_.now_ns() + kFetchPatienceNs, [this, replica] { return TryFetch(*replica); },
        [this, replica](const absl::Status& status) {
          Answer(*replica, status);
          FetchNext();
        });
  });
}

absl::Status Checkpointer::TryFetch(const Replica& replica) {
  const int64_t iteration = replica.command.iteration();
  CheckpointMark mark = replica.context.mark;
  if (absl::Status status = disk_.MarkRoot(replica.context.path, mark); !status.ok()) {
    return status;
  }
  const CheckpointFolder* folder = disk_.See(replica.context.path, iteration);
  if (folder == nullptr ||
      folder->Find({.iteration = iteration, .incarnation = replica.context.run, .epoch = replica.context.epoch}) ==
          nullptr) {
    return absl::FailedPreconditionError(fmt::format("there is no checkpoint of iteration {} here", iteration));
  }
  std::map<std::string, std::vector<std::string>> addresses;  // by file
  for (const v1::FileSource& source : replica.command.sources()) {
    for (const std::string& file : source.files()) {
      addresses[file].push_back(source.address());
    }
  }
  absl::Status first_error;
  for (const auto& [file, from] : addresses) {
    if (!folder->files.contains(file)) {
      const absl::Status status = FetchFile(replica.context.path, iteration, file, from);
      if (!status.ok() && !absl::IsDataLoss(status)) {
        return status;
      }
      first_error.Update(status);  // the others are worth having
    }
  }
  return first_error;
}

void Checkpointer::Answer(const Replica& replica, const absl::Status& status) {
  ReplicaFetched fetched{.epoch = replica.context.epoch, .report = {}};
  fetched.report.set_iteration(replica.command.iteration());
  fetched.report.set_error(std::string(status.message()));
  world_.In(0, process_, [this, fetched = std::move(fetched)] { post_(fetched); });
}

// --- Reading ------------------------------------------------------------------------------------------------------

void Checkpointer::Restore(Context context, const CheckpointIdentity& identity, std::vector<std::string> addresses,
                           Restored done) {
  const auto reading = std::make_shared<Reading>(Reading{
      .context = std::move(context), .identity = identity, .addresses = std::move(addresses), .done = std::move(done)});
  world_.In(world_.Between(100, 1500) * kMillisecondNs, process_, [this, reading] {
    const auto lineage = std::make_shared<uint64_t>(0);
    Retry(
        world_.now_ns() + kFetchPatienceNs,
        [this, reading, lineage] {
          const absl::StatusOr<uint64_t> read = TryRead(*reading);
          *lineage = read.value_or(0);
          return read.status();
        },
        [reading, lineage](const absl::Status& status) {
          reading->done(status.ok() ? absl::StatusOr<uint64_t>(*lineage) : absl::StatusOr<uint64_t>(status));
        });
  });
}

// Mirrors OpenWanted of the supplied state.
absl::Status Checkpointer::FindManifest(const Reading& reading) {
  const std::string& path = reading.context.path;
  const CheckpointFolder* folder = disk_.See(path, reading.identity.iteration);
  if (folder != nullptr && folder->Find(reading.identity) != nullptr) {
    return absl::OkStatus();
  }
  if (reading.addresses.empty()) {
    return folder == nullptr || !folder->manifest.has_value()
               ? absl::NotFoundError(
                     fmt::format("{}: there is no checkpoint of iteration {}", path, reading.identity.iteration))
               : absl::FailedPreconditionError(fmt::format("{}: is of another run here than on other nodes", path));
  }
  if (disk_.full) {
    return NoSpace(path);
  }
  bool all_asked = true;
  for (const std::string& address : reading.addresses) {
    const CheckpointDisk* server = find_server_(address);
    all_asked = all_asked && server != nullptr && server->can_tell();
    const CheckpointFolder* other = server == nullptr ? nullptr : server->See(path, reading.identity.iteration);
    const CheckpointManifest* manifest = other == nullptr ? nullptr : other->Find(reading.identity);
    if (manifest != nullptr) {
      disk_.Begin(path, reading.identity.iteration).manifest = *manifest;
      return absl::OkStatus();
    }
  }
  return all_asked ? absl::DataLossError("no source has the manifest")
                   : absl::UnavailableError("a source of the manifest cannot be asked");
}

absl::StatusOr<uint64_t> Checkpointer::TryRead(const Reading& reading) {
  if (disk_.away) {
    return OfNode(absl::NotFoundError(reading.context.path + ": lacks its mark"));
  }
  if (const absl::Status status = FindManifest(reading); !status.ok()) {
    return status;
  }
  const Context& context = reading.context;
  const CheckpointFolder& folder = *disk_.See(context.path, reading.identity.iteration);
  std::optional<uint64_t> lineage;
  for (int32_t unit = FirstUnit(context.rank, context.ranks); unit < FirstUnit(context.rank + 1, context.ranks);
       ++unit) {
    const std::vector<std::string> files = folder.manifest->files;
    const auto file = std::ranges::find_if(files, [&](const std::string& each) { return IsOfUnit(each, unit); });
    if (file == files.end()) {
      world_.Break(fmt::format("the manifest of the checkpoint of iteration {} in {} names no file of unit {}",
                               reading.identity.iteration, context.path, unit));
      return absl::DataLossError("the manifest lacks a unit");
    }
    if (!folder.files.contains(*file)) {
      const absl::Status fetched = FetchFile(context.path, reading.identity.iteration, *file, reading.addresses);
      if (!fetched.ok()) {
        return fetched;
      }
    }
    const uint64_t read = folder.files.at(*file).lineage;
    if (lineage.value_or(read) != read) {
      world_.Break(fmt::format("the files of the checkpoint of iteration {} in {} are of several states",
                               reading.identity.iteration, context.path));
    }
    lineage = read;
  }
  return *lineage;
}

}  // namespace geopipe::simulation
