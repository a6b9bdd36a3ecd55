#include "agent/keeper.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <deque>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include "agent/keeper_core.h"
#include "agent/kept/keeper_table.h"
#include "agent/kept/kept_process.h"
#include "agent/kept/worker_log.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/clock.h"
#include "runtime/base/files.h"
#include "runtime/base/log.h"
#include "runtime/base/packet_socket.h"
#include "runtime/base/poll.h"
#include "runtime/base/process.h"
#include "runtime/base/shutdown.h"
#include "runtime/base/unique_fd.h"

namespace geopipe::agent {
namespace {

constexpr int64_t kAcceptRestNs = 100'000'000;  // after a connection that could not be accepted
constexpr size_t kMaxWaitingNews = 16'384;  // an agent that leaves more unread is dismissed; it then asks for the list

constexpr const char* kMemoryName = "geopipe-states";
constexpr const char* kLibraryFlag = "--gpu-library";  // of the worker program

std::string_view TextOf(LeaveKeeper::Reason reason) {
  switch (reason) {
    case LeaveKeeper::Reason::kNothingKept:
      return "there is nothing left to keep";
    case LeaveKeeper::Reason::kNobodyAsks:
      return "no agent has asked for long; all exits are in the table";
    case LeaveKeeper::Reason::kNoFolder:
      return "the state folder is gone, and no worker runs";
    case LeaveKeeper::Reason::kToldTo:
      return "it was told to end, and no worker runs";
  }
  return "";
}

std::string KeeperLockPath(const std::string& state_dir) { return state_dir + "/keeper.lock"; }

class Keeper {
 public:
  Keeper(const KeeperOptions& options, ShutdownSignal& signals, const UniqueFd& lock, UniqueFd listener,
         const v1::KeeperTable& table)
      : options_(options),
        signals_(signals),
        lock_(lock),
        listener_(std::move(listener)),
        boot_id_(BootId()),
        writer_(KeeperTablePath(options.state_dir)),
        core_(Clock::Real().NowNs(), {.leave_grace_ns = options.leave_grace_ns}, table) {
    const std::map<int32_t, v1::KeptWorker> earlier = core_.running();
    for (const auto& [device, child] : earlier) {
      Adopt(child, table.boot_id() == boot_id_);
    }
    for (const RunKey& run : core_.programs()) {
      if (!files_.contains(run)) {
        LogWarning(
            "no worker of this run of job {} is left to take its program over from; its next ones run what is "
            "installed",
            run.job);
        Take(ProgramLost{run});
      }
    }
  }

  LeaveKeeper::Reason Run() {
    while (!left_because_.has_value()) {
      Wait();
      Take(Tick{});
    }
    if (HasFolder()) {  // else the socket of that name is another keeper's
      unlink(KeeperSocketPath(options_.state_dir).c_str());
    }
    return *left_because_;
  }

 private:
  using Deferred = std::variant<TellAgent, ReleaseChild, LeaveKeeper>;

  void Take(KeeperEvent event) {
    events_.push_back(std::move(event));
    while (!events_.empty()) {  // with the answers to its effects
      event = std::move(events_.front());
      events_.pop_front();
      for (KeeperEffect& effect : core_.Step(Clock::Real().NowNs(), std::move(event))) {
        std::visit([this](auto& e) { Carry(e); }, effect);
      }
    }
  }

  // Takes over a worker of an earlier keeper, or finds that it has ended.
  void Adopt(const v1::KeptWorker& child, bool same_boot) {
    UniqueFd pidfd = same_boot ? OpenPidfd(child.pid()) : UniqueFd();
    const WorkerKey key{child.worker().device(), child.worker().incarnation()};
    if (pidfd.valid() && StartTicks(child.pid()) == child.start_ticks()) {
      LogInfo("took the worker of device {} over (pid {})", key.device, child.pid());
      const auto [kept, added] = kept_.emplace(key.device, KeptProcess(std::move(pidfd)));
      if (child.memory_fd() != 0) {
        AdoptMemory(key, child, kept->second);
      }
      AdoptProgram(child, kept->second);
    } else {
      Take(MemoryLost{key});
      Ended(child, {.exit_code = kUnknownExitCode, .signal = 0});
    }
  }

