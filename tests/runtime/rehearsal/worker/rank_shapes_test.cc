#include "runtime/rehearsal/worker/rank_shapes.h"

#include <catch2/catch.hpp>
#include <map>
#include <string>

namespace geopipe {
namespace {

v1::LinkShape Link(const std::string& from, const std::string& to) {
  v1::LinkShape link;
  link.set_from_site(from);
  link.set_to_site(to);
  link.set_latency_ns(from == to ? 10 : 1000);
  link.set_bandwidth_bytes_per_s(1200);
  link.set_pacer_path("/pacer-" + to);
  return link;
}

// Data 2 x tensor 2, ranks in rows of a stage: oslo's first stage on nodes 0 and 1, its second on nodes 2 and 1,
// bergen's on one.
Plan GridPlan() {
  Plan plan;
  plan.grid = {.data = 2, .tensor = 2};
  const LayerRange layers{.first = 0, .last = 0, .has_embedding = false, .has_head = false};
  const auto place = [](int32_t node, int32_t device) { return DevicePlace{.node = node, .device = device}; };
  plan.Append({.site = "oslo"}, layers, std::vector{place(0, 0), place(0, 1), place(1, 0), place(1, 1)});
  plan.Append({.site = "oslo"}, layers, std::vector{place(2, 0), place(2, 1), place(1, 2), place(1, 3)});
  plan.Append({.site = "bergen"}, layers, std::vector{place(0, 0), place(0, 1), place(0, 2), place(0, 3)});
  return plan;
}

std::map<PeerId, PeerShape> ShapesByPeer(const std::vector<v1::LinkShape>& links, int32_t rank) {
  std::map<PeerId, PeerShape> shapes;
  for (const PeerShape& shape : ShapesOfRank(GridPlan(), links, rank)) {
    CHECK(shapes.emplace(shape.peer_rank, shape).second);
  }
  return shapes;
}

TEST_CASE("a rank shapes what it sends to the stages of its pipeline, over links and between nodes") {
  const std::vector<v1::LinkShape> links = {Link("oslo", "bergen"), Link("oslo", "oslo"), Link("bergen", "oslo")};
  const std::map<PeerId, PeerShape> first = ShapesByPeer(links, 1);
  REQUIRE(first.size() == 2);
  CHECK(first.at(5).latency_ns == 10);  // on node 2
  CHECK(first.at(9).latency_ns == 1000);
  // Its replica's next stage is on the same node.
  const std::map<PeerId, PeerShape> second = ShapesByPeer(links, 3);
  REQUIRE(second.size() == 1);
  CHECK(second.at(11).latency_ns == 1000);
  const std::map<PeerId, PeerShape> last = ShapesByPeer(links, 9);
  REQUIRE(last.size() == 2);
  CHECK(last.at(1).pacer_path == "/pacer-oslo-1");
  CHECK(last.at(5).pacer_path == "/pacer-oslo-1");  // what goes to both stages waits for each other
  CHECK(ShapesByPeer({}, 1).empty());
}

TEST_CASE("every pipeline has its part of a link, and its part of a node's network or a device's own") {
  v1::LinkShape network = Link("oslo", "oslo");
  const std::map<PeerId, PeerShape> per_node = ShapesByPeer({Link("oslo", "bergen"), network}, 5);
  CHECK(per_node.at(9).bandwidth_bytes_per_s == 300);
  CHECK(per_node.at(9).pacer_path == "/pacer-bergen-1");
  CHECK(per_node.at(1).bandwidth_bytes_per_s == 600);
  CHECK(per_node.at(1).pacer_path == "/pacer-oslo-1");
  network.set_is_per_device(true);
  const std::map<PeerId, PeerShape> per_device = ShapesByPeer({network}, 5);
  CHECK(per_device.at(1).bandwidth_bytes_per_s == 1200);
  CHECK(per_device.at(1).pacer_path == "/pacer-oslo");
  network.clear_pacer_path();
  network.set_is_per_device(false);
  CHECK(ShapesByPeer({network}, 5).at(1).pacer_path.empty());
}

}  // namespace
}  // namespace geopipe
