// geopipectl: plans, simulates and controls training jobs.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/cli/playground/playground_verb.h"
#include "coordinator/cli/verb.h"
#include "runtime/base/grpc/process_limits.h"
#include "runtime/base/output.h"
#include "runtime/base/suggest.h"
#include "runtime/base/terminal.h"
#include "runtime/base/utf8.h"
#include "runtime/base/wrap.h"

namespace geopipe {
namespace {

struct Verb {
  std::string_view name;
  std::string_view summary;
  VerbFunction run;
};

constexpr std::array<Verb, 21> kVerbs{{
    {"playground", "Train a job over several sites rehearsed on this machine.", RunPlayground},
    {"plan", "Say what a job would do on a cluster, and why. No server needed.", RunPlan},
    {"simulate", "Simulate a schedule with explicit costs. No server needed.", RunSimulate},
    {"apply", "Submit a job to the coordinator.", RunApply},
    {"get", "List jobs, sites, links or plans.", RunGet},
    {"describe", "Show everything about one job.", RunDescribe},
    {"watch", "Follow a job: its states and its iterations.", RunWatch},
    {"profile", "Write what a job's workers have measured, for plan --profile.", RunProfile},
    {"trace", "Write a job's latest iteration, measured beside predicted.", RunTrace},
    {"cancel", "Stop jobs for good.", RunCancel},
    {"pause", "Stop jobs after the iteration under way; they keep their devices.", RunPause},
    {"resume", "Let paused jobs go on.", RunResume},
    {"checkpoint", "List, verify and ask for checkpoints.", RunCheckpoint},
    {"backup", "Write a copy of the coordinator's job store while jobs go on.", RunBackup},
    {"stop-stray", "Stop workers of a node whose run the coordinator does not know.", RunStopStray},
    {"drain", "Take a site out of use: its jobs go on at other sites.", RunDrain},
    {"uncordon", "Take a drained site into use again.", RunUncordon},
    {"data", "Make training data of text: data tokenize. No server needed.", RunData},
    {"export-hf", "Write a checkpoint's weights for Hugging Face's tools. No server needed.", RunExportHf},
    {"explain", "Every key of a file: its type, its default, what it means.", RunExplain},
    {"version", "Versions of this program and of the coordinator.", RunVersion},
}};

std::string Help() {
  std::string text =
      "geopipectl trains one large language model across datacenters.\n\n"
      "usage: geopipectl VERB [flags]        geopipectl help VERB\n\n";
  for (const Verb& verb : kVerbs) {
    text += fmt::format("  {:<12}{}\n", verb.name, verb.summary);
  }
  text +=
      "\nExit codes: 0 ok, 1 failed, 2 bad input, 3 infeasible, 4 unreachable, 5 denied, 130 interrupted, 143 told to "
      "stop.\n";
  return WrapLines(text, TerminalColumns());
}

// Flags of the connection may stand before the verb; each becomes the verb's own.
std::vector<std::string> VerbFirst(std::vector<std::string> arguments) {
  auto verb = arguments.begin();
  while (verb != arguments.end()) {
    if (*verb == "--server" || *verb == "--timeout") {
      verb += std::min<std::ptrdiff_t>(2, arguments.end() - verb);
    } else if (verb->starts_with("--server=") || verb->starts_with("--timeout=")) {
      ++verb;
    } else {
      break;
    }
  }
  if (verb != arguments.end()) {
    std::rotate(arguments.begin(), verb, verb + 1);
  }
  return arguments;
}

int RunVerb(const std::vector<std::string>& given) {
  const std::vector<std::string> arguments = VerbFirst(given);
  if (arguments.empty()) {
    PrintErr("{}", Help());
    return kExitBadInput;
  }
  const std::string& name = arguments.front();
  if (name == "help" || name == "--help" || name == "-h") {
    if (arguments.size() > 1) {
      return RunVerb({arguments[1], "--help"});
    }
    PrintOut("{}", Help());
    return kExitOk;
  }
  if (name == "--version") {
    return RunVerb({"version", "--client"});
  }
  const auto* const verb = std::ranges::find(kVerbs, name, &Verb::name);
  if (verb == kVerbs.end()) {
    std::vector<std::string> names;
    names.reserve(kVerbs.size());
    for (const Verb& known : kVerbs) {
      names.emplace_back(known.name);
    }
    PrintErr("error: unknown verb '{}'{}\n'geopipectl help' lists the verbs.\n", Excerpt(name),
             DidYouMean(name, names));
    return kExitBadInput;
  }
  const absl::StatusOr<int> exit_code = verb->run(std::span(arguments).subspan(1));
  if (exit_code.ok()) {
    return *exit_code;
  }
  std::string_view message(exit_code.status().message().data(), exit_code.status().message().size());
  while (message.ends_with('\n')) {  // of a schedule's grid
    message.remove_suffix(1);
  }
  PrintErr("error: {}\n", Printable(message));
  return ExitCodeOf(exit_code.status());
}

}  // namespace
}  // namespace geopipe

int main(int argc, char** argv) {
  geopipe::PrepareStandardStreams();
  geopipe::EndWhereResourcesEnd("error");
  if (const absl::Status status = geopipe::EnoughDescriptors(); !status.ok()) {
    geopipe::PrintErr("error: {}\n", std::string(status.message()));
    return geopipe::kExitFailed;
  }
  // Output that is lost (a full disk behind `>`) is an error, whenever it shows.
  return geopipe::ExitCodeAfterOutput("error", geopipe::RunVerb(std::vector<std::string>(argv + 1, argv + argc)));
}