  void AdoptMemory(const WorkerKey& key, const v1::KeptWorker& child, KeptProcess& kept) {
    UniqueFd memory = OpenStateMemory(child.pid(), child.memory_fd());
    if (memory.valid() && !kept.Ended().has_value()) {  // else the process of this number may have been another
      memory_[key.device] = std::move(memory);
      return;
    }
    LogWarning("cannot take over the memory of the worker of device {}; its successor will not find its states",
               key.device);
    Take(MemoryLost{key});
  }

  void AdoptProgram(const v1::KeptWorker& child, KeptProcess& kept) {
    const RunKey run{child.worker().job(), child.run_incarnation()};
    if (run.incarnation == 0 || child.program_inode() == 0 || files_.contains(run)) {
      return;
    }
    RunFiles files = OpenRunFilesOf(child);
    if (files.program.valid() && !kept.Ended().has_value()) {  // else the process of this number may have been another
      files_[run] = std::move(files);
    }
  }

  void Ended(const v1::KeptWorker& child, const ExitStatus& status) {
    Take(ChildEnded{{child.worker().device(), child.worker().incarnation()},
                    status.exit_code,
                    status.signal,
                    LastWords(child.log_path(), child.log_start(), options_.last_words_bytes)});
  }

  void Wait() {
    const int64_t now_ns = Clock::Real().NowNs();
    const bool accepts = now_ns >= accept_at_ns_;
    std::vector<pollfd> watched = {
        {.fd = accepts ? listener_.get() : -1, .events = POLLIN, .revents = 0},
        {.fd = agent_.get(), .events = static_cast<int16_t>(news_.empty() ? POLLIN : POLLIN | POLLOUT), .revents = 0},
        {.fd = writer_.fd(), .events = POLLIN, .revents = 0},
        {.fd = signals_.fd(), .events = POLLIN, .revents = 0}};
    for (const auto& [device, kept] : kept_) {
      watched.push_back({.fd = kept.pidfd(), .events = POLLIN, .revents = 0});
    }
    int64_t until_ns = std::min(core_.next_deadline_ns(), next_look_ns_);
    if (!accepts) {
      until_ns = std::min(until_ns, accept_at_ns_);
    }
    PollFor(watched, std::max<int64_t>(until_ns - now_ns, 0));
    if (watched[2].revents != 0) {
      OnWritten(writer_.Take());
    }
    // The other signals are a terminal's, meant for those that started this process.
    if (watched[3].revents != 0 && signals_.Wait(0) == SIGTERM) {
      Take(ToldToLeave{});
    }
    if (watched[1].revents != 0) {
      Hear();
      SendNews();
    }
    if (watched[0].revents != 0) {
      Accept();
    }
    Reap();
    if (Clock::Real().NowNs() >= next_look_ns_) {
      CutLogs();
      Take(FolderSeen{HasFolder()});
    }
  }

  // False when the state folder is gone, or is another one. An error that does not tell counts as true.
  bool HasFolder() const {
    struct stat ours {};
    struct stat now {};
    if (fstat(lock_.get(), &ours) != 0) {
      return true;
    }
    if (stat(KeeperLockPath(options_.state_dir).c_str(), &now) != 0) {
      return errno != ENOENT && errno != ENOTDIR;
    }
    return ours.st_dev == now.st_dev && ours.st_ino == now.st_ino;
  }

  void Reap() {
    for (auto at = kept_.begin(); at != kept_.end();) {
      const std::optional<ExitStatus> status = at->second.Ended();
      if (!status.has_value()) {
        ++at;
        continue;
      }
      v1::KeptWorker child = core_.running().at(at->first);
      child.set_log_start(cut_.erase(at->first) > 0 ? 0 : child.log_start());
      at = kept_.erase(at);
      Ended(child, *status);
      next_look_ns_ = 0;
    }
  }

  void CutLogs() {
    next_look_ns_ = Clock::Real().NowNs() + options_.look_interval_ns;
    for (const auto& [device, child] : core_.running()) {
      if (HasFolder() && CutLog(child.log_path(), child.log_bytes())) {
        cut_.insert(device);
      }
    }
  }

