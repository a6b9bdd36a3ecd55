// geopipectl checkpoint: checkpoints of jobs, and those in a folder of this machine.
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "coordinator/cli/control_client.h"
#include "coordinator/cli/job_checkpoints.h"
#include "coordinator/cli/render/format.h"
#include "coordinator/cli/verb.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/output.h"
#include "runtime/base/suggest.h"
#include "runtime/base/terminal.h"
#include "runtime/base/utf8.h"
#include "runtime/base/wrap.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/checkpoint_folders.h"
#include "runtime/checkpoint/verify.h"

namespace geopipe {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::string_view kPathHelp = "A checkpoint's folder, or the folder that holds a job's checkpoints.";

std::string Text(const absl::Status& status) { return Printable(std::string(status.message())); }

// The checkpoint at `path`, or those below it. NotFound: none.
absl::StatusOr<CheckpointList> CheckpointsAt(const std::string& path) {
  if (path.empty()) {
    return absl::InvalidArgumentError(
        "no folder: name the folder of a checkpoint or of a job's checkpoints, with --path DIR");
  }
  std::error_code error;
  if (fs::exists(path, error) && !fs::is_directory(path, error)) {
    return absl::InvalidArgumentError(
        fmt::format("{}: is no folder; name the folder of a checkpoint or of a job's checkpoints", path));
  }
  if (!fs::is_directory(path, error)) {
    return absl::NotFoundError(
        fmt::format("{}: there is no such folder; name the folder of a checkpoint or of a job's checkpoints", path));
  }
  CheckpointList list;
  if (!IterationOfFolder(path).has_value() && !fs::exists(fmt::format("{}/{}", path, kManifestName), error)) {
    GP_ASSIGN_OR_RETURN(list, OrFailed(ListCheckpoints(path)));
    if (list.complete.empty() && list.incomplete.empty()) {
      return absl::NotFoundError(
          fmt::format("{}: holds no checkpoints; name the folder with those of one job (iteration-…)", path));
    }
    return list;
  }
  const absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(path);
  if (checkpoint.ok()) {
    list.complete.push_back({.iteration = checkpoint->manifest().next_iteration, .folder = path});
  } else {
    list.incomplete.push_back(
        {.iteration = IterationOfFolder(path).value_or(0), .folder = path, .reason = checkpoint.status()});
  }
  return list;
}

// Reads the flags of a sub-verb that looks into a folder; an exit code ends it.
absl::StatusOr<std::optional<int>> ParsePath(std::string_view sub_verb, std::string_view summary,
                                             std::span<const std::string> arguments, CommonFlags& common,
                                             CheckpointList& list) {
  std::string path;
  FlagSet flags(fmt::format("geopipectl checkpoint {}", sub_verb), std::string(summary));
  flags.AddPath("path", &path, "DIR", kPathHelp);
  common.AddFormat(flags, {"table", "json", "yaml"});
  if (const auto exit_code = ParseVerbFlags(flags, arguments)) {
    return exit_code;
  }
  GP_ASSIGN_OR_RETURN(list, CheckpointsAt(path));
  return std::nullopt;
}

// A complete checkpoint, as a list shows it.
struct Described {
  std::string job;
  int64_t epoch = 0;
  int64_t files = 0;
  int64_t files_here = 0;  // on this node
  int64_t bytes = 0;       // of all files
  int64_t written_unix_time_ns = 0;
};

absl::StatusOr<Described> Describe(const std::string& folder) {
  GP_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(folder));
  const CheckpointManifest& manifest = checkpoint.manifest();
  Described described{
      .job = manifest.job, .epoch = manifest.epoch, .files = static_cast<int64_t>(manifest.files.size())};
  for (const FileEntry& file : manifest.files) {
    std::error_code ignored;
    described.bytes += file.bytes;
    described.files_here += fs::exists(fmt::format("{}/{}", folder, file.name), ignored) ? 1 : 0;
  }
  struct stat status {};
  if (stat(fmt::format("{}/{}", folder, kManifestName).c_str(), &status) == 0) {
    described.written_unix_time_ns = int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
  }
  return described;
}

Json IncompleteToJson(const CheckpointList& list) {
  Json incomplete = Json::array();
  for (const CheckpointList::Incomplete& checkpoint : list.incomplete) {
    incomplete.push_back({{"iteration", checkpoint.iteration},
                          {"folder", Printable(checkpoint.folder)},
                          {"reason", Text(checkpoint.reason)}});
  }
  return incomplete;
}

