#include "coordinator/cli/playground/playground_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "optimizer/base/quantities.h"
#include "optimizer/model/capabilities.h"
#include "optimizer/model/memory_model.h"
#include "optimizer/model/plan/plan_memory.h"
#include "optimizer/model/plan/rank_memory.h"

namespace geopipe {
namespace {

absl::Status TooLittle(int64_t workers, int64_t needed_bytes, std::string_view of_what, int64_t available_bytes,
                       std::string_view remedy) {
  return absl::ResourceExhaustedError(fmt::format(
      "{} {} {} here{}, and {} are free; {}, or free memory on this host", Counted(workers, "worker"),
      workers == 1 ? "needs" : "need", HumanBytes(needed_bytes), of_what, HumanBytes(available_bytes), remedy));
}

constexpr std::string_view kComputeLess =
    "rehearse it with --backend modelled, which computes nothing, or give it a smaller model";

// Bytes of weights, gradients and AdamW's states on devices and hosts, each counted once, however ranks divide them.
int64_t ModelStateBytes(const JobSpec& job) {
  const ExecutionConfig config{.precision = job.precision};
  const StageMemory memory = MemoryOfStage(
      job.model, {.first = 0, .last = job.model.num_hidden_layers - 1, .has_embedding = true, .has_head = true},
      config);
  return memory.model_state_bytes() + memory.host_bytes;
}

// Most bytes of boundary messages that one rank holds, per pipeline rank.
std::vector<int64_t> MessagesOfRanks(const JobSpec& job, const Plan& plan, const Schedule& schedule) {
  const std::vector<StageNeeds> needs = NeedsOfPlan(job, plan);
  const std::vector<StageFlow> flows = FlowsOf(InFlightOfSchedule(schedule), plan.comm);
  std::vector<int64_t> bytes(static_cast<size_t>(plan.grid.pipeline), 0);
  for (size_t stage = 0; stage < needs.size(); ++stage) {
    bytes[plan.stages[stage].pipeline_rank] +=
        needs[stage].MostBoundaryMessages(flows[stage]) * needs[stage].message_bytes;
  }
  return bytes;
}

}  // namespace

absl::Status CheckHostHolds(const JobSpec& job, BackendKind backend, const PlaygroundLayout& layout,
                            int64_t available_bytes) {
  const bool computes = CapabilitiesOf(backend).computes;
  const int64_t processes_bytes =
      kCoordinatorBytes + std::ssize(layout.nodes) * kAgentBytes + layout.devices() * kWorkerBytes;
  const int64_t states_bytes = computes && !CapabilitiesOf(backend).own_memory ? ModelStateBytes(job) : 0;
  const int64_t needed_bytes = processes_bytes + states_bytes;
  if (needed_bytes <= available_bytes) {
    return absl::OkStatus();
  }
  return states_bytes > 0
             ? TooLittle(
                   layout.devices(), needed_bytes,
                   fmt::format(" at least, of which one copy of the model's states takes {}", HumanBytes(states_bytes)),
                   available_bytes, kComputeLess)
             : TooLittle(layout.devices(), needed_bytes, "", available_bytes, "describe a cluster of fewer devices");
}

absl::Status CheckHostHolds(const JobSpec& job, BackendKind backend, const Plan& plan, const Schedule& schedule,
                            int64_t available_bytes) {
  const bool computes = CapabilitiesOf(backend).computes;
  std::vector<int64_t> of_ranks;
  if (computes) {
    const bool is_here = !CapabilitiesOf(backend).own_memory;
    for (const RankMemory& memory : MemoryOfRanks(JobOnBackend(job, backend), plan, schedule)) {
      of_ranks.push_back((is_here ? memory.peak : 0) + memory.host);
    }
  } else {
    of_ranks = MessagesOfRanks(job, plan, schedule);
  }
  int64_t needed_bytes = 0;
  for (const int64_t bytes : of_ranks) {
    needed_bytes += bytes * plan.grid.tensor * plan.grid.data;
  }
  if (needed_bytes <= available_bytes) {
    return absl::OkStatus();
  }
  return computes ? TooLittle(plan.grid.size(), needed_bytes, "", available_bytes, kComputeLess)
                  : TooLittle(plan.grid.size(), needed_bytes, " for the messages of this plan", available_bytes,
                              "leave the job smaller search.micro_batch_size or search.sequence_length, or describe a "
                              "cluster of fewer devices");
}

}  // namespace geopipe
