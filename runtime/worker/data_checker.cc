#include "runtime/worker/data_checker.h"

#include <absl/status/status.h>

#include <algorithm>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/thread_name.h"
#include "runtime/data/data_check.h"

namespace geopipe {
namespace {

constexpr int64_t kTellEveryNs = 10'000'000'000;
constexpr int64_t kMaxRestNs = 10'000'000'000;

v1::DataCheckReport ReportOf(const Corpus& corpus, const DataCheck& check) {
  v1::DataCheckReport report;
  report.set_data_bytes(corpus.files().bytes());
  report.set_chunk_bytes(check.chunk_bytes());
  report.mutable_checksums()->Assign(check.checksums().begin(), check.checksums().end());
  return report;
}

}  // namespace

DataChecker::DataChecker(const Corpus& corpus, Clock& clock, Tell tell)
    : corpus_(corpus), clock_(clock), tell_(std::move(tell)), thread_([this] { Run(); }) {}

DataChecker::~DataChecker() {
  stopped_ = true;
  clock_.Interrupt();
  thread_.join();
}

int64_t DataChecker::RestNs(int64_t took_ns) { return std::min(9 * took_ns, kMaxRestNs); }

void DataChecker::Run() {
  NameThisThread("data-check");
  DataCheck check(corpus_);
  size_t told = 0;
  int64_t tell_at_ns = clock_.NowNs() + kTellEveryNs;
  while (!stopped_ && !check.done()) {
    const int64_t begin_ns = clock_.NowNs();
    if (absl::Status status = check.Next(); !status.ok()) {
      tell_(std::move(status));
      return;
    }
    const int64_t now_ns = clock_.NowNs();
    if (check.done() || (check.checksums().size() > told && now_ns >= tell_at_ns)) {
      told = check.checksums().size();
      tell_at_ns = now_ns + kTellEveryNs;
      tell_(ReportOf(corpus_, check));
    }
    if (!check.done()) {
      clock_.SleepUntilNs(now_ns + RestNs(now_ns - begin_ns));
    }
  }
  if (check.done()) {
    LogInfo("all {} bytes of the training data are read and checked", corpus_.files().bytes());
  }
}

}  // namespace geopipe
