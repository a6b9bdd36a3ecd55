// A copy of one stage's state in host memory: training goes on while it is made and written.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "optimizer/model/model_spec.h"
#include "optimizer/model/parameter_buckets.h"
#include "optimizer/model/transformer.h"
#include "runtime/checkpoint/checkpoint_units.h"
#include "runtime/checkpoint/manifest.h"
#include "runtime/model/parameters.h"
#include "runtime/tensor/completion.h"
#include "runtime/tensor/tensor.h"

namespace geopipe {

// True when the rank writes this piece of a tensor of a unit. Of the ranks that hold it, exactly one does: the first of
// the tensor ranks that share the part, and where replicas hold the same, the replica whose turn it is, unit by unit.
bool WritesPiece(const ModelSpec& model, const CheckpointUnit& unit, const TensorPiece& piece,
                 const ParameterSharding& sharding);

// Move-only; one thread at a time. It holds 12 bytes of the host's memory for each parameter that the rank writes.
class StateSnapshot {
 public:
  StateSnapshot() = default;
  StateSnapshot(StateSnapshot&&) noexcept = default;
  StateSnapshot& operator=(StateSnapshot&&) noexcept = default;

  // Begins to copy the weights and moments that the rank writes of a stage, as the kernels enqueued before leave them,
  // into memory of `host`, which outlives the snapshot (of the parameters' device, in the host's space); the snapshot
  // before is gone. It is there when the copy, on the device's out queue, is over. Errors: those of memory and of the
  // device; nothing is held then. REQUIRES: the parameters are those of the stage and the sharding; nothing writes to
  // weights and moments, nor gives up their memory, before the copy is over.
  absl::StatusOr<Completion> Take(const ModelSpec& model, const LayerRange& layers,
                                  std::span<const Parameter> parameters, const ParameterSharding& sharding,
                                  Allocator& host);

  // Writes the rank's files of each unit of which it writes anything into the folder of a checkpoint that was begun,
  // and appends their entries in the manifest to `files`. `tag` is the epoch's. Checks before each unit whether it must
  // stop (Cancelled). Errors are those of TensorFileWriter. REQUIRES: the copy is over, and has not failed.
  absl::Status Write(
      const std::string& folder, std::string_view tag, std::vector<FileEntry>& files,
      const std::function<bool()>& stopped = [] { return false; }) const;

  // Bytes held; 0: there is no snapshot.
  int64_t bytes() const;

 private:
  struct Held {
    TensorPiece piece;
    Tensor value;  // as the moments
    Tensor first_moment;
    Tensor second_moment;
  };
  // The two files of a unit, or of a part of one.
  struct Part {
    CheckpointUnit unit;
    bool vectors = false;      // of a unit that several ranks write
    std::vector<size_t> held;  // places in held_; a tied embedding may be in two units
  };

  absl::Status WritePart(const std::string& folder, const std::string& tag, const Part& part,
                         std::vector<FileEntry>& files) const;

  std::vector<Held> held_;
  std::vector<Part> parts_;
  ParameterSharding sharding_;
};

}  // namespace geopipe
