#include "proto/wire/checkpoint_wire.h"

#include "optimizer/base/status_macros.h"
#include "proto/wire/fields.h"

namespace geopipe {
namespace {

using wire::CheckCount;
using wire::CheckRange;
using wire::kMaxInt64;
using wire::Under;

constexpr int64_t kMaxTensors = 100'000;
constexpr int64_t kMaxDimensions = 8;

absl::Status ValidateTensor(const v1::CheckpointTensor& message) {
  GP_RETURN_IF_ERROR(wire::CheckName("name", message.name()));
  GP_RETURN_IF_ERROR(wire::CheckEach("shape", message.shape(), kMaxDimensions, 1, kMaxInt64));
  GP_RETURN_IF_ERROR(CheckRange("offset", message.offset(), 0, kMaxInt64));
  GP_RETURN_IF_ERROR(CheckRange("column_parts", message.column_parts(), 0, kMaxInt64));
  return CheckRange("elements", message.elements(), 1, kMaxInt64);
}

}  // namespace

v1::CheckpointIdentity ToProto(const CheckpointIdentity& identity) {
  v1::CheckpointIdentity message;
  message.set_iteration(identity.iteration);
  message.set_incarnation(identity.incarnation);
  message.set_epoch(identity.epoch);
  message.set_sequence_length(identity.sequence_length);
  return message;
}

absl::StatusOr<CheckpointIdentity> FromProto(const v1::CheckpointIdentity& message) {
  GP_RETURN_IF_ERROR(CheckRange("iteration", message.iteration(), 0, kMaxInt64));
  GP_RETURN_IF_ERROR(CheckRange("sequence_length", message.sequence_length(), 1, kMaxInt64));
  return CheckpointIdentity{.iteration = message.iteration(),
                            .incarnation = message.incarnation(),
                            .epoch = message.epoch(),
                            .sequence_length = message.sequence_length()};
}

absl::StatusOr<std::vector<CheckpointIdentity>> FromProto(
    const google::protobuf::RepeatedPtrField<v1::CheckpointIdentity>& messages) {
  std::vector<CheckpointIdentity> identities;
  for (const v1::CheckpointIdentity& message : messages) {
    GP_ASSIGN_OR_RETURN(identities.emplace_back(), FromProto(message));
  }
  return identities;
}

absl::Status ValidateMessage(const v1::CheckpointFile& message) {
  GP_RETURN_IF_ERROR(wire::CheckName("name", message.name()));
  GP_RETURN_IF_ERROR(CheckRange("bytes", message.bytes(), 0, kMaxInt64));
  GP_RETURN_IF_ERROR(CheckRange("header_bytes", message.header_bytes(), 0, message.bytes()));
  GP_RETURN_IF_ERROR(CheckCount("tensors", message.tensors_size(), kMaxTensors));
  for (int i = 0; i < message.tensors_size(); ++i) {
    const absl::Status status = ValidateTensor(message.tensors(i));
    if (!status.ok()) {
      return Under(fmt::format("tensors[{}]", i), status);
    }
  }
  return absl::OkStatus();
}

}  // namespace geopipe
