#include "coordinator/job_store.h"

#include <fmt/format.h>
#include <sqlite3.h>
#include <sys/stat.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "coordinator/core/run/kept_name.h"
#include "coordinator/job_store_backup.h"
#include "coordinator/job_store_seal.h"
#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "proto/wire/control_wire.h"
#include "runtime/base/file_format.h"

namespace geopipe {
namespace {

constexpr int64_t kSchemaVersion = 7;
constexpr int64_t kOldestSchemaVersion = 2;
constexpr int64_t kApplicationId = 0x67656f70;  // "geop"; what file(1) and we know our databases by
constexpr uint64_t kIncarnationsApart = uint64_t{1} << 32;

constexpr const char* kCreateJobs = R"sql(
  CREATE TABLE schema_version (version INTEGER NOT NULL);
  CREATE TABLE jobs (
    name TEXT PRIMARY KEY, submitted INTEGER NOT NULL, state INTEGER NOT NULL,
    manifest TEXT NOT NULL, run BLOB NOT NULL, outcome BLOB NOT NULL) STRICT;
  CREATE TABLE transitions (
    job TEXT NOT NULL REFERENCES jobs(name) ON DELETE CASCADE, seq INTEGER NOT NULL, state INTEGER NOT NULL,
    unix_time_ns INTEGER NOT NULL, cause TEXT NOT NULL, PRIMARY KEY (job, seq)) STRICT, WITHOUT ROWID;
  INSERT INTO schema_version VALUES (2);
)sql";

// Additions of schema 3.
constexpr const char* kAddProgress = R"sql(
  ALTER TABLE jobs ADD COLUMN record BLOB NOT NULL DEFAULT x'';
  CREATE TABLE coordinator (incarnation INTEGER NOT NULL) STRICT;
  CREATE TABLE iterations (
    job TEXT NOT NULL REFERENCES jobs(name) ON DELETE CASCADE, iteration INTEGER NOT NULL, summary BLOB NOT NULL,
    PRIMARY KEY (job, iteration)) STRICT, WITHOUT ROWID;
  CREATE TABLE partial_reports (
    job TEXT NOT NULL REFERENCES jobs(name) ON DELETE CASCADE, iteration INTEGER NOT NULL, rank INTEGER NOT NULL,
    report BLOB NOT NULL, PRIMARY KEY (job, iteration, rank)) STRICT, WITHOUT ROWID;
  CREATE TABLE links (
    from_site TEXT NOT NULL, to_site TEXT NOT NULL, from_traffic INTEGER NOT NULL, unix_time_ns INTEGER NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (from_site, to_site)) STRICT, WITHOUT ROWID;
  UPDATE schema_version SET version = 3;
)sql";

// Additions of schema 4.
constexpr const char* kAddDrainedSites = R"sql(
  CREATE TABLE drained_sites (site TEXT PRIMARY KEY) STRICT, WITHOUT ROWID;
  UPDATE schema_version SET version = 4;
)sql";

// Adds what is new in schema 5.
constexpr const char* kAddTimelines = R"sql(
  CREATE TABLE timelines (
    job TEXT NOT NULL REFERENCES jobs(name) ON DELETE CASCADE, iteration INTEGER NOT NULL, timeline BLOB NOT NULL,
    PRIMARY KEY (job, iteration)) STRICT, WITHOUT ROWID;
  UPDATE schema_version SET version = 5;
)sql";

// Adds what is new in schema 6.
constexpr const char* kAddFederation = R"sql(
  CREATE TABLE federation (id TEXT NOT NULL) STRICT;
  CREATE INDEX jobs_by_submission ON jobs (submitted);
  INSERT INTO federation VALUES (lower(hex(randomblob(8))));
  UPDATE schema_version SET version = 6;
)sql";

// Seals the messages of schema 6.
constexpr const char* kAddSeals = R"sql(
  UPDATE jobs SET run = sealed(run, manifest), outcome = sealed(outcome, name), record = sealed(record, name);
  UPDATE iterations SET summary = sealed(summary, job, iteration);
  UPDATE partial_reports SET report = sealed(report, job, iteration, rank);
  UPDATE timelines SET timeline = sealed(timeline, job, iteration);
  UPDATE links SET value = sealed(value, from_site, to_site);
  UPDATE schema_version SET version = 7;
)sql";

struct Closer {
  void operator()(sqlite3* db) const { sqlite3_close_v2(db); }
  void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
};
using Handle = std::unique_ptr<sqlite3, Closer>;

