// Feeds the programs what people get wrong and what a hostile file may hold: each is refused in one sentence with
// place, value and remedy, never at length, and with nothing that a terminal would obey.
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/integration/daemons.h"

namespace geopipe {
namespace {

constexpr size_t kMaxSentenceBytes = 500;

// The files of one case: a small job and a topology, one text of which may be another.
class Files : public CaseFolder {
 public:
  Files() {
    Write("topology.yaml", kThreeSites);
    ChangedJob(folder(), "kind", "kind");
  }

  void ChangeJob(const std::string& from, const std::string& to) const { ChangedJob(folder(), from, to); }

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
  for (int i = 2; i <= 50'000; ++i) {
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
      {"peak_flops: 50e9",
       "peak_flops: 312",
       {"topology.yaml:2:", "peak_flops", "is 312", "from 1e9 to 1e18", "312e12"}},
      {"peak_flops: 50e9, ", "", {"topology.yaml:2:", "device", "peak_flops is not given", "--profile"}},
      {", memory_bandwidth: 20GB/s", "", {"topology.yaml:2:", "memory_bandwidth is not given", "1.6TB/s"}},
      {"latency: 3ms", "latency: 1h", {"topology.yaml:6:", "latency is 1h", "from 0 to 1min"}},
      {"bandwidth: 1Gbps",
       "bandwidth: 1e300Gbps",
       {"topology.yaml:6:", "bandwidth", "the largest bandwidth is 8000Tbps"}},
      {"memory: 1GiB", "memory: 100TiB", {"topology.yaml:2:", "memory: is 100TiB; it must be from 1B to 16TiB"}},
      {"peak_flops: 50e9", "peak_flops: 989TFLOPS", {"topology.yaml:2:", "write it like 989e12"}},
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
      {golden.substr(0, golden.size() / 2), {"config.json:", "not valid JSON"}},
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

// A job of the golden Hugging Face directory and tokens.
class ImportedFiles {
 public:
  ImportedFiles() {
    const std::filesystem::path golden = SourcePath("tests/golden/engine/untied");
    for (const char* name : {"config.json", "model.safetensors"}) {
      std::filesystem::copy_file(golden / name, files_.Path(name));
    }
    std::filesystem::copy_file(SourcePath("tests/golden/engine/tokens.u16"), files_.Path("tokens.bin"));
    std::string text = *ReadFile(files_.Path("job.yaml"), 1 << 20);
    const size_t model = text.find("    hidden_size");
    const size_t data = text.find("  data:");
    const size_t training = text.find("  training:");
    REQUIRE((model < data && data < training));
    text = text.substr(0, model) + "    init_from: .\n  data: {format: tokens, path: tokens.bin, dtype: uint16}\n" +
           text.substr(training);
    files_.Write("job.yaml", text);
  }
  const Files* operator->() const { return &files_; }

 private:
  Files files_;
};

TEST_CASE("hostile input: a model of another family") {
  struct Row {
    std::string from, to;
    std::vector<std::string> words;
  };
  const Row row = GENERATE(values<Row>({
      {"LlamaForCausalLM",
       "GemmaForCausalLM",
       {"architectures: names GemmaForCausalLM", "supported are LlamaForCausalLM, MistralForCausalLM, "}},
      {"\"model_type\": \"llama\"",
       "\"model_type\": \"mistral\"",
       {"model_type: is 'mistral'", "architectures names LlamaForCausalLM, of another family"}},
      {"{", "{\"num_local_experts\": 8, ", {"num_local_experts: is '8'"}},
      {"{", "{\"head_dim\": 63, ", {"head_dim: is 63; RoPE turns pairs, so it must be even"}},
      {"{",
       "{\"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 8.0}, ",
       {"rope_parameters.rope_type: is 'yarn'"}},
      {"{",
       "{\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0}, ",
       {"rope_scaling.low_freq_factor: missing; rope_type llama3 needs it"}},
      {"{", "{ // a comment\n", {"config.json:1:3: not valid JSON: a comment"}},
      {"{", "{\"a\": NaN, ", {"not valid JSON: NaN"}},
  }));
  INFO(row.to);
  const ImportedFiles files;
  files->Change("config.json", row.from, row.to);
  CheckRefused(files->Plan(), row.words);
}

TEST_CASE("hostile input: weights and data that are here are looked at before anything starts") {
  const ImportedFiles files;
  const std::string weights = *ReadFile(files->Path("model.safetensors"), 1 << 24);
  const std::string tokens = *ReadFile(files->Path("tokens.bin"), 1 << 24);
  files->Write("model.safetensors", weights + std::string(4096, '\0'));
  CheckRefused(files->Playground(),
               {"spec.model.init_from: ", "4096 bytes follow the last tensor", "two files in one"});
  files->Write("model.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab\nsize 42\n");
  CheckRefused(files->Playground(), {"model.safetensors: is a Git LFS pointer", "git lfs pull"});
  files->Write("model.safetensors", weights);
  files->Write("tokens.bin", std::string("\x88\xd8\x34\x01\x01\0\0\0", 8) + std::string(1016, '\0') + tokens);
  CheckRefused(files->Playground(), {"spec.data.path: ", "a token file of llm.c with its header", "tail -c +1025"});
  CheckRefused({"apply", "-f", files->Path("job.yaml"), "--server", "127.0.0.1:1"}, {"a token file of llm.c"});
  std::string wide;
  for (size_t i = 0; i + 1 < tokens.size(); i += 2) {
    wide += tokens.substr(i, 2) + std::string(2, '\0');
  }
  files->Write("tokens.bin", wide);
  const std::vector<std::string> words{"job.yaml:", "spec.data.path: ", "every second token is 0",
                                       "set data.dtype: uint32"};
  CheckRefused(files->Playground(), words);
  CheckRefused(files->Plan(), words);
  CheckRefused({"apply", "-f", files->Path("job.yaml"), "--server", "127.0.0.1:1"}, words);
}

TEST_CASE("hostile input: what is never there when it is read") {
  const ImportedFiles files;
  for (const char* name : {"pipe.yaml", "config.json", "model.safetensors", "tokens.bin"}) {
    INFO(name);
    const std::string path = files->Path(name);
    std::filesystem::remove(path);
    REQUIRE(mkfifo(path.c_str(), 0600) == 0);
  }
  CheckRefused({"plan", "-f", files->Path("pipe.yaml"), "--topology", "x"}, {"it is a named pipe; name a file"});
  CheckRefused(files->Plan(), {"config.json: it is a named pipe; name a file"});
  CheckRefused(files->Plan({"--profile", "/dev/zero"}), {"config.json: it is a named pipe"});
  const Files plain;
  CheckRefused(plain.Plan({"--profile", "/dev/zero"}), {"/dev/zero: it is a character device; name a file"});
  CheckRefused({"simulate", "-f", files->Path("pipe.yaml")}, {"it is a named pipe; name a file"});
  CheckRefused({"simulate", "-f", SourcePath("tests/golden/cases/two-sites-20ms.yaml"), "--schedule-csv",
                files->Path("pipe.yaml")},
               {"it is a named pipe; name a file"});
}

TEST_CASE("hostile input: words and names without end") {
  const std::string letters(100'000, 'x');
  const CommandResult verb_of_letters = RunCommand("geopipectl", {letters});
  CheckEnded(verb_of_letters, 2, "error: unknown verb 'xxx", {"...'", "lists the verbs"});
  CHECK(verb_of_letters.err.size() <= kMaxSentenceBytes);
  CheckEnded(RunCommand("geopipectl", {"pl\x1b[31man"}), 2, "error: unknown verb 'pl?[31man'", {});
  CheckRefused({"plan", "--" + letters}, {"unknown flag --xxx", "..."});
  CheckRefused({"plan", "--fi\x1b[31mle"}, {"unknown flag --fi?[31mle"});
  for (const std::string verb : {"describe", "watch", "cancel", "pause", "profile", "trace"}) {
    CheckRefused({verb, letters, "--server", "127.0.0.1:1"}, {"is no job's name, which has 1 to 63 of"});
  }
  CheckRefused({"watch", "x", "--from", "-1", "--server", "127.0.0.1:1"}, {"--from -1: iterations are counted from 0"});
  for (const std::string verb : {"describe", "watch"}) {
    CheckRefused({verb, "x", "--run", "0", "--server", "127.0.0.1:1"},
                 {"--run 0: the runs of a name are counted from 1"});
    CheckRefused({verb, "x@1", "--server", "127.0.0.1:1"}, {"'x@1' is no job's name"});
  }
  CheckRefused({"get", "jobs", "--run", "1", "--server", "127.0.0.1:1"}, {"--run needs the job's name"});
  CheckRefused({"get", "sites", "--all", "--server", "127.0.0.1:1"}, {"only jobs have runs", "'get sites'"});
  const CommandResult twice = RunCommand("geopipectl", {"describe", "job", "x"});
  CHECK(twice.err.find("usage: ") == twice.err.rfind("usage: "));
}

TEST_CASE("hostile input: the environment, standard input and what stands in two places") {
  const Files files;
  const std::string geopipectl = std::string(GEOPIPE_BINARY_DIR) + "/bin/geopipectl";
  const auto shell = [&](const std::string& command) { return RunCommand("/bin/sh", {"-c", command}); };
  CheckSentence(shell("GEOPIPE_COORDINATOR_LISTN=x " + std::string(GEOPIPE_BINARY_DIR) +
                      "/bin/geopipe-coordinator --state-dir " + files.Path("state")),
                2, "geopipe-coordinator: ", {"GEOPIPE_COORDINATOR_LISTN", "did you mean GEOPIPE_COORDINATOR_LISTEN?"});
  CheckSentence(shell("GEOPIPE_SERVER= " + geopipectl + " get jobs --timeout 100ms"), 4, "error: ", {"127.0.0.1:7070"});
  CheckSentence(shell(geopipectl + " plan -f - --topology " + files.Path("topology.yaml") + " < /dev/null"), 2,
                "error: ", {"cannot read -: standard input is empty"});
  CheckRefused({"plan", "-f", "-", "--topology", "-"}, {"two files are to come from standard input"});
  CheckSentence(shell("mkdir " + files.Path("gone") + " && cd " + files.Path("gone") + " && rmdir ../gone && " +
                      geopipectl + " playground -f " + files.Path("job.yaml")),
                2, "error: ", {"the folder that this command runs in is gone", "change into one that exists"});
  CheckRefused(files.Plan({"--sweep", "latency=1ms..2ms", "--sweep-schedules", "1f1b,1f1b"}), {"1f1b is there twice"});
  files.Write("case.yaml", "devices: 4\nchunks: 5\nmicro_batches: 8\nforward_s: 0.01\nbackward_s: 0.02\n");
  CheckRefused({"simulate", "-f", files.Path("case.yaml"), "--schedule", "1f1b"},
               {"case.yaml:2:9: chunks: schedule 1f1b runs one stage per device: 5 stages on 4 devices"});
  CheckSentence(RunCommand("geopipe-coordinator", {"--state-dir", files.Path("state"), "--listen", "127.0.0.1:7171",
                                                   "--metrics", "127.0.0.1:7171"}),
                2, "geopipe-coordinator: ", {"metrics is 127.0.0.1:7171, where the coordinator listens"});
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

TEST_CASE("hostile input: what an agent declares") {
  const auto [setting, words] = GENERATE(table<std::string, std::string>({
      {"devices.memory=100TiB", "devices.memory: is 100TiB; it must be from 1B to 16TiB"},
      {"devices.count=1024", "devices.count: is 1024; it must be from 1 to 256"},
      {"devices.peak_flops=1e300", "devices.peak_flops: is 1e+300; it must be 0 (not known) or from 1e9 to 1e18"},
      {"devices.peak_flops=989TFLOPS", "'989TFLOPS' has a unit and must be a plain number; write it like 989e12"},
      {"devices.memory_bandwidth=1e300Gbps", "'1e300Gbps' is too large; the largest bandwidth is 8000Tbps"},
      {"orphan_grace=100000h", "orphan_grace: is 100000h; it must be from"},
      {"worker_binary=/nope", "'/nope' is not an executable file; name geopipe-worker, or leave it out"},
  }));
  CheckSentence(RunCommand("geopipe-agent", {"--set", "coordinator=127.0.0.1:1", "--set", "state_dir=/nowhere", "--set",
                                             "site=east", "--set", "devices.memory=1GiB", "--set", setting}),
                2, "geopipe-agent: ", {words});
}

TEST_CASE("hostile input: a keeper's table that is none is told when the agent starts") {
  const Files files;
  std::filesystem::create_directory(files.Path("state"));
  files.Write("state/keeper.table", std::string_view("\xff\x00\x17garbage", 10));
  Command agent("geopipe-agent", {"--set", "coordinator=127.0.0.1:1", "--set", "state_dir=" + files.Path("state"),
                                  "--set", "site=east", "--set", "devices.memory=1GiB"});
  WaitUntil(agent, [&] { return agent.err().find("keeper.table") != std::string::npos; });
  CHECK_THAT(agent.err(), Catch::Contains("warning"));
}

TEST_CASE("hostile input: less data than one iteration takes") {
  const Files files;
  files.Write("short.txt", std::string(129, 'x'));
  files.ChangeJob(SourcePath("LICENSE"), files.Path("short.txt"));
  CheckRefused(files.Playground(), {"job.yaml:16:", "spec.data.path: ",
                                    "short.txt: 131 tokens are in data.path, fewer "
                                    "than the 512 of one iteration"});
  std::vector<std::string> modelled = files.Playground();  // which reads none
  modelled.insert(modelled.end(), {"--backend", "modelled"});
  CheckRefused(modelled, {"--backend modelled needs to know how fast the devices are"});
}

}  // namespace
}  // namespace geopipe
