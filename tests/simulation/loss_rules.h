// The rules of losses: a job recovers or fails for a cause alone, goes on where it could, and does not loop.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/simulation/coordinator_host.h"
#include "tests/simulation/data_plane.h"
#include "tests/simulation/ledger.h"
#include "tests/simulation/node.h"
#include "tests/simulation/reach.h"
#include "tests/simulation/user.h"
#include "tests/simulation/world.h"

namespace geopipe::simulation {

class LossRules {
 public:
  // `recover`: jobs may lose workers. All are referred to.
  LossRules(World& world, const User& user, Disk& disk, const Ledger& ledger, const DataPlane& plane,
            const Reach& reach, const std::vector<std::unique_ptr<Node>>& nodes, bool recover)
      : world_(world),
        user_(user),
        disk_(disk),
        ledger_(ledger),
        plane_(plane),
        reach_(reach),
        nodes_(nodes),
        recover_(recover) {}

  // Called when the store is told of a failure, or of a loss and the recovery from it.
  void OnFailed(const std::string& name, const std::string& cause);
  void OnRecovering(const std::string& name, const std::string& cause);
  // The data path of the site is cut for long.
  void NoteCut(const std::string& site, int64_t until_ns) { cut_until_ns_[site] = until_ns; }

 private:
  bool IsGone(const std::string& name, const std::string& cause) const;
  bool IsOlder(const std::string& name, const std::string& cause) const;
  bool MayLose(const std::string& name, const StoredJob& stored) const;

  World& world_;
  const User& user_;
  Disk& disk_;
  const Ledger& ledger_;
  const DataPlane& plane_;
  const Reach& reach_;
  const std::vector<std::unique_ptr<Node>>& nodes_;
  const bool recover_;
  std::map<std::string, std::deque<int64_t>> recoveries_ns_;  // by job, since its last progress
  std::map<std::string, int64_t> cut_until_ns_;               // by site
};

}  // namespace geopipe::simulation
