// All-reduces of fp32 among processes of this host: ours through shared memory, Gloo's over TCP where it is installed
// (packages.txt, group bench), in turns, beside plain memcpy in as many processes at once. Usage:
//   collective_bench [ranks] [repetitions]
// Of each size the median time; GB/s: operand bytes per time and rank; of memcpy: an all-reduce must at least read each
// byte of its operand and write each of its result, so takes no less than memcpy of as much, on as many ranks at once.
// Run it by hand on a quiet machine.
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "optimizer/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/base/files.h"
#include "runtime/base/ids.h"
#include "runtime/collective/host_communicator.h"
#include "tests/bench/gloo_all_reduce.h"

namespace geopipe {
namespace {

constexpr int64_t kKiB = 1024;
constexpr int64_t kMiB = 1024 * kKiB;
constexpr int64_t kGlooCalls = 20;  // of small operands, which take milliseconds where acknowledgements are delayed
constexpr int64_t kSetUpNs = 30'000'000'000;

struct Setting {
  int32_t ranks = 4;
  int64_t repetitions = 15;
  std::string secret;
  std::string folder;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class RankBench {
 public:
  RankBench(const Setting& setting, int32_t rank) : setting_(setting), memory_(int64_t{1} << 30) {
    auto communicator = MakeSharedMemoryCommunicator(
        {.rank = rank, .size = setting.ranks, .allocator = &memory_},
        {.name = "bench", .secret = setting.secret, .join_deadline_ns = Clock::Real().NowNs() + kSetUpNs});
    GP_CHECK(communicator.ok(), "{}", communicator.status().ToString());
    communicator_ = *std::move(communicator);
    gloo_ = ConnectGloo(setting.folder, rank, setting.ranks);
  }

  void Run() {
    Say("{} ranks, {} processors\n{:>9} {:>10} {:>10} {:>8} {:>10} {:>8} {:>10} {:>10}\n", setting_.ranks,
        sysconf(_SC_NPROCESSORS_ONLN), "bytes", "ours/us", "gloo/us", "ratio", "ours/GB/s", "gloo", "memcpy",
        "of memcpy");
    for (const int64_t bytes : {int64_t{8}, 4 * kKiB, 16 * kKiB, 64 * kKiB, 256 * kKiB, kMiB, 16 * kMiB, 64 * kMiB}) {
      Compare(bytes);
    }
  }

 private:
  template <class... Args>
  void Say(fmt::format_string<Args...> format, Args&&... args) {
    if (communicator_->rank() == 0) {
      fmt::print(format, std::forward<Args>(args)...);
      std::fflush(stdout);
    }
  }

  // Seconds of one call on this rank, of several in a row after all have come.
  double Time(int64_t calls, const std::function<void()>& call) {
    GP_CHECK(communicator_->Barrier().ok());
    const int64_t begun_ns = Clock::Real().NowNs();
    for (int64_t i = 0; i < calls; ++i) {
      call();
    }
    GP_CHECK(communicator_->Barrier().ok());  // the slowest counts
    return static_cast<double>(Clock::Real().NowNs() - begun_ns) * 1e-9 / static_cast<double>(calls);
  }

  void Compare(int64_t bytes) {
    const int64_t count = bytes / 4;
    std::vector<float> in(static_cast<size_t>(count), 1.0F);
    std::vector<float> out(in.size());
    std::vector<float> gloo_data(in.size(), 1.0F);
    const ConstElements from{.data = reinterpret_cast<std::byte*>(in.data()), .count = count};
    const Elements to{.data = reinterpret_cast<std::byte*>(out.data()), .count = count};
    const auto ours = [&] { GP_CHECK(communicator_->AllReduce(ReduceOp::kSum, from, to).ok()); };
    const auto gloos = [&] { gloo_(gloo_data.data(), count); };
    const auto copies = [&] { std::memcpy(out.data(), in.data(), static_cast<size_t>(bytes)); };
    // Enough in a row for the barriers not to count.
    const int64_t calls = std::clamp<int64_t>(16 * kMiB / std::max<int64_t>(bytes, 16 * kKiB), 1, 1000);
    std::vector<double> our_times;
    std::vector<double> gloo_times;
    std::vector<double> copy_times;
    for (int64_t i = -1; i < setting_.repetitions; ++i) {  // the first to warm up
      const double our_time = Time(calls, ours);
      const double gloo_time = gloo_ == nullptr ? 0 : Time(std::min(calls, kGlooCalls), gloos);
      std::ranges::fill(gloo_data, 1.0F);
      const double copy_time = Time(calls, copies);
      if (i >= 0) {
        our_times.push_back(our_time);
        gloo_times.push_back(gloo_time);
        copy_times.push_back(copy_time);
      }
    }
    ours();
    GP_CHECK(out.front() == static_cast<float>(setting_.ranks) && out.back() == out.front());
    const double our_time = Median(our_times);
    const double gloo_time = Median(gloo_times);
    const double copy_time = Median(copy_times);
    const double gigabytes = static_cast<double>(bytes) * 1e-9;
    Say("{:>9} {:>10.1f} {:>10.1f} {:>8.2f} {:>10.3f} {:>8.3f} {:>10.2f} {:>9.0f}%\n", bytes, our_time * 1e6,
        gloo_time * 1e6, gloo_time / our_time, gigabytes / our_time, gloo_time > 0 ? gigabytes / gloo_time : 0,
        gigabytes / copy_time, 100 * copy_time / our_time);
  }

  const Setting setting_;
  Allocator memory_;
  std::unique_ptr<Communicator> communicator_;
  std::function<void(float*, int64_t)> gloo_;
};

int Main(int argc, char** argv) {
  Setting setting;
  setting.ranks = argc > 1 ? std::atoi(argv[1]) : setting.ranks;
  setting.repetitions = argc > 2 ? std::atoi(argv[2]) : setting.repetitions;
  setting.secret = RandomBytes(32);
  const auto folder = TempFolder::Create("collective-bench");
  GP_CHECK(folder.ok(), "{}", folder.status().ToString());
  setting.folder = folder->path();
  std::vector<pid_t> children;
  for (int32_t rank = 0; rank < setting.ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      RankBench(setting, rank).Run();
      _exit(0);
    }
    children.push_back(child);
  }
  int result = 0;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    result = status == 0 ? result : 1;
  }
  return result;
}

}  // namespace
}  // namespace geopipe

int main(int argc, char** argv) { return geopipe::Main(argc, argv); }
