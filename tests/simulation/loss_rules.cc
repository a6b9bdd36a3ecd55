#include "tests/simulation/loss_rules.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace geopipe::simulation {
namespace {

// Time for the consequences of a long cut of the data path to be told.
constexpr int64_t kPatienceNs = 60 * kSecondNs;

// A job that has one goes on whatever it loses.
bool HasEpoch(const StoredJob& stored) {
  const JobState state = stored.detail.summary().state();
  return state == v1::JOB_STATE_RUNNING || state == v1::JOB_STATE_PAUSED || state == v1::JOB_STATE_RECOVERING ||
         (state == v1::JOB_STATE_DEPLOYING ? stored.record.epoch().number() > 1 : stored.detail.epochs_size() > 0);
}

}  // namespace

void LossRules::OnFailed(const std::string& name, const std::string& cause) {
  const StoredJob& stored = *disk_.Find(name);
  if (recover_ && HasEpoch(stored)) {
    const auto says = [&](std::string_view words) { return cause.find(words) != std::string::npos; };
    const JobTruth* truth = ledger_.Find(name);
    const bool has_never_trained = truth != nullptr && truth->epoch == 0 && says("a file cannot be opened");
    if (!has_never_trained && !IsGone(name, cause) && !IsOlder(name, cause) &&
        !(ledger_.excused(name) && says(" times within an hour: "))) {
      world_.Break(fmt::format("job {} fails and could go on: {}", name, cause));
    }
    return;
  }
  // Some nodes may have newer checkpoints than those that were listed, or others of the same iteration.
  const JobSpec& spec = user_.jobs().at(name).spec;
  const bool none_is_left = std::ranges::all_of(nodes_, [&](const auto& node) {
    return std::ranges::find(spec.placement.sites, node->site()) == spec.placement.sites.end() ||
           node->checkpoints().Complete(spec.checkpoint.path).empty();
  });
  const bool cannot_resume =
      user_.jobs().at(name).resumes && (cause.find("give it more training.iterations") != std::string::npos ||
                                        cause.find("is of another run on node") != std::string::npos ||
                                        (none_is_left && cause.find("no node has a checkpoint") != std::string::npos));
  if (!cannot_resume && !IsGone(name, cause) && !IsOlder(name, cause) && !MayLose(name, stored)) {
    world_.Break(fmt::format("job {} fails without a cause: {}", name, cause));
  }
}

// True when the cause is a checkpoint that cannot be read, and its missing files went with some disk.
bool LossRules::IsGone(const std::string& name, const std::string& cause) const {
  // An older store lists checkpoints that have given way to newer ones since.
  const bool some_lost = ledger_.FindForgotten(name) != nullptr ||
                         std::ranges::any_of(nodes_, [](const auto& node) { return node->checkpoints().lost(); });
  constexpr std::string_view kLacks = "no source has ";
  constexpr std::string_view kOf = " of iteration ";
  const size_t lacks = cause.find(kLacks);
  const size_t of = cause.find(kOf, lacks == std::string::npos ? 0 : lacks);
  if (lacks == std::string::npos || of == std::string::npos) {
    return some_lost && (lacks != std::string::npos || cause.find("there is no checkpoint") != std::string::npos);
  }
  const std::string file = cause.substr(lacks + kLacks.size(), of - lacks - kLacks.size());
  const int64_t iteration = std::stoll(cause.substr(of + kOf.size()));
  const JobSpec& spec = user_.jobs().at(name).spec;
  return some_lost && std::ranges::none_of(nodes_, [&](const auto& node) {
           const CheckpointFolder* folder = node->checkpoints().Find(spec.checkpoint.path, iteration);
           return std::ranges::find(spec.placement.sites, node->site()) != spec.placement.sites.end() &&
                  folder != nullptr && folder->files.contains(file);
         });
}