absl::StatusOr<int> ListFolder(const CommonFlags& common, const CheckpointList& list) {
  Table table({"ITERATION", "JOB", "EPOCH", "FILES", "SIZE", "WRITTEN", "FOLDER"});
  Json complete = Json::array();
  for (const CheckpointList::Complete& checkpoint : list.complete) {
    GP_ASSIGN_OR_RETURN(const Described described, OrFailed(Describe(checkpoint.folder)));
    const auto written_s = static_cast<std::time_t>(described.written_unix_time_ns / 1'000'000'000);
    table.AddRow({fmt::format("{}", checkpoint.iteration), Printable(described.job), fmt::format("{}", described.epoch),
                  described.files_here == described.files
                      ? fmt::format("{}", described.files)
                      : fmt::format("{} of {}", described.files_here, described.files),
                  HumanBytes(described.bytes), fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(written_s)),
                  Printable(checkpoint.folder)});
    complete.push_back({{"iteration", checkpoint.iteration},
                        {"folder", Printable(checkpoint.folder)},
                        {"job", described.job},
                        {"epoch", described.epoch},
                        {"files", described.files},
                        {"files_here", described.files_here},
                        {"bytes", described.bytes},
                        {"written_unix_time_ns", described.written_unix_time_ns}});
  }
  if (common.output != OutputFormat::kTable) {
    PrintDocument({{"complete", std::move(complete)}, {"incomplete", IncompleteToJson(list)}}, common.output);
    return kExitOk;
  }
  PrintOut("{}", table.rows() == 0 ? "no complete checkpoints\n" : table.Render(TextColumns()));
  for (const CheckpointList::Incomplete& checkpoint : list.incomplete) {
    PrintOut("incomplete: {}\n", Text(checkpoint.reason));
  }
  return kExitOk;
}

absl::StatusOr<int> ListOfJob(const CommonFlags& common, const std::string& job) {
  ControlClient client(common.server, common.timeout_ns);
  GP_ASSIGN_OR_RETURN(const v1::JobDetail detail, client.GetJob(job));
  if (common.output != OutputFormat::kTable) {
    PrintDocument({{"job", job}, {"complete", CheckpointsToJson(detail)}}, common.output);
    return kExitOk;
  }
  const std::string text = WrapLines(CheckpointText(detail, TextColumns()), TextColumns());
  PrintOut("{}", text.empty() ? "no complete checkpoints\n" : text);
  return kExitOk;
}

absl::StatusOr<int> RunList(std::span<const std::string> arguments) {
  CommonFlags common;
  std::string job;
  std::string path;
  FlagSet flags("geopipectl checkpoint list",
                "Lists the checkpoints of a job that are complete on all its nodes, or those in a folder here.");
  flags.AddPositional("JOB", &job, false, "Name of the job ('geopipectl get jobs'); or --path.");
  flags.AddPath("path", &path, "DIR", kPathHelp);
  common.AddServer(flags);
  common.AddFormat(flags, {"table", "json", "yaml"});
  if (const auto exit_code = ParseVerbFlags(flags, arguments)) {
    return *exit_code;
  }
  if (!job.empty() && !path.empty()) {
    return absl::InvalidArgumentError("both a job and --path: name one of them");
  }
  if (!job.empty()) {
    return ListOfJob(common, job);
  }
  GP_ASSIGN_OR_RETURN(const CheckpointList list, CheckpointsAt(path));
  return ListFolder(common, list);
}

std::string_view KindName(CheckpointProblem::Kind kind) {
  static constexpr std::array<std::string_view, 6> kNames{"missing", "unreadable", "size",
                                                          "header",  "tensor",     "incomplete"};
  return kNames[static_cast<size_t>(kind)];
}