  void Accept() {
    UniqueFd fd = AcceptPackets(listener_.get());
    if (!fd.valid()) {  // without a descriptor for it, it would wait there to be seen again at once
      accept_at_ns_ = Clock::Real().NowNs() + kAcceptRestNs;
      return;
    }
    CloseAgent();
    agent_ = std::move(fd);
    Take(AgentConnected{++agent_id_});
  }

  void Hear() {
    std::string packet;
    while (agent_.valid()) {
      const PacketResult result = TryReceivePacket(agent_.get(), kMaxKeeperPacketBytes, packet);
      if (result == PacketResult::kWait) {
        return;
      }
      if (result == PacketResult::kClosed) {
        CloseAgent();
        Take(AgentLeft{agent_id_});
        return;
      }
      v1::KeeperRequest request;
      if (packet.size() > kMaxKeeperPacketBytes || !request.ParseFromString(packet)) {
        LogWarning("passed over a malformed request of {} bytes", packet.size());
        continue;
      }
      Take(AgentAsked{agent_id_, std::move(request)});
    }
  }

  void CloseAgent() {
    agent_.Reset();
    news_.clear();
  }

  void SendNews() {
    while (agent_.valid() && !news_.empty()) {
      const PacketResult result = TrySendPacket(agent_.get(), news_.front());
      if (result == PacketResult::kWait) {
        return;
      }
      if (result == PacketResult::kClosed) {  // its end is read, too
        ShutDownPackets(agent_.get());
        news_.clear();
        return;
      }
      news_.pop_front();
    }
  }

  // The number of the memory that a worker is to have; 0: it has none.
  int32_t MemoryFor(const Spawn& effect) {
    if (!effect.start.takes_memory()) {
      return 0;
    }
    const int32_t device = effect.start.worker().device();
    if (!effect.hands_memory_on || !memory_.contains(device)) {
      UniqueFd memory(memfd_create(kMemoryName, MFD_CLOEXEC));
      if (!memory.valid()) {
        LogWarning("{}; states of the worker of device {} do not outlive it",
                   std::string(ErrnoStatus(errno, "cannot make shared memory").message()), device);
        return 0;
      }
      memory_[device] = std::move(memory);
    }
    return memory_.at(device).get();
  }

  // The files that are kept open for the worker's run; nullptr: none are, and it executes what is installed.
  const RunFiles* FilesFor(const Spawn& effect) {
    const v1::KeeperStart& start = effect.start;
    if (effect.program == Spawn::Program::kInstalled) {
      return nullptr;
    }
    const RunKey run{start.worker().job(), start.run_incarnation()};
    if (effect.program == Spawn::Program::kOpened) {
      RunFiles files = OpenRunFiles(start.program());
      if (!files.program.valid()) {
        LogWarning("{}; the next worker of this run may run another program",
                   std::string(ErrnoStatus(errno, fmt::format("cannot open {}", start.program())).message()));
        events_.emplace_back(ProgramLost{run});
        return nullptr;
      }
      files_[run] = std::move(files);
    }
    const RunFiles& files = files_.at(run);
    if (IdentityOf(files.program) != IdentityOf(OpenProgram(start.program()))) {
      LogInfo("the worker of device {} runs the program that its run of job {} began with; {} is another one by now",
              start.worker().device(), run.job, start.program());
    }
    return &files;
  }

