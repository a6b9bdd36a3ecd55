// geopipectl export-hf: a checkpoint's weights as a directory for Hugging Face's tools.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>

#include "coordinator/cli/verb.h"
#include "optimizer/base/quantities.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/output.h"
#include "runtime/base/shutdown.h"
#include "runtime/base/terminal.h"
#include "runtime/base/utf8.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/export/hf_export.h"
#include "runtime/checkpoint/export/model_files.h"
#include "runtime/weights/float_formats.h"

namespace geopipe {
namespace {

absl::Status ParseFormat(std::string_view text, FloatFormat& format) {
  const auto* const found = std::ranges::find(kFloatFormats, text, &FloatFormatRow::name);
  if (found == kFloatFormats.end()) {
    return absl::InvalidArgumentError(fmt::format("'{}' is not one of fp32|bf16|fp16", text));
  }
  format = found->format;
  return absl::OkStatus();
}

absl::Status ParseShardSize(std::string_view text, int64_t& bytes) {
  GP_ASSIGN_OR_RETURN(bytes, ParseBytes(text));
  return bytes > 0 ? absl::OkStatus() : absl::InvalidArgumentError("a file cannot have 0 bytes; give 5GB or the like");
}

absl::Status WithExportExitCode(absl::Status status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kAlreadyExists:
      return WithExitCode(std::move(status), kExitBadInput);
    case absl::StatusCode::kCancelled:
      return WithExitCode(std::move(status), kExitInterrupted);
    default:
      return OrFailed(std::move(status));
  }
}

// Exports, with the progress on a terminal, until a signal asks to stop.
absl::StatusOr<HfExportSummary> Export(const Checkpoint& checkpoint, const std::string& output,
                                       HfExportOptions options) {
  GP_ASSIGN_OR_RETURN(const auto shutdown, OrFailed(ShutdownSignal::Install()));
  const bool show = ErrorIsTerminal();
  options.progress = [&](int64_t written, int64_t total) -> absl::Status {
    if (shutdown->Wait(0) != 0) {
      return absl::CancelledError(fmt::format("{}: the export was interrupted; its output was removed", output));
    }
    if (show) {
      PrintErr("\rexport-hf: {} of {}\x1b[K", HumanBytes(written), HumanBytes(total));
    }
    return absl::OkStatus();
  };
  absl::StatusOr<HfExportSummary> summary = ExportHf(checkpoint, output, options);
  if (show) {
    PrintErr("\r\x1b[K");
  }
  return summary;
}

// Reads the files that go with the weights into `options`, and says on standard error why there are none where one
// would expect them. `folder`: "auto", "none", or their folder.
absl::Status FindModelFiles(const Checkpoint& checkpoint, const std::string& folder, HfExportOptions& options) {
  const bool is_given = folder != "auto";
  const std::string source = is_given ? folder : ModelFilesFolder(checkpoint);
  std::error_code error;
  if (source.empty() || folder == "none") {
    return absl::OkStatus();
  }
  if (!std::filesystem::is_directory(source, error)) {
    if (is_given) {
      return absl::InvalidArgumentError(fmt::format("--tokenizer {} is no folder; name the folder of a model", source));
    }
    PrintErr(
        "note: no tokenizer is written: the job's weights came from {}, which is not on this node; name its folder "
        "with --tokenizer DIR\n",
        Printable(source));
    return absl::OkStatus();
  }
  GP_ASSIGN_OR_RETURN(options.model_files, ReadModelFiles(source));
  if (options.model_files.empty() && is_given) {
    return absl::InvalidArgumentError(
        fmt::format("--tokenizer {} has no files of a tokenizer; name the folder of a model", source));
  }
  if (options.model_files.empty()) {
    PrintErr("note: no tokenizer is written: {} has none; name another folder with --tokenizer DIR\n",
             Printable(source));
  }
  return absl::OkStatus();
}

nlohmann::ordered_json NamesOf(const std::vector<ModelFile>& files) {
  auto names = nlohmann::ordered_json::array();
  for (const ModelFile& file : files) {
    names.push_back(Printable(file.name));
  }
  return names;
}

void Print(const CommonFlags& common, const std::string& output, const HfExportOptions& options,
           const HfExportSummary& summary) {
  if (common.output == OutputFormat::kJson) {
    PrintDocument({{"output", output},
                   {"dtype", RowOf(options.format).name},
                   {"tensors", summary.tensors},
                   {"bytes", summary.bytes},
                   {"files", summary.files},
                   {"model_files", NamesOf(options.model_files)}},
                  common.output);
  } else {
    PrintOut("wrote {}, {} in {}{} to {}; load it with transformers' AutoModelForCausalLM.from_pretrained\n",
             Counted(summary.tensors, "tensor"), HumanBytes(summary.bytes), Counted(summary.files, "file"),
             options.model_files.empty() ? ""
                                         : fmt::format(", and {} of tokenizer and generation",
                                                       Counted(std::ssize(options.model_files), "file")),
             output);
  }
}

}  // namespace

