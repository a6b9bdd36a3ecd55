// The phases of device_check, each a function that opens the device, does its checks and writes a table.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "optimizer/model/job_spec.h"
#include "runtime/gpu/gpu_device.h"
#include "tests/device/report.h"

namespace geopipe {

struct DeviceCheckOptions {
  std::string phase;
  std::string library;  // file of the GPU library; empty: beside the program
  std::string folder;   // of the tables
  bool small = false;   // shapes that an emulated GPU computes in seconds
  uint64_t seed = 1;
  int processors = 1;                      // of this host, for what the processor computes
  Precision precision = Precision::kFp32;  // of the digest
  int64_t budget_ns = 0;                   // time for the phase; what does not fit is left out
  int64_t begin_ns = 0;                    // when it began, on the monotonic clock

  bool IsOver() const;
  double SecondsSoFar() const;
};

// The device that the phases run on: the first that the process sees.
absl::StatusOr<std::unique_ptr<GpuDevice>> OpenDeviceOf(const DeviceCheckOptions& options);

// Each returns the number of checks that failed, and prints one line of the phase. Errors: what kept it from going on.
absl::StatusOr<int64_t> CheckVersions(const DeviceCheckOptions& options);
absl::StatusOr<int64_t> CheckKernels(const DeviceCheckOptions& options);
absl::StatusOr<int64_t> CheckTraining(const DeviceCheckOptions& options);
// Prints the bits of a run that CheckTraining makes too: a process of its own.
absl::StatusOr<int64_t> PrintDigest(const DeviceCheckOptions& options);
absl::StatusOr<int64_t> CheckGroups(const DeviceCheckOptions& options);
// Checks nothing: measures, and says what there was neither time nor memory for.
absl::StatusOr<int64_t> MeasureSpeed(const DeviceCheckOptions& options);

}  // namespace geopipe
