#include "tests/runtime/collective/communicator_suite.h"

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <mutex>
#include <thread>

#include "optimizer/base/splitmix64.h"
#include "runtime/base/clock.h"
#include "tests/support/durations.h"

namespace geopipe {
namespace {

using Bytes = std::vector<std::byte>;

enum class Kind : uint8_t {
  kBroadcast,
  kReduce,
  kAllReduce,
  kAllGather,
  kGather,
  kScatter,
  kReduceScatter,
  kAllToAll,
};

struct Case {
  Kind kind = Kind::kAllReduce;
  ReduceOp op = ReduceOp::kSum;
  DType dtype = DType::kFp32;
  int64_t count = 0;
  int32_t root = 0;
  bool in_place = false;
  std::vector<Bytes> inputs = {};    // by rank
  std::vector<Bytes> expected = {};  // by rank; empty: not looked at

  std::string Name(int32_t size) const {
    return fmt::format("operation {} op {} of {} {} among {}, root {}{}", static_cast<int>(kind), static_cast<int>(op),
                       count, DTypeName(dtype), size, root, in_place ? ", in place" : "");
  }
};

float FloatOf(uint16_t bf16) { return std::bit_cast<float>(static_cast<uint32_t>(bf16) << 16); }

// Rounds by definition: to the nearer of the two neighbours, to the even one where both are as near.
uint16_t Bf16Of(float value) {
  const auto low = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
  if (FloatOf(low) == value) {
    return low;
  }
  const auto high = static_cast<uint16_t>(low + 1);  // away from zero
  const double below = std::abs(double{value} - double{FloatOf(low)});
  const double above =
      std::abs((std::isinf(FloatOf(high)) ? std::copysign(0x1p128, value) : double{FloatOf(high)}) - double{value});
  return below < above || (below == above && low % 2 == 0) ? low : high;
}

template <class T>
T Reduced(ReduceOp op, T a, T b) {
  return op == ReduceOp::kSum ? a + b : std::max(a, b);
}

template <class T, class Wide, class Widen, class Narrow>
Bytes ReducedAs(ReduceOp op, const std::vector<Bytes>& inputs, Widen widen, Narrow narrow) {
  Bytes result(inputs[0].size());
  for (size_t at = 0; at < result.size(); at += sizeof(T)) {
    Wide sum{};
    for (size_t rank = 0; rank < inputs.size(); ++rank) {
      T element;
      std::memcpy(&element, inputs[rank].data() + at, sizeof(T));
      const Wide wide = widen(element);
      sum = rank == 0 ? wide : Reduced(op, sum, wide);
    }
    const T element = narrow(sum);
    std::memcpy(result.data() + at, &element, sizeof(T));
  }
  return result;
}

Bytes Slice(const Bytes& whole, int64_t bytes, int64_t index) {
  return {whole.begin() + index * bytes, whole.begin() + (index + 1) * bytes};
}

Bytes Joined(const std::vector<Bytes>& parts) {
  Bytes whole;
  for (const Bytes& part : parts) {
    whole.insert(whole.end(), part.begin(), part.end());
  }
  return whole;
}

bool HasWideInput(Kind kind) {
  return kind == Kind::kScatter || kind == Kind::kReduceScatter || kind == Kind::kAllToAll;
}

void Fill(Case& test, int32_t size, uint64_t seed) {
  const int64_t count = HasWideInput(test.kind) ? size * test.count : test.count;
  const int64_t slice = test.count * ByteSize(test.dtype);
  for (int32_t rank = 0; rank < size; ++rank) {
    test.inputs.push_back(Operand(test.dtype, count, seed + static_cast<uint64_t>(rank)));
  }
  const auto root = static_cast<size_t>(test.root);
  std::vector<Bytes>& expected = test.expected;
  expected.resize(test.inputs.size());
  switch (test.kind) {
    case Kind::kBroadcast:
      expected.assign(test.inputs.size(), test.inputs[root]);
      return;
    case Kind::kReduce:
      expected[root] = ReducedInOrder(test.op, test.dtype, test.inputs);
      return;
    case Kind::kAllReduce:
      expected.assign(test.inputs.size(), ReducedInOrder(test.op, test.dtype, test.inputs));
      return;
    case Kind::kAllGather:
      expected.assign(test.inputs.size(), Joined(test.inputs));
      return;
    case Kind::kGather:
      expected[root] = Joined(test.inputs);
      return;
    case Kind::kScatter:
    case Kind::kReduceScatter: {
      const Bytes all =
          test.kind == Kind::kScatter ? test.inputs[root] : ReducedInOrder(test.op, test.dtype, test.inputs);
      for (int32_t rank = 0; rank < size; ++rank) {
        expected[static_cast<size_t>(rank)] = Slice(all, slice, rank);
      }
      return;
    }
    case Kind::kAllToAll:
      for (int32_t rank = 0; rank < size; ++rank) {
        for (const Bytes& input : test.inputs) {
          const Bytes part = Slice(input, slice, rank);
          Bytes& out = expected[static_cast<size_t>(rank)];
          out.insert(out.end(), part.begin(), part.end());
        }
      }
  }
}

// The operands of one rank while its operation is under way.
class Running {
 public:
  Running(const Case& test, Communicator& communicator) : test_(test), communicator_(communicator) {
    const auto rank = static_cast<size_t>(communicator.rank());
    const Bytes& input = test.inputs[rank];
    const int64_t slice = test.count * ByteSize(test.dtype);
    const int64_t place = communicator.rank() * slice;
    const bool gathers = test.kind == Kind::kAllGather || test.kind == Kind::kGather;
    const bool scatters = test.kind == Kind::kScatter || test.kind == Kind::kReduceScatter;
    if (test.kind == Kind::kBroadcast) {
      out_bytes_ = input;
      out_ = View(out_bytes_);
    } else if (test.in_place && gathers) {
      out_bytes_.resize(input.size() * static_cast<size_t>(communicator.size()), std::byte{0xee});
      std::ranges::copy(input, out_bytes_.begin() + place);
      out_ = View(out_bytes_);
      in_ = {.data = out_.data + place, .count = test.count, .dtype = test.dtype};
    } else {
      in_bytes_ = input;
      in_ = View(in_bytes_);
      if (test.in_place && scatters) {
        out_ = {.data = in_bytes_.data() + place, .count = test.count, .dtype = test.dtype};
      } else if (test.in_place) {
        out_ = View(in_bytes_);
      } else {
        out_bytes_.resize(test.expected[rank].size(), std::byte{0xee});
        out_ = View(out_bytes_);
      }
    }
  }

