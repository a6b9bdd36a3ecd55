// The layers are compile errors: the compiler itself, called as the build calls it, refuses an upward include.
#include <algorithm>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "tests/architecture/source_tree.h"
#include "tests/support/temp_dir.h"

namespace geopipe::architecture {
namespace {

// The build's own command for the sources of a module, made to check the syntax of another file instead.
std::string CommandFor(const std::string& module, const std::filesystem::path& other) {
  std::string target = module;
  std::replace(target.begin(), target.end(), '/', '_');
  const auto commands = nlohmann::json::parse(ReadFile(BinaryDir() / "compile_commands.json"));
  for (const auto& entry : commands) {
    const std::string command = entry["command"];
    if (command.find("/" + target + ".dir/") == std::string::npos) {
      continue;
    }
    const size_t output = command.find(" -o ");
    REQUIRE(output != std::string::npos);  // "... -o <object> -c <source>" ends the command
    return "cd " + ShellQuote(entry["directory"].get<std::string>()) + " && " + command.substr(0, output) +
           " -fsyntax-only " + ShellQuote(other.string());
  }
  FAIL("compile_commands.json has nothing of " << target);
  return "";
}

TEST_CASE("an upward include does not compile") {
  const TempDir scratch;
  const auto [module, header, compiles] = GENERATE(table<std::string, std::string, bool>({
      {"optimizer/schedule", "optimizer/base/check.h", true},
      {"optimizer/schedule", "optimizer/search/genome.h", false},
      {"optimizer/schedule", "runtime/base/clock.h", false},
      {"optimizer/base", "optimizer/schedule/action.h", false},
      {"runtime/base", "runtime/base/clock.h", true},
      {"runtime/base", "runtime/transport/stream/frame.h", false},
  }));
  REQUIRE(std::filesystem::exists(SourceDir() / header));
  const std::filesystem::path planted = scratch.Write("planted.cc", "#include \"" + header + "\"\n");
  const CommandResult result = RunCommand(CommandFor(module, planted));
  CAPTURE(module, header, result.output);
  CHECK((result.exit_code == 0) == compiles);
  if (!compiles) {
    CHECK_THAT(result.output, Catch::Contains(header + ": No such file or directory"));
  }
}

}  // namespace
}  // namespace geopipe::architecture
