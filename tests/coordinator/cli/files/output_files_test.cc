#include "coordinator/cli/files/output_files.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

namespace fs = std::filesystem;

TEST_CASE("an output is no input and no other output, by whatever name") {
  const TempDir dir;
  const fs::path file = dir.Write("job.yaml", "job");
  const fs::path other = dir.Write("other.yaml", "other");
  const fs::path folder = file.parent_path();
  fs::create_symlink(file, folder / "link");
  fs::create_symlink("link", folder / "link-of-link");
  fs::create_symlink("nowhere-yet", folder / "dangling");
  fs::create_hard_link(file, folder / "hard");
  fs::create_directory(folder / "below");
  const auto check = [](const fs::path& input, const std::vector<NamedFile>& outputs) {
    return std::string(CheckOutputs(std::vector<NamedFile>{{"-f", input}}, outputs).message());
  };
  for (const fs::path& same : {file, folder / "link", folder / "link-of-link", folder / "hard",
                               folder / "." / "job.yaml", folder / "below" / ".." / "job.yaml", fs::relative(file)}) {
    CAPTURE(same);
    CHECK(check(file, {{"--export-csv", same}}) ==
          "--export-csv " + same.string() + " is the file of -f, which would be lost; choose another");
    CHECK_FALSE(check(same, {{"--export-csv", file}}).empty());
  }
  CHECK(check(file, {{"--export-csv", other}, {"--export-svg", folder / "new.svg"}}).empty());
  CHECK(check(file, {{"--export-csv", ""}, {"--export-svg", ""}}).empty());
  CHECK(check("", {{"--export-csv", other}}).empty());
  CHECK(check(folder / "absent", {{"--export-csv", other}}).empty());
  const std::string twice = " is the file of --export-csv, which is written there too; choose another";
  CHECK(check(file, {{"--export-csv", folder / "new"}, {"--export-svg", folder / "below" / ".." / "new"}})
            .ends_with(twice));
  CHECK(
      check(file, {{"--export-csv", folder / "dangling"}, {"--export-svg", folder / "nowhere-yet"}}).ends_with(twice));
  CHECK(check(file, {{"--export-csv", "-"}, {"--export-svg", "-"}}).ends_with(twice));
  CHECK(check(file, {{"--export-csv", "-"}, {"--export-svg", other}}).empty());
  CHECK(check("/dev/null", {{"--export-csv", "/dev/null"}, {"--export-svg", "/dev/null"}}).empty());
}

TEST_CASE("an output has a folder that takes files, or is refused before any work") {
  const TempDir dir;
  const auto check = [](const fs::path& output) {
    return std::string(CheckPlaces(std::vector<NamedFile>{{"--export-csv", output}}).message());
  };
  const fs::path folder = dir.path();
  fs::create_directory(folder / "below");
  fs::create_symlink("below/new", folder / "link");
  for (const fs::path& good : {fs::path(), fs::path("-"), fs::path("/dev/full"), fs::path("new"), folder / "new",
                               folder / "link", folder / "below" / ".." / "new"}) {
    CAPTURE(good);
    CHECK(check(good).empty());
  }
  CHECK(check(folder) == "--export-csv " + folder.string() + " is a folder; name a file in it");
  CHECK_THAT(check(folder / "none" / "new"),
             Catch::Contains(": there is no folder ") && Catch::EndsWith("/none; make it first, or choose another"));
  if (fs::path sealed = "/proc/1"; fs::is_directory(sealed)) {
    CHECK_THAT(check(sealed / "new"), Catch::Contains("nothing can be written in /proc/1 ("));
  }
}

TEST_CASE("what a job reads is an input too") {
  const TempDir dir;
  const fs::path config = dir.Write("config.json", "{}");
  const fs::path weights = dir.Write("model.safetensors", "weights");
  JobSpec job;
  job.data.paths = {dir.Write("data.txt", "text")};
  job.init_from = config.parent_path();
  for (const fs::path& path : {config, weights, fs::path(job.data.paths.front())}) {
    CAPTURE(path);
    CHECK_FALSE(CheckOutputs(FilesOfJob(job), std::vector<NamedFile>{{"--export-csv", path}}).ok());
  }
  CHECK(CheckOutputs(FilesOfJob(job), std::vector<NamedFile>{{"--export-csv", config.parent_path() / "new"}}).ok());
  const fs::path data = job.data.paths.front();
  job.data.format = DataFormat::kText;
  job.data.paths = {(data.parent_path() / "d*.t?t").string()};
  CHECK_FALSE(CheckOutputs(FilesOfJob(job), std::vector<NamedFile>{{"--export-csv", data}}).ok());
}

}  // namespace
}  // namespace geopipe
