// The training job as its file describes it. Values are in base units; keys, ranges and meanings are rows of
// runtime/manifest/job_schema.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "optimizer/model/attention.h"
#include "optimizer/model/model_spec.h"
#include "optimizer/schedule/schedule_table.h"

namespace geopipe {

enum class DataFormat : uint8_t { kTokens, kText };
enum class TokenDtype : uint8_t { kUint16, kUint32 };
enum class Precision : uint8_t { kFp32, kBf16 };
enum class Recompute : uint8_t { kNone, kSelective, kFull };
inline constexpr size_t kRecomputeModes = 3;
enum class LayerSplit : uint8_t { kAuto, kEven };        // auto: so that stages balance
enum class Recovery : uint8_t { kCheckpoint, kMemory };  // where a state is kept that outlives a worker
enum class SearchMethod : uint8_t { kGenetic, kExhaustive };
// Decides between plans that are nearly as fast as each other.
enum class Prefer : uint8_t { kSpeed, kMemory };

// Tokens of data.tokenizer byte: 256 bytes, begin and end of text.
inline constexpr int64_t kByteTokenizerVocabulary = 258;
inline constexpr int32_t kByteTokenizerBos = 256;
inline constexpr int32_t kByteTokenizerEos = 257;

// Meeting of the documents of a sample: with kPacked attention sees those before, with kReset it begins anew after each
// end of text.
enum class Documents : uint8_t { kPacked, kReset };

struct DataSpec {
  DataFormat format = DataFormat::kTokens;
  std::vector<std::string> paths;  // absolute; for text also globs
  // Share of the samples that each file of tokens gives, by its place in `paths`, relative to the sum; empty: the files
  // are one, in their order.
  std::vector<double> weights;
  TokenDtype dtype = TokenDtype::kUint16;
  bool shuffle = true;
  std::string tokenizer = "byte";
  Documents documents = Documents::kPacked;
  std::optional<int64_t> end_of_text;  // token id, of format tokens where documents are kReset

  // The token after which attention begins anew; nullopt: none. REQUIRES: a valid job's.
  std::optional<int64_t> document_end() const {
    return documents == Documents::kPacked ? std::nullopt
           : format == DataFormat::kText   ? std::optional<int64_t>(kByteTokenizerEos)
                                           : end_of_text;
  }

  friend bool operator==(const DataSpec&, const DataSpec&) = default;
};

// Weights count in millionths, so that shares are exact.
inline constexpr double kDataWeightUnit = 1e-6;
inline constexpr double kMaxDataWeight = 1e6;
// More files of tokens than this are refused: each is opened when a job is prepared.
inline constexpr size_t kMaxTokenFiles = 1024;

struct TrainingSpec {
  int64_t iterations = 0;
  int64_t tokens_per_iteration = 0;
  uint64_t seed = 1;
  double learning_rate = 3e-4;
  int64_t warmup_iterations = 0;
  std::optional<double> min_learning_rate;  // absent: constant after warm-up
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  std::optional<double> grad_clip = 1.0;  // global gradient norm; absent: no clipping, and nothing waits for the norm

  friend bool operator==(const TrainingSpec&, const TrainingSpec&) = default;
};

// Model states that are kept in the host's memory instead of the device's (arXiv 2101.06840).
enum class Offload : uint8_t { kNone, kOptimizer };

// 0 stands for `auto`.
struct ParallelismSpec {
  int64_t tensor = 0;
  int64_t pipeline = 0;
  int64_t data = 0;
  int32_t stages_per_rank = 0;  // of the pipeline
  bool sequence_parallel = false;
  std::optional<int32_t> zero_stage;   // 0 to 3; absent: auto
  std::optional<Recompute> recompute;  // absent: auto
  Offload offload = Offload::kNone;
  LayerSplit layers = LayerSplit::kAuto;

  friend bool operator==(const ParallelismSpec&, const ParallelismSpec&) = default;
};

struct SearchSpec {
  std::vector<int64_t> micro_batch_size{1, 2, 4, 8};
  std::vector<int64_t> sequence_length;  // at least one
  std::optional<int32_t> max_delta_n;    // absent: as memory allows
  ScheduleKind schedule = ScheduleKind::kAuto;
  Prefer prefer = Prefer::kSpeed;
  uint64_t seed = 1;
  int64_t time_budget_ns = 60'000'000'000;
  int64_t max_evaluations = 4096;

