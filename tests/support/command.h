// Runs a program of this build and keeps what it printed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/files.h"
#include "runtime/base/process.h"

namespace geopipe {

struct CommandResult {
  ExitStatus exit_status;
  std::string out;
  std::string err;
};

// A child of the test with its output in files of a folder of its own. Ends with the test.
class Command {
 public:
  using Environment = std::vector<std::pair<std::string, std::string>>;

  // `program` is a name in <build>/bin or a path, `environment` is added to the test's. REQUIREs that it starts.
  Command(const std::string& program, std::vector<std::string> args, Environment environment = {});

  Process& process() { return process_; }
  // Standard output so far.
  std::string out() const;
  std::string err() const;
  // Waits for its end. REQUIREs that it comes within `timeout_ns`.
  CommandResult Finish(int64_t timeout_ns);

 private:
  TempFolder folder_;
  Process process_;
};

// Starts it, waits at most two minutes, returns everything.
CommandResult RunCommand(const std::string& program, std::vector<std::string> args);

// A file of the source tree.
std::string SourcePath(const std::string& relative);

}  // namespace geopipe
