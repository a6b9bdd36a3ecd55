#include <array>

#include "optimizer/base/status_macros.h"
#include "tests/device/kernel_checks.h"
#include "tests/device/phases.h"

namespace geopipe {
namespace {

constexpr int kShapes = 12;
// Operands of a call, the largest of which are logits of 4,096 tokens; and those of others.
constexpr int64_t kRealBytes = int64_t{5} << 28;
constexpr int64_t kOddBytes = int64_t{256} << 20;
constexpr int64_t kSmallBytes = int64_t{16} << 20;

using Family = absl::Status (*)(KernelChecks& checks, DType dtype);
constexpr std::array<Family, 12> kFamilies = {CheckProducts, CheckPortProducts, CheckEmbeddings, CheckNorms,
                                              CheckRope,     CheckSoftmax,      CheckAttention,  CheckSwiGlu,
                                              CheckLoss,     CheckSlicedLoss,   CheckVectors,    CheckAdamW};

// Every family in both types, `shapes` times.
absl::Status CheckAll(GpuDevice& device, const DeviceCheckOptions& options, Sizes sizes, int shapes, int64_t bytes,
                      Report& report) {
  GP_ASSIGN_OR_RETURN(const std::unique_ptr<GpuTrial> trial,
                      GpuTrial::Create(device, bytes, options.seed, options.processors));
  KernelChecks checks(*trial, report, sizes, options.seed);
  for (int i = 0; i < shapes; ++i) {
    for (const Family family : kFamilies) {
      for (const DType dtype : {DType::kFp32, DType::kBf16}) {
        if (options.IsOver()) {
          report.LeaveOut(fmt::format("shapes from {} on", i));
          return absl::OkStatus();
        }
        GP_RETURN_IF_ERROR(family(checks, dtype));
      }
    }
  }
  return sizes == Sizes::kSmall ? CheckAttentionInTurns(checks) : absl::OkStatus();
}

}  // namespace

absl::StatusOr<int64_t> CheckKernels(const DeviceCheckOptions& options) {
  GP_ASSIGN_OR_RETURN(Report report, Report::Create(options.folder, "correctness.tsv"));
  GP_ASSIGN_OR_RETURN(const std::unique_ptr<GpuDevice> device, OpenDeviceOf(options));
  report.Note("seed", std::to_string(options.seed));
  if (options.small) {
    GP_RETURN_IF_ERROR(CheckAll(*device, options, Sizes::kSmall, kShapes, kSmallBytes, report));
  } else {
    GP_RETURN_IF_ERROR(CheckAll(*device, options, Sizes::kOdd, kShapes, kOddBytes, report));
    GP_RETURN_IF_ERROR(CheckAll(*device, options, Sizes::kReal, 1, kRealBytes, report));
  }
  fmt::print("{}\n", report.Summary(fmt::format("kernels (seed {})", options.seed), options.SecondsSoFar()));
  return report.failed();
}

}  // namespace geopipe
