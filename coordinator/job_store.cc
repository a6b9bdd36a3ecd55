#include "coordinator/job_store.h"

#include <fmt/format.h>
#include <sqlite3.h>

#include <algorithm>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"

namespace geopipe {
namespace {

constexpr int64_t kSchemaVersion = 2;

constexpr const char* kCreateTables = R"sql(
  CREATE TABLE schema_version (version INTEGER NOT NULL);
  CREATE TABLE jobs (
    name TEXT PRIMARY KEY, submitted INTEGER NOT NULL, state INTEGER NOT NULL,
    manifest TEXT NOT NULL, run BLOB NOT NULL, outcome BLOB NOT NULL) STRICT;
  CREATE TABLE transitions (
    job TEXT NOT NULL REFERENCES jobs(name) ON DELETE CASCADE, seq INTEGER NOT NULL, state INTEGER NOT NULL,
    unix_time_ns INTEGER NOT NULL, cause TEXT NOT NULL, PRIMARY KEY (job, seq)) STRICT, WITHOUT ROWID;
  INSERT INTO schema_version VALUES (2);
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
  SqliteJobStore(Handle db, std::string path) : db_(std::move(db)), path_(std::move(path)) {}

  absl::Status Prepare(const JobStoreOptions& options);

  absl::StatusOr<std::vector<v1::JobDetail>> Load() override;
  absl::Status InsertJob(const v1::JobDetail& detail, std::string_view forget) override;
  absl::Status AddTransition(std::string_view job, int64_t sequence, const v1::JobTransition& transition,
                             const v1::JobDetail* outcome) override;

 private:
  absl::Status Fail(std::string_view doing) { return Error(db_.get(), path_, doing); }
  absl::Status Execute(const std::string& sql, std::string_view doing);
  absl::StatusOr<Statement> Compile(std::string_view sql);
  // Runs a statement that returns no rows.
  absl::Status Run(Statement& statement);
  absl::Status CheckSchema();
  absl::Status LoadTransitions(v1::JobDetail& detail);
  absl::Status WriteTransition(std::string_view job, int64_t sequence, const v1::JobTransition& transition);
  // `write` within one transaction: all of it is kept, or nothing.
  template <class Write>
  absl::Status Transact(Write write);

