#include "agent/kept/worker_log.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <string>

#include "runtime/base/files.h"

namespace geopipe::agent {
namespace {

TEST_CASE("a log that has grown past its bound is cut under a worker that writes on, and its content is kept") {
  const TempFolder folder = *TempFolder::Create("geopipe-worker-log");
  const std::string path = folder.path() / "log";
  CHECK(FileSize(path) == 0);
  CHECK_FALSE(CutLog(path, 4));
  std::ofstream worker(path, std::ios::app);
  worker << "before" << std::flush;
  CHECK_FALSE(CutLog(path, 6));
  CHECK(CutLog(path, 5));
  worker << "after" << std::flush;
  CHECK(*ReadFile(path, 64) == "after");
  CHECK(*ReadFile(path + ".1", 64) == "before");
  CHECK(LastWords(path, 0, 64) == "after");
  CHECK(LastWords(path, 2, 64) == "ter");
  CHECK(LastWords(path, 9, 64).empty());  // it was cut since
  MoveLogAside(path, 4);
  CHECK(FileSize(path) == 0);
  CHECK(*ReadFile(path + ".1", 64) == "after");
}

}  // namespace
}  // namespace geopipe::agent