absl::Status Error(sqlite3* db, const std::string& path, std::string_view doing) {
  const int code = sqlite3_errcode(db) & 0xff;
  const char* text = sqlite3_errmsg(db);
  switch (code) {
    case SQLITE_FULL:
      return absl::ResourceExhaustedError(fmt::format(
          "the job store {} could not be {}: the disk is full; free some space or move state_dir", path, doing));
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return absl::DataLossError(fmt::format(
          "the job store {} could not be {}: it is damaged ({}); restore it from a copy, or move it away to begin anew",
          path, doing, text));
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return absl::UnavailableError(fmt::format(
          "the job store {} could not be {}: another process holds it; stop the other coordinator or give this one "
          "another state_dir",
          path, doing));
    case SQLITE_CANTOPEN:
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_AUTH:
      return absl::PermissionDeniedError(fmt::format(
          "the job store {} could not be {}: {}; make sure that state_dir exists and that this user may write there",
          path, doing, text));
    default:
      return absl::InternalError(
          fmt::format("the job store {} could not be {}: {}; check the disk that holds state_dir", path, doing, text));
  }
}

// One prepared statement, reset after each use.
class Statement {
 public:
  Statement() = default;
  explicit Statement(sqlite3_stmt* statement) : statement_(statement) {}

  Statement& Bind(int64_t value) {
    GP_CHECK(sqlite3_bind_int64(statement_.get(), ++bound_, value) == SQLITE_OK);
    return *this;
  }
  // The text must outlive the statement's execution.
  Statement& BindText(std::string_view text) {
    GP_CHECK(sqlite3_bind_text64(statement_.get(), ++bound_, text.data() == nullptr ? "" : text.data(), text.size(),
                                 SQLITE_STATIC, SQLITE_UTF8) == SQLITE_OK);
    return *this;
  }
  Statement& BindBlob(std::string_view bytes) {
    GP_CHECK(sqlite3_bind_blob64(statement_.get(), ++bound_, bytes.data() == nullptr ? "" : bytes.data(), bytes.size(),
                                 SQLITE_STATIC) == SQLITE_OK);
    return *this;
  }
  // SQLITE_ROW, SQLITE_DONE or an error.
  int Step() { return sqlite3_step(statement_.get()); }
  void Reset() {
    sqlite3_reset(statement_.get());
    sqlite3_clear_bindings(statement_.get());
    bound_ = 0;
  }

  int64_t Integer(int column) { return sqlite3_column_int64(statement_.get(), column); }
  std::string Bytes(int column) {
    const void* bytes = sqlite3_column_blob(statement_.get(), column);
    const auto size = static_cast<size_t>(sqlite3_column_bytes(statement_.get(), column));
    return bytes == nullptr ? std::string() : std::string(static_cast<const char*>(bytes), size);
  }

 private:
  std::unique_ptr<sqlite3_stmt, Closer> statement_;
  int bound_ = 0;
};

class SqliteJobStore final : public JobStore {
 public:
  SqliteJobStore(Handle db, std::string path, int64_t iterations_kept)
      : db_(std::move(db)), path_(std::move(path)), iterations_kept_(iterations_kept) {}

  absl::Status Prepare(const JobStoreOptions& options);

  absl::StatusOr<StoredState> Load() override;
  absl::StatusOr<uint64_t> NextIncarnation(int64_t now_unix_ns) override;
  absl::Status InsertJob(const v1::JobDetail& detail, const v1::JobRecord& record, std::string_view forget,
                         int64_t keep_below, std::string_view keep_as) override;
  absl::Status AddTransition(std::string_view job, int64_t sequence, const v1::JobTransition& transition,
                             const v1::JobDetail* outcome, const v1::JobRecord* record,
                             const JobProgress* progress) override;
  absl::Status SetRecord(std::string_view job, const v1::JobRecord& record, const v1::JobDetail* outcome) override;
  absl::Status AddProgress(const std::vector<JobProgress>& progress, const std::vector<StoredLink>& links) override;
  absl::StatusOr<std::vector<v1::IterationSummary>> LoadIterations(std::string_view job) override;
  absl::StatusOr<std::vector<v1::IterationTimeline>> LoadTimelines(std::string_view job) override;
  absl::Status SetDrained(std::string_view site, bool drained) override;
  absl::StatusOr<std::string> Backup(int64_t now_unix_ns) override;

 private:
  absl::Status Fail(std::string_view doing) { return Error(db_.get(), path_, doing); }
  absl::Status Execute(const std::string& sql, std::string_view doing);
  absl::StatusOr<Statement> Compile(std::string_view sql);
  // Runs a statement that returns no rows.
  absl::Status Run(Statement& statement);
  // Returns the number that a query has for its result.
  absl::StatusOr<int64_t> Query(std::string_view sql);
  absl::Status CheckOurs();
  absl::Status CheckWhole();
  absl::Status CheckSchema();
  absl::Status LoadTransitions(v1::JobDetail& detail);
  absl::Status KeepIterations(std::string_view job, int64_t below);
  absl::Status CopyJob(std::string_view job, std::string_view copy);
  absl::Status WriteProgress(const JobProgress& progress);
  absl::Status LoadProgress(StoredJob& job);
  absl::Status LoadLinks(StoredState& state);
  // Calls `take` for each row until it or reading fails; a row for which it returns false is damaged.
  template <class TakeRow>
  absl::Status ForEachRow(Statement& statement, std::string_view what, TakeRow take);
  absl::Status Damaged(std::string_view what) const;
  absl::Status WriteTransition(std::string_view job, int64_t sequence, const v1::JobTransition& transition);
  // `write` within one transaction: all of it is kept, or nothing.
  template <class Write>
  absl::Status Transact(Write write);

