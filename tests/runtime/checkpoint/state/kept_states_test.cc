// Checks that what a rank keeps in memory is there, whole and to the last bit, for the process that follows, whenever
// the one before was killed.
#include "runtime/checkpoint/state/kept_states.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "optimizer/base/splitmix64.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/process.h"
#include "tests/runtime/checkpoint/written_checkpoint.h"
#include "tests/support/seed.h"
#include "tests/support/seeded_device.h"

namespace geopipe {
namespace {

using Identities = std::vector<StateIdentity>;

constexpr KeptStates::Owner kOwner{.run_incarnation = 17, .rank = 2};

UniqueFd NewMemory() {
  UniqueFd fd(memfd_create("kept-states-test", MFD_CLOEXEC));
  REQUIRE(fd.valid());
  return fd;
}

// The states that a process started with the memory has.
KeptStates Opened(const UniqueFd& memory) {
  absl::StatusOr<KeptStates> states = KeptStates::Open(UniqueFd(fcntl(memory.get(), F_DUPFD_CLOEXEC, 3)));
  INFO(states.status());
  REQUIRE(states.ok());
  return *std::move(states);
}

// The values of a state: each of a tensor, its moments and a stage has its own.
class StateNumbers final : public WeightSource {
 public:
  StateNumbers(const StateIdentity& state, int32_t stage) : state_(state), stage_(stage) {}

  absl::Status Read(std::string_view name, const std::vector<int64_t>& /*shape*/, std::span<float> values) override {
    Fill(std::string(name), values);
    return absl::OkStatus();
  }
  absl::StatusOr<bool> ReadMoments(std::string_view name, const std::vector<int64_t>& /*shape*/, std::span<float> first,
                                   std::span<float> second) override {
    Fill(FirstMomentName(name), first);
    Fill(SecondMomentName(name), second);
    return true;
  }

 private:
  void Fill(const std::string& name, std::span<float> values) const {
    const auto number = static_cast<int64_t>(static_cast<uint64_t>(state_.iteration) + (state_.epoch << 32U));
    std::ranges::copy(StateValues(number, fmt::format("{} {}", stage_, name), std::ssize(values)), values.begin());
  }

  const StateIdentity state_;
  const int32_t stage_;
};

// A rank with the stages 0 and 3 of a tied model, so that both have an embedding, on the processor or a device of its
// own.
class KeepingRank {
 public:
  explicit KeepingRank(bool on_device = false, int64_t hidden_size = 8) : model_(SmallModel(4, /*tied=*/true)) {
    model_.hidden_size = hidden_size;
    if (on_device) {
      device_ = std::make_unique<SeededDevice>();
      allocator_ = std::make_unique<Allocator>(1 << 20, *device_);
      backend_ = std::make_unique<SeededBackend>(*device_, *allocator_);
    } else {
      allocator_ = std::make_unique<Allocator>(1 << 30);
      backend_ = *CpuBackend::Create(1, *allocator_);
    }
    Become({});
  }

  // The parameters get the values of a state. On the device this is under way when it returns.
  void Become(const StateIdentity& state) {
    sets_.clear();
    stages_.clear();
    for (const int32_t stage : {0, 3}) {
      StateNumbers numbers(state, stage);
      auto set = ParameterSet::Create(ParameterBuckets(model_, LayersOf(stage)), {}, numbers, *allocator_, *backend_);
      INFO(set.status());
      REQUIRE(set.ok());
      sets_.push_back(*std::move(set));
      stages_.push_back({.stage = stage, .parameters = sets_.back().all()});
    }
  }
  // Saves what the parameters are, and waits for it.
  absl::Status SaveNow(KeptStates& kept, const StateIdentity& state) {
    GP_ASSIGN_OR_RETURN(const Completion copied, kept.Save(state, stages_));
    return HostDevice().Wait(copied, DeviceDeadlineNs());
  }
  void Save(KeptStates& kept, const StateIdentity& state) {
    Become(state);
    const absl::Status status = SaveNow(kept, state);
    INFO(status);
    REQUIRE(status.ok());
  }

