#include "coordinator/spec/profile_file.h"

#include <catch2/catch.hpp>
#include <random>
#include <string>

#include "runtime/base/files.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

PartCosts RandomPart(std::mt19937_64& random) {
  const auto duration = [&] { return static_cast<int64_t>(random() >> (18 + random() % 44)); };
  return {duration(), duration(), duration()};
}

TEST_CASE("A profile written is read back unchanged") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  Profile profile{.tensor = 2};
  for (int32_t device = 0; device < 50; ++device) {
    profile.entries.push_back({.site = device % 2 == 0 ? "north" : "we\"ird \\ site: #1",
                               .node = "node-1",
                               .device = device,
                               .micro_batch_size = 1 + static_cast<int64_t>(random() % 8),
                               .sequence_length = 128,
                               .embedding = RandomPart(random),
                               .block = RandomPart(random),
                               .head = RandomPart(random),
                               .adamw_ns_per_million_parameters = static_cast<int64_t>(random() % 1'000'000'000)});
    profile.messages.push_back({.site = "north",
                                .node = "node-1",
                                .device = device,
                                .bytes = 1 + static_cast<int64_t>(random() % 1'000'000),
                                .whole_ns = static_cast<int64_t>(random() % 1'000'000'000),
                                .fixed_ns = static_cast<int64_t>(random() % 1'000'000)});
  }
  const auto read = ParseProfileFile(FormatProfile(profile), "p.yaml");
  INFO(read.status().ToString());
  REQUIRE(read.ok());
  CHECK(*read == profile);

  const auto folder = TempFolder::Create("geopipe-profile-");
  REQUIRE(folder.ok());
  REQUIRE(WriteProfileFile(folder->path() / "profile.yaml", profile).ok());
  CHECK(ReadProfileFile(folder->path() / "profile.yaml").value() == profile);
  CHECK(ParseProfileFile(FormatProfile({}), "p.yaml").value() == Profile{});
  CHECK(ParseProfileFile("apiVersion: geopipe/v1\nkind: Profile\nentries: []\n", "p.yaml")->tensor == 0);
}

TEST_CASE("Each mistake in a profile is one sentence at its place") {
  const std::string head = "apiVersion: geopipe/v1\nkind: Profile\nentries:\n";
  const std::string costs =
      "embedding: {forward: 1ms, input_grad: 0, weight_grad: 1ms}, block: {forward: 1ms, input_grad: 1ms, weight_grad: "
      "1ms}, head: {forward: 1ms, input_grad: 1ms, weight_grad: 1ms}, adamw_per_million_parameters: 1ms}\n";
  const auto entry = [&](const std::string& b) {
    return "- {site: a, node: n, device: 0, micro_batch_size: " + b + ", sequence_length: 128, " + costs;
  };
  const auto error = [](const std::string& text) {
    return std::string(ParseProfileFile(text, "p.yaml").status().message());
  };
  CHECK(error(head + entry("1")).empty());
  CHECK(error(head + entry("1") + entry("1")) ==
        "p.yaml:5:3: entries[1]: a/n/0 at b 1 and s 128 is given twice; keep one");
  CHECK(error(head + entry("0")) == "p.yaml:4:51: entries[0].micro_batch_size: is 0; it must be from 1 to 67108864");
  CHECK(error(head + entry("67108864")) ==
        "p.yaml:4:3: entries[0]: micro_batch_size 67108864, sequence_length 128; a micro-batch has at most 67108864 "
        "tokens");
  ClusterSpec cluster;
  cluster.sites.emplace_back().name = "b";
  CHECK(
      ParseProfileFile(head + entry("1"), "p.yaml", &cluster).status().message() ==
      "p.yaml:4:10: entries[0].site: 'a' is not a site of the topology; name one of its sites or leave the entry out");
  const std::string message = "- {site: a, node: n, device: 0, bytes: 8, whole: 2ms, fixed: 1ms}\n";
  const std::string messages = "apiVersion: geopipe/v1\nkind: Profile\nentries: []\nmessages:\n";
  CHECK(error(messages + message).empty());
  CHECK(error(messages + message + message) == "p.yaml:6:3: messages[1]: a/n/0 is given twice; keep one");
  CHECK(error("apiVersion: geopipe/v1\nkind: TrainingJob\nentries: []\n") ==
        "p.yaml:2:7: kind: 'TrainingJob' is not one of Profile");
}

}  // namespace
}  // namespace geopipe
