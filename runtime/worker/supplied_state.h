// The state of a checkpoint as a rank reads it when it is built: from this node's files, and from other nodes where a
// file is missing or damaged here.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/stop_event.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/exchange/checkpoint_fetcher.h"
#include "runtime/model/weight_source.h"
#include "runtime/worker/rank_preparation.h"

namespace geopipe {

// One thread.
class SuppliedState final : public WeightSource {
 public:
  // Opens the checkpoint that the preparation names and checks that it is the state before its first iteration in a run
  // of its job: with another seed, or other samples to an iteration, some would be skipped or repeated. Where the
  // preparation names sources, fetches the manifest if this node lacks that of the run and epoch, and then the files
  // that the rank's units need and this node lacks. `clock` and `stop` outlive the state; `stop` ends a fetch
  // (Cancelled).
  //
  // Errors: FailedPrecondition: it is the state of another run or job. Else those of Checkpoint and CheckpointFetcher;
  // IsUnreadable where no node that was asked has an intact copy, or with Unavailable none can give one at the moment.
  static absl::StatusOr<std::unique_ptr<SuppliedState>> Open(const RankPreparation& preparation, Clock& clock,
                                                             const StopEvent& stop);

  // Reads; a file that turns out to be damaged, or gone, is fetched and read again, once. Errors as above.
  absl::Status Read(std::string_view name, const std::vector<int64_t>& shape, std::span<float> values) override;
  absl::StatusOr<bool> ReadMoments(std::string_view name, const std::vector<int64_t>& shape, std::span<float> first,
                                   std::span<float> second) override;
  absl::Status ReadPiece(const TensorPiece& piece, std::span<float> values) override;
  absl::StatusOr<bool> ReadMomentsPiece(const TensorPiece& piece, std::span<float> first,
                                        std::span<float> second) override;

 private:
  SuppliedState(Checkpoint checkpoint, std::vector<ExchangeSource> sources, CheckpointFetcher fetcher)
      : checkpoint_(std::move(checkpoint)), sources_(std::move(sources)), fetcher_(std::move(fetcher)) {}

  // Fetches the files that the rank reads and this node lacks. A file that no source has shows as an error of its
  // reader.
  absl::Status FetchMissing(const RankPreparation& preparation);
  // A piece of the tensor `name`: the piece's parameter or one of its moments.
  absl::Status ReadTensor(std::string_view name, const TensorPiece& piece, std::span<float> values);
  absl::Status FetchAndRead(std::string_view name, const TensorPiece& piece, std::span<float> values);
  std::string PathOf(const FileEntry& entry) const { return checkpoint_.folder() + "/" + entry.name; }
  int64_t iteration() const { return checkpoint_.manifest().next_iteration; }

  Checkpoint checkpoint_;
  const std::vector<ExchangeSource> sources_;  // empty: there are none
  CheckpointFetcher fetcher_;
};

// Marks an error: no node that was asked gives an intact copy of the checkpoint's state.
absl::Status MarkUnreadable(absl::Status status);
bool IsUnreadable(const absl::Status& status);

// The files of a checkpoint that hold the tensors which the preparation's rank reads, in the order of the manifest. Of
// a tensor that two units hold, the copy of the stage's own unit.
std::vector<const FileEntry*> FilesOfRank(const Checkpoint& checkpoint, const RankPreparation& preparation);

// True when this node's folder of a checkpoint has a file of the entry's size under its name.
bool IsHere(const std::string& folder, const FileEntry& entry);

}  // namespace geopipe
