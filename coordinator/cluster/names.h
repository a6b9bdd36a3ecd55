// Names of nodes, workers, sessions and calls in the core.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "geopipe/v1/cluster.pb.h"
#include "geopipe/v1/worker_service.pb.h"

namespace geopipe {

using SessionId = uint64_t;  // one stream of one agent; never used again
using CallId = uint64_t;     // one call of ControlService; never used again

// One node of one site: what an agent speaks for.
struct NodeKey {
  std::string site;
  std::string node;

  friend auto operator<=>(const NodeKey&, const NodeKey&) = default;
};

// One device of one node, on which a worker runs.
struct WorkerKey {
  std::string site;
  std::string node;
  int32_t device = 0;

  NodeKey node_key() const { return {site, node}; }
  friend auto operator<=>(const WorkerKey&, const WorkerKey&) = default;
};

// "site/node" and "site/node/device": how people see them.
inline std::string DisplayName(const NodeKey& key) { return fmt::format("{}/{}", key.site, key.node); }
inline std::string DisplayName(const WorkerKey& key) { return fmt::format("{}/{}/{}", key.site, key.node, key.device); }

// "a, b and 3 more".
template <class Keys>
std::string DisplayNames(const Keys& keys) {
  constexpr size_t kShown = 8;
  std::vector<std::string> names;
  for (auto key = keys.begin(); key != keys.end() && names.size() < kShown; ++key) {
    names.push_back(DisplayName(*key));
  }
  return fmt::format("{}{}", fmt::join(names, ", "),
                     keys.size() > kShown ? fmt::format(" and {} more", keys.size() - kShown) : "");
}

// "1.5 s".
inline std::string FormatSeconds(int64_t ns) { return fmt::format("{:.1f} s", static_cast<double>(ns) / 1e9); }

inline WorkerKey KeyOf(const v1::WorkerId& id) { return {id.site(), id.node(), id.device()}; }

inline NodeKey KeyOf(const v1::NodeName& name) { return {name.site(), name.node()}; }

inline v1::NodeName ToProto(const NodeKey& node) {
  v1::NodeName name;
  name.set_site(node.site);
  name.set_node(node.node);
  return name;
}

inline v1::WorkerId MakeWorkerId(const WorkerKey& key, const std::string& job, uint64_t incarnation) {
  v1::WorkerId id;
  id.set_site(key.site);
  id.set_node(key.node);
  id.set_device(key.device);
  id.set_job(job);
  id.set_incarnation(incarnation);
  return id;
}

// The moment a step happens at. Decisions use the monotonic time alone.
struct Now {
  int64_t ns = 0;       // monotonic
  int64_t unix_ns = 0;  // for people
};

}  // namespace geopipe
