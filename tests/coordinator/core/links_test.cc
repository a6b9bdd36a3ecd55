// Links: when they are probed, what is made of the results, and what traffic adds.
#include <catch2/catch.hpp>

#include "coordinator/cluster/link_traffic.h"
#include "tests/coordinator/core/federation.h"
#include "tests/support/durations.h"

namespace geopipe {
namespace {

v1::LinkMeasurement Measured(int64_t latency_ns, double bandwidth_bytes_per_s) {
  v1::LinkMeasurement measurement;
  measurement.set_latency_ns(latency_ns);
  measurement.set_latency_samples(16);
  measurement.set_bandwidth_bytes_per_s(bandwidth_bytes_per_s);
  measurement.set_bandwidth_samples(3);
  return measurement;
}

v1::LinkStatus StatusOf(Federation& f, const std::string& from, const std::string& to) {
  f.Step(ListLinks{f.next_call++});
  const auto links = std::get<v1::ListLinksResponse>(*f.Last<ReplyToCall>().at(0).reply);
  for (const v1::LinkStatus& link : links.links()) {
    if (link.from_site() == from && link.to_site() == to) {
      return link;
    }
  }
  FAIL("no link from " << from << " to " << to);
  return {};
}

TEST_CASE("a node that is gone does not speak for a link that another one declares") {
  const auto node = [](int64_t latency_ns, bool gone) {
    NodeRecord record;
    record.session = gone ? std::nullopt : std::optional<SessionId>(1);
    record.health = gone ? NodeHealth::kFailed : NodeHealth::kAlive;
    v1::LinkDeclaration& link = record.links.emplace_back();
    link.set_to_site("east");
    link.set_latency_ns(latency_ns);
    link.set_bandwidth_bytes_per_s(latency_ns == 5'000'000 ? 1.25e9 : 1.25e5);
    link.set_shaped(gone);
    return record;
  };
  std::map<NodeKey, NodeRecord> nodes{{{"north", "old"}, node(100'000'000, true)},
                                      {{"north", "new"}, node(5'000'000, false)}};
  const LinkTable live = LinkTable::Of(nodes);
  REQUIRE(live.Find("north", "east") != nullptr);
  CHECK(live.Find("north", "east")->latency_ns == 5'000'000);
  CHECK(live.Find("north", "east")->bandwidth_bytes_per_s == 1.25e9);
  CHECK_FALSE(live.Find("north", "east")->disputed);
  CHECK(live.ShapesFor("north", std::vector<std::string>{"east"}).empty());
  nodes.erase({"north", "new"});
  CHECK(LinkTable::Of(nodes).Find("north", "east")->latency_ns == 100'000'000);
}

TEST_CASE("links are probed one after the other as soon as both ends are there, then every interval") {
  Federation f(Federation::ProbingOptions());
  f.Register("north");
  CHECK_FALSE(f.probe.has_value());
  f.Register("east");
  REQUIRE(f.probe.has_value());
  CHECK(f.probe->waiter == "north");  // east dials: the first by name
  f.Register("west");
  CHECK(f.probes == 1);
  f.OpenProbe();
  CHECK(f.probe->dialer == "east");
  f.MeasureProbe();
  CHECK(f.probes == 2);
  f.AnswerProbes();
  CHECK(f.probes == 3);
  CHECK_FALSE(f.probe.has_value());
  f.RunFor(59 * kSecond);
  CHECK(f.probes == 3);
  for (int i = 0; i < 170; ++i) {  // the interval is lengthened by up to a quarter
    f.RunFor(100 * kMs);
    f.AnswerProbes();
  }
  CHECK(f.probes == 6);
  CHECK(f.broken == "");
}

TEST_CASE("an order names what its end needs, and the dialing one the address and secret of the other") {
  Federation f(Federation::ProbingOptions());
  f.Register("north");
  f.Register("east");
  const auto order = [&f] {
    v1::ProbeLink last;
    for (const SendToAgent& send : f.Last<SendToAgent>()) {
      last = send.message.has_probe_link() ? send.message.probe_link() : last;
    }
    return last;
  };
  const v1::ProbeLink wait = order();
  CHECK(wait.to_site() == "east");
  CHECK(wait.address().empty());
  CHECK(wait.shaped());
  CHECK(wait.latency_ns() == 20 * kMs);
  CHECK(wait.bandwidth_bytes_per_s() == 1.25e8);
  f.OpenProbe();
  const v1::ProbeLink dial = order();
  CHECK(dial.probe() == wait.probe());
  CHECK(dial.to_site() == "north");
  CHECK(dial.address() == "address of north");
  CHECK(dial.secret() == "secret of north");
  CHECK(dial.limit_ns() < wait.limit_ns());
  f.MeasureProbe();
  int ends = 0;
  for (const SendToAgent& send : f.Last<SendToAgent>()) {
    ends += send.message.has_end_probe() ? 1 : 0;
  }
  CHECK(ends == 2);
}

TEST_CASE("get links shows both directions, declared until they are probed") {
  Federation f(Federation::ProbingOptions());
  f.Register("north");
  f.Register("east");
  CHECK(StatusOf(f, "east", "north").source() == "declared");
  CHECK_FALSE(StatusOf(f, "east", "north").has_measured());
  f.OpenProbe();
  f.MeasureProbe(21 * kMs, 1.2e8, 1.1e8);
  f.RunFor(2 * kSecond);
  const v1::LinkStatus out = StatusOf(f, "east", "north");
  CHECK(out.source() == "probed");
  CHECK(out.latency_ns() == 21 * kMs);
  CHECK(out.bandwidth_bytes_per_s() == 1.2e8);
  CHECK(out.declared_latency_ns() == 20 * kMs);
  CHECK(out.declared_bandwidth_bytes_per_s() == 1.25e8);
  CHECK(out.measured().latency_samples() == 16);
  CHECK(out.age_ns() == 2 * kSecond);
  CHECK(out.measurements() == 1);
  CHECK(StatusOf(f, "north", "east").bandwidth_bytes_per_s() == 1.1e8);
}

TEST_CASE("a job waits until the links it needs were probed, and is planned with what was measured") {
  Federation f(Federation::ProbingOptions());
  f.Step(ApplyJob{1, Federation::TinyJob(), {}});
  for (const std::string& site : f.sites) {
    f.Register(site);
  }
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_PENDING);
  CHECK(f.CauseOf("tiny") == "waiting for 2 links to be probed, the first between east and north");
  f.OpenProbe();
  f.MeasureProbe();
  f.OpenProbe();
  CHECK(f.probe->dialer == "east");
  CHECK(f.probe->waiter == "west");  // what the job waits for comes before north-west
  f.MeasureProbe();
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_PROFILING);
  CHECK_FALSE(f.probe.has_value());  // none on sites with workers
  f.HelloAll();
  f.ProfileAll();
  const std::vector<LinkSpec> links = f.planning.back().input.cluster.links;
  REQUIRE(links.size() == 3);
  CHECK(links[0].latency_ns == 21 * kMs);
  CHECK(links[0].bandwidth_bytes_per_s == 1.1e8);  // of the worse direction
  CHECK(links[1].latency_ns == 20 * kMs);          // north-west, not probed yet
  f.PlanNow();
  // Shapes are what was declared.
  CHECK(f.Last<SendToAgent>().at(0).message.command().command().prepare().shapes(0).latency_ns() == 20 * kMs);
  CHECK(f.broken == "");
}

