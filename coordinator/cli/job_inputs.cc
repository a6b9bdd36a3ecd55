#include "coordinator/cli/job_inputs.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>

#include "optimizer/base/status_macros.h"
#include "runtime/data/corpus.h"
#include "runtime/manifest/job_manifest.h"
#include "runtime/weights/hf_directory.h"

namespace geopipe {
namespace {

bool LiesHere(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

absl::Status CheckWeights(const JobSpec& job) {
  if (!LiesHere(job.init_from + "/config.json")) {  // a checkpoint, which says itself whether it is whole
    return absl::OkStatus();
  }
  const absl::StatusOr<HfDirectory> weights = HfDirectory::Open(job.init_from);
  GP_RETURN_IF_ERROR(weights.status());
  GP_RETURN_IF_ERROR(weights->CheckHoldsOnly(job.model));
  return weights->CheckTiedHead(job.model);
}

// Names the key and its place in the job file. Every error becomes InvalidArgument: the job names a wrong file.
absl::Status AtKey(std::string_view key, const absl::Status& status, const std::string& job_path) {
  return status.ok()
             ? status
             : AttributeToJobFile(job_path,
                                  absl::InvalidArgumentError(fmt::format("{} {}", key, std::string(status.message()))));
}

}  // namespace

absl::Status CheckDataHere(const JobSpec& job, const std::string& job_path) {
  const absl::Status status = OpenCorpus(job.data, job.model.vocab_size).status();
  return absl::IsNotFound(status) ? absl::OkStatus() : AtKey("data.path", status, job_path);
}

absl::Status CheckInputsHere(const JobSpec& job, const std::string& job_path) {
  GP_RETURN_IF_ERROR(CheckDataHere(job, job_path));
  return job.init_from.empty() ? absl::OkStatus() : AtKey("model.init_from", CheckWeights(job), job_path);
}

}  // namespace geopipe
