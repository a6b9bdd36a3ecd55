// Libraries of the port show the loader their table alone, so that no symbol of theirs meets one of a program.
#include <catch2/catch.hpp>
#include <set>
#include <sstream>
#include <string>

#include "tests/support/command.h"
#include "tests/support/gpu_emulator/emulated_gpu.h"
#include "tests/support/skip.h"

namespace geopipe {
namespace {

using Catch::Matchers::Contains;

std::string Output(const std::string& program, std::vector<std::string> args) {
  const CommandResult result = RunCommand(program, std::move(args));
  REQUIRE(result.exit_status.success());
  return result.out;
}

std::set<std::string> Exports(const std::string& library) {
  std::istringstream lines(Output("/usr/bin/nm", {"--dynamic", "--defined-only", "--format=posix", library}));
  std::set<std::string> names;
  for (std::string line; std::getline(lines, line);) {
    names.insert(line.substr(0, line.find(' ')));
  }
  return names;
}

TEST_CASE("the emulated library exports its two tables alone") {
  CHECK(Exports(EmulatedGpuLibrary()) == std::set<std::string>{GP_PORT_SYMBOL, GP_EMULATOR_SYMBOL});
}

TEST_CASE("the library of CUDA exports its table alone, and finds CUDA's libraries on the loader's path") {
#ifdef GEOPIPE_CUDA_LIBRARY
  CHECK(Exports(GEOPIPE_CUDA_LIBRARY) == std::set<std::string>{GP_PORT_SYMBOL});
  const std::string dynamic = Output("/usr/bin/readelf", {"--dynamic", "--wide", GEOPIPE_CUDA_LIBRARY});
  CHECK_THAT(dynamic, Contains("[libcudart.so.") && Contains("[libcublasLt.so."));
  // Its kernels are those of a GPU.
  CHECK_THAT(Output("/usr/bin/nm", {"--dynamic", "--undefined-only", GEOPIPE_CUDA_LIBRARY}),
             Contains("__cudaRegisterFatBinary") && Contains("cudaLaunchKernel"));
  CHECK_THAT(dynamic, !Contains("RUNPATH") && !Contains("RPATH"));
#else
  Skip("built without CUDA's toolkit");
#endif
}

}  // namespace
}  // namespace geopipe