TEST_CASE("a job does not wait for ever, nor with explicit costs, nor where probing is off or has failed twice") {
  const auto wait = [](Federation& f, int64_t ns) {
    f.Step(ApplyJob{1, Federation::TinyJob(), {}});
    for (const std::string& site : f.sites) {
      f.Register(site);
    }
    f.RunFor(ns);
  };
  Federation silent(Federation::ProbingOptions());
  wait(silent, 14 * kSecond);
  CHECK(silent.StateOf("tiny") == v1::JOB_STATE_PENDING);
  silent.RunFor(2 * kSecond);
  CHECK(silent.StateOf("tiny") == v1::JOB_STATE_PROFILING);

  Federation off;
  wait(off, 0);
  CHECK(off.StateOf("tiny") == v1::JOB_STATE_PROFILING);

  Federation failing(Federation::ProbingOptions());
  wait(failing, 0);
  for (int i = 0; i < 100 && failing.StateOf("tiny") == v1::JOB_STATE_PENDING; ++i) {
    failing.FailProbe();
    failing.RunFor(kSecond / 10);
  }
  CHECK(failing.StateOf("tiny") == v1::JOB_STATE_PROFILING);
  CHECK(StatusOf(failing, "east", "north").trouble() == "east/n0: no device");
  CHECK(failing.broken == "");
}

