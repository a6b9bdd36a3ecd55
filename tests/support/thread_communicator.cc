#include "tests/support/thread_communicator.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"

namespace geopipe {
namespace {

// Meeting point of all threads of a group; a failed one lets everybody through.
class Group {
 public:
  explicit Group(int32_t size) : ins(static_cast<size_t>(size)), size_(size) {}

  absl::Status Meet() {
    std::unique_lock lock(mutex_);
    if (failure_.ok() && ++arrived_ == size_) {
      arrived_ = 0;
      ++round_;
      changed_.notify_all();
    } else {
      changed_.wait(lock, [this, round = round_] { return round_ != round || !failure_.ok(); });
    }
    return failure_;
  }
  void Fail(const absl::Status& why) {
    const std::lock_guard lock(mutex_);
    failure_.Update(why);
    changed_.notify_all();
  }
  absl::Status failure() const {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

  std::vector<ConstElements> ins;

 private:
  const int32_t size_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  absl::Status failure_;
  int32_t arrived_ = 0;
  int64_t round_ = 0;
};

template <class T>
T At(const std::byte* data, int64_t i) {
  T value;
  std::memcpy(&value, data + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

float Widen(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
uint16_t Narrow(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return std::isnan(value) ? 0x7fc0 : static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

template <class T, class Wide, class Load, class Store>
void ReduceAs(ReduceOp op, const std::vector<ConstElements>& ins, int64_t first, int64_t count, std::byte* out,
              Load load, Store store) {
  for (int64_t i = 0; i < count; ++i) {
    Wide sum = load(At<T>(ins[0].data, first + i));
    for (size_t rank = 1; rank < ins.size(); ++rank) {
      const Wide term = load(At<T>(ins[rank].data, first + i));
      sum = op == ReduceOp::kSum ? sum + term : std::max(sum, term);
    }
    const T result = store(sum);
    std::memcpy(out + i * static_cast<int64_t>(sizeof(T)), &result, sizeof(T));
  }
}

void ReduceInto(ReduceOp op, const std::vector<ConstElements>& ins, int64_t first, int64_t count, std::byte* out) {
  const auto same = [](auto value) { return value; };
  switch (ins[0].dtype) {
    case DType::kFp32:
      return ReduceAs<float, float>(op, ins, first, count, out, same, same);
    case DType::kFp64:
      return ReduceAs<double, double>(op, ins, first, count, out, same, same);
    case DType::kBf16:
      return ReduceAs<uint16_t, float>(op, ins, first, count, out, Widen, Narrow);
    default:
      GP_CHECK(false, "a reduction of {}", DTypeName(ins[0].dtype));
  }
}

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<Group> group, int32_t rank, int32_t size)
      : group_(std::move(group)), rank_(rank), size_(size) {}

  int32_t rank() const override { return rank_; }
  int32_t size() const override { return size_; }

  absl::StatusOr<Completion> Broadcast(int32_t root, const Elements& data) override {
    return Run(data, data, [=](const auto& ins, std::byte* made) { std::memcpy(made, ins[root].data, data.bytes()); });
  }
  absl::StatusOr<Completion> Reduce(ReduceOp op, int32_t root, const ConstElements& in, const Elements& out) override {
    return Run(in, rank_ == root ? out : Elements{},
               [=](const auto& ins, std::byte* made) { ReduceInto(op, ins, 0, out.count, made); });
  }
  absl::StatusOr<Completion> AllReduce(ReduceOp op, const ConstElements& in, const Elements& out) override {
    return Run(in, out, [=](const auto& ins, std::byte* made) { ReduceInto(op, ins, 0, out.count, made); });
  }
  absl::StatusOr<Completion> AllGather(const ConstElements& in, const Elements& out) override {
    GP_CHECK(out.count == size_ * in.count);
    return Run(in, out, [=, this](const auto& ins, std::byte* made) {
      for (int32_t rank = 0; rank < size_; ++rank) {
        std::memcpy(made + rank * in.bytes(), ins[rank].data, in.bytes());
      }
    });
  }
  absl::StatusOr<Completion> Gather(int32_t root, const ConstElements& in, const Elements& out) override {
    return Run(in, rank_ == root ? out : Elements{}, [=, this](const auto& ins, std::byte* made) {
      for (int32_t rank = 0; rank < size_; ++rank) {
        std::memcpy(made + rank * in.bytes(), ins[rank].data, in.bytes());
      }
    });
  }
  absl::StatusOr<Completion> Scatter(int32_t root, const ConstElements& in, const Elements& out) override {
    return Run(in, out, [=, this](const auto& ins, std::byte* made) {
      std::memcpy(made, ins[root].data + rank_ * out.bytes(), out.bytes());
    });
  }
  absl::StatusOr<Completion> ReduceScatter(ReduceOp op, const ConstElements& in, const Elements& out) override {
    GP_CHECK(in.count == size_ * out.count);
    return Run(in, out, [=, this](const auto& ins, std::byte* made) {
      ReduceInto(op, ins, rank_ * out.count, out.count, made);
    });
  }
  absl::StatusOr<Completion> AllToAll(const ConstElements& in, const Elements& out) override {
    const int64_t part = in.bytes() / size_;
    return Run(in, out, [=, this](const auto& ins, std::byte* made) {
      for (int32_t rank = 0; rank < size_; ++rank) {
        std::memcpy(made + rank * part, ins[rank].data + rank_ * part, part);
      }
    });
  }
  absl::StatusOr<Completion> Barrier() override {
    return Run({}, {}, [](const auto&, std::byte*) {});
  }
  absl::Status Join(const Completion& /*done*/) override { return group_->failure(); }
  void Abort(absl::Status why) override { group_->Fail(why); }
  absl::Status status() const override { return group_->failure(); }

 private:
  using Make = std::function<void(const std::vector<ConstElements>&, std::byte*)>;

  absl::StatusOr<Completion> Run(const ConstElements& in, const Elements& out, const Make& make) {
    group_->ins[rank_] = in;
    GP_RETURN_IF_ERROR(group_->Meet());
    std::vector<std::byte> made(static_cast<size_t>(out.bytes()));
    if (out.data != nullptr || out.count == 0) {
      make(group_->ins, made.data());
    }
    GP_RETURN_IF_ERROR(group_->Meet());
    if (!made.empty()) {
      std::memcpy(out.data, made.data(), made.size());
    }
    GP_RETURN_IF_ERROR(group_->Meet());
    return Completion();
  }

  const std::shared_ptr<Group> group_;
  const int32_t rank_;
  const int32_t size_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> MakeThreadCommunicators(int32_t size) {
  const auto group = std::make_shared<Group>(size);
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (int32_t rank = 0; rank < size; ++rank) {
    communicators.push_back(std::make_unique<ThreadCommunicator>(group, rank, size));
  }
  return communicators;
}

}  // namespace geopipe
