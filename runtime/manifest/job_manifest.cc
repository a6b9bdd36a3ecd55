#include "runtime/manifest/job_manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "optimizer/base/status_macros.h"
#include "optimizer/model/capabilities.h"
#include "runtime/base/config/located_error.h"
#include "runtime/base/files.h"
#include "runtime/manifest/hf_config.h"
#include "runtime/manifest/job_schema.h"

namespace geopipe {
namespace {

constexpr size_t kMaxManifestBytes = size_t{1} << 20;
constexpr std::string_view kModelPath = "spec.model";

// The keys of spec.model that the document gives.
const std::vector<YamlEntry>& ModelKeysOf(const YamlDocument& document) {
  return document.root.Find("spec")->value.Find("model")->value.entries;
}

// Puts the model of a preset or of init_from in the place of keys that are not given.
absl::Status LookUpModel(const YamlDocument& document, JobSpec* job) {
  const std::vector<YamlEntry>& keys = ModelKeysOf(document);
  const auto gives = [&](std::string_view key) {
    return std::ranges::any_of(keys, [&](const YamlEntry& entry) { return entry.key == key; });
  };
  if (gives("preset") && keys.size() > 1) {
    const YamlEntry& other = keys[keys.front().key == "preset" ? 1 : 0];
    return document.Error(other.mark, fmt::format("{}.{}", kModelPath, other.key),
                          "cannot be combined with preset, which gives the whole model; keep one of the two");
  }
  if (job->init_from.empty()) {
    return absl::OkStatus();
  }
  absl::StatusOr<ModelSpec> model = ReadHfConfig(job->init_from);
  if (!model.ok()) {
    return AttributeTo(document, "spec.model.init_from", model.status());
  }
  for (const std::string& key : ModelSchema().KeyPaths()) {
    if (gives(key)) {
      GP_RETURN_IF_ERROR(ModelSchema().OverlayText(key, ModelSchema().Show(key, job->model), "", &*model));
    }
  }
  job->model = *model;
  return AttributeToKey(document, "spec.", CheckSameModel(job->model, job->init_from));
}

// Fills in keys whose default is another key's value.
absl::Status FillIn(const YamlDocument& document, JobSpec* job) {
  ModelSpec& model = job->model;
  if (model.num_key_value_heads == 0) {
    model.num_key_value_heads = model.num_attention_heads;
  }
  DropDefaults(model);
  if (job->search.sequence_length.empty()) {
    job->search.sequence_length = {model.longest_sequence()};
  }
  for (const std::string& key : ModelSchema().KeyPaths()) {
    if (ModelSchema().Show(key, model) == "0") {
      return document.Error(fmt::format("{}.{}", kModelPath, key), "missing; give it, or a preset, or init_from");
    }
  }
  return AttributeToKey(document, "spec.", ValidateJob(*job));
}

// Checks what this machine can say of a folder that is on all nodes: that it is no file, and that links in its path do
// not lead to a folder that ValidateJob refuses.
absl::Status CheckCheckpointFolder(const JobSpec& job) {
  std::error_code error;
  if (job.checkpoint.path.empty() || !std::filesystem::exists(job.checkpoint.path, error)) {
    return absl::OkStatus();
  }
  if (!std::filesystem::is_directory(job.checkpoint.path, error)) {
    return absl::InvalidArgumentError(
        fmt::format("checkpoint.path is {}, a file; name a folder of its own", job.checkpoint.path));
  }
  JobSpec resolved = job;
  resolved.checkpoint.path = std::filesystem::canonical(job.checkpoint.path, error).string();
  return error ? absl::OkStatus() : ValidateJob(resolved);
}

}  // namespace

absl::StatusOr<JobSpec> ParseJobFile(std::string_view text, std::string_view file, const std::filesystem::path& folder,
                                     std::optional<BackendKind> backend) {
  GP_ASSIGN_OR_RETURN(const YamlDocument document, ParseYaml(text, file));
  const Schema<JobSpec> schema = JobSchema(folder.string());
  GP_ASSIGN_OR_RETURN(JobSpec job, schema.Read(document));
  GP_RETURN_IF_ERROR(LookUpModel(document, &job));
  GP_RETURN_IF_ERROR(FillIn(document, &job));
  if (backend.has_value()) {
    GP_RETURN_IF_ERROR(schema.RefuseInert(document));
    GP_RETURN_IF_ERROR(AttributeToKey(document, "spec.", CheckRun(job)));
    GP_RETURN_IF_ERROR(AttributeToKey(document, "spec.", CheckCheckpointFolder(job)));
    GP_RETURN_IF_ERROR(AttributeToKey(document, "spec.", CheckCapabilities(job, *backend)));
  }
  return job;
}

absl::StatusOr<JobSpec> ReadJobFile(const std::filesystem::path& path, std::optional<BackendKind> backend) {
  GP_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxYamlBytes));
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  if (error) {
    return ErrnoStatus(error.value(), fmt::format("cannot resolve {}", path.string()));
  }
  return ParseJobFile(text, path.string(), absolute.parent_path(), backend);
}

