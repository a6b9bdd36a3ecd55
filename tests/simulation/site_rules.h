// Rules for jobs when nothing is wrong but one site, which is lost or drained, and when that is back.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/simulation/coordinator_host.h"
#include "tests/simulation/node.h"
#include "tests/simulation/user.h"
#include "tests/simulation/world.h"

namespace geopipe::simulation {

class SiteRules {
 public:
  // Jobs have gone on without a site that is lost, or have left one that is drained or goes down.
  static constexpr int64_t kLeaveNs = 110 * kSecondNs;
  // A site that is back is used again, by jobs whose iterations are short.
  static constexpr int64_t kReturnNs = 120 * kSecondNs;

  // `devices`: of each site. `recover`: jobs survive the loss of workers, however often.
  SiteRules(World& world, const User& user, Disk& disk, const DataPlane& plane,
            const std::vector<std::unique_ptr<Node>>& nodes, int32_t devices, bool recover)
      : world_(world),
        user_(user),
        disk_(disk),
        plane_(plane),
        nodes_(nodes),
        has_room_(devices > 1),
        recover_(recover) {}

  // Two jobs do not fit at a site.
  void SetCrowded() { has_room_ = false; }
  // The site is about to be lost, has been drained, or is told to go down.
  void Lose(const std::string& site);
  void Drain(const std::string& site);
  void Leave(const std::string& site);
  // kLeaveNs later.
  void CheckLost() const;
  void CheckDrained() const;
  void CheckLeft() const;
  // The site is back; kReturnNs later.
  void GiveBack();
  void CheckReturned() const;

 private:
  // Runs workers at the site.
  static bool IsAt(const StoredJob& job, const std::string& site);
  // Trains, and for some time yet.
  bool Trains(const UserJob& job, const StoredJob& stored) const;

  World& world_;
  const User& user_;
  Disk& disk_;
  const DataPlane& plane_;
  const std::vector<std::unique_ptr<Node>>& nodes_;
  bool has_room_;  // for two jobs at a site
  const bool recover_;
  std::string site_;
  std::map<std::string, int64_t> leaves_;   // jobs that are to go on elsewhere, and how often they had been applied
  std::map<std::string, int> recoveries_;   // of these, so far
  std::map<std::string, int64_t> returns_;  // jobs that are to come back, and how often they had been applied
};

}  // namespace geopipe::simulation
