#include "optimizer/plan/space/placement.h"

#include <catch2/catch.hpp>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "optimizer/model/groups/node_groups.h"
#include "optimizer/search/prng.h"
#include "tests/optimizer/plan/jobs.h"

namespace geopipe {
namespace {

using test::Llama13bJob;
using test::ThreeRegions;

// "north/0 north/1 east/0 ..."
std::string Where(const Plan& plan) {
  std::string text;
  for (int32_t rank = 0; rank < plan.grid.pipeline; ++rank) {
    const auto devices = plan.DevicesOf(rank);
    text += (text.empty() ? "" : " ") + plan.pipeline_ranks[rank].site + "/" + std::to_string(devices.front().node) +
            ":" + std::to_string(devices.front().device) + "-" + std::to_string(devices.back().device);
  }
  return text;
}

TEST_CASE("one stage per node-wide tensor group, nodes in order, sites in placement order") {
  const Plan placement = *PlaceStages(Llama13bJob(), ThreeRegions(), {"north", "east", "west"});
  CHECK(Where(placement) ==
        "north/0:0-7 north/1:0-7 north/2:0-7 east/0:0-7 east/1:0-7 west/0:0-7 west/1:0-7 west/2:0-7");
  CHECK(placement.Crossings() == std::vector<int32_t>{2, 4});
  CHECK(placement.idle.empty());
  CHECK(placement.stages[7].layers == LayerRange{.first = 35, .last = 39, .has_embedding = false, .has_head = true});
  CHECK(placement.pipeline_ranks[7].capacity_bytes == 64 * test::kGiB);
}

TEST_CASE("several stages on a node, the rest of it idle") {
  JobSpec job = Llama13bJob();
  job.parallelism.tensor = 1;
  job.model.num_attention_heads = job.model.num_key_value_heads = 40;
  job.parallelism.pipeline = 4;
  ClusterSpec cluster = ThreeRegions();
  for (SiteSpec& site : cluster.sites) {
    site.nodes = 1;
    site.devices_per_node = 2;
  }
  const Plan placement = *PlaceStages(job, cluster, {"north", "east", "west"});
  // Four stages over sites of two: one each, the fourth to the first of equals.
  CHECK(Where(placement) == "north/0:0-0 north/0:1-1 east/0:0-0 west/0:0-0");
  CHECK(placement.idle == std::vector<IdleDevices>{{"east", 0, {1}}, {"west", 0, {1}}});
}

TEST_CASE("a short pipeline is shared in proportion, and every site gets a stage") {
  JobSpec job = Llama13bJob();
  ClusterSpec cluster = ThreeRegions();
  cluster.sites[0].nodes = 20;
  cluster.sites[1].nodes = 1;
  cluster.sites[2].nodes = 10;
  job.parallelism.pipeline = 9;
  const Plan placement = *PlaceStages(job, cluster, {"north", "east", "west"});
  int north = 0, east = 0, west = 0;
  for (const PipelineRankPlan& rank : placement.pipeline_ranks) {
    north += rank.site == "north" ? 1 : 0;
    east += rank.site == "east" ? 1 : 0;
    west += rank.site == "west" ? 1 : 0;
  }
  CHECK(north == 5);
  CHECK(east == 1);
  CHECK(west == 3);
}

TEST_CASE("pipeline auto takes all devices, but no more stages than layers") {
  JobSpec job = Llama13bJob();
  job.parallelism.pipeline = 0;
  CHECK(PlaceStages(job, ThreeRegions(), {"north", "east", "west"})->stages.size() == 8);
  job.model.num_hidden_layers = 5;
  const Plan placement = *PlaceStages(job, ThreeRegions(), {"north", "east", "west"});
  CHECK(placement.stages.size() == 5);
  CHECK(placement.idle.size() == 3);
}

TEST_CASE("placements that cannot be are refused by key") {
  JobSpec job = Llama13bJob();
  const ClusterSpec cluster = ThreeRegions();
  const auto error = [&](const std::vector<std::string>& sites) {
    return std::string(PlaceStages(job, cluster, sites).status().message());
  };
  CHECK(error({"south"}) ==
        "placement.sites names \"south\", which the topology does not have; it has north, east, west");
  CHECK(error({"north", "west"}) ==
        "placement.sites puts \"north\" before \"west\", but the topology has no link between them");
  job.parallelism.pipeline = 9;
  CHECK(error({"north", "east", "west"}) ==
        "parallelism.pipeline is 9, but the sites have room for 8 stages of 8 devices; lower it or add devices");
  job.parallelism.pipeline = 2;
  CHECK(error({"north", "east", "west"}) ==
        "placement.sites lists 3 sites, and every one gets at least one stage, but parallelism.pipeline is 2; raise it "
        "or list fewer");
  job.parallelism.data = 2;
  CHECK(error({"north"}) ==
        "parallelism.data is 2; without a network between its nodes the replicas of a stage share one node, 16 devices "
        "with tensor 8, and a node of site \"north\" has 8; lower it, or give the site's network in the topology");
  job.parallelism.tensor = 16;
  CHECK(error({"north"}) ==
        "parallelism.tensor is 16; the tensor ranks of a stage share one node, and a node of site \"north\" has 8 "
        "devices; lower it");
}

// "0:0-7 1:0-7 | 2:0-7 3:0-7": node and devices of each replica.
std::string Replicas(const Plan& plan) {
  std::string text;
  for (int32_t rank = 0; rank < plan.grid.pipeline; ++rank) {
    text += rank == 0 ? "" : " |";
    const auto places = plan.DevicesOf(rank);
    for (int32_t replica = 0; replica < plan.grid.data; ++replica) {
      const DevicePlace& first = places[static_cast<size_t>(replica) * static_cast<size_t>(plan.grid.tensor)];
      const DevicePlace& last = places[(static_cast<size_t>(replica) + 1) * static_cast<size_t>(plan.grid.tensor) - 1];
      CHECK(first.node == last.node);
      text += (text.empty() ? "" : " ") + std::to_string(first.node) + ":" + std::to_string(first.device) + "-" +
              std::to_string(last.device);
    }
  }
  return text;
}

TEST_CASE("over a network that is known replicas of a stage go over the nodes, and each device is used once") {
  JobSpec job = Llama13bJob();
  job.parallelism.pipeline = 0;
  ClusterSpec cluster = ThreeRegions();
  for (SiteSpec& site : cluster.sites) {
    site.network = {.bandwidth_bytes_per_s = 50e9, .latency_ns = 5'000};
  }
  const auto place = [&](int64_t tensor, int64_t data, int64_t pipeline = 0) {
    job.parallelism.tensor = tensor;
    job.parallelism.data = data;
    job.parallelism.pipeline = pipeline;
    const absl::StatusOr<Plan> plan = PlaceStages(job, cluster, {"north"});  // three nodes of eight devices
    INFO(plan.status().ToString());
    REQUIRE(plan.ok());
    std::set<std::pair<int32_t, int32_t>> used;
    for (const DevicePlace& place : plan->devices) {
      CHECK(used.insert({place.node, place.device}).second);
    }
    for (const IdleDevices& idle : plan->idle) {
      for (const int32_t device : idle.devices) {
        CHECK(used.insert({idle.node, device}).second);
      }
    }
    CHECK(used.size() == 24);
    return Replicas(*plan);
  };
  CHECK(place(8, 3) == "0:0-7 1:0-7 2:0-7");
  CHECK(place(8, 2) == "0:0-7 1:0-7");
  CHECK(place(4, 2) == "0:0-3 0:4-7 | 1:0-3 1:4-7 | 2:0-3 2:4-7");
  CHECK(place(4, 3) == "0:0-3 0:4-7 1:0-3 | 1:4-7 2:0-3 2:4-7");
  CHECK(place(2, 3, 3) == "0:0-1 0:2-3 0:4-5 | 1:0-1 1:2-3 1:4-5 | 2:0-1 2:2-3 2:4-5");  // they share a node
  CHECK(place(2, 3) == "0:0-1 0:2-3 0:4-5 | 0:6-7 1:0-1 1:2-3 | 1:4-5 1:6-7 2:0-1 | 2:2-3 2:4-5 2:6-7");
  CHECK(place(5, 2) == "0:0-4 1:0-4");  // what is left of a node is too little for tensor ranks
  job.parallelism.tensor = 8;
  job.parallelism.data = 3;
  CHECK(PlaceStages(job, cluster, {"north", "east"}).status().message() ==
        "parallelism.data is 3; the replicas of a stage share one site, and site \"east\" has room for 2 of tensor 8; "
        "lower it");
}

TEST_CASE(
    "whatever sites and degrees: every device has one rank or is idle, tensor ranks share a node, or it is refused") {
  Prng prng(1);
  const auto draw = [&](int64_t most) { return 1 + static_cast<int64_t>(prng.Below(static_cast<uint64_t>(most))); };
  int placed = 0;
  for (int round = 0; round < 4000; ++round) {
    JobSpec job = Llama13bJob();
    job.model.num_hidden_layers = 12 + draw(36);
    job.parallelism.tensor = draw(9);
    job.parallelism.data = draw(9);
    job.parallelism.pipeline = draw(12) - 1;
    ClusterSpec cluster = ThreeRegions();
    int64_t devices = 0;
    for (SiteSpec& site : cluster.sites) {
      site.nodes = draw(6);
      site.devices_per_node = draw(12);
      site.network.bandwidth_bytes_per_s = draw(3) == 1 ? 0 : 1e9;
      devices += site.nodes * site.devices_per_node;
    }
    const absl::StatusOr<Plan> plan = PlaceStages(job, cluster, {"north", "east", "west"});
    if (!plan.ok()) {
      CHECK(absl::IsInvalidArgument(plan.status()));
      continue;
    }
    ++placed;
    std::set<std::tuple<std::string, int32_t, int32_t>> seen;
    for (int32_t rank = 0; rank < plan->grid.size(); ++rank) {
      const DevicePlace& place = plan->devices[static_cast<size_t>(rank)];
      const SiteSpec& site = *cluster.FindSite(plan->SiteOfRank(rank));
      CHECK((place.node >= 0 && place.node < site.nodes && place.device >= 0 && place.device < site.devices_per_node));
      CHECK(seen.emplace(site.name, place.node, place.device).second);
      const Rank at = plan->grid.At(rank);
      const int32_t first = plan->grid.IndexOf({at.pipeline, at.data, 0});
      CHECK(plan->devices[static_cast<size_t>(first)].node == place.node);
      const int32_t replica = plan->grid.IndexOf({at.pipeline, 0, 0});
      CHECK((site.network.given() || plan->devices[static_cast<size_t>(replica)].node == place.node));
    }
    for (const IdleDevices& idle : plan->idle) {
      for (const int32_t device : idle.devices) {
        CHECK(seen.emplace(idle.site, idle.node, device).second);
      }
    }
    CHECK(std::ssize(seen) == devices);
  }
  CHECK(placed > 300);
}

TEST_CASE("placement auto: all linked selections of few sites, the longest first") {
  JobSpec job = Llama13bJob();
  CHECK(CandidateSiteOrders(job, ThreeRegions()) == std::vector<std::vector<std::string>>{{"north", "east", "west"}});
  job.placement.sites.clear();
  const std::vector<std::vector<std::string>> expected{{"north", "east", "west"},
                                                       {"west", "east", "north"},
                                                       {"north", "east"},
                                                       {"east", "north"},
                                                       {"east", "west"},
                                                       {"west", "east"},
                                                       {"north"},
                                                       {"east"},
                                                       {"west"}};
  CHECK(CandidateSiteOrders(job, ThreeRegions()) == expected);
}

TEST_CASE("of orders that cost the same one is enough") {
  JobSpec job = Llama13bJob();
  job.placement.sites.clear();
  ClusterSpec cluster;
  for (const std::string name : {"a", "b", "c", "d"}) {
    for (const SiteSpec& other : cluster.sites) {
      cluster.links.push_back({name, other.name, 1000, 1e9});
    }
    cluster.sites.push_back({name, 2, 8, {.memory_bytes = 1}});
  }
  const auto distinct = [&] {
    OrderClasses classes(cluster);
    std::vector<std::vector<std::string>> orders = CandidateSiteOrders(job, cluster);
    std::erase_if(orders, [&](const auto& order) { return !classes.IsNew(order); });
    return orders;
  };
  CHECK(distinct() == std::vector<std::vector<std::string>>{{"a", "b", "c", "d"}, {"a", "b", "c"}, {"a", "b"}, {"a"}});
  cluster.sites[3].nodes = 1;
  // The odd one at each place of the others' order, or left out.
  CHECK(distinct().size() == 4 + (3 + 1) + (2 + 1) + 2);
  cluster.links.pop_back();  // c and d: what goes between them takes another way, with or without a direct neighbour
  CHECK(distinct().size() > 13);
}

TEST_CASE("walks over many sites pass by those without room, the shortest first") {
  JobSpec job = Llama13bJob();
  job.placement.sites.clear();
  ClusterSpec cluster;
  for (int i = 0; i < 16; ++i) {
    cluster.sites.push_back({"site" + std::to_string(i), 1, i == 3 ? 4 : 8, {.memory_bytes = 1}});
    for (int j = 0; j < i; ++j) {
      cluster.links.push_back(
          {"site" + std::to_string(j), "site" + std::to_string(i), 1000 + (i * 7 + j * 13) % 50, 1e9});
    }
  }
  const auto length = [&](const std::vector<std::string>& order) {
    int64_t sum = 0;
    for (size_t i = 1; i < order.size(); ++i) {
      sum += cluster.FindLink(order[i - 1], order[i])->latency_ns;
    }
    return sum;
  };
  CHECK(ShortestWalks(job, cluster, 16).empty());  // tensor 8
  for (const int64_t count : {1, 5, 15}) {
    const auto orders = ShortestWalks(job, cluster, count);
    CHECK(orders.size() == 15);
    for (size_t i = 0; i < orders.size(); ++i) {
      CHECK(std::ssize(orders[i]) == count);
      CHECK(std::ranges::count(orders[i], "site3") == 0);
      CHECK(std::set<std::string>(orders[i].begin(), orders[i].end()).size() == orders[i].size());
      CHECK((i == 0 || length(orders[i - 1]) <= length(orders[i])));
    }
  }
  cluster.links.clear();
  CHECK(ShortestWalks(job, cluster, 2).empty());
}

// Sites a, b, ... with so many groups each, all linked, and all groups unlike.
ClusterSpec Grouped(const std::vector<int>& groups) {
  ClusterSpec cluster;
  std::vector<LinkSpec> links;
  for (size_t i = 0; i < groups.size(); ++i) {
    const std::string name(1, static_cast<char>('a' + i));
    for (size_t j = 0; j < i; ++j) {
      links.push_back({std::string(1, static_cast<char>('a' + j)), name, 1'000'000, 1e9});
    }
    for (int group = 0; group < groups[i]; ++group) {
      SiteSpec& site = cluster.sites.emplace_back();
      site.name = groups[i] == 1 ? name : name + "/" + std::to_string(group);
      site.nodes = std::ssize(cluster.sites);
      site.devices_per_node = 8;
      site.device.memory_bytes = test::kGiB;
      site.network = {.bandwidth_bytes_per_s = 1e10, .latency_ns = 5'000};
    }
  }
  cluster.links = LinksOfGroups(cluster.sites, links);
  return cluster;
}

// Every ordered selection of groups in which those of a site stand together.
std::set<std::vector<std::string>> AllOrders(const ClusterSpec& cluster) {
  std::vector<std::string> names;
  for (const SiteSpec& site : cluster.sites) {
    names.push_back(site.name);
  }
  std::set<std::vector<std::string>> orders;
  for (size_t chosen = 1; chosen < size_t{1} << names.size(); ++chosen) {
    std::vector<std::string> order;
    for (size_t i = 0; i < names.size(); ++i) {
      if ((chosen >> i & 1) != 0) {
        order.push_back(names[i]);
      }
    }
    std::ranges::sort(order);
    do {
      size_t runs = 0;
      std::set<std::string> sites;
      for (size_t i = 0; i < order.size(); ++i) {
        runs += i == 0 || SiteOfGroup(order[i - 1]) != SiteOfGroup(order[i]) ? 1 : 0;
        sites.emplace(SiteOfGroup(order[i]));
      }
      if (runs == sites.size()) {
        orders.insert(order);
      }
    } while (std::ranges::next_permutation(order).found);
  }
  return orders;
}

TEST_CASE("placement auto: the groups of a site stand together, in any order and number") {
  JobSpec job = Llama13bJob();
  job.placement.sites.clear();
  for (const std::vector<int>& groups : {std::vector{2}, {2, 1}, {1, 2, 1}, {2, 2}, {3, 1}, {2, 1, 1, 1}}) {
    const ClusterSpec cluster = Grouped(groups);
    CHECK(TriesAllOrders(job, cluster));
    const std::vector<std::vector<std::string>> orders = CandidateSiteOrders(job, cluster);
    const std::set<std::vector<std::string>> distinct(orders.begin(), orders.end());
    CHECK(distinct.size() == orders.size());
    CHECK(distinct == AllOrders(cluster));
    OrderClasses classes(cluster);
    CHECK(std::ranges::all_of(orders, [&](const auto& order) { return classes.IsNew(order); }));
  }
  CHECK_FALSE(TriesAllOrders(job, Grouped({2, 2, 2, 2})));
  CHECK_FALSE(TriesAllOrders(job, Grouped({1, 1, 1, 1, 2})));
  CHECK_FALSE(TriesAllOrders(job, Grouped({6})));
}

TEST_CASE("placement.sites may name sites, with any of their groups, or groups") {
  JobSpec job = Llama13bJob();
  const ClusterSpec cluster = Grouped({2, 1});
  job.placement.sites = {"b", "a"};
  const std::vector<std::vector<std::string>> expected{
      {"b", "a/0", "a/1"}, {"b", "a/1", "a/0"}, {"b", "a/0"}, {"b", "a/1"}};
  CHECK(CandidateSiteOrders(job, cluster) == expected);
  job.placement.sites = {"a/1", "b"};
  CHECK(CandidateSiteOrders(job, cluster) == std::vector<std::vector<std::string>>{{"a/1", "b"}});
  job.placement.sites = {"a/1", "nowhere"};
  CHECK(CandidateSiteOrders(job, cluster) == std::vector<std::vector<std::string>>{{"a/1", "nowhere"}});
  // With too many selections, all groups of each site are taken, in the cluster's order.
  job.placement.sites = {"c", "b", "a"};
  CHECK(CandidateSiteOrders(job, Grouped({3, 3, 3})) ==
        std::vector<std::vector<std::string>>{{"c/0", "c/1", "c/2", "b/0", "b/1", "b/2", "a/0", "a/1", "a/2"}});

  job.parallelism.pipeline = 0;
  CHECK(PlaceStages(job, cluster, {"a/0", "b", "a/1"}).status().message() ==
        "placement.sites comes back to site \"a\"; list its groups next to each other");
  const Plan plan = *PlaceStages(job, cluster, {"a/1", "a/0", "b"});
  CHECK(Where(plan) == "a/1/0:0-7 a/1/1:0-7 a/0/0:0-7 b/0:0-7 b/1:0-7 b/2:0-7");
  CHECK(plan.Crossings() == std::vector<int32_t>{2});
}

TEST_CASE("walks pass each site once, whatever its groups") {
  JobSpec job = Llama13bJob();
  job.placement.sites.clear();
  const ClusterSpec cluster = Grouped({2, 3, 1, 2, 1, 3});
  for (const int64_t count : {1, 4, 8, 12}) {
    const auto orders = ShortestWalks(job, cluster, count);
    CHECK(orders.size() > 5);
    CHECK(std::ranges::all_of(orders, [&](const auto& order) { return Linked(cluster, order); }));
  }
}

}  // namespace
}  // namespace geopipe