  absl::StatusOr<Completion> Start() {
    switch (test_.kind) {
      case Kind::kBroadcast:
        return communicator_.Broadcast(test_.root, out_);
      case Kind::kReduce:
        return communicator_.Reduce(test_.op, test_.root, in_, out_);
      case Kind::kAllReduce:
        return communicator_.AllReduce(test_.op, in_, out_);
      case Kind::kAllGather:
        return communicator_.AllGather(in_, out_);
      case Kind::kGather:
        return communicator_.Gather(test_.root, in_, out_);
      case Kind::kScatter:
        return communicator_.Scatter(test_.root, in_, out_);
      case Kind::kReduceScatter:
        return communicator_.ReduceScatter(test_.op, in_, out_);
      case Kind::kAllToAll:
        return communicator_.AllToAll(in_, out_);
    }
    return absl::InternalError("no such operation");
  }

  bool IsRight() const {
    const Bytes& expected = test_.expected[static_cast<size_t>(communicator_.rank())];
    return expected.empty() || (static_cast<size_t>(out_.bytes()) == expected.size() &&
                                std::memcmp(out_.data, expected.data(), expected.size()) == 0);
  }

 private:
  Elements View(Bytes& bytes) const {
    return {.data = bytes.data(),
            .count = static_cast<int64_t>(bytes.size()) / ByteSize(test_.dtype),
            .dtype = test_.dtype};
  }

