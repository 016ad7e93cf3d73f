// slackline-bench transport: what channels carry, how fast they answer, and what that costs.
//
// By default both ends are threads of this process. With --listen one end waits, with --connect the
// other measures, on two hosts. For each size: throughput with a window of requests in flight on
// every channel, and the round trip of one request at a time. Every repetition also times a memcpy
// of the same size over memory that takes turns in the same way: ratios are to that.
#include <gflags/gflags.h>

#include <atomic>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/bench.h"
#include "benchmarks/measure.h"
#include "benchmarks/svg_plot.h"
#include "benchmarks/transport_peer.h"
#include "common/flags.h"
#include "common/thread.h"
#include "transport/transport_flags.h"

DEFINE_string(poll, "adaptive", "what idle ends do: sleep, adaptive (spin, then sleep) or busy");
DEFINE_string(op, "pushpull",
              "pushpull: bytes there and back in one request; write or send: bytes there, answered "
              "by an empty reply; read: bytes back for an empty request");
DEFINE_string(sizes, "64,4096,65536,1048576,4194304",
              "payload bytes to measure, a list with commas; 'all': 64 B to 64 MiB");
DEFINE_double(duration, 1.5, "measured seconds of each size's throughput, in --repetitions parts");
DEFINE_int32(queue_pairs, 1, "channels that share the load");
DEFINE_bool(bidirectional, false, "write, send, read: as many channels again the other way");
DEFINE_int32(window, 0, "requests in flight on each channel; 0: up to 64 that hold 16 MiB");
DEFINE_string(listen, "", "only answer, at this address (tcp://0.0.0.0:4711), until interrupted");
DEFINE_string(connect, "", "only measure, against the address that a --listen has printed");

namespace slackline::bench {
namespace {

constexpr TimeNs kWarmUpNs = 100 * kNsPerMs;
constexpr size_t kWindowBytes = 16u << 20;
constexpr size_t kMaxDefaultWindow = 64;
constexpr size_t kMinDefaultWindow = 2;  // One is copied while the other is under way.
constexpr int32_t kMaxQueuePairs = 64;
constexpr double kCopySeconds = 0.02;  // Of memcpy, in each repetition.

struct Row {
  size_t payload_bytes = 0;
  size_t window = 0;
  double gbytes_per_s = 0;  // Each direction that carries payload.
  double messages_per_s = 0;
  double memcpy_gbytes_per_s = 0;
  double of_memcpy = 0;  // The median of the repetitions' ratios.
  double latency_min_us = 0, latency_p50_us = 0, latency_p99_us = 0, latency_p999_us = 0;
  double cpu_ns_per_byte = 0;  // Of this process (both ends unless --connect), a payload byte.
  double cpu_cores = 0;
};

std::optional<std::vector<size_t>> ParseSizes(std::string_view text) {
  std::vector<size_t> sizes;
  if (text == "all") {
    for (size_t size = 64; size <= kPeerMaxBytes; size *= 4) sizes.push_back(size);
    return sizes;
  }
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    size_t value = 0;
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), value);
    const bool whole = error == std::errc{} && end == item.data() + item.size();
    if (!whole || value == 0 || value > kPeerMaxBytes) return std::nullopt;
    sizes.push_back(value);
    text.remove_prefix(std::min(text.size(), item.size() + 1));
  }
  if (sizes.empty()) return std::nullopt;
  return sizes;
}

// Both directions carry payload.
bool BothWays() { return FLAGS_op == "pushpull" || FLAGS_bidirectional; }

AskingEnd::Op OpOfFlags() {
  if (FLAGS_op == "pushpull") return AskingEnd::Op::kPushPull;
  if (FLAGS_bidirectional) return AskingEnd::Op::kBoth;
  return FLAGS_op == "read" ? AskingEnd::Op::kPull : AskingEnd::Op::kPush;
}

size_t ChannelsOfFlags() {
  const auto pairs = static_cast<size_t>(FLAGS_queue_pairs);
  return OpOfFlags() == AskingEnd::Op::kBoth ? 2 * pairs : pairs;
}