// True when the cause is that the store is older, and it is.
bool LossRules::IsOlder(const std::string& name, const std::string& cause) const {
  const Forgotten* forgotten = ledger_.FindForgotten(name);
  if (forgotten == nullptr) {
    return false;
  }
  if (cause.starts_with("the job store is older than this run")) {
    return forgotten->outrun;
  }
  return cause.find("of a later run of this job than the job store knows") != std::string::npos ||
         cause.find("has checkpoints of another run there") != std::string::npos ||
         // It goes on from an earlier application, whose checkpoints may have given way; or had ended, and its workers
         // too.
         cause.find("no node has a checkpoint") != std::string::npos ||
         cause.find(" times within an hour: ") != std::string::npos;
}

void LossRules::OnRecovering(const std::string& name, const std::string& cause) {
  // A second loss is told without its cause.
  if (!IsGone(name, cause) && !IsGone(name, ledger_.RefusedLately(name)) && !IsOlder(name, cause) &&
      !MayLose(name, *disk_.Find(name))) {
    world_.Break(fmt::format("job {} recovers without a cause: {}", name, cause));
  }
  // The first time at once, then after at least half of 1, 2, 4, 8 s, or where nodes are in trouble of 1, 2, 3, 3 s:
  // five starts. Workers of three nodes may be lost at each, and of each as many as there are replicas.
  const size_t most = 16 * static_cast<size_t>(user_.jobs().at(name).spec.parallelism.data);
  constexpr int64_t kWithinNs = 6 * kSecondNs;
  const int64_t progress_ns = user_.ProgressOf(name);
  std::deque<int64_t>& times_ns = recoveries_ns_[name];
  std::erase_if(times_ns, [&](int64_t at_ns) { return at_ns < progress_ns; });
  times_ns.push_back(world_.now_ns());
  if (times_ns.size() > most && times_ns.back() - times_ns[times_ns.size() - most] < kWithinNs) {
    world_.Break(fmt::format("job {} recovers again and again, and does not wait", name));
  }
}

// Something was done to it, or nobody could tell that nothing was.
bool LossRules::MayLose(const std::string& name, const StoredJob& stored) const {
  const UserJob& job = user_.jobs().at(name);
  const int64_t now_ns = world_.now_ns();
  const std::vector<std::string>& sites = job.spec.placement.sites;
  // Patience with peers is less than that of those who wait for the control plane.
  const bool is_cut = std::ranges::any_of(sites, [&](const std::string& site) {
    const auto cut = cut_until_ns_.find(site);
    return cut != cut_until_ns_.end() && now_ns < cut->second + kPatienceNs;
  });
  // Workers that an older store knows may have ended long ago.
  const Forgotten* forgotten = ledger_.FindForgotten(name);
  const bool may_miss = forgotten != nullptr && forgotten->heard_ns < kPatienceNs;
  if (ledger_.excused(name) || is_cut || may_miss) {
    return true;
  }
  const bool trains = job.state == v1::JOB_STATE_RUNNING;
  // A job that can leave a site does so earlier than its workers end by themselves.
  const int64_t silence_ns = job.spec.on_site_loss == OnSiteLoss::kReplan
                                 ? std::min(Reach::kSilenceNs, job.spec.grace_ns - 3 * kSecondNs)
                                 : Reach::kSilenceNs;
  const int64_t grace_ns = silence_ns == Reach::kSilenceNs ? plane_.GraceOf(name) : job.spec.grace_ns;
  const bool progresses = trains && now_ns - user_.ProgressOf(name) < grace_ns - 5 * kSecondNs;
  // A job at rest needs nobody to do anything but tell.
  const bool rests = stored.detail.summary().state() == v1::JOB_STATE_PAUSED ||
                     (trains && (user_.NextOf(name) == job.spec.training.iterations || job.pause_early));
  const bool silent = std::ranges::any_of(sites, [&](const std::string& site) {
    return reach_.silent_ns(site) >= silence_ns || reach_.returned_for_ns(site, silence_ns) < 15 * kSecondNs;
  });
  return !rests && ((silent && !progresses) || (!trains && job.unreachable_ns >= 15 * kSecondNs));
}

}  // namespace geopipe::simulation