  Handle db_;
  const std::string path_;
  const int64_t iterations_kept_;
  Statement begin_;
  Statement commit_;
  Statement rollback_;
  Statement select_jobs_;
  Statement select_transitions_;
  Statement copy_job_;
  Statement copy_transitions_;
  Statement copy_iterations_;
  Statement copy_timelines_;
  Statement delete_job_;
  Statement insert_job_;
  Statement insert_transition_;
  Statement update_state_;
  Statement update_outcome_;
  Statement update_record_;
  Statement insert_iteration_;
  Statement insert_partial_;
  Statement delete_partial_;
  Statement delete_old_iterations_;
  Statement select_iterations_;
  Statement select_partial_;
  Statement select_next_iteration_;
  Statement insert_timeline_;
  Statement delete_timelines_;
  Statement select_timelines_;
  Statement delete_transitions_;
  Statement delete_iterations_from_;
  Statement delete_cut_off_;
  Statement select_links_;
  Statement set_link_;
  Statement select_drained_;
  Statement insert_drained_;
  Statement delete_drained_;
};

absl::Status SqliteJobStore::Execute(const std::string& sql, std::string_view doing) {
  return sqlite3_exec(db_.get(), sql.c_str(), nullptr, nullptr, nullptr) == SQLITE_OK ? absl::OkStatus() : Fail(doing);
}

absl::StatusOr<Statement> SqliteJobStore::Compile(std::string_view sql) {
  sqlite3_stmt* statement = nullptr;
  if (sqlite3_prepare_v3(db_.get(), sql.data(), static_cast<int>(sql.size()), SQLITE_PREPARE_PERSISTENT, &statement,
                         nullptr) != SQLITE_OK) {
    return Fail("opened");
  }
  return Statement(statement);
}

