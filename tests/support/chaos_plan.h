// Faults at random instants, drawn from a seed, and what each has cost a run: for tests/bench/chaos_bench.cc. Nothing
// here does anything.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace geopipe {

struct ChaosFault {
  enum class Kind : uint8_t {
    kKill,
    kStop,
    kKeeper,       // a keeper is stopped
    kCut,          // of a link
    kFull,         // disk
    kDescriptors,  // there are none: open, socket, accept and their like give EMFILE
    kFork,         // gives EAGAIN
    kEio,          // files of a disk cannot be opened or read
    kEstale,       // likewise
    kRestore,      // the coordinator ends, and comes back with a store of a while ago
  };
  Kind kind = Kind::kKill;
  size_t target = 0;  // ChaosTargets of the kind
  int64_t at_ns = 0;  // since training began; not before it, where the last fault is not over
  int64_t duration_ns = 0;
  // For kKeeper, kDescriptors, kFork, kEio and kEstale: the worker there, or the coordinator, is killed at the same
  // instant, and another has to be started where that is hard.
  bool kills = false;
};
inline constexpr std::array kChaosKinds{
    ChaosFault::Kind::kKill,   ChaosFault::Kind::kStop,        ChaosFault::Kind::kKeeper, ChaosFault::Kind::kCut,
    ChaosFault::Kind::kFull,   ChaosFault::Kind::kDescriptors, ChaosFault::Kind::kFork,   ChaosFault::Kind::kEio,
    ChaosFault::Kind::kEstale, ChaosFault::Kind::kRestore};

// "kill", "no fork", ..., and the one that its faults have in ChaosText.
std::string_view ChaosKindName(ChaosFault::Kind kind);
char ChaosLetter(ChaosFault::Kind kind);

// Targets of a kind of fault, by name: processes (coordinator; agent, keeper and worker of each site), links between
// two sites, disks and environments of the coordinator and of each site.
std::vector<std::string> ChaosTargets(ChaosFault::Kind kind, const std::vector<std::string>& sites);
// Pairs of sites, in the order of ChaosTargets(kCut).
std::vector<std::pair<size_t, size_t>> ChaosLinks(size_t sites);
// True when the target is the coordinator, or its disk or environment.
bool IsOfCoordinator(const ChaosFault& fault);
// The site whose keeper, worker, disk or environment the target is. REQUIRES: not the coordinator, no link.
size_t ChaosSite(const ChaosFault& fault, size_t sites);

struct ChaosDraw {
  uint64_t seed = 1;
  size_t sites = 3;
  int64_t span_ns = 0;
  int64_t every_ns = 0;
  std::vector<ChaosFault::Kind> kinds{kChaosKinds.begin(), kChaosKinds.end()};  // no others
};
// One fault in each `every_ns` but the last, in the first half of it. Every kind comes at least once where there are as
// many faults, a restore at most once, in the middle third. The others' shares are: kill 20, stop 16, cut 12, keeper
// and descriptors 10, the rest 8 each. Processes are stopped for 1 to 20 s, keepers for 1 to 30 s; links are cut for 1
// to 8 s; a disk is full for 10 s, and the environment bad for 1 to 10 s. Targets are uniform.
std::vector<ChaosFault> DrawChaos(const ChaosDraw& draw);

// Bar of a fault's cost: 5 s and, where it keeps a rank from training, its duration. It does when a worker is stopped,
// a link is cut, files at a site cannot be read (training data is there), a worker is killed where none can be started,
// and while the job waits for people to choose a state (a store restored). The others stop nobody: a worker that is
// killed may be started at once.
bool StopsRank(const ChaosFault& fault, size_t sites);
int64_t ChaosBarNs(const ChaosFault& fault, size_t sites);

struct ChaosProgress {
  int64_t at_ns = 0;
  int64_t iterations = 0;  // done, of the run as it is then: fewer again after some have been lost
};
// The training time that each fault has cost: of the time from its begin to the next one's, the last one's to the end
// of `progress`, what is not accounted for by iterations that were done in it, at `iteration_ns` each. Iterations that
// are repeated are cost. REQUIRES: `progress` and `begins_ns` are in order of time; nothing is disturbed when a fault
// begins.
std::vector<int64_t> ChaosCosts(std::span<const ChaosProgress> progress, std::span<const int64_t> begins_ns,
                                int64_t iteration_ns);

}  // namespace geopipe
