#include "runtime/checkpoint/checkpoint_folders.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/verify.h"
#include "tests/runtime/checkpoint/written_checkpoint.h"
#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

namespace fs = std::filesystem;

std::string Folder(int64_t iteration) { return fs::path(CheckpointFolder("", iteration)).filename().string(); }

TEST_CASE("a folder's name has the iteration in ten digits") {
  CHECK(CheckpointFolder("/c", 0) == "/c/iteration-0000000000");
  CHECK(CheckpointFolder("/c", 9'999'999'999) == "/c/iteration-9999999999");
  CHECK(IterationOfFolder("/c/iteration-0000000042") == 42);
  CHECK(IterationOfFolder("iteration-9999999999//") == 9'999'999'999);
  for (const char* foreign : {"", "/", "iteration-42", "/c/iteration-000000004x", "/c/iteration-00000000042",
                              "/c/iteration-+000000042", "/c/Iteration-0000000042", "iteration-0000000042/x"}) {
    CAPTURE(foreign);
    CHECK(IterationOfFolder(foreign) == std::nullopt);
  }
}

TEST_CASE("complete checkpoints are listed by iteration, incomplete ones with the reason, foreign names not at all") {
  const TempDir dir;
  const ModelSpec model = SmallModel(1);
  CHECK(ListCheckpoints(dir.path() + "/none")->complete.empty());
  for (const int64_t iteration : {300, 20, 1000}) {
    WrittenCheckpoint(dir.path(), model, iteration);
  }
  REQUIRE(BeginCheckpoint(dir.path(), 400).ok());
  fs::copy(dir.path() + "/" + Folder(300), dir.path() + "/" + Folder(301));
  fs::create_directory_symlink(dir.path() + "/" + Folder(20), dir.path() + "/" + Folder(21));
  dir.Write("iteration-1/manifest.json", "{}");
  dir.Write("notes.txt", "mine");
  dir.Write(Folder(22), "a file");
  const absl::StatusOr<CheckpointList> list = ListCheckpoints(dir.path());
  REQUIRE(list.ok());
  std::vector<int64_t> complete;
  for (const CheckpointList::Complete& each : list->complete) {
    complete.push_back(each.iteration);
    CHECK(each.folder == CheckpointFolder(dir.path(), each.iteration));
  }
  CHECK(complete == std::vector<int64_t>{20, 300, 1000});
  REQUIRE(list->incomplete.size() == 2);
  CHECK(list->incomplete[0].iteration == 301);
  CHECK_THAT(std::string(list->incomplete[0].reason.message()),
             Catch::Contains("is the state before iteration 300, not 301"));
  CHECK(list->incomplete[1].folder == CheckpointFolder(dir.path(), 400));
  CHECK(absl::IsNotFound(list->incomplete[1].reason));

  CHECK(ListCheckpoints(dir.path() + "/notes.txt").status().message() ==
        dir.path() +
            "/notes.txt: cannot be read: Not a directory; its folder is gone or is none; leave it alone while "
            "files are written");
}

TEST_CASE(
    "a checkpoint that is written again stays what it was until the new one is complete, which is all that stays") {
  const TempDir dir;
  const ModelSpec model = SmallModel(1);
  const std::string folder = WrittenCheckpoint(dir.path(), model, 5);
  REQUIRE(BeginCheckpoint(dir.path(), 5).ok());
  dir.Write(Folder(5) + "/head.weights.1-2.safetensors", "of an older attempt");
  dir.Write(Folder(5) + "/head.weights.1-4.safetensors.partial-AbCdEf", "of a writer that died");
  CHECK(VerifyCheckpoint(folder).value().empty());
  CHECK(WrittenCheckpoint(dir.path(), model, 5) == folder);
  CHECK(VerifyCheckpoint(folder).value().empty());
  CHECK(Names(folder).size() == 7);
  dir.Write(Folder(5) + "/manifest.json.partial-AbCdEf", "another node may be at it");
  CHECK(WrittenCheckpoint(dir.path(), model, 5) == folder);
  CHECK(Names(folder).size() == 8);
}

TEST_CASE("old checkpoints and leftovers before the newest are removed, and nothing else") {
  const TempDir dir;
  const ModelSpec model = SmallModel(1);
  for (const int64_t iteration : {10, 20, 30, 40}) {
    WrittenCheckpoint(dir.path(), model, iteration);
  }
  REQUIRE(BeginCheckpoint(dir.path(), 15).ok());  // was never completed
  dir.Write(Folder(35) + "/manifest.json", "damaged");
  REQUIRE(BeginCheckpoint(dir.path(), 50).ok());  // is being written
  std::string other_version = Content(CheckpointFolder(dir.path(), 20) + "/manifest.json");
  other_version.replace(other_version.find("\"version\": 1"), 12, "\"version\": 2");
  dir.Write(Folder(25) + "/manifest.json", Resealed(other_version));
  fs::copy(CheckpointFolder(dir.path(), 40), CheckpointFolder(dir.path(), 26));
  dir.Write("notes.txt", "mine");
  const absl::StatusOr<std::vector<std::string>> removed = RemoveOld(dir.path(), 2);
  INFO(removed.status());
  REQUIRE(removed.ok());
  std::vector<std::string> expected;
  for (const int64_t iteration : {10, 15, 20, 35}) {
    expected.push_back(CheckpointFolder(dir.path(), iteration));
  }
  CHECK(*removed == expected);
  CHECK(Names(dir.path()) ==
        std::vector<std::string>{Folder(25), Folder(26), Folder(30), Folder(40), Folder(50), "notes.txt"});
  CHECK(RemoveOld(dir.path(), 2)->empty());
  CHECK(RemoveOld(dir.path(), 1)->size() == 1);
  CHECK(RemoveOld(dir.path() + "/none", 1)->empty());
}

TEST_CASE("some checkpoints are kept, however old and whatever their state, and what is newer does not count") {
  const TempDir dir;
  const ModelSpec model = SmallModel(1);
  for (const int64_t iteration : {10, 20, 30, 40}) {
    WrittenCheckpoint(dir.path(), model, iteration);
  }
  CHECK(RemoveOld(dir.path(), 1, {}, 30)->size() == 2);
  CHECK(Names(dir.path()) == std::vector<std::string>{Folder(30), Folder(40)});
  for (const int64_t iteration : {10, 20}) {
    WrittenCheckpoint(dir.path(), model, iteration);
  }
  CHECK(RemoveOld(dir.path(), 1, std::vector<int64_t>{20})->size() == 2);
  CHECK(Names(dir.path()) == std::vector<std::string>{Folder(20), Folder(40)});
  REQUIRE(BeginCheckpoint(dir.path(), 25).ok());
  CHECK(RemoveOld(dir.path(), 1, std::vector<int64_t>{25, 40})->size() == 1);
  CHECK(Names(dir.path()) == std::vector<std::string>{Folder(25), Folder(40)});
  CHECK(RemoveOld(dir.path(), 1, std::vector<int64_t>{7})->size() == 1);
  CHECK(Names(dir.path()) == std::vector<std::string>{Folder(40)});
}

TEST_CASE("what people put into a checkpoint's folder outlives the checkpoint") {
  const TempDir dir;
  const ModelSpec model = SmallModel(1);
  for (const int64_t iteration : {10, 20, 30}) {
    WrittenCheckpoint(dir.path(), model, iteration);
  }
  dir.Write(Folder(10) + "/eval.json", "mine");
  dir.Write(Folder(30) + "/eval.json", "mine");
  fs::create_directory(CheckpointFolder(dir.path(), 10) + "/hf");
  CHECK(*RemoveOld(dir.path(), 1) == std::vector<std::string>{CheckpointFolder(dir.path(), 20)});
  CHECK(Names(CheckpointFolder(dir.path(), 10)) == std::vector<std::string>{"eval.json", "hf"});
  WrittenCheckpoint(dir.path(), model, 30);  // once more
  CHECK(Content(CheckpointFolder(dir.path(), 30) + "/eval.json") == "mine");
  CHECK(RemoveOld(dir.path(), 1)->empty());
}

TEST_CASE("leftovers stay while no checkpoint is complete") {
  const TempDir dir;
  REQUIRE(BeginCheckpoint(dir.path(), 1).ok());
  REQUIRE(BeginCheckpoint(dir.path(), 2).ok());
  CHECK(RemoveOld(dir.path(), 1)->empty());
  CHECK(ListCheckpoints(dir.path())->incomplete.size() == 2);
}

}  // namespace
}  // namespace geopipe
