#include "runtime/manifest/job_manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
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

absl::StatusOr<std::filesystem::path> FolderOf(const std::filesystem::path& file) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(file, error);
  if (error) {
    return ErrnoStatus(error.value(), fmt::format("cannot resolve {}", file.string()));
  }
  return absolute.parent_path();
}

struct PartOfFile {
  std::string_view text;
  size_t lines_before = 0;
};

// Cuts before each line of "---", and drops parts of blank lines and comments alone, unless there is no other.
std::vector<PartOfFile> PartsOf(std::string_view text) {
  std::vector<PartOfFile> parts;
  PartOfFile part;
  size_t begin = 0;  // of the part
  bool has_mark = false;
  bool has_content = false;
  size_t line = 0;
  for (size_t at = 0; at < text.size(); ++line) {
    const size_t end = std::min(text.find('\n', at), text.size() - 1) + 1;
    std::string_view here = text.substr(at, end - at);
    const bool is_mark = here == "---" || here.starts_with("---\n") || here.starts_with("---\r") ||
                         here.starts_with("--- ") || here.starts_with("---\t");
    if (is_mark && (has_content || has_mark)) {  // else comments and directives belong to what it begins
      part.text = text.substr(begin, at - begin);
      if (has_content) {
        parts.push_back(part);
      }
      part.lines_before = line;
      begin = at;
      has_content = false;
    }
    has_mark = has_mark || is_mark;
    here.remove_prefix(is_mark ? 3 : 0);
    const size_t first = here.find_first_not_of(" \t\r\n");
    has_content = has_content || (first != std::string_view::npos && here[first] != '#' && here.front() != '%');
    at = end;
  }
  part.text = text.substr(begin);
  if (has_content || parts.empty()) {
    parts.push_back(part);
  }
  return parts;
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
  GP_ASSIGN_OR_RETURN(const std::filesystem::path folder, FolderOf(path));
  return ParseJobFile(text, path.string(), folder, backend);
}

absl::StatusOr<std::vector<JobSpec>> ReadJobsFile(const std::filesystem::path& path,
                                                  std::optional<BackendKind> backend) {
  GP_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxYamlBytes));
  GP_ASSIGN_OR_RETURN(const std::filesystem::path folder, FolderOf(path));
  std::vector<JobSpec> jobs;
  std::map<std::string, size_t> lines;  // of the jobs' documents, from 1
  for (const PartOfFile& part : PartsOf(text)) {
    absl::StatusOr<JobSpec> job = ParseJobFile(part.text, path.string(), folder, backend);
    if (!job.ok()) {  // lines count from the beginning of the file
      return ParseJobFile(std::string(part.lines_before, '\n').append(part.text), path.string(), folder, backend)
          .status();
    }
    const auto [other, is_new] = lines.emplace(job->name, part.lines_before + 1);
    if (!is_new) {
      return absl::InvalidArgumentError(
          fmt::format("{}:{}: a job named {} is in line {} already; give one of them another name", path.string(),
                      part.lines_before + 1, job->name, other->second));
    }
    jobs.push_back(*std::move(job));
  }
  return jobs;
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
