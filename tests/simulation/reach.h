// Knows which sites the coordinator can hear of, as neither it nor an agent can.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/simulation/world.h"

namespace geopipe::simulation {

class Reach {
 public:
  // Silence that a job may be failed for: less than an orphan's grace.
  static constexpr int64_t kSilenceNs = 25 * kSecondNs;
  // Shorter ones are nothing to any job.
  static constexpr int64_t kShortNs = 6 * kSecondNs;

  // All sites can be heard of now.
  Reach(const World& world, const std::vector<std::string>& sites) : world_(world) {
    for (const std::string& site : sites) {
      sites_[site].reached_ns = world.now_ns();
    }
  }

  // The site can be heard of now.
  void Hear(const std::string& site) {
    Site& heard = sites_.at(site);
    if (const int64_t silent_ns = world_.now_ns() - heard.reached_ns; silent_ns >= kShortNs) {
      heard.returned_ns = world_.now_ns();
      heard.silence_ns = silent_ns;
    }
    heard.reached_ns = world_.now_ns();
  }

  // Time since which the site could not be heard of; 0: it can be now.
  int64_t silent_ns(const std::string& site) const { return world_.now_ns() - sites_.at(site).reached_ns; }
  // All of them can be heard of now.
  bool hears(const std::vector<std::string>& sites) const {
    return std::ranges::all_of(sites, [this](const std::string& site) { return silent_ns(site) == 0; });
  }
  // Time since the site can be heard of again after it was silent for so long; an hour and more: it never was.
  int64_t returned_for_ns(const std::string& site, int64_t silence_ns) const {
    const Site& heard = sites_.at(site);
    return heard.silence_ns >= silence_ns ? world_.now_ns() - heard.returned_ns : 3600 * kSecondNs;
  }

 private:
  struct Site {
    int64_t reached_ns = 0;
    int64_t returned_ns = -3600 * kSecondNs;  // after a silence that was not short
    int64_t silence_ns = 0;                   // that one
  };

  const World& world_;
  std::map<std::string, Site> sites_;
};

}  // namespace geopipe::simulation
