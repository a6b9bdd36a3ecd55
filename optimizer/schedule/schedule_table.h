// Every kind of schedule, one row each: all that the rest of the tree knows of it. A new kind is its generator in a
// file of its own, a row here, and its number in proto/geopipe/v1/schedule.proto.
#pragma once

#include <absl/status/statusor.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "optimizer/schedule/schedule.h"
#include "optimizer/schedule/schedule_costs.h"

namespace geopipe {

// Numbered as on the wire (geopipe.v1.ScheduleKind).
enum class ScheduleKind : uint8_t {
  kGpipe = 1,
  kOneFOneB = 2,
  kGeoPipe = 3,
  kInterleaved = 4,
  kZbH1 = 5,
  kZbH2 = 6,
  kZbV = 7,
  kGeoPipeZb = 8,
  kAuto = 9,  // searched for (optimizer/scheduler), not made by rule
  kCsv = 10,  // given, action by action (csv.h); a plan says so, and nobody asks for it by name
};

// Constraint on the order of a schedule's actions; lower bounds rest on it (optimizer/plan).
enum class ScheduleOrder : uint8_t {
  kFree,
  kForwardsFirst,  // every device runs all its forwards before its first backward
  kOneByOne,       // one stage per device: P - 1 - p + advance(p) forwards, then one forward and one backward in turn
};

// One stage of a pipeline, for a count of its micro-batches in flight.
struct StageInFlight {
  int32_t devices = 0;
  int32_t stages = 0;
  int32_t stage = 0;
  int64_t micro_batches = 0;
  int64_t advance = 0;  // the sum of ΔN over the boundaries from this stage on
};

// Makes a compute-only schedule. Reads ΔN if the row says uses_delta_n, and costs if it says splits_backward.
// InvalidArgument, in one sentence, where the schedule is not defined. REQUIRES: the shape has the row's layout, and
// there is one ΔN per boundary (MakeSchedule checks both).
using ScheduleRule = absl::StatusOr<Schedule>(const PipelineShape& shape, std::span<const int32_t> boundary_delta_n,
                                              const ScheduleCosts& costs);

// All forwards, then all backwards, both in micro-batch order (GPipe, arXiv 1811.06965).
ScheduleRule MakeGpipe;

// Non-interleaved 1F1B (PipeDream-flush, arXiv 2006.09503): MakeGeoPipe with no crossing.
ScheduleRule MakeOneFOneB;

// GeoPipe (arXiv 2510.12064): stage p warms up with min(m, P-1-p + advance(p)) forwards, then alternates one forward
// and one backward, then drains; advance(p) is the sum of ΔN over crossing boundaries k >= p. ΔN is 0 where a boundary
// does not cross sites.
ScheduleRule MakeGeoPipe;

// Interleaved 1F1B (Megatron-LM, arXiv 2104.04473): v stages per device, and micro-batches in groups: a device runs the
// forwards of a group on its first stage, on its second, ..., backwards the other way round, and alternates after
// 2(P - 1 - p) + (v - 1)g forwards. With v = 1 it is 1F1B. There are max(1, m / P) groups of g = P where P divides m,
// as in Megatron-LM, else of up to g micro-batches that differ by one at most; where they do not differ, this is
// PyTorch's ScheduleInterleaved1F1B.
ScheduleRule MakeInterleaved;
int64_t InterleavedInFlight(const StageInFlight& at);

// The zero-bubble family runs every backward as I and W. Memory below is in activations of one stage and micro-batch,
// from F to I whole and from I to W by the part that W needs (wgrad_bytes / activation_bytes, but at least half).

// ZB-H1 (arXiv 2401.10241; with measured costs, ZB-1p): device p holds at most P - p micro-batches from F to I, as in
// 1F1B, and at most P from F to W, so no device needs more than the first one does under 1F1B (where W needs no more
// than the whole activation). With equal times the iteration is m t + (P - 1)(F + I - W), t = F + I + W.
ScheduleRule MakeZbH1;

// ZB-H2 (arXiv 2401.10241; with measured costs, ZB-2p): at most 2(P - p) micro-batches from F to I, and memory for at
// most 2P activations, twice what 1F1B needs.
ScheduleRule MakeZbH2;

// ZB-V (arXiv 2401.10241 and 2405.15362): memory for at most 2P activations of its (half as large) stages, that of
// 1F1B.
ScheduleRule MakeZbV;

// ΔN with split backward: geopipe's limit of P - p + advance(p) micro-batches from F to I on device p, within the
// memory of geopipe's first device, and weight gradients in the gaps that the crossings of `costs` leave. Under those
// costs (non-blocking, private links) it is never slower than geopipe with the same ΔN.
ScheduleRule MakeGeoPipeZb;

struct ScheduleRow {
  ScheduleKind kind;
  std::string_view name;  // in files, flags and reports
  StageLayout layout = StageLayout::kLinear;
  bool uses_delta_n = false;     // ΔN shapes it
  bool splits_backward = false;  // runs backwards as I and W, and so needs costs that can be split
  // True when the planner searches b, s, layers and ΔN for it by genome: it is cheap to make, needs no costs, and
  // in_flight is exact. Of the other kinds the planner tries a few points.
  bool searched = false;
  ScheduleOrder order = ScheduleOrder::kFree;
  // Most micro-batches that lie between F and the end of B or I of a stage; exact where the backward is not split.
  // Their activations are what a device holds, and as many messages are on their way over a boundary.
  int64_t (*in_flight)(const StageInFlight& at) = nullptr;
  ScheduleRule* make = nullptr;  // null: no rule makes it
};

// P - p + advance(p): micro-batches in flight where one forward and one backward alternate, each stage on a device of
// its own.
constexpr int64_t OneByOneInFlight(const StageInFlight& at) {
  return std::min(at.micro_batches, at.stages - at.stage + at.advance);
}

inline constexpr std::array kSchedules = {
    ScheduleRow{.kind = ScheduleKind::kGpipe,
                .name = "gpipe",
                .searched = true,
                .order = ScheduleOrder::kForwardsFirst,
                .in_flight = [](const StageInFlight& at) { return at.micro_batches; },
                .make = MakeGpipe},
    ScheduleRow{.kind = ScheduleKind::kOneFOneB,
                .name = "1f1b",
                .searched = true,
                .order = ScheduleOrder::kOneByOne,
                .in_flight = OneByOneInFlight,
                .make = MakeOneFOneB},
    ScheduleRow{.kind = ScheduleKind::kGeoPipe,
                .name = "geopipe",
                .uses_delta_n = true,
                .searched = true,
                .order = ScheduleOrder::kOneByOne,
                .in_flight = OneByOneInFlight,
                .make = MakeGeoPipe},
    ScheduleRow{.kind = ScheduleKind::kInterleaved,
                .name = "interleaved",
                .layout = StageLayout::kLooped,
                .in_flight = InterleavedInFlight,
                .make = MakeInterleaved},
    ScheduleRow{.kind = ScheduleKind::kZbH1,
                .name = "zb-h1",
                .splits_backward = true,
                .in_flight = OneByOneInFlight,
                .make = MakeZbH1},
    ScheduleRow{.kind = ScheduleKind::kZbH2,
                .name = "zb-h2",
                .splits_backward = true,
                .in_flight =
                    [](const StageInFlight& at) {
                      return std::min<int64_t>(at.micro_batches, int64_t{2} * (at.devices - at.stage));
                    },
                .make = MakeZbH2},
    ScheduleRow{.kind = ScheduleKind::kZbV,
                .name = "zb-v",
                .layout = StageLayout::kFolded,
                .splits_backward = true,
                .in_flight =
                    [](const StageInFlight& at) {
                      return std::min<int64_t>(at.micro_batches,
                                               at.stage < at.devices ? 2 * at.devices - 1 : at.devices);
                    },
                .make = MakeZbV},
    ScheduleRow{.kind = ScheduleKind::kGeoPipeZb,
                .name = "geopipe-zb",
                .uses_delta_n = true,
                .splits_backward = true,
                .in_flight = OneByOneInFlight,
                .make = MakeGeoPipeZb},
    ScheduleRow{.kind = ScheduleKind::kAuto, .name = "auto", .in_flight = OneByOneInFlight},
};

// Row of a schedule that is given; it is not among those that can be asked for.
inline constexpr ScheduleRow kGivenSchedule{.kind = ScheduleKind::kCsv, .name = "csv", .in_flight = OneByOneInFlight};

const ScheduleRow& RowOf(ScheduleKind kind);

// The row's in_flight of every stage.
std::vector<int64_t> InFlightOf(ScheduleKind kind, const PipelineShape& shape,
                                std::span<const int32_t> boundary_delta_n);

inline std::string_view ScheduleKindName(ScheduleKind kind) { return RowOf(kind).name; }
// InvalidArgument lists the known names.
absl::StatusOr<ScheduleKind> ParseScheduleKind(std::string_view name);
// Names of the rows in which `flag` is set, as in "geopipe, geopipe-zb"; of all without one.
std::string ScheduleNames(bool ScheduleRow::*flag = nullptr);

// The schedule of this kind. InvalidArgument, in one sentence: `shape` is invalid or has another layout, ΔN is not one
// non-negative number per boundary though the kind uses it, the generator is not defined for shape or costs, or no rule
// makes the kind.
absl::StatusOr<Schedule> MakeSchedule(ScheduleKind kind, const PipelineShape& shape,
                                      std::span<const int32_t> boundary_delta_n = {}, const ScheduleCosts& costs = {});

}  // namespace geopipe
