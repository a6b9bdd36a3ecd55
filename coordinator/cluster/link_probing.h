// Schedules and conducts the probes of links: two nodes, one of either site or both of the site whose own network is
// probed, are asked, one of them to wait and the other to dial. One probe runs at a time over the whole federation, so
// that none disturbs another, and none at a site on which a job has workers: the job's traffic tells more, and must not
// be disturbed. Pure: time comes in, orders go out.
//
// A link is due when agents of both its ends are there, then every interval, and sooner after a failure. Every probe
// ends: by its result, by a failure, when an agent goes, when a job comes, or by its deadline.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/cluster/links.h"
#include "coordinator/cluster/membership.h"
#include "coordinator/cluster/names.h"
#include "geopipe/v1/agent_service.pb.h"
#include "optimizer/base/splitmix64.h"

namespace geopipe {

struct LinkProbingOptions {
  int64_t interval_ns = 60'000'000'000;  // from one probe of a link to the next; 0: links are not probed at all
  int64_t budget_ns = 3'000'000'000;     // of the trains of frames in one probe
  int64_t open_timeout_ns = 5'000'000'000;
  int64_t run_timeout_ns = 12'000'000'000;
  int64_t first_retry_ns = 1'000'000'000;  // doubled with every failure, up to the interval
  int64_t job_wait_ns = 15'000'000'000;    // longest wait of a job for its links to be probed
  uint64_t first_probe = 1;                // number of the first probe; seeds the jitter too
};

// A message for an agent that is connected at the moment; one that is not no longer needs it.
struct ProbeMessage {
  NodeKey node;
  v1::ConnectResponse message;
};

// Results of one step.
struct ProbeStep {
  struct Failure {
    SitePair sites;
    std::string why;
    int failures = 0;  // in a row
  };
  struct Success {
    std::string from;
    std::string to;              // the same: the network inside the site
    v1::ProbeMeasured measured;  // outbound: from `from`
  };
  std::vector<ProbeMessage> sends;
  std::optional<Success> success;
  std::optional<Failure> failure;
};

class LinkProbing {
 public:
  explicit LinkProbing(const LinkProbingOptions& options)
      : options_(options), next_probe_(options.first_probe), jitter_(options.first_probe) {}

  // The present state of the federation.
  struct View {
    const std::map<NodeKey, NodeRecord>& nodes;
    const LinkTable& links;
    std::set<std::string> busy;  // sites on which a job has workers
  };

  // Ends the probe of a link that may not be probed any more, begins one if none is under way and some link is due:
  // of those, one that a job waits for, then the one that has been due longest.
  ProbeStep Update(int64_t now_ns, const View& view);
  // Takes a report of `node`; reports of other nodes and of earlier probes change nothing.
  ProbeStep OnReport(int64_t now_ns, const NodeKey& node, const v1::ProbeReport& report);
  // Ends the node's probe, since its stream has ended.
  ProbeStep OnNodeGone(int64_t now_ns, const NodeKey& node);
  // Checks deadlines.
  ProbeStep OnTick(int64_t now_ns);

  // Makes the site's links due again: an agent has come anew, and they may be others now.
  void Renew(const std::string& site);

  // Sets the links that jobs wait for, in order; replaces the earlier ones.
  void Want(std::vector<SitePair> pairs) { wanted_ = std::move(pairs); }
  // True when there is nothing to wait for: the link was probed, or has failed twice, or is not declared, or cannot be
  // probed now.
  bool Settled(const SitePair& pair, const View& view) const;

  // Time at which Update or OnTick next has something to do, unless something else happens.
  int64_t next_ns() const;
  bool idle() const { return !active_.has_value(); }
  // Reason why the last probe of the link failed; empty: it did not.
  std::string TroubleOf(const SitePair& pair) const;

 private:
  struct Link {
    int64_t due_ns = 0;
    int failures = 0;  // in a row
    bool probed = false;
    std::string trouble;
  };
  struct Active {
    uint64_t probe = 0;
    SitePair sites;
    NodeKey waiter;
    NodeKey dialer;
    bool running = false;  // the dialer has its order
    int64_t deadline_ns = 0;
    // Given in the dialer's order.
    int64_t latency_ns = 0;
    double bandwidth_bytes_per_s = 0;
    bool dialer_shaped = false;
  };

  bool Possible(const SitePair& pair, const View& view) const;
  std::optional<SitePair> NextDue(int64_t now_ns, const View& view);
  void Begin(int64_t now_ns, const SitePair& pair, const View& view, ProbeStep& step);
  void Fail(int64_t now_ns, const std::string& why, ProbeStep& step);
  void End(ProbeStep& step);
  v1::ConnectResponse Order(const NodeKey& node) const;

  const LinkProbingOptions options_;
  uint64_t next_probe_;
  SplitMix64 jitter_;
  std::map<SitePair, Link> links_;
  std::vector<SitePair> wanted_;
  std::optional<Active> active_;
  int64_t next_due_ns_ = 0;
};

}  // namespace geopipe
