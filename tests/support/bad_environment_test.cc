#include "tests/support/bad_environment.h"

#include <catch2/catch.hpp>
#include <string>

#include "runtime/base/clock.h"
#include "runtime/base/files.h"
#include "runtime/base/process.h"
#include "tests/support/durations.h"
#include "tests/support/required.h"

namespace geopipe {
namespace {

// Output of a shell in the environment.
std::string Said(const BadEnvironment& environment, const std::filesystem::path& folder, const std::string& script) {
  ProcessSpec spec;
  spec.program = "/bin/sh";
  spec.args = {"-c", script, folder.string()};
  spec.environment = environment.Variables();
  spec.environment.emplace_back("LC_ALL", "C");
  spec.stdout_path = spec.stderr_path = folder / "said";
  std::filesystem::remove(spec.stdout_path);
  REQUIRE(Required(Process::Start(spec)).Wait(60 * kSecond).has_value());
  return Required(ReadFile(spec.stdout_path, size_t{1} << 20));
}

TEST_CASE("calls fail while the environment is bad, those of the disk's files alone, and not before or after") {
  const TempFolder folder = Required(TempFolder::Create("geopipe-bad-environment-"));
  const std::filesystem::path file = folder.path() / "file";
  REQUIRE(WriteFileAtomically(file, "words\n").ok());
  const auto environment = Required(BadEnvironment::Create(folder.path() / "page", {folder.path()}));
  const int64_t soon_ns = Clock::Real().NowNs() + 600 * kSecond;
  const std::string read = "cat $0/file; head -c 0 /dev/zero && echo elsewhere";
  CHECK(Said(*environment, folder.path(), read) == "words\nelsewhere\n");
  environment->Begin(Lack::kEio, soon_ns);
  CHECK(Said(*environment, folder.path(), read).find("file: Input/output error\nelsewhere\n") != std::string::npos);
  CHECK(environment->failed(Lack::kEio) == 1);
  environment->End();
  CHECK(environment->failed(Lack::kEstale) == 0);
  environment->Begin(Lack::kEstale, soon_ns);
  CHECK(Said(*environment, folder.path(), "echo new > $0/new").find("new: Stale file handle") != std::string::npos);
  CHECK_FALSE(std::filesystem::exists(folder.path() / "new"));
  environment->Begin(Lack::kEstale, Clock::Real().NowNs() - 1);  // is over
  CHECK(Said(*environment, folder.path(), read) == "words\nelsewhere\n");
  environment->Begin(Lack::kDescriptors, soon_ns);
  CHECK(Said(*environment, folder.path(), "cat $0/file").find("file: Too many open files") != std::string::npos);
  environment->End();
  environment->Begin(Lack::kFork, soon_ns);
  CHECK(Said(*environment, folder.path(), "(echo words; echo more)").find("words") == std::string::npos);
  CHECK(environment->failed(Lack::kFork) > 0);
  environment->End();
  CHECK(Said(*environment, folder.path(), read) == "words\nelsewhere\n");
}

}  // namespace
}  // namespace geopipe
