#include "runtime/data/data_files.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/sparse_file.h"
#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

std::string Text(const DataFiles& files, int64_t offset, size_t count) {
  std::vector<std::byte> bytes(count);
  REQUIRE(files.Read(offset, bytes).ok());
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST_CASE("data up to 16 MiB is sampled whole, and larger data in 512 blocks from the first to the last") {
  for (const int64_t bytes : {int64_t{1}, int64_t{4096}, 16 * kMiB - 2, 16 * kMiB}) {
    CHECK(SampledBlocks(bytes) == std::vector<ByteRange>{{0, bytes}});
  }
  for (const int64_t bytes : {16 * kMiB + 1, 16 * kMiB + 4096, 17 * kMiB - 2, int64_t{100'000'000'000},
                              int64_t{4'000'000'000'002}, int64_t{1} << 60}) {
    CAPTURE(bytes);
    const std::vector<ByteRange> blocks = SampledBlocks(bytes);
    REQUIRE(blocks.size() == 512);
    CHECK(blocks.front().begin == 0);
    CHECK(blocks.back() == ByteRange{bytes - 4096, bytes});
    const int64_t stride = blocks[1].begin;
    for (size_t i = 0; i + 1 < blocks.size(); ++i) {
      REQUIRE(blocks[i].bytes() == 4096);
      REQUIRE(blocks[i].begin == static_cast<int64_t>(i) * stride);
      REQUIRE(blocks[i].begin % 4096 == 0);
      REQUIRE(blocks[i].end <= blocks[i + 1].begin);
    }
    CHECK(bytes - blocks[510].end <= stride + 512 * 4096);  // the last distance is hardly another
  }
}

TEST_CASE("files are one sequence of bytes, also where many of them are not kept open") {
  const TempDir dir;
  std::vector<std::string> paths;
  std::string whole;
  for (int i = 0; i < 600; ++i) {
    const std::string content(static_cast<size_t>(i % 4), static_cast<char>('a' + i % 26));
    paths.push_back(dir.Write(std::to_string(i), content));
    whole += content;
  }
  const auto files = DataFiles::Open(paths);
  REQUIRE(files.ok());
  CHECK(files->bytes() == static_cast<int64_t>(whole.size()));
  CHECK(files->count() == 600);
  CHECK(files->bytes_of(7) == 3);
  CHECK(files->path_of(7) == paths[7]);
  CHECK(Text(*files, 0, whole.size()) == whole);
  for (size_t offset = 0; offset < whole.size(); offset += 7) {
    REQUIRE(Text(*files, static_cast<int64_t>(offset), 5 < whole.size() - offset ? 5 : 0) ==
            whole.substr(offset, 5 < whole.size() - offset ? 5 : 0));
  }
  std::vector<std::byte> byte(1);
  std::filesystem::resize_file(paths[599], 2);
  CHECK(files->Read(files->bytes() - 1, byte).message() ==
        paths[599] + ": the file had 3 bytes when it was opened, and has 2 now; restore it");
  std::filesystem::remove(paths[599]);
  CHECK(files->Read(files->bytes() - 1, byte).message() == paths[599] + ": no such file on this node");
}

}  // namespace
}  // namespace geopipe
