#include "coordinator/core/links.h"

#include <fmt/format.h>

#include <algorithm>

#include "optimizer/base/status_macros.h"

namespace geopipe {
namespace {

std::pair<std::string, std::string> PairOf(const std::string& a, const std::string& b) {
  return a < b ? std::pair(a, b) : std::pair(b, a);
}

}  // namespace

LinkTable LinkTable::Of(const std::map<NodeKey, NodeRecord>& nodes) {
  LinkTable table;
  for (const auto& [key, node] : nodes) {
    for (const v1::LinkDeclaration& declared : node.links) {
      if (declared.to_site() == key.site) {
        continue;
      }
      const auto [position, added] = table.links_.try_emplace(PairOf(key.site, declared.to_site()));
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
  return table;
}

const MergedLink* LinkTable::Find(const std::string& a, const std::string& b) const {
  const auto found = links_.find(PairOf(a, b));
  return found == links_.end() ? nullptr : &found->second;
}

std::vector<v1::LinkShape> LinkTable::ShapesFor(const std::string& site, std::span<const std::string> sites) const {
  std::vector<v1::LinkShape> shapes;
  for (const std::string& to : sites) {
    const MergedLink* link = to == site ? nullptr : Find(site, to);
    if (link == nullptr) {
      continue;
    }
    const auto shaped = link->shaped_by.find(site);
    if (shaped != link->shaped_by.end() && shaped->second) {
      v1::LinkShape& shape = shapes.emplace_back();
      shape.set_from_site(site);
      shape.set_to_site(to);
      shape.set_latency_ns(link->latency_ns);
      shape.set_bandwidth_bytes_per_s(link->bandwidth_bytes_per_s);
    }
  }
  return shapes;
}

std::vector<LinkSpec> LinkTable::SpecsFor(std::span<const std::string> sites) const {
  std::vector<LinkSpec> specs;
  for (size_t i = 0; i < sites.size(); ++i) {
    for (size_t j = i + 1; j < sites.size(); ++j) {
      if (const MergedLink* link = Find(sites[i], sites[j]); link != nullptr) {
        specs.push_back({sites[i], sites[j], link->latency_ns, link->bandwidth_bytes_per_s});
      }
    }
  }
  return specs;
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

std::vector<v1::LinkStatus> LinkTable::Statuses() const {
  std::vector<v1::LinkStatus> statuses;
  for (const auto& [pair, link] : links_) {
    for (const auto& [from, shaped] : link.shaped_by) {
      v1::LinkStatus& status = statuses.emplace_back();
      status.set_from_site(from);
      status.set_to_site(from == pair.first ? pair.second : pair.first);
      status.set_latency_ns(link.latency_ns);
      status.set_bandwidth_bytes_per_s(link.bandwidth_bytes_per_s);
      status.set_shaped(shaped);
      status.set_source("declared");
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
