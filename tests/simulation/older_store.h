// Puts copies in the place of the coordinator's store, as who restores a backup does, and finds out what the store does
// not know then: that may be forgotten, and no more.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/simulation/coordinator_host.h"
#include "tests/simulation/ledger.h"
#include "tests/simulation/node.h"
#include "tests/simulation/store_rules.h"
#include "tests/simulation/user.h"
#include "tests/simulation/world.h"

namespace geopipe::simulation {

class OlderStore {
 public:
  // All are referred to.
  OlderStore(World& world, Disk& disk, Ledger& ledger, User& user, const std::vector<std::unique_ptr<Node>>& nodes)
      : world_(world), disk_(disk), ledger_(ledger), user_(user), nodes_(nodes) {}

  // Takes a copy of the store, for who puts it back by this name.
  void Copy(int64_t name);
  // REQUIRES: no coordinator lives, and there is such a copy.
  void PutBack(int64_t name);

 private:
  struct Stored {
    std::vector<StoredJob> jobs;
    std::map<std::pair<std::string, std::string>, StoredLink> links;
    std::set<std::string> drained;
    uint64_t incarnation = 0;
    std::map<std::string, StoreRules::Applied> applied;
    std::map<std::string, uint64_t> applications;  // by job
  };
  // Compares what the store knew of the job with what it knows now. `application`: of the time of the copy.
  void Compare(const std::string& job, const StoredJob* before, uint64_t application);

  World& world_;
  Disk& disk_;
  Ledger& ledger_;
  User& user_;
  const std::vector<std::unique_ptr<Node>>& nodes_;
  std::map<int64_t, Stored> copies_;
};

}  // namespace geopipe::simulation
