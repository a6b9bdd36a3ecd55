// A device for tests that differs from the processor in every way: memory that the host cannot touch (its addresses are
// none of the process's), and queues of work that run some time later, in an order drawn from a seed
// (tests/support/seeded_queues.h). Its kernels are the processor's, so results have the same bits, unless something did
// not wait for what it needs.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "runtime/backend/cpu_backend.h"
#include "runtime/tensor/device.h"
#include "tests/support/seeded_queues.h"

namespace geopipe {

// Something that the device does wrong, for tests of those who would notice.
enum class DeviceFault : uint8_t {
  kNone,
  kDropsAfter,        // queues do not wait for each other
  kReleasesEarly,     // memory that a queue still uses counts as free
  kHidesFailure,      // work on a failed device completes as if it were done
  kIgnoresDeadlines,  // a wait lasts until the work is done, and what is held goes on then
  kLandsEarly,        // what comes in counts as there before it is
  kLeavesEarly,       // what leaves counts as there before it is
};

class SeededDevice final : public Device {
 public:
  explicit SeededDevice(uint64_t seed = 1, DeviceFault fault = DeviceFault::kNone);
  ~SeededDevice() override;

  MemorySpace space() const override { return MemorySpace::kDevice; }
  void Free(std::byte* memory, int64_t bytes, MemorySpace space) override;
  Mark Begin(Queue queue) override;
  absl::Status After(Queue queue, const Completion& work) override;
  Completion Past(Queue queue, int64_t position) override;

  absl::Status Register(std::byte* memory, int64_t bytes) override {
    registered_[memory] = bytes;
    return absl::OkStatus();
  }
  void Unregister(std::byte* memory) override { registered_.erase(memory); }
  const std::map<std::byte*, int64_t>& registered() const { return registered_; }

  // A kernel: of so much modelled time.
  void Enqueue(std::function<absl::Status()> work, int64_t duration_ns = 0, Queue queue = Queue::kCompute);
  // Calls `look` on the device's thread amid each copy, and behind it. REQUIRES: there is no work yet.
  void OnCopies(std::function<void()> look) { on_copies_ = std::move(look); }
  // Returns when nothing is left to do that can be done; not counted as a wait.
  void Drain();
  // Fails as devices do: once and for all.
  void Break(const absl::Status& why);
  // SeededQueues': where nothing but a wait needs work to be done.
  void RunOnlyWhenAwaited() { queues_.RunOnlyWhenAwaited(); }
  // Stops a queue at its present end, as a kernel does that never ends.
  void Hold(Queue queue) { queues_.Hold(static_cast<int>(queue)); }
  void Release(Queue queue) { queues_.Release(static_cast<int>(queue)); }

  // Records that had work before them still to do when they were made: the host ran ahead.
  int64_t pending_records() const;
  // Time on the device's own clock at which all that was done so far was over. A kernel takes ten microseconds there,
  // a copy as long as this rate says (25 bytes per nanosecond unless set).
  int64_t modelled_ns() const { return queues_.modelled_ns(); }
  void set_copied_bytes_per_ns(double rate) { copied_bytes_per_ns_ = rate; }

  // Real place of the memory, for the device's thread; addresses of host memory stay as they are.
  template <class T>
  static T* Real(T* address) {
    const auto value = reinterpret_cast<uintptr_t>(address);
    return reinterpret_cast<T*>((value & kForeign) != 0 ? value - kForeign : value);
  }

 protected:
  // Fills memory with NaNs, so that nothing works by chance on memory that was never written.
  std::byte* AllocateMemory(int64_t bytes, MemorySpace space) override;
  absl::Status EnqueueCopy(const std::byte* from, std::byte* to, int64_t bytes, Queue queue) override;
  Completion EnqueueRecord(Queue queue, const Mark& begun) override;
  bool Await(const Completion& work, int64_t deadline_ns) override;

 private:
  // Added to addresses. No process has memory there.
  static constexpr uintptr_t kForeign = uintptr_t{1} << 54;