TEST_CASE("a probe ends when an agent goes, when it is late and when a job comes") {
  Federation f(Federation::ProbingOptions());
  f.Register("north");
  f.Register("east");
  f.OpenProbe();
  f.Close(f.sessions["north"]);
  REQUIRE(f.Last<SendToAgent>().size() == 1);
  CHECK(f.Last<SendToAgent>().at(0).message.has_end_probe());
  f.RunFor(3 * kSecond);
  CHECK(f.probes == 1);  // nobody to probe with
  f.Register("north");
  f.RunFor(3 * kSecond);
  CHECK(f.probes == 2);
  CHECK(f.probe->waiter == "east");  // the other end dials after a failure
  f.RunFor(6 * kSecond);             // never gets ready
  CHECK(StatusOf(f, "east", "north").trouble() == "agent east/n0 was not ready within 5.0 s");

  Federation g(Federation::ProbingOptions());
  for (const std::string& site : g.sites) {
    g.Register(site);
  }
  g.AnswerProbes();
  for (int i = 0; i < 800 && !g.probe.has_value(); ++i) {
    g.RunFor(100 * kMs);
  }
  REQUIRE(g.probe.has_value());  // again
  g.Step(ApplyJob{1, Federation::TinyJob(), {}});
  CHECK(g.StateOf("tiny") == v1::JOB_STATE_PROFILING);
  CHECK_FALSE(g.probe.has_value());
  CHECK(g.broken == "");
}

TEST_CASE("two nodes of a site whose network nobody declares are probed as a link is, and the worse direction counts") {
  Federation f(Federation::ProbingOptions());
  f.sites = {"east", "east/n1"};
  f.Register("east");
  CHECK_FALSE(f.probe.has_value());
  f.Register("east/n1");
  REQUIRE(f.probe.has_value());
  CHECK(f.probe->waiter == "east/n1");
  v1::ProbeLink order;
  for (const SendToAgent& send : f.Last<SendToAgent>()) {
    order = send.message.has_probe_link() ? send.message.probe_link() : order;
  }
  CHECK(order.to_site() == "east");
  CHECK(order.bandwidth_bytes_per_s() == 0);
  CHECK_FALSE(order.shaped());
  CHECK(StatusOf(f, "east", "east").source() == "unknown");
  f.OpenProbe();
  CHECK(f.probe->dialer == "east");
  f.MeasureProbe(9000, 3e9, 2e9);
  REQUIRE(f.Last<LinkMeasured>().size() == 1);
  CHECK(f.Last<LinkMeasured>().at(0).from_site == "east");
  CHECK(f.Last<LinkMeasured>().at(0).to_site == "east");
  const v1::LinkStatus status = StatusOf(f, "east", "east");
  CHECK(status.source() == "probed");
  CHECK(status.latency_ns() == 9000);
  CHECK(status.bandwidth_bytes_per_s() == 2e9);
  CHECK(status.measurements() == 1);
  for (int i = 0; i < 760 && !f.probe.has_value(); ++i) {  // the interval is lengthened by up to a quarter
    f.RunFor(100 * kMs);
  }
  CHECK(f.probes == 2);
  f.FailProbe();
  CHECK(StatusOf(f, "east", "east").trouble() == "east/n1: no device");
  f.RunFor(3 * kSecond);
  CHECK(f.probes == 3);
  REQUIRE(f.probe.has_value());
  CHECK(f.probe->waiter == "east");  // the other end dials after a failure
  CHECK(f.broken == "");

  Federation again(Federation::ProbingOptions(), f.Stored());
  again.sites = f.sites;
  again.Register("east");
  again.Register("east/n1");
  CHECK(StatusOf(again, "east", "east").bandwidth_bytes_per_s() == 2e9);
  CHECK(again.probes == 1);
}

TEST_CASE("a network that an agent declares is not probed, and what was measured before does not count") {
  Federation f(Federation::ProbingOptions());
  f.sites = {"east", "east/n1"};
  f.Register("east");
  f.Register("east/n1");
  f.AnswerProbes();
  CHECK(f.probes == 1);
  f.network.emplace().set_bandwidth_bytes_per_s(1e9);
  f.network->set_per(v1::NETWORK_SHARE_DEVICE);
  for (const std::string& node : f.sites) {
    f.Close(f.sessions[node]);
    f.Register(node, 2);
  }
  f.RunFor(100 * kSecond);
  CHECK(f.probes == 1);
  f.Step(ListLinks{f.next_call++});
  CHECK(std::get<v1::ListLinksResponse>(*f.Last<ReplyToCall>().at(0).reply).links().empty());
  f.job = Federation::TinyJob({"east"});
  f.Step(ApplyJob{1, f.job, {}});
  f.HelloAll();
  f.ProfileAll();
  REQUIRE(f.planning.size() == 1);
  CHECK(f.planning[0].input.cluster.sites.at(0).network ==
        NetworkSpec{.bandwidth_bytes_per_s = 1e9, .latency_ns = 0, .per = NetworkSpec::Per::kDevice});
  CHECK(f.broken == "");
}

