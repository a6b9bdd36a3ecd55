// Checks that each state that a rank's memory lists is whole for the process that follows, whenever the one before was
// killed, and whatever its device had copied by then.
#include <poll.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdlib>
#include <mutex>
#include <set>

#include "optimizer/base/splitmix64.h"
#include "runtime/base/process.h"
#include "tests/runtime/checkpoint/state/keeping_rank.h"
#include "tests/support/sanitized.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

// A rank for each of four successive states, so that saving is all that a process does. A state takes the place of the
// one two iterations before, whose values are others.
using Ranks = std::vector<std::unique_ptr<KeepingRank>>;

StateIdentity ContentOf(const StateIdentity& state) { return {.iteration = state.iteration % 4, .epoch = 0}; }

Ranks RanksOn(bool device) {
  Ranks ranks;
  for (int64_t iteration = 0; iteration < 4; ++iteration) {
    ranks.push_back(std::make_unique<KeepingRank>(device, 64));
    ranks.back()->Become(ContentOf({iteration, 1}));
  }
  return ranks;
}

// The child: a state after the other. Says 's' for each that is saved.
[[noreturn]] void SaveForEver(const UniqueFd& memory, Ranks ranks, int64_t iteration, int said) {
  KeptStates kept = *KeptStates::Open(UniqueFd(dup(memory.get())));
  if (!kept.Prepare(kOwner, ranks[0]->stages()).ok()) {
    _exit(1);
  }
  for (;; ++iteration) {
    const StateIdentity state{.iteration = iteration, .epoch = 1};
    if (!ranks[static_cast<size_t>(iteration % 4)]->SaveNow(kept, state).ok()) {
      _exit(2);
    }
    const char what = 's';
    if (write(said, &what, 1) != 1) {
      _exit(3);
    }
  }
}

