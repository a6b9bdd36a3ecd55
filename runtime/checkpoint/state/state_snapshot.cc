#include "runtime/checkpoint/state/state_snapshot.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "runtime/checkpoint/tensor_file_writer.h"
#include "runtime/tensor/staging.h"

namespace geopipe {
namespace {

// Enqueues the copy of a tensor to new memory.
absl::StatusOr<Tensor> CopyOf(const Tensor& tensor, Allocator& host) {
  GP_ASSIGN_OR_RETURN(Tensor copy, Tensor::Create(host, MemoryCategory::kRecovery, tensor.dtype(), tensor.shape()));
  GP_RETURN_IF_ERROR(Copy(tensor, copy, Queue::kOut));
  return copy;
}

// The place of a unit in the model.
int64_t NumberOf(const ModelSpec& model, const CheckpointUnit& unit) {
  switch (unit.kind) {
    case CheckpointUnit::Kind::kEmbedding:
      return 0;
    case CheckpointUnit::Kind::kLayer:
      return unit.layer + 1;
    case CheckpointUnit::Kind::kHead:
      break;
  }
  return model.num_hidden_layers + 1;
}

bool DividesStates(const ParameterSharding& sharding) { return sharding.data > 1 && sharding.zero_stage >= 1; }

// True when several ranks write a unit.
bool InParts(const ParameterSharding& sharding) { return sharding.tensor > 1 || DividesStates(sharding); }

}  // namespace

bool WritesPiece(const ModelSpec& model, const CheckpointUnit& unit, const TensorPiece& piece,
                 const ParameterSharding& sharding) {
  const int64_t sharers = sharding.tensor / piece.tensor.parts(sharding.tensor);
  if (piece.count == 0 || sharding.tensor_rank % sharers != 0) {
    return false;
  }
  const bool is_replicated = piece.tensor.is_vector() || !DividesStates(sharding);
  return !is_replicated || NumberOf(model, unit) % sharding.data == sharding.data_rank;
}

absl::StatusOr<Completion> StateSnapshot::Take(const ModelSpec& model, const LayerRange& layers,
                                               std::span<const Parameter> parameters, const ParameterSharding& sharding,
                                               Allocator& host) {
  held_.clear();
  parts_.clear();
  sharding_ = sharding;
  std::map<std::string_view, const Parameter*> by_name;
  for (const Parameter& parameter : parameters) {
    by_name.emplace(parameter.spec.name, &parameter);
  }
  std::vector<const Parameter*> taken;
  for (const CheckpointUnit& unit : UnitsOf(layers)) {
    Part all{.unit = unit, .held = {}};
    Part vectors{.unit = unit, .vectors = true, .held = {}};
    for (const ParameterTensor& tensor : UnitParameters(model, unit)) {
      const auto found = by_name.find(tensor.name);
      GP_CHECK(found != by_name.end(), "a snapshot of a stage without {}", tensor.name);
      if (WritesPiece(model, unit, found->second->piece, sharding)) {
        const size_t place = std::ranges::find(taken, found->second) - taken.begin();
        taken.resize(std::max(taken.size(), place + 1), found->second);
        (InParts(sharding) && tensor.is_vector() ? vectors : all).held.push_back(place);
      }
    }
    for (Part& part : std::array{std::move(all), std::move(vectors)}) {
      if (!part.held.empty()) {
        parts_.push_back(std::move(part));
      }
    }
  }
  Device& device = host.device();
  GP_RETURN_IF_ERROR(device.After(Queue::kOut, device.Record(Queue::kCompute)));
  std::vector<Held> held(taken.size());
  for (size_t i = 0; i < taken.size(); ++i) {
    held[i].piece = taken[i]->piece;
    GP_ASSIGN_OR_RETURN(held[i].value, CopyOf(taken[i]->master, host));
    GP_ASSIGN_OR_RETURN(held[i].first_moment, CopyOf(taken[i]->first_moment, host));
    GP_ASSIGN_OR_RETURN(held[i].second_moment, CopyOf(taken[i]->second_moment, host));
  }
  held_ = std::move(held);  // only now, so that an error leaves no half of one
  return device.Record(Queue::kOut);
}

absl::Status StateSnapshot::Write(const std::string& folder, std::string_view tag, std::vector<FileEntry>& files,
                                  const std::function<bool()>& stopped) const {
  const std::string own =
      InParts(sharding_) ? PartTag(tag, sharding_.tensor_rank, sharding_.data_rank) : std::string(tag);
  for (const Part& part : parts_) {
    if (stopped()) {
      return absl::CancelledError("stopped");
    }
    GP_RETURN_IF_ERROR(WritePart(folder, part.vectors ? VectorsTag(tag, sharding_.tensor_rank) : own, part, files));
  }
  return absl::OkStatus();
}

absl::Status StateSnapshot::WritePart(const std::string& folder, const std::string& tag, const Part& part,
                                      std::vector<FileEntry>& files) const {
  std::vector<TensorRange> values;
  std::vector<TensorRange> both_moments;
  for (const size_t i : part.held) {
    const TensorPiece& piece = held_[i].piece;
    values.push_back(RangeOf(piece.tensor.name, piece));
    both_moments.push_back(RangeOf(FirstMomentName(piece.tensor.name), piece));
    both_moments.push_back(RangeOf(SecondMomentName(piece.tensor.name), piece));
  }
  GP_ASSIGN_OR_RETURN(TensorFileWriter weights, TensorFileWriter::Create(folder, part.unit.weights_file(tag), values));
  for (const size_t i : part.held) {
    const Held& held = held_[i];
    GP_RETURN_IF_ERROR(weights.Append(held.piece.tensor.name, held.piece.tensor.shape, held.value.fp32()));
  }
  GP_ASSIGN_OR_RETURN(FileEntry weights_entry, weights.Finish());
  GP_ASSIGN_OR_RETURN(TensorFileWriter moments,
                      TensorFileWriter::Create(folder, part.unit.moments_file(tag), both_moments));
  for (const size_t i : part.held) {
    const Held& held = held_[i];
    const ParameterTensor& tensor = held.piece.tensor;
    GP_RETURN_IF_ERROR(moments.Append(FirstMomentName(tensor.name), tensor.shape, held.first_moment.fp32()));
    GP_RETURN_IF_ERROR(moments.Append(SecondMomentName(tensor.name), tensor.shape, held.second_moment.fp32()));
  }
  GP_ASSIGN_OR_RETURN(FileEntry moments_entry, moments.Finish());
  files.push_back(std::move(weights_entry));
  files.push_back(std::move(moments_entry));
  return absl::OkStatus();
}

int64_t StateSnapshot::bytes() const {
  int64_t bytes = 0;
  for (const Held& held : held_) {
    bytes += held.value.bytes() + held.first_moment.bytes() + held.second_moment.bytes();
  }
  return bytes;
}

}  // namespace geopipe
