// Identities and files of checkpoints on the wire. Conversion checks ranges; the reader or writer of a manifest checks
// the rules that span fields of a file's entry.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <vector>

#include "geopipe/v1/checkpoint.pb.h"
#include "optimizer/model/checkpoint_identity.h"

namespace geopipe {

v1::CheckpointIdentity ToProto(const CheckpointIdentity& identity);
// InvalidArgument names the field, its value and the range.
absl::StatusOr<CheckpointIdentity> FromProto(const v1::CheckpointIdentity& message);
absl::StatusOr<std::vector<CheckpointIdentity>> FromProto(
    const google::protobuf::RepeatedPtrField<v1::CheckpointIdentity>& messages);

absl::Status ValidateMessage(const v1::CheckpointFile& message);

}  // namespace geopipe