absl::Status SqliteJobStore::Prepare(const JobStoreOptions& options) {
  sqlite3_busy_timeout(db_.get(), static_cast<int>(options.busy_timeout_ns / 1'000'000));
  // Exclusive: a second coordinator on the same folder must not get as far as reading it.
  GP_RETURN_IF_ERROR(Execute("PRAGMA locking_mode=EXCLUSIVE; PRAGMA trusted_schema=OFF;", "opened"));
  GP_RETURN_IF_ERROR(CheckOurs());  // before anything in it changes
  GP_RETURN_IF_ERROR(CheckWhole());
  GP_RETURN_IF_ERROR(Execute("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON;", "opened"));
  if (options.max_bytes > 0) {
    constexpr int64_t kPageBytes = 4096;
    GP_RETURN_IF_ERROR(Execute(
        fmt::format("PRAGMA max_page_count={}", std::max<int64_t>(1, options.max_bytes / kPageBytes)), "opened"));
  }
  AddSealFunctions(db_.get());
  GP_RETURN_IF_ERROR(CheckSchema());
  GP_ASSIGN_OR_RETURN(begin_, Compile("BEGIN IMMEDIATE"));
  GP_ASSIGN_OR_RETURN(commit_, Compile("COMMIT"));
  GP_ASSIGN_OR_RETURN(rollback_, Compile("ROLLBACK"));
  GP_ASSIGN_OR_RETURN(select_jobs_,
                      Compile("SELECT name, state, manifest, run, outcome, record FROM jobs ORDER BY submitted"));
  GP_ASSIGN_OR_RETURN(select_transitions_,
                      Compile("SELECT state, unix_time_ns, cause FROM transitions WHERE job = ? ORDER BY seq"));
  GP_ASSIGN_OR_RETURN(copy_job_, Compile("INSERT INTO jobs SELECT ?2, submitted, state, manifest, run, moved(outcome, "
                                         "?1, ?2), moved(record, ?1, ?2) FROM jobs WHERE name = ?1"));
  GP_ASSIGN_OR_RETURN(copy_transitions_, Compile("INSERT INTO transitions SELECT ?2, seq, state, unix_time_ns, cause "
                                                 "FROM transitions WHERE job = ?1"));
  GP_ASSIGN_OR_RETURN(copy_iterations_, Compile("INSERT INTO iterations SELECT ?2, iteration, moved(summary, ?1, ?2, "
                                                "iteration) FROM iterations WHERE job = ?1"));
  GP_ASSIGN_OR_RETURN(copy_timelines_, Compile("INSERT INTO timelines SELECT ?2, iteration, moved(timeline, ?1, ?2, "
                                               "iteration) FROM timelines WHERE job = ?1"));
  GP_ASSIGN_OR_RETURN(delete_job_, Compile("DELETE FROM jobs WHERE name = ?"));
  GP_ASSIGN_OR_RETURN(insert_job_, Compile("INSERT INTO jobs VALUES (?1, (SELECT IFNULL(MAX(submitted), 0) + 1 FROM "
                                           "jobs), ?2, ?3, sealed(?4, ?3), sealed(?5, ?1), sealed(?6, ?1)) "
                                           "ON CONFLICT (name) DO UPDATE SET "
                                           "submitted = excluded.submitted, state = ?2, manifest = ?3, "
                                           "run = excluded.run, outcome = excluded.outcome, record = excluded.record"));
  GP_ASSIGN_OR_RETURN(insert_transition_, Compile("INSERT INTO transitions VALUES (?, ?, ?, ?, ?)"));
  GP_ASSIGN_OR_RETURN(update_state_, Compile("UPDATE jobs SET state = ? WHERE name = ?"));
  GP_ASSIGN_OR_RETURN(update_outcome_, Compile("UPDATE jobs SET outcome = sealed(?1, ?2) WHERE name = ?2"));
  GP_ASSIGN_OR_RETURN(update_record_, Compile("UPDATE jobs SET record = sealed(?1, ?2) WHERE name = ?2"));
  GP_ASSIGN_OR_RETURN(insert_iteration_,
                      Compile("INSERT OR IGNORE INTO iterations VALUES (?1, ?2, sealed(?3, ?1, ?2))"));
  GP_ASSIGN_OR_RETURN(insert_partial_,
                      Compile("INSERT OR REPLACE INTO partial_reports VALUES (?1, ?2, ?3, sealed(?4, ?1, ?2, ?3))"));
  GP_ASSIGN_OR_RETURN(delete_partial_, Compile("DELETE FROM partial_reports WHERE job = ? AND iteration <= ?"));
  GP_ASSIGN_OR_RETURN(delete_old_iterations_, Compile("DELETE FROM iterations WHERE job = ? AND iteration <= ?"));
  GP_ASSIGN_OR_RETURN(select_iterations_,
                      Compile("SELECT iteration, summary FROM iterations WHERE job = ? ORDER BY iteration"));
  GP_ASSIGN_OR_RETURN(select_partial_,
                      Compile("SELECT report, iteration, rank FROM partial_reports WHERE job = ? ORDER BY iteration"));
  GP_ASSIGN_OR_RETURN(select_next_iteration_, Compile("SELECT IFNULL(MAX(iteration), -1) + 1 FROM iterations "
                                                      "WHERE job = ?"));
  GP_ASSIGN_OR_RETURN(insert_timeline_,
                      Compile("INSERT OR REPLACE INTO timelines VALUES (?1, ?2, sealed(?3, ?1, ?2))"));
  GP_ASSIGN_OR_RETURN(delete_timelines_, Compile("DELETE FROM timelines WHERE job = ?"));
  GP_ASSIGN_OR_RETURN(select_timelines_,
                      Compile("SELECT timeline, iteration FROM timelines WHERE job = ? ORDER BY iteration"));
  GP_ASSIGN_OR_RETURN(delete_transitions_, Compile("DELETE FROM transitions WHERE job = ?"));
  GP_ASSIGN_OR_RETURN(delete_iterations_from_, Compile("DELETE FROM iterations WHERE job = ? AND iteration >= ?"));
  GP_ASSIGN_OR_RETURN(delete_cut_off_,
                      Compile("DELETE FROM iterations WHERE job = ? AND (SELECT MAX(iteration) FROM iterations WHERE "
                              "job = ?) < ?"));
  GP_ASSIGN_OR_RETURN(select_links_,
                      Compile("SELECT from_site, to_site, from_traffic, unix_time_ns, value FROM links"));
  GP_ASSIGN_OR_RETURN(set_link_, Compile("INSERT OR REPLACE INTO links VALUES (?1, ?2, ?3, ?4, sealed(?5, ?1, ?2))"));
  GP_ASSIGN_OR_RETURN(select_drained_, Compile("SELECT site FROM drained_sites"));
  GP_ASSIGN_OR_RETURN(insert_drained_, Compile("INSERT OR IGNORE INTO drained_sites VALUES (?)"));
  GP_ASSIGN_OR_RETURN(delete_drained_, Compile("DELETE FROM drained_sites WHERE site = ?"));
  return absl::OkStatus();
}

absl::StatusOr<int64_t> SqliteJobStore::Query(std::string_view sql) {
  GP_ASSIGN_OR_RETURN(Statement statement, Compile(sql));
  if (statement.Step() != SQLITE_ROW) {
    return Fail("opened");
  }
  return statement.Integer(0);
}

