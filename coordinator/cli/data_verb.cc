// geopipectl data: training data, made by a program of its own (runtime/tokenizer/main).
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "coordinator/cli/verb.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/files.h"
#include "runtime/base/output.h"
#include "runtime/base/suggest.h"
#include "runtime/base/utf8.h"

namespace geopipe {
namespace {

constexpr std::string_view kHelp =
    "geopipectl data: training data.\n\nusage: geopipectl data VERB [flags]\n\n"
    "  tokenize  Turn text files into the token file that a job trains on. No server needed.\n";

// Becomes the program, which has this process's streams, terminal and exit code; returns where it cannot.
absl::Status Become(const std::string& program, std::span<const std::string> arguments) {
  std::vector<std::string> words{program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) {
    pointers.push_back(word.data());
  }
  pointers.push_back(nullptr);
  execv(program.c_str(), pointers.data());
  return absl::InternalError(fmt::format("{}: cannot be started: {}", program, std::strerror(errno)));
}

}  // namespace

absl::StatusOr<int> RunData(std::span<const std::string> arguments) {
  if (arguments.empty()) {
    PrintErr("{}", kHelp);
    return kExitBadInput;
  }
  const std::string& name = arguments.front();
  if (name == "--help" || name == "-h") {
    PrintOut("{}", kHelp);
    return kExitOk;
  }
  if (name != "tokenize") {
    const std::vector<std::string> names{"tokenize"};
    return absl::InvalidArgumentError(fmt::format("unknown verb 'data {}'{}\n'geopipectl data --help' lists the verbs.",
                                                  Excerpt(name), DidYouMean(name, names)));
  }
  GP_ASSIGN_OR_RETURN(const std::string program, OrFailed(SiblingProgram("geopipe-tokenize")));
  return OrFailed(Become(program, arguments.subspan(1)));
}

}  // namespace geopipe
