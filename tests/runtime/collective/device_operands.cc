#include "tests/runtime/collective/device_operands.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "optimizer/base/status_macros.h"
#include "runtime/tensor/staging.h"

namespace geopipe {
namespace {

// Host memory and its place on the device.
struct Place {
  std::byte* begin = nullptr;
  std::byte* end = nullptr;
  Tensor tensor = {};
};

class DeviceOperands final : public Communicator {
 public:
  DeviceOperands(Allocator& allocator, bool waits, std::unique_ptr<Communicator> of)
      : allocator_(allocator), waits_(waits), of_(std::move(of)) {}

  int32_t rank() const override { return of_->rank(); }
  int32_t size() const override { return of_->size(); }

  absl::StatusOr<Completion> Broadcast(int32_t root, const Elements& data) override {
    return Run(data, data,
               [&](const ConstElements&, const Elements& on_device) { return of_->Broadcast(root, on_device); });
  }
  absl::StatusOr<Completion> Reduce(ReduceOp op, int32_t root, const ConstElements& in, const Elements& out) override {
    return Run(in, rank() == root ? out : Elements(),
               [&](const ConstElements& from, const Elements& to) { return of_->Reduce(op, root, from, to); });
  }
  absl::StatusOr<Completion> AllReduce(ReduceOp op, const ConstElements& in, const Elements& out) override {
    return Run(in, out, [&](const ConstElements& from, const Elements& to) { return of_->AllReduce(op, from, to); });
  }
  absl::StatusOr<Completion> AllGather(const ConstElements& in, const Elements& out) override {
    return Run(in, out, [&](const ConstElements& from, const Elements& to) { return of_->AllGather(from, to); });
  }
  absl::StatusOr<Completion> Gather(int32_t root, const ConstElements& in, const Elements& out) override {
    return Run(in, rank() == root ? out : Elements(),
               [&](const ConstElements& from, const Elements& to) { return of_->Gather(root, from, to); });
  }
  absl::StatusOr<Completion> Scatter(int32_t root, const ConstElements& in, const Elements& out) override {
    return Run(rank() == root ? in : ConstElements(), out,
               [&](const ConstElements& from, const Elements& to) { return of_->Scatter(root, from, to); });
  }
  absl::StatusOr<Completion> ReduceScatter(ReduceOp op, const ConstElements& in, const Elements& out) override {
    return Run(in, out,
               [&](const ConstElements& from, const Elements& to) { return of_->ReduceScatter(op, from, to); });
  }
  absl::StatusOr<Completion> AllToAll(const ConstElements& in, const Elements& out) override {
    return Run(in, out, [&](const ConstElements& from, const Elements& to) { return of_->AllToAll(from, to); });
  }
  absl::StatusOr<Completion> Barrier() override {
    return Run({}, {}, [&](const ConstElements&, const Elements&) { return of_->Barrier(); });
  }

  absl::Status Join(const Completion& done) override {
    GP_RETURN_IF_ERROR(of_->Join(done));
    return ReadBack();
  }
  void Abort(absl::Status why) override { of_->Abort(std::move(why)); }
  absl::Status status() const override { return of_->status(); }

 private:
  absl::StatusOr<Place> OnDevice(const std::byte* begin, const std::byte* end) {
    Place place{.begin = const_cast<std::byte*>(begin), .end = const_cast<std::byte*>(end)};
    const auto bytes = static_cast<size_t>(end - begin);
    GP_ASSIGN_OR_RETURN(place.tensor, Tensor::Create(allocator_, MemoryCategory::kWorkspace, DType::kBf16,
                                                     {static_cast<int64_t>(std::max<size_t>(bytes / 2, 1))}));
    GP_RETURN_IF_ERROR(FillFromHost(place.tensor, [&](const Tensor& host) {
      if (bytes > 0) {
        std::memcpy(host.data(), begin, bytes);
      }
      return absl::OkStatus();
    }));
    return place;
  }

  template <class Start>
  absl::StatusOr<Completion> Run(const ConstElements& in, const Elements& out, const Start& start) {
    const std::byte* const in_end = in.data + in.bytes();
    std::byte* const out_end = out.data + out.bytes();
    const bool overlap = in.data < out_end && out.data < in_end;
    GP_ASSIGN_OR_RETURN(Place of_out, OnDevice(overlap ? std::min<const std::byte*>(in.data, out.data) : out.data,
                                               overlap ? std::max<const std::byte*>(in_end, out_end) : out_end));
    Place of_in;
    if (!overlap) {
      GP_ASSIGN_OR_RETURN(of_in, OnDevice(in.data, in_end));
    }
    const Place& holds_in = overlap ? of_out : of_in;
    GP_ASSIGN_OR_RETURN(const Completion done,
                        start({holds_in.tensor.address() + (in.data - holds_in.begin), in.count, in.dtype},
                              Elements{of_out.tensor.address() + (out.data - of_out.begin), out.count, out.dtype}));
    under_way_.push_back(std::move(of_out));
    under_way_.push_back(std::move(of_in));
    if (!waits_) {
      return done;
    }
    GP_RETURN_IF_ERROR(Join(done));
    return Completion();
  }

  absl::Status ReadBack() {
    for (Place& place : std::exchange(under_way_, {})) {
      if (place.begin != place.end) {
        GP_RETURN_IF_ERROR(ReadOnHost(place.tensor, [&](const Tensor& host) {
          std::memcpy(place.begin, host.data(), static_cast<size_t>(place.end - place.begin));
        }));
      }
    }
    return absl::OkStatus();
  }

  Allocator& allocator_;
  const bool waits_;
  std::vector<Place> under_way_;
  std::unique_ptr<Communicator> of_;  // goes first: its operations use the memory
};

}  // namespace

std::unique_ptr<Communicator> OverDevice(Allocator& allocator, bool waits, std::unique_ptr<Communicator> of) {
  return std::make_unique<DeviceOperands>(allocator, waits, std::move(of));
}

}  // namespace geopipe