  const Case& test_;
  Communicator& communicator_;
  Bytes in_bytes_;
  Bytes out_bytes_;
  ConstElements in_;
  Elements out_;
};

// Fewer of large operands, whose references take their time.
std::vector<Case> AllCases(int32_t size, int64_t count, uint64_t seed) {
  constexpr int64_t kLarge = 50'000;
  std::vector<Case> cases;
  const auto add = [&](Case test) {
    test.count = count;
    Fill(test, size, seed += 1000);
    cases.push_back(std::move(test));
  };
  const int32_t last = size - 1;
  if (count >= kLarge) {
    add({.kind = Kind::kAllReduce, .in_place = true});
    add({.kind = Kind::kAllReduce, .dtype = DType::kBf16});
    add({.kind = Kind::kReduceScatter, .in_place = true});
    add({.kind = Kind::kReduce, .root = last});
    add({.kind = Kind::kBroadcast, .root = last});
    add({.kind = Kind::kGather, .root = last, .in_place = true});
    add({.kind = Kind::kScatter, .root = last});
    add({.kind = Kind::kAllGather, .in_place = true});
    add({.kind = Kind::kAllToAll});
    return cases;
  }
  for (const bool in_place : {false, true}) {
    for (const DType dtype : {DType::kFp32, DType::kBf16, DType::kFp64, DType::kInt32}) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
        add({.kind = Kind::kAllReduce, .op = op, .dtype = dtype, .in_place = in_place});
        add({.kind = Kind::kReduceScatter, .op = op, .dtype = dtype, .in_place = in_place});
      }
      add({.kind = Kind::kReduce, .dtype = dtype, .root = last / 2, .in_place = in_place});
    }
    for (const int32_t root : {0, last}) {
      add({.kind = Kind::kBroadcast, .root = root});
      add({.kind = Kind::kReduce, .op = ReduceOp::kMax, .root = root, .in_place = in_place});
      add({.kind = Kind::kGather, .dtype = DType::kBf16, .root = root, .in_place = in_place});
      add({.kind = Kind::kScatter, .dtype = DType::kFp64, .root = root, .in_place = in_place});
    }
    add({.kind = Kind::kAllGather, .in_place = in_place});
    add({.kind = Kind::kAllToAll, .dtype = DType::kInt32});
  }
  return cases;
}

// Faults found on any thread.
class Faults {
 public:
  void Add(const std::string& what) {
    const std::lock_guard lock(mutex_);
    text_ += what + "\n";
  }
  std::string text() const { return text_; }

 private:
  std::mutex mutex_;
  std::string text_;
};

// Counts the ranks that wait, for those who do something then.
class CountedWaits final : public WaitWatch {
 public:
  explicit CountedWaits(std::atomic<int32_t>& waiting) : waiting_(waiting) {}
  void BeginWait() override {
    waiting_.fetch_add(1);
    waiting_.notify_all();
  }
  void EndWait() override { waiting_.fetch_sub(1); }

 private:
  std::atomic<int32_t>& waiting_;
};

// One operation that is over when this returns.
absl::Status RunBarrier(Communicator& communicator) {
  const absl::StatusOr<Completion> done = communicator.Barrier();
  return done.ok() ? communicator.Join(*done) : done.status();
}

}  // namespace