  Handle db_;
  const std::string path_;
  Statement begin_;
  Statement commit_;
  Statement rollback_;
  Statement select_jobs_;
  Statement select_transitions_;
  Statement delete_job_;
  Statement insert_job_;
  Statement insert_transition_;
  Statement update_state_;
  Statement update_outcome_;
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
  GP_RETURN_IF_ERROR(
      Execute("PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; "
              "PRAGMA foreign_keys=ON; PRAGMA trusted_schema=OFF;",
              "opened"));
  if (options.max_bytes > 0) {
    constexpr int64_t kPageBytes = 4096;
    GP_RETURN_IF_ERROR(Execute(
        fmt::format("PRAGMA max_page_count={}", std::max<int64_t>(1, options.max_bytes / kPageBytes)), "opened"));
  }
  GP_RETURN_IF_ERROR(CheckSchema());
  GP_ASSIGN_OR_RETURN(begin_, Compile("BEGIN IMMEDIATE"));
  GP_ASSIGN_OR_RETURN(commit_, Compile("COMMIT"));
  GP_ASSIGN_OR_RETURN(rollback_, Compile("ROLLBACK"));
  GP_ASSIGN_OR_RETURN(select_jobs_, Compile("SELECT name, state, manifest, run, outcome FROM jobs ORDER BY submitted"));
  GP_ASSIGN_OR_RETURN(select_transitions_,
                      Compile("SELECT state, unix_time_ns, cause FROM transitions WHERE job = ? ORDER BY seq"));
  GP_ASSIGN_OR_RETURN(delete_job_, Compile("DELETE FROM jobs WHERE name = ?"));
  GP_ASSIGN_OR_RETURN(insert_job_, Compile("INSERT INTO jobs VALUES (?, (SELECT IFNULL(MAX(submitted), 0) + 1 FROM "
                                           "jobs), ?, ?, ?, ?)"));
  GP_ASSIGN_OR_RETURN(insert_transition_, Compile("INSERT INTO transitions VALUES (?, ?, ?, ?, ?)"));
  GP_ASSIGN_OR_RETURN(update_state_, Compile("UPDATE jobs SET state = ? WHERE name = ?"));
  GP_ASSIGN_OR_RETURN(update_outcome_, Compile("UPDATE jobs SET outcome = ? WHERE name = ?"));
  return absl::OkStatus();
}

absl::Status SqliteJobStore::CheckSchema() {
  GP_ASSIGN_OR_RETURN(Statement tables, Compile("SELECT COUNT(*) FROM sqlite_schema WHERE name = 'schema_version'"));
  if (tables.Step() != SQLITE_ROW) {
    return Fail("opened");
  }
  const bool exists = tables.Integer(0) > 0;
  tables.Reset();
  if (!exists) {
    return Execute(fmt::format("BEGIN IMMEDIATE; {} COMMIT;", kCreateTables), "created");
  }
  GP_ASSIGN_OR_RETURN(Statement version, Compile("SELECT version FROM schema_version"));
  if (version.Step() != SQLITE_ROW) {
    return Fail("opened");
  }
  if (version.Integer(0) != kSchemaVersion) {
    return absl::FailedPreconditionError(
        fmt::format("the job store {} was written by another version of geopipe-coordinator (schema {}; this version "
                    "knows {}); install that version or move the store away",
                    path_, version.Integer(0), kSchemaVersion));
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
    // After the worst errors SQLite has rolled back by itself; the first failure is reported.
    status.Update(Run(rollback_));
  }
  return status;
}

absl::StatusOr<std::vector<v1::JobDetail>> SqliteJobStore::Load() {
  std::vector<v1::JobDetail> jobs;
  int code = SQLITE_ROW;
  while ((code = select_jobs_.Step()) == SQLITE_ROW) {
    v1::JobDetail detail;
    const std::string name = select_jobs_.Bytes(0);
    const bool parsed =
        detail.ParseFromString(select_jobs_.Bytes(4)) && detail.mutable_run()->ParseFromString(select_jobs_.Bytes(3));
    if (!parsed || detail.summary().name() != name) {
      select_jobs_.Reset();
      return absl::DataLossError(fmt::format(
          "the job store {} is damaged: job {} cannot be read; restore it from a copy, or move it away to begin anew",
          path_, name));
    }
    detail.set_manifest(select_jobs_.Bytes(2));
    detail.mutable_summary()->set_state(static_cast<v1::JobState>(select_jobs_.Integer(1)));
    jobs.push_back(std::move(detail));
  }
  select_jobs_.Reset();
  if (code != SQLITE_DONE) {
    return Fail("read");
  }
  for (v1::JobDetail& detail : jobs) {
    GP_RETURN_IF_ERROR(LoadTransitions(detail));
  }
  return jobs;
}

absl::Status SqliteJobStore::LoadTransitions(v1::JobDetail& detail) {
  select_transitions_.BindText(detail.summary().name());
  int code = SQLITE_ROW;
  while ((code = select_transitions_.Step()) == SQLITE_ROW) {
    v1::JobTransition& transition = *detail.add_transitions();
    transition.set_state(static_cast<v1::JobState>(select_transitions_.Integer(0)));
    transition.set_unix_time_ns(select_transitions_.Integer(1));
    transition.set_cause(select_transitions_.Bytes(2));
    detail.mutable_summary()->set_cause(transition.cause());
  }
  select_transitions_.Reset();
  return code == SQLITE_DONE ? absl::OkStatus() : Fail("read");
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

absl::Status SqliteJobStore::InsertJob(const v1::JobDetail& detail, std::string_view forget) {
  v1::JobDetail outcome = detail;
  outcome.clear_manifest();
  outcome.clear_run();
  outcome.clear_transitions();
  const std::string run = detail.run().SerializeAsString();
  const std::string outcome_bytes = outcome.SerializeAsString();
  return Transact([&]() -> absl::Status {
    for (const std::string_view old : {std::string_view(detail.summary().name()), forget}) {
      GP_RETURN_IF_ERROR(Run(delete_job_.BindText(old)));
    }
    insert_job_.BindText(detail.summary().name())
        .Bind(detail.summary().state())
        .BindText(detail.manifest())
        .BindBlob(run)
        .BindBlob(outcome_bytes);
    GP_RETURN_IF_ERROR(Run(insert_job_));
    for (int i = 0; i < detail.transitions_size(); ++i) {
      GP_RETURN_IF_ERROR(WriteTransition(detail.summary().name(), i, detail.transitions(i)));
    }
    return absl::OkStatus();
  });
}

absl::Status SqliteJobStore::AddTransition(std::string_view job, int64_t sequence, const v1::JobTransition& transition,
                                           const v1::JobDetail* outcome) {
  const std::string outcome_bytes = outcome == nullptr ? "" : outcome->SerializeAsString();
  return Transact([&]() -> absl::Status {
    GP_RETURN_IF_ERROR(WriteTransition(job, sequence, transition));
    GP_RETURN_IF_ERROR(Run(update_state_.Bind(transition.state()).BindText(job)));
    return outcome == nullptr ? absl::OkStatus() : Run(update_outcome_.BindBlob(outcome_bytes).BindText(job));
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<JobStore>> JobStore::Open(std::string path, const JobStoreOptions& options) {
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
  auto store = std::make_unique<SqliteJobStore>(std::move(db), std::move(path));
  GP_RETURN_IF_ERROR(store->Prepare(options));
  return store;
}

}  // namespace geopipe