  void Carry(Spawn& effect) {
    const v1::KeeperStart& start = effect.start;
    ProcessSpec spec;
    spec.program = start.program();
    spec.args.assign(start.args().begin(), start.args().end());
    for (const v1::KeeperVariable& variable : start.environment()) {
      spec.environment.emplace_back(variable.name(), variable.value());
    }
    spec.inherits_environment = false;
    spec.stdout_path = start.log_path();
    spec.stderr_path = start.log_path();
    spec.parent_death_signal = options_.die_with_parent ? SIGKILL : 0;
    spec.gated = true;
    const int32_t memory_fd = MemoryFor(effect);
    if (memory_fd != 0) {
      spec.inherited_fds = {memory_fd};
      spec.args.insert(spec.args.end(), {"--kept-memory-fd", std::to_string(memory_fd)});
    }
    MoveLogAside(start.log_path(), start.log_bytes());
    const RunFiles* const files = FilesFor(effect);
    spec.program_fd = files == nullptr ? -1 : files->program.get();
    const bool brings_library =
        files != nullptr && files->gpu_library.valid() && std::ranges::find(spec.args, kLibraryFlag) == spec.args.end();
    if (brings_library) {
      const int fd = files->gpu_library.get();
      spec.inherited_fds.push_back(fd);
      spec.args.insert(spec.args.end(), {kLibraryFlag, fmt::format("/proc/self/fd/{}", fd)});
    }
    v1::KeptWorker child;
    *child.mutable_worker() = start.worker();
    child.set_log_path(start.log_path());
    child.set_log_start(FileSize(start.log_path()));
    child.set_log_bytes(start.log_bytes());
    child.set_memory_fd(memory_fd);
    if (files != nullptr) {
      const FileIdentity program = IdentityOf(files->program);
      child.set_program_device(program.device);
      child.set_program_inode(program.inode);
    }
    if (brings_library) {
      const FileIdentity library = IdentityOf(files->gpu_library);
      child.set_gpu_library_fd(files->gpu_library.get());
      child.set_gpu_library_device(library.device);
      child.set_gpu_library_inode(library.inode);
    }
    absl::StatusOr<Process> process = Process::Start(spec);
    if (!process.ok()) {
      if (!effect.hands_memory_on) {
        memory_.erase(start.worker().device());
      }
      events_.emplace_back(ChildFailed{start.worker(), process.status()});
      return;
    }
    child.set_pid(process->pid());
    child.set_start_ticks(StartTicks(process->pid()));
    kept_.emplace(start.worker().device(), KeptProcess(*std::move(process)));
    events_.emplace_back(ChildStarted{std::move(child)});
  }

  // Does what waits for tables up to this one.
  void OnWritten(TableWriter::Written written) {
    if (!written.status.ok()) {
      LogError("{}; no worker starts until it can be written, and the next keeper may not know that a worker ended",
               std::string(written.status.message()));
    }
    saved_ = std::move(written.status);
    written_ = std::max(written_, written.version);
    while (!deferred_.empty() && deferred_.front().first <= written_) {
      Deferred effect = std::move(deferred_.front().second);
      deferred_.pop_front();
      std::visit([this](auto& each) { Do(each); }, effect);
    }
  }

  void Carry(ReleaseChild& effect) { DoWhenSaved(std::move(effect)); }
  void Carry(LeaveKeeper& effect) { DoWhenSaved(std::move(effect)); }
  void Carry(TellAgent& effect) {
    if (effect.news.has_pong()) {
      Do(effect);  // says that this keeper is there, whatever its disk does
    } else {
      DoWhenSaved(std::move(effect));
    }
  }

  template <class Effect>
  void DoWhenSaved(Effect effect) {
    if (written_ < issued_) {
      deferred_.emplace_back(issued_, std::move(effect));
    } else {
      Do(effect);
    }
  }

  void Do(ReleaseChild& effect) {
    const auto at = kept_.find(effect.worker.device);
    const auto child = core_.running().find(effect.worker.device);
    if (at == kept_.end() || child == core_.running().end() ||
        child->second.worker().incarnation() != effect.worker.incarnation) {
      return;  // it has ended meanwhile
    }
    absl::Status status = saved_;
    if (status.ok()) {
      status = at->second.Release();
    } else {  // the next keeper would not know it, and start another beside it
      at->second.Discard();
    }
    if (status.ok()) {
      events_.emplace_back(ChildReleased{effect.worker});
    } else {
      kept_.erase(at);
      events_.emplace_back(ChildFailed{child->second.worker(), std::move(status)});
    }
  }

  void Carry(SignalChild& effect) {
    if (const auto at = kept_.find(effect.worker.device); at != kept_.end()) {
      at->second.Signal(effect.signal);
    }
  }

  void Carry(DropMemory& effect) { memory_.erase(effect.device); }
  void Carry(DropProgram& effect) { files_.erase(effect.run); }

