// slackline-bench transport: what one channel carries, how fast it answers, and what that costs.
//
// By default both ends are threads of this process over loopback. With --listen one end waits, with
// --connect the other measures, on two hosts. For each size two figures: throughput with a window
// of requests in flight, and latency with one request at a time.
#include <gflags/gflags.h>

#include <atomic>
#include <charconv>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/bench.h"
#include "benchmarks/measure.h"
#include "benchmarks/transport_peer.h"
#include "common/flags.h"
#include "common/thread.h"
#include "transport/address.h"

DEFINE_string(sizes, "64,4096,65536,1048576,4194304",
              "payload bytes to measure, a list with commas");
DEFINE_string(op, "pushpull",
              "pushpull: the reply is as large as the request; send: it has no payload");
DEFINE_int32(window, 0, "requests in flight; 0: up to 64 that hold 16 MiB together");
DEFINE_int32(milliseconds, 100, "measured time of one repetition");
DEFINE_string(listen, "", "only answer, at this address (tcp://0.0.0.0:4711), until interrupted");
DEFINE_string(connect, "", "only measure, against a --listen at this address");

namespace slackline::bench {
namespace {

constexpr TimeNs kWarmUpNs = 100 * kNsPerMs;
constexpr size_t kWindowBytes = 16u << 20;
constexpr size_t kMaxDefaultWindow = 64;

struct Row {
  size_t payload_bytes = 0;
  size_t window = 0;
  double gbytes_per_s = 0;  // Each direction that carries payload.
  double messages_per_s = 0;
  double latency_p50_us = 0, latency_p99_us = 0, latency_p999_us = 0;
  double cpu_cores = 0;  // Of this process: both ends unless --connect.
};

std::optional<std::vector<size_t>> ParseSizes(std::string_view text) {
  std::vector<size_t> sizes;
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    size_t value = 0;
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), value);
    const bool whole = error == std::errc{} && end == item.data() + item.size();
    if (!whole || value > kPeerMaxBytes) return std::nullopt;
    sizes.push_back(value);
    text.remove_prefix(std::min(text.size(), item.size() + 1));
  }
  if (sizes.empty()) return std::nullopt;
  return sizes;
}

size_t WindowFor(size_t payload_bytes) {
  if (FLAGS_window > 0) return static_cast<size_t>(FLAGS_window);
  return std::clamp<size_t>(kWindowBytes / std::max<size_t>(payload_bytes, 1), 1,
                            kMaxDefaultWindow);
}

Result<Row> Measure(AskingEnd& end, size_t payload_bytes) {
  const TimeNs duration_ns = FLAGS_milliseconds * kNsPerMs;
  AskingEnd::Load load{.payload_bytes = payload_bytes, .pull = FLAGS_op == "pushpull"};
  load.window = WindowFor(payload_bytes);
  Row row{.payload_bytes = payload_bytes, .window = load.window};
  SLACKLINE_ASSIGN_OR_RETURN(AskingEnd::Sample warm_up, end.Run(load, kWarmUpNs));
  std::vector<double> rates;
  std::vector<double> cores;
  std::vector<double> latencies_us;
  for (int i = 0; i < FLAGS_repetitions; ++i) {
    const double cpu_before = CpuSeconds();
    SLACKLINE_ASSIGN_OR_RETURN(const AskingEnd::Sample busy, end.Run(load, duration_ns));
    rates.push_back(static_cast<double>(busy.requests) / busy.seconds);
    cores.push_back((CpuSeconds() - cpu_before) / busy.seconds);
  }
  load.window = 1;
  SLACKLINE_ASSIGN_OR_RETURN(warm_up, end.Run(load, kWarmUpNs));
  for (int i = 0; i < FLAGS_repetitions; ++i) {
    SLACKLINE_ASSIGN_OR_RETURN(const AskingEnd::Sample alone, end.Run(load, duration_ns / 4));
    latencies_us.insert(latencies_us.end(), alone.latencies_us.begin(), alone.latencies_us.end());
  }
  row.messages_per_s = Median(rates);
  row.gbytes_per_s = row.messages_per_s * static_cast<double>(payload_bytes) / 1e9;
  row.cpu_cores = Median(cores);
  row.latency_p50_us = Percentile(latencies_us, 0.5);
  row.latency_p99_us = Percentile(latencies_us, 0.99);
  row.latency_p999_us = Percentile(latencies_us, 0.999);
  return row;
}

nlohmann::json ToJson(const Row& row) {
  return {{"op", FLAGS_op},
          {"payload_bytes", row.payload_bytes},
          {"window", row.window},
          {"gbytes_per_s_per_direction", row.gbytes_per_s},
          {"gbits_per_s_per_direction", row.gbytes_per_s * 8},
          {"messages_per_s", row.messages_per_s},
          {"latency_p50_us", row.latency_p50_us},
          {"latency_p99_us", row.latency_p99_us},
          {"latency_p999_us", row.latency_p999_us},
          {"cpu_cores", row.cpu_cores}};
}