TEST_CASE("of a process that is killed while it saves states each that is listed is whole, the newest too") {
  const bool on_device = GENERATE(false, true);
  CAPTURE(on_device);
  if (on_device && kThreadSanitized) {
    return;  // a forked process has no threads there
  }
  const int kills = on_device ? 50 : 200;
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  SplitMix64 random(seed);
  const UniqueFd memory = NewMemory();
  Ranks ranks = RanksOn(/*device=*/false);
  int64_t newest = 0;
  int within = 0;  // a state that was not saved yet
  for (int kill_number = 0; kill_number < kills; ++kill_number) {
    INFO("kill " << kill_number << ", newest " << newest);
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    const UniqueFd from(ends[0]);
    UniqueFd to(ends[1]);
    const pid_t child = fork();
    if (child == 0) {
      (void)DieWithParent(SIGKILL);
      SaveForEver(memory, on_device ? RanksOn(/*device=*/true) : std::move(ranks), newest + 1, to.get());
    }
    REQUIRE(child > 0);
    to.Reset();
    int64_t said = 0;
    const auto hear = [&] {
      char what = 0;
      const bool heard = read(from.get(), &what, 1) == 1;
      said += heard ? 1 : 0;
      return heard;
    };
    // Some way into its work, and then any moment of the next fraction of a millisecond.
    for (uint64_t steps = (newest == 0 ? 1 : 0) + random.Next() % 5; steps > 0; --steps) {
      REQUIRE(hear());
    }
    pollfd quiet{.fd = -1, .events = 0, .revents = 0};
    const timespec moment{.tv_sec = 0, .tv_nsec = static_cast<int64_t>(random.Next() % 400'000)};
    ppoll(&quiet, 1, &moment, nullptr);
    REQUIRE(kill(child, SIGKILL) == 0);
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
    while (hear()) {
    }
    const KeptStates kept = Opened(memory);
    const Identities states = kept.List(17);
    REQUIRE_FALSE(states.empty());
    REQUIRE(states[0].iteration >= newest + said);
    REQUIRE(states[0].iteration <= newest + said + 1);
    REQUIRE((states.size() == 1 || states[1].iteration == states[0].iteration - 1));
    for (const StateIdentity& state : states) {
      REQUIRE(ranks[0]->IsWhole(kept, state, ContentOf(state)));
    }
    within += states.size() == 1 && states[0].iteration > 1 ? 1 : 0;
    newest = states[0].iteration;
  }
  CHECK(newest > kills);
  CHECK(within > kills / 10);
}

// The memory of a process at every instant at which its device has copied something, as the process that follows finds
// it if this one dies then.
class Deaths {
 public:
  explicit Deaths(const UniqueFd& memory) : memory_(memory) {}

  // Any thread.
  void Look() {
    std::vector<std::byte> bytes(static_cast<size_t>(lseek(memory_.get(), 0, SEEK_END)));
    const bool is_read = pread(memory_.get(), bytes.data(), bytes.size(), 0) == std::ssize(bytes);
    const std::lock_guard lock(mutex_);
    seen_.push_back(is_read ? std::move(bytes) : std::vector<std::byte>());
  }

  // Forgets them, and returns the states listed at each and whether all of these were whole.
  std::vector<std::pair<Identities, bool>> Take(const KeepingRank& rank) {
    const std::lock_guard lock(mutex_);
    std::vector<std::pair<Identities, bool>> found;
    for (const std::vector<std::byte>& bytes : seen_) {
      const UniqueFd memory = NewMemory();
      REQUIRE(pwrite(memory.get(), bytes.data(), bytes.size(), 0) == std::ssize(bytes));
      const KeptStates kept = Opened(memory);
      const Identities states = kept.List(kOwner.run_incarnation);
      found.emplace_back(
          states, std::ranges::all_of(states, [&](const StateIdentity& each) { return rank.IsWhole(kept, each); }));
    }
    seen_.clear();
    return found;
  }

 private:
  const UniqueFd& memory_;
  std::mutex mutex_;
  std::vector<std::vector<std::byte>> seen_;
};

// Saves four states on a device, one after the other, and returns how often one was listed that was not whole, or not
// listed though its copy was over.
int TornStates(uint64_t seed, DeviceFault fault) {
  const UniqueFd memory = NewMemory();
  Deaths deaths(memory);
  auto device = std::make_unique<SeededDevice>(seed, fault);
  device->OnCopies([&] { deaths.Look(); });
  KeepingRank rank(std::move(device), 8);
  KeptStates kept = Opened(memory);
  REQUIRE(kept.Prepare(kOwner, rank.stages()).ok());
  REQUIRE(rank.device().WaitIdle(DeviceDeadlineNs()).ok());
  (void)deaths.Take(rank);
  int torn = 0;
  for (int64_t iteration = 1; iteration <= 4; ++iteration) {
    rank.Save(kept, {.iteration = iteration, .epoch = 1});
    rank.device().Drain();
    REQUIRE(kept.Settle().ok());
    deaths.Look();
    const std::vector<std::pair<Identities, bool>> found = deaths.Take(rank);
    REQUIRE(found.size() > 100);  // two for each copy
    for (const auto& [states, are_whole] : found) {
      torn += are_whole ? 0 : 1;
      // The state before is there until this one is.
      REQUIRE((fault != DeviceFault::kNone || iteration == 1 || !states.empty()));
      REQUIRE((fault != DeviceFault::kNone || states.empty() || states[0].iteration >= iteration - 1));
    }
    const Identities& last = found.back().first;
    torn += !last.empty() && last.front().iteration == iteration ? 0 : 1;
  }
  return torn;
}

TEST_CASE("whatever a device has copied of a state when its process dies, each state that is listed is whole") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  CHECK(TornStates(seed, DeviceFault::kNone) == 0);
  if (!kThreadSanitized) {  // a device that says too early that it is done is a race
    CHECK(TornStates(seed, DeviceFault::kLeavesEarly) > 0);
  }
}

}  // namespace
}  // namespace geopipe
