// A copy of one stage's state in host memory: training goes on while it is written.
#pragma once

#include <absl/status/status.h>

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

namespace geopipe {

// True when the rank writes this piece of a tensor of a unit. Of the ranks that hold it, exactly one does: the first of
// the tensor ranks that share the part, and where replicas hold the same, the replica whose turn it is, unit by unit.
bool WritesPiece(const ModelSpec& model, const CheckpointUnit& unit, const TensorPiece& piece,
                 const ParameterSharding& sharding);

// Move-only; one thread at a time. It holds 12 bytes of the host's memory for each parameter that the rank writes,
// which are kept from one Take to the next.
class StateSnapshot {
 public:
  StateSnapshot() = default;
  StateSnapshot(StateSnapshot&&) noexcept = default;
  StateSnapshot& operator=(StateSnapshot&&) noexcept = default;

  // Copies the weights and moments that the rank writes of a stage, as the work enqueued before leaves them, and waits
  // for it; the snapshot before is gone. Errors: those of staging memory and of the device; nothing is held then.
  // REQUIRES: the parameters are those of the stage and the sharding.
  absl::Status Take(const ModelSpec& model, const LayerRange& layers, std::span<const Parameter> parameters,
                    const ParameterSharding& sharding = {});

  // Writes the rank's files of each unit of which it writes anything into the folder of a checkpoint that was begun,
  // and appends their entries in the manifest to `files`. `tag` is the epoch's. Checks before each unit whether it must
  // stop (Cancelled). Errors are those of TensorFileWriter.
  absl::Status Write(
      const std::string& folder, std::string_view tag, std::vector<FileEntry>& files,
      const std::function<bool()>& stopped = [] { return false; }) const;

  // Bytes held; 0: there is no snapshot.
  int64_t bytes() const;

 private:
  struct Held {
    TensorPiece piece;
    std::vector<float> value;
    std::vector<float> first_moment;
    std::vector<float> second_moment;
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
