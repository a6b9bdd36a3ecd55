#include "optimizer/model/plan/message_overhead.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

namespace geopipe {
namespace {

int64_t LowerMedian(std::vector<int64_t> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// A message of `bytes` from one device of the site to another over no link.
struct SiteOverhead {
  int64_t fixed_ns = 0;
  int64_t whole_ns = 0;
};

std::optional<SiteOverhead> OverheadAt(const Profile& profile, std::string_view site, int64_t bytes) {
  std::vector<int64_t> fixed_ns;
  std::vector<int64_t> whole_ns;
  for (const MessageCost& measured : profile.messages) {
    if (measured.site != site) {
      continue;
    }
    const auto per_bytes_ns = static_cast<double>(std::max<int64_t>(0, measured.whole_ns - measured.fixed_ns));
    const double share = measured.bytes == 0 ? 0 : static_cast<double>(bytes) / static_cast<double>(measured.bytes);
    fixed_ns.push_back(measured.fixed_ns);
    whole_ns.push_back(measured.fixed_ns + std::llround(per_bytes_ns * share));
  }
  if (fixed_ns.empty()) {
    return std::nullopt;
  }
  return SiteOverhead{.fixed_ns = LowerMedian(std::move(fixed_ns)), .whole_ns = LowerMedian(std::move(whole_ns))};
}

bool KeepsTime(const ClusterSpec& cluster, std::string_view site_a, std::string_view site_b) {
  const SiteSpec* site = cluster.FindSite(site_a);
  const LinkSpec* link = site_a == site_b ? nullptr : cluster.FindLink(site_a, site_b);
  return site_a == site_b ? site != nullptr && site->keeps_time : link != nullptr && link->keeps_time;
}

}  // namespace

int64_t MessageOverheadNs(const Profile* profile, const ClusterSpec& cluster, std::string_view site_a,
                          std::string_view site_b, int64_t bytes, int64_t serialization_ns) {
  if (profile == nullptr || KeepsTime(cluster, site_a, site_b)) {
    return 0;
  }
  const std::optional<SiteOverhead> a = OverheadAt(*profile, site_a, bytes);
  const std::optional<SiteOverhead> b = OverheadAt(*profile, site_b, bytes);
  if (!a.has_value() && !b.has_value()) {
    return 0;
  }
  const SiteOverhead& low = a.has_value() ? *a : *b;
  const SiteOverhead& high = b.has_value() ? *b : *a;
  const int64_t fixed_ns = (low.fixed_ns + high.fixed_ns) / 2;
  const int64_t whole_ns = (low.whole_ns + high.whole_ns) / 2;
  return std::max(fixed_ns, whole_ns - serialization_ns);
}

void AddMessageOverhead(const Profile* profile, const ClusterSpec& cluster, std::string_view site_a,
                        std::string_view site_b, CommMode comm, BoundaryCost& boundary) {
  boundary.overhead_ns =
      MessageOverheadNs(profile, cluster, site_a, site_b, boundary.message_bytes, boundary.serialization_ns);
  if (comm == CommMode::kBlocking) {
    boundary.acknowledgement_ns = boundary.latency_ns + MessageOverheadNs(profile, cluster, site_a, site_b, 0, 0);
  }
}

}  // namespace geopipe