int RunMeasurements(const std::string& address, const std::vector<size_t>& sizes) {
  Result<std::unique_ptr<AskingEnd>> end = AskingEnd::Create("tcp", address);
  if (!end) {
    std::fprintf(stderr, "%s\n", end.error().message().c_str());
    return 1;
  }
  Table table(
      {"payload", "window", "GB/s", "Gb/s", "messages/s", "p50 us", "p99 us", "p99.9 us", "cores"});
  nlohmann::json results = nlohmann::json::array();
  for (const size_t payload_bytes : sizes) {
    const Result<Row> row = Measure(**end, payload_bytes);
    if (!row) {
      std::fprintf(stderr, "%s\n", row.error().message().c_str());
      return 1;
    }
    table.AddRow({FormatBytes(payload_bytes), std::to_string(row->window),
                  FormatNumber(row->gbytes_per_s, 2), FormatNumber(row->gbytes_per_s * 8, 1),
                  FormatNumber(row->messages_per_s, 0), FormatNumber(row->latency_p50_us, 1),
                  FormatNumber(row->latency_p99_us, 1), FormatNumber(row->latency_p999_us, 1),
                  FormatNumber(row->cpu_cores, 2)});
    results.push_back(ToJson(*row));
  }
  table.Print();
  std::printf("%s; GB/s a direction; latency of one request at a time; medians of %d\n",
              FLAGS_op.c_str(), FLAGS_repetitions);
  const Status written = WriteJson(FLAGS_json, results);
  if (!written.ok()) std::fprintf(stderr, "%s\n", written.message().c_str());
  return written.ok() ? 0 : 1;
}

// Answers until `stop`, polling without end otherwise.
void Answer(AnsweringEnd& end, const std::atomic<bool>& stop) {
  while (!stop.load(std::memory_order_relaxed)) end.endpoint().Poll(kNsPerSecond);
}

Status CheckAddress(std::string_view flag, const std::string& value) {
  if (value.empty() || transport::ParseAddress(value, "tcp")) return OkStatus();
  return FlagStatus(flag, value, "tcp://host:port");
}

}  // namespace

int RunTransport(int argc, char** argv) {
  ParseFlags(argc, argv,
             {.name = argv[0],
              .summary = "Bandwidth, message rate and latency of one channel.",
              .examples = "slackline-bench transport --sizes=65536,1048576\n"
                          "slackline-bench transport --listen=tcp://0.0.0.0:4711\n"
                          "slackline-bench transport --connect=tcp://node7:4711 --json=link.json",
              .groups = {{"Load", {"sizes", "op", "window", "listen", "connect"}},
                         {"Measurement", {"repetitions", "milliseconds", "json"}}}});
  constexpr std::string_view kOps[] = {"pushpull", "send"};
  ExitOnFlagError(CheckOneOf("op", FLAGS_op, kOps));
  ExitOnFlagError(CheckRange("window", FLAGS_window, 0, transport::kMaxOpenRequests));
  ExitOnFlagError(CheckRange("milliseconds", FLAGS_milliseconds, 1, 60'000));
  ExitOnFlagError(CheckRange("repetitions", FLAGS_repetitions, 1, 1000));
  ExitOnFlagError(CheckAddress("listen", FLAGS_listen));
  ExitOnFlagError(CheckAddress("connect", FLAGS_connect));
  ExitOnFlagError(CheckJsonPath(FLAGS_json));
  const auto sizes = ParseSizes(FLAGS_sizes);
  if (!sizes) {
    ExitOnFlagError(
        FlagStatus("sizes", FLAGS_sizes,
                   "byte counts up to " + std::to_string(kPeerMaxBytes) + " with commas between"));
  }
  if (!FLAGS_connect.empty()) return RunMeasurements(FLAGS_connect, *sizes);

  const bool alone = !FLAGS_listen.empty();
  auto answering = AnsweringEnd::Create("tcp", alone ? FLAGS_listen : "tcp://127.0.0.1:0");
  if (!answering) {
    std::fprintf(stderr, "%s\n", answering.error().message().c_str());
    return 1;
  }
  std::atomic<bool> stop{false};
  if (alone) {
    std::printf("answering at %s\n", (*answering)->address().c_str());
    std::fflush(stdout);
    Answer(**answering, stop);
    return 0;
  }
  Thread thread("answering", [&] { Answer(**answering, stop); });
  const int code = RunMeasurements((*answering)->address(), *sizes);
  stop.store(true, std::memory_order_relaxed);
  (*answering)->endpoint().Wake();
  thread.Join();
  return code;
}

}  // namespace slackline::bench