size_t WindowFor(size_t payload_bytes) {
  if (FLAGS_window > 0) return static_cast<size_t>(FLAGS_window);
  return std::clamp<size_t>(kWindowBytes / payload_bytes, kMinDefaultWindow, kMaxDefaultWindow);
}

// GB/s of memcpy of pieces of this size, over memory that takes turns as payloads do.
class CopyYardstick {
 public:
  CopyYardstick()
      : from_(MakeFloats(kPeerBufferBytes / sizeof(float), 1)),
        to_(MakeFloats(kPeerBufferBytes / sizeof(float), 2)) {}
  double Measure(size_t size_bytes) {
    const double start = WallSeconds();
    double seconds = 0;
    size_t copied_bytes = 0;
    do {
      for (int i = 0; i < 8; ++i) {
        std::memcpy(Part(to_, size_bytes).data(), Part(from_, size_bytes).data(), size_bytes);
        copied_bytes += size_bytes;
        ++turn_;
      }
      seconds = WallSeconds() - start;
    } while (seconds < kCopySeconds);
    return static_cast<double>(copied_bytes) / seconds / 1e9;
  }

 private:
  MutableBytes Part(const FloatBuffer& buffer, size_t size_bytes) const {
    return PartOf({reinterpret_cast<std::byte*>(buffer.get()), kPeerBufferBytes}, turn_,
                  size_bytes);
  }
  FloatBuffer from_, to_;
  uint64_t turn_ = 0;
};

void AddLatencies(std::vector<double> latencies_us, Row* row) {
  row->latency_min_us = Percentile(latencies_us, 0);
  row->latency_p50_us = Percentile(latencies_us, 0.5);
  row->latency_p99_us = Percentile(latencies_us, 0.99);
  row->latency_p999_us = Percentile(std::move(latencies_us), 0.999);
}

Result<Row> Measure(AskingEnd& end, CopyYardstick& yardstick, size_t payload_bytes) {
  const auto part_ns =
      static_cast<TimeNs>(FLAGS_duration * kNsPerSecond / std::max(FLAGS_repetitions, 1));
  AskingEnd::Load load{.op = OpOfFlags(),
                       .payload_bytes = payload_bytes,
                       .channels = ChannelsOfFlags(),
                       .window = WindowFor(payload_bytes)};
  Row row{.payload_bytes = payload_bytes, .window = load.window};
  // A channel of kBoth moves one direction.
  const double ways_a_request = load.op == AskingEnd::Op::kBoth ? 0.5 : 1;
  SLACKLINE_ASSIGN_OR_RETURN(AskingEnd::Sample warm_up, end.Run(load, kWarmUpNs));
  std::vector<double> rates, cores, copies, ratios;
  for (int i = 0; i < FLAGS_repetitions; ++i) {
    copies.push_back(yardstick.Measure(payload_bytes));
    const double cpu_before = CpuSeconds();
    SLACKLINE_ASSIGN_OR_RETURN(const AskingEnd::Sample busy, end.Run(load, part_ns));
    cores.push_back((CpuSeconds() - cpu_before) / busy.seconds);
    rates.push_back(static_cast<double>(busy.requests) / busy.seconds);
    ratios.push_back(rates.back() * ways_a_request * static_cast<double>(payload_bytes) / 1e9 /
                     copies.back());
  }
  load.window = 1;
  load.channels = load.op == AskingEnd::Op::kBoth ? 2 : 1;
  SLACKLINE_ASSIGN_OR_RETURN(warm_up, end.Run(load, kWarmUpNs));
  std::vector<double> latencies_us;
  for (int i = 0; i < FLAGS_repetitions; ++i) {
    SLACKLINE_ASSIGN_OR_RETURN(const AskingEnd::Sample alone, end.Run(load, part_ns / 4));
    latencies_us.insert(latencies_us.end(), alone.latencies_us.begin(), alone.latencies_us.end());
  }
  row.messages_per_s = Median(rates);
  row.gbytes_per_s = row.messages_per_s * ways_a_request * static_cast<double>(payload_bytes) / 1e9;
  row.memcpy_gbytes_per_s = Median(copies);
  row.of_memcpy = Median(ratios);
  row.cpu_cores = Median(cores);
  row.cpu_ns_per_byte = row.cpu_cores / (row.gbytes_per_s * (BothWays() ? 2 : 1));
  AddLatencies(std::move(latencies_us), &row);
  return row;
}

