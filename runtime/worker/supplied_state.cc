#include "runtime/worker/supplied_state.h"

#include <absl/strings/cord.h>
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <utility>

#include "optimizer/base/status_macros.h"
#include "runtime/base/ids.h"
#include "runtime/base/log.h"
#include "runtime/checkpoint/checkpoint_file.h"
#include "runtime/checkpoint/checkpoint_folders.h"
#include "runtime/checkpoint/checkpoint_root.h"
#include "runtime/checkpoint/checkpoint_units.h"

namespace geopipe {
namespace {

constexpr char kUnreadableMark[] = "geopipe/unreadable-checkpoint";

// True when the node has no intact copy.
bool IsLack(const absl::Status& status) { return absl::IsNotFound(status) || absl::IsDataLoss(status); }

// Marks errors that another checkpoint may not have: also those of nodes that cannot give their files.
absl::Status Marked(absl::Status status) {
  return IsLack(status) || absl::IsUnavailable(status) ? MarkUnreadable(std::move(status)) : status;
}

bool IsOf(const CheckpointManifest& manifest, const CheckpointIdentity& wanted) {
  return manifest.next_iteration == wanted.iteration &&
         static_cast<uint64_t>(manifest.incarnation) == wanted.incarnation &&
         static_cast<uint64_t>(manifest.epoch) == wanted.epoch;
}

absl::Status CheckFits(const Checkpoint& checkpoint, const RankPreparation& preparation) {
  const JobSpec& job = preparation.job;
  const CheckpointIdentity& wanted = *preparation.from_checkpoint;
  const CheckpointManifest& manifest = checkpoint.manifest();
  const auto differs = [&](std::string_view what, auto expected, auto found, std::string_view remedy) {
    return absl::FailedPreconditionError(
        fmt::format("{}: {} is {}, not {}; {}", checkpoint.folder(), what, found, expected, remedy));
  };
  if (wanted.iteration != preparation.first_iteration) {
    return differs("the iteration", preparation.first_iteration, wanted.iteration, "choose another checkpoint");
  }
  constexpr std::string_view kOther = "checkpoint.path is of another run here than on other nodes";
  if (static_cast<uint64_t>(manifest.incarnation) != wanted.incarnation) {
    return differs("the run", wanted.incarnation, manifest.incarnation, kOther);
  }
  if (static_cast<uint64_t>(manifest.epoch) != wanted.epoch) {
    return differs("the epoch", wanted.epoch, manifest.epoch, kOther);
  }
  constexpr std::string_view kSamples = "another would skip or repeat samples: give the job the same";
  if (manifest.seed != job.training.seed) {
    return differs("training.seed", job.training.seed, manifest.seed, kSamples);
  }
  if (manifest.tokens_per_iteration != job.training.tokens_per_iteration) {
    return differs("training.tokens_per_iteration", job.training.tokens_per_iteration, manifest.tokens_per_iteration,
                   kSamples);
  }
  if (manifest.sequence_length != preparation.plan.sequence_length) {
    return differs("the sequence length", preparation.plan.sequence_length, manifest.sequence_length, kSamples);
  }
  return checkpoint.CheckSameModel(job.model);
}

// Opens this node's checkpoint, or where that is not of the wanted run and epoch, one that it fetches first.
absl::StatusOr<Checkpoint> OpenWanted(const RankPreparation& preparation, CheckpointFetcher& fetcher) {
  const CheckpointIdentity& wanted = *preparation.from_checkpoint;
  const std::string& root = preparation.job.checkpoint.path;
  absl::StatusOr<Checkpoint> here = Checkpoint::Open(CheckpointFolder(root, wanted.iteration));
  if (preparation.file_sources.empty()) {
    if (!here.ok()) {
      return Marked(here.status());
    }
    return here;
  }
  if (here.ok() && IsOf(here->manifest(), wanted)) {
    return here;
  }
  GP_ASSIGN_OR_RETURN(const std::string folder, BeginCheckpoint(root, wanted.iteration));
  absl::Status fetched = fetcher.FetchManifest(preparation.file_sources, wanted, folder);
  if (!fetched.ok()) {
    return Marked(std::move(fetched));
  }
  return Checkpoint::Open(folder);
}

// True when the file's contents of the tensor here match the entry.
bool IsIntactHere(const std::string& folder, const FileEntry& entry, std::string_view tensor) {
  const absl::StatusOr<CheckpointFile> file = CheckpointFile::Open(fmt::format("{}/{}", folder, entry.name));
  if (!file.ok() || file->bytes() != entry.bytes) {
    return false;
  }
  int64_t position = entry.header_bytes;
  for (const TensorEntry& each : entry.tensors) {
    const int64_t bytes = static_cast<int64_t>(sizeof(float)) * each.range.elements;
    if (each.range.name == tensor) {
      const absl::StatusOr<uint32_t> crc = file->Checksum(position, bytes);
      return crc.ok() && *crc == each.crc32c;
    }
    position += bytes;
  }
  return true;
}

}  // namespace

absl::Status MarkUnreadable(absl::Status status) {
  status.SetPayload(kUnreadableMark, absl::Cord());
  return status;
}

bool IsUnreadable(const absl::Status& status) { return status.GetPayload(kUnreadableMark).has_value(); }

std::vector<const FileEntry*> FilesOfRank(const Checkpoint& checkpoint, const RankPreparation& preparation) {
  std::set<const FileEntry*> needed;
  for (const StagePlan& stage : preparation.plan.stages) {
    if (stage.pipeline_rank != preparation.pipeline_rank()) {
      continue;
    }
    const std::vector<CheckpointUnit> units = UnitsOf(stage.layers);
    for (const ParameterBucket& bucket : ParameterBuckets(preparation.job.model, stage.layers)) {
      for (const TensorPiece& piece : PiecesOf(bucket, preparation.sharding())) {
        const std::string& name = piece.tensor.name;
        for (const std::string& tensor : {name, FirstMomentName(name), SecondMomentName(name)}) {
          std::ranges::copy_if(
              checkpoint.FilesOf(tensor, piece), std::inserter(needed, needed.end()), [&](const FileEntry* entry) {
                return std::ranges::any_of(
                    units, [&](const CheckpointUnit& unit) { return entry->name.starts_with(unit.name() + "."); });
              });
        }
      }
    }
  }
  std::vector<const FileEntry*> files;
  for (const FileEntry& entry : checkpoint.manifest().files) {
    if (needed.contains(&entry)) {
      files.push_back(&entry);
    }
  }
  return files;
}

bool IsHere(const std::string& folder, const FileEntry& entry) {
  const absl::StatusOr<CheckpointFile> file = CheckpointFile::Open(fmt::format("{}/{}", folder, entry.name));
  return file.ok() && file->bytes() == entry.bytes;
}

absl::StatusOr<std::unique_ptr<SuppliedState>> SuppliedState::Open(const RankPreparation& preparation, Clock& clock,
                                                                   const StopEvent& stop) {
  CheckpointFetcher fetcher({.site = preparation.plan.SiteOfRank(preparation.rank),
                             .secret = preparation.exchange_secret,
                             .clock = &clock,
                             .stop = &stop,
                             .seed = RandomId()});
  const int64_t begin_ns = clock.NowNs();
  if (preparation.checkpoint_mark.expected) {  // files may be fetched into it
    GP_RETURN_IF_ERROR(CheckCheckpointRoot(preparation.job.checkpoint.path, preparation.checkpoint_mark));
  }
  GP_ASSIGN_OR_RETURN(Checkpoint checkpoint, OpenWanted(preparation, fetcher));
  GP_RETURN_IF_ERROR(CheckFits(checkpoint, preparation));
  std::unique_ptr<SuppliedState> state(
      new SuppliedState(std::move(checkpoint), preparation.file_sources, std::move(fetcher)));
  GP_RETURN_IF_ERROR(state->FetchMissing(preparation));
  if (const CheckpointFetcher& fetched = state->fetcher_; fetched.files() > 0) {
    LogInfo("fetched {} files ({} bytes) of the checkpoint before iteration {} in {:.1f} s from {}", fetched.files(),
            fetched.bytes(), state->iteration(), static_cast<double>(clock.NowNs() - begin_ns) * 1e-9,
            fetched.senders());
  }
  return state;
}

absl::Status SuppliedState::FetchMissing(const RankPreparation& preparation) {
  if (sources_.empty()) {
    return absl::OkStatus();
  }
  for (const FileEntry* entry : FilesOfRank(checkpoint_, preparation)) {
    if (IsHere(checkpoint_.folder(), *entry)) {
      continue;
    }
    absl::Status status = fetcher_.FetchFile(sources_, iteration(), *entry, checkpoint_.folder());
    if (!status.ok() && !absl::IsDataLoss(status) && !absl::IsUnavailable(status)) {
      return status;
    }
  }
  return absl::OkStatus();
}

absl::Status SuppliedState::ReadTensor(std::string_view name, const TensorPiece& piece, std::span<float> values) {
  absl::Status status = checkpoint_.ReadPiece(name, piece, values);
  if (status.ok() || !IsLack(status)) {
    return status;
  }
  if (sources_.empty()) {
    return MarkUnreadable(std::move(status));
  }
  LogWarning("{}; asking other nodes for it", std::string(status.message()));
  return FetchAndRead(name, piece, values);
}

// Damaged files are fetched before copies that this node never had. One of several copies is enough, so the piece is
// read again after each file.
absl::Status SuppliedState::FetchAndRead(std::string_view name, const TensorPiece& piece, std::span<float> values) {
  std::vector<const FileEntry*> files = checkpoint_.FilesOf(name, piece);
  std::stable_partition(files.begin(), files.end(),
                        [&](const FileEntry* entry) { return CheckpointFile::Open(PathOf(*entry)).ok(); });
  absl::Status failed;
  for (const FileEntry* entry : files) {
    if (IsIntactHere(checkpoint_.folder(), *entry, name)) {
      continue;
    }
    absl::Status fetched = fetcher_.FetchFile(sources_, iteration(), *entry, checkpoint_.folder());
    if (absl::IsCancelled(fetched)) {
      return fetched;
    }
    failed.Update(fetched);
    if (fetched.ok() && checkpoint_.ReadPiece(name, piece, values).ok()) {
      return absl::OkStatus();
    }
  }
  return Marked(failed.ok() ? checkpoint_.ReadPiece(name, piece, values) : std::move(failed));
}

absl::Status SuppliedState::ReadPiece(const TensorPiece& piece, std::span<float> values) {
  return ReadTensor(piece.tensor.name, piece, values);
}

absl::StatusOr<bool> SuppliedState::ReadMomentsPiece(const TensorPiece& piece, std::span<float> first,
                                                     std::span<float> second) {
  GP_RETURN_IF_ERROR(ReadTensor(FirstMomentName(piece.tensor.name), piece, first));
  GP_RETURN_IF_ERROR(ReadTensor(SecondMomentName(piece.tensor.name), piece, second));
  return true;
}

absl::Status SuppliedState::Read(std::string_view name, const std::vector<int64_t>& shape, std::span<float> values) {
  return ReadPiece(WholeTensor(name, shape), values);
}

absl::StatusOr<bool> SuppliedState::ReadMoments(std::string_view name, const std::vector<int64_t>& shape,
                                                std::span<float> first, std::span<float> second) {
  return ReadMomentsPiece(WholeTensor(name, shape), first, second);
}

}  // namespace geopipe
