// Jobs and submissions to and from their messages. FromProto checks sizes, counts and enumerators, then the job as a
// whole; InvalidArgument begins with the path of the field within the message.
#pragma once

#include <absl/status/statusor.h>

#include "geopipe/v1/job.pb.h"
#include "optimizer/model/job_spec.h"
#include "optimizer/model/run_options.h"

namespace geopipe {

v1::ModelSpec ToProto(const ModelSpec& model);
v1::DataSpec ToProto(const DataSpec& data);
v1::TrainingSpec ToProto(const TrainingSpec& training);
v1::Precision ToProto(Precision precision);
v1::ParallelismSpec ToProto(const ParallelismSpec& parallelism);
v1::SearchSpec ToProto(const SearchSpec& search);
v1::CheckpointSpec ToProto(const CheckpointSpec& checkpoint);
v1::ReplanSpec ToProto(const ReplanSpec& replan);
v1::JobSpec ToProto(const JobSpec& job);
v1::BackendKind ToProto(BackendKind backend);
v1::RunOptions ToProto(const RunOptions& run);

absl::StatusOr<ModelSpec> FromProto(const v1::ModelSpec& message);
absl::StatusOr<DataSpec> FromProto(const v1::DataSpec& message);
// Structure only; the rules that span keys are ValidateJob's.
absl::StatusOr<TrainingSpec> FromProto(const v1::TrainingSpec& message);
absl::StatusOr<Precision> FromProto(v1::Precision precision);
absl::StatusOr<ParallelismSpec> FromProto(const v1::ParallelismSpec& message);
absl::StatusOr<SearchSpec> FromProto(const v1::SearchSpec& message);
absl::StatusOr<CheckpointSpec> FromProto(const v1::CheckpointSpec& message);
absl::StatusOr<ReplanSpec> FromProto(const v1::ReplanSpec& message);
// A job that passes ValidateJob.
absl::StatusOr<JobSpec> FromProto(const v1::JobSpec& message);
absl::StatusOr<BackendKind> FromProto(v1::BackendKind backend);
// The default message (all fields unset) is the default RunOptions.
absl::StatusOr<RunOptions> FromProto(const v1::RunOptions& message);

}  // namespace geopipe
