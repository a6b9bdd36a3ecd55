#include "tests/support/chaos_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/splitmix64.h"
#include "tests/support/durations.h"

namespace geopipe {
namespace {

using Kind = ChaosFault::Kind;

constexpr int64_t kFreeNs = 5 * kSecond;

struct KindTraits {
  std::string_view name;
  char letter;
  int weight;
  int64_t shortest_ns;
  int64_t longest_ns;
};
constexpr std::array<KindTraits, kChaosKinds.size()> kTraits{{
    {"kill", 'k', 20, 0, 0},
    {"stop", 's', 16, 1 * kSecond, 20 * kSecond},
    {"keeper stopped", 'h', 10, 1 * kSecond, 30 * kSecond},
    {"link cut", 'c', 12, 1 * kSecond, 8 * kSecond},
    {"disk full", 'f', 8, 10 * kSecond, 10 * kSecond},
    {"no descriptors", 'd', 10, 1 * kSecond, 10 * kSecond},
    {"no fork", 'p', 8, 1 * kSecond, 10 * kSecond},
    {"EIO", 'i', 8, 1 * kSecond, 10 * kSecond},
    {"ESTALE", 'e', 8, 1 * kSecond, 10 * kSecond},
    {"store restored", 'b', 0, 0, 0},
}};

const KindTraits& TraitsOf(Kind kind) { return kTraits[static_cast<size_t>(kind)]; }

bool HampersStarts(Kind kind) {
  return kind == Kind::kKeeper || kind == Kind::kDescriptors || kind == Kind::kFork || kind == Kind::kEio ||
         kind == Kind::kEstale;
}

// Roles of processes that signals are sent to, after the coordinator.
std::vector<const char*> Roles(Kind kind) {
  switch (kind) {
    case Kind::kKill:
      return {"agent", "keeper", "worker"};
    case Kind::kStop:
      return {"agent", "worker"};
    default:
      return {};
  }
}

size_t Index(SplitMix64& random, size_t count) {
  return static_cast<size_t>(random.Uniform() * static_cast<double>(count));
}

Kind DrawKind(SplitMix64& random, const std::vector<Kind>& kinds) {
  int sum = 0;
  for (const Kind kind : kinds) {
    sum += TraitsOf(kind).weight;
  }
  int left = static_cast<int>(Index(random, static_cast<size_t>(sum)));
  for (const Kind kind : kinds) {
    left -= TraitsOf(kind).weight;
    if (left < 0) {
      return kind;
    }
  }
  return kinds.back();
}

// Kinds of `count` faults in order.
std::vector<Kind> DrawKinds(SplitMix64& random, const std::vector<Kind>& allowed, size_t count) {
  std::vector<Kind> kinds;
  std::ranges::copy_if(allowed, std::back_inserter(kinds), [](Kind kind) { return kind != Kind::kRestore; });
  const bool restores = kinds.size() < allowed.size() && count > 0;
  const size_t others = count - (restores ? 1 : 0);
  std::vector<Kind> drawn;
  if (!kinds.empty()) {
    const std::vector<Kind> all = kinds;
    while (drawn.size() < others) {
      if (!kinds.empty()) {  // each once at first
        const size_t at = Index(random, kinds.size());
        drawn.push_back(kinds[at]);
        kinds.erase(kinds.begin() + static_cast<std::ptrdiff_t>(at));
      } else {
        drawn.push_back(DrawKind(random, all));
      }
    }
  }
  for (size_t i = drawn.size(); i > 1; --i) {
    std::swap(drawn[i - 1], drawn[Index(random, i)]);
  }
  if (restores) {
    const size_t at = count / 3 + Index(random, std::max<size_t>(count / 3, 1));
    drawn.insert(drawn.begin() + static_cast<std::ptrdiff_t>(std::min(at, drawn.size())), Kind::kRestore);
  }
  return drawn;
}

}  // namespace

std::string_view ChaosKindName(Kind kind) { return TraitsOf(kind).name; }
char ChaosLetter(Kind kind) { return TraitsOf(kind).letter; }

std::vector<std::pair<size_t, size_t>> ChaosLinks(size_t sites) {
  std::vector<std::pair<size_t, size_t>> links;
  for (size_t a = 0; a < sites; ++a) {
    for (size_t b = a + 1; b < sites; ++b) {
      links.emplace_back(a, b);
    }
  }
  return links;
}

std::vector<std::string> ChaosTargets(Kind kind, const std::vector<std::string>& sites) {
  std::vector<std::string> names;
  const auto of_sites = [&](std::string_view what) {
    for (const std::string& site : sites) {
      names.push_back(fmt::format("{} {}", what, site));
    }
  };
  switch (kind) {
    case Kind::kKill:
    case Kind::kStop:
      names.emplace_back("coordinator");
      for (const char* role : Roles(kind)) {
        of_sites(role);
      }
      break;
    case Kind::kKeeper:
      of_sites("keeper");
      break;
    case Kind::kCut:
      for (const auto& [a, b] : ChaosLinks(sites.size())) {
        names.push_back(fmt::format("link {}-{}", sites[a], sites[b]));
      }
      break;
    case Kind::kFull:
    case Kind::kEio:
    case Kind::kEstale:
      names.emplace_back("disk of coordinator");
      of_sites("disk of");
      break;
    case Kind::kDescriptors:
      names.emplace_back("host of coordinator");
      of_sites("host of");
      break;
    case Kind::kFork:  // the coordinator starts no processes
      of_sites("host of");
      break;
    case Kind::kRestore:
      names.emplace_back("coordinator");
      break;
  }
  return names;
}

bool IsOfCoordinator(const ChaosFault& fault) {
  return fault.target == 0 && fault.kind != Kind::kKeeper && fault.kind != Kind::kCut && fault.kind != Kind::kFork;
}

size_t ChaosSite(const ChaosFault& fault, size_t sites) {
  GP_CHECK(!IsOfCoordinator(fault) && fault.kind != Kind::kCut, "a fault of kind {} is at no site",
           ChaosKindName(fault.kind));
  const bool has_coordinator = fault.kind != Kind::kKeeper && fault.kind != Kind::kFork;
  return (fault.target - (has_coordinator ? 1 : 0)) % sites;
}

std::vector<ChaosFault> DrawChaos(const ChaosDraw& draw) {
  SplitMix64 random(draw.seed);
  const std::vector<std::string> names(draw.sites);
  const auto count = static_cast<size_t>(std::max<int64_t>(draw.span_ns / draw.every_ns - 1, 0));
  std::vector<ChaosFault> faults;
  for (const Kind kind : DrawKinds(random, draw.kinds, count)) {
    const KindTraits& traits = TraitsOf(kind);
    ChaosFault& fault = faults.emplace_back();
    fault.kind = kind;
    fault.at_ns = std::ssize(faults) * draw.every_ns - draw.every_ns +
                  static_cast<int64_t>(random.Uniform() * static_cast<double>(draw.every_ns) / 2);
    fault.duration_ns =
        traits.shortest_ns +
        static_cast<int64_t>(random.Uniform() * static_cast<double>(traits.longest_ns - traits.shortest_ns));
    fault.target = Index(random, ChaosTargets(kind, names).size());
    fault.kills = random.Uniform() < 0.5 && HampersStarts(kind);
  }
  return faults;
}

bool StopsRank(const ChaosFault& fault, size_t sites) {
  switch (fault.kind) {
    case Kind::kStop:
      return fault.target > sites;
    case Kind::kCut:
    case Kind::kRestore:
      return true;
    case Kind::kEio:
    case Kind::kEstale:
      return !IsOfCoordinator(fault);
    case Kind::kKeeper:
    case Kind::kDescriptors:
    case Kind::kFork:
      return fault.kills && !IsOfCoordinator(fault);
    default:
      return false;
  }
}

int64_t ChaosBarNs(const ChaosFault& fault, size_t sites) {
  return kFreeNs + (StopsRank(fault, sites) ? fault.duration_ns : 0);
}

std::vector<int64_t> ChaosCosts(std::span<const ChaosProgress> progress, std::span<const int64_t> begins_ns,
                                int64_t iteration_ns) {
  // Iterations at an instant, of which the last is done in part.
  const auto done = [&](int64_t at_ns) {
    const auto after = std::ranges::upper_bound(progress, at_ns, {}, &ChaosProgress::at_ns);
    if (after == progress.begin()) {
      return 0.0;
    }
    auto since = std::prev(after);
    while (since != progress.begin() && std::prev(since)->iterations == since->iterations) {
      --since;
    }
    const double part = static_cast<double>(at_ns - since->at_ns) / static_cast<double>(iteration_ns);
    return static_cast<double>(since->iterations) + (at_ns >= progress.back().at_ns ? 0 : std::min(part, 1.0));
  };
  std::vector<int64_t> costs;
  for (size_t i = 0; i < begins_ns.size(); ++i) {
    const int64_t end_ns = i + 1 < begins_ns.size()
                               ? begins_ns[i + 1]
                               : std::max(progress.empty() ? 0 : progress.back().at_ns, begins_ns[i]);
    const double iterations = done(end_ns) - done(begins_ns[i]);
    costs.push_back(end_ns - begins_ns[i] - static_cast<int64_t>(iterations * static_cast<double>(iteration_ns)));
  }
  return costs;
}

}  // namespace geopipe
