#include "coordinator/cli/playground/playground_gpus.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <string>
#include <vector>

#include "runtime/base/files.h"

namespace geopipe {
namespace {

using Names = std::vector<std::string>;

TEST_CASE("the GPUs of a machine are those that its environment names, or those that have a device file") {
  const TempFolder devices = *TempFolder::Create("geopipe-gpus-");
  CHECK(GpusHere("", devices.path()) == Names{"0"});
  CHECK(GpusHere("", "/nowhere") == Names{"0"});
  for (const char* name : {"nvidia0", "nvidia1", "nvidia7", "nvidiactl", "nvidia-uvm", "null"}) {
    std::ofstream(devices.path() / name) << "";
  }
  CHECK(GpusHere("", devices.path()) == Names{"0", "1", "2"});  // ordinals have no gaps
  CHECK(GpusHere("3", devices.path()) == Names{"3"});
  CHECK(GpusHere("GPU-0a,GPU-0b", devices.path()) == Names{"GPU-0a", "GPU-0b"});
}

TEST_CASE("a playground's devices take the GPUs in turn, and share them where they are more") {
  const Names two{"0", "1"};
  CHECK(GpuKeys(two, 0, 1) == ", ordinals: [0]");
  CHECK(GpuKeys(two, 1, 2) == ", ordinals: [1, 0]");
  CHECK(GpuKeys(two, 3, 3) == ", ordinals: [1, 0, 1], share_gpus: true");
  CHECK(GpuKeys(Names{"GPU-0a"}, 5, 1) == ", uuids: [GPU-0a]");
}

}  // namespace
}  // namespace geopipe