  absl::Status error() const;
  absl::Status told_error() const;
  void ReleaseAll();
  // Completes work on a thread of its own, which runs callbacks.
  void Tell(std::function<void()> news);
  void RunTeller();

  const DeviceFault fault_;
  double copied_bytes_per_ns_ = 25;
  std::function<void()> on_copies_ = [] {};
  std::map<std::byte*, int64_t> registered_;
  mutable std::mutex mutex_;
  std::condition_variable told_;
  std::deque<std::function<void()>> news_;
  bool tells_ = false;
  bool closing_ = false;
  absl::Status error_;  // sticky
  int64_t pending_records_ = 0;
  std::thread teller_;
  SeededQueues queues_;  // ends first: its work tells news
};

// The processor's kernels in a seeded device's queue.
class SeededBackend final : public Backend {
 public:
  // `allocator` is of `device`'s memory; both outlive the backend.
  SeededBackend(SeededDevice& device, Allocator& allocator);
  ~SeededBackend() override { device_.Drain(); }

  void RunDry(bool on) override {
    device_.Drain();
    cpu_->RunDry(on);
  }
  absl::Status ZeroBytes(std::byte* data, int64_t bytes) override { return Queue(&Backend::ZeroBytes, data, bytes); }
  absl::Status MatMul(Product product, const ConstMatrixView& a, const ConstMatrixView& b, const Addend& addend,
                      const MatrixView& c) override {
    return Queue(&Backend::MatMul, product, a, b, addend, c);
  }
  absl::Status Embedding(VectorView<const int32_t> tokens, const ConstMatrixView& table, int64_t first_row,
                         const MatrixView& out) override {
    return Queue(&Backend::Embedding, tokens, table, first_row, out);
  }
  absl::Status EmbeddingGrad(VectorView<const int32_t> tokens, const ConstMatrixView& grad_out, int64_t first_row,
                             const MatrixView& grad_table) override {
    return Queue(&Backend::EmbeddingGrad, tokens, grad_out, first_row, grad_table);
  }
  absl::Status RmsNorm(const ConstMatrixView& x, VectorView<const float> weight, double eps, const MatrixView& y,
                       VectorView<float> inverse_rms) override {
    return Queue(&Backend::RmsNorm, x, weight, eps, y, inverse_rms);
  }
  absl::Status RmsNormGrad(const ConstMatrixView& x, VectorView<const float> weight,
                           VectorView<const float> inverse_rms, const ConstMatrixView& grad_y,
                           const ConstMatrixView& residual, const MatrixView& grad_x,
                           VectorView<float> grad_weight) override {
    return Queue(&Backend::RmsNormGrad, x, weight, inverse_rms, grad_y, residual, grad_x, grad_weight);
  }
  absl::Status SumRows(const ConstMatrixView& values, VectorView<float> sum) override {
    return Queue(&Backend::SumRows, values, sum);
  }
  absl::Status Rope(const MatrixView& x, const RopeTable& table, int64_t sequence, int64_t head_dim,
                    RopeDirection direction) override {
    return Queue(&Backend::Rope, x, table, sequence, head_dim, direction);
  }
  absl::Status Attention(const AttentionShape& shape, const ConstMatrixView& query, const ConstMatrixView& key,
                         const ConstMatrixView& value, const MatrixView& out, VectorView<float> statistics) override {
    return Queue(&Backend::Attention, shape, query, key, value, out, statistics);
  }
  absl::Status AttentionGrad(const AttentionShape& shape, const ConstMatrixView& query, const ConstMatrixView& key,
                             const ConstMatrixView& value, const ConstMatrixView& out,
                             VectorView<const float> statistics, const ConstMatrixView& grad_out,
                             const MatrixView& grad_query, const MatrixView& grad_key,
                             const MatrixView& grad_value) override {
    return Queue(&Backend::AttentionGrad, shape, query, key, value, out, statistics, grad_out, grad_query, grad_key,
                 grad_value);
  }
  absl::Status SwiGlu(const ConstMatrixView& gate, const ConstMatrixView& up, const MatrixView& out) override {
    return Queue(&Backend::SwiGlu, gate, up, out);
  }
  absl::Status SwiGluGrad(const ConstMatrixView& gate, const ConstMatrixView& up, const ConstMatrixView& grad_out,
                          const MatrixView& grad_gate, const MatrixView& grad_up) override {
    return Queue(&Backend::SwiGluGrad, gate, up, grad_out, grad_gate, grad_up);
  }
  absl::Status CrossEntropy(const MatrixView& logits, VectorView<const int32_t> targets, double grad_scale,
                            const MatrixView& gradient, VectorView<double> loss) override {
    return Queue(&Backend::CrossEntropy, logits, targets, grad_scale, gradient, loss);
  }
  absl::Status CrossEntropyMax(const ConstMatrixView& logits, VectorView<float> max) override {
    return Queue(&Backend::CrossEntropyMax, logits, max);
  }
  absl::Status CrossEntropySums(const MatrixView& logits, VectorView<const float> max,
                                VectorView<const int32_t> targets, int64_t first_class,
                                VectorView<float> sums) override {
    return Queue(&Backend::CrossEntropySums, logits, max, targets, first_class, sums);
  }
  absl::Status CrossEntropyGrad(const ConstMatrixView& exponentials, VectorView<const float> max,
                                VectorView<const float> sums, VectorView<const int32_t> targets, int64_t first_class,
                                double grad_scale, const MatrixView& gradient, VectorView<double> loss) override {
    return Queue(&Backend::CrossEntropyGrad, exponentials, max, sums, targets, first_class, grad_scale, gradient, loss);
  }
  absl::Status Axpy(double alpha, VectorView<const float> x, VectorView<float> y) override {
    return Queue(&Backend::Axpy, alpha, x, y);
  }
  absl::Status Convert(const ConstMatrixView& from, const MatrixView& to) override {
    return Queue(&Backend::Convert, from, to);
  }
  absl::Status SumOfSquares(const ConstMatrixView& values, VectorView<double> sum) override {
    return Queue(&Backend::SumOfSquares, values, sum);
  }
  absl::Status SumsOfSquares(VectorView<const float> values, const std::vector<Run>& runs,
                             VectorView<double> sums) override {
    return Queue(&Backend::SumsOfSquares, values, runs, sums);
  }
  absl::Status AdamW(const AdamWStep& step) override { return Queue(&Backend::AdamW, step); }