absl::Status AttributeToJobFile(const std::filesystem::path& path, const absl::Status& status) {
  const std::string message(status.message());
  const std::string group = message.substr(0, message.find_first_of(".[: "));
  if (!absl::IsInvalidArgument(status) || path == "-") {
    return status;
  }
  const absl::StatusOr<YamlDocument> document = ReadYaml(path);
  const YamlEntry* spec = document.ok() ? document->root.Find("spec") : nullptr;
  return spec == nullptr || spec->value.Find(group) == nullptr ? status : AttributeToKey(*document, "spec.", status);
}

std::string WriteManifest(const JobSpec& job) { return JobSchema("").Write(job); }

absl::StatusOr<JobSpec> ParseManifest(std::string_view text) {
  if (text.size() > kMaxManifestBytes) {
    return absl::InvalidArgumentError(
        fmt::format("manifest: has {} bytes; at most {} are taken", text.size(), kMaxManifestBytes));
  }
  GP_ASSIGN_OR_RETURN(const YamlDocument document, ParseYaml(text, "manifest"));
  const Schema<JobSpec> schema = JobSchema("");
  GP_ASSIGN_OR_RETURN(JobSpec job, schema.Read(document));
  GP_RETURN_IF_ERROR(schema.RefuseInert(document));
  GP_RETURN_IF_ERROR(FillIn(document, &job));
  return job;
}

absl::Status CheckRun(const JobSpec& job) {
  const ParallelismSpec& parallelism = job.parallelism;
  if (parallelism.sequence_parallel && parallelism.tensor <= 1) {
    return absl::InvalidArgumentError(
        "parallelism.sequence_parallel is true; it splits work over tensor-parallel ranks and the job has one, leave "
        "it "
        "out");
  }
  constexpr int32_t kUsualZeroStage = 1;  // often written in files for any number of replicas
  if (parallelism.zero_stage.value_or(kUsualZeroStage) != kUsualZeroStage && parallelism.data <= 1) {
    return absl::InvalidArgumentError(fmt::format(
        "parallelism.zero_stage is {}; it divides over data-parallel ranks and the job has one, leave it out",
        *parallelism.zero_stage));
  }
  if (job.checkpoint.replicate > 0 && job.checkpoint.path.empty()) {
    return absl::InvalidArgumentError(
        "checkpoint.replicate is 1 without checkpoint.path, so there are no checkpoints to replicate; "
        "set checkpoint.path");
  }
  if (job.checkpoint.replicate > 0 && job.placement.sites.size() == 1) {
    return absl::InvalidArgumentError(fmt::format(
        "checkpoint.replicate is 1 and placement.sites names {} alone; copies lie at another site, name two or more or "
        "leave checkpoint.replicate out",
        job.placement.sites.front()));
  }
  return absl::OkStatus();
}

FileReference ExplainJob() {
  return {"A job file. Quantities carry units (20ms, 400Gbps, 64GiB, 15%); relative paths are relative to the file.",
          JobSchema("").Rows()};
}

}  // namespace geopipe