absl::Status SqliteJobStore::CheckOurs() {
  GP_ASSIGN_OR_RETURN(const int64_t id, Query("PRAGMA application_id"));
  GP_ASSIGN_OR_RETURN(const int64_t all, Query("SELECT COUNT(*) FROM sqlite_schema WHERE type = 'table'"));
  GP_ASSIGN_OR_RETURN(const int64_t ours, Query("SELECT COUNT(*) FROM sqlite_schema WHERE type = 'table' AND name IN "
                                                "('schema_version', 'jobs', 'transitions')"));
  const bool is_ours = id == kApplicationId || (id == 0 && (all == 0 || ours == 3));  // 0: from before there was one
  return is_ours ? absl::OkStatus()
                 : absl::FailedPreconditionError(fmt::format(
                       "the job store {} is a database of another program; move it away or choose another state_dir",
                       path_));
}

absl::Status SqliteJobStore::CheckWhole() {
  GP_ASSIGN_OR_RETURN(Statement check, Compile("PRAGMA quick_check(1)"));
  if (check.Step() != SQLITE_ROW) {
    return Fail("read");
  }
  const std::string found = check.Bytes(0);
  return found == "ok" ? absl::OkStatus() : Damaged(fmt::format("its file ({})", found));
}

absl::Status SqliteJobStore::CheckSchema() {
  GP_ASSIGN_OR_RETURN(const int64_t id, Query("PRAGMA application_id"));
  if (id != kApplicationId) {
    GP_RETURN_IF_ERROR(Execute(fmt::format("PRAGMA application_id={}", kApplicationId), "written"));
  }
  GP_ASSIGN_OR_RETURN(Statement tables, Compile("SELECT COUNT(*) FROM sqlite_schema WHERE name = 'schema_version'"));
  if (tables.Step() != SQLITE_ROW) {
    return Fail("opened");
  }
  const bool exists = tables.Integer(0) > 0;
  tables.Reset();
  if (!exists) {
    // The file itself survives the loss of the write-ahead log, and with it the federation that it is of.
    return Execute(fmt::format("BEGIN IMMEDIATE; {} {} {} {} {} {} COMMIT; PRAGMA wal_checkpoint(TRUNCATE);",
                               kCreateJobs, kAddProgress, kAddDrainedSites, kAddTimelines, kAddFederation, kAddSeals),
                   "created");
  }
  GP_ASSIGN_OR_RETURN(Statement version, Compile("SELECT version FROM schema_version"));
  if (version.Step() != SQLITE_ROW) {
    return Fail("opened");
  }
  const int64_t found = version.Integer(0);
  version.Reset();
  if (found >= kOldestSchemaVersion && found < kSchemaVersion) {
    return Execute(fmt::format("BEGIN IMMEDIATE; {} {} {} {} {} COMMIT; PRAGMA wal_checkpoint(TRUNCATE);",
                               found < 3 ? kAddProgress : "", found < 4 ? kAddDrainedSites : "",
                               found < 5 ? kAddTimelines : "", found < 6 ? kAddFederation : "", kAddSeals),
                   "converted");
  }
  if (found != kSchemaVersion) {
    return absl::FailedPreconditionError(
        fmt::format("the job store {} was written by another version of geopipe-coordinator (schema {}; this version "
                    "knows {}); install that version or move the store away",
                    path_, found, kSchemaVersion));
  }
  return absl::OkStatus();
}

absl::Status SqliteJobStore::Run(Statement& statement) {
  const int code = statement.Step();
  absl::Status status = code == SQLITE_DONE ? absl::OkStatus() : Fail("written");
  statement.Reset();
  return status;
}

template <class Write>
absl::Status SqliteJobStore::Transact(Write write) {
  GP_RETURN_IF_ERROR(Run(begin_));
  absl::Status status = write();
  if (status.ok()) {
    status = Run(commit_);
  }
  if (!status.ok() && sqlite3_get_autocommit(db_.get()) == 0) {
    // SQLite has rolled back by itself after the worst errors; the first failure is reported.
    status.Update(Run(rollback_));
  }
  return status;
}

absl::Status SqliteJobStore::Damaged(std::string_view what) const {
  return absl::DataLossError(fmt::format(
      "the job store {} is damaged: {} cannot be read; restore it from a copy, or move it away to begin anew", path_,
      what));
}

template <class TakeRow>
absl::Status SqliteJobStore::ForEachRow(Statement& statement, std::string_view what, TakeRow take) {
  int code = SQLITE_ROW;
  bool taken = true;
  while (taken && (code = statement.Step()) == SQLITE_ROW) {
    taken = take();
  }
  absl::Status status = !taken ? Damaged(what) : code == SQLITE_DONE ? absl::OkStatus() : Fail("read");
  statement.Reset();
  return status;
}