// Verifies one complete checkpoint, prints what is found when `print`, and returns it for programs.
absl::StatusOr<Json> VerifyOne(const CheckpointList::Complete& listed, bool print) {
  const std::string folder = Printable(listed.folder);
  GP_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(listed.folder));
  const std::vector<FileEntry>& files = checkpoint.manifest().files;
  const bool show = ErrorIsTerminal();
  absl::StatusOr<std::vector<CheckpointProblem>> problems =
      VerifyCheckpoint(listed.folder, [&](int64_t done, int64_t total) {
        if (show) {
          PrintErr("\r{}: {} of {}\x1b[K", folder, HumanBytes(done), HumanBytes(total));
        }
      });
  if (show) {
    PrintErr("\r\x1b[K");
  }
  GP_RETURN_IF_ERROR(problems.status());
  size_t tensors = 0;
  for (const FileEntry& file : files) {
    tensors += file.tensors.size();
  }
  Json found = Json::array();
  std::set<std::string_view> touched;
  for (const CheckpointProblem& problem : *problems) {
    touched.insert(problem.file);
    found.push_back({{"kind", KindName(problem.kind)},
                     {"file", problem.file},
                     {"tensor", problem.tensor.empty() ? Json() : Json(problem.tensor)},
                     {"message", Printable(problem.message)}});
    if (print) {
      PrintOut("{}\n", Printable(problem.message));
    }
  }
  const auto file_count = static_cast<int64_t>(files.size());
  if (print && problems->empty()) {
    PrintOut("{}: {} in {} are intact\n", folder, Counted(static_cast<int64_t>(tensors), "tensor"),
             Counted(file_count, "file"));
  } else if (print) {
    PrintOut("{}: {} in {} of {}\n", folder, Counted(std::ssize(*problems), "problem"), touched.size(),
             Counted(file_count, "file"));
  }
  return Json{{"iteration", listed.iteration},
              {"folder", folder},
              {"tensors", tensors},
              {"files", file_count},
              {"problems", std::move(found)}};
}

absl::StatusOr<int> RunVerify(std::span<const std::string> arguments) {
  CommonFlags common;
  CheckpointList list;
  GP_ASSIGN_OR_RETURN(
      const std::optional<int> exit_code,
      ParsePath(
          "verify",
          "Reads all bytes of checkpoints and reports what is damaged or missing; exits with 1 if anything is. An "
          "incomplete checkpoint beside complete ones is only mentioned.",
          arguments, common, list));
  if (exit_code.has_value()) {
    return *exit_code;
  }
  const bool print = common.output == OutputFormat::kTable;
  bool intact = !list.complete.empty();
  Json complete = Json::array();
  for (const CheckpointList::Complete& checkpoint : list.complete) {
    GP_ASSIGN_OR_RETURN(Json found, OrFailed(VerifyOne(checkpoint, print)));
    intact = intact && found["problems"].empty();
    complete.push_back(std::move(found));
  }
  for (const CheckpointList::Incomplete& checkpoint : list.incomplete) {
    intact = intact && absl::IsNotFound(checkpoint.reason);
    if (print) {
      PrintOut("incomplete: {}\n", Text(checkpoint.reason));
    }
  }
  if (!print) {
    PrintDocument({{"intact", intact}, {"complete", std::move(complete)}, {"incomplete", IncompleteToJson(list)}},
                  common.output);
  }
  return intact ? kExitOk : kExitFailed;
}

struct SubVerb {
  std::string_view name;
  std::string_view summary;
  VerbFunction run;
};

constexpr std::array<SubVerb, 3> kSubVerbs{{
    {"list", "List the checkpoints of a job, or in a folder of this machine.", RunList},
    {"now", "Make a job write a checkpoint now.", RunCheckpointNow},
    {"verify", "Say whether checkpoints are intact.", RunVerify},
}};

std::string Help() {
  std::string text =
      "geopipectl checkpoint: saved states to resume jobs from.\n\nusage: geopipectl checkpoint VERB [flags]\n\n";
  for (const SubVerb& verb : kSubVerbs) {
    text += fmt::format("  {:<8}{}\n", verb.name, verb.summary);
  }
  return text;
}

}  // namespace

absl::StatusOr<int> RunCheckpoint(std::span<const std::string> arguments) {
  if (arguments.empty()) {
    PrintErr("{}", Help());
    return kExitBadInput;
  }
  const std::string& name = arguments.front();
  if (name == "--help" || name == "-h") {
    PrintOut("{}", Help());
    return kExitOk;
  }
  const auto* const verb = std::ranges::find(kSubVerbs, name, &SubVerb::name);
  if (verb == kSubVerbs.end()) {
    std::vector<std::string> names;
    names.reserve(kSubVerbs.size());
    for (const SubVerb& known : kSubVerbs) {
      names.emplace_back(known.name);
    }
    return absl::InvalidArgumentError(
        fmt::format("unknown verb 'checkpoint {}'{}\n'geopipectl checkpoint --help' lists the verbs.", name,
                    DidYouMean(name, names)));
  }
  return verb->run(arguments.subspan(1));
}

}  // namespace geopipe
