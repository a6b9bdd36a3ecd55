// Parts that the process which starts a worker may put between its job and its machine. A worker needs none.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/checkpoint/exchange/file_server.h"
#include "runtime/executor/action_watch.h"
#include "runtime/executor/channels.h"
#include "runtime/model/stage_engine.h"
#include "runtime/tensor/allocator.h"
#include "runtime/transport/stream/frame.h"
#include "runtime/transport/stream/message_transport.h"

namespace geopipe {

struct RankPreparation;

// Extends one rank of a job; lives as long as its state, over all epochs. Thread: the job's.
class JobExtension {
 public:
  using BuildEngine = std::function<absl::StatusOr<std::unique_ptr<StageEngine>>()>;

  virtual ~JobExtension() = default;
  // The engine of one of the rank's stages, with `build`'s in it or instead of it.
  virtual absl::StatusOr<std::unique_ptr<StageEngine>> Engine(int32_t stage, const BuildEngine& build) = 0;
  // The messages that the engines make; nullopt: the model's. `norms` as MessagesOfPlan's.
  virtual std::optional<ChannelMessages> Messages(bool norms) = 0;
  // Channels of the rank besides those of its pipeline.
  virtual std::vector<ChannelSpec> Channels() = 0;
  // Layer between UCX and the streams, made anew for each epoch; empty: none.
  virtual MakeFrameLayer Layer() = 0;
  // Called on the thread that is about to train, with its transport and watch, which outlive the training.
  virtual void OnTrain(MessageTransport& transport, ActionWatch& watch) = 0;
};

// Makes the extension; null: none. The references outlive it; the preparation becomes that of each epoch.
using ExtendJob = std::function<std::unique_ptr<JobExtension>(const RankPreparation& preparation, Allocator& allocator,
                                                              Clock& clock)>;

// Rate at which the rank's node sends checkpoint files to other sites. Empty, or an empty result: as fast as it can.
using PaceExchange = std::function<PaceOfSite(const RankPreparation& preparation)>;

}  // namespace geopipe
