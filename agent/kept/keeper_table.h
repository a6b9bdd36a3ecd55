// The keeper's table on disk, keeper.table of the state folder: what runs and what has ended, for the next keeper.
#pragma once

#include <absl/status/status.h>

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "geopipe/v1/keeper.pb.h"
#include "runtime/base/unique_fd.h"

namespace geopipe::agent {

std::string KeeperTablePath(const std::string& state_dir);

// DataLoss: the table of what runs cannot be read, so that workers of an earlier keeper would not be known.
absl::Status CheckKeeperTable(const std::string& state_dir);

// The table that an earlier keeper has left; an empty one where there is none, and where it cannot be read, which is
// logged.
v1::KeeperTable ReadKeeperTable(const std::string& state_dir);

// Writes tables on a thread of its own, each as soon as the one before is written; of several that wait the latest.
// Used by one thread.
class TableWriter {
 public:
  struct Written {
    uint64_t version = 0;
    absl::Status status;
  };

  explicit TableWriter(std::string path);
  // Waits for the last table.
  ~TableWriter();
  TableWriter(const TableWriter&) = delete;
  TableWriter& operator=(const TableWriter&) = delete;

  void Write(uint64_t version, std::string table);
  // Readable when Take has something new.
  int fd() const { return done_.get(); }
  Written Take();

 private:
  void Loop();

  const std::string path_;
  const UniqueFd done_;  // eventfd
  std::mutex mutex_;
  std::condition_variable more_;
  std::optional<std::pair<uint64_t, std::string>> waiting_;
  Written written_;
  bool closed_ = false;
  std::thread thread_;
};

}  // namespace geopipe::agent