absl::StatusOr<StoredState> SqliteJobStore::Load() {
  StoredState state;
  GP_RETURN_IF_ERROR(ForEachRow(select_jobs_, "a job", [&] {
    StoredJob& job = state.jobs.emplace_back();
    const std::string name = select_jobs_.Bytes(0);
    const std::string manifest = select_jobs_.Bytes(2);
    job.damaged = !Unseal(select_jobs_.Bytes(4), {name}, job.detail) ||
                  !Unseal(select_jobs_.Bytes(3), {manifest}, *job.detail.mutable_run()) ||
                  !Unseal(select_jobs_.Bytes(5), {name}, job.record) ||
                  job.detail.summary().name() != RunNameOf(name).name;
    if (job.damaged) {
      job.record.Clear();
      job.detail.Clear();
    }
    job.detail.mutable_summary()->set_name(name);
    job.detail.set_manifest(manifest);
    job.detail.mutable_summary()->set_state(static_cast<v1::JobState>(select_jobs_.Integer(1)));
    return !name.empty();
  }));
  for (StoredJob& job : state.jobs) {
    GP_RETURN_IF_ERROR(LoadTransitions(job.detail));
    const absl::Status progress = LoadProgress(job);
    const auto& transitions = job.detail.transitions();
    job.damaged = job.damaged || absl::IsDataLoss(progress) ||
                  (!transitions.empty() && transitions.rbegin()->state() != job.detail.summary().state());
    GP_RETURN_IF_ERROR(job.damaged ? absl::OkStatus() : progress);
  }
  GP_RETURN_IF_ERROR(LoadLinks(state));
  GP_ASSIGN_OR_RETURN(Statement federation, Compile("SELECT id FROM federation"));
  GP_RETURN_IF_ERROR(ForEachRow(federation, "the federation's name", [&] {
    state.federation = federation.Bytes(0);
    return !state.federation.empty();
  }));
  GP_RETURN_IF_ERROR(ForEachRow(select_drained_, "a drained site", [&] {
    state.drained_sites.push_back(select_drained_.Bytes(0));
    return true;
  }));
  return state;
}

absl::Status SqliteJobStore::SetDrained(std::string_view site, bool drained) {
  Statement& statement = drained ? insert_drained_ : delete_drained_;
  return Run(statement.BindText(site));
}

absl::StatusOr<std::string> SqliteJobStore::Backup(int64_t now_unix_ns) {
  return MakeBackup(path_, now_unix_ns, [this](const std::string& path) -> absl::Status {
    GP_ASSIGN_OR_RETURN(Statement vacuum, Compile("VACUUM INTO ?"));
    return Run(vacuum.BindText(path));
  });
}

absl::Status SqliteJobStore::LoadProgress(StoredJob& job) {
  const std::string& name = job.detail.summary().name();
  select_next_iteration_.BindText(name);
  GP_RETURN_IF_ERROR(ForEachRow(select_next_iteration_, "a job", [&] {
    job.next_iteration = select_next_iteration_.Integer(0);
    return true;
  }));
  if (IsFinal(job.detail.summary().state())) {
    return absl::OkStatus();
  }
  GP_ASSIGN_OR_RETURN(job.iterations, LoadIterations(name));
  select_partial_.BindText(name);
  return ForEachRow(select_partial_, fmt::format("job {}", name), [&] {
    return Unseal(select_partial_.Bytes(0), {name, select_partial_.Bytes(1), select_partial_.Bytes(2)},
                  job.partial.emplace_back());
  });
}

absl::StatusOr<std::vector<v1::IterationSummary>> SqliteJobStore::LoadIterations(std::string_view job) {
  std::vector<v1::IterationSummary> summaries;
  select_iterations_.BindText(job);
  GP_RETURN_IF_ERROR(ForEachRow(select_iterations_, fmt::format("job {}", job), [&] {
    v1::IterationSummary& summary = summaries.emplace_back();
    return Unseal(select_iterations_.Bytes(1), {std::string(job), select_iterations_.Bytes(0)}, summary) &&
           summary.iteration() == select_iterations_.Integer(0) &&
           summary.iteration() == summaries.front().iteration() + std::ssize(summaries) - 1;
  }));
  return summaries;
}

absl::Status SqliteJobStore::LoadLinks(StoredState& state) {
  return ForEachRow(select_links_, "a link's measurement", [&] {
    StoredLink link;
    link.from_site = select_links_.Bytes(0);
    link.to_site = select_links_.Bytes(1);
    link.from_traffic = select_links_.Integer(2) != 0;
    link.unix_time_ns = select_links_.Integer(3);
    if (Unseal(select_links_.Bytes(4), {link.from_site, link.to_site}, link.value)) {  // else it is measured again
      state.links.push_back(std::move(link));
    }
    return true;
  });
}

