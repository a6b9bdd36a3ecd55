#include "proto/wire/session_wire.h"

#include <catch2/catch.hpp>
#include <string>

namespace geopipe {
namespace {

template <class Message>
std::string ErrorOf(const Message& message) {
  return std::string(ValidateMessage(message).message());
}

v1::WorkerId Worker() {
  v1::WorkerId worker;
  worker.set_site("north");
  worker.set_node("n0");
  worker.set_job("tiny");
  return worker;
}

v1::ConnectRequest Hello() {
  v1::ConnectRequest request;
  v1::AgentHello* hello = request.mutable_hello();
  hello->set_version("0.1.0");
  hello->mutable_node()->set_site("north");
  hello->mutable_node()->set_node("n0");
  hello->mutable_node()->set_devices(2);
  hello->mutable_node()->mutable_device()->set_kind("cpu");
  hello->mutable_node()->mutable_device()->set_memory_bytes(1);
  hello->mutable_node()->mutable_device()->set_efficiency(0.5);
  v1::LinkDeclaration* link = hello->add_links();
  link->set_to_site("east");
  link->set_bandwidth_bytes_per_s(1e9);
  *hello->add_workers() = Worker();
  return request;
}

TEST_CASE("An agent's hello is checked in all its parts") {
  v1::ConnectRequest request = Hello();
  CHECK(ErrorOf(request).empty());
  request.mutable_hello()->mutable_node()->set_devices(0);
  CHECK(ErrorOf(request) == "hello.node.devices is 0; it must be from 1 to 1024");
  request = Hello();
  request.mutable_hello()->mutable_node()->set_network_is_shaped(true);
  CHECK(ErrorOf(request) == "hello.node.network_is_shaped is true; it must be false where there is no network");
  request.mutable_hello()->mutable_node()->mutable_network()->set_bandwidth_bytes_per_s(1e9);
  CHECK(ErrorOf(request) == "hello.node.network.per is 0; this version knows no such value");
  request.mutable_hello()->mutable_node()->mutable_network()->set_per(v1::NETWORK_SHARE_NODE);
  CHECK(ErrorOf(request).empty());
  request = Hello();
  request.mutable_hello()->mutable_links(0)->set_bandwidth_bytes_per_s(0);
  CHECK(ErrorOf(request) == "hello.links[0].bandwidth_bytes_per_s is 0; it must be finite and at least 1");
  request = Hello();
  request.mutable_hello()->mutable_workers(0)->clear_job();
  CHECK(ErrorOf(request) == "hello.workers[0].job is ; it must be 1 to 63 of [a-z0-9.-], first [a-z0-9]");
  CHECK(ErrorOf(v1::ConnectRequest()) == "message is not set, or is of a kind this version does not know");
}

TEST_CASE("What was found of the data has no more checksums than the data has chunks") {
  v1::WorkerReport report;
  v1::DataCheckReport& check = *report.mutable_data_check();
  CHECK(ErrorOf(report) == "data_check.data_bytes is 0; it must be from 1 to 9223372036854775807");
  check.set_data_bytes(100);
  CHECK(ErrorOf(report) == "data_check.chunk_bytes is 0; it must be from 1 to 9223372036854775807");
  check.set_chunk_bytes(50);
  check.mutable_checksums()->Resize(2, 7);
  CHECK(ErrorOf(report).empty());
  check.add_checksums(7);
  CHECK(ErrorOf(report) == "data_check.checksums has 3 entries; at most 2 are taken");
  check.set_data_bytes(1'000'000);
  check.mutable_checksums()->Resize(4096, 7);
  CHECK(ErrorOf(report).empty());
  check.add_checksums(7);
  CHECK(ErrorOf(report) == "data_check.checksums has 4097 entries; at most 4096 are taken");
}

TEST_CASE("A node's refused backends are known, each once, and have a reason") {
  v1::ConnectRequest request = Hello();
  v1::NodeSpec& node = *request.mutable_hello()->mutable_node();
  v1::RefusedBackend& refused = *node.add_refused_backends();
  CHECK(ErrorOf(request) == "hello.node.refused_backends.backend is 0; this version knows no such value");
  refused.set_backend(v1::BACKEND_KIND_CUDA);
  CHECK(ErrorOf(request) == "hello.node.refused_backends.reason is empty; say why the backend cannot be run");
  refused.set_reason(std::string(65'537, 'x'));
  CHECK(ErrorOf(request) == "hello.node.refused_backends.reason has 65537 bytes; at most 65536 are taken");
  refused.set_reason("no library");
  CHECK(ErrorOf(request).empty());
  *node.add_refused_backends() = refused;
  CHECK(ErrorOf(request) == "hello.node.refused_backends.backend is BACKEND_KIND_CUDA; it must be named once");
}

TEST_CASE("The device of a prepared rank is told in full") {
  v1::AttachRequest request;
  *request.mutable_worker() = Worker();
  v1::PreparedReport& prepared = *request.mutable_report()->mutable_prepared();
  CHECK(ErrorOf(request).empty());
  v1::DeviceVersions& device = *prepared.mutable_device();
  CHECK(ErrorOf(request) == "report.prepared.device.name is empty; give a name");
  device.set_name("NVIDIA H200");
  device.set_architecture("sm_90");
  device.set_driver("580");
  device.set_runtime("13.0");
  device.set_cublas_lt("13.1");
  device.set_kernels("0a");
  CHECK(ErrorOf(request) == "report.prepared.device.multiprocessors is 0; it must be from 1 to 65536");
  device.set_multiprocessors(132);
  CHECK(ErrorOf(request).empty());
  device.set_driver(std::string(257, 'x'));
  CHECK(ErrorOf(request) == "report.prepared.device.driver has 257 bytes; at most 256 are taken");
}

TEST_CASE("A worker's report is checked in all its parts") {
  v1::AttachRequest request;
  *request.mutable_worker() = Worker();
  CHECK(ErrorOf(request) == "report.report is not set, or is of a kind this version does not know");
  v1::IterationReport* report = request.mutable_report()->mutable_iteration();
  CHECK(ErrorOf(request).empty());
  report->add_actions()->set_action("0X0");
  CHECK(ErrorOf(request).starts_with("report.iteration.actions[0].action: "));
  report->mutable_actions(0)->set_action("0F0");
  report->mutable_actions(0)->set_end_ns(-1);
  CHECK(ErrorOf(request).starts_with("report.iteration.actions[0].end_ns is -1"));
  request.mutable_report()->mutable_evaluation()->set_iteration(2);
  CHECK(ErrorOf(request).empty());
  request.mutable_report()->mutable_evaluation()->set_duration_ns(-1);
  CHECK(ErrorOf(request).starts_with("report.evaluation.duration_ns is -1"));
  request.mutable_report()->mutable_heartbeat()->set_iteration(-2);
  CHECK(ErrorOf(request).starts_with("report.heartbeat.iteration is -2"));
}

TEST_CASE("A profiling round may be of messages alone") {
  v1::AttachResponse response;
  v1::ProfileCommand& profile = *response.mutable_command()->mutable_profile();
  profile.set_message_bytes(1024);
  CHECK(ErrorOf(response).starts_with("command.profile.backend is 0; this version knows no such value"));
  profile.set_backend(v1::BACKEND_KIND_CUDA);
  CHECK(ErrorOf(response).starts_with("command.profile.micro_batch_size is 0"));
  profile.set_skip_compute(true);
  CHECK(ErrorOf(response).empty());
  profile.set_message_bytes(int64_t{1} << 40);
  CHECK(ErrorOf(response).starts_with("command.profile.message_bytes is"));
  v1::AttachRequest request;
  *request.mutable_worker() = Worker();
  request.mutable_report()->mutable_profile()->mutable_message()->set_site("north");
  CHECK(ErrorOf(request).starts_with("report.profile.message.node"));
}

TEST_CASE("A node's reports are checked in all their parts") {
  v1::ConnectRequest request;
  v1::NodeReports& reports = *request.mutable_reports();
  CHECK(ErrorOf(request) == "reports.first_sequence is 0; reports are counted from 1");
  reports.set_first_sequence(7);
  CHECK(ErrorOf(request).empty());
  v1::NodeReport& report = *reports.add_reports();
  CHECK(ErrorOf(request) == "reports.reports[0].report is not set, or is of a kind this version does not know");
  *report.mutable_worker()->mutable_worker() = Worker();
  report.mutable_worker()->mutable_report()->mutable_heartbeat()->set_iteration(-2);
  CHECK(ErrorOf(request).starts_with("reports.reports[0].worker.report.heartbeat.iteration is -2"));
  *report.mutable_exit()->mutable_worker() = Worker();
  CHECK(ErrorOf(request).empty());
}

TEST_CASE("A command is checked in all its parts") {
  v1::AttachResponse response;
  v1::CommitCommand* commit = response.mutable_command()->mutable_commit();
  commit->set_end_iteration(3);
  commit->add_peers()->set_rank(1);
  CHECK(ErrorOf(response).empty());
  commit->add_peers()->set_rank(1);
  CHECK(ErrorOf(response) == "command.commit.peers[1].rank is 1; it must be named once among the peers");
  commit->set_start_iteration(4);
  CHECK(ErrorOf(response).starts_with("command.commit.end_iteration is 3; it must be from 4 to"));
  v1::PrepareCommand* prepare = response.mutable_command()->mutable_prepare();
  CHECK(ErrorOf(response) == "command.prepare.threads is 0; it must be from 1 to 4096");
  prepare->set_threads(1);
  prepare->add_shapes()->set_from_site("north");
  CHECK(ErrorOf(response) == "command.prepare.shapes[0].to_site is empty; give a name");
}

TEST_CASE("What workers are told of each other's checkpoint files is checked in all its parts") {
  v1::WorkerCommand command;
  v1::PrepareCommand& prepare = *command.mutable_prepare();
  prepare.set_threads(1);
  v1::FileSource& source = *prepare.add_file_sources();
  CHECK(ErrorOf(command) == "prepare.file_sources[0].site is empty; give a name");
  source.set_site("north");
  CHECK(ErrorOf(command) == "prepare.file_sources[0].address is empty; give a name");
  source.set_address("127.0.0.1:47000");
  CHECK(ErrorOf(command).empty());
  prepare.set_exchange_secret("short");
  CHECK(ErrorOf(command) == "prepare.exchange_secret has 5 bytes; it must be empty or have at least 16");
  prepare.set_exchange_secret("a secret of sixteen bytes at least");
  CHECK(ErrorOf(command).empty());

  const v1::FileSource whole = source;
  v1::ReplicateCommand& replicate = *command.mutable_replicate();
  CHECK(ErrorOf(command).empty());
  replicate.set_bytes_per_second(-1);
  CHECK(ErrorOf(command) == "replicate.bytes_per_second is -1; it must be finite and at least 0");
  replicate.set_bytes_per_second(1e6);
  *replicate.add_sources() = whole;
  replicate.mutable_sources(0)->add_files("head.weights.1-3.safetensors");
  CHECK(ErrorOf(command).empty());
  replicate.mutable_sources(0)->add_files(std::string(256, 'x'));
  CHECK(ErrorOf(command) == "replicate.sources[0].files has 256 bytes; at most 255 are taken");
  replicate.mutable_sources(0)->set_files(1, "a\nb");
  CHECK(ErrorOf(command) == "replicate.sources[0].files holds a control character; names are printable");
  replicate.set_iteration(-1);
  CHECK(ErrorOf(command).starts_with("replicate.iteration is -1"));
  command.mutable_write_manifest()->add_kept_iterations(-1);
  CHECK(ErrorOf(command).starts_with("write_manifest.kept_iterations is -1"));
}

TEST_CASE("What workers tell of the exchange of checkpoint files is checked in all its parts") {
  v1::WorkerReport report;
  v1::ReplicaReport& replica = *report.mutable_replica();
  CHECK(ErrorOf(report).empty());
  replica.set_bytes(-1);
  CHECK(ErrorOf(report).starts_with("replica.bytes is -1"));
  replica.set_bytes(1);
  replica.set_duration_ns(-1);
  CHECK(ErrorOf(report).starts_with("replica.duration_ns is -1"));
  replica.set_duration_ns(1);
  replica.set_iteration(-1);
  CHECK(ErrorOf(report).starts_with("replica.iteration is -1"));
  report.mutable_heartbeat()->mutable_status()->set_exchange_address(std::string(257, '1'));
  CHECK(ErrorOf(report) == "heartbeat.status.exchange_address has 257 bytes; at most 256 are taken");
  report.mutable_failure()->mutable_unreadable()->set_iteration(-1);
  CHECK(ErrorOf(report).starts_with("failure.unreadable.iteration is -1"));
}

TEST_CASE("An order to an agent is checked in all its parts") {
  v1::ConnectResponse response;
  response.mutable_welcome();
  CHECK(ErrorOf(response).starts_with("welcome.heartbeat_interval_ns is 0"));
  response.mutable_start_workers()->set_job("tiny");
  response.mutable_start_workers()->add_devices(-1);
  CHECK(ErrorOf(response) == "start_workers.devices[0] is -1; it must be from 0 to 1023");
  response.mutable_stop_workers()->set_job("tiny");
  CHECK(ErrorOf(response).empty());
  response.mutable_stop_workers()->set_grace_ns(-5);
  CHECK(ErrorOf(response).starts_with("stop_workers.grace_ns is -5"));
}

TEST_CASE("Orders and reports of probes are checked in all their parts") {
  v1::ConnectRequest request;
  request.mutable_reports()->set_first_sequence(1);
  v1::ProbeReport* report = request.mutable_reports()->add_reports()->mutable_probe();
  CHECK(ErrorOf(request) == "reports.reports[0].probe.outcome is not set, or is of a kind this version does not know");
  report->mutable_opened();
  CHECK(ErrorOf(request) == "reports.reports[0].probe.opened.address is empty; give a name");
  report->mutable_opened()->set_address("127.0.0.1:9");
  CHECK(ErrorOf(request).empty());
  v1::ProbeMeasured* measured = report->mutable_measured();
  CHECK(ErrorOf(request) ==
        "reports.reports[0].probe.measured.outbound.bandwidth_bytes_per_s is 0; it must be finite and at least 1");
  measured->mutable_outbound()->set_bandwidth_bytes_per_s(1e9);
  measured->mutable_inbound()->set_bandwidth_bytes_per_s(1e9);
  CHECK(ErrorOf(request).empty());
  measured->mutable_inbound()->set_latency_spread_ns(-1);
  CHECK(ErrorOf(request).starts_with(
      "reports.reports[0].probe.measured.inbound.latency_spread_ns is -1; it must be from 0 to"));

  v1::ConnectResponse response;
  v1::ProbeLink* order = response.mutable_probe_link();
  CHECK(ErrorOf(response) == "probe_link.to_site is empty; give a name");
  order->set_to_site("west");
  CHECK(ErrorOf(response) == "probe_link.limit_ns is 0; it must be from 1 to 600000000000");
  order->set_shaped(true);
  CHECK(ErrorOf(response) == "probe_link.bandwidth_bytes_per_s is 0; it must be finite and at least 1");
  order->set_bandwidth_bytes_per_s(1e9);
  order->set_limit_ns(1);
  order->set_budget_ns(1);
  CHECK(ErrorOf(response).empty());
  response.mutable_end_probe()->set_probe(3);
  CHECK(ErrorOf(response).empty());
}

}  // namespace
}  // namespace geopipe
