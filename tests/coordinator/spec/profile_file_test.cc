#include "coordinator/spec/profile_file.h"

#include <catch2/catch.hpp>
#include <random>
#include <string>

#include "runtime/base/files.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

ProfiledModel SomeModel() {
  return {.model = {.hidden_size = 64,
                    .intermediate_size = 128,
                    .num_hidden_layers = 4,
                    .num_attention_heads = 4,
                    .num_key_value_heads = 2,
                    .vocab_size = 258,
                    .tie_word_embeddings = true},
          .precision = Precision::kBf16};
}

PartCosts RandomPart(std::mt19937_64& random) {
  const auto duration = [&] { return static_cast<int64_t>(random() >> (18 + random() % 44)); };
  return {duration(), duration(), duration()};
}

TEST_CASE("A profile written is read back unchanged") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  ProfileFile file{.model = SomeModel(), .profile = {.tensor = 2}};
  Profile& profile = file.profile;
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
  const auto read = ParseProfileFile(FormatProfile(file), "p.yaml");
  INFO(read.status().ToString());
  REQUIRE(read.ok());
  CHECK(*read == file);

  const auto folder = TempFolder::Create("geopipe-profile-");
  REQUIRE(folder.ok());
  REQUIRE(WriteProfileFile(folder->path() / "profile.yaml", file).ok());
  CHECK(ReadProfileFile(folder->path() / "profile.yaml").value() == file);
  CHECK(ParseProfileFile(FormatProfile({.model = SomeModel()}), "p.yaml").value() == ProfileFile{.model = SomeModel()});
  CHECK(ParseProfileFile("apiVersion: geopipe/v1\nkind: Profile\nentries: []\n", "p.yaml")->profile.tensor == 0);
}

TEST_CASE("Each mistake in a profile is one sentence at its place") {
  const std::string head = "apiVersion: geopipe/v1\nkind: Profile\nmodel: {hidden_size: 64}\nentries:\n";
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
        "p.yaml:6:3: entries[1]: a/n/0 at b 1 and s 128 is given twice; keep one");
  CHECK(error(head + entry("0")) == "p.yaml:5:51: entries[0].micro_batch_size: is 0; it must be from 1 to 67108864");
  CHECK(error(head + entry("67108864")) ==
        "p.yaml:5:3: entries[0]: micro_batch_size 67108864, sequence_length 128; a micro-batch has at most 67108864 "
        "tokens");
  JobSpec job;
  ClusterSpec cluster;
  cluster.sites.emplace_back().name = "b";
  const ProfileUse use{job, cluster};
  CHECK(
      ParseProfileFile(head + entry("1"), "p.yaml", &use).status().message() ==
      "p.yaml:5:10: entries[0].site: 'a' is not a site of the topology; name one of its sites or leave the entry out");
  const std::string message = "- {site: a, node: n, device: 0, bytes: 8, whole: 2ms, fixed: 1ms}\n";
  const std::string messages = "apiVersion: geopipe/v1\nkind: Profile\nentries: []\nmessages:\n";
  CHECK(error(messages + message).empty());
  CHECK(error(messages + message + message) == "p.yaml:6:3: messages[1]: a/n/0 is given twice; keep one");
  CHECK(error("apiVersion: geopipe/v1\nkind: Profile\nentries: []\n").empty());
  CHECK(ParseProfileFile("apiVersion: geopipe/v1\nkind: Profile\nentries: []\n", "p.yaml", &use).status().message() ==
        "p.yaml:3:1: entries: holds no measurement, nor does messages; measure first (geopipectl profile JOB)");
  CHECK(error("apiVersion: geopipe/v1\nkind: TrainingJob\nentries: []\n") ==
        "p.yaml:2:7: kind: 'TrainingJob' is not one of Profile");
  CHECK(error("apiVersion: geopipe/v1\nkind: Profile\nentries:\n" + entry("1")) ==
        "p.yaml:1:1: model: missing: of which model the entries are is not said, as older versions wrote them; measure "
        "again (geopipectl profile JOB), or add it (geopipectl explain profile)");
}

TEST_CASE("A profile is used for the model, precision and devices that it was measured with, and for no others") {
  ProfileFile file{.model = SomeModel()};
  ProfileEntry& entry = file.profile.entries.emplace_back();
  entry.site = "north";
  entry.node = "n";
  entry.micro_batch_size = 1;
  entry.sequence_length = 128;
  const std::string text = FormatProfile(file);
  JobSpec job;
  job.name = "big";
  job.model = file.model.model;
  job.precision = file.model.precision;
  ClusterSpec cluster;
  cluster.sites.emplace_back().name = "north";
  const auto error = [&] {
    const ProfileUse use{job, cluster};
    return std::string(ParseProfileFile(text, "p.yaml", &use).status().message());
  };
  CHECK(error().empty());
  // One layer was measured, wherever it stands.
  job.model.num_hidden_layers = 80;
  job.model.max_position_embeddings = 4096;
  job.model.rope_theta = 500000;
  CHECK(error().empty());

  const auto refused = [&](auto change, const std::string& words) {
    const JobSpec job_before = job;
    const ClusterSpec cluster_before = cluster;
    change();
    INFO(error());
    CHECK(error().find(words) != std::string::npos);
    CHECK(error().starts_with("p.yaml:"));
    CHECK(error().ends_with("; measure again: run the job there, then geopipectl profile big"));
    job = job_before;
    cluster = cluster_before;
  };
  refused([&] { job.model.hidden_size = 5120; }, ": model.hidden_size: is 64, and job big has 5120;");
  refused([&] { job.model.intermediate_size = 100; }, ": model.intermediate_size: is 128, and job big has 100;");
  refused([&] { job.model.num_attention_heads = 8; }, ": model.num_attention_heads: is 4, and job big has 8;");
  refused([&] { job.model.num_key_value_heads = 4; }, ": model.num_key_value_heads: is 2, and job big has 4;");
  refused([&] { job.model.vocab_size = 32000; }, ": model.vocab_size: is 258, and job big has 32000;");
  refused([&] { job.model.tie_word_embeddings = false; },
          ": model.tie_word_embeddings: is true, and job big has false;");
  refused([&] { job.precision = Precision::kFp32; }, ": model.precision: is bf16, and job big has fp32;");
  refused([&] { cluster.sites[0].device.kind = "h100"; },
          ": model.device: is cpu, and site north of the topology has h100;");
  refused([&] { cluster.sites[0].device.attention = Attention::kDense; },
          ": model.attention: is blocked, and site north of the topology has dense;");
}

TEST_CASE("What messages alone were measured of does not matter") {
  const std::string text =
      "apiVersion: geopipe/v1\nkind: Profile\nentries: []\nmessages:\n"
      "- {site: north, node: n, device: 0, bytes: 8, whole: 2ms, fixed: 1ms}\n";
  JobSpec job;
  job.model.hidden_size = 5120;
  ClusterSpec cluster;
  cluster.sites.emplace_back().name = "north";
  const ProfileUse use{job, cluster};
  CHECK(ParseProfileFile(text, "p.yaml", &use).ok());
}

}  // namespace
}  // namespace geopipe
