// Groups of devices with memory of their own, over the host's communicators: results have the same bits in every order
// of the devices' queues, kernels use them without a wait of the host, and an error ends everything.
#include <absl/strings/match.h>

#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

#include "optimizer/base/status_macros.h"
#include "runtime/base/clock.h"
#include "runtime/collective/staged_communicator.h"
#include "runtime/tensor/staging.h"
#include "tests/runtime/collective/communicator_suite.h"
#include "tests/runtime/collective/device_operands.h"
#include "tests/runtime/collective/shared_group.h"
#include "tests/support/durations.h"
#include "tests/support/sanitized.h"
#include "tests/support/seed.h"
#include "tests/support/seeded_device.h"

namespace geopipe {
namespace {

constexpr int64_t kMemoryBytes = int64_t{1} << 30;
constexpr int64_t kElements = 1000;

// A rank's device and its place in a group.
struct Member {
  Member(uint64_t seed, DeviceFault fault) : device(seed, fault), allocator(kMemoryBytes, device) {}

  SeededDevice device;
  Allocator allocator;
  std::unique_ptr<Communicator> communicator;  // goes first

  // A tensor of kElements that the host fills.
  Tensor New(float value) {
    Tensor tensor = *Tensor::Create(allocator, MemoryCategory::kWorkspace, DType::kFp32, {kElements});
    REQUIRE(FillFromHost(tensor, [&](const Tensor& host) {
              std::ranges::fill(host.fp32(), value);
              return absl::OkStatus();
            }).ok());
    return tensor;
  }
  // A kernel: to = from + number.
  void Add(const Tensor& from, float number, const Tensor& to) {
    device.Enqueue([from = reinterpret_cast<const float*>(SeededDevice::Real(from.address())),
                    to = reinterpret_cast<float*>(SeededDevice::Real(to.address())), number] {
      std::transform(from, from + kElements, to, [&](float value) { return value + number; });
      return absl::OkStatus();
    });
  }
  absl::Status AllReduce(const Tensor& tensor) {
    GP_ASSIGN_OR_RETURN(const Completion done,
                        communicator->AllReduce(ReduceOp::kSum, ElementsOf(tensor), ElementsOf(tensor)));
    return communicator->Join(done);
  }
  // True when all elements are the value.
  bool Holds(const Tensor& tensor, float value) const {
    bool same = false;
    const absl::Status read = ReadOnHost(tensor, [&](const Tensor& host) {
      same = std::ranges::all_of(host.fp32(), [&](float each) { return each == value; });
    });
    return read.ok() && same;
  }
};

struct GroupSpec {
  GroupOptions options = {};
  uint64_t seed = TestSeed();
  DeviceFault fault = DeviceFault::kNone;
  int64_t piece_bytes = 4096;
};

std::vector<std::shared_ptr<Member>> MembersOf(const GroupSpec& spec) {
  GroupOptions of_host = spec.options;
  of_host.own_thread = false;
  of_host.watches.clear();
  std::vector<std::unique_ptr<Communicator>> host = SharedGroupOf(of_host);
  std::vector<std::shared_ptr<Member>> members;
  for (size_t i = 0; i < host.size(); ++i) {
    members.push_back(std::make_shared<Member>(spec.seed + 1000 * i, spec.fault));
    members.back()->communicator =
        *MakeStagedCommunicator({.allocator = &members.back()->allocator,
                                 .piece_bytes = spec.piece_bytes,
                                 .longest_wait_ns = spec.options.longest_wait_ns,
                                 .watch = spec.options.watches.empty() ? nullptr : spec.options.watches[i]},
                                std::move(host[i]));
  }
  return members;
}

// The suite's groups.
GroupFactory StagedGroupsOf(uint64_t seed, int64_t piece_bytes) {
  return [=](const GroupOptions& options) {
    std::vector<std::unique_ptr<Communicator>> group;
    for (std::shared_ptr<Member>& member : MembersOf({.options = options, .seed = seed, .piece_bytes = piece_bytes})) {
      auto over = OverDevice(member->allocator, !options.own_thread, std::move(member->communicator));
      group.push_back(std::make_unique<KeepingCommunicator>(std::move(member), std::move(over)));
    }
    return group;
  };
}

// Runs `work` on a thread for each member.
void OnAll(const std::vector<std::shared_ptr<Member>>& members, const std::function<void(Member&)>& work) {
  std::vector<std::thread> threads;
  for (const std::shared_ptr<Member>& member : members) {
    threads.emplace_back([&work, &member] { work(*member); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST_CASE("staged: all operations have the host's bits, at several seeds") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  CheckOperations(StagedGroupsOf(seed, 1 << 20), {1, 2, 3, 4, 5}, {1, 3, 17});
  for (int i = 1; i < TestSeeds(6); ++i) {
    INFO("seed " << seed + i);
    CheckOperations(StagedGroupsOf(seed + i, 1 << 16), {i % 2 + 2}, {17});
  }
}

TEST_CASE("staged: operands of several pieces have the same bits, the last piece being short") {
  CheckOperations(StagedGroupsOf(TestSeed(), 512), {1, 2, 3}, {97});
  CheckOperations(StagedGroupsOf(TestSeed(), 1 << 16), {2, 4}, {kSanitized ? 20'011 : 100'003});
}

TEST_CASE("staged: two groups at once") { CheckTwoGroups(StagedGroupsOf(TestSeed(), 1 << 12)); }

TEST_CASE("staged: an abort ends all waits") { CheckAbort(StagedGroupsOf(TestSeed(), 1 << 12)); }

TEST_CASE("staged: a rank that does not come") { CheckDeadline(StagedGroupsOf(TestSeed(), 1 << 12)); }

TEST_CASE("staged: ranks in different operations") { CheckMismatch(StagedGroupsOf(TestSeed(), 1 << 12)); }

// Kernels between the operations use the results, and the memory of operands is another tensor's right after Join.
// Returns whether all ranks had the right results.
bool TrainsRight(const GroupSpec& spec) {
  constexpr int kRounds = 12;
  const std::vector<std::shared_ptr<Member>> members = MembersOf(spec);
  std::atomic<int> right = 0;
  OnAll(members, [&](Member& member) {
    Tensor value = member.New(1);
    const int64_t waits = member.device.counts().waits;
    float expected = 1;
    bool ok = true;
    for (int i = 0; i < kRounds; ++i) {
      const auto rank = static_cast<float>(member.communicator->rank());
      Tensor operand = *Tensor::Create(member.allocator, MemoryCategory::kWorkspace, DType::kFp32, {kElements});
      member.Add(value, rank, operand);
      ok = ok && member.AllReduce(operand).ok();
      member.Add(operand, -expected, value);
      operand = Tensor();
      const Tensor next = *Tensor::Create(member.allocator, MemoryCategory::kWorkspace, DType::kFp32, {kElements});
      member.Add(value, 7, next);  // overwrites the operand
      expected = 2 * expected + 1 - expected;
    }
    ok = ok && member.device.counts().waits == waits;
    right += ok && member.Holds(value, expected) ? 1 : 0;
  });
  return right == std::ssize(members);
}

TEST_CASE("staged: kernels use results without a wait of the host, and operands are released right after Join") {
  for (int i = 0; i < TestSeeds(); ++i) {
    INFO("seed " << TestSeed() + i);
    CHECK(TrainsRight({.seed = TestSeed() + i, .piece_bytes = i % 2 == 0 ? 4096 : 512}));
  }
}

TEST_CASE("staged: a device whose queues do not wait for each other is found out") {
  bool found = false;
  for (uint64_t seed = 0; seed < 40 && !found; ++seed) {
    found = !TrainsRight({.seed = seed, .fault = DeviceFault::kDropsAfter});
  }
  CHECK(found);
}

TEST_CASE("staged: a rank may be a hundred operations ahead, and they depend on each other without a join") {
  constexpr int kOperations = 100;
  const std::vector<std::shared_ptr<Member>> members = MembersOf({.piece_bytes = 512});
  std::atomic<bool> ahead = false;
  std::atomic<int> right = 0;
  OnAll(members, [&](Member& member) {
    const bool first = member.communicator->rank() == 0;
    const Tensor value = member.New(first ? 1 : 2);
    ahead.wait(first);  // the other waits until this one has come to its end
    Completion last;
    for (int i = 0; i < kOperations; ++i) {
      last = *member.communicator->AllReduce(i % 2 == 0 ? ReduceOp::kMax : ReduceOp::kSum, ElementsOf(value),
                                             ElementsOf(value));
    }
    CHECK((!first || !last.done()));
    ahead = true;
    ahead.notify_all();
    const absl::Status joined = member.communicator->Join(last);
    right += joined.ok() && member.Holds(value, 0x1p51F) ? 1 : 0;  // 2, doubled by each sum
  });
  CHECK(right == 2);
}

// The watch of a thread that waits in Join.
class JoinWatch final : public WaitWatch {
 public:
  void BeginWait() override { Set(true); }
  void EndWait() override { Set(false); }
  // True when the thread waits for other ranks; false: it does not within `limit`.
  bool AwaitWait(std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, limit, [this] { return waits_; });
  }

 private:
  void Set(bool waits) {
    const std::lock_guard lock(mutex_);
    waits_ = waits;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool waits_ = false;
};

TEST_CASE("staged: an abort ends what waits for other ranks, or for the device and then not for them") {
  const bool device_is_held = GENERATE(false, true);
  CAPTURE(device_is_held);
  std::array<JoinWatch, 2> watches;
  const std::vector<std::shared_ptr<Member>> members = MembersOf({.options = {.watches = {&watches[0], &watches[1]}}});
  Member& member = *members[0];
  const Tensor value = member.New(1);
  if (device_is_held) {
    member.device.Hold(Queue::kCompute);
  }
  const Completion done = *member.communicator->AllReduce(ReduceOp::kSum, ElementsOf(value), ElementsOf(value));
  const Completion behind = *member.communicator->AllReduce(ReduceOp::kSum, ElementsOf(value), ElementsOf(value));
  const absl::Status why = absl::CancelledError("the epoch has ended");
  bool waits_for_others = false;
  std::thread aborter([&] {
    waits_for_others = watches[0].AwaitWait(std::chrono::milliseconds(device_is_held ? 30 : 60'000));
    members[device_is_held ? 0 : 1]->communicator->Abort(why);
  });
  CHECK(member.communicator->Join(done) == why);
  aborter.join();
  CHECK(waits_for_others == !device_is_held);
  CHECK(member.communicator->Join(behind) == why);
  CHECK(member.communicator->Barrier().status() == why);
  CHECK(members[1]->communicator->Barrier().status() == why);
  CHECK(members[1]->communicator->status() == why);
  // The device goes on: the error is the group's.
  const Tensor later = member.New(5);
  member.device.Release(Queue::kCompute);
  CHECK(member.Holds(later, 5));
  member.device.Drain();
  CHECK(done.status() == why);
  CHECK(behind.status() == why);
}

TEST_CASE("staged: a device that fails fails the group, on all ranks, with its own words") {
  const bool before = GENERATE(false, true);
  CAPTURE(before);
  const std::vector<std::shared_ptr<Member>> members = MembersOf({});
  OnAll(members, [&](Member& member) {
    const Tensor value = member.New(1);
    const absl::Status broken = absl::InternalError("off the bus");
    if (member.communicator->rank() == 0) {
      before ? member.device.Break(broken) : member.device.Enqueue([broken] { return broken; });
    }
    absl::StatusOr<Completion> done =
        member.communicator->AllReduce(ReduceOp::kSum, ElementsOf(value), ElementsOf(value));
    const absl::Status result = done.ok() ? member.communicator->Join(*done) : done.status();
    CHECK(absl::StrContains(result.message(), "the device of rank 0 of 2 has failed: off the bus"));
    CHECK(absl::IsAborted(result));  // no failure of the other rank's own
    CHECK(absl::StrContains(member.communicator->Barrier().status().message(), "off the bus"));
    member.device.Drain();
    CHECK((!done.ok() || !done->status().ok()));
  });
}

TEST_CASE("staged: a device that is stuck fails the group in time, on all ranks") {
  const std::vector<std::shared_ptr<Member>> members = MembersOf({.options = {.longest_wait_ns = 200 * kMs}});
  members[0]->device.Hold(Queue::kCompute);
  const Tensor value = members[0]->New(1);
  CHECK(absl::IsAborted(members[0]->AllReduce(value)));
  CHECK(absl::StrContains(members[0]->communicator->status().message(), "the device of rank 0 of 2"));
  CHECK(members[1]->communicator->Barrier().status() == members[0]->communicator->status());
  members[0]->device.Release(Queue::kCompute);
}

TEST_CASE("staged: a communicator that goes waits for what is under way, and holds two pinned pieces") {
  const std::vector<std::shared_ptr<Member>> members = MembersOf({.piece_bytes = 512});
  CHECK(members[0]->allocator.staging().usage(MemoryCategory::kTransport).bytes == 2 * 512);
  std::array<std::array<Tensor, 2>, 2> values;
  OnAll(members, [&](Member& member) {
    std::array<Tensor, 2>& mine = values.at(static_cast<size_t>(member.communicator->rank()));
    std::array<Completion, 2> done;
    for (size_t i = 0; i < mine.size(); ++i) {
      mine.at(i) = member.New(1);
      const Elements operand = ElementsOf(mine.at(i));
      done.at(i) = *member.communicator->AllReduce(ReduceOp::kSum, operand, operand);
    }
    member.communicator = nullptr;
    CHECK(done[0].done());
    CHECK(done[1].done());
    CHECK(member.Holds(mine[0], 2));
    CHECK(member.Holds(mine[1], 2));
    CHECK(member.allocator.staging().usage(MemoryCategory::kTransport).bytes == 0);
  });
}

}  // namespace
}  // namespace geopipe