  friend bool operator==(const SearchSpec&, const SearchSpec&) = default;
};

struct PlacementSpec {
  std::vector<std::string> sites;  // pipeline order; empty: auto

  friend bool operator==(const PlacementSpec&, const PlacementSpec&) = default;
};

struct CheckpointSpec {
  std::string path;   // empty: no checkpoints
  int64_t every = 0;  // iterations; 0: only the last state, and those requested
  int64_t keep = 3;
  int32_t replicate = 0;

  friend bool operator==(const CheckpointSpec&, const CheckpointSpec&) = default;
};

// Losses on data that is not trained on, by forward-only iterations between those of the training.
struct EvaluationSpec {
  int64_t every = 0;       // iterations between evaluations; 0: only after the last
  DataSpec data;           // no paths: nothing is evaluated
  int64_t iterations = 1;  // forward-only, of tokens_per_iteration each

  // True when the weights before `iteration` are evaluated, in a job whose last iteration is the one before `end`.
  bool IsDue(int64_t iteration, int64_t end) const {
    return !data.paths.empty() && iteration > 0 && (iteration == end || (every > 0 && iteration % every == 0));
  }

  friend bool operator==(const EvaluationSpec&, const EvaluationSpec&) = default;
};

// Reaction to a node or a site that is gone for longer than JobSpec::grace_ns.
enum class OnSiteLoss : uint8_t {
  kReplan,  // the job continues without it, if it can, and uses it again when it is back
  kWait,    // the job waits for it
};

struct ReplanSpec {
  double drift = 0.15;
  double min_gain = 0.03;
  int64_t cooldown = 10;  // iterations
  bool allow_numeric_change = false;

  friend bool operator==(const ReplanSpec&, const ReplanSpec&) = default;
};

struct JobSpec {
  std::string name;
  ModelSpec model;
  std::string init_from;  // Hugging Face directory or checkpoint (absolute); empty: random weights from training.seed
  DataSpec data;
  TrainingSpec training;
  Precision precision = Precision::kFp32;
  ParallelismSpec parallelism;
  SearchSpec search;
  PlacementSpec placement;
  CheckpointSpec checkpoint;
  EvaluationSpec evaluation;
  Recovery recovery = Recovery::kCheckpoint;
  OnSiteLoss on_site_loss = OnSiteLoss::kReplan;
  int64_t grace_ns = 30'000'000'000;
  ReplanSpec replan;
  // The attention of the backend that the job is planned for, which the file does not say (JobOnCluster).
  Attention attention = Attention::kBlocked;
  // True where the devices have a memory of their own beside the host's, and the GPU's backend computes (JobOnCluster).
  bool own_memory = false;

  bool evaluates() const { return !evaluation.data.paths.empty(); }

  friend bool operator==(const JobSpec&, const JobSpec&) = default;
};

// Most stages on one pipeline rank: that the planner tries, and that a job can ask for.
inline constexpr int32_t kMaxTriedStagesPerRank = 8;
inline constexpr int32_t kMaxStagesPerRank = 64;

// Fewest stages that every pipeline rank of a plan for the job has.
int32_t MinStagesPerRank(const JobSpec& job);

// Most micro-batches of one iteration; choices of b and s that make more are left out.
inline constexpr int64_t kMaxMicroBatches = int64_t{1} << 16;

// Most extra forward micro-batches at one crossing.
inline constexpr int32_t kMaxDeltaN = 1024;

// Greatest ΔN that rules and genomes try: the job's, or a few where the job leaves it open. A few are enough:
// CandidateModel::max_delta_n adds what hides a crossing, and schedules made to measure run as far ahead as memory
// allows.
inline constexpr int32_t kTriedDeltaN = 8;
inline int32_t MaxDeltaN(const JobSpec& job) { return job.search.max_delta_n.value_or(kTriedDeltaN); }

// Names become parts of file and cgroup names on every node.
inline constexpr std::string_view kJobNameRule = "1 to 63 of [a-z0-9.-], first [a-z0-9]";
bool IsJobName(std::string_view name);

// Rules that span keys (tokens_per_iteration divisible by some b·s, sequence length within max_position_embeddings,
// tensor dividing heads, …). InvalidArgument names the key and the remedy. REQUIRES: every value in the range of its
// key.
absl::Status ValidateJob(const JobSpec& job);

}  // namespace geopipe