nlohmann::json ToJson(const Row& row, const std::string& peer) {
  return {{"transport", FLAGS_transport},
          {"peer", peer},
          {"poll", FLAGS_poll},
          {"op", FLAGS_op},
          {"queue_pairs", FLAGS_queue_pairs},
          {"bidirectional", FLAGS_bidirectional},
          {"payload_bytes", row.payload_bytes},
          {"window", row.window},
          {"gbytes_per_s_per_direction", row.gbytes_per_s},
          {"gbits_per_s_per_direction", row.gbytes_per_s * 8},
          {"messages_per_s", row.messages_per_s},
          {"memcpy_gbytes_per_s", row.memcpy_gbytes_per_s},
          {"ratio_to_memcpy", row.of_memcpy},
          {"latency_min_us", row.latency_min_us},
          {"latency_p50_us", row.latency_p50_us},
          {"latency_p99_us", row.latency_p99_us},
          {"latency_p999_us", row.latency_p999_us},
          {"cpu_ns_per_byte", row.cpu_ns_per_byte},
          {"cpu_cores", row.cpu_cores}};
}

std::vector<Plot> Plots(const std::vector<Row>& rows) {
  Plot bandwidth{.title = FLAGS_op + " over " + FLAGS_transport,
                 .x_label = "payload",
                 .y_label = "GB/s a direction",
                 .log_x = true,
                 .x_is_bytes = true};
  Plot latency{.title = "round trip of one request",
               .x_label = "payload",
               .y_label = "microseconds",
               .log_x = true,
               .log_y = true,
               .x_is_bytes = true};
  bandwidth.series = {{.name = FLAGS_transport, .points = {}}, {.name = "memcpy", .points = {}}};
  latency.series = {{.name = "median", .points = {}}, {.name = "99 %", .points = {}}};
  for (const Row& row : rows) {
    const auto x = static_cast<double>(row.payload_bytes);
    bandwidth.series[0].points.emplace_back(x, row.gbytes_per_s);
    bandwidth.series[1].points.emplace_back(x, row.memcpy_gbytes_per_s);
    latency.series[0].points.emplace_back(x, row.latency_p50_us);
    latency.series[1].points.emplace_back(x, row.latency_p99_us);
  }
  return {bandwidth, latency};
}

int Fail(const Status& status) {
  std::fprintf(stderr, "slackline-bench transport: %s\n", status.message().c_str());
  return 1;
}

int RunMeasurements(const transport::EndpointOptions& options, const std::string& address,
                    const std::vector<size_t>& sizes) {
  Result<std::unique_ptr<AskingEnd>> end =
      AskingEnd::Create(FLAGS_transport, options, address, ChannelsOfFlags());
  if (!end) return Fail(end.error());
  CopyYardstick yardstick;
  Table table({"payload", "window", "GB/s", "Gb/s", "of memcpy", "messages/s", "min us", "p50 us",
               "p99 us", "p99.9 us", "cpu ns/B", "cores"});
  nlohmann::json results = nlohmann::json::array();
  std::vector<Row> rows;
  for (const size_t payload_bytes : sizes) {
    const Result<Row> row = Measure(**end, yardstick, payload_bytes);
    if (!row) return Fail(row.error());
    table.AddRow({FormatBytes(payload_bytes), std::to_string(row->window),
                  FormatNumber(row->gbytes_per_s, 2), FormatNumber(row->gbytes_per_s * 8, 1),
                  FormatNumber(row->of_memcpy, 2), FormatNumber(row->messages_per_s, 0),
                  FormatNumber(row->latency_min_us, 1), FormatNumber(row->latency_p50_us, 1),
                  FormatNumber(row->latency_p99_us, 1), FormatNumber(row->latency_p999_us, 1),
                  FormatNumber(row->cpu_ns_per_byte, 2), FormatNumber(row->cpu_cores, 2)});
    results.push_back(ToJson(*row, (*end)->peer()));
    rows.push_back(*row);
  }
  table.Print();
  std::printf(
      "%s to %s, %zu channels, polling %s; GB/s a direction; latency: the round trip of one "
      "request "
      "at a time; medians of %d\n",
      FLAGS_op.c_str(), (*end)->peer().c_str(), ChannelsOfFlags(), FLAGS_poll.c_str(),
      FLAGS_repetitions);
  Status written = WriteJson(FLAGS_json, results);
  if (written.ok()) written = WriteSvg(FLAGS_plot, Plots(rows));
  return written.ok() ? 0 : Fail(written);
}

