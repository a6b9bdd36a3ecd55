// Switches what is wrong with the environment of processes: open, socket and accept give EMFILE, fork gives EAGAIN, and
// files of some disks cannot be opened or read. The processes load bad_environment_preload.cc, and share a page with
// this one. That page itself, the loader's calls and raw system calls never fail.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/bad_environment_page.h"

namespace geopipe {

class BadEnvironment {
 public:
  // Makes the page, a file at `path`. The devices that these folders are on are the disks.
  static absl::StatusOr<std::unique_ptr<BadEnvironment>> Create(const std::filesystem::path& path,
                                                                const std::vector<std::filesystem::path>& disks);
  ~BadEnvironment();
  BadEnvironment(const BadEnvironment&) = delete;
  BadEnvironment& operator=(const BadEnvironment&) = delete;

  // Variables of the environment with which a process is started that is to have it.
  std::vector<std::pair<std::string, std::string>> Variables() const;
  void Begin(Lack lack, int64_t until_ns);
  void End();
  // Calls that have failed so far.
  int64_t failed(Lack lack) const;

 private:
  BadEnvironment(std::string path, BadEnvironmentPage* page) : path_(std::move(path)), page_(page) {}

  const std::string path_;
  BadEnvironmentPage* const page_;
};

}  // namespace geopipe
