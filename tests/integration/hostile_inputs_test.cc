// Counts out what people and hostile files do to the programs: at least twenty inputs for each of five kinds of fault,
// all in tests/golden/hostile-inputs.json, each as a person would type it. A row has
//   kind   "crash": no program dies of it; "hang": it ends soon; "data loss": files keep their bytes;
//          "wrong acceptance": it is refused; "unclear": it is refused in exactly this sentence
//   name   the mistake
//   given  a shell's words that make the files, before the bytes are looked at; may be left out
//   run    a shell's words that run the programs
//   exit   the exit code
//   says   texts of standard error; of "unclear" all of its lines, of others parts; $PWD is the shell's folder
//   keeps  files that keep their bytes
// A shell begins in a folder of its own with a job, a topology, a case, data, a model and two checkpoints. $SILENT is
// the address of a server that accepts connections and never answers.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/integration/daemons.h"
#include "tests/runtime/checkpoint/written_checkpoint.h"

namespace geopipe {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSoonNs = 30'000'000'000;  // generous: each takes a fraction of a second
constexpr size_t kMinOfEachKind = 20;
constexpr size_t kMaxSentenceBytes = 600;

struct Input {
  std::string kind, name, given, run;
  int exit_code = 0;
  std::vector<std::string> says;
  std::vector<std::string> keeps;
};

std::vector<Input> AllInputs() {
  std::vector<Input> inputs;
  for (const nlohmann::json& row :
       nlohmann::json::parse(*ReadFile(SourcePath("tests/golden/hostile-inputs.json"), 1 << 20))) {
    inputs.push_back({.kind = row["kind"],
                      .name = row["name"],
                      .given = row.value("given", ""),
                      .run = row["run"],
                      .exit_code = row["exit"],
                      .says = row.value("says", std::vector<std::string>()),
                      .keeps = row.value("keeps", std::vector<std::string>())});
  }
  return inputs;
}

// Accepts connections, as its kernel does, and never answers.
class SilentServer {
 public:
  SilentServer() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    REQUIRE(bind(fd_.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0);
    REQUIRE(listen(fd_.get(), 16) == 0);
    REQUIRE(getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
    address_ = fmt::format("127.0.0.1:{}", ntohs(address.sin_port));
  }
  const std::string& address() const { return address_; }

 private:
  UniqueFd fd_;
  std::string address_;
};

void MakeTemplate(const fs::path& folder) {
  const auto write = [&](const std::string& name, const std::string& text) {
    REQUIRE(WriteFileAtomically(folder / name, text).ok());
  };
  std::string job = *ReadFile(SourcePath("tests/golden/jobs/mini.yaml"), 1 << 20);
  job.replace(job.find("../../../LICENSE"), 16, "text.txt");
  write("job.yaml", job);
  const size_t model = job.find("    hidden_size");
  write("hf.yaml", job.substr(0, model) +
                       "    init_from: model\n  data: {format: tokens, path: tokens.bin, dtype: uint16}\n" +
                       job.substr(job.find("  training:")));
  write("text.txt", ReadFile(SourcePath("LICENSE"), 1 << 20)->substr(0, 8000));
  std::string topology = "sites:\n";
  for (const char* site : {"north", "east", "west"}) {
    topology +=
        fmt::format("  - {{name: {}, device: {{memory: 1GiB, peak_flops: 50e9, memory_bandwidth: 20GB/s}}}}\n", site);
  }
  topology += "links:\n";
  for (const char* pair : {"north, east", "east, west", "north, west"}) {
    topology += fmt::format("  - {{between: [{}], latency: 3ms, bandwidth: 1Gbps}}\n", pair);
  }
  write("topology.yaml", topology);
  write("agent.yaml", "site: east\ncoordinator: 127.0.0.1:1\nstate_dir: state\ndevices: {memory: 1GiB}\n");
  fs::copy_file(SourcePath("tests/golden/cases/two-sites-20ms.yaml"), folder / "case.yaml");
  write("two.yaml", "devices: 2\nmicro_batches: 2\nforward_s: 0.01\nbackward_s: 0.02\n");
  write("schedule.csv", "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n");
  fs::create_directory(folder / "model");
  for (const char* name : {"config.json", "model.safetensors"}) {
    fs::copy_file(fs::path(SourcePath("tests/golden/engine/untied")) / name, folder / "model" / name);
  }
  fs::copy_file(SourcePath("tests/golden/engine/tokens.u16"), folder / "tokens.bin");
  for (const int64_t iteration : {1, 2}) {
    WrittenCheckpoint((folder / "ck").string(), SmallModel(1), iteration);
  }
}

CommandResult Shell(const fs::path& folder, const std::string& words, const Command::Environment& environment) {
  Command shell("/bin/sh", {"-c", fmt::format("cd '{}' || exit 99\n{}", folder.string(), words)}, environment);
  return shell.Finish(kSoonNs);
}

std::map<std::string, std::string> BytesOf(const fs::path& folder, const std::vector<std::string>& names) {
  std::map<std::string, std::string> bytes;
  for (const std::string& name : names) {
    bytes[name] = ReadFile(folder / name, 1 << 24).value_or("(cannot be read)");
  }
  return bytes;
}

void CheckInput(const Input& input, const fs::path& folder, const Command::Environment& environment) {
  INFO(input.kind << ": " << input.name << "\n" << input.given << "\n" << input.run);
  const CommandResult given = Shell(folder, "set -e\n" + input.given, environment);
  INFO(given.err);
  REQUIRE(given.exit_status.success());
  const auto before = BytesOf(folder, input.keeps);
  const CommandResult result = Shell(folder, input.run, environment);
  CAPTURE(result.out, result.err);
  CHECK(result.exit_status.signal == 0);
  CHECK(result.exit_status.exit_code == input.exit_code);
  CHECK((BytesOf(folder, input.keeps) == before));
  std::string err = result.err;
  for (size_t at = err.find(folder.string()); at != std::string::npos; at = err.find(folder.string())) {
    err.replace(at, folder.string().size(), "$PWD");
  }
  if (input.kind == "unclear") {
    CHECK(err == fmt::format("{}\n", fmt::join(input.says, "\n")));
  }
  for (const std::string& text : input.says) {
    INFO(text);
    CHECK(err.find(text) != std::string::npos);
  }
  CHECK(err.size() <= kMaxSentenceBytes);
  CHECK(std::ranges::all_of(err, [](char c) { return static_cast<unsigned char>(c) >= 0x20 || c == '\n'; }));
}

TEST_CASE("hostile inputs: twenty of each kind are met as they should be") {
  const std::vector<Input> inputs = AllInputs();
  std::map<std::string, size_t> counts;
  std::map<std::string, size_t> names;
  for (const Input& input : inputs) {
    ++counts[input.kind];
    CHECK(++names[input.name] == 1);
    CHECK((input.kind != "data loss" || !input.keeps.empty()));
    CHECK((input.kind != "wrong acceptance" || (input.exit_code == 2 && !input.says.empty())));
    CHECK((input.kind != "unclear" || !input.says.empty()));
  }
  CHECK(counts.size() == 5);
  for (const char* kind : {"crash", "hang", "data loss", "wrong acceptance", "unclear"}) {
    CAPTURE(kind);
    CHECK(counts[kind] >= kMinOfEachKind);
  }

  const TempFolder made = TestFolder();
  MakeTemplate(made.path());
  const SilentServer silent;
  const char* path = std::getenv("PATH");
  const Command::Environment environment{
      {"PATH", fmt::format("{}/bin:{}", GEOPIPE_BINARY_DIR, path == nullptr ? "/usr/bin:/bin" : path)},
      {"SILENT", silent.address()},
      {"LC_ALL", "C"}};
  for (const Input& input : inputs) {
    const TempFolder folder = TestFolder();
    fs::copy(made.path(), folder.path(), fs::copy_options::recursive);
    CheckInput(input, folder.path(), environment);
  }
}

}  // namespace
}  // namespace geopipe
