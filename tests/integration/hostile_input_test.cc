// Feeds the programs what people get wrong and what a hostile file may hold: each is refused in one sentence with
// place, value and remedy, never at length, and with nothing that a terminal would obey.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/integration/daemons.h"

namespace geopipe {
namespace {

constexpr size_t kMaxSentenceBytes = 500;

constexpr std::string_view kTopology =
    "sites:\n"
    "  - {name: north, device: {memory: 1GiB, peak_flops: 50e9, memory_bandwidth: 20GB/s}}\n"
    "  - {name: east, device: {memory: 1GiB, peak_flops: 50e9, memory_bandwidth: 20GB/s}}\n"
    "  - {name: west, device: {memory: 1GiB, peak_flops: 50e9, memory_bandwidth: 20GB/s}}\n"
    "links:\n"
    "  - {between: [north, east], latency: 3ms, bandwidth: 1Gbps}\n"
    "  - {between: [east, west], latency: 3ms, bandwidth: 1Gbps}\n"
    "  - {between: [north, west], latency: 3ms, bandwidth: 1Gbps}\n";

// The files of one case: a small job and a topology, one text of which may be another.
class Files {
 public:
  Files() : folder_(TestFolder()) {
    Write("topology.yaml", kTopology);
    ChangedJob(folder_, "kind", "kind");
  }

  std::string Path(const std::string& name) const { return (folder_.path() / name).string(); }
  void Write(const std::string& name, std::string_view text) const {
    REQUIRE(WriteFileAtomically(Path(name), text).ok());
  }
  void Change(const std::string& name, const std::string& from, const std::string& to) const {
    std::string text = *ReadFile(Path(name), 1 << 20);
    REQUIRE(text.find(from) != std::string::npos);
    Write(name, text.replace(text.find(from), from.size(), to));
  }
  void ChangeJob(const std::string& from, const std::string& to) const { ChangedJob(folder_, from, to); }

  std::vector<std::string> Plan(std::vector<std::string> more = {}) const {
    more.insert(more.begin(), {"plan", "-f", Path("job.yaml"), "--topology", Path("topology.yaml")});
    return more;
  }
  std::vector<std::string> Playground(std::vector<std::string> more = {}) const {
    more.insert(more.begin(), {"playground", "-f", Path("job.yaml"), "--iterations", "2"});
    if (std::ranges::find(more, "--output") == more.end()) {
      more.insert(more.end(), {"--output", Path("out")});
    }
    return more;
  }

