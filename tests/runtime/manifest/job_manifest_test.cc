#include "runtime/manifest/job_manifest.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <random>
#include <string>

#include "runtime/base/files.h"
#include "runtime/manifest/job_schema.h"
#include "tests/support/sanitized.h"
#include "tests/support/seed.h"
#include "tests/support/tiny_model.h"

namespace geopipe {
namespace {

const std::string kGolden = GEOPIPE_SOURCE_DIR "/tests/golden/jobs";
const std::string kExamples = GEOPIPE_SOURCE_DIR "/deploy/examples";

// A small valid job; `from` is replaced by `to` wherever it stands.
std::string Job(const std::string& from = "", const std::string& to = "") {
  std::string text = ReadFile(kGolden + "/small.yaml", 1 << 20).value();
  if (!from.empty()) {
    const size_t position = text.find(from);
    REQUIRE(position != std::string::npos);
    text.replace(position, from.size(), to);
  }
  return text;
}

std::string JobError(const std::string& text) {
  const absl::StatusOr<JobSpec> job = ParseJobFile(text, "job.yaml", "/jobs");
  return job.ok() ? "" : std::string(job.status().message());
}

TEST_CASE("What a job file leaves out has the documented defaults") {
  const auto job = ParseJobFile(Job(), "job.yaml", "/jobs");
  INFO(job.status().ToString());
  REQUIRE(job.ok());
  JobSpec expected;
  expected.name = "small";
  expected.model = TinyModel(4);
  expected.model.num_key_value_heads = 4;
  expected.model.max_position_embeddings = 2048;
  expected.data.paths = {"/jobs/data/train.bin"};
  expected.training.iterations = 10;
  expected.training.tokens_per_iteration = 16384;
  expected.search.sequence_length = {2048};
  CHECK(*job == expected);
}

TEST_CASE("Every key of a job file counts") {
  const auto job = ParseJobFile(ReadFile(kGolden + "/full.yaml", 1 << 20).value(), "full.yaml", "/jobs");
  INFO(job.status().ToString());
  REQUIRE(job.ok());
  CHECK(job->name == "full-1.0");
  CHECK(job->model.hidden_size == 5120);
  CHECK(job->model == *ModelPreset("llama-2-13b"));
  CHECK(job->data == DataSpec{.format = DataFormat::kText,
                              .paths = {"/abs/*.txt", "/jobs/b.txt"},
                              .weights = {},
                              .dtype = TokenDtype::kUint32,
                              .shuffle = false,
                              .tokenizer = "byte",
                              .end_of_text = std::nullopt});
  const TrainingSpec training{.iterations = 5,
                              .tokens_per_iteration = 8192,
                              .seed = 18446744073709551615U,
                              .learning_rate = 1e-3,
                              .warmup_iterations = 2,
                              .min_learning_rate = 1e-4,
                              .beta1 = 0.8,
                              .beta2 = 0.99,
                              .eps = 1e-6,
                              .weight_decay = 0,
                              .grad_clip = std::nullopt};
  CHECK(job->training == training);
  CHECK(job->precision == Precision::kBf16);
  CHECK(job->parallelism == ParallelismSpec{0, 4, 0, 0, true, 2, Recompute::kSelective, Offload::kOptimizer});
  CHECK(job->search ==
        SearchSpec{{1, 2}, {1024, 2048}, 3, ScheduleKind::kGeoPipe, Prefer::kMemory, 7, 2'500'000'000, 100});
  CHECK(job->placement.sites.empty());
  CHECK(job->checkpoint == CheckpointSpec{"/jobs/checkpoints/", 100, 5, 1});
  CHECK(job->replan == ReplanSpec{0.2, 0.05, 3, true});
}

TEST_CASE("The example jobs are valid") {
  const auto small = ReadJobFile(kExamples + "/llama-2-13b.yaml");
  INFO(small.status().ToString());
  REQUIRE(small.ok());
  CHECK(small->training.tokens_per_iteration == 1048576);
  CHECK(small->parallelism.recompute == Recompute::kNone);
  CHECK(small->data.paths == std::vector<std::string>{kExamples + "/data/train.bin"});
  const auto large = ReadJobFile(kExamples + "/llama-2-70b.yaml");
  INFO(large.status().ToString());
  REQUIRE(large.ok());
  CHECK(large->model.hidden_size == 8192);
  const auto tiny = ReadJobFile(kExamples + "/tiny.yaml");
  INFO(tiny.status().ToString());
  REQUIRE(tiny.ok());
  CHECK(tiny->model.num_hidden_layers >= 6);
  CHECK(tiny->search.micro_batch_size.size() == 1);  // or losses would depend on the measured profile
  CHECK(tiny->search.sequence_length.size() == 1);
}

TEST_CASE("Unknown, duplicate, missing and misshaped keys are found at their place") {
  CHECK(JobError(Job("    iterations: 10", "    iteration: 10")) ==
        "job.yaml:10:5: spec.training.iteration: unknown key; did you mean iterations?");
  CHECK(JobError(Job("spec:", "xyzzy: 1\nspec:")) ==
        "job.yaml:4:1: xyzzy: unknown key; known here: apiVersion, kind, metadata, spec");
  CHECK(JobError(Job("    iterations: 10", "    iterations: 10\n    iterations: 11")) ==
        "job.yaml:11:5: spec.training.iterations: given twice, first on line 10; keep one of the two");
  CHECK(JobError(Job("    iterations: 10\n", "")) ==
        "job.yaml:10:5: spec.training.iterations: missing; add `iterations: <integer>`");
  CHECK(JobError(Job("kind: TrainingJob", "kind: TrainingJobs")) ==
        "job.yaml:2:7: kind: 'TrainingJobs' is not one of TrainingJob; did you mean TrainingJob?");
  CHECK(JobError(Job("    iterations: 10", "    iterations: [10]")) ==
        "job.yaml:10:17: spec.training.iterations: a list stands where one value (integer) is needed");
  CHECK(JobError(Job("{name: small}", "small")) ==
        "job.yaml:3:11: metadata: 'small' stands where a map of keys is needed");
  CHECK(JobError(Job("{name: small}", "{name: Small}")) ==
        "job.yaml:3:18: metadata.name: is Small; it must be 1 to 63 of [a-z0-9.-], first [a-z0-9]");
  CHECK(JobError("") == "job.yaml:1:1: apiVersion: missing; add `apiVersion: geopipe/v1`");
  CHECK(JobError("a: [1") == "job.yaml:1:1: not valid YAML: end of sequence flow not found");
}

TEST_CASE("Wrong units and values are found at their place") {
  const std::string end = "tokens_per_iteration: 16384\n";
  CHECK(JobError(Job(end, end + "  search: {time_budget: 10}\n")) ==
        "job.yaml:12:25: spec.search.time_budget: '10' has no unit; write it like 20ms, 1.5s or 10min");
  CHECK(JobError(Job(end, end + "  replan: {drift: 0.15}\n")) ==
        "job.yaml:12:19: spec.replan.drift: '0.15' has no unit; write it like 15%");
  CHECK(JobError(Job(end, end + "  parallelism: {tensor: all}\n")) ==
        "job.yaml:12:25: spec.parallelism.tensor: 'all' is not a whole number; write it like 1048576, or auto");
  CHECK(JobError(Job(end, end + "    betas: [0.9]\n")) ==
        "job.yaml:12:12: spec.training.betas: has 1 numbers; write two, like [0.9, 0.95]");
  CHECK(JobError(Job(end, end + "    betas: [0.9, 1.5]\n")) ==
        "job.yaml:12:18: spec.training.betas[1]: is 1.5; it must be at least 0 and below 1");
  CHECK(JobError(Job("16384", "1000")) ==
        "job.yaml:11:27: spec.training.tokens_per_iteration: 1000 is not a multiple of micro_batch_size x "
        "sequence_length x data for any choice of search.micro_batch_size [1, 2, 4, 8], search.sequence_length [2048] "
        "and parallelism.data 1; 2048 would work");
  CHECK(JobError(Job(end, end + "  search: {schedule: zb}\n")) ==
        "job.yaml:12:22: spec.search.schedule: 'zb' is not one of gpipe, 1f1b, geopipe, interleaved, zb-h1, zb-h2, "
        "zb-v, geopipe-zb, auto");
  CHECK(JobError(Job(end, end + "  placement: {sites: [a, a]}\n")) ==
        "job.yaml:12:22: spec.placement.sites: is [a, a]; it must be 1 to 1024 different values, or auto");
}

TEST_CASE("A model comes from its keys, a preset or a Hugging Face directory") {
  const std::string model =
      "model: {hidden_size: 64, intermediate_size: 128, num_hidden_layers: 4, "
      "num_attention_heads: 4, vocab_size: 258}";
  CHECK(JobError(Job(model, "model: {preset: llama-3}"))
            .starts_with("job.yaml:5:19: spec.model.preset: 'llama-3' is not one of llama-2-7b, llama-2-13b, "));
  CHECK(JobError(Job("vocab_size: 258", "vocab_size: 258, num_key_value_heads: 3")) ==
        "job.yaml:5:136: spec.model.num_key_value_heads: is 3; it must divide model.num_attention_heads 4");
  CHECK(JobError(Job(model, "model: {hidden_size: 64}")) ==
        "job.yaml:5:3: spec.model.intermediate_size: missing; give it, or a preset, or init_from");
  CHECK(JobError(Job(model, "model: {preset: llama-2-7b, init_from: hf}")) ==
        "job.yaml:5:31: spec.model.init_from: cannot be combined with preset, which gives the whole model; keep one of "
        "the two");
  CHECK(JobError(Job(model, "model: {hidden_size: 64, preset: llama-2-7b}")) ==
        "job.yaml:5:11: spec.model.hidden_size: cannot be combined with preset, which gives the whole model; keep one "
        "of the two");
  CHECK(JobError(Job(model, "model: {init_from: nowhere}")) ==
        "job.yaml:5:22: spec.model.init_from: cannot read /jobs/nowhere/config.json: No such file or directory");

  const auto folder = TempFolder::Create("geopipe-job-");
  REQUIRE(folder.ok());
  REQUIRE(WriteFileAtomically(folder->path() / "config.json",
                              R"({"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
                                  "num_attention_heads": 4, "vocab_size": 258})")
              .ok());
  const std::string path = folder->path().string();
  const auto job = ParseJobFile(Job(model, "model: {init_from: ., num_hidden_layers: 4}"), "job.yaml", folder->path());
  INFO(job.status().ToString());
  REQUIRE(job.ok());
  CHECK(job->model.rms_norm_eps == 1e-6);
  CHECK(std::filesystem::equivalent(job->init_from, path));
  CHECK(JobError(Job(model, "model: {init_from: " + path + ", num_hidden_layers: 5}")) ==
        "job.yaml:5:" + std::to_string(24 + path.size() + 19) + ": spec.model.num_hidden_layers: is 5, but " + path +
            " says 4; leave the key out");

  // A checkpoint has a manifest in its place.
  const auto checkpoint = TempFolder::Create("geopipe-job-");
  REQUIRE(checkpoint.ok());
  const std::string manifest = (checkpoint->path() / "manifest.json").string();
  REQUIRE(WriteFileAtomically(manifest, R"({"crc32c":"00000000","epoch":1,"model":{"hidden_size":64,)"
                                        R"("intermediate_size":128,"num_attention_heads":4,"num_hidden_layers":6,)"
                                        R"("vocab_size":258},"files":[]})")
              .ok());
  const auto begun =
      ParseJobFile(Job(model, "model: {init_from: " + checkpoint->path().string() + "}"), "job.yaml", "/jobs");
  INFO(begun.status().ToString());
  REQUIRE(begun.ok());
  CHECK(begun->model.num_hidden_layers == 6);
  REQUIRE(WriteFileAtomically(manifest, R"({"crc32c":"00000000"})").ok());
  CHECK_THAT(JobError(Job(model, "model: {init_from: " + checkpoint->path().string() + "}")),
             Catch::EndsWith("manifest.json: names no model; choose another checkpoint"));
}

TEST_CASE("Values out of range are found at their place") {
  const auto [section, key, value, rule] = GENERATE(table<std::string, std::string, std::string, std::string>({
      {"parallelism", "tensor", "0", "from 1 to 65536, or auto"},
      {"parallelism", "pipeline", "0", "from 1 to 65536, or auto"},
      {"parallelism", "data", "-1", "from 1 to 65536, or auto"},
      {"parallelism", "zero_stage", "4", "from 0 to 3, or auto"},
      {"search", "micro_batch_size", "[2, 2]", "1 to 64 different values"},
      {"search", "sequence_length", "[]", "1 to 64 different values"},
      {"search", "max_delta_n", "1025", "from 0 to 1024, or auto"},
      {"search", "time_budget", "0s", "from 1ns to 1000h"},
      {"search", "max_evaluations", "0", "from 1 to 1000000000"},
      {"checkpoint", "keep", "0", "from 1 to 1000000"},
      {"replan", "cooldown", "-1", "from 0 to 1000000000"},
  }));
  const std::string text = Job() + "  " + section + ": {" + key + ": " + value + "}\n";
  CHECK(JobError(text) == "job.yaml:12:" + std::to_string(section.size() + key.size() + 8) + ": spec." + section + "." +
                              key + ": is " + value + "; it must be " + rule);
  CHECK(JobError(Job() + "    grad_clip: 0\n") ==
        "job.yaml:12:16: spec.training.grad_clip: is 0; it must be above 0 and at most 1e+30, or none");
  CHECK(JobError(Job("iterations: 10", "iterations: 0")) ==
        "job.yaml:10:17: spec.training.iterations: is 0; it must be from 1 to 1000000000");
  CHECK(JobError(Job("hidden_size: 64", "hidden_size: -64")) ==
        "job.yaml:5:24: spec.model.hidden_size: is -64; it must be from 1 to 262144");
}

TEST_CASE("Sizes that cannot be are found at their place") {
  const auto [from, to, error] = GENERATE(table<std::string, std::string, std::string>({
      {"hidden_size: 64", "hidden_size: 16777216", "hidden_size: is 16777216; it must be from 1 to 262144"},
      {"hidden_size: 64", "num_hidden_layers: 16777216, hidden_size: 64",
       "num_hidden_layers: is 16777216; it must be from 1 to 1024"},
      {"hidden_size: 64", "num_attention_heads: 1e6, hidden_size: 64",
       "num_attention_heads: is 1000000; it must be from 1 to 4096"},
      {"hidden_size: 64", "vocab_size: 1e9, hidden_size: 64",
       "vocab_size: is 1000000000; it must be from 1 to 16777216"},
      {"hidden_size: 64", "rope_theta: 1e300, hidden_size: 64",
       "rope_theta: is 1e+300; it must be above 0 and at most 1000000000000000"},
      {"iterations: 10", "iterations: 9223372036854775807",
       "iterations: is 9223372036854775807; it must be from 1 to 1000000000"},
      {"iterations: 10", "iterations: 10\n    learning_rate: 1e300",
       "learning_rate: is 1e+300; it must be above 0 and at most 1e+30"},
      {"iterations: 10", "iterations: 10\n    weight_decay: 1e300",
       "weight_decay: is 1e+300; it must be from 0 to 1000"},
      {"iterations: 10", "iterations: 10\n    tokens_per_iteration: 1e15",
       "tokens_per_iteration: is 1000000000000000; it must be from 1 to 4294967296"},
  }));
  std::string text = Job();
  if (to.find("tokens_per_iteration") != std::string::npos) {  // in place of the job's own
    text = text.substr(0, text.find("    tokens_per_iteration")) +
           text.substr(text.find('\n', text.find("    tokens_per_iteration")) + 1);
  }
  for (const char* key : {"num_hidden_layers: ", "num_attention_heads: ", "vocab_size: ", "rope_theta: "}) {
    const size_t own = text.find(key);
    if (to.find(key) != std::string::npos && own != std::string::npos) {
      const size_t end = text.find_first_of(",}\n", own);
      text.erase(own, end - own + (text[end] == ',' ? 2 : 0));
    }
  }
  REQUIRE(text.find(from) != std::string::npos);
  text.replace(text.find(from), from.size(), to);
  const std::string found = JobError(text);
  CAPTURE(text, found);
  CHECK(found.starts_with("job.yaml:"));
  CHECK(found.ends_with(error));
}

TEST_CASE("Durations and counts that arithmetic cannot bear are found at their place") {
  const auto [section, error] = GENERATE(table<std::string, std::string>({
      {"checkpoint: {path: c, every: 10000000000}", "every: is 10000000000; it must be from 0 to 1000000000"},
      {"checkpoint: {path: c, keep: 9223372036854775807}",
       "keep: is 9223372036854775807; it must be from 1 to 1000000"},
      {"grace: 2000h", "grace: is 2000h; it must be from 1s to 24h"},
      {"search: {max_evaluations: 1e15}", "max_evaluations: is 1000000000000000; it must be from 1 to 1000000000"},
      {"search: {micro_batch_size: [1048576]}", "it must be from 1 to 65536"},
  }));
  const std::string found = JobError(Job() + "  " + section + "\n");
  CAPTURE(found);
  CHECK(found.starts_with("job.yaml:12:"));
  CHECK(found.ends_with(error));
}

TEST_CASE("A data file that is given as nothing is found at its place") {
  CHECK(JobError(Job("- data/train.bin", "- \"\"")) == "job.yaml:8:9: spec.data.path[0]: is empty; name a file");
}

TEST_CASE("A long list that is refused is not repeated in full") {
  std::string sizes = "[1";
  for (int i = 2; i < 100'000; ++i) {
    sizes += ", " + std::to_string(i);
  }
  CHECK(JobError(Job() + "  search: {micro_batch_size: " + sizes + "]}\n").size() < 250);
}

TEST_CASE("Keys that do nothing in a run are refused in a run, and planned with") {
  const auto [given, message] = GENERATE(table<std::string, std::string>({
      {"checkpoint: {replicate: 1}",
       "job.yaml:12:27: spec.checkpoint.replicate: is 1 without checkpoint.path, so there are no checkpoints "
       "to replicate; set checkpoint.path"},
      {"replan: {drift: 15%}",
       "job.yaml:12:19: spec.replan.drift: is '15%', but this version does not plan again while a job runs; leave it "
       "out"},
      {"parallelism: {sequence_parallel: true}",
       "job.yaml:12:36: spec.parallelism.sequence_parallel: is true; it splits work over tensor-parallel ranks and the "
       "job has one, leave it out"},
      {"parallelism: {zero_stage: 2}",
       "job.yaml:12:29: spec.parallelism.zero_stage: is 2; it divides over data-parallel ranks and the job has one, "
       "leave it out"},
  }));
  const std::string text = Job() + "  " + given + "\n";
  CHECK(JobError(text).empty());
  CHECK(ParseJobFile(text, "job.yaml", "/jobs", BackendKind::kCpu).status().message() == message);
  CHECK(ParseJobFile(Job() + "  parallelism: {zero_stage: 1}\n", "job.yaml", "/jobs", BackendKind::kCpu).ok());
  CHECK(ParseJobFile(Job() + "  parallelism: {zero_stage: auto}\n", "job.yaml", "/jobs", BackendKind::kCpu).ok());
}

TEST_CASE("A job for a backend that cannot run it is refused at its place in the file") {
  const std::string text = Job("training:", "checkpoint: {path: /checkpoints}\n  training:");
  CHECK(JobError(text).empty());
  CHECK(ParseJobFile(text, "job.yaml", "/jobs", BackendKind::kCpu).ok());
  const std::string refusal(ParseJobFile(text, "job.yaml", "/jobs", BackendKind::kModelled).status().message());
  CHECK(refusal.find(": spec.checkpoint.path: is /checkpoints; the modelled backend computes nothing") !=
        std::string::npos);
  CHECK(refusal.starts_with("job.yaml:"));
}

TEST_CASE("A job file that cannot be read says why") {
  CHECK(ReadJobFile("/nowhere/job.yaml").status().message() ==
        "cannot read /nowhere/job.yaml: No such file or directory");
  CHECK(ReadJobFile("/tmp").status().message() == "cannot read /tmp: it is a folder; name a file");
}

TEST_CASE("A file of several documents holds a job each, with errors at their lines in the file") {
  const TempFolder folder = *TempFolder::Create("geopipe-test-");
  const std::filesystem::path path = folder.path() / "jobs.yaml";
  const auto read = [&](const std::string& text) {
    REQUIRE(WriteFileAtomically(path, text).ok());
    return ReadJobsFile(path);
  };
  const std::string first = Job();
  const std::string second = Job("name: small", "name: second");
  const auto names = [&](const std::string& text) {
    const auto jobs = read(text);
    INFO(jobs.status().ToString());
    REQUIRE(jobs.ok());
    std::vector<std::string> names;
    for (const JobSpec& job : *jobs) {
      CHECK(job.data.paths == std::vector<std::string>{(folder.path() / "data/train.bin").string()});
      names.push_back(job.name);
    }
    return names;
  };
  using Names = std::vector<std::string>;
  CHECK(names(first) == Names{"small"});
  CHECK(names("# jobs\n---\n" + first + "--- # the other\n\n" + second + "---\n# none\n") == Names{"small", "second"});
  CHECK(names("---\n---\n" + first + "---\n# off: name\n---\n" + second) == Names{"small", "second"});
  CHECK(names("%YAML 1.2\n---\n" + first + "...\n---\n" + second + "---") == Names{"small", "second"});

  const std::string line = std::to_string(std::ranges::count(first, '\n') + 1);
  const std::string twice(read(first + "---\n" + first).status().message());
  CHECK(twice ==
        path.string() + ":" + line + ": a job named small is in line 1 already; give one of them another name");
  const std::string alone(ParseJobFile("\n" + Job("layers", "lairs"), path.string(), "/").status().message());
  const std::string wrong(read(first + "---\n" + Job("layers", "lairs")).status().message());
  const auto line_in = [&](const std::string& error) { return std::stoi(error.substr(path.string().size() + 1)); };
  CHECK(line_in(wrong) == line_in(alone) + std::stoi(line) - 1);
  CHECK(wrong.substr(wrong.find(": ")) == alone.substr(alone.find(": ")));
  CHECK_FALSE(read("# nothing\n").ok());
}

// A job of random values from the schema's own rows; rules that span keys may not hold.
JobSpec RandomJob(const Schema<JobSpec>& schema, std::mt19937_64& random) {
  const Draw draw = [&random] { return random(); };
  JobSpec job;
  for (const std::string& path : schema.KeyPaths()) {
    REQUIRE(schema.OverlayText(path, schema.Sample(path, draw), "sample", &job).ok());
  }
  return job;
}

TEST_CASE("What is written reads back as the same job") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  const Schema<JobSpec> schema = JobSchema("");
  constexpr int kJobs = kSanitized ? 200 : 2000;
  for (int i = 0; i < kJobs; ++i) {
    const JobSpec job = RandomJob(schema, random);
    const std::string text = schema.Write(job);
    INFO(text);
    const auto document = ParseYaml(text, "written");
    REQUIRE(document.ok());
    const auto back = schema.Read(*document);
    INFO(back.status().ToString());
    REQUIRE(back.ok());
    REQUIRE(*back == job);
  }
}

TEST_CASE("A manifest is the whole job and needs no other file") {
  const auto job = ParseJobFile(Job("{name: small}", "{name: a-1.b}"), "job.yaml", "/jobs");
  REQUIRE(job.ok());
  JobSpec from_weights = *job;
  from_weights.init_from = "/nowhere/on this node";
  from_weights.model.rms_norm_eps = 1e-6;
  for (const JobSpec& expected : {*job, from_weights}) {
    const std::string text = WriteManifest(expected);
    INFO(text);
    const auto back = ParseManifest(text);
    INFO(back.status().ToString());
    REQUIRE(back.ok());
    CHECK(*back == expected);
    CHECK(WriteManifest(*back) == text);
  }
}

TEST_CASE("A manifest that no job file could be is refused") {
  const std::string text = WriteManifest(ParseJobFile(Job(), "job.yaml", "/jobs").value());
  const auto refused = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    return std::string(ParseManifest(changed).status().message());
  };
  CHECK(refused("name: small", "name: ../x").find("metadata.name: is \"../x\"; it must be 1 to 63") !=
        std::string::npos);
  CHECK(refused("num_key_value_heads: 4", "num_key_value_heads: 3").find("spec.model.num_key_value_heads: is 3") !=
        std::string::npos);
  CHECK(refused("  search:", "  replan: {drift: 15%}\n  search:").find("does not plan again") != std::string::npos);
  CHECK(ParseManifest(std::string(2 << 20, ' ')).status().message() ==
        "manifest: has 2097152 bytes; at most 1048576 are taken");
}

TEST_CASE("A damaged manifest is refused or is a valid job") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  const std::string text = WriteManifest(ParseJobFile(Job(), "job.yaml", "/jobs").value());
  int taken = 0;
  for (int i = 0; i < 1000; ++i) {
    std::string damaged = text;
    damaged[random() % damaged.size()] = static_cast<char>(random());
    const auto job = ParseManifest(damaged);
    if (job.ok()) {
      ++taken;
      CHECK(ParseManifest(WriteManifest(*job)).value() == *job);
    } else {
      CHECK(job.status().code() == absl::StatusCode::kInvalidArgument);
    }
  }
  CHECK(taken > 0);
}

TEST_CASE("The reference of a job is the golden one") {
  CHECK(ExplainJob().Text() == ReadFile(kGolden + "/explain-job.txt", 1 << 20).value());
}

}  // namespace
}  // namespace geopipe
