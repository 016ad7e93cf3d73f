// slackline-bench verbs: what one queue pair carries without our protocol, driven as transport/rdma
// drives it. Its distance to perftest is what our use of the verbs costs, its distance to
// `slackline-bench transport --transport=rdma` what the protocol costs.
//
// By default both ends are threads of this process on one device. With --listen one end waits,
// with --connect the other measures.
#include <gflags/gflags.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio.hpp>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <future>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "benchmarks/bench.h"
#include "benchmarks/measure.h"
#include "benchmarks/verbs_peer.h"
#include "common/flags.h"
#include "transport/address.h"

DEFINE_string(verb, "write", "write, read or send");
DEFINE_string(payloads, "64,4096,65536,1048576", "payload bytes to measure, a list with commas");
DEFINE_double(time_s, 1, "measured seconds of each size's throughput, in --repetitions parts");
DEFINE_int32(depth, 128, "work requests posted and not completed");
DEFINE_string(device, "", "RDMA device; empty: the one with the address, or the first");
DEFINE_int32(gid, -1, "GID index; -1: the RoCE v2 one with the address that routes to the peer");
DEFINE_string(wait_at, "", "only answer one measurement, at this host:port");
DEFINE_string(measure_at, "", "only measure, against a --wait_at there");

namespace slackline::bench {
namespace {

using boost::asio::ip::tcp;

constexpr size_t kMemoryBytes = 64u << 20;
constexpr int kConnectSeconds = 20;
constexpr size_t kMaxLineChars = 256;

// Both ends tell each other their cards over the connection.
Status Join(tcp::iostream& stream, std::unique_ptr<VerbsEnd>* out) {
  transport::RdmaOptions options;
  options.gid_index = FLAGS_gid;
  if (!FLAGS_device.empty()) options.devices = {FLAGS_device};
  boost::system::error_code error;
  const std::string here = stream.socket().local_endpoint(error).address().to_string();
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(*out, VerbsEnd::Create(options, here, kMemoryBytes));
  stream.expires_after(std::chrono::seconds(kConnectSeconds));
  stream << (*out)->card().ToLine() << std::endl;
  std::array<char, kMaxLineChars> line{};
  stream.getline(line.data(), line.size());
  if (!stream) return Unavailable("the other end has gone before it told its queue pair");
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(const VerbsCard card, VerbsCard::Parse(line.data()));
  SLACKLINE_RETURN_IF_ERROR((*out)->Join(card));
  // A second line each: nobody posts before both are ready.
  stream << "ready" << std::endl;
  stream.getline(line.data(), line.size());
  stream.expires_after(std::chrono::hours(24));
  return stream ? OkStatus() : Unavailable("the other end could not connect its queue pair");
}

// Accepts one connection, takes what comes until the other end closes it.
Status Answer(tcp::acceptor& acceptor) {
  tcp::iostream stream;
  boost::system::error_code error;
  acceptor.accept(stream.socket(), error);
  if (error) return Unavailable("accept: " + error.message());
  std::unique_ptr<VerbsEnd> end;
  SLACKLINE_RETURN_IF_ERROR(Join(stream, &end));
  std::atomic<bool> stop = false;
  // Only SENDs need this end's processor.
  std::future<Status> receiving;
  if (FLAGS_verb == "send") {
    receiving = std::async(std::launch::async, [&] { return end->Receive(stop); });
  }
  std::array<char, kMaxLineChars> line{};
  stream.getline(line.data(), line.size());  // Ends with the connection.
  stop = true;
  return receiving.valid() ? receiving.get() : OkStatus();
}

Result<tcp::acceptor> Listen(boost::asio::io_context& context, const std::string& host_port) {
  SLACKLINE_ASSIGN_OR_RETURN(const transport::Address address, transport::ParseHostPort(host_port));
  boost::system::error_code error;
  const auto found =
      tcp::resolver(context).resolve(address.host, std::to_string(address.port), error);
  tcp::acceptor acceptor(context);
  if (!error) acceptor.open(found.begin()->endpoint().protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(*found.begin(), error);
  if (!error) acceptor.listen(1, error);
  if (error) return Err(Unavailable("cannot listen at " + host_port + ": " + error.message()));
  return acceptor;
}

VerbsOp OpFromFlag() {
  if (FLAGS_verb == "read") return VerbsOp::kRead;
  return FLAGS_verb == "send" ? VerbsOp::kSend : VerbsOp::kWrite;
}

Status MeasureSizes(VerbsEnd& end, const std::vector<size_t>& sizes) {
  Table table({"payload", "GB/s", "Gb/s", "messages/s", "p50 us", "p99 us", "p99.9 us"});
  nlohmann::json results = nlohmann::json::array();
  for (const size_t bytes : sizes) {
    VerbsEnd::Load load{.op = OpFromFlag(), .payload_bytes = bytes};
    const auto part_ns = static_cast<TimeNs>(FLAGS_time_s * kNsPerSecond / FLAGS_repetitions);
    std::vector<double> rates, latencies_us;
    for (int i = 0; i < FLAGS_repetitions; ++i) {
      load.window = static_cast<size_t>(FLAGS_depth);
      SLACKLINE_ASSIGN_OR_RETURN_STATUS(const VerbsEnd::Sample busy, end.Run(load, part_ns));
      rates.push_back(static_cast<double>(busy.requests) / busy.seconds);
      load.window = 1;
      SLACKLINE_ASSIGN_OR_RETURN_STATUS(const VerbsEnd::Sample alone, end.Run(load, part_ns / 4));
      latencies_us.insert(latencies_us.end(), alone.latencies_us.begin(), alone.latencies_us.end());
    }
    const double messages_per_s = Median(rates);
    const double gbytes_per_s = messages_per_s * static_cast<double>(bytes) / 1e9;
    const double p50 = Percentile(latencies_us, 0.5), p99 = Percentile(latencies_us, 0.99),
                 p999 = Percentile(latencies_us, 0.999);
    table.AddRow({FormatBytes(bytes), FormatNumber(gbytes_per_s, 3),
                  FormatNumber(gbytes_per_s * 8, 2), FormatNumber(messages_per_s, 0),
                  FormatNumber(p50, 1), FormatNumber(p99, 1), FormatNumber(p999, 1)});
    results.push_back({{"op", FLAGS_verb},
                       {"payload_bytes", bytes},
                       {"gbytes_per_s", gbytes_per_s},
                       {"messages_per_s", messages_per_s},
                       {"latency_p50_us", p50},
                       {"latency_p99_us", p99},
                       {"latency_p999_us", p999}});
  }
  table.Print();
  return WriteJson(FLAGS_json, results);
}

Status Measure(const std::string& address, const std::vector<size_t>& sizes) {
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(const transport::Address peer,
                                    transport::ParseHostPort(address));
  tcp::iostream stream;
  stream.expires_after(std::chrono::seconds(kConnectSeconds));
  stream.connect(peer.host, std::to_string(peer.port));
  if (!stream) return Unavailable(address + ": " + stream.error().message());
  std::unique_ptr<VerbsEnd> end;
  SLACKLINE_RETURN_IF_ERROR(Join(stream, &end));
  return MeasureSizes(*end, sizes);
}

Status Run(const std::vector<size_t>& sizes) {
  if (!FLAGS_measure_at.empty()) return Measure(FLAGS_measure_at, sizes);
  boost::asio::io_context context;
  const bool alone = FLAGS_wait_at.empty();
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(tcp::acceptor acceptor,
                                    Listen(context, alone ? "127.0.0.1:0" : FLAGS_wait_at));
  if (!alone) return Answer(acceptor);
  const std::string address = "127.0.0.1:" + std::to_string(acceptor.local_endpoint().port());
  std::future<Status> answer =
      std::async(std::launch::async, [&acceptor] { return Answer(acceptor); });
  const Status measured = Measure(address, sizes);
  const Status answered = answer.get();
  return measured.ok() ? answered : measured;
}

// Empty: not such a list.
std::vector<size_t> ParseSizes(std::string_view text) {
  std::vector<size_t> sizes;
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    size_t value = 0;
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), value);
    if (error != std::errc{} || end != item.data() + item.size() || value < 1 ||
        value > kMemoryBytes) {
      return {};
    }
    sizes.push_back(value);
    text.remove_prefix(std::min(text.size(), item.size() + 1));
  }
  return sizes;
}

}  // namespace

