#include "coordinator/cli/files/output_files.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <system_error>
#include <utility>

#include "optimizer/base/status_macros.h"
#include "runtime/base/files.h"
#include "runtime/base/output.h"
#include "runtime/data/text_corpus.h"

namespace geopipe {
namespace {

namespace fs = std::filesystem;

// Tells files apart: by the file itself where there is one, else by where it would be.
struct Identity {
  bool is_there = false;
  bool is_shared = false;  // a device or a pipe, which keeps nothing
  dev_t device = 0;
  ino_t inode = 0;
  fs::path place;

  bool Same(const Identity& other) const {
    if (is_shared || other.is_shared) {
      return false;
    }
    return is_there && other.is_there ? device == other.device && inode == other.inode : place == other.place;
  }
};

Identity IdentityOf(const fs::path& path, bool is_input) {
  Identity identity;
  struct stat info {};
  const bool is_stream = path == kStandardStream;
  if (is_stream && !is_input) {
    identity.place = path;  // no file has this place, since others are whole
    return identity;
  }
  identity.is_there = (is_stream ? fstat(STDIN_FILENO, &info) : stat(path.c_str(), &info)) == 0;
  identity.is_shared = identity.is_there && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode);
  identity.device = info.st_dev;
  identity.inode = info.st_ino;
  std::error_code error;
  fs::path whole = fs::absolute(path, error);
  constexpr int kMaxLinks = 40;                                          // as the kernel follows
  for (int i = 0; i < kMaxLinks && fs::is_symlink(whole, error); ++i) {  // what it points to need not be there
    whole = whole.parent_path() / fs::read_symlink(whole, error);
  }
  identity.place = fs::weakly_canonical(whole, error);
  if (error) {
    identity.place = whole.lexically_normal();
  }
  return identity;
}

absl::Status CheckPlace(const NamedFile& output) {
  const Identity identity = IdentityOf(output.path, /*is_input=*/false);
  std::error_code error;
  if (output.path == kStandardStream || identity.is_shared) {
    return absl::OkStatus();
  }
  if (fs::is_directory(output.path, error)) {
    return absl::InvalidArgumentError(
        fmt::format("{} {} is a folder; name a file in it", output.name, output.path.string()));
  }
  const fs::path folder = identity.place.parent_path();
  if (!fs::is_directory(folder, error)) {
    return absl::InvalidArgumentError(fmt::format("{} {}: there is no folder {}; make it first, or choose another",
                                                  output.name, output.path.string(), folder.string()));
  }
  if (access(folder.c_str(), W_OK) != 0) {
    return absl::InvalidArgumentError(fmt::format("{} {}: nothing can be written in {} ({}); choose another folder",
                                                  output.name, output.path.string(), folder.string(),
                                                  std::strerror(errno)));
  }
  return absl::OkStatus();
}

// A list that names no files, or names them wrongly, is told by whoever reads it.
std::vector<std::string> DataFilesOf(const DataSpec& data) {
  if (data.format != DataFormat::kText) {
    return data.paths;
  }
  absl::StatusOr<std::vector<std::string>> files = TextFiles(data.paths);
  return files.ok() ? *std::move(files) : data.paths;
}

}  // namespace

absl::Status CheckOutputs(std::span<const NamedFile> inputs, std::span<const NamedFile> outputs) {
  std::vector<std::pair<const NamedFile*, Identity>> seen;
  for (const NamedFile& input : inputs) {
    if (!input.path.empty()) {
      seen.emplace_back(&input, IdentityOf(input.path, /*is_input=*/true));
    }
  }
  const size_t read = seen.size();
  for (const NamedFile& output : outputs) {
    if (output.path.empty()) {
      continue;
    }
    const Identity identity = IdentityOf(output.path, /*is_input=*/false);
    for (size_t i = 0; i < seen.size(); ++i) {
      if (identity.Same(seen[i].second)) {
        return absl::InvalidArgumentError(fmt::format("{} {} is the file of {}, which {}; choose another", output.name,
                                                      output.path.string(), seen[i].first->name,
                                                      i < read ? "would be lost" : "is written there too"));
      }
    }
    seen.emplace_back(&output, identity);
  }
  return absl::OkStatus();
}

absl::Status CheckPlaces(std::span<const NamedFile> outputs) {
  for (const NamedFile& output : outputs) {
    if (!output.path.empty()) {
      GP_RETURN_IF_ERROR(CheckPlace(output));
    }
  }
  return absl::OkStatus();
}

std::vector<NamedFile> FilesOfJob(const JobSpec& job) {
  std::vector<NamedFile> files;
  for (const std::string& path : DataFilesOf(job.data)) {
    files.push_back({"the job's data.path", path});
  }
  if (job.init_from.empty()) {
    return files;
  }
  files.push_back({"the job's model.init_from", fs::path(job.init_from) / "config.json"});
  std::error_code error;
  for (auto entry = fs::directory_iterator(job.init_from, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    files.push_back({"the job's model.init_from", entry->path()});
  }
  return files;
}

absl::Status WriteOutputFile(const std::string& path, std::string_view content) {
  if (path != kStandardStream) {
    return WriteFileAtomically(path, content);
  }
  WriteTo(stdout, content);
  return absl::OkStatus();  // what it does not take is told at the end
}

}  // namespace geopipe