TEST_CASE("the replicas of a stage go over nodes whose network was measured, and the plan takes it as each node's") {
  Federation f(Federation::ProbingOptions());
  f.sites = {"east", "east/n1"};
  f.job = Federation::TinyJob({"east"});
  f.job.parallelism.data = 2;
  f.run.backend = BackendKind::kModelled;
  f.Step(ApplyJob{1, f.job, f.run});
  f.Register("east");
  f.Register("east/n1");
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_PENDING);
  f.OpenProbe();
  f.MeasureProbe(9000, 3e9, 2e9);
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_PROFILING);
  f.HelloAll();
  f.ProfileMessages();
  REQUIRE(f.planning.size() == 1);
  const SiteSpec site = f.planning[0].input.cluster.sites.at(0);
  CHECK(site.nodes == 2);
  CHECK(site.network == NetworkSpec{.bandwidth_bytes_per_s = 2e9, .latency_ns = 9000, .per = NetworkSpec::Per::kNode});
  f.RunFor(100 * kSecond);
  CHECK(f.probes == 1);  // none while the job has workers there
  CHECK(f.broken == "");
}

TEST_CASE("a job on several nodes of a site waits for its network, but where their time is kept on one host") {
  const auto apply = [](Federation& f, bool pace, bool one_host) {
    f.sites = {"east", "east/n1"};
    f.one_host = one_host;
    f.Register("east");
    f.Register("east/n1");
    f.run.pace = pace;
    f.Step(ApplyJob{1, Federation::TinyJob({"east"}), f.run});
  };
  for (const auto& [pace, one_host] : {std::pair(false, false), std::pair(false, true), std::pair(true, false)}) {
    Federation f(Federation::ProbingOptions());
    apply(f, pace, one_host);
    CHECK(f.CauseOf("tiny") == "waiting for 1 link to be probed, the first inside east");
    f.RunFor(16 * kSecond);
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_PROFILING);
    CHECK(f.broken == "");
  }
  Federation kept(Federation::ProbingOptions());
  kept.sites = {"east", "east/n1"};
  kept.one_host = true;
  kept.Register("east");
  kept.Register("east/n1");
  kept.AnswerProbes();
  kept.job = Federation::TinyJob({"east"});
  kept.run.pace = true;
  kept.Step(ApplyJob{1, kept.job, kept.run});
  REQUIRE(kept.StateOf("tiny") == v1::JOB_STATE_PROFILING);
  kept.HelloAll();
  kept.ProfileAll();
  REQUIRE(kept.planning.size() == 1);
  CHECK_FALSE(kept.planning[0].input.cluster.sites.at(0).network.given());
}

TEST_CASE("one disturbed measurement does not move what counts") {
  MeasuredLinks links;
  CHECK(links.Find("a", "b") == nullptr);
  links.AddProbe(1, "a", "b", Measured(30 * kMs, 5e7));  // disturbed
  CHECK(links.Find("a", "b")->value.latency_ns() == 30 * kMs);
  links.AddProbe(2, "a", "b", Measured(20 * kMs, 1e8));
  CHECK(links.Find("a", "b")->value.latency_ns() == 20 * kMs);  // of two the better one
  CHECK(links.Find("a", "b")->value.bandwidth_bytes_per_s() == 1e8);
  links.AddProbe(3, "a", "b", Measured(21 * kMs, 1.1e8));
  CHECK(links.Find("a", "b")->value.latency_ns() == 21 * kMs);
  links.AddProbe(4, "a", "b", Measured(90 * kMs, 1e6));  // disturbed
  CHECK(links.Find("a", "b")->value.latency_ns() == 21 * kMs);
  CHECK(links.Find("a", "b")->value.bandwidth_bytes_per_s() == 1e8);
  links.AddProbe(5, "a", "b", Measured(90 * kMs, 1e6));  // so it is true
  CHECK(links.Find("a", "b")->value.latency_ns() == 90 * kMs);
  CHECK(links.Find("a", "b")->measurements == 5);
  CHECK(links.Find("b", "a") == nullptr);
  links.Forget("b");
  CHECK(links.Find("a", "b") == nullptr);
}

