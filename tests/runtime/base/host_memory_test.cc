#include "runtime/base/host_memory.h"

#include <catch2/catch.hpp>
#include <optional>

#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// A folder that stands for the root of a host, with the files of /proc and /sys that a test writes.
class Host : public TempDir {
 public:
  std::optional<int64_t> Available() const { return AvailableMemoryBytes(path()); }
};

TEST_CASE("available memory: what the kernel says, where no group says less") {
  Host host;
  CHECK_FALSE(host.Available().has_value());
  host.Write("proc/meminfo", "MemTotal:  204800 kB\nMemFree: 1024 kB\nMemAvailable:    102400 kB\n");
  CHECK(host.Available() == 100 * kMiB);
  host.Write("proc/self/cgroup", "0::/\n");
  CHECK(host.Available() == 100 * kMiB);
  CHECK(AvailableMemoryBytes().has_value());  // of this one
}

TEST_CASE("available memory: the least that the groups of version 2 above this process leave") {
  Host host;
  host.Write("proc/meminfo", "MemAvailable: 102400 kB\n");
  host.Write("proc/self/cgroup", "0::/a/b\n");
  host.Write("sys/fs/cgroup/a/b/memory.max", "max\n");
  host.Write("sys/fs/cgroup/a/b/memory.current", "1048576\n");
  CHECK(host.Available() == 100 * kMiB);
  host.Write("sys/fs/cgroup/a/memory.max", "62914560\n");
  host.Write("sys/fs/cgroup/a/memory.current", "41943040\n");
  CHECK(host.Available() == 20 * kMiB);
  host.Write("sys/fs/cgroup/a/memory.stat", "anon 1\nfile 10485760\ninactive_file 5242880\nactive_file 5242880\n");
  CHECK(host.Available() == 25 * kMiB);
  host.Write("sys/fs/cgroup/a/b/memory.max", "1000\n");
  CHECK(host.Available() == 0);
}

TEST_CASE("available memory: a group of version 1, whose limit may be beyond any memory") {
  Host host;
  host.Write("proc/meminfo", "MemAvailable: 102400 kB\n");
  host.Write("proc/self/cgroup", "7:cpu,cpuacct:/x\n4:memory:/job\n0::/\n");
  host.Write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n");
  host.Write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "1048576\n");
  CHECK(host.Available() == 100 * kMiB);
  host.Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "31457280\n");
  host.Write("sys/fs/cgroup/memory/memory.usage_in_bytes", "20971520\n");
  host.Write("sys/fs/cgroup/memory/memory.stat", "total_inactive_file 1048576\n");
  CHECK(host.Available() == 11 * kMiB);
}

}  // namespace
}  // namespace geopipe
