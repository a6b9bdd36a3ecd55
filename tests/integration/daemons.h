// Starts programs one by one, as an administrator does, and waits for lines in their output.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/command.h"

namespace geopipe {

// REQUIREs that it can be made.
TempFolder TestFolder();

// The files of one case. REQUIREs that each can be made and changed.
class CaseFolder {
 public:
  std::string Path(const std::string& name) const { return (folder_.path() / name).string(); }
  // Returns the path.
  std::string Write(const std::string& name, std::string_view text) const;
  // Replaces the first `from`, which must be there.
  void Change(const std::string& name, const std::string& from, const std::string& to) const;
  const TempFolder& folder() const { return folder_; }

 private:
  TempFolder folder_ = TestFolder();
};

// A topology of the sites of tests/golden/jobs/mini.yaml.
inline constexpr std::string_view kThreeSites =
    "sites:\n"
    "  - {name: north, device: {memory: 1GiB, peak_flops: 50e9, memory_bandwidth: 20GB/s}}\n"
    "  - {name: east, device: {memory: 1GiB, peak_flops: 50e9, memory_bandwidth: 20GB/s}}\n"
    "  - {name: west, device: {memory: 1GiB, peak_flops: 50e9, memory_bandwidth: 20GB/s}}\n"
    "links:\n"
    "  - {between: [north, east], latency: 3ms, bandwidth: 1Gbps}\n"
    "  - {between: [east, west], latency: 3ms, bandwidth: 1Gbps}\n"
    "  - {between: [north, west], latency: 3ms, bandwidth: 1Gbps}\n";

// Waits until `done`, looking every 20 ms. REQUIREs that this comes within a minute, and before the child's end.
void WaitUntil(Command& command, const std::function<bool()>& done);

// Waits until the child's standard error holds `text`.
void WaitForWords(Command& command, const std::string& text);

// CHECKs exit code and standard error: it begins with `begin` and holds every one of `words`.
void CheckEnded(const CommandResult& result, int exit_code, const std::string& begin,
                const std::vector<std::string>& words);

// A coordinator on a free port of this machine.
class RunningCoordinator {
 public:
  // REQUIREs that it listens. `more`: further arguments.
  explicit RunningCoordinator(const std::string& state_dir, std::vector<std::string> more = {});

  // "127.0.0.1:PORT".
  const std::string& endpoint() const { return endpoint_; }
  Command& command() { return command_; }
  // geopipectl with these arguments and --server.
  CommandResult Ask(std::vector<std::string> args) const;

 private:
  Command command_;
  std::string endpoint_;
};

// Arguments of an agent of one device.
std::vector<std::string> AgentArgs(const std::string& coordinator, const std::string& site,
                                   const std::string& state_dir, const std::string& memory = "64MiB");

// A copy of a file of the source tree in `folder` with one text replaced, which must be there.
std::string ChangedCopy(const TempFolder& folder, const std::string& source, const std::string& name,
                        const std::string& from, const std::string& to);

// The job of tests/golden/jobs/mini.yaml as job.yaml in `folder`, with one text replaced.
std::string ChangedJob(const TempFolder& folder, const std::string& from, const std::string& to);

}  // namespace geopipe
