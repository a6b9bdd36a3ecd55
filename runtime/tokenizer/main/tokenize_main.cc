// geopipe-tokenize: `geopipectl data tokenize`. A program of its own, because the libraries of tokenizers cannot be in
// one process with gRPC's (runtime/tokenizer/CMakeLists.txt).
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "optimizer/base/quantities.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/clock.h"
#include "runtime/base/flags.h"
#include "runtime/base/output.h"
#include "runtime/base/shutdown.h"
#include "runtime/base/terminal.h"
#include "runtime/base/thread_pool.h"
#include "runtime/base/utf8.h"
#include "runtime/checkpoint/new_file.h"
#include "runtime/data/text_corpus.h"
#include "runtime/tokenizer/files/tokenize_files.h"
#include "runtime/tokenizer/open_tokenizer.h"

namespace geopipe {
namespace {

namespace fs = std::filesystem;

constexpr int kExitOk = 0;
constexpr int kExitFailed = 1;
constexpr int kExitBadInput = 2;
constexpr int kExitOfSignal = 128;  // and its number
constexpr int32_t kMaxThreads = 256;
constexpr int32_t kMaxHelpColumns = 100;
constexpr int64_t kMaxNarrowVocabulary = int64_t{1} << 16;
constexpr int64_t kProgressNs = 250'000'000;

struct Options {
  std::string tokenizer;
  std::string output;
  std::vector<std::string> inputs;
  std::optional<TextLayout> layout;
  std::string bos = "auto";
  std::string eos = "auto";
  bool reads_special = true;
  int32_t threads = ThreadPool::Processors(kMaxThreads);
  bool replace = false;
  bool json = false;
  EncodingOptions encoding;
};

// Adds a flag whose value is one of some words, the first by default.
template <class Value>
void AddChoice(FlagSet& flags, std::string_view name, std::vector<std::pair<std::string, Value>> words, Value* target,
               std::string_view help) {
  std::string choices;
  for (const auto& [word, value] : words) {
    choices += fmt::format("{}{}", choices.empty() ? "" : "|", word);
  }
  const std::string first = words.front().first;
  flags.AddParsed(name, choices, first, help,
                  [words = std::move(words), choices, target](std::string_view text) -> absl::Status {
                    for (const auto& [word, value] : words) {
                      if (word == text) {
                        *target = value;
                        return absl::OkStatus();
                      }
                    }
                    return absl::InvalidArgumentError(fmt::format("'{}' is not one of {}", Excerpt(text), choices));
                  });
}

void Register(FlagSet& flags, Options& options) {
  flags.AddPositionals("FILE", &options.inputs, "Text files and globs. They are read in the order of their names.");
  flags.AddPath(
      "tokenizer", &options.tokenizer, "PATH",
      "tokenizer.json (byte-level BPE), a SentencePiece model, or the folder of a model that has one of them.");
  flags.AddPath("output", &options.output, "FILE", "The token file to write.");
  flags.Add("replace", &options.replace, "Replace the output if it exists; without it such a file is kept.");
  AddChoice<std::optional<TextLayout>>(flags, "documents",
                                       {{"auto", std::nullopt},
                                        {"file", TextLayout::kFile},
                                        {"line", TextLayout::kLines},
                                        {"jsonl", TextLayout::kJsonLines}},
                                       &options.layout,
                                       "Each file is one document, or each line, or the text in each line of JSON; "
                                       "auto: JSON of *.jsonl and *.ndjson, else "
                                       "files.");
  flags.Add("key", &options.encoding.key, "KEY", "Where a line of JSON has its text.");
  flags.Add("bos", &options.bos, "auto|none|TOKEN",
            "Token before each document; auto: the tokenizer's, if it has one.");
  flags.Add("eos", &options.eos, "auto|none|TOKEN",
            "Token behind each document; auto: the tokenizer's, or eos_token of tokenizer_config.json beside it.");
  AddChoice<bool>(
      flags, "special-tokens", {{"read", true}, {"text", false}}, &options.reads_special,
      "Whether special tokens that stand in a text are read as such, as Hugging Face's tokenizers do, or as "
      "any other text.");
  AddChoice<bool>(flags, "invalid-utf8", {{"error", false}, {"replace", true}}, &options.encoding.repairs_utf8,
                  "What happens to bytes that are no UTF-8; replace: U+FFFD.");
  flags.Add("threads", &options.threads, "N", "Threads that encode; the tokens do not depend on it.");
  AddChoice<bool>(flags, "format,o", {{"table", false}, {"json", true}}, &options.json, "How to print the summary.");
}

absl::Status CheckGiven(const Options& options) {
  if (options.tokenizer.empty()) {
    return absl::InvalidArgumentError("no tokenizer: name tokenizer.json or its folder with --tokenizer PATH");
  }
  if (options.output.empty()) {
    return absl::InvalidArgumentError("no output: name the token file to write with --output FILE");
  }
  if (options.inputs.empty()) {
    return absl::InvalidArgumentError("no text: name files or globs, like 'text/*.jsonl'");
  }
  if (options.threads < 1 || options.threads > kMaxThreads) {
    return absl::InvalidArgumentError(fmt::format("--threads: {} is not from 1 to {}", options.threads, kMaxThreads));
  }
  if (options.encoding.key.empty() || !IsUtf8(options.encoding.key)) {
    return absl::InvalidArgumentError("--key: name the key of the text in a line of JSON");
  }
  return absl::OkStatus();
}

absl::Status CheckOutput(const Options& options, const std::vector<std::string>& inputs) {
  std::error_code error;
  const fs::file_status status = fs::status(options.output, error);
  if (!fs::exists(status)) {
    return absl::OkStatus();
  }
  if (!fs::is_regular_file(status)) {
    return absl::InvalidArgumentError(fmt::format("--output {} is no file; name a new file", options.output));
  }
  for (const std::string& input : inputs) {
    if (fs::equivalent(options.output, input, error)) {
      return absl::InvalidArgumentError(
          fmt::format("--output {} is {}, which would be lost; choose another", options.output, input));
    }
  }
  return options.replace ? absl::OkStatus()
                         : absl::InvalidArgumentError(fmt::format(
                               "--output {} exists; choose another, or replace it with --replace", options.output));
}

template <class T>
absl::StatusOr<T> InFlag(std::string_view flag, absl::StatusOr<T> value) {
  return value.ok() ? std::move(value)
                    : absl::InvalidArgumentError(fmt::format("{}: {}", flag, std::string(value.status().message())));
}

absl::Status ReadMarks(const Tokenizer& tokenizer, Options& options) {
  GP_ASSIGN_OR_RETURN(options.encoding.begin,
                      InFlag("--bos", MarkNamed(tokenizer, options.bos, tokenizer.own_marks().begin)));
  GP_ASSIGN_OR_RETURN(options.encoding.end,
                      InFlag("--eos", MarkNamed(tokenizer, options.eos, tokenizer.own_marks().end)));
  return options.eos == "auto" && options.encoding.end.empty()
             ? absl::InvalidArgumentError(
                   "--eos: the tokenizer names no end of text, by which documents are told apart; name the token, like "
                   "--eos '<|endoftext|>', or give --eos none")
             : absl::OkStatus();
}

// The progress on a terminal, until a signal asks to stop.
class Course {
 public:
  Course(ShutdownSignal& shutdown, int64_t total_bytes)
      : shutdown_(shutdown), total_bytes_(total_bytes), begun_ns_(Clock::Real().NowNs()) {}
  ~Course() {
    if (shown_ns_ > 0) {
      PrintErr("\r\x1b[K");
    }
  }

