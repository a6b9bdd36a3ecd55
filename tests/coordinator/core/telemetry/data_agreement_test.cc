#include "coordinator/core/telemetry/data_agreement.h"

#include <catch2/catch.hpp>
#include <vector>

namespace geopipe {
namespace {

v1::DataCheckReport Found(const std::vector<uint32_t>& checksums, int64_t data_bytes = 95, int64_t chunk_bytes = 10) {
  v1::DataCheckReport report;
  report.set_data_bytes(data_bytes);
  report.set_chunk_bytes(chunk_bytes);
  report.mutable_checksums()->Assign(checksums.begin(), checksums.end());
  return report;
}

TEST_CASE("data is compared as far as both have checked it") {
  CHECK_FALSE(FirstDifference(Found({1, 2, 3}), Found({1, 2, 3})).has_value());
  CHECK_FALSE(FirstDifference(Found({1, 2, 3}), Found({1, 2})).has_value());
  CHECK_FALSE(FirstDifference(Found({1, 2}), Found({1, 2, 3})).has_value());
  CHECK_FALSE(FirstDifference(Found({1, 2}), Found({})).has_value());
  CHECK_FALSE(FirstDifference({}, Found({1})).has_value());
}

TEST_CASE("the first chunk that differs is named by its bytes, and the last one ends with the data") {
  const auto expect = [](const v1::DataCheckReport& a, const v1::DataCheckReport& b, int64_t begin, int64_t end) {
    for (const auto& difference : {FirstDifference(a, b), FirstDifference(b, a)}) {
      REQUIRE(difference.has_value());
      CHECK(difference->begin == begin);
      CHECK(difference->end == end);
    }
  };
  expect(Found({9, 2, 3}), Found({1, 2}), 0, 10);
  expect(Found({1, 2, 3, 4}), Found({1, 2, 9, 9}), 20, 30);
  expect(Found({1, 1, 1, 1, 1, 1, 1, 1, 1, 1}), Found({1, 1, 1, 1, 1, 1, 1, 1, 1, 2}), 90, 95);
  expect(Found({1}, 95), Found({1}, 97), 0, 97);
  expect(Found({1}, 95, 10), Found({1}, 95, 20), 0, 95);
}

TEST_CASE("the sentence names the two, file and place") {
  DataSpec data;
  data.paths = {"/data/tokens.bin"};
  CHECK(DifferenceSentence("a/n/0", "b/n/0", data, {20, 30}) ==
        "a/n/0 and b/n/0 read different training data: bytes [20, 30) of /data/tokens.bin are not the same; give both "
        "the same files");
  data.format = DataFormat::kText;
  CHECK(DifferenceSentence("a/n/0", "b/n/0", data, {20, 30}) ==
        "a/n/0 and b/n/0 read different training data: bytes [20, 30) of the files of data.path, one after the other, "
        "are not the same; give both the same files");
}

}  // namespace
}  // namespace geopipe
