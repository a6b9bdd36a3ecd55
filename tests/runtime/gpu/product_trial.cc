#include "tests/runtime/gpu/product_trial.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "tests/support/bf16.h"

namespace geopipe {
namespace {

int32_t BytesOf(GpDType type) { return type == kGpBf16 ? 2 : 4; }

size_t Index(int64_t index) { return static_cast<size_t>(index); }

// Numbers of a type on the device, aligned to it and no more, and what they are in fp32.
class Array {
 public:
  Array(TrialDevice& device, GpDType type, int64_t count)
      : device_(device),
        type_(type),
        values_(Index(count)),
        memory_(static_cast<std::byte*>(device.Memory(bytes() + BytesOf(type))) + BytesOf(type)) {}

  void* memory() const { return memory_; }
  float operator[](int64_t index) const { return values_[Index(index)]; }
  const std::vector<float>& values() const { return values_; }

  void Draw(std::mt19937& random) {
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (float& value : values_) {
      value = type_ == kGpBf16 ? ValueOfBf16(Bf16Of(uniform(random))) : uniform(random);
    }
  }
  // REQUIRES: an array of this size and type.
  void WriteTo(void* memory) const {
    std::vector<std::byte> stored(Index(bytes()));
    for (size_t i = 0; i < values_.size(); ++i) {
      if (type_ == kGpBf16) {
        const uint16_t bits = Bf16Of(values_[i]);
        std::memcpy(stored.data() + 2 * i, &bits, 2);
      } else {
        std::memcpy(stored.data() + 4 * i, &values_[i], 4);
      }
    }
    device_.Write(stored.data(), memory, bytes());
  }
  void Read() {
    std::vector<std::byte> stored(Index(bytes()));
    device_.Read(memory_, stored.data(), bytes());
    for (size_t i = 0; i < values_.size(); ++i) {
      if (type_ == kGpBf16) {
        uint16_t bits = 0;
        std::memcpy(&bits, stored.data() + 2 * i, 2);
        values_[i] = ValueOfBf16(bits);
      } else {
        std::memcpy(&values_[i], stored.data() + 4 * i, 4);
      }
    }
  }
  void Poison() {
    std::ranges::fill(values_, std::numeric_limits<float>::quiet_NaN());
    const std::vector<std::byte> stored(Index(bytes()), std::byte{0xFF});
    device_.Write(stored.data(), memory_, bytes());
  }

 private:
  int64_t bytes() const { return static_cast<int64_t>(values_.size()) * BytesOf(type_); }

  TrialDevice& device_;
  GpDType type_;
  std::vector<float> values_;
  void* memory_;
};

class Trial {
 public:
  Trial(TrialDevice& device, const ProductCase& product, uint64_t seed)
      : device_(device),
        shape_(product.shape),
        with_(product.with),
        a_(device, shape_.operand_type,
           Count(shape_.a_transposed != 0 ? shape_.k : shape_.m, shape_.a_stride, shape_.a_batch_stride)),
        b_(device, shape_.operand_type,
           Count(shape_.b_transposed != 0 ? shape_.n : shape_.k, shape_.b_stride, shape_.b_batch_stride)),
        c_(device, shape_.result_type, Count(shape_.m, shape_.c_stride, shape_.c_batch_stride)),
        row_(device, kGpFp32, shape_.n),
        d_(device, shape_.result_type, Count(shape_.m, shape_.d_stride, shape_.d_batch_stride)) {
    std::mt19937 random(static_cast<unsigned>(seed));
    for (Array* array : {&a_, &b_, &c_, &row_}) {
      array->Draw(random);
      array->WriteTo(array->memory());
    }
    result_ = device.products().make(&shape_, &plan_);
  }
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;
  ~Trial() { device_.products().destroy(plan_); }

  GpResult result() const { return result_; }

  // REQUIRES: result() is kGpOk.
  std::vector<float> Run() {
    const bool in_place = with_ == With::kAddendInPlace;
    d_.Poison();
    if (in_place) {
      c_.WriteTo(d_.memory());
    }
    const GpProductOperands operands = {.a = a_.memory(),
                                        .b = b_.memory(),
                                        .c = shape_.has_addend == 0 ? nullptr : (in_place ? d_.memory() : c_.memory()),
                                        .row = shape_.has_row == 0 ? nullptr : static_cast<float*>(row_.memory()),
                                        .d = d_.memory()};
    const int64_t workspace_bytes = device_.products().workspace_bytes(plan_);
    void* workspace = workspace_bytes == 0 ? nullptr : device_.Memory(workspace_bytes);
    result_ = device_.products().run(plan_, &operands, workspace, workspace_bytes, device_.stream());
    d_.Read();
    return d_.values();
  }

  void Check(const std::vector<float>& result, ProductFinding& finding) const {
    const DType dtype = shape_.result_type == kGpBf16 ? DType::kBf16 : DType::kFp32;
    int64_t seen = 0;
    for (int64_t of_batch = 0; of_batch < shape_.batch; ++of_batch) {
      for (int64_t i = 0; i < shape_.m; ++i) {
        for (int64_t j = 0; j < shape_.n; ++j) {
          const Expected sum = Expect(of_batch, i, j);
          finding.worst.Note(result[Index(of_batch * shape_.d_batch_stride + i * shape_.d_stride + j)], sum.value,
                             AllowedErrorOfRoundedSum(dtype, sum));
          ++seen;
        }
      }
    }
    if (with_ != With::kAddendInPlace) {
      const auto untouched = std::ranges::count_if(result, [](float v) { return std::isnan(v); });
      finding.stray = static_cast<int64_t>(result.size()) - seen - untouched;
    }
  }