absl::StatusOr<int> RunExportHf(std::span<const std::string> arguments) {
  CommonFlags common;
  std::string checkpoint_path;
  std::string output;
  std::string tokenizer = "auto";
  HfExportOptions options;
  FlagSet flags("geopipectl export-hf",
                "Writes the weights of a checkpoint as a directory that Hugging Face's tools load and that a job may "
                "start from (model.init_from). No server needed.");
  flags.AddPath("checkpoint", &checkpoint_path, "DIR", "The checkpoint's folder ('geopipectl checkpoint list').");
  flags.AddPath("output", &output, "DIR", "Where to write; it must not exist or be empty.");
  flags.AddParsed("dtype", "fp32|bf16|fp16", RowOf(options.format).name,
                  "Format of the weights; checkpoints have fp32, which the others round.",
                  [&](std::string_view text) { return ParseFormat(text, options.format); });
  flags.AddParsed(
      "max-shard-size", "SIZE", "5GB",
      "Weights in a file, 1KB being 1000 bytes and 1KiB 1024; if the model has more, it gets several and an index.",
      [&](std::string_view text) { return ParseShardSize(text, options.max_shard_bytes); });
  flags.AddParsed(
      "padding", "cut|keep", "cut",
      "Rows of a padded vocabulary (model.padded_vocab_size) that stand for no token: cut them, or keep them "
      "as tokens.",
      [&](std::string_view text) -> absl::Status {
        options.keeps_padding = text == "keep";
        return text == "keep" || text == "cut"
                   ? absl::OkStatus()
                   : absl::InvalidArgumentError(fmt::format("'{}' is not one of cut|keep", text));
      });
  flags.AddPath(
      "tokenizer", &tokenizer, "auto|none|DIR",
      "Folder of a model whose tokenizer, chat template and generation settings are written too; auto: the one that "
      "the job's weights came from.");
  common.AddFormat(flags);
  if (const auto exit_code = ParseVerbFlags(flags, arguments)) {
    return *exit_code;
  }
  if (checkpoint_path.empty()) {
    return absl::InvalidArgumentError("no checkpoint: name its folder with --checkpoint DIR");
  }
  if (output.empty()) {
    return absl::InvalidArgumentError("no output: name a new folder with --output DIR");
  }
  std::error_code error;
  const auto into = std::filesystem::weakly_canonical(output, error)
                        .lexically_relative(std::filesystem::weakly_canonical(checkpoint_path, error));
  if (!into.empty() && *into.begin() != "..") {
    return absl::InvalidArgumentError(
        fmt::format("--output {} is in the checkpoint itself; choose a folder elsewhere", output));
  }
  absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(checkpoint_path);
  if (!checkpoint.ok()) {
    return absl::IsNotFound(checkpoint.status()) ? checkpoint.status() : OrFailed(checkpoint.status());
  }
  GP_RETURN_IF_ERROR(FindModelFiles(*checkpoint, tokenizer, options));
  const absl::StatusOr<HfExportSummary> summary = Export(*checkpoint, output, options);
  if (!summary.ok()) {
    return WithExportExitCode(summary.status());
  }
  Print(common, output, options, *summary);
  return kExitOk;
}

}  // namespace geopipe
