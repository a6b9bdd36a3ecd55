// One rank of a group on this host, as a process of its own, for tests. Usage:
//   collective_rank RANK SIZE NAME SECRET WHAT OUT-FD
// WHAT: sum    sums 300,001 elements twice over and prints the checksum of the result
//       die    after the first sum kills itself
//       late   after the first sum waits for a rank that does not come, and prints the error
//       misuse gathers into an operand of a wrong size
#include <fmt/format.h>

#include <csignal>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/crc32c.h"
#include "runtime/base/process.h"
#include "runtime/collective/host_communicator.h"
#include "tests/support/durations.h"

namespace geopipe {
namespace {

absl::StatusOr<uint32_t> SumOnce(Communicator& communicator) {
  std::vector<float> values(300'001);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i % 1009) * (1.0F / static_cast<float>(communicator.rank() + 3));
  }
  const Elements data{.data = reinterpret_cast<std::byte*>(values.data()),
                      .count = static_cast<int64_t>(values.size())};
  const absl::StatusOr<Completion> done = communicator.AllReduce(ReduceOp::kSum, data, data);
  if (!done.ok()) {
    return done.status();
  }
  return Crc32c(std::as_bytes(std::span(values)));
}

std::string Run(int32_t rank, int32_t size, const std::string& name, const std::string& secret, std::string_view what) {
  Allocator allocator(int64_t{1} << 30);
  auto communicator = MakeSharedMemoryCommunicator(
      {.rank = rank, .size = size, .longest_wait_ns = what == "late" ? kSecond : 30 * kSecond, .allocator = &allocator},
      {.name = name, .secret = secret, .join_deadline_ns = Clock::Real().NowNs() + 10 * kSecond});
  if (!communicator.ok()) {
    return communicator.status().ToString();
  }
  if (what == "misuse") {
    std::vector<float> values(8);
    const Elements data{.data = reinterpret_cast<std::byte*>(values.data()), .count = 8};
    static_cast<void>((*communicator)->AllGather(ConstElements{.data = data.data, .count = 5}, data));
  }
  std::string text;
  for (int i = 0; i < 2; ++i) {
    const absl::StatusOr<uint32_t> sum = SumOnce(**communicator);
    text += sum.ok() ? fmt::format("{:08x} ", *sum) : sum.status().ToString();
    if (what == "die") {
      raise(SIGKILL);
    }
  }
  return text;
}

}  // namespace
}  // namespace geopipe

int main(int argc, char** argv) {
  if (argc != 7) {
    return 2;
  }
  const std::string text = geopipe::Run(std::atoi(argv[1]), std::atoi(argv[2]), argv[3], argv[4], argv[5]);
  return geopipe::NotifyReady(std::atoi(argv[6]), text).ok() ? 0 : 1;
}