 private:
  int64_t Count(int64_t rows, int64_t stride, int64_t batch_stride) const {
    return (shape_.batch - 1) * batch_stride + rows * stride;
  }

  Expected Expect(int64_t of_batch, int64_t i, int64_t j) const {
    const float* a = a_.values().data() + of_batch * shape_.a_batch_stride;
    const float* b = b_.values().data() + of_batch * shape_.b_batch_stride;
    const bool a_lies_down = shape_.a_transposed != 0;
    const bool b_lies_down = shape_.b_transposed != 0;
    Expected sum = DotOf(a + i * (a_lies_down ? 1 : shape_.a_stride), a_lies_down ? shape_.a_stride : 1,
                         b + j * (b_lies_down ? shape_.b_stride : 1), b_lies_down ? 1 : shape_.b_stride, shape_.k);
    if (shape_.has_addend != 0) {
      sum += c_[of_batch * shape_.c_batch_stride + i * shape_.c_stride + j];
    }
    if (shape_.has_row != 0) {
      sum += row_[j];
    }
    return sum;
  }

  TrialDevice& device_;
  GpProductShape shape_;
  With with_;
  Array a_;
  Array b_;
  Array c_;
  Array row_;
  Array d_;
  GpProductPlan* plan_ = nullptr;
  GpResult result_ = kGpOk;
};

}  // namespace

GpProductShape ShapeOf(GpDType operands, GpDType result, bool a_transposed, bool b_transposed, int64_t m, int64_t n,
                       int64_t k, int64_t batch, With with) {
  const bool has_row = with == With::kRow || with == With::kAddendAndRow;
  const bool has_addend = with != With::kNothing && with != With::kRow;
  const bool in_place = with == With::kAddendInPlace;
  const int64_t a_stride = (a_transposed ? m : k) + 3;
  const int64_t d_stride = n + 1;
  const int64_t c_stride = in_place ? d_stride : n + 5;
  const int64_t d_batch_stride = m * d_stride + 4;
  return {.operand_type = operands,
          .result_type = result,
          .a_transposed = a_transposed ? 1 : 0,
          .b_transposed = b_transposed ? 1 : 0,
          .m = m,
          .n = n,
          .k = k,
          .a_stride = a_stride,
          .b_stride = (b_transposed ? k : n) + 2,
          .c_stride = c_stride,
          .d_stride = d_stride,
          .batch = batch,
          .a_batch_stride = (a_transposed ? k : m) * a_stride + 7,
          .b_batch_stride = 0,
          .c_batch_stride = in_place ? d_batch_stride : m * c_stride + 2,
          .d_batch_stride = d_batch_stride,
          .has_addend = has_addend ? 1 : 0,
          .has_row = has_row ? 1 : 0,
          .a_alignment_bytes = BytesOf(operands),
          .b_alignment_bytes = BytesOf(operands),
          .c_alignment_bytes = BytesOf(result),
          .d_alignment_bytes = BytesOf(result),
          .row_alignment_bytes = BytesOf(kGpFp32),
          .multiprocessors = 0,
          .workspace_limit_bytes = 1 << 20};
}

std::string ProductCase::Name() const {
  return "types " + std::to_string(shape.operand_type) + " and " + std::to_string(shape.result_type) + ", transposed " +
         std::to_string(shape.a_transposed) + std::to_string(shape.b_transposed) + ", m " + std::to_string(shape.m) +
         ", n " + std::to_string(shape.n) + ", k " + std::to_string(shape.k) + ", batch " +
         std::to_string(shape.batch) + ", with " + std::to_string(static_cast<int>(with));
}

std::vector<ProductCase> ProductCases(const std::vector<std::array<int64_t, 3>>& extents) {
  constexpr std::array<std::array<GpDType, 2>, 3> kTypes = {
      {{kGpFp32, kGpFp32}, {kGpBf16, kGpBf16}, {kGpBf16, kGpFp32}}};
  std::vector<ProductCase> cases;
  for (const auto& [operands, result] : kTypes) {
    for (const auto& [m, n, k] : extents) {
      for (const int transposes : {0, 1, 2, 3}) {
        for (const With with : {With::kNothing, With::kAddend, With::kAddendInPlace, With::kRow, With::kAddendAndRow}) {
          const bool has_row = with == With::kRow || with == With::kAddendAndRow;
          if (has_row && result != kGpFp32) {
            continue;  // unsupported
          }
          const int64_t batch = has_row ? 1 : 2;
          cases.push_back(
              {ShapeOf(operands, result, (transposes & 1) != 0, (transposes & 2) != 0, m, n, k, batch, with), with});
        }
      }
    }
  }
  return cases;
}

std::string ProductFinding::Wrong() const {
  if (result != kGpOk) {
    return "result " + std::to_string(result);
  }
  if (worst.share() > 1) {
    return std::to_string(worst.error) + " from fp64 where " + std::to_string(worst.allowed) + " are allowed";
  }
  return stray != 0 ? "written between results" : (same_bits ? "" : "other bits at the second run");
}

ProductFinding TryProduct(TrialDevice& device, const ProductCase& product, uint64_t seed) {
  Trial trial(device, product, seed);
  ProductFinding finding;
  if (trial.result() == kGpOk) {
    const std::vector<float> result = trial.Run();
    trial.Check(result, finding);
    const std::vector<float> again = trial.Run();
    finding.same_bits = std::memcmp(result.data(), again.data(), result.size() * sizeof(float)) == 0;
  }
  finding.result = trial.result();
  return finding;
}

}  // namespace geopipe
