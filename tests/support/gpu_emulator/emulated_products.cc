#include "tests/support/gpu_emulator/emulated_products.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "runtime/gpu/kernels/device_language.h"
#include "runtime/gpu/port/product_rules.h"
#include "tests/support/gpu_emulator/emulated_driver.h"
#include "tests/support/gpu_emulator/emulated_runtime.h"

struct GpProductPlan {
  GpProductShape shape = {};
  geopipe::emulator::Device* device = nullptr;
  int64_t workspace_bytes = 0;
};

namespace geopipe::emulator {
namespace {

// Modelled speed of a product.
constexpr double kFlopPerNs = 700'000;
constexpr int64_t kStartNs = 5000;

// Matrices as they lie in memory.
struct Stored {
  int64_t rows;
  int64_t columns;
  int64_t stride;
};
Stored StoredA(const GpProductShape& s) {
  return s.a_transposed != 0 ? Stored{s.k, s.m, s.a_stride} : Stored{s.m, s.k, s.a_stride};
}
Stored StoredB(const GpProductShape& s) {
  return s.b_transposed != 0 ? Stored{s.n, s.k, s.b_stride} : Stored{s.k, s.n, s.b_stride};
}

int64_t SpanBytes(const Stored& matrix, GpDType type, int64_t batch, int64_t batch_stride) {
  return ((batch - 1) * batch_stride + (matrix.rows - 1) * matrix.stride + matrix.columns) * gpu::ElementBytes(type);
}

float Load(const void* matrix, GpDType type, int64_t index) {
  return type == kGpBf16 ? gpu::FloatOf(static_cast<const gpu::Bf16*>(matrix)[index])
                         : static_cast<const float*>(matrix)[index];
}

void Store(void* matrix, GpDType type, int64_t index, float value) {
  if (type == kGpBf16) {
    static_cast<gpu::Bf16*>(matrix)[index] = gpu::Bf16Of(value);
  } else {
    static_cast<float*>(matrix)[index] = value;
  }
}

// op(matrix) [rows, columns] in fp32, its rows behind one another.
std::vector<float> Unpack(const void* matrix, GpDType type, int64_t first, int64_t stride, bool is_transposed,
                          int64_t rows, int64_t columns) {
  std::vector<float> unpacked(static_cast<size_t>(rows * columns));
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      unpacked[static_cast<size_t>(i * columns + j)] =
          Load(matrix, type, first + (is_transposed ? j * stride + i : i * stride + j));
    }
  }
  return unpacked;
}

void Multiply(const GpProductShape& s, const GpProductOperands& o, int64_t of_batch) {
  const std::vector<float> a =
      Unpack(o.a, s.operand_type, of_batch * s.a_batch_stride, s.a_stride, s.a_transposed != 0, s.m, s.k);
  const std::vector<float> b =
      Unpack(o.b, s.operand_type, of_batch * s.b_batch_stride, s.b_stride, s.b_transposed != 0, s.k, s.n);
  std::vector<float> sums(static_cast<size_t>(s.n));
  for (int64_t i = 0; i < s.m; ++i) {
    std::ranges::fill(sums, 0.0F);
    for (int64_t p = 0; p < s.k; ++p) {
      const float factor = a[static_cast<size_t>(i * s.k + p)];
      const float* row = b.data() + p * s.n;
      for (int64_t j = 0; j < s.n; ++j) {
        sums[static_cast<size_t>(j)] += factor * row[j];
      }
    }
    for (int64_t j = 0; j < s.n; ++j) {
      float sum = sums[static_cast<size_t>(j)];
      if (s.has_addend != 0) {
        sum += Load(o.c, s.result_type, of_batch * s.c_batch_stride + i * s.c_stride + j);
      }
      if (s.has_row != 0) {
        sum += o.row[j];
      }
      Store(o.d, s.result_type, of_batch * s.d_batch_stride + i * s.d_stride + j, sum);
    }
  }
}

GpResult Make(Driver& driver, Device& device, const GpProductShape* shape, GpProductPlan** plan) {
  *plan = nullptr;
  driver.Count(Counted::kPlan);
  const gpu::Verdict verdict = gpu::CheckProductShape(*shape);
  if (verdict.result != kGpOk) {
    return Fail(verdict.result, verdict.why);
  }
  // It is asked for as if the sums were divided among two blocks.
  const int64_t wanted = (shape->m * shape->n * 4 + 255) / 256 * 256;
  *plan = new GpProductPlan{
      .shape = *shape, .device = &device, .workspace_bytes = wanted <= shape->workspace_limit_bytes ? wanted : 0};
  return kGpOk;
}

