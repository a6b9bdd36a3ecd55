#include "runtime/base/host_memory.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <string>

#include "runtime/base/files.h"

namespace geopipe {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// A host that says what its files here say.
class Host {
 public:
  void Say(const std::string& file, const std::string& text) const {
    REQUIRE(MakeFolder((folder_.path() / file).parent_path()).ok());
    REQUIRE(WriteFileAtomically(folder_.path() / file, text).ok());
  }
  std::optional<int64_t> Available() const { return AvailableMemoryBytes(folder_.path()); }

 private:
  TempFolder folder_ = *TempFolder::Create("geopipe-host-");
};

TEST_CASE("available memory: what the kernel says, where no group says less") {
  Host host;
  CHECK_FALSE(host.Available().has_value());
  host.Say("proc/meminfo", "MemTotal:  204800 kB\nMemFree: 1024 kB\nMemAvailable:    102400 kB\n");
  CHECK(host.Available() == 100 * kMiB);
  host.Say("proc/self/cgroup", "0::/\n");
  CHECK(host.Available() == 100 * kMiB);
  CHECK(AvailableMemoryBytes().has_value());  // of this one
}

TEST_CASE("available memory: the least that the groups of version 2 above this process leave") {
  Host host;
  host.Say("proc/meminfo", "MemAvailable: 102400 kB\n");
  host.Say("proc/self/cgroup", "0::/a/b\n");
  host.Say("sys/fs/cgroup/a/b/memory.max", "max\n");
  host.Say("sys/fs/cgroup/a/b/memory.current", "1048576\n");
  CHECK(host.Available() == 100 * kMiB);
  host.Say("sys/fs/cgroup/a/memory.max", "62914560\n");
  host.Say("sys/fs/cgroup/a/memory.current", "41943040\n");
  CHECK(host.Available() == 20 * kMiB);
  host.Say("sys/fs/cgroup/a/memory.stat", "anon 1\nfile 10485760\ninactive_file 5242880\nactive_file 5242880\n");
  CHECK(host.Available() == 25 * kMiB);
  host.Say("sys/fs/cgroup/a/b/memory.max", "1000\n");
  CHECK(host.Available() == 0);
}

TEST_CASE("available memory: a group of version 1, whose limit may be beyond any memory") {
  Host host;
  host.Say("proc/meminfo", "MemAvailable: 102400 kB\n");
  host.Say("proc/self/cgroup", "7:cpu,cpuacct:/x\n4:memory:/job\n0::/\n");
  host.Say("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n");
  host.Say("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "1048576\n");
  CHECK(host.Available() == 100 * kMiB);
  host.Say("sys/fs/cgroup/memory/memory.limit_in_bytes", "31457280\n");
  host.Say("sys/fs/cgroup/memory/memory.usage_in_bytes", "20971520\n");
  host.Say("sys/fs/cgroup/memory/memory.stat", "total_inactive_file 1048576\n");
  CHECK(host.Available() == 11 * kMiB);
}

}  // namespace
}  // namespace geopipe
