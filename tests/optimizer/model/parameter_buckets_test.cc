#include "optimizer/model/parameter_buckets.h"

#include <catch2/catch.hpp>

#include "optimizer/base/splitmix64.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

TEST_CASE("replicas' runs of a bucket are aligned, cover it, and are no longer than alignment asks") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  SplitMix64 random(seed);
  for (int i = 0; i < 1000; ++i) {
    const auto elements = static_cast<int64_t>(random.Next() % (i % 2 == 0 ? 300 : 1'000'000'000));
    const auto data = static_cast<int64_t>(2 + random.Next() % 64);
    CAPTURE(elements, data);
    const int64_t shard = ShardElements(elements, data);
    CHECK(shard % kShardAlignment == 0);
    CHECK(shard * data >= elements);
    CHECK(shard * data < elements + data * (kShardAlignment + 1));
    for (const int32_t zero_stage : {1, 2, 3}) {
      const BucketShare share = ShareOfBucket(BucketKind::kLayer, elements, data, zero_stage);
      CHECK(share.shard == shard);
      CHECK(share.padded == shard * data);
      CHECK(share.states == shard);
      CHECK(share.gradients == (zero_stage >= 2 ? shard : share.padded));
      CHECK(share.weights == (zero_stage >= 3 ? shard : share.padded));
    }
  }
}

TEST_CASE("what is not divided is as long as it is") {
  for (const BucketShare& share :
       {ShareOfBucket(BucketKind::kLayer, 1001, 1, 3), ShareOfBucket(BucketKind::kLayer, 1001, 4, 0),
        ShareOfBucket(BucketKind::kVectors, 1001, 4, 3)}) {
    CHECK(share.shard == 1001);
    CHECK(share.padded == 1001);
    CHECK(share.states == 1001);
  }
}

}  // namespace
}  // namespace geopipe
