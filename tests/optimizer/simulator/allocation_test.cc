// After warm-up the simulator allocates nothing, however many actions it runs. Counts every call of operator new of
// this program.
#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <new>
#include <string>

#include "optimizer/schedule/schedule_table.h"
#include "optimizer/simulator/prepared_simulator.h"

namespace {

std::atomic<int64_t> allocations{0};

}  // namespace

void* operator new(size_t size) {
  ++allocations;
  if (void* const memory = std::malloc(size == 0 ? 1 : size)) {
    return memory;
  }
  throw std::bad_alloc();
}

void* operator new(size_t size, std::align_val_t alignment) {
  ++allocations;
  const auto align = static_cast<size_t>(alignment);
  if (void* const memory = std::aligned_alloc(align, (size + align - 1) / align * align)) {
    return memory;
  }
  throw std::bad_alloc();
}

// A sanitizer has one of its own, whose memory would come back to the delete below.
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(size == 0 ? 1 : size);
}

void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

namespace geopipe {
namespace {

PipelineCosts Costs(bool shared, CommMode comm) {
  PipelineCosts costs;
  costs.shape = PipelineShape::Linear(8, 500);
  costs.comm = comm;
  costs.forward_ns.assign(8, 30);
  costs.input_grad_ns.assign(8, 60);
  costs.boundaries.resize(7);
  for (const int32_t boundary : {2, 5}) {
    costs.boundaries[boundary].crosses = true;
    costs.boundaries[boundary].latency_ns = 20;
    costs.boundaries[boundary].serialization_ns = 5;
    if (shared) {
      costs.boundaries[boundary].link.push_back('w');
    }
  }
  costs.memory = MemoryCosts{std::vector<int64_t>(8, 9), std::vector<int64_t>(8, 1), std::vector<int64_t>(8, 1),
                             std::vector<int64_t>(8, 0)};
  return costs;
}

TEST_CASE("after one run the simulator allocates nothing") {
  for (const bool shared : {false, true}) {
    for (const CommMode comm : {CommMode::kNonBlocking, CommMode::kBlocking, CommMode::kRendezvous}) {
      const PipelineCosts costs = Costs(shared, comm);
      const Schedule schedule = MakeSchedule(ScheduleKind::kOneFOneB, costs.shape).value();
      const int64_t before_warm_up = allocations;
      PreparedSimulator simulator(costs);
      const int64_t iteration_ns = simulator.Run(schedule).value().iteration_ns;
      const int64_t warm = allocations;
      int64_t again_ns = 0;
      for (int run = 0; run < 3; ++run) {
        again_ns = simulator.Run(schedule).value().iteration_ns;
      }
      const int64_t after = allocations;
      CAPTURE(shared, CommModeName(comm));
      CHECK(warm > before_warm_up);  // the count works
      CHECK(after == warm);
      CHECK(again_ns == iteration_ns);
    }
  }
}

}  // namespace
}  // namespace geopipe
