// The bundle that is carried to a machine with a GPU, unpacked and run here over the emulated one with nothing of this
// process's environment.
#include <catch2/catch.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/base/files.h"
#include "tests/support/command.h"

namespace geopipe {
namespace {

namespace fs = std::filesystem;

constexpr uintmax_t kMaxBundleBytes = 48 << 20;

void Run(const std::string& program, const std::vector<std::string>& args) {
  const CommandResult result = RunCommand(program, args);
  INFO(result.out);
  INFO(result.err);
  REQUIRE(result.exit_status.success());
}

TEST_CASE("the bundle proves the GPU path with nothing but itself, and its exit status tells of a GPU that fails") {
  const TempFolder folder = *TempFolder::Create("geopipe-test-");
  const fs::path bundle = folder.path() / "geopipe.tar.gz";
  Run(SourcePath("tests/device/bundle.sh"), {GEOPIPE_BINARY_DIR, bundle.string()});
  CHECK(fs::file_size(bundle) < kMaxBundleBytes);
  Run("/bin/tar", {"-xzf", bundle.string(), "-C", folder.path().string()});
  const auto device_sh = [&](const std::string& setting) {
    return RunCommand("/usr/bin/env",
                      {"-i", "PATH=/usr/bin:/bin", setting, (folder.path() / "geopipe/device.sh").string(),
                       "--emulated", "--phases", "0,3", "--out", (folder.path() / "found").string()});
  };

  const CommandResult proved = device_sh("GEOPIPE_EMULATED_GPU=");
  INFO(proved.err);
  INFO(proved.out);
  CHECK(proved.exit_status.success());
  CHECK_THAT(proved.out, Catch::Contains("phase 0 versions: passed") && Catch::Contains("phase 3 product: passed") &&
                             Catch::Contains("same bits"));
  const absl::StatusOr<std::string> section = ReadFile(folder.path() / "found/gpu.md", 1 << 20);
  REQUIRE(section.ok());
  CHECK_THAT(*section, Catch::StartsWith("## Emulated GPU, ") && Catch::Contains("| 3 | product | passed |"));

  const CommandResult lost = device_sh("GEOPIPE_EMULATED_GPU=lost_at=300");
  INFO(lost.out);
  CHECK(lost.exit_status.exit_code == 1);
  CHECK_THAT(lost.out, Catch::Contains("phase 0 versions: passed") && Catch::Contains("phase 3 product: failed") &&
                           Catch::Contains("illegal memory access") && Catch::Contains("\n3 product    failed "));
}

}  // namespace
}  // namespace geopipe