TEST_CASE("traffic updates what probes have found, at a bounded rate") {
  MeasuredLinks links;
  CHECK_FALSE(links.AddTraffic(0, {.from_site = "a", .to_site = "b", .bandwidth_bytes_per_s = 1e8}));
  CHECK(links.Find("a", "b") == nullptr);
  links.AddProbe(kSecond, "a", "b", Measured(20 * kMs, 1e8));
  CHECK(links.AddTraffic(kSecond + 1, {.from_site = "a", .to_site = "b", .latency_ns = 40 * kMs}));
  CHECK_FALSE(links.AddTraffic(kSecond + 2, {.from_site = "a", .to_site = "b", .latency_ns = 40 * kMs}));
  CHECK(links.Find("a", "b")->from_traffic);
  CHECK(links.Find("a", "b")->value.latency_ns() == 20 * kMs);
  CHECK(links.AddTraffic(2 * kSecond + 1, {.from_site = "a", .to_site = "b", .latency_ns = 40 * kMs}));
  CHECK(links.Find("a", "b")->value.latency_ns() == 40 * kMs);
  CHECK(links.Find("a", "b")->value.bandwidth_bytes_per_s() == 1e8);
}

// One iteration of two ranks of a stage each, whose messages of 1 MB take `serialization_ns` and `latency_ns`, handed
// over every `period_ns` by rank 0 (forward) and rank 1 (backward).
v1::IterationTimeline Timeline(int64_t latency_ns, int64_t serialization_ns, int64_t period_ns, int messages) {
  v1::IterationTimeline timeline;
  timeline.set_iteration(5);
  timeline.set_duration_ns(kSecond);
  for (int32_t rank = 0; rank < 2; ++rank) {
    v1::RankTimeline& line = *timeline.add_ranks();
    line.set_rank(rank);
    v1::PeerClock& clock = *line.add_clocks();
    clock.set_rank(1 - rank);
    clock.set_round_trip_ns(2 * latency_ns + rank * 1000);
  }
  const auto add = [&](int32_t rank, const std::string& action, int64_t start_ns) {
    v1::ActionTiming& timing = *timeline.mutable_ranks(rank)->add_actions();
    timing.set_action(std::to_string(rank) + action);
    timing.set_start_ns(start_ns);
    timing.set_end_ns(start_ns + 1);
  };
  int64_t free_ns = 0;
  for (int i = 0; i < messages; ++i) {
    const int64_t ready_ns = i * period_ns;
    free_ns = std::max(free_ns, ready_ns) + serialization_ns;
    add(0, "SEND_F" + std::to_string(i), ready_ns);
    add(1, "RECV_F" + std::to_string(i), free_ns + latency_ns);
    add(1, "SEND_B" + std::to_string(i), ready_ns);
    add(0, "RECV_B" + std::to_string(i), free_ns + latency_ns);
  }
  return timeline;
}

Plan TwoRanks(const std::string& first_site, const std::string& last_site) {
  Plan plan;
  plan.Append({.site = first_site}, {});
  plan.Append({.site = last_site}, {});
  plan.micro_batches = 8;
  return plan;
}

PipelineCosts TwoStages() {
  PipelineCosts costs;
  costs.shape = {.devices = 2, .stages = 2, .micro_batches = 8, .placement = {0, 1}};
  BoundaryCost& boundary = costs.boundaries.emplace_back();
  boundary.crosses = true;
  boundary.message_bytes = 1'000'000;
  return costs;
}

TEST_CASE("messages tell the latency of their link, and its bandwidth where that can be seen") {
  // 1 MB in 8 ms: 125 MB/s, whether they queue (a message every 5 ms) or not.
  for (const int64_t period_ns : {20 * kMs, 5 * kMs}) {
    CAPTURE(period_ns);
    const auto found = ObserveTraffic(Timeline(20 * kMs, 8 * kMs, period_ns, 8), TwoRanks("west", "east"), TwoStages());
    REQUIRE(found.size() == 2);
    CHECK(found[0].from_site == "east");
    CHECK(found[0].latency_ns == 20 * kMs);
    CHECK(*found[0].bandwidth_bytes_per_s == Approx(125e6));
    CHECK(*found[1].bandwidth_bytes_per_s == Approx(125e6));
    CHECK(found[1].samples == 8);
  }
  // Serializations that are too short to be seen, or too few.
  for (const auto& timeline : {Timeline(20 * kMs, kMs, 5 * kMs, 8), Timeline(20 * kMs, 8 * kMs, 20 * kMs, 3)}) {
    const auto found = ObserveTraffic(timeline, TwoRanks("west", "east"), TwoStages());
    REQUIRE(found.size() == 2);
    CHECK(found[0].latency_ns == 20 * kMs);
    CHECK_FALSE(found[0].bandwidth_bytes_per_s.has_value());
  }
  CHECK(ObserveTraffic(Timeline(20 * kMs, 8 * kMs, 20 * kMs, 8), TwoRanks("west", "west"), TwoStages()).empty());
  CHECK(ObserveTraffic({}, {}, {}).empty());
}

}  // namespace
}  // namespace geopipe