  static LayerRange LayersOf(int32_t stage) {
    return {.first = stage, .last = stage, .has_embedding = stage == 0, .has_head = stage == 3};
  }
  std::vector<ParameterTensor> TensorsOf(int32_t stage) const { return ParameterTensors(model_, LayersOf(stage)); }
  const std::vector<KeptStates::Stage>& stages() const { return stages_; }

  SeededDevice& device() { return *device_; }

  // True when everything kept of the state has the values of `content`.
  bool IsWhole(const KeptStates& kept, const StateIdentity& state, const StateIdentity& content) const {
    return std::ranges::all_of(std::vector{0, 3}, [&](int32_t stage) {
      const auto source = kept.Read(kOwner, state, stage);
      REQUIRE(source.ok());
      StateNumbers numbers(content, stage);
      return std::ranges::all_of(TensorsOf(stage), [&](const ParameterTensor& tensor) {
        return AllOf(**source, tensor) == AllOf(numbers, tensor);
      });
    });
  }
  bool IsWhole(const KeptStates& kept, const StateIdentity& state) const { return IsWhole(kept, state, state); }

 private:
  // The bits of the value and the moments.
  static std::vector<uint32_t> AllOf(WeightSource& source, const ParameterTensor& tensor) {
    const auto count = static_cast<size_t>(tensor.count());
    std::vector<uint32_t> bits(3 * count);
    const std::span<float> values(reinterpret_cast<float*>(bits.data()), bits.size());
    REQUIRE(source.Read(tensor.name, tensor.shape, values.first(count)).ok());
    REQUIRE(source.ReadMoments(tensor.name, tensor.shape, values.subspan(count, count), values.last(count)).value());
    return bits;
  }

