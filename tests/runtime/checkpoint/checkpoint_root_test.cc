#include "runtime/checkpoint/checkpoint_root.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <string>

#include "optimizer/base/trouble.h"
#include "runtime/base/files.h"
#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

TEST_CASE("a folder of checkpoints is made with its mark, once") {
  const TempDir dir;
  const std::string root = dir.path() + "/runs/a";
  CheckpointMark mark{.id = "a-1f"};
  REQUIRE(CheckCheckpointRoot(root, mark).ok());
  CHECK(std::filesystem::is_empty(root));  // a job that is refused leaves no mark
  REQUIRE(MarkCheckpointRoot(root, mark).ok());
  CHECK(mark.expected);
  const std::string file = root + "/" + kCheckpointMarkFile;
  CHECK(*ReadFile(file, 100) == "a-1f\n");
  const auto written = std::filesystem::last_write_time(file);
  CheckpointMark another{.id = "a-1f"};  // of another rank, or of a coordinator that has not heard of it
  REQUIRE(MarkCheckpointRoot(root, another).ok());
  CHECK(std::filesystem::last_write_time(file) == written);
  CHECK(CheckCheckpointRoot(root, mark).ok());
  CHECK(std::distance(std::filesystem::directory_iterator(root), {}) == 1);
}

TEST_CASE("a folder without the mark that it should bear is not written, and not made") {
  const TempDir dir;
  const std::string root = dir.path() + "/a";
  CheckpointMark mark{.id = "a-1f", .expected = true};
  for (const bool is_there : {false, true}) {
    CAPTURE(is_there);
    if (is_there) {
      std::filesystem::create_directory(root);
    }
    for (const absl::Status& status : {CheckCheckpointRoot(root, mark), MarkCheckpointRoot(root, mark)}) {
      CHECK(IsOfNode(status));
      CHECK(
          status.message() ==
          root +
              ": the folder of checkpoints lacks the file .geopipe-checkpoints that this job has put there; mount its "
              "file system, or if this is a new disk, write \"a-1f\" into that file");
    }
    CHECK(std::filesystem::exists(root) == is_there);
  }
  CHECK(std::filesystem::is_empty(root));
  // An operator does what the sentence advises, with or without a last newline.
  for (const std::string line : {"a-1f\n", "a-1f"}) {
    REQUIRE(WriteFileAtomically(root + "/" + kCheckpointMarkFile, line).ok());
    CHECK(CheckCheckpointRoot(root, mark).ok());
  }
}

TEST_CASE("a new job takes a folder over, and the job that had it writes nothing more there") {
  const TempDir dir;
  CheckpointMark first{.id = "a-1f"};
  REQUIRE(MarkCheckpointRoot(dir.path(), first).ok());
  CheckpointMark second{.id = "b-20"};
  REQUIRE(MarkCheckpointRoot(dir.path(), second).ok());
  const absl::Status refused = MarkCheckpointRoot(dir.path(), first);
  CHECK(IsOfNode(refused));
  CHECK(refused.message() ==
        dir.path() +
            ": is the folder of the checkpoints of b-20 and not of a-1f, as its file .geopipe-checkpoints says; mount "
            "the file system of this job, and give each job a folder of its own");
  CHECK(MarkCheckpointRoot(dir.path(), second).ok());
}

TEST_CASE("where a folder cannot be made or marked, the error names it and is the node's") {
  const TempDir dir;
  const std::string file = dir.Write("file", "");
  CheckpointMark mark{.id = "a-1f"};
  for (const absl::Status& status : {CheckCheckpointRoot(file + "/a", mark), MarkCheckpointRoot(file + "/a", mark)}) {
    CHECK(IsOfNode(status));
    CHECK_THAT(std::string(status.message()), Catch::Contains(file) && Catch::Contains("choose another folder"));
  }
  CHECK_FALSE(mark.expected);
}

}  // namespace
}  // namespace geopipe