void OnAllRanks(std::vector<std::unique_ptr<Communicator>>& group, const std::function<void(Communicator&)>& work) {
  std::vector<std::thread> threads;
  threads.reserve(group.size());
  for (const auto& communicator : group) {
    threads.emplace_back([&work, &communicator] { work(*communicator); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

Bytes Operand(DType dtype, int64_t count, uint64_t seed) {
  SplitMix64 random(SplitMix64::Mix(seed));
  Bytes bytes(static_cast<size_t>(count * ByteSize(dtype)));
  const auto put = [&](int64_t i, const auto& value) {
    std::memcpy(bytes.data() + i * static_cast<int64_t>(sizeof(value)), &value, sizeof(value));
  };
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t drawn = random.Next();
    // Magnitudes that differ by up to 2^24, so that another order gives another sum.
    const double value =
        std::ldexp(static_cast<double>(static_cast<int64_t>(drawn >> 20)) * 0x1p-43 - 1, static_cast<int>(drawn % 24));
    switch (dtype) {
      case DType::kFp32:
        put(i, static_cast<float>(value));
        break;
      case DType::kFp64:
        put(i, value);
        break;
      case DType::kInt32:
        put(i, static_cast<uint32_t>(drawn));
        break;
      case DType::kBf16:
      case DType::kFp16:
        put(i, Bf16Of(static_cast<float>(value)));
        break;
    }
  }
  return bytes;
}

Bytes ReducedInOrder(ReduceOp op, DType dtype, const std::vector<Bytes>& inputs) {
  const auto same = [](auto value) { return value; };
  switch (dtype) {
    case DType::kFp32:
      return ReducedAs<float, float>(op, inputs, same, same);
    case DType::kFp64:
      return ReducedAs<double, double>(op, inputs, same, same);
    case DType::kInt32:
      if (op == ReduceOp::kMax) {
        return ReducedAs<int32_t, int32_t>(op, inputs, same, same);
      }
      return ReducedAs<uint32_t, uint32_t>(op, inputs, same, same);
    default:
      return ReducedAs<uint16_t, float>(op, inputs, FloatOf, Bf16Of);
  }
}

void SendMuch(Communicator& communicator) {
  std::vector<float> values(800'000);
  const Elements data{.data = reinterpret_cast<std::byte*>(values.data()),
                      .count = static_cast<int64_t>(values.size())};
  for (int32_t root = 0; root < communicator.size(); ++root) {
    static_cast<void>(communicator.Broadcast(root, data));
    static_cast<void>(communicator.AllReduce(ReduceOp::kSum, data, data));
  }
}

void CheckOperations(const GroupFactory& make, const std::vector<int32_t>& sizes, const std::vector<int64_t>& counts) {
  for (const int32_t size : sizes) {
    auto inline_group = make({.size = size});
    auto threaded_group = make({.size = size, .own_thread = true});
    for (const int64_t count : counts) {
      const std::vector<Case> cases = AllCases(size, count, static_cast<uint64_t>(count * 10 + size));
      Faults faults;
      OnAllRanks(inline_group, [&](Communicator& communicator) {
        for (const Case& test : cases) {
          Running running(test, communicator);
          const absl::StatusOr<Completion> done = running.Start();
          if (!done.ok() || !done->done() || !running.IsRight()) {
            faults.Add(
                fmt::format("{} on rank {}: {}", test.Name(size), communicator.rank(), done.status().ToString()));
          }
        }
      });
      // All of them under way at once.
      OnAllRanks(threaded_group, [&](Communicator& communicator) {
        std::vector<std::unique_ptr<Running>> running;
        Completion last;
        for (const Case& test : cases) {
          running.push_back(std::make_unique<Running>(test, communicator));
          const absl::StatusOr<Completion> done = running.back()->Start();
          last = done.ok() ? *done : last;
        }
        const absl::Status joined = communicator.Join(last);
        for (size_t i = 0; i < cases.size(); ++i) {
          if (!joined.ok() || !running[i]->IsRight()) {
            faults.Add(fmt::format("{} on rank {}, by its thread: {}", cases[i].Name(size), communicator.rank(),
                                   joined.ToString()));
          }
        }
      });
      CAPTURE(size, count);
      CHECK(faults.text() == "");
    }
    Faults faults;
    OnAllRanks(inline_group, [&](Communicator& communicator) {
      if (const absl::Status met = RunBarrier(communicator); !met.ok()) {
        faults.Add(met.ToString());
      }
    });
    CHECK(faults.text() == "");
  }
}

void CheckTwoGroups(const GroupFactory& make) {
  constexpr int32_t kSize = 3;
  auto first = make({.size = kSize, .own_thread = true});
  auto second = make({.size = kSize, .own_thread = true});
  const std::vector<Case> cases = AllCases(kSize, 5000, 7);
  Faults faults;
  OnAllRanks(first, [&](Communicator& one) {
    Communicator& other = *second[static_cast<size_t>(one.rank())];
    std::vector<std::unique_ptr<Running>> running;
    std::array<Completion, 2> last;
    for (const Case& test : cases) {
      for (Communicator* communicator : {&one, &other}) {
        running.push_back(std::make_unique<Running>(test, *communicator));
        const absl::StatusOr<Completion> done = running.back()->Start();
        last[communicator == &one ? 0 : 1] = done.ok() ? *done : Completion();
      }
    }
    if (!one.Join(last[0]).ok() || !other.Join(last[1]).ok()) {
      faults.Add(one.status().ToString() + other.status().ToString());
    }
    for (const auto& operation : running) {
      if (!operation->IsRight()) {
        faults.Add("a wrong result");
      }
    }
  });
  CHECK(faults.text() == "");
}

void CheckAbort(const GroupFactory& make) {
  constexpr int32_t kSize = 4;
  for (const bool own_thread : {false, true}) {
    std::atomic<int32_t> waiting = 0;
    CountedWaits watch(waiting);
    auto group = make({.size = kSize, .own_thread = own_thread, .watches = std::vector<WaitWatch*>(kSize, &watch)});
    Faults faults;
    std::atomic<int64_t> aborted_ns = 0;
    std::atomic<int32_t> met_once = 0;
    OnAllRanks(group, [&](Communicator& communicator) {
      if (const absl::Status met = RunBarrier(communicator); !met.ok()) {
        faults.Add(met.ToString());
      }
      if (communicator.rank() == kSize - 1) {
        for (std::atomic<int32_t>* others : {&met_once, &waiting}) {
          for (int32_t now = others->load(); now != kSize - 1; now = others->load()) {
            others->wait(now);
          }
        }
        aborted_ns = Clock::Real().NowNs();
        communicator.Abort(absl::CancelledError("the epoch has ended"));
        communicator.Abort(absl::InternalError("too late"));
      } else {
        met_once.fetch_add(1);
        met_once.notify_all();
      }
      const absl::Status result = RunBarrier(communicator);
      const int64_t took_ns = Clock::Real().NowNs() - aborted_ns;
      if (result != absl::CancelledError("the epoch has ended") || communicator.status() != result ||
          communicator.Barrier().status() != result) {
        faults.Add(fmt::format("rank {} got: {}", communicator.rank(), result.ToString()));
      }
      if (took_ns > kSecond) {
        faults.Add(fmt::format("rank {} returned after {} ns", communicator.rank(), took_ns));
      }
    });
    CHECK(faults.text() == "");
    CHECK(waiting == 0);
  }
}

void CheckDeadline(const GroupFactory& make) {
  auto group = make({.size = 3, .longest_wait_ns = 100 * kMs});
  Faults faults;
  OnAllRanks(group, [&](Communicator& communicator) {
    if (communicator.rank() == 1) {
      return;
    }
    const absl::Status result = RunBarrier(communicator);
    if (!absl::IsDeadlineExceeded(result) || result.message().find("rank 1") == std::string::npos) {
      faults.Add(result.ToString());
    }
  });
  CHECK(faults.text() == "");
  // A latecomer may find what the others left or hear that they have gone; a second barrier finds nobody.
  static_cast<void>(RunBarrier(*group[1]));
  CHECK(absl::IsDeadlineExceeded(RunBarrier(*group[1])));
}

void CheckMismatch(const GroupFactory& make) {
  auto group = make({.size = 2});
  std::array<absl::Status, 2> results;
  OnAllRanks(group, [&](Communicator& communicator) {
    std::array<float, 64> values{};
    const Elements data{.data = reinterpret_cast<std::byte*>(values.data()), .count = 64 - communicator.rank()};
    const absl::StatusOr<Completion> done = communicator.AllReduce(ReduceOp::kSum, data, data);
    results[static_cast<size_t>(communicator.rank())] = done.status();
  });
  CHECK(absl::IsInternal(results[0]));
  CHECK(absl::IsInternal(results[1]));
}

}  // namespace geopipe
