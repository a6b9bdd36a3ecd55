// The optimizer's archives need nothing that is not pure.
#include <catch2/catch.hpp>

#include "tests/architecture/layer_rules.h"
#include "tests/architecture/source_tree.h"
#include "tests/support/temp_dir.h"

namespace geopipe::architecture {
namespace {

namespace fs = std::filesystem;

TEST_CASE("the optimizer's archives need no clock, thread, file, network or global randomness") {
  const std::string nm = CacheVariable("CMAKE_NM");
  Findings findings;
  int archives = 0;
  for (auto it = fs::recursive_directory_iterator(BinaryDir() / "optimizer"); it != fs::recursive_directory_iterator();
       ++it) {
    if (it->path().extension() != ".a") {
      continue;
    }
    const CommandResult result = RunCommand(ShellQuote(nm) + " -uC " + ShellQuote(it->path().string()));
    INFO(result.output.substr(0, 1000));
    REQUIRE(result.exit_code == 0);
    Append(CheckUndefinedSymbols(it->path().filename().string(), result.output), findings);
    ++archives;
  }
  CHECK(ToString(findings) == "");
  CHECK(archives > 0);
}

TEST_CASE("planted: an archive that reads a clock, draws a random seed or opens a file") {
  const TempDir scratch;
  const auto [code, message] = GENERATE(table<std::string, std::string>({
      {"#include <chrono>\nlong F() { return std::chrono::steady_clock::now().time_since_epoch().count(); }\n",
       "std::chrono"},
      {"#include <random>\nunsigned F() { return std::random_device()(); }\n", "std::random_device"},
      {"#include <fstream>\nbool F() { return std::ofstream(\"x\").good(); }\n", "basic_"},
      {"#include <cmath>\ndouble F(double x) { return std::exp(x); }\n", ""},
  }));
  const std::string source = scratch.Write("planted.cc", code);
  const CommandResult compiled = RunCommand(ShellQuote(CacheVariable("CMAKE_CXX_COMPILER")) + " -std=c++20 -O1 -c " +
                                            ShellQuote(source) + " -o " + ShellQuote(source + ".o"));
  INFO(compiled.output);
  REQUIRE(compiled.exit_code == 0);
  const CommandResult nm = RunCommand(ShellQuote(CacheVariable("CMAKE_NM")) + " -uC " + ShellQuote(source + ".o"));
  CheckFound(CheckUndefinedSymbols("planted.o", nm.output), message);
}

}  // namespace
}  // namespace geopipe::architecture
