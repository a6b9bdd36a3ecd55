// Figures of well-known devices, as their vendors publish them, for topologies that name a device instead of describing
// it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace geopipe {

struct DevicePreset {
  std::string_view name;  // also the device's kind
  int64_t memory_bytes = 0;
  double peak_flops = 0;                        // dense bf16 products, per second
  double memory_bandwidth_bytes_per_s = 0;      // HBM or GDDR
  double intra_node_bandwidth_bytes_per_s = 0;  // of one device to the others of its node, per direction
  double host_bandwidth_bytes_per_s = 0;        // to and from the host's memory, per direction
  double attention_efficiency = 0;              // as published runs have it (docs/published.md); 0: none is known
  std::string_view source;  // the vendor's document, and what of it is not said in these words there
};

// All presets, by vendor and age.
std::span<const DevicePreset> DevicePresets();
// Returns nullptr when no preset has this name.
const DevicePreset* FindDevicePreset(std::string_view name);
// "a100-sxm-40gb, a100-sxm-80gb, …".
std::string DevicePresetNames();

}  // namespace geopipe