// Answers until `stop`, polling without end otherwise.
void Answer(AnsweringEnd& end, const std::atomic<bool>& stop) {
  while (!stop.load(std::memory_order_relaxed)) end.endpoint().Poll(100 * kNsPerMs);
}

void CheckTransportFlags() {
  constexpr std::string_view kOps[] = {"pushpull", "write", "send", "read"};
  ExitOnFlagError(CheckOneOf("op", FLAGS_op, kOps));
  ExitOnFlagError(CheckOneOf("poll", FLAGS_poll, transport::kPollModeNames));
  ExitOnFlagError(CheckRange("window", FLAGS_window, 0, transport::kMaxOpenRequests));
  ExitOnFlagError(CheckRange("duration", FLAGS_duration, 0.01, 3600));
  ExitOnFlagError(CheckRange("repetitions", FLAGS_repetitions, 1, 1000));
  ExitOnFlagError(CheckRange("queue_pairs", FLAGS_queue_pairs, 1, kMaxQueuePairs));
  ExitOnFlagError(CheckJsonPath(FLAGS_json));
  for (const auto& [flag, value] :
       {std::pair("listen", FLAGS_listen), {"connect", FLAGS_connect}}) {
    if (value.empty() || value.find("://") != std::string::npos) continue;
    ExitOnFlagError(FlagStatus(flag, value, FLAGS_transport + "://host:port"));
  }
}

}  // namespace

int RunTransport(int argc, char** argv) {
  ParseFlags(
      argc, argv,
      {.name = argv[0],
       .summary = "Bandwidth, message rate, latency and processor time of channels, beside a "
                  "memcpy of the same bytes.",
       .examples = "slackline-bench transport --transport=shm --sizes=all --plot=shm.svg\n"
                   "slackline-bench transport --transport=shm --poll=busy --sizes=64\n"
                   "slackline-bench transport --listen=tcp://0.0.0.0:4711\n"
                   "slackline-bench transport --connect=tcp://node7:4711 --json=link.json",
       .groups = {{"Load", {"op", "sizes", "queue_pairs", "bidirectional", "window", "poll"}},
                  {"Two hosts", {"listen", "connect"}},
                  {"Measurement", {"duration", "repetitions", "json", "plot"}},
                  transport::TransportFlagGroup()}});
  CheckTransportFlags();
  const auto sizes = ParseSizes(FLAGS_sizes);
  if (!sizes) {
    ExitOnFlagError(FlagStatus(
        "sizes", FLAGS_sizes,
        "'all', or byte counts from 1 to " + std::to_string(kPeerMaxBytes) + " with commas"));
  }
  transport::EndpointOptions options = transport::TransportFromFlags().options;
  options.poll_mode = *transport::ParsePollMode(FLAGS_poll);
  options.rdma.poll = options.poll_mode;
  if (!FLAGS_connect.empty()) return RunMeasurements(options, FLAGS_connect, *sizes);

  const bool alone = !FLAGS_listen.empty();
  auto answering = AnsweringEnd::Create(FLAGS_transport, options,
                                        alone ? FLAGS_listen : FLAGS_transport + "://127.0.0.1:0");
  if (!answering) return Fail(answering.error());
  std::atomic<bool> stop{false};
  if (alone) {
    std::printf("answering at %s\n", (*answering)->address().c_str());
    std::fflush(stdout);
    Answer(**answering, stop);
    return 0;
  }
  Thread thread("answering", [&] { Answer(**answering, stop); });
  const int code = RunMeasurements(options, (*answering)->address(), *sizes);
  stop.store(true, std::memory_order_relaxed);
  (*answering)->endpoint().Wake();
  thread.Join();
  return code;
}

}  // namespace slackline::bench
