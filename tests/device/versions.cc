#include <fmt/format.h>

#include "optimizer/base/status_macros.h"
#include "runtime/gpu/open_port.h"
#include "tests/device/phases.h"

namespace geopipe {

absl::StatusOr<std::unique_ptr<GpuDevice>> OpenDeviceOf(const DeviceCheckOptions& options) {
  return GpuDevice::Open(options.library, 0);
}

absl::StatusOr<int64_t> CheckVersions(const DeviceCheckOptions& options) {
  GP_ASSIGN_OR_RETURN(TsvTable table, TsvTable::Create(options.folder + "/versions.tsv", {"what", "value"}));
  GP_ASSIGN_OR_RETURN(const std::unique_ptr<GpuDevice> device, OpenDeviceOf(options));
  GP_RETURN_IF_ERROR(device->Enter());
  const GpRuntime& runtime = device->port().runtime;
  GpDeviceProperties properties = {};
  GP_RETURN_IF_ERROR(device->StatusOf(runtime.device_properties(0, &properties), "reading its properties"));
  int64_t free_bytes = 0;
  int64_t total_bytes = 0;
  GP_RETURN_IF_ERROR(device->StatusOf(runtime.memory_info(&free_bytes, &total_bytes), "asking for its memory"));
  const DeviceVersions& versions = device->versions();
  table.Add({"card", versions.name});
  table.Add({"uuid", properties.uuid});
  table.Add({"architecture", versions.architecture});
  table.Add({"multiprocessors", std::to_string(versions.multiprocessors)});
  table.Add({"copy_engines", std::to_string(properties.copy_engines)});
  table.Add({"l2_cache_bytes", std::to_string(properties.l2_cache_bytes)});
  table.Add({"memory_bytes", std::to_string(total_bytes)});
  table.Add({"free_bytes", std::to_string(free_bytes)});
  table.Add({"can_register_memory", std::to_string(properties.can_register_memory)});
  table.Add({"driver", versions.driver});
  table.Add({"runtime", versions.runtime});
  table.Add({"cublas_lt", versions.cublas_lt});
  table.Add({"kernels", versions.kernels});
  fmt::print("versions: {}, {}, {} SMs, {:.1f} GiB, driver {}, runtime {}, cuBLASLt {}, kernels {}\n", versions.name,
             versions.architecture, versions.multiprocessors, static_cast<double>(total_bytes) / (1 << 30),
             versions.driver, versions.runtime, versions.cublas_lt, versions.kernels.substr(0, 12));
  return 0;
}

}  // namespace geopipe
