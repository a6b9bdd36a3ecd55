#include "coordinator/spec/device_presets.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace geopipe {
namespace {

// Datasheets give tensor throughput with 2:4 sparsity unless they say otherwise; half of it is dense. They give NVLink,
// PCIe and Infinity Fabric for both directions together; half of it is one direction.
constexpr std::array kPresets{
    DevicePreset{.name = "a100-sxm-40gb",
                 .memory_bytes = 40'000'000'000,
                 .peak_flops = 312e12,
                 .memory_bandwidth_bytes_per_s = 1555e9,
                 .intra_node_bandwidth_bytes_per_s = 300e9,
                 .host_bandwidth_bytes_per_s = 32e9,
                 .attention_efficiency = 0.33,
                 .source = "NVIDIA A100 Tensor Core GPU datasheet: A100 40GB SXM, NVLink 600 GB/s, PCIe Gen4 64 GB/s"},
    DevicePreset{.name = "a100-sxm-80gb",
                 .memory_bytes = 80'000'000'000,
                 .peak_flops = 312e12,
                 .memory_bandwidth_bytes_per_s = 2039e9,
                 .intra_node_bandwidth_bytes_per_s = 300e9,
                 .host_bandwidth_bytes_per_s = 32e9,
                 .attention_efficiency = 0.33,
                 .source = "NVIDIA A100 Tensor Core GPU datasheet: A100 80GB SXM, NVLink 600 GB/s, PCIe Gen4 64 GB/s"},
    DevicePreset{.name = "l40s-48gb",
                 .memory_bytes = 48'000'000'000,
                 .peak_flops = 362e12,
                 .memory_bandwidth_bytes_per_s = 864e9,
                 .intra_node_bandwidth_bytes_per_s = 32e9,
                 .host_bandwidth_bytes_per_s = 32e9,
                 .source = "NVIDIA L40S datasheet: no NVLink, PCIe Gen4 x16 64 GB/s"},
    DevicePreset{.name = "h100-pcie-80gb",
                 .memory_bytes = 80'000'000'000,
                 .peak_flops = 756e12,
                 .memory_bandwidth_bytes_per_s = 2000e9,
                 .intra_node_bandwidth_bytes_per_s = 64e9,
                 .host_bandwidth_bytes_per_s = 64e9,
                 .source =
                     "NVIDIA H100 Tensor Core GPU datasheet: H100 PCIe, 1,513 TFLOP/s with sparsity; PCIe Gen5 128 "
                     "GB/s, since NVLink bridges join no more than two"},
    DevicePreset{.name = "h100-sxm-80gb",
                 .memory_bytes = 80'000'000'000,
                 .peak_flops = 989e12,
                 .memory_bandwidth_bytes_per_s = 3350e9,
                 .intra_node_bandwidth_bytes_per_s = 450e9,
                 .host_bandwidth_bytes_per_s = 64e9,
                 .attention_efficiency = 0.19,
                 .source =
                     "NVIDIA H100 Tensor Core GPU datasheet: H100 SXM, 1,979 TFLOP/s with sparsity; NVLink 900 GB/s, "
                     "PCIe Gen5 128 GB/s"},
    DevicePreset{.name = "h200-sxm-141gb",
                 .memory_bytes = 141'000'000'000,
                 .peak_flops = 989e12,
                 .memory_bandwidth_bytes_per_s = 4800e9,
                 .intra_node_bandwidth_bytes_per_s = 450e9,
                 .host_bandwidth_bytes_per_s = 64e9,
                 .attention_efficiency = 0.19,
                 .source =
                     "NVIDIA H200 Tensor Core GPU datasheet: H200 SXM, 1,979 TFLOP/s with sparsity; NVLink 900 GB/s, "
                     "PCIe Gen5 128 GB/s"},
    DevicePreset{.name = "b200-sxm-180gb",
                 .memory_bytes = 180'000'000'000,
                 .peak_flops = 2250e12,
                 .memory_bandwidth_bytes_per_s = 8000e9,
                 .intra_node_bandwidth_bytes_per_s = 900e9,
                 .host_bandwidth_bytes_per_s = 64e9,
                 .source =
                     "NVIDIA DGX B200 datasheet and Blackwell architecture brief: an eighth of 1,440 GB and 64 TB/s; "
                     "4.5 PFLOP/s with sparsity; NVLink 1.8 TB/s; PCIe Gen5 as of its processors"},
    DevicePreset{.name = "mi300x-192gb",
                 .memory_bytes = 192'000'000'000,
                 .peak_flops = 1307e12,
                 .memory_bandwidth_bytes_per_s = 5300e9,
                 .intra_node_bandwidth_bytes_per_s = 448e9,
                 .host_bandwidth_bytes_per_s = 64e9,
                 .source =
                     "AMD Instinct MI300X accelerator data sheet: 1,307.4 TFLOP/s; seven Infinity Fabric links of "
                     "128 GB/s; PCIe Gen5 128 GB/s"},
};

}  // namespace

std::span<const DevicePreset> DevicePresets() { return kPresets; }

const DevicePreset* FindDevicePreset(std::string_view name) {
  const auto* const found = std::ranges::find(kPresets, name, &DevicePreset::name);
  return found == kPresets.end() ? nullptr : found;
}

std::string DevicePresetNames() {
  std::string names;
  for (const DevicePreset& preset : kPresets) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", preset.name);
  }
  return names;
}

}  // namespace geopipe