absl::StatusOr<uint64_t> SqliteJobStore::NextIncarnation(int64_t now_unix_ns) {
  GP_ASSIGN_OR_RETURN(Statement select, Compile("SELECT IFNULL(MAX(incarnation), 0) FROM coordinator"));
  if (select.Step() != SQLITE_ROW) {
    return Fail("read");
  }
  const uint64_t earlier = static_cast<uint64_t>(select.Integer(0));
  select.Reset();
  const uint64_t incarnation = std::max(earlier + kIncarnationsApart, static_cast<uint64_t>(now_unix_ns));
  GP_RETURN_IF_ERROR(
      Execute(fmt::format("BEGIN IMMEDIATE; DELETE FROM coordinator; INSERT INTO coordinator VALUES ({}); "
                          "COMMIT;",
                          incarnation),
              "written"));
  return incarnation;
}

absl::Status SqliteJobStore::LoadTransitions(v1::JobDetail& detail) {
  select_transitions_.BindText(detail.summary().name());
  return ForEachRow(select_transitions_, "a job's transition", [&] {
    v1::JobTransition& transition = *detail.add_transitions();
    transition.set_state(static_cast<v1::JobState>(select_transitions_.Integer(0)));
    transition.set_unix_time_ns(select_transitions_.Integer(1));
    transition.set_cause(select_transitions_.Bytes(2));
    detail.mutable_summary()->set_cause(transition.cause());
    return true;
  });
}

absl::Status SqliteJobStore::WriteTransition(std::string_view job, int64_t sequence,
                                             const v1::JobTransition& transition) {
  insert_transition_.BindText(job)
      .Bind(sequence)
      .Bind(transition.state())
      .Bind(transition.unix_time_ns())
      .BindText(transition.cause());
  return Run(insert_transition_);
}

absl::StatusOr<std::vector<v1::IterationTimeline>> SqliteJobStore::LoadTimelines(std::string_view job) {
  std::vector<v1::IterationTimeline> timelines;
  select_timelines_.BindText(job);
  GP_RETURN_IF_ERROR(ForEachRow(select_timelines_, fmt::format("job {}", job), [&] {
    return Unseal(select_timelines_.Bytes(0), {std::string(job), select_timelines_.Bytes(1)}, timelines.emplace_back());
  }));
  return timelines;
}

absl::Status SqliteJobStore::CopyJob(std::string_view job, std::string_view copy) {
  for (Statement* const statement : {&copy_job_, &copy_transitions_, &copy_iterations_, &copy_timelines_}) {
    GP_RETURN_IF_ERROR(Run(statement->BindText(job).BindText(copy)));
  }
  return absl::OkStatus();
}

// Drops what hangs on the job's row but iterations before `below`. Its own row must stay while they do.
absl::Status SqliteJobStore::KeepIterations(std::string_view job, int64_t below) {
  GP_RETURN_IF_ERROR(Run(delete_transitions_.BindText(job)));
  GP_RETURN_IF_ERROR(Run(delete_iterations_from_.BindText(job).Bind(below)));
  GP_RETURN_IF_ERROR(Run(delete_partial_.BindText(job).Bind(std::numeric_limits<int64_t>::max())));
  return Run(delete_timelines_.BindText(job));
}

absl::Status SqliteJobStore::InsertJob(const v1::JobDetail& detail, const v1::JobRecord& record,
                                       std::string_view forget, int64_t keep_below, std::string_view keep_as) {
  v1::JobDetail outcome = detail;
  outcome.clear_manifest();
  outcome.clear_run();
  outcome.clear_transitions();
  const std::string run = detail.run().SerializeAsString();
  const std::string outcome_bytes = outcome.SerializeAsString();
  const std::string record_bytes = record.SerializeAsString();
  return Transact([&]() -> absl::Status {
    const std::string& name = detail.summary().name();
    GP_RETURN_IF_ERROR(Run(delete_job_.BindText(forget)));
    GP_RETURN_IF_ERROR(keep_as.empty() ? absl::OkStatus() : CopyJob(name, keep_as));
    GP_RETURN_IF_ERROR(keep_below > 0 ? KeepIterations(name, keep_below) : Run(delete_job_.BindText(name)));
    insert_job_.BindText(detail.summary().name())
        .Bind(detail.summary().state())
        .BindText(detail.manifest())
        .BindBlob(run)
        .BindBlob(outcome_bytes)
        .BindBlob(record_bytes);
    GP_RETURN_IF_ERROR(Run(insert_job_));
    for (int i = 0; i < detail.transitions_size(); ++i) {
      GP_RETURN_IF_ERROR(WriteTransition(detail.summary().name(), i, detail.transitions(i)));
    }
    return absl::OkStatus();
  });
}

