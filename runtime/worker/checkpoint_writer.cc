#include "runtime/worker/checkpoint_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "optimizer/base/status_macros.h"
#include "proto/wire/checkpoint_wire.h"
#include "runtime/base/log.h"
#include "runtime/base/thread_name.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/checkpoint_folders.h"
#include "runtime/checkpoint/checkpoint_units.h"
#include "runtime/worker/checkpoint_messages.h"

namespace geopipe {
namespace {

constexpr std::chrono::hours kLongWait{1};
constexpr size_t kMaxOrders = 16;

}  // namespace

CheckpointWriter::CheckpointWriter(Clock& clock, std::function<void(WorkerEvent)> post)
    : clock_(clock),
      post_(std::move(post)),
      orders_(kMaxOrders),
      free_(std::make_unique<RankSnapshot>()),
      thread_([this] { Loop(); }) {}

CheckpointWriter::~CheckpointWriter() {
  stopped_ = true;
  orders_.Close();
  thread_.join();
}

std::unique_ptr<RankSnapshot> CheckpointWriter::Take() {
  const std::lock_guard lock(mutex_);
  return std::move(free_);
}

void CheckpointWriter::GiveBack(std::unique_ptr<RankSnapshot> snapshot) {
  const std::lock_guard lock(mutex_);
  free_ = std::move(snapshot);
}

void CheckpointWriter::Write(std::unique_ptr<RankSnapshot> snapshot) {
  const Completion copied = snapshot->copied;
  // The pointer is shared because std::function copies its captures.
  copied.Then([this, shared = std::make_shared<std::unique_ptr<RankSnapshot>>(std::move(snapshot))] {
    orders_.Push(std::move(*shared));
  });
}

void CheckpointWriter::WriteManifest(CheckpointContext context, v1::WriteManifestCommand command) {
  orders_.Push(Manifest{std::move(context), std::move(command)});
}

void CheckpointWriter::Loop() {
  NameThisThread("checkpoint");
  while (!stopped_) {
    std::optional<Order> order = orders_.Pop(kLongWait);
    if (order.has_value() && !stopped_) {
      std::visit([this](auto& each) { Do(std::move(each)); }, *order);
    }
  }
}

void CheckpointWriter::Do(std::unique_ptr<RankSnapshot> snapshot) {
  CheckpointWritten written{.epoch = snapshot->context.epoch, .report = {}};
  written.report.set_rank(snapshot->context.rank);
  written.report.set_iteration(snapshot->iteration);
  if (const absl::Status status = WriteFiles(*snapshot, written.report); !status.ok()) {
    written.report.clear_files();
    written.report.set_error(std::string(status.message()));
  }
  written.report.set_duration_ns(clock_.NowNs() - snapshot->taken_ns);
  GiveBack(std::move(snapshot));
  if (!stopped_) {
    post_(std::move(written));
  }
}

absl::Status CheckpointWriter::WriteFiles(const RankSnapshot& snapshot, v1::CheckpointReport& report) {
  GP_RETURN_IF_ERROR(snapshot.copied.status());
  const CheckpointContext& context = snapshot.context;
  const std::string& path = context.job.checkpoint.path;
  CheckpointMark mark = context.mark;
  GP_RETURN_IF_ERROR(MarkCheckpointRoot(path, mark));
  GP_ASSIGN_OR_RETURN(const std::string folder, BeginCheckpoint(path, snapshot.iteration));
  const std::string tag = CheckpointTag(context.incarnation, context.epoch);
  std::vector<FileEntry> files;
  for (const StateSnapshot& stage : snapshot.stages) {
    GP_RETURN_IF_ERROR(stage.Write(folder, tag, files, [this] { return stopped_.load(); }));
  }
  for (const FileEntry& file : files) {
    *report.add_files() = ToProto(file);
  }
  return absl::OkStatus();
}

void CheckpointWriter::Do(const Manifest& order) {
  ManifestWritten written{.epoch = order.context.epoch, .report = {}};
  written.report.set_iteration(order.command.iteration());
  if (const absl::Status status = Complete(order); !status.ok()) {
    written.report.set_error(std::string(status.message()));
  }
  post_(std::move(written));
}

// Removes old checkpoints. Those newer than the newest listed one stay: they may be listed yet, for this node may be
// ahead of others.
void CheckpointWriter::RemoveOldOnes(const Manifest& order) {
  const std::vector<int64_t> listed(order.command.kept_iterations().begin(), order.command.kept_iterations().end());
  if (listed.empty()) {
    return;
  }
  const CheckpointSpec& spec = order.context.job.checkpoint;
  const absl::StatusOr<std::vector<std::string>> removed =
      RemoveOld(spec.path, std::max<int64_t>(1, spec.keep - 1), listed, *std::ranges::max_element(listed));
  if (!removed.ok()) {  // it costs room only
    LogWarning("older checkpoints stay: {}", std::string(removed.status().message()));
  }
}

absl::Status CheckpointWriter::Complete(const Manifest& order) {
  const CheckpointContext& context = order.context;
  const CheckpointSpec& spec = context.job.checkpoint;
  CheckpointManifest manifest{.job = context.job.name,
                              .incarnation = static_cast<int64_t>(context.incarnation),
                              .epoch = static_cast<int64_t>(context.epoch),
                              .next_iteration = order.command.iteration(),
                              .seed = context.job.training.seed,
                              .tokens_per_iteration = context.job.training.tokens_per_iteration,
                              .sequence_length = context.sequence_length,
                              .model = context.job.model};
  if (context.job.init_from.size() <= CheckpointLimits::kMaxPathBytes) {
    manifest.init_from = context.job.init_from;
  }
  for (const v1::CheckpointFile& file : order.command.files()) {
    GP_ASSIGN_OR_RETURN(FileEntry entry, FromProto(file));
    manifest.files.push_back(std::move(entry));
  }
  CheckpointMark mark = context.mark;
  GP_RETURN_IF_ERROR(MarkCheckpointRoot(spec.path, mark));
  // The ranks of this node have begun the folder; one that is gone holds none of their files.
  const std::string folder = CheckpointFolder(spec.path, manifest.next_iteration);
  GP_RETURN_IF_ERROR(WriteCheckpointManifest(folder, manifest));
  LogInfo("checkpoint of iteration {} is complete: {}", manifest.next_iteration, folder);
  RemoveOldOnes(order);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<v1::CheckpointIdentity>> CheckpointWriter::Find(const std::string& path,
                                                                           const CheckpointMark& mark) {
  GP_RETURN_IF_ERROR(CheckCheckpointRoot(path, mark));
  GP_ASSIGN_OR_RETURN(const CheckpointList list, ListCheckpoints(path));
  std::vector<v1::CheckpointIdentity> found;
  for (const CheckpointList::Complete& complete : list.complete) {
    GP_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(complete.folder));
    const CheckpointManifest& manifest = checkpoint.manifest();
    found.push_back(ToProto(CheckpointIdentity{.iteration = manifest.next_iteration,
                                               .incarnation = static_cast<uint64_t>(manifest.incarnation),
                                               .epoch = static_cast<uint64_t>(manifest.epoch),
                                               .sequence_length = manifest.sequence_length}));
  }
  return found;
}

absl::Status CheckpointWriter::CheckNoneLater(const std::string& path, uint64_t run_incarnation, uint64_t known_epoch) {
  const absl::StatusOr<CheckpointList> list = ListCheckpoints(path);
  for (const CheckpointList::Complete& complete :
       list.ok() ? list->complete : std::vector<CheckpointList::Complete>{}) {
    const absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(complete.folder);
    if (checkpoint.ok() && static_cast<uint64_t>(checkpoint->manifest().incarnation) == run_incarnation &&
        static_cast<uint64_t>(checkpoint->manifest().epoch) > known_epoch) {
      return absl::FailedPreconditionError(
          fmt::format("{} was written in epoch {} of this run, of which the coordinator knows {} epochs: its job store "
                      "is older than "
                      "the run; give it its newest store, or apply the job again with --resume",
                      complete.folder, checkpoint->manifest().epoch, known_epoch));
    }
  }
  return absl::OkStatus();
}

}  // namespace geopipe
