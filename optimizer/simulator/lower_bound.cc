// For a device: nothing can run on it before the first micro-batch has come all the way; then it has all of its work to
// do; and after its last input gradient the way out to chunk 0 is still ahead. A weight gradient holds up nothing but
// its own device, so with a split backward two bounds stand side by side: all work of the device, with no way out, and
// its forwards and input gradients, followed by the way out. A full backward takes no less than I and W, so both hold
// for it as well; where the costs cannot be split the two are one.
#include "optimizer/simulator/lower_bound.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <vector>

namespace geopipe {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// Shortest times, in ns, of one micro-batch through an otherwise empty pipeline.
struct Path {
  std::vector<int64_t> message_ns;         // [boundary], either direction
  std::vector<int64_t> forward_start_ns;   // [chunk]: from the start of the iteration to the start of F
  std::vector<int64_t> after_backward_ns;  // [chunk]: from the end of I (or B) to the end of the iteration
  int64_t turn_ns = 0;                     // from the start of the iteration to the end of the last chunk's F
};

Path ShortestPath(const PipelineCosts& costs) {
  const auto chunks = static_cast<size_t>(costs.shape.chunks);
  Path path;
  path.forward_start_ns.assign(chunks, 0);
  path.after_backward_ns.assign(chunks, 0);
  // Micro-batch by micro-batch, the weight gradient of chunk 0 follows its input gradient.
  path.after_backward_ns[0] = costs.weight_grad_ns.empty() ? 0 : costs.weight_grad_ns[0];
  for (size_t boundary = 0; boundary + 1 < chunks; ++boundary) {
    const BoundaryCost& cost = costs.boundaries[boundary];
    const bool carries = costs.shape.placement[boundary] != costs.shape.placement[boundary + 1];
    path.message_ns.push_back(carries ? cost.serialization_ns + cost.latency_ns + cost.overhead_ns : 0);
    path.forward_start_ns[boundary + 1] =
        path.forward_start_ns[boundary] + costs.forward_ns[boundary] + path.message_ns[boundary];
    path.after_backward_ns[boundary + 1] =
        path.after_backward_ns[boundary] + costs.input_grad_ns[boundary] + path.message_ns[boundary];
  }
  path.turn_ns = path.forward_start_ns.back() + costs.forward_ns.back();
  return path;
}

int64_t DeviceBound(const PipelineCosts& costs, const Path& path, int32_t device) {
  int64_t first_ns = kNever;
  int64_t way_out_ns = kNever;
  int64_t input_work_ns = 0;  // F and I
  int64_t work_ns = 0;        // F, I and W
  for (int32_t chunk = 0; chunk < costs.shape.chunks; ++chunk) {
    if (costs.shape.placement[chunk] != device) {
      continue;
    }
    first_ns = std::min(first_ns, path.forward_start_ns[chunk]);
    way_out_ns = std::min(way_out_ns, path.after_backward_ns[chunk]);
    input_work_ns += costs.shape.micro_batches * (costs.forward_ns[chunk] + costs.input_grad_ns[chunk]);
    work_ns += costs.shape.micro_batches * (costs.forward_ns[chunk] + costs.BackwardNs(chunk));
  }
  return first_ns == kNever ? 0 : first_ns + std::max(input_work_ns + way_out_ns, work_ns);
}

// One direction of one link, over all boundaries that share it.
struct LinkUse {
  int64_t first_ns = kNever;
  int64_t way_out_ns = kNever;
  int64_t work_ns = 0;

  void Add(int64_t use_first_ns, int64_t use_work_ns, int64_t use_way_out_ns) {
    first_ns = std::min(first_ns, use_first_ns);
    work_ns += use_work_ns;
    way_out_ns = std::min(way_out_ns, use_way_out_ns);
  }
};

int64_t LinksBound(const PipelineCosts& costs, const Path& path) {
  std::map<std::tuple<int32_t, std::string, bool>, LinkUse> links;
  const auto last_chunk = static_cast<size_t>(costs.shape.chunks) - 1;
  for (int32_t boundary = 0; boundary + 1 < costs.shape.chunks; ++boundary) {
    const BoundaryCost& cost = costs.boundaries[boundary];
    const int32_t below = costs.shape.placement[boundary];
    const int32_t above = costs.shape.placement[boundary + 1];
    if (!cost.crosses || below == above) {
      continue;
    }
    const auto link = [&](bool upwards) -> LinkUse& {
      return links[{cost.link.empty() ? boundary : -1, cost.link, upwards}];
    };
    const int64_t work_ns = costs.shape.micro_batches * cost.serialization_ns;
    const int64_t enter_forward_ns = path.forward_start_ns[boundary] + costs.forward_ns[boundary];
    const int64_t last_way_out_ns = costs.input_grad_ns[last_chunk] + path.after_backward_ns[last_chunk];
    link(above > below)
        .Add(enter_forward_ns, work_ns,
             cost.latency_ns + cost.overhead_ns + path.turn_ns - path.forward_start_ns[boundary + 1] + last_way_out_ns);
    const int64_t enter_backward_ns = path.turn_ns + last_way_out_ns - path.after_backward_ns[boundary + 1];
    link(below > above)
        .Add(enter_backward_ns, work_ns,
             cost.latency_ns + cost.overhead_ns + costs.input_grad_ns[boundary] + path.after_backward_ns[boundary]);
  }
  int64_t bound_ns = 0;
  for (const auto& [key, link] : links) {
    bound_ns = std::max(bound_ns, link.first_ns + link.work_ns + link.way_out_ns);
  }
  return bound_ns;
}

}  // namespace

int64_t LowerBoundNs(const PipelineCosts& costs) {
  const Path path = ShortestPath(costs);
  int64_t bound_ns = LinksBound(costs, path);
  for (int32_t device = 0; device < costs.shape.devices; ++device) {
    bound_ns = std::max(bound_ns, DeviceBound(costs, path, device));
  }
  return bound_ns + costs.epilogue_ns;
}

}  // namespace geopipe
