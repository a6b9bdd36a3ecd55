#include "coordinator/cluster/links.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "optimizer/base/status_macros.h"

namespace geopipe {

namespace {

LinkSpec PlannedLink(const SitePair& sites, const MergedLink& declared, const v1::LinkMeasurement* there,
                     const v1::LinkMeasurement* back) {
  std::optional<int64_t> latency_ns;
  std::optional<double> bandwidth_bytes_per_s;
  for (const v1::LinkMeasurement* measured : {there, back}) {
    if (measured == nullptr) {
      continue;
    }
    latency_ns = std::max(latency_ns.value_or(0), measured->latency_ns());
    if (measured->bandwidth_bytes_per_s() > 0) {
      bandwidth_bytes_per_s = std::min(bandwidth_bytes_per_s.value_or(measured->bandwidth_bytes_per_s()),
                                       measured->bandwidth_bytes_per_s());
    }
  }
  return {sites.first, sites.second, latency_ns.value_or(declared.latency_ns),
          bandwidth_bytes_per_s.value_or(declared.bandwidth_bytes_per_s)};
}

}  // namespace

SitePair PairOf(const std::string& a, const std::string& b) { return a < b ? SitePair(a, b) : SitePair(b, a); }

std::string PlaceOf(const SitePair& pair) {
  return IsInside(pair) ? fmt::format("inside {}", pair.first)
                        : fmt::format("between {} and {}", pair.first, pair.second);
}

LinkTable LinkTable::Of(const std::map<NodeKey, NodeRecord>& nodes) {
  LinkTable table;
  table.Merge(nodes, /*gone=*/false);
  LinkTable of_gone;
  of_gone.Merge(nodes, /*gone=*/true);
  table.links_.merge(of_gone.links_);
  table.AddInside(nodes);
  return table;
}

LinkTable LinkTable::Of(const v1::ListLinksResponse& reported) {
  LinkTable table;
  for (const v1::LinkStatus& status : reported.links()) {
    MergedLink& link = table.links_[PairOf(status.from_site(), status.to_site())];
    link.latency_ns = status.declared_latency_ns();
    link.bandwidth_bytes_per_s = status.declared_bandwidth_bytes_per_s();
  }
  return table;
}

void LinkTable::AddInside(const std::map<NodeKey, NodeRecord>& nodes) {
  std::map<std::string_view, int> counts;  // of nodes
  std::set<std::string_view> declared;
  for (const auto& [key, node] : nodes) {
    if (node.gone()) {
      continue;
    }
    if (node.spec.has_network()) {
      declared.insert(key.site);
    }
    ++counts[key.site];
  }
  for (const auto& [site, count] : counts) {
    if (count > 1 && !declared.contains(site)) {
      links_.try_emplace(InsideOf(std::string(site)));
    }
  }
}

void LinkTable::Merge(const std::map<NodeKey, NodeRecord>& nodes, bool gone) {
  for (const auto& [key, node] : nodes) {
    for (const v1::LinkDeclaration& declared : node.links) {
      if (node.gone() != gone || declared.to_site() == key.site) {
        continue;
      }
      const auto [position, added] = links_.try_emplace(PairOf(key.site, declared.to_site()));
      MergedLink& link = position->second;
      if (added) {
        link.latency_ns = declared.latency_ns();
        link.bandwidth_bytes_per_s = declared.bandwidth_bytes_per_s();
      } else {
        link.disputed = link.disputed || link.latency_ns != declared.latency_ns() ||
                        link.bandwidth_bytes_per_s != declared.bandwidth_bytes_per_s();
        link.latency_ns = std::max(link.latency_ns, declared.latency_ns());
        link.bandwidth_bytes_per_s = std::min(link.bandwidth_bytes_per_s, declared.bandwidth_bytes_per_s());
      }
      bool& shaped = link.shaped_by[key.site];
      shaped = shaped || declared.shaped();
    }
  }
}

const MergedLink* LinkTable::Find(const std::string& a, const std::string& b) const {
  const auto found = links_.find(PairOf(a, b));
  return found == links_.end() ? nullptr : &found->second;
}

std::vector<v1::LinkShape> LinkTable::ShapesFor(const std::string& site, std::span<const std::string> sites) const {
  std::vector<v1::LinkShape> shapes;
  for (const std::string& to : sites) {
    const MergedLink* link = to == site ? nullptr : Find(site, to);
    if (link != nullptr && link->ShapedBy(site)) {
      v1::LinkShape& shape = shapes.emplace_back();
      shape.set_from_site(site);
      shape.set_to_site(to);
      shape.set_latency_ns(link->latency_ns);
      shape.set_bandwidth_bytes_per_s(link->bandwidth_bytes_per_s);
    }
  }
  return shapes;
}

bool LinkTable::Shaped(const std::string& a, const std::string& b) const {
  const MergedLink* link = Find(a, b);
  return link != nullptr && link->shaped_by.size() == 2 &&
         std::ranges::all_of(link->shaped_by, [](const auto& end) { return end.second; });
}

std::vector<SitePair> LinkTable::Pairs() const {
  std::vector<SitePair> pairs;
  for (const auto& [pair, link] : links_) {
    pairs.push_back(pair);
  }
  return pairs;
}

std::vector<LinkSpec> LinkTable::SpecsFor(std::span<const std::string> sites, const MeasuredLinks& measured) const {
  std::vector<LinkSpec> specs;
  for (size_t i = 0; i < sites.size(); ++i) {
    for (size_t j = i + 1; j < sites.size(); ++j) {
      const MergedLink* link = Find(sites[i], sites[j]);
      if (link == nullptr) {
        continue;
      }
      const auto measurement = [&](const std::string& from, const std::string& to) {
        const MeasuredDirection* direction = measured.Find(from, to);
        return direction == nullptr ? nullptr : &direction->value;
      };
      specs.push_back(
          PlannedLink({sites[i], sites[j]}, *link, measurement(sites[i], sites[j]), measurement(sites[j], sites[i])));
    }
  }
  return specs;
}

std::optional<NetworkSpec> LinkTable::NetworkInside(const std::string& site, const MeasuredLinks& measured) const {
  const MeasuredDirection* found = Find(site, site) == nullptr ? nullptr : measured.Find(site, site);
  if (found == nullptr || found->value.bandwidth_bytes_per_s() <= 0) {
    return std::nullopt;
  }
  return NetworkSpec{.bandwidth_bytes_per_s = found->value.bandwidth_bytes_per_s(),
                     .latency_ns = found->value.latency_ns(),
                     .per = NetworkSpec::Per::kNode};
}

absl::Status LinkTable::CheckPipeline(const JobSpec& job, std::span<const std::string> sites) const {
  for (size_t i = 0; i < sites.size(); ++i) {
    for (size_t j = i + 1; j < sites.size(); ++j) {
      const bool neighbours = j == i + 1;
      const bool tied = job.model.tie_word_embeddings && i == 0 && j + 1 == sites.size();
      if (Find(sites[i], sites[j]) != nullptr || !(neighbours || tied || job.training.grad_clip.has_value())) {
        continue;
      }
      return absl::FailedPreconditionError(fmt::format(
          "sites {} and {} have no declared link, and {} pass between them; declare the link under `links` in the "
          "configuration of an agent of either site",
          sites[i], sites[j],
          neighbours ? "activations and gradients"
          : tied     ? "gradients of the tied embedding"
                     : "terms of the gradient norm (training.grad_clip)"));
    }
  }
  return absl::OkStatus();
}

std::vector<v1::LinkStatus> LinkTable::Statuses(int64_t now_ns, const MeasuredLinks& measured) const {
  std::vector<v1::LinkStatus> statuses;
  for (const auto& [pair, link] : links_) {
    std::vector<SitePair> ways{pair};
    if (!IsInside(pair)) {
      ways.emplace_back(pair.second, pair.first);
    }
    for (const auto& [from, to] : ways) {
      v1::LinkStatus& status = statuses.emplace_back();
      status.set_from_site(from);
      status.set_to_site(to);
      status.set_shaped(link.ShapedBy(from));
      status.set_declared_latency_ns(link.latency_ns);
      status.set_declared_bandwidth_bytes_per_s(link.bandwidth_bytes_per_s);
      status.set_latency_ns(link.latency_ns);
      status.set_bandwidth_bytes_per_s(link.bandwidth_bytes_per_s);
      status.set_source(IsInside(pair) ? "unknown" : "declared");
      const MeasuredDirection* direction = measured.Find(from, to);
      if (direction == nullptr) {
        continue;
      }
      status.set_source(direction->from_traffic ? "traffic" : "probed");
      status.set_latency_ns(direction->value.latency_ns());
      if (direction->value.bandwidth_bytes_per_s() > 0) {
        status.set_bandwidth_bytes_per_s(direction->value.bandwidth_bytes_per_s());
      }
      *status.mutable_measured() = direction->value;
      status.set_age_ns(std::max<int64_t>(0, now_ns - direction->at_ns));
      status.set_measurements(direction->measurements);
    }
  }
  return statuses;
}

std::vector<std::string> LinkTable::Disputes() const {
  std::vector<std::string> disputes;
  for (const auto& [pair, link] : links_) {
    if (link.disputed) {
      disputes.push_back(fmt::format(
          "the agents of {} and {} declare their link differently; the larger latency {} ns and the smaller bandwidth "
          "{} bytes per second are taken",
          pair.first, pair.second, link.latency_ns, link.bandwidth_bytes_per_s));
    }
  }
  return disputes;
}

}  // namespace geopipe