int64_t WorkspaceBytes(const GpProductPlan* plan) { return plan->workspace_bytes; }

// Every operand has to lie in one block of device memory as a whole.
const char* MissedBy(Driver& driver, const Device& device, const GpProductShape& s, const GpProductOperands& o,
                     const void* workspace, int64_t workspace_bytes) {
  const Stored result = {s.m, s.n, s.d_stride};
  const Stored addend = {s.m, s.n, s.c_stride};
  if (!driver.IsDeviceMemory(device, o.a, SpanBytes(StoredA(s), s.operand_type, s.batch, s.a_batch_stride))) {
    return "a";
  }
  if (!driver.IsDeviceMemory(device, o.b, SpanBytes(StoredB(s), s.operand_type, s.batch, s.b_batch_stride))) {
    return "b";
  }
  if (!driver.IsDeviceMemory(device, o.d, SpanBytes(result, s.result_type, s.batch, s.d_batch_stride))) {
    return "d";
  }
  if (s.has_addend != 0 &&
      !driver.IsDeviceMemory(device, o.c, SpanBytes(addend, s.result_type, s.batch, s.c_batch_stride))) {
    return "c";
  }
  if (s.has_row != 0 && !driver.IsDeviceMemory(device, o.row, s.n * 4)) {
    return "row";
  }
  if (workspace_bytes > 0 && !driver.IsDeviceMemory(device, workspace, workspace_bytes)) {
    return "workspace";
  }
  return nullptr;
}

GpResult Run(Driver& driver, Device& device, GpProductPlan* plan, const GpProductOperands* operands, void* workspace,
             int64_t workspace_bytes, GpStream stream) {
  const GpProductShape& shape = plan->shape;
  if (plan->device != &device) {
    return Fail(kGpInvalid, "the plan is of another device");
  }
  const gpu::Verdict verdict =
      gpu::CheckProductRun(shape, *operands, workspace, workspace_bytes, plan->workspace_bytes);
  if (verdict.result != kGpOk) {
    return Fail(verdict.result, verdict.why);
  }
  if (const char* missed = MissedBy(driver, device, shape, *operands, workspace, plan->workspace_bytes)) {
    return Fail(kGpInvalid, fmt::format("{} reaches beyond its device memory", missed));
  }
  const bool is_wrong = driver.Strikes(driver.Count(Counted::kProduct), driver.settings().wrong_product_at);
  const GpProductOperands real = {.a = Real(operands->a),
                                  .b = Real(operands->b),
                                  .c = Real(operands->c),
                                  .row = Real(operands->row),
                                  .d = Real(operands->d)};
  const auto duration_ns =
      kStartNs + static_cast<int64_t>(2.0 * static_cast<double>(shape.m) * static_cast<double>(shape.n) *
                                      static_cast<double>(shape.k) * static_cast<double>(shape.batch) / kFlopPerNs);
  // The workspace is in use between the two: what another stream does to it meanwhile shows in the result.
  auto* scratch = Real(static_cast<unsigned char*>(workspace));
  const auto scratch_bytes = static_cast<size_t>(plan->workspace_bytes);
  const Stream* opened = driver.StreamOf(device, stream);
  const auto mark = static_cast<unsigned char>(opened == nullptr ? 0 : opened->line + 1);
  const int32_t error = driver.Launch(
      stream, [scratch, scratch_bytes, mark] { std::fill_n(scratch, scratch_bytes, mark); }, duration_ns);
  if (error != 0) {
    return ResultOf(error);
  }
  device.Enqueue(
      opened->line,
      [shape, real, scratch, scratch_bytes, mark, is_wrong] {
        for (int64_t i = 0; i < shape.batch; ++i) {
          Multiply(shape, real, i);
        }
        const auto is_mine = [mark](unsigned char byte) { return byte == mark; };
        if (!std::all_of(scratch, scratch + scratch_bytes, is_mine)) {
          std::memset(real.d, 0xFF, static_cast<size_t>(shape.n * gpu::ElementBytes(shape.result_type)));
        }
        if (is_wrong) {  // by the last bit of the exponent
          static_cast<unsigned char*>(real.d)[shape.result_type == kGpBf16 ? 0 : 2] ^= 0x80;
        }
      },
      0);
  return kGpOk;
}

void Destroy(GpProductPlan* plan) { delete plan; }

}  // namespace

const GpProducts kProducts = {
    .make = OnDevice<Make>,
    .workspace_bytes = WorkspaceBytes,
    .run = OnDevice<Run>,
    .destroy = Destroy,
};

}  // namespace geopipe::emulator