  void Carry(TakeMemory& effect) {
    UniqueFd memory = agent_.valid() ? OpenStateMemory(PeerPid(agent_.get()), effect.fd) : UniqueFd();
    if (memory.valid()) {
      LogInfo("took the memory of device {} over from the agent", effect.device);
      memory_[effect.device] = std::move(memory);
    } else {
      events_.emplace_back(MemoryGone{effect.device});
    }
  }

  void Do(TellAgent& effect) {
    if (effect.connection != agent_id_ || !agent_.valid()) {
      return;
    }
    if (news_.size() >= kMaxWaitingNews) {
      ShutDownPackets(agent_.get());  // the agent connects again and gets the list
      return;
    }
    news_.push_back(effect.news.SerializeAsString());
    SendNews();
  }

  void Carry(SaveTable& effect) {
    ++issued_;
    if (!HasFolder()) {  // else the table there is another keeper's
      OnWritten({issued_, absl::NotFoundError(fmt::format("{} is gone", options_.state_dir))});
      return;
    }
    effect.table.set_boot_id(boot_id_);
    writer_.Write(issued_, effect.table.SerializeAsString());
  }

  static void Carry(WriteLog& effect) { LogLine(effect.level, LogContext{}, effect.text); }
  void Do(LeaveKeeper& effect) {
    if (agent_.valid() && effect.reason != LeaveKeeper::Reason::kToldTo) {
      return;  // it has come meanwhile
    }
    if (effect.reason == LeaveKeeper::Reason::kNobodyAsks && !saved_.ok()) {
      events_.emplace_back(MustStay{});
    } else {
      left_because_ = effect.reason;
    }
  }

  const KeeperOptions options_;
  ShutdownSignal& signals_;
  const UniqueFd& lock_;
  const UniqueFd listener_;
  const std::string boot_id_;
  TableWriter writer_;
  uint64_t issued_ = 0;  // tables that the writer was given, and those that it is done with
  uint64_t written_ = 0;
  std::deque<std::pair<uint64_t, Deferred>> deferred_;  // until that table is written
  KeeperCore core_;
  std::deque<KeeperEvent> events_;
  std::map<int32_t, KeptProcess> kept_;  // by device; those of core_.running()
  std::map<int32_t, UniqueFd> memory_;   // by device; what its worker keeps its states in, or the last one has left
  std::map<RunKey, RunFiles> files_;     // that the workers of a run use; those of core_.programs()
  std::set<int32_t> cut_;                // devices whose log was cut while their worker ran
  UniqueFd agent_;
  KeeperConnection agent_id_ = 0;
  absl::Status saved_;            // of the latest table that was written
  std::deque<std::string> news_;  // for the agent
  int64_t next_look_ns_ = 0;      // at logs and the folder
  int64_t accept_at_ns_ = 0;
  std::optional<LeaveKeeper::Reason> left_because_;
};

}  // namespace

UniqueFd OpenStateMemory(int64_t pid, int32_t number) {
  UniqueFd fd(open(fmt::format("/proc/{}/fd/{}", pid, number).c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  std::error_code error;
  const std::string name = std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", fd.get()), error).string();
  return !error && name.starts_with(fmt::format("/memfd:{} ", kMemoryName)) ? std::move(fd) : UniqueFd();
}

std::string KeeperSocketPath(const std::string& state_dir) { return state_dir + "/keeper.sock"; }

absl::Status RunKeeper(const KeeperOptions& options) {
  // Leaves the agent's session, so that signals that a terminal or the agent's supervisor sends to it do not reach the
  // workers.
  setsid();
  GP_ASSIGN_OR_RETURN(const std::unique_ptr<ShutdownSignal> signals, ShutdownSignal::Install());
  GP_ASSIGN_OR_RETURN(const UniqueFd lock, LockFile(KeeperLockPath(options.state_dir)));
  GP_ASSIGN_OR_RETURN(UniqueFd listener, ListenForPackets(KeeperSocketPath(options.state_dir)));
  LogInfo("keeper of {} (pid {})", options.state_dir, getpid());
  Keeper keeper(options, *signals, lock, std::move(listener), ReadKeeperTable(options.state_dir));
  LogInfo("{}", TextOf(keeper.Run()));
  return absl::OkStatus();
}

}  // namespace geopipe::agent