  absl::Status At(int64_t bytes_done) {
    signal_ = shutdown_.Wait(0);
    if (signal_ != 0) {
      return absl::CancelledError("interrupted; nothing was written");
    }
    const int64_t now_ns = Clock::Real().NowNs();
    if (ErrorTakesControl() && now_ns - std::max(shown_ns_, begun_ns_) >= kProgressNs) {
      shown_ns_ = now_ns;
      PrintErr("\rtokenize: {} of {}, {:.1f} MB/s\x1b[K", HumanBytes(bytes_done), HumanBytes(total_bytes_),
               MegabytesPerSecond(bytes_done));
    }
    return absl::OkStatus();
  }

  double seconds() const { return static_cast<double>(Clock::Real().NowNs() - begun_ns_) / 1e9; }
  double MegabytesPerSecond(int64_t bytes) const {
    return static_cast<double>(bytes) / 1e6 / std::max(seconds(), 1e-9);
  }
  int signal() const { return signal_; }

 private:
  ShutdownSignal& shutdown_;
  const int64_t total_bytes_;
  const int64_t begun_ns_;
  int64_t shown_ns_ = 0;
  int signal_ = 0;
};

std::string MarksText(const std::vector<Mark>& marks) {
  std::vector<std::string> words;
  words.reserve(marks.size());
  for (const Mark& mark : marks) {
    words.push_back(fmt::format("{} ({})", Excerpt(mark.token), mark.id));
  }
  return words.empty() ? "nothing" : fmt::format("{}", fmt::join(words, " "));
}

nlohmann::ordered_json MarksToJson(const std::vector<Mark>& marks) {
  auto ids = nlohmann::ordered_json::array();
  for (const Mark& mark : marks) {
    ids.push_back(mark.id);
  }
  return ids;
}

void Print(const Options& options, const Tokenizer& tokenizer, const TextCounts& counts, size_t files, double seconds) {
  const std::string_view dtype = options.encoding.token_bytes == 2 ? "uint16" : "uint32";
  const double rate = static_cast<double>(counts.text_bytes) / 1e6 / std::max(seconds, 1e-9);
  const double bytes_per_token = static_cast<double>(counts.text_bytes) / static_cast<double>(counts.tokens);
  if (options.json) {
    const nlohmann::ordered_json json{{"output", Printable(options.output)},
                                      {"dtype", dtype},
                                      {"vocabulary", tokenizer.vocabulary()},
                                      {"tokens", counts.tokens},
                                      {"documents", counts.documents},
                                      {"empty_documents", counts.empty_documents},
                                      {"files", files},
                                      {"text_bytes", counts.text_bytes},
                                      {"before", MarksToJson(options.encoding.begin)},
                                      {"behind", MarksToJson(options.encoding.end)},
                                      {"seconds", seconds}};
    PrintOut("{}\n", json.dump(2));
    return;
  }
  PrintOut("wrote {} of {} to {}: {}, {}\n", Counted(counts.tokens, "token"), Counted(counts.documents, "document"),
           Printable(options.output), dtype, HumanBytes(counts.tokens * options.encoding.token_bytes));
  PrintOut("text: {} in {}, {:.2f} bytes a token, {:.1f} MB/s with {}\n", HumanBytes(counts.text_bytes),
           Counted(static_cast<int64_t>(files), "file"), bytes_per_token, rate, Counted(options.threads, "thread"));
  PrintOut("each document: {} before it, {} behind it{}\n", MarksText(options.encoding.begin),
           MarksText(options.encoding.end),
           counts.empty_documents == 0
               ? ""
               : fmt::format("; {} left out", Counted(counts.empty_documents, "empty document")));
  PrintOut("in a job: data: {{format: tokens, path: [{}], dtype: {}}}, with model.vocab_size {} or more\n",
           Printable(options.output), dtype, tokenizer.vocabulary());
}

absl::Status Tokenize(Options options, int& signal) {
  GP_RETURN_IF_ERROR(CheckGiven(options));
  GP_ASSIGN_OR_RETURN(const std::vector<std::string> files, MatchFiles(options.inputs, "FILE"));
  GP_RETURN_IF_ERROR(CheckOutput(options, files));
  GP_ASSIGN_OR_RETURN(const OpenedTokenizer opened, OpenTokenizer(options.tokenizer, !options.reads_special));
  const Tokenizer& tokenizer = *opened.tokenizer;
  GP_RETURN_IF_ERROR(ReadMarks(tokenizer, options));
  options.encoding.token_bytes = tokenizer.vocabulary() <= kMaxNarrowVocabulary ? 2 : 4;
  TextReader reader(
      files, {.layout = options.layout, .cuts = tokenizer.can_cut(), .max_piece_bytes = tokenizer.max_piece_bytes()});
  GP_ASSIGN_OR_RETURN(const int64_t bytes, reader.CheckFiles());
  GP_ASSIGN_OR_RETURN(const std::unique_ptr<ShutdownSignal> shutdown, ShutdownSignal::Install());
  GP_ASSIGN_OR_RETURN(NewFile output, NewFile::Create(options.output));
  Course course(*shutdown, bytes);
  const TokenizeHooks hooks{.write = [&](std::span<const std::byte> tokens) { return output.Write(tokens); },
                            .progress = [&](int64_t done) { return course.At(done); }};
  const absl::StatusOr<TextCounts> counts = TokenizeFiles(reader, tokenizer, options.encoding, options.threads, hooks);
  signal = course.signal();
  GP_RETURN_IF_ERROR(counts.status());
  if (counts->documents == 0) {
    return absl::InvalidArgumentError(fmt::format("{}: no document in any of {}; name files with text", files.front(),
                                                  Counted(static_cast<int64_t>(files.size()), "file")));
  }
  const double seconds = course.seconds();
  GP_RETURN_IF_ERROR(output.Commit());
  Print(options, tokenizer, *counts, files.size(), seconds);
  return absl::OkStatus();
}

bool IsBadInput(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kFailedPrecondition:
      return true;
    default:
      return false;
  }
}

int Run(int argc, char** argv) {
  Options options;
  FlagSet flags(
      "geopipectl data tokenize",
      "Turns text files into the token file that a job trains on (data.format: tokens), with the tokenizer of "
      "its model. No server needed.");
  Register(flags, options);
  if (const absl::Status status = flags.Parse(argc - 1, argv + 1); !status.ok()) {
    const std::string message = Printable(std::string(status.message()));
    PrintErr("error: {}\n{}", message, message.ends_with(flags.Usage()) ? "" : flags.Usage() + "\n");
    return kExitBadInput;
  }
  if (flags.help_requested()) {
    PrintOut("{}", flags.Help(std::min(TerminalColumns(), kMaxHelpColumns)));
    return kExitOk;
  }
  int signal = 0;
  if (const absl::Status status = Tokenize(std::move(options), signal); !status.ok()) {
    PrintErr("error: {}\n", Printable(std::string(status.message())));
    return signal != 0 ? kExitOfSignal + signal : IsBadInput(status) ? kExitBadInput : kExitFailed;
  }
  return kExitOk;
}

}  // namespace
}  // namespace geopipe

int main(int argc, char** argv) {
  geopipe::PrepareStandardStreams();
  return geopipe::ExitCodeAfterOutput("error", geopipe::Run(argc, argv));
}
