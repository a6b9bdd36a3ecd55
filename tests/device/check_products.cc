#include <array>
#include <cstring>
#include <utility>

#include "optimizer/base/status_macros.h"
#include "tests/device/kernel_checks.h"
#include "tests/runtime/gpu/product_trial.h"

namespace geopipe {
namespace {

struct Extents {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
};

enum class Adds : uint8_t { kNothing, kMatrix, kInPlace, kRow, kMatrixAndRow };
constexpr std::array<std::string_view, 5> kAddsNames = {"", " + matrix", " + itself", " + row", " + matrix + row"};
constexpr std::array<std::string_view, 3> kProductNames = {"NN", "NT", "TN"};

absl::Status CheckProduct(KernelChecks& checks, Product product, const Extents& extents, DType operands, DType result,
                          Adds adds) {
  const int64_t m = extents.m;
  const int64_t n = extents.n;
  const int64_t k = extents.k;
  checks.Begin(fmt::format("product {} {} to {}, {} x {} x {}{}", kProductNames[static_cast<size_t>(product)],
                           NameOf(operands), NameOf(result), m, n, k, kAddsNames[static_cast<size_t>(adds)]));
  const bool a_lies_down = product == Product::kTN;
  const bool b_lies_down = product == Product::kNT;
  const MatrixView a = checks.Normal(operands, a_lies_down ? k : m, a_lies_down ? m : k);
  const MatrixView b = checks.Normal(operands, b_lies_down ? n : k, b_lies_down ? k : n);
  const MatrixView c = adds == Adds::kInPlace ? checks.Normal(result, m, n) : checks.Empty(result, m, n);
  MatrixView matrix;
  if (adds == Adds::kMatrix || adds == Adds::kMatrixAndRow) {
    matrix = checks.Normal(result, m, n);
  } else if (adds == Adds::kInPlace) {
    matrix = c;
  }
  VectorView<float> row;
  if (adds == Adds::kRow || adds == Adds::kMatrixAndRow) {
    row = checks.trial().Floats(n);
  }
  const std::vector<float> a_values = GpuTrial::ValuesOf(a);
  const std::vector<float> b_values = GpuTrial::ValuesOf(b);
  const std::vector<float> added = GpuTrial::ValuesOf(matrix);
  GP_RETURN_IF_ERROR(checks.Run([&](Backend& backend, const GpuTrial::Place& at) {
    return backend.MatMul(product, at(a), at(b), {.matrix = at(matrix), .row = at(row)}, at(c));
  }));
  checks.CompareElements("result", c, [&](int64_t i, int64_t j) {
    Expected sum = DotOf(a_values.data() + (a_lies_down ? i : i * k), a_lies_down ? m : 1,
                         b_values.data() + (b_lies_down ? j * k : j), b_lies_down ? 1 : n, k);
    sum += matrix.data != nullptr ? added[static_cast<size_t>(i * n + j)] : 0;
    sum += row.data != nullptr ? row.data[j] : 0;
    return sum;
  });
  checks.End();
  return absl::OkStatus();
}

// Memory and copies of a GpuDevice, of which the first error stays.
class PortDevice final : public TrialDevice {
 public:
  PortDevice(GpuDevice& device, Allocator& allocator) : device_(device), allocator_(allocator) {
    status_ = device.Enter();
  }

  const absl::Status& status() const { return status_; }
  const GpProducts& products() const override { return device_.port().products; }
  GpStream stream() override { return device_.stream(Queue::kCompute); }
  void* Memory(int64_t bytes) override {
    absl::StatusOr<Buffer> buffer = allocator_.Allocate(bytes, MemoryCategory::kActivations);
    if (!buffer.ok()) {
      status_.Update(buffer.status());
      return nullptr;
    }
    std::byte* memory = buffer->data();
    memory_.push_back(*std::move(buffer));
    const std::vector<std::byte> poison(static_cast<size_t>(bytes), std::byte{0xFF});
    Write(poison.data(), memory, bytes);
    return memory;
  }
  void Write(const void* from, void* to, int64_t bytes) override {
    absl::StatusOr<Buffer> pinned = allocator_.staging().Allocate(bytes, MemoryCategory::kTransport);
    if (!pinned.ok()) {
      status_.Update(pinned.status());
      return;
    }
    std::memcpy(pinned->data(), from, static_cast<size_t>(bytes));
    status_.Update(device_.Copy(pinned->data(), static_cast<std::byte*>(to), bytes, Queue::kCompute));
    memory_.push_back(*std::move(pinned));
  }
  void Read(const void* from, void* to, int64_t bytes) override {
    absl::StatusOr<Buffer> pinned = allocator_.staging().Allocate(bytes, MemoryCategory::kTransport);
    if (!pinned.ok()) {
      status_.Update(pinned.status());
      return;
    }
    status_.Update(device_.Copy(static_cast<const std::byte*>(from), pinned->data(), bytes, Queue::kCompute));
    status_.Update(device_.WaitIdle(DeviceDeadlineNs()));
    std::memcpy(to, pinned->data(), static_cast<size_t>(bytes));
  }

 private:
  GpuDevice& device_;
  Allocator& allocator_;
  std::vector<Buffer> memory_;
  absl::Status status_;
};

}  // namespace

absl::Status CheckPortProducts(KernelChecks& checks, DType dtype) {
  if (checks.is_real()) {
    return absl::OkStatus();
  }
  const std::array<int64_t, 3> extents = {checks.Extent(24, 200, 0), checks.Extent(24, 200, 0),
                                          checks.Extent(40, 300, 0)};
  for (const ProductCase& product : ProductCases({extents})) {
    if (product.shape.operand_type != PortTypeOf(dtype)) {
      continue;
    }
    checks.Begin("product of the port, " + product.Name());
    PortDevice device(checks.trial().device(), checks.trial().allocator());
    const ProductFinding finding = TryProduct(device, product, static_cast<uint64_t>(checks.Draw(INT32_MAX)));
    GP_RETURN_IF_ERROR(device.status());
    if (finding.result != kGpOk) {
      return checks.trial().device().StatusOf(finding.result, product.Name());
    }
    checks.Report("result", finding.worst);
    checks.Report("nothing else is written", finding.stray == 0);
    checks.Report("bits of a second run", finding.same_bits);
  }
  return absl::OkStatus();
}

absl::Status CheckProducts(KernelChecks& checks, DType dtype) {
  const Extents extents = {
      .m = checks.Extent(32, 700, 4096), .n = checks.Extent(32, 700, 4096), .k = checks.Extent(48, 900, 4096)};
  std::vector<DType> results = {DType::kFp32};
  if (dtype == DType::kBf16) {
    results.push_back(DType::kBf16);
  }
  for (const Product product : {Product::kNN, Product::kNT, Product::kTN}) {
    for (const DType result : results) {
      for (const Adds adds : {Adds::kNothing, Adds::kMatrix, Adds::kInPlace, Adds::kRow, Adds::kMatrixAndRow}) {
        // Products of real size: each as training makes it, and one with a bias.
        const bool is_usual = adds == (result == DType::kFp32 ? Adds::kInPlace : Adds::kNothing) ||
                              (product == Product::kNT && adds == Adds::kRow);
        if (!checks.is_real() || is_usual) {
          GP_RETURN_IF_ERROR(CheckProduct(checks, product, extents, dtype, result, adds));
        }
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace geopipe
