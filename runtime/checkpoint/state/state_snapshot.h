// A copy of what the iterations so far have come to on one stage, in host memory: training goes on while it is written.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "optimizer/model/model_spec.h"
#include "runtime/checkpoint/checkpoint_units.h"
#include "runtime/checkpoint/manifest.h"
#include "runtime/model/parameters.h"

namespace geopipe {

// Move-only; one thread at a time. It holds 12 bytes per parameter of the host's memory, which is kept from one Take to
// the next.
class StateSnapshot {
 public:
  StateSnapshot() = default;
  StateSnapshot(StateSnapshot&&) noexcept = default;
  StateSnapshot& operator=(StateSnapshot&&) noexcept = default;

  // Copies weights and moments as the work that was enqueued before leaves them, and waits for it; what was held before
  // is gone. Errors: those of staging memory and of the device; nothing is held then.
  absl::Status Take(std::span<const Parameter> parameters);

  // Writes both files of a unit into the folder of a checkpoint that was begun, and appends their entries in the
  // manifest to `files`. Errors are those of TensorFileWriter. REQUIRES: what is held was taken of a stage of `model`
  // that has this unit.
  absl::Status Write(const std::string& folder, const ModelSpec& model, const CheckpointUnit& unit,
                     std::string_view tag, std::vector<FileEntry>& files) const;

  // 0: nothing is held.
  int64_t bytes() const;

 private:
  struct Held {
    std::string name;
    std::vector<float> value;
    std::vector<float> first_moment;
    std::vector<float> second_moment;
  };

  const Held& Find(std::string_view name) const;

  std::vector<Held> held_;
};

}  // namespace geopipe