  ModelSpec model_;
  std::unique_ptr<SeededDevice> device_;
  std::unique_ptr<Allocator> allocator_;
  std::unique_ptr<Backend> backend_;
  std::vector<ParameterSet> sets_;
  std::vector<KeptStates::Stage> stages_;
};

TEST_CASE("two states alternate, with all bits of their weights and moments, and outlive who has saved them") {
  const bool on_device = GENERATE(false, true);
  CAPTURE(on_device);
  const UniqueFd memory = NewMemory();
  KeepingRank rank(on_device);
  {
    KeptStates kept = Opened(memory);
    CHECK_FALSE(kept.owner().has_value());
    CHECK(kept.List(17).empty());
    REQUIRE(kept.Prepare(kOwner, rank.stages()).ok());
    CHECK(kept.List(17).empty());
    rank.Save(kept, {.iteration = 5, .epoch = 1});
    CHECK(kept.List(17) == Identities{{5, 1}});
    rank.Save(kept, {.iteration = 6, .epoch = 2});
    CHECK(kept.List(17) == Identities{{6, 2}, {5, 1}});
    rank.Save(kept, {.iteration = 7, .epoch = 2});
    CHECK(kept.List(17) == Identities{{7, 2}, {6, 2}});
  }
  KeptStates next = Opened(memory);
  CHECK(next.owner() == kOwner);
  CHECK(next.List(18).empty());
  CHECK(next.List(17) == Identities{{7, 2}, {6, 2}});
  CHECK(rank.IsWhole(next, {7, 2}));
  CHECK(rank.IsWhole(next, {6, 2}));
  REQUIRE(next.Prepare(kOwner, rank.stages()).ok());
  CHECK(next.List(17) == Identities{{7, 2}, {6, 2}});
  rank.Save(next, {.iteration = 8, .epoch = 3});
  CHECK(next.List(17) == Identities{{8, 3}, {7, 2}});
  CHECK(rank.IsWhole(next, {8, 3}));
  CHECK(rank.IsWhole(next, {7, 2}));
  next.Forget();
  CHECK(next.List(17).empty());
  CHECK(Opened(memory).List(17).empty());
  rank.Save(next, {.iteration = 9, .epoch = 3});
  CHECK(next.List(17) == Identities{{9, 3}});
}

// Two ranks may have come one iteration further than a third one when it is killed; all go on from the state that they
// share, and have to keep it until there is another.
TEST_CASE("a state that is held already is the newer one when it is saved again") {
  const UniqueFd memory = NewMemory();
  KeepingRank rank;
  KeptStates kept = Opened(memory);
  REQUIRE(kept.Prepare(kOwner, rank.stages()).ok());
  rank.Save(kept, {.iteration = 9, .epoch = 1});
  rank.Save(kept, {.iteration = 10, .epoch = 1});
  rank.Save(kept, {.iteration = 9, .epoch = 1});
  CHECK(kept.List(17) == Identities{{9, 1}, {10, 1}});
  rank.Save(kept, {.iteration = 10, .epoch = 2});
  CHECK(kept.List(17) == Identities{{10, 2}, {9, 1}});
  CHECK(rank.IsWhole(kept, {10, 2}));
  CHECK(rank.IsWhole(kept, {9, 1}));
}

TEST_CASE("a device knows the room for states as long as it is attached to it") {
  const UniqueFd memory = NewMemory();
  KeepingRank rank(/*on_device=*/true);
  const KeepingRank larger(false, 16);
  KeptStates kept = Opened(memory);
  REQUIRE(kept.Prepare(kOwner, rank.stages()).ok());
  REQUIRE(kept.Attach(rank.device()).ok());
  REQUIRE(rank.device().registered().size() == 1);
  CHECK(rank.device().registered().begin()->second == KeptStates::BytesFor(rank.stages()));
  rank.Save(kept, {.iteration = 5, .epoch = 1});
  kept.Detach();
  CHECK(rank.device().registered().empty());
  REQUIRE(kept.Attach(rank.device()).ok());
  REQUIRE(kept.Prepare(kOwner, larger.stages()).ok());  // another room
  CHECK(rank.device().registered().empty());
}

TEST_CASE("an error of the device costs the older state alone") {
  const UniqueFd memory = NewMemory();
  KeepingRank rank(/*on_device=*/true);
  KeptStates kept = Opened(memory);
  REQUIRE(kept.Prepare(kOwner, rank.stages()).ok());
  rank.Save(kept, {.iteration = 5, .epoch = 1});
  rank.Save(kept, {.iteration = 6, .epoch = 1});
  rank.device().Enqueue([] { return absl::InternalError("the device is on fire"); });
  CHECK(absl::IsInternal(rank.SaveNow(kept, {.iteration = 7, .epoch = 1})));
  CHECK(kept.List(17) == Identities{{6, 1}});
  KeepingRank next(/*on_device=*/true);
  CHECK(next.IsWhole(kept, {6, 1}));
  next.Save(kept, {.iteration = 7, .epoch = 1});
  CHECK(kept.List(17) == Identities{{7, 1}, {6, 1}});
}

TEST_CASE("states of another run, rank or of other tensors are forgotten, and their memory is given back") {
  const UniqueFd memory = NewMemory();
  KeepingRank rank;
  const KeepingRank larger(false, 16);
  KeptStates kept = Opened(memory);
  const auto saved_again = [&] {
    REQUIRE(kept.Prepare(kOwner, rank.stages()).ok());
    rank.Save(kept, {.iteration = 5, .epoch = 1});
    REQUIRE(kept.List(17) == Identities{{5, 1}});
  };
  saved_again();
  CHECK(absl::IsNotFound(kept.Read({.run_incarnation = 18, .rank = 2}, {5, 1}, 0).status()));
  CHECK(absl::IsNotFound(kept.Read({.run_incarnation = 17, .rank = 1}, {5, 1}, 0).status()));
  REQUIRE(kept.Prepare({.run_incarnation = 18, .rank = 2}, rank.stages()).ok());
  CHECK(kept.List(17).empty());
  CHECK(kept.List(18).empty());
  saved_again();
  REQUIRE(kept.Prepare({.run_incarnation = 17, .rank = 1}, rank.stages()).ok());
  CHECK(kept.List(17).empty());
  saved_again();
  REQUIRE(kept.Prepare(kOwner, std::span(rank.stages()).first(1)).ok());
  CHECK(kept.List(17).empty());
  saved_again();
  std::vector<KeptStates::Stage> renumbered = rank.stages();
  renumbered[1].stage = 2;
  REQUIRE(kept.Prepare(kOwner, renumbered).ok());
  CHECK(kept.List(17).empty());
  saved_again();
  REQUIRE(kept.Prepare(kOwner, larger.stages()).ok());
  CHECK(kept.List(17).empty());
  CHECK(Opened(memory).List(17).empty());
  CHECK(lseek(memory.get(), 0, SEEK_END) == KeptStates::BytesFor(larger.stages()));
  saved_again();
  CHECK(lseek(memory.get(), 0, SEEK_END) == KeptStates::BytesFor(rank.stages()));
}

TEST_CASE("the bytes of two states are 24 per parameter and a little") {
  const KeepingRank rank(false, 256);
  int64_t parameters = 0;
  for (const KeptStates::Stage& stage : rank.stages()) {
    for (const Parameter& parameter : stage.parameters) {
      parameters += parameter.spec.count();
    }
  }
  CHECK(KeptStates::BytesFor(rank.stages()) >= 24 * parameters);
  CHECK(KeptStates::BytesFor(rank.stages()) <= 24 * parameters + 32'768);
}

TEST_CASE("what is not held, or not of this shape, is an error with its name") {
  const UniqueFd memory = NewMemory();
  KeepingRank rank;
  KeptStates kept = Opened(memory);
  CHECK(absl::IsNotFound(kept.Read(kOwner, {5, 1}, 0).status()));
  REQUIRE(kept.Prepare(kOwner, rank.stages()).ok());
  CHECK(absl::IsNotFound(kept.Read(kOwner, {0, 0}, 0).status()));
  rank.Save(kept, {.iteration = 5, .epoch = 1});
  CHECK_THAT(std::string(kept.Read(kOwner, {5, 2}, 0).status().message()),
             Catch::Contains("the state before iteration 5 (epoch 2) of rank 2 is not kept"));
  CHECK_THAT(std::string(kept.Read(kOwner, {5, 1}, 1).status().message()), Catch::Contains("without stage 1"));
  const auto source = kept.Read(kOwner, {5, 1}, 3);
  REQUIRE(source.ok());
  std::vector<float> values(160);
  CHECK((*source)->Read("model.embed_tokens.weight", {20, 8}, values).ok());
  const absl::Status transposed = (*source)->Read("model.embed_tokens.weight", {8, 20}, values);
  CHECK(absl::IsInvalidArgument(transposed));
  CHECK_THAT(std::string(transposed.message()), Catch::Contains("embed_tokens") && Catch::Contains("[20, 8]"));
  const auto moments =
      (*source)->ReadMoments("model.layers.0.input_layernorm.weight", {8}, std::span(values).first(8), values);
  CHECK(absl::IsNotFound(moments.status()));
  CHECK_THAT(std::string(moments.status().message()), Catch::Contains("model.layers.0.input_layernorm.weight"));
}

TEST_CASE("memory in which anything of the head is damaged, or that is cut off, counts as empty") {
  const UniqueFd memory = NewMemory();
  KeepingRank rank;
  const int64_t bytes = KeptStates::BytesFor(rank.stages());
  const auto save = [&] {
    KeptStates kept = Opened(memory);
    REQUIRE(kept.Prepare(kOwner, rank.stages()).ok());
    rank.Save(kept, {.iteration = 5, .epoch = 1});
  };
  save();
  uint32_t layout_bytes = 0;
  REQUIRE(pread(memory.get(), &layout_bytes, sizeof(layout_bytes), 28) == sizeof(layout_bytes));
  REQUIRE(layout_bytes > 1000);
  for (off_t at = 0; at < 80 + static_cast<off_t>(layout_bytes); at = at == 31 ? 80 : at + 1) {  // but the two slots
    CAPTURE(at);
    char byte = 0;
    REQUIRE(pread(memory.get(), &byte, 1, at) == 1);
    const char other = static_cast<char>(byte ^ 0x21);
    REQUIRE(pwrite(memory.get(), &other, 1, at) == 1);
    REQUIRE(Opened(memory).List(17).empty());
    REQUIRE_FALSE(Opened(memory).owner().has_value());
    REQUIRE(pwrite(memory.get(), &byte, 1, at) == 1);
  }
  REQUIRE(Opened(memory).List(17) == Identities{{5, 1}});
  for (const int64_t size : {int64_t{0}, int64_t{7}, int64_t{80}, int64_t{500}, int64_t{4096}, bytes - 1, bytes + 1}) {
    CAPTURE(size);
    REQUIRE(ftruncate(memory.get(), size) == 0);
    CHECK(Opened(memory).List(17).empty());
    save();
    CHECK(Opened(memory).List(17) == Identities{{5, 1}});
  }
}

TEST_CASE("noise in the place of a head counts as empty") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  SplitMix64 random(seed);
  const UniqueFd memory = NewMemory();
  KeepingRank rank;
  for (int run = 0; run < 200; ++run) {
    std::vector<uint64_t> noise(3 + random.Next() % 1000);
    std::ranges::generate(noise, [&] { return random.Next() >> (random.Next() % 64); });
    REQUIRE(pwrite(memory.get(), noise.data(), noise.size() * 8, 0) > 0);
    REQUIRE(Opened(memory).List(noise[2]).empty());
  }
  KeptStates kept = Opened(memory);
  REQUIRE(kept.Prepare(kOwner, rank.stages()).ok());
  rank.Save(kept, {.iteration = 5, .epoch = 1});
  CHECK(rank.IsWhole(kept, {5, 1}));
}

TEST_CASE("what is no shared memory is refused") {
  CHECK(KeptStates::Open(UniqueFd()).status().code() != absl::StatusCode::kOk);
  CHECK(absl::IsInvalidArgument(KeptStates::Open(UniqueFd(open("/dev/null", O_RDWR | O_CLOEXEC))).status()));
}

// Keeps files of this process from growing past so many bytes while it lives.
class FileLimit {
 public:
  explicit FileLimit(int64_t bytes) {
    REQUIRE(getrlimit(RLIMIT_FSIZE, &before_) == 0);
    const rlimit limit{.rlim_cur = static_cast<rlim_t>(bytes), .rlim_max = before_.rlim_max};
    REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  }
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;
  ~FileLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    (void)std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*const handler_)(int) = std::signal(SIGXFSZ, SIG_IGN);
};

TEST_CASE("more than the machine has is refused before any of it is taken") {
  const UniqueFd memory = NewMemory();
  KeepingRank rank;
  KeptStates kept = Opened(memory);
  REQUIRE(kept.Prepare(kOwner, rank.stages()).ok());
  std::vector<Parameter> parameters(1);
  parameters[0].piece.tensor = {.name = "huge", .shape = {int64_t{1} << 20, int64_t{1} << 20}};
  parameters[0].piece.count = parameters[0].piece.tensor.count();
  const std::vector<KeptStates::Stage> huge{{.stage = 0, .parameters = parameters}};
  absl::Status status;
  {
    const FileLimit limit(int64_t{1} << 30);  // so that code which would take it all does not take the machine down
    status = kept.Prepare(kOwner, huge);
  }
  CHECK(absl::IsResourceExhausted(status));
  CHECK_THAT(std::string(status.message()), Catch::Contains("are available"));
  CHECK_THAT(std::string(status.message()), Catch::Contains(fmt::format("({} bytes)", KeptStates::BytesFor(huge))));
  CHECK(kept.List(17).empty());
  CHECK(lseek(memory.get(), 0, SEEK_END) == 0);
  REQUIRE(kept.Prepare(kOwner, rank.stages()).ok());
  rank.Save(kept, {.iteration = 5, .epoch = 1});
  CHECK(rank.IsWhole(kept, {5, 1}));
}

TEST_CASE("memory that the system refuses is an error with the bytes, and there is room when there is less to keep") {
  const UniqueFd memory = NewMemory();
  KeepingRank rank;
  const int64_t bytes = KeptStates::BytesFor(rank.stages());
  KeptStates kept = Opened(memory);
  absl::Status refused;
  absl::Status less;
  {
    const FileLimit limit(bytes - 1);
    refused = kept.Prepare(kOwner, rank.stages());
    less = kept.Prepare(kOwner, std::span(rank.stages()).first(1));
  }
  CHECK(absl::IsResourceExhausted(refused));
  CHECK_THAT(std::string(refused.message()), Catch::Contains(fmt::format("{} bytes", bytes)));
  CHECK(less.ok());
  CHECK(kept.Save({.iteration = 5, .epoch = 1}, std::span(rank.stages()).first(1)).ok());
}

TEST_CASE("memory that cannot be mapped is an error, and is given back") {
  const UniqueFd memory(memfd_create("kept-states-test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(fcntl(memory.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE) == 0);
  const KeepingRank rank;
  KeptStates kept = Opened(memory);
  CHECK(absl::IsPermissionDenied(kept.Prepare(kOwner, rank.stages())));
  CHECK_FALSE(kept.owner().has_value());
  CHECK(lseek(memory.get(), 0, SEEK_END) == 0);
}

TEST_CASE("a state is saved without faulting pages in, from the first one on") {
  const UniqueFd memory = NewMemory();
  KeepingRank rank(false, 256);
  rank.Become({1, 1});
  const auto faults_of_save = [&](KeptStates& kept, const StateIdentity& state) {
    rusage usage{};
    REQUIRE(getrusage(RUSAGE_SELF, &usage) == 0);
    const int64_t before = usage.ru_minflt;
    REQUIRE(kept.Save(state, rank.stages()).ok());
    REQUIRE(getrusage(RUSAGE_SELF, &usage) == 0);
    return usage.ru_minflt - before;
  };
  const int64_t pages = KeptStates::BytesFor(rank.stages()) / 2 / 4096;
  REQUIRE(pages > 500);
  for (const uint64_t epoch : {1, 2}) {  // new, and found again
    KeptStates kept = Opened(memory);
    REQUIRE(kept.Prepare(kOwner, rank.stages()).ok());
    for (const int64_t iteration : {1, 2}) {
      // A sanitizer's shadow of the memory is paged in: AddressSanitizer's is an eighth of it, ThreadSanitizer's eight
      // times as much.
#ifdef __SANITIZE_THREAD__
      const int64_t most = 12 * pages;
#else
      const int64_t most = pages / 3;
#endif
      CHECK(faults_of_save(kept, {.iteration = iteration, .epoch = epoch}) < most);
    }
  }
}

// A rank for each of four successive states, so that saving is all that a process does. A state takes the place of the
// one two iterations before, whose values are others.
using Ranks = std::vector<std::unique_ptr<KeepingRank>>;

StateIdentity ContentOf(const StateIdentity& state) { return {.iteration = state.iteration % 4, .epoch = 0}; }

// The child: a state after the other. Says 's' for each that is saved.
[[noreturn]] void SaveForEver(const UniqueFd& memory, const Ranks& ranks, int64_t iteration, int said) {
  KeptStates kept = *KeptStates::Open(UniqueFd(dup(memory.get())));
  if (!kept.Prepare(kOwner, ranks[0]->stages()).ok()) {
    _exit(1);
  }
  for (;; ++iteration) {
    const StateIdentity state{.iteration = iteration, .epoch = 1};
    if (!kept.Save(state, ranks[static_cast<size_t>(iteration % 4)]->stages()).ok()) {
      _exit(2);
    }
    const char what = 's';
    if (write(said, &what, 1) != 1) {
      _exit(3);
    }
  }
}

TEST_CASE("of a process that is killed while it saves states each that is listed is whole, the newest too, 200 times") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  SplitMix64 random(seed);
  const UniqueFd memory = NewMemory();
  Ranks ranks;
  for (int64_t iteration = 0; iteration < 4; ++iteration) {
    ranks.push_back(std::make_unique<KeepingRank>(false, 64));
    ranks.back()->Become(ContentOf({iteration, 1}));
  }
  int64_t newest = 0;
  int within = 0;  // a state that was not saved yet
  for (int kill_number = 0; kill_number < 200; ++kill_number) {
    INFO("kill " << kill_number << ", newest " << newest);
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    const UniqueFd from(ends[0]);
    UniqueFd to(ends[1]);
    const pid_t child = fork();
    if (child == 0) {
      (void)DieWithParent(SIGKILL);
      SaveForEver(memory, ranks, newest + 1, to.get());
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
  CHECK(newest > 200);
  CHECK(within > 20);
}

}  // namespace
}  // namespace geopipe