absl::Status SqliteJobStore::AddTransition(std::string_view job, int64_t sequence, const v1::JobTransition& transition,
                                           const v1::JobDetail* outcome, const v1::JobRecord* record,
                                           const JobProgress* progress) {
  const std::string outcome_bytes = outcome == nullptr ? "" : outcome->SerializeAsString();
  const std::string record_bytes = record == nullptr ? "" : record->SerializeAsString();
  return Transact([&]() -> absl::Status {
    GP_RETURN_IF_ERROR(WriteTransition(job, sequence, transition));
    GP_RETURN_IF_ERROR(Run(update_state_.Bind(transition.state()).BindText(job)));
    if (outcome != nullptr) {
      GP_RETURN_IF_ERROR(Run(update_outcome_.BindBlob(outcome_bytes).BindText(job)));
    }
    if (record != nullptr) {
      GP_RETURN_IF_ERROR(Run(update_record_.BindBlob(record_bytes).BindText(job)));
    }
    return progress == nullptr ? absl::OkStatus() : WriteProgress(*progress);
  });
}

absl::Status SqliteJobStore::SetRecord(std::string_view job, const v1::JobRecord& record,
                                       const v1::JobDetail* outcome) {
  const std::string outcome_bytes = outcome == nullptr ? "" : outcome->SerializeAsString();
  const std::string bytes = record.SerializeAsString();
  return Transact([&]() -> absl::Status {
    if (outcome != nullptr) {
      GP_RETURN_IF_ERROR(Run(update_outcome_.BindBlob(outcome_bytes).BindText(job)));
    }
    return Run(update_record_.BindBlob(bytes).BindText(job));
  });
}

absl::Status SqliteJobStore::WriteProgress(const JobProgress& progress) {
  if (progress.begins_at.has_value()) {
    GP_RETURN_IF_ERROR(Run(delete_iterations_from_.BindText(progress.job).Bind(*progress.begins_at)));
    GP_RETURN_IF_ERROR(
        Run(delete_cut_off_.BindText(progress.job).BindText(progress.job).Bind(*progress.begins_at - 1)));
  }
  for (const v1::IterationSummary& summary : progress.finished) {
    const std::string bytes = summary.SerializeAsString();
    GP_RETURN_IF_ERROR(Run(insert_iteration_.BindText(progress.job).Bind(summary.iteration()).BindBlob(bytes)));
  }
  if (!progress.finished.empty()) {
    const int64_t last = progress.finished.back().iteration();
    GP_RETURN_IF_ERROR(Run(delete_partial_.BindText(progress.job).Bind(last)));
    GP_RETURN_IF_ERROR(Run(delete_old_iterations_.BindText(progress.job).Bind(last - iterations_kept_)));
  }
  if (progress.timelines.has_value()) {
    GP_RETURN_IF_ERROR(Run(delete_timelines_.BindText(progress.job)));
    for (const v1::IterationTimeline& timeline : *progress.timelines) {
      const std::string bytes = timeline.SerializeAsString();
      GP_RETURN_IF_ERROR(Run(insert_timeline_.BindText(progress.job).Bind(timeline.iteration()).BindBlob(bytes)));
    }
  }
  for (const v1::IterationReport& report : progress.partial) {
    const std::string bytes = report.SerializeAsString();
    insert_partial_.BindText(progress.job).Bind(report.iteration()).Bind(report.rank()).BindBlob(bytes);
    GP_RETURN_IF_ERROR(Run(insert_partial_));
  }
  return absl::OkStatus();
}

absl::Status SqliteJobStore::AddProgress(const std::vector<JobProgress>& progress,
                                         const std::vector<StoredLink>& links) {
  return Transact([&]() -> absl::Status {
    for (const JobProgress& each : progress) {
      GP_RETURN_IF_ERROR(WriteProgress(each));
    }
    for (const StoredLink& link : links) {
      const std::string bytes = link.value.SerializeAsString();
      set_link_.BindText(link.from_site).BindText(link.to_site).Bind(link.from_traffic ? 1 : 0);
      GP_RETURN_IF_ERROR(Run(set_link_.Bind(link.unix_time_ns).BindBlob(bytes)));
    }
    return absl::OkStatus();
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<JobStore>> JobStore::Open(std::string path, const JobStoreOptions& options) {
  struct stat info {};
  if (stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(fmt::format(
        "the job store {} is {}; move it away, or choose another state_dir", path, KindOfFile(info.st_mode)));
  }
  sqlite3* raw = nullptr;
  const int code =
      sqlite3_open_v2(path.c_str(), &raw, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr);
  Handle db(raw);
  if (raw == nullptr) {
    return absl::ResourceExhaustedError(fmt::format("the job store {} could not be opened: no memory", path));
  }
  if (code != SQLITE_OK) {
    return Error(raw, path, "opened");
  }
  sqlite3_extended_result_codes(raw, 1);
  auto store = std::make_unique<SqliteJobStore>(std::move(db), std::move(path), options.iterations_kept);
  GP_RETURN_IF_ERROR(store->Prepare(options));
  return store;
}

}  // namespace geopipe
