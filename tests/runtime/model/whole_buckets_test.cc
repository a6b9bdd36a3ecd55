#include "runtime/model/whole_buckets.h"

#include <catch2/catch.hpp>
#include <vector>

namespace geopipe {
namespace {

TEST_CASE("users leave their rooms in the order in which they came, whichever rooms they have") {
  Allocator allocator(1 << 20);
  WholeBuckets rooms(allocator);
  REQUIRE(rooms.Reserve(3, 4).ok());
  std::vector<int> left;
  const auto come = [&](int user) {
    const auto room = rooms.Take();
    REQUIRE(room.ok());
    (*room)->leave = [&left, user] {
      left.push_back(user);
      return absl::OkStatus();
    };
  };
  for (int user = 0; user < 5; ++user) {  // the last two are in the rooms of the first
    come(user);
  }
  CHECK(left == std::vector<int>{0, 1});
  REQUIRE(rooms.Clear().ok());
  CHECK(left == std::vector<int>{0, 1, 2, 3, 4});
}

}  // namespace
}  // namespace geopipe