 private:
  TempFolder folder_;
};

void CheckSentence(const CommandResult& result, int exit_code, const std::string& begin,
                   const std::vector<std::string>& words) {
  CheckEnded(result, exit_code, begin, words);
  const std::string sentence = result.err.substr(0, result.err.find("\nusage: "));
  CHECK(sentence.size() <= kMaxSentenceBytes);
  CHECK(std::ranges::count(sentence, '\n') <= 1);  // at its end
  CHECK(std::ranges::all_of(result.err, [](char c) { return static_cast<unsigned char>(c) >= 0x20 || c == '\n'; }));
}

void CheckRefused(const std::vector<std::string>& args, const std::vector<std::string>& words, int exit_code = 2) {
  CheckSentence(RunCommand("geopipectl", args), exit_code, "error: ", words);
}

TEST_CASE("hostile input: a job's keys") {
  struct Row {
    std::string from, to;
    std::vector<std::string> words;
  };
  std::string many = "micro_batch_size: [1";
  for (int i = 2; i <= 100'000; ++i) {
    many += fmt::format(", {}", i);
  }
  const Row row = GENERATE_REF(values<Row>({
      {"precision: fp32", "parallelism: {tensor: 0}", {"job.yaml:25:", "parallelism.tensor", "is 0", "or auto"}},
      {"precision: fp32", "parallelism: {pipeline: 0}", {"job.yaml:25:", "parallelism.pipeline", "is 0", "or auto"}},
      {"precision: fp32", "parallelism: {data: 0}", {"job.yaml:25:", "parallelism.data", "is 0", "or auto"}},
      {"hidden_size: 32", "preset: llama-2-7b\n    hidden_size: 32", {"job.yaml:", "preset", "keep one of the two"}},
      {"micro_batch_size: [2]", many + "]", {"job.yaml:27:", "search.micro_batch_size", "1 to 64 different values"}},
      {"[north, east, west]", "[north, mars]", {"job.yaml:29:", "placement.sites", "mars", "north, east, west"}},
      {"vocab_size: 258", "vocab_size: 200", {"job.yaml:12:17", "model.vocab_size", "is 200", "at least 258", "byte"}},
  }));
  INFO(row.to.substr(0, 60));
  const Files files;
  files.ChangeJob(row.from, row.to);
  CheckRefused(files.Plan(), row.words);
}

TEST_CASE("hostile input: a topology") {
  struct Row {
    std::string from, to;
    std::vector<std::string> words;
  };
  const Row row = GENERATE(values<Row>({
      {"name: north", "name: \"b\\e[31m\\nX\"", {"topology.yaml:2:5", "name is \"b?[31m?X\"", "1 to 63 letters"}},
      {"name: north", "name: no rth", {"topology.yaml:2:5", "name is \"no rth\"", "1 to 63 letters"}},
      {"peak_flops: 50e9", "peak_flops: 312", {"topology.yaml:2:", "peak_flops", "is 312", "at least 1e9", "312e12"}},
      {"peak_flops: 50e9, ", "", {"topology.yaml:2:", "device", "peak_flops is not given", "--profile"}},
      {", memory_bandwidth: 20GB/s", "", {"topology.yaml:2:", "memory_bandwidth is not given", "1.6TB/s"}},
      {"latency: 3ms", "latency: 1h", {"topology.yaml:6:", "latency is 1h", "from 0 to 1min"}},
      {"bandwidth: 1Gbps", "bandwidth: 1bps", {"topology.yaml:6:", "bandwidth is 1bps", "at least 8bps"}},
  }));
  INFO(row.to.substr(0, 60));
  const Files files;
  files.Change("topology.yaml", row.from, row.to);
  CheckRefused(files.Plan(), row.words);
}

TEST_CASE("hostile input: sequences and maps that are nested without end") {
  const Files files;
  std::string sequence, map;
  for (int i = 0; i < 2000; ++i) {
    sequence += "- ";
    map += std::string(static_cast<size_t>(i), ' ') + "a:\n";
  }
  for (const std::string& text : {sequence, map, std::string(2000, '['), std::string(2000, '{')}) {
    files.Write("topology.yaml", text);
    CheckRefused(files.Plan(), {"topology.yaml:", "nested deeper than"});
  }
}

TEST_CASE("hostile input: microseconds are written as GeoPipe prints them") {
  const Files files;
  files.Change("topology.yaml", "latency: 3ms", "latency: 10µs");
  CHECK(RunCommand("geopipectl", files.Plan()).exit_status.success());
}

TEST_CASE("hostile input: flags") {
  const Files files;
  const std::string golden = SourcePath("tests/golden/cases/two-sites-20ms.yaml");
  CheckRefused(files.Playground({"--output", ""}), {"--output: the value is empty; give DIR, or leave the flag out"});
  CheckRefused(files.Playground({"--compare", ""}), {"--compare: the value is empty"});
  CheckRefused(files.Playground({"--link", "bandwidth=1Gbps"}), {"--link", "latency=20ms,bandwidth=1Gbps"});
  CheckRefused(files.Playground({"--sites", "2", "--topology", files.Path("topology.yaml")}),
               {"--sites cannot be combined with --topology"});
  CheckRefused(files.Plan({"--export-svg", ""}), {"--export-svg: the value is empty"});
  CheckRefused(files.Plan({"--steps", "3"}), {"--steps", "--sweep"});
  CheckRefused({"simulate", "-f", golden, "--delta-n", ""}, {"--delta-n: the value is empty"});
  CheckRefused({"simulate", "-f", golden, "--delta-n", "1000000000"}, {"'1000000000'", "from 0 to 1024"});
  for (const std::string server : {"127.0.0.1", "http://127.0.0.1:7070", ":7070", "127.0.0.1:0", "127.0.0.1:x"}) {
    CheckRefused({"get", "jobs", "--server", server}, {"--server: '" + server + "'", "write it like 127.0.0.1:7070"});
  }
  CheckRefused({"get", "jobs", "--server", "127.0.0.1:1"}, {"127.0.0.1:1", "nothing listens on that port"}, 4);
}

TEST_CASE("hostile input: files") {
  const Files files;
  CheckRefused({"plan", "-f", files.Path(""), "--topology", "x"}, {"is a folder; name a file"});
  files.Write("huge.yaml", std::string((16 << 20) + 1, ' '));
  CheckRefused({"plan", "-f", files.Path("huge.yaml"), "--topology", "x"}, {"huge.yaml is larger than 16777216 bytes"});
  files.Write("profile.yaml",
              "apiVersion: geopipe/v1\nkind: Profile\nentries: []\nmessages:\n"
              "  - {site: mars, node: n0, device: 0, bytes: 1024, whole: 1ms, fixed: 1us}\n");
  CheckRefused(files.Plan({"--profile", files.Path("profile.yaml")}),
               {"profile.yaml:5:", "'mars' is not a site of the topology"});
  std::string bytes;
  for (int i = 0; i < 5000; ++i) {
    bytes += static_cast<char>(i * 7919 >> 3);
  }
  files.Write("random.csv", bytes);
  CheckRefused({"simulate", "-f", SourcePath("tests/golden/cases/two-sites-20ms.yaml"), "--schedule-csv",
                files.Path("random.csv")},
               {"random.csv"});
}

TEST_CASE("hostile input: a model that was downloaded") {
  struct Row {
    std::string config;
    std::vector<std::string> words;
  };
  const std::string golden = *ReadFile(SourcePath("tests/golden/engine/untied/config.json"), 1 << 20);
  const std::string deep = "{\"a\": " + std::string(800'000, '[');
  const Row row = GENERATE_REF(values<Row>({
      {golden.substr(0, golden.size() / 2), {"config.json:"}},
      {"{\"quantization_config\": {\"bits\": 4}, " + golden.substr(1), {"config.json:1:", "quantization_config"}},
      {deep, {"config.json:1:", "nested deeper than"}},
  }));
  const Files files;
  files.Write("config.json", row.config);
  files.ChangeJob(
      "hidden_size: 32\n    intermediate_size: 64\n    num_hidden_layers: 6\n    num_attention_heads: 4\n"
      "    num_key_value_heads: 2\n    vocab_size: 258\n    max_position_embeddings: 32\n",
      "init_from: " + files.Path("") + "\n");
  CheckRefused(files.Plan(), row.words);
}

TEST_CASE("two playgrounds of one job do not share a folder") {
  const Files files;
  const std::string folder = files.Path("out/mini.playground");
  REQUIRE(MakeFolder(folder).ok());
  const absl::StatusOr<UniqueFd> other = LockFile(folder + "/lock");
  REQUIRE(other.ok());
  CheckRefused(files.Playground(), {"another playground of job mini writes to " + folder, "--output"}, 1);
}

TEST_CASE("hostile input: an agent's names") {
  const auto refused = [](const std::string& setting) {
    return RunCommand("geopipe-agent", {"--set", "coordinator=127.0.0.1:1", "--set", "state_dir=/nowhere", "--set",
                                        "devices.memory=1GiB", "--set", "site=east", "--set", setting});
  };
  CheckSentence(refused("site=ea st"), 2, "geopipe-agent: --set site=ea st: ", {"1 to 63 letters"});
  CheckSentence(refused("node=a/b"), 2, "geopipe-agent: --set node=a/b: ", {"1 to 63 letters"});
}

TEST_CASE("hostile input: less data than one iteration takes fails the job") {
  const Files files;
  files.Write("short.txt", std::string(129, 'x'));
  files.ChangeJob(SourcePath("LICENSE"), files.Path("short.txt"));
  CheckRefused(files.Playground(), {"short.txt: data.path holds 4 samples of 32 tokens, fewer than the 16"}, 1);
}

}  // namespace
}  // namespace geopipe