int RunVerbs(int argc, char** argv) {
  ParseFlags(argc, argv,
             {.name = "slackline-bench verbs",
              .summary = "What one RDMA queue pair carries by WRITE, READ or SEND, without our "
                         "protocol, to compare with perftest.",
              .examples = "slackline-bench verbs --verb=read --payloads=1048576",
              .groups = {{"Load", {"verb", "payloads", "depth", "time_s", "repetitions"}},
                         {"Where", {"device", "gid", "wait_at", "measure_at"}},
                         {"Output", {"json"}}}});
  constexpr std::array<std::string_view, 3> kVerbs = {"write", "read", "send"};
  ExitOnFlagError(CheckOneOf("verb", FLAGS_verb, kVerbs));
  ExitOnFlagError(CheckRange("depth", FLAGS_depth, 1, VerbsEnd::kMaxWindow));
  ExitOnFlagError(CheckRange("time_s", FLAGS_time_s, 0.01, 3600));
  ExitOnFlagError(CheckRange("repetitions", FLAGS_repetitions, 1, 1000));
  ExitOnFlagError(CheckRange("gid", FLAGS_gid, -1, 255));
  ExitOnFlagError(CheckJsonPath(FLAGS_json));
  const std::vector<size_t> sizes = ParseSizes(FLAGS_payloads);
  if (sizes.empty()) {
    ExitOnFlagError(
        FlagStatus("payloads", FLAGS_payloads, "bytes from 1 to " + std::to_string(kMemoryBytes)));
  }
  const Status status = Run(sizes);
  if (!status.ok()) std::fprintf(stderr, "slackline-bench: %s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}

}  // namespace slackline::bench
