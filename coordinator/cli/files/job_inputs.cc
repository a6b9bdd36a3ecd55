#include "coordinator/cli/files/job_inputs.h"

#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <system_error>

#include "optimizer/base/status_macros.h"
#include "runtime/data/corpus.h"
#include "runtime/data/validation_corpus.h"
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
  GP_RETURN_IF_ERROR(weights->CheckHoldsAll(job.model));
  return weights->CheckTiedHead(job.model);
}

// Names the key and its place in the job file. Every error becomes InvalidArgument: the job names a wrong file.
absl::Status AtKey(std::string_view key, const absl::Status& status, const std::string& job_path) {
  return status.ok()
             ? status
             : AttributeToJobFile(job_path,
                                  absl::InvalidArgumentError(fmt::format("{} {}", key, std::string(status.message()))));
}

// Data that is not here may be where the ranks are.
absl::Status DataStatus(const absl::Status& status, const std::string& job_path, std::string_view key = "data.path") {
  return absl::IsNotFound(status) ? absl::OkStatus() : AtKey(key, status, job_path);
}

absl::Status CheckValidation(const JobSpec& job, const std::string& job_path) {
  return job.evaluates() ? DataStatus(OpenValidationCorpus(job).status(), job_path, "evaluation.data.path")
                         : absl::OkStatus();
}

}  // namespace

absl::Status CheckDataHere(const JobSpec& job, const std::string& job_path) {
  GP_RETURN_IF_ERROR(DataStatus(OpenCorpus(job.data, job.model.vocab_size).status(), job_path));
  return CheckValidation(job, job_path);
}

absl::Status CheckInputsHere(const JobSpec& job, BackendKind backend, const std::string& job_path) {
  if (!CapabilitiesOf(backend).computes) {
    return absl::OkStatus();
  }
  const absl::StatusOr<std::unique_ptr<Corpus>> data = OpenCorpus(job.data, job.model.vocab_size);
  GP_RETURN_IF_ERROR(DataStatus(data.status(), job_path));
  // However long samples are, as many tokens are needed, and the last one's target.
  if (data.ok() && (*data)->tokens() <= job.training.tokens_per_iteration) {
    return DataStatus(absl::InvalidArgumentError(fmt::format(
                          "{}: {} tokens are in data.path, fewer than the {} of one iteration and one more; name more "
                          "data, or give a smaller training.tokens_per_iteration",
                          (*data)->files().path_of(0), (*data)->tokens(), job.training.tokens_per_iteration)),
                      job_path);
  }
  GP_RETURN_IF_ERROR(CheckValidation(job, job_path));
  return job.init_from.empty() ? absl::OkStatus() : AtKey("model.init_from", CheckWeights(job), job_path);
}

}  // namespace geopipe
