// The layers are compile errors: the compiler itself, called as the build calls it, refuses an upward include.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "tests/architecture/source_tree.h"

namespace geopipe::architecture {
namespace {

// The build's own command for a source, made to check the syntax of another file instead.
std::string CommandFor(const std::string& source, const std::filesystem::path& other) {
  const auto commands = nlohmann::json::parse(ReadFile(BinaryDir() / "compile_commands.json"));
  for (const auto& entry : commands) {
    const std::string file = entry["file"];
    if (!file.ends_with(source)) {
      continue;
    }
    std::string command = entry["command"];
    const size_t output = command.find(" -o ");
    REQUIRE(output != std::string::npos);  // "... -o <object> -c <source>" ends the command
    return "cd " + ShellQuote(entry["directory"].get<std::string>()) + " && " + command.substr(0, output) +
           " -fsyntax-only " + ShellQuote(other.string());
  }
  FAIL("compile_commands.json has no " << source);
  return "";
}

TEST_CASE("an upward include does not compile") {
  const ScratchFolder scratch;
  const auto [source, header, compiles] = GENERATE(table<std::string, std::string, bool>({
      {"optimizer/schedule/gpipe.cc", "optimizer/base/check.h", true},
      {"optimizer/schedule/gpipe.cc", "optimizer/search/genome.h", false},
      {"optimizer/schedule/gpipe.cc", "runtime/base/clock.h", false},
      {"optimizer/base/check.cc", "optimizer/schedule/action.h", false},
      {"runtime/base/clock.cc", "runtime/base/clock.h", true},
      {"runtime/base/clock.cc", "runtime/transport/frame.h", false},
  }));
  REQUIRE(std::filesystem::exists(SourceDir() / header));
  const std::filesystem::path planted = scratch.Write("planted.cc", "#include \"" + header + "\"\n");
  const CommandResult result = RunCommand(CommandFor(source, planted));
  CAPTURE(source, header, result.output);
  CHECK((result.exit_code == 0) == compiles);
  if (!compiles) {
    CHECK_THAT(result.output, Catch::Contains(header + ": No such file or directory"));
  }
}

}  // namespace
}  // namespace geopipe::architecture