 private:
  template <class T>
  static T Real(T value) {
    return value;
  }
  static std::byte* Real(std::byte* address) { return SeededDevice::Real(address); }
  static MatrixView Real(MatrixView view);
  static ConstMatrixView Real(ConstMatrixView view);
  template <class T>
  static VectorView<T> Real(VectorView<T> view) {
    return {SeededDevice::Real(view.data), view.size};
  }
  static Addend Real(const Addend& addend) { return {Real(addend.matrix), Real(addend.row)}; }
  static AttentionShape Real(AttentionShape shape) {
    shape.starts = Real(shape.starts);
    return shape;
  }
  static RopeTable Real(RopeTable table) { return {Real(table.cosine), Real(table.sine)}; }
  static AdamWStep Real(AdamWStep step);

  template <class... Parameters, class... Arguments>
  absl::Status Queue(absl::Status (Backend::*kernel)(Parameters...), Arguments... arguments) {
    device_.Enqueue([this, kernel, arguments...] { return ((*cpu_).*kernel)(Real(arguments)...); }, kKernelNs);
    return absl::OkStatus();
  }

  static constexpr int64_t kKernelNs = 10'000;

  SeededDevice& device_;
  Allocator& allocator_;
  Allocator workspace_{int64_t{1} << 30};  // of the processor's kernels
  std::unique_ptr<CpuBackend> cpu_;        // used on the device's thread
};

}  // namespace geopipe
