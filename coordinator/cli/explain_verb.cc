// geopipectl explain: the reference of a file or of one of its keys, made from the tables that read it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coordinator/cli/verb.h"
#include "coordinator/spec/case_file.h"
#include "coordinator/spec/profile_file.h"
#include "coordinator/spec/topology_file.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/output.h"
#include "runtime/base/suggest.h"
#include "runtime/base/terminal.h"
#include "runtime/manifest/agent_config.h"
#include "runtime/manifest/coordinator_config.h"
#include "runtime/manifest/job_manifest.h"

namespace geopipe {
namespace {

struct Kind {
  std::string name;
  FileReference reference;
};

std::vector<Kind> Kinds() {
  std::vector<Kind> kinds{
      {"job", ExplainJob()}, {"topology", ExplainTopology()}, {"case", ExplainCase()}, {"profile", ExplainProfile()}};
  kinds.push_back(
      {"agent",
       {"The configuration of geopipe-agent (--config FILE); GEOPIPE_AGENT_STATE_DIR and --set state_dir=DIR "
        "come over the file.",
        agent::AgentConfigSchema().Rows()}});
  kinds.push_back({"coordinator",
                   {"The configuration of geopipe-coordinator (--config FILE); GEOPIPE_COORDINATOR_LISTEN comes over "
                    "the file.",
                    CoordinatorConfigSchema().Rows()}});
  return kinds;
}

// Explains every key called `key`. A first word that names a kind of file looks in that kind alone.
std::string ExplainKey(const std::vector<Kind>& kinds, std::string_view key, int32_t columns) {
  const size_t dot = key.find('.');
  const bool named =
      dot != std::string_view::npos && std::ranges::find(kinds, key.substr(0, dot), &Kind::name) != kinds.end();
  std::string text;
  for (const Kind& kind : kinds) {
    if (named && kind.name != key.substr(0, dot)) {
      continue;
    }
    for (const SchemaBranch& branch : FindBranches(kind.reference.rows, named ? key.substr(dot + 1) : key)) {
      text += fmt::format("{}{} ({} file)\n\n{}", text.empty() ? "" : "\n", branch.path, kind.name,
                          RenderReference(branch.rows, columns));
    }
  }
  return text;
}

absl::Status NothingCalled(const std::vector<Kind>& kinds, std::string_view subject) {
  std::vector<std::string> names;
  std::vector<std::string> words;
  for (const Kind& kind : kinds) {
    names.push_back(kind.name);
    words.push_back(kind.name);
    for (const std::string& branch : BranchNames(kind.reference.rows)) {
      words.push_back(branch);
      words.push_back(fmt::format("{}.{}", kind.name, branch));
    }
  }
  const std::string hint = DidYouMean(subject, words);
  return absl::InvalidArgumentError(fmt::format(
      "nothing to explain about '{}'{}", subject,
      hint.empty() ? fmt::format("; give {} or a key of one, like search.max_delta_n", fmt::join(names, ", ")) : hint));
}

}  // namespace

absl::StatusOr<std::string> ExplainText(std::string_view subject, int32_t columns) {
  const std::vector<Kind> kinds = Kinds();
  if (const auto kind = std::ranges::find(kinds, subject, &Kind::name); kind != kinds.end()) {
    return kind->reference.Text(columns);
  }
  std::string text = ExplainKey(kinds, subject, columns);
  return text.empty() ? absl::StatusOr<std::string>(NothingCalled(kinds, subject)) : std::move(text);
}

absl::StatusOr<int> RunExplain(std::span<const std::string> arguments) {
  std::string subject;
  FlagSet flags("geopipectl explain",
                "Prints the keys of a file with their types, ranges and defaults, and what they mean.");
  flags.AddPositional("KIND|KEY", &subject, true,
                      "job, topology, case, profile, agent or coordinator: all of its keys; or a key, with as much of "
                      "its path as you like: search, search.max_delta_n, job.spec.search.");
  if (const auto exit_code = ParseVerbFlags(flags, arguments)) {
    return *exit_code;
  }
  GP_ASSIGN_OR_RETURN(const std::string text, ExplainText(subject, TextColumns()));
  PrintOut("{}", text);
  return kExitOk;
}

}  // namespace geopipe
