// slackline-bench pushpull: what shards and workers carry in both directions at once, the optimizer
// included, and what iperf3 carries over the same loopback in the same run.
//
// Shared machines drift, so that iperf3 and every chunk size are measured in turn, once a
// repetition; figures are medians, and a ratio is the median of the repetitions' ratios.
#include <gflags/gflags.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "benchmarks/bench.h"
#include "benchmarks/iperf.h"
#include "benchmarks/measure.h"
#include "benchmarks/pushpull_fleet.h"
#include "common/flags.h"
#include "common/optimizer/optimizer.h"
#include "transport/factory.h"

DEFINE_int32(workers, 1, "worker processes");
DEFINE_int32(servers, 1, "shards, each a thread of the server process");
DEFINE_string(chunk_bytes, "1048576", "FP32 bytes a chunk; one size, or a list with commas");
DEFINE_int32(model_megabytes, 64, "MiB of FP32 weights");
DEFINE_string(codec, "fp32", "on the wire, in both directions");
DEFINE_string(optimizer, "sgd", "sgd, momentum, nesterov, adam, adamw or adagrad");
DEFINE_string(staleness, "0", "0 (BSP), a bound > 0 (SSP) or async");
DEFINE_double(seconds, 2, "measured seconds, each repetition and chunk size");
DEFINE_bool(iperf, false, "also run iperf3 --bidir each repetition, and print the ratio");

namespace slackline::bench {
namespace {

// Bounds of --chunk_bytes: below, headers are all there is; above, a message's limit.
constexpr uint64_t kMinChunkBytes = 1 << 10;
constexpr uint64_t kMaxChunkBytes = 128 << 20;

std::vector<uint32_t> ParseChunkBytes() {
  std::vector<uint32_t> sizes;
  std::stringstream list(FLAGS_chunk_bytes);
  for (std::string item; std::getline(list, item, ',');) {
    uint64_t size = 0;
    const bool digits =
        !item.empty() && item.size() < 12 && item.find_first_not_of("0123456789") == item.npos;
    if (digits) size = std::stoull(item);
    if (size < kMinChunkBytes || size > kMaxChunkBytes || size % sizeof(float) != 0) {
      ExitOnFlagError(FlagStatus("chunk_bytes", FLAGS_chunk_bytes,
                                 "multiples of 4 from 1024 to 134217728, with commas"));
    }
    sizes.push_back(static_cast<uint32_t>(size));
  }
  if (sizes.empty()) {
    ExitOnFlagError(FlagStatus("chunk_bytes", FLAGS_chunk_bytes, "at least one size"));
  }
  return sizes;
}

int32_t ParseStaleness() {
  constexpr int32_t kAsync = -1;
  if (FLAGS_staleness == "async") return kAsync;
  const bool digits = !FLAGS_staleness.empty() && FLAGS_staleness.size() < 7 &&
                      FLAGS_staleness.find_first_not_of("0123456789") == std::string::npos;
  if (!digits) {
    ExitOnFlagError(
        FlagStatus("staleness", FLAGS_staleness, "0 (BSP), a bound > 0 (SSP) or 'async'"));
  }
  return std::stoi(FLAGS_staleness);
}

FleetConfig CheckFlags() {
  ExitOnFlagError(CheckRange("workers", FLAGS_workers, 1, 64));
  ExitOnFlagError(CheckRange("servers", FLAGS_servers, 1, 64));
  ExitOnFlagError(CheckRange("model_megabytes", FLAGS_model_megabytes, 1, 16384));
  ExitOnFlagError(CheckRange("seconds", FLAGS_seconds, 0.1, 60));
  ExitOnFlagError(CheckRange("repetitions", FLAGS_repetitions, 1, 1000));
  ExitOnFlagError(CheckJsonPath(FLAGS_json));
  if (FindCodec(FLAGS_codec) == nullptr) {
    ExitOnFlagError(FlagStatus("codec", FLAGS_codec, "one of " + std::string(CodecNames())));
  }
  if (const auto kind = ParseOptimizerKind(FLAGS_optimizer); !kind) {
    ExitOnFlagError(FlagStatus("optimizer", FLAGS_optimizer,
                               "sgd, momentum, nesterov, adam, adamw or adagrad"));
  }
  if (!transport::CheckTransportName(FLAGS_transport).ok()) {
    ExitOnFlagError(
        FlagStatus("transport", FLAGS_transport, "one of " + transport::TransportNames()));
  }
  return {.workers = static_cast<uint32_t>(FLAGS_workers),
          .shards = static_cast<uint32_t>(FLAGS_servers),
          .model_bytes = static_cast<uint64_t>(FLAGS_model_megabytes) << 20,
          .codec = FLAGS_codec,
          .optimizer = FLAGS_optimizer,
          .staleness = ParseStaleness(),
          .transport = FLAGS_transport,
          .seconds = FLAGS_seconds};
}

// One chunk size over all repetitions.
struct Series {
  uint32_t chunk_bytes = 0;
  std::vector<double> rate, ratio, push_pulls, server_cpu, worker_cpu, cpu_per_gbyte;
  uint64_t copied = 0;

  void Add(const FleetResult& result, double iperf) {
    rate.push_back(result.gbytes_per_s_per_direction);
    push_pulls.push_back(result.push_pulls_per_s);
    server_cpu.push_back(result.server_cpu);
    worker_cpu.push_back(result.worker_cpu);
    cpu_per_gbyte.push_back(result.cpu_seconds_per_gbyte);
    copied += result.payload_bytes_copied;
    if (iperf > 0) ratio.push_back(result.gbytes_per_s_per_direction / iperf);
  }
};

nlohmann::json ToJson(const Series& series, const std::vector<double>& iperf) {
  nlohmann::json json = {{"chunk_bytes", series.chunk_bytes},
                         {"workers", FLAGS_workers},
                         {"servers", FLAGS_servers},
                         {"codec", FLAGS_codec},
                         {"optimizer", FLAGS_optimizer},
                         {"staleness", FLAGS_staleness},
                         {"gbytes_per_s_per_direction", Median(series.rate)},
                         {"push_pulls_per_s", Median(series.push_pulls)},
                         {"server_cpu", Median(series.server_cpu)},
                         {"worker_cpu", Median(series.worker_cpu)},
                         {"cpu_seconds_per_gbyte", Median(series.cpu_per_gbyte)},
                         {"payload_bytes_copied", series.copied},
                         {"repetitions", series.rate.size()}};
  if (!series.ratio.empty()) {
    json["ratio_to_iperf3"] = Median(series.ratio);
    json["iperf3_gbytes_per_s_per_direction"] = Median(iperf);
  }
  return json;
}

// False if there is no iperf3 to measure with, which is said once.
bool MeasureYardstick(std::vector<double>* iperf) {
  constexpr int kTries = 3;  // It fails now and then on a machine under load.
  const int seconds = std::max(1, static_cast<int>(FLAGS_seconds));  // It takes whole ones.
  Result<double> rate = MeasureIperfBidirectional(seconds);
  for (int i = 1; i < kTries && !rate && rate.error().code() != StatusCode::kNotFound; ++i) {
    rate = MeasureIperfBidirectional(seconds);
  }
  if (!rate) {
    std::fprintf(stderr, "%s\n", rate.error().message().c_str());
    return false;
  }
  iperf->push_back(*rate);
  return true;
}

// A table, and JSON: an object with one chunk size, a list of them with several.
int Finish(const std::vector<Series>& all, const std::vector<double>& iperf) {
  Table table({"chunk", "GB/s a direction", "push-pulls/s", "server cpu", "worker cpu", "cpu s/GB",
               "of iperf3"});
  nlohmann::json results = nlohmann::json::array();
  for (const Series& series : all) {
    table.AddRow(
        {FormatBytes(series.chunk_bytes), FormatNumber(Median(series.rate), 2),
         FormatNumber(Median(series.push_pulls), 0), FormatNumber(Median(series.server_cpu), 2),
         FormatNumber(Median(series.worker_cpu), 2), FormatNumber(Median(series.cpu_per_gbyte), 2),
         series.ratio.empty() ? "-" : FormatNumber(Median(series.ratio), 2)});
    results.push_back(ToJson(series, iperf));
  }
  table.Print();
  std::printf(
      "payload pushed and pulled at the same time; medians of %d%s\n", FLAGS_repetitions,
      iperf.empty()
          ? ""
          : ("; iperf3 --bidir: " + FormatNumber(Median(iperf), 2) + " GB/s a direction").c_str());
  if (all.size() == 1) results = results[0];
  const Status written = WriteJson(FLAGS_json, results);
  if (!written.ok()) std::fprintf(stderr, "%s\n", written.message().c_str());
  return written.ok() ? 0 : 1;
}

}  // namespace

int RunPushPull(int argc, char** argv) {
  gflags::SetCommandLineOptionWithMode("repetitions", "3", gflags::SET_FLAGS_DEFAULT);
  ParseFlags(
      argc, argv,
      {.name = argv[0],
       .summary = "Push-pulls of FP32 or 16-bit chunks between worker processes and a server "
                  "process over the loopback, with the optimizer's step.",
       .examples = "slackline-bench pushpull --iperf --chunk_bytes=65536,1048576,4194304 "
                   "--json=pushpull.json\n"
                   "slackline-bench pushpull --workers=2 --servers=2 --codec=fp16 "
                   "--optimizer=adamw --chunk_bytes=1048576",
       .groups = {{"Fleet",
                   {"workers", "servers", "chunk_bytes", "model_megabytes", "codec", "optimizer",
                    "staleness", "transport"}},
                  {"Measurement", {"seconds", "repetitions", "iperf", "json"}}}});
  FleetConfig config = CheckFlags();
  std::vector<Series> all;
  for (const uint32_t size : ParseChunkBytes()) all.emplace_back().chunk_bytes = size;
  std::vector<double> iperf;
  bool run_iperf = FLAGS_iperf;
  for (int repetition = 0; repetition < FLAGS_repetitions; ++repetition) {
    if (run_iperf) run_iperf = MeasureYardstick(&iperf);
    for (Series& series : all) {
      config.chunk_bytes = series.chunk_bytes;
      const Result<FleetResult> result = RunFleet(config);
      if (!result) {
        std::fprintf(stderr, "%s\n", result.error().message().c_str());
        return 1;
      }
      series.Add(*result, run_iperf ? iperf.back() : 0);
    }
  }
  return Finish(all, iperf);
}

}  // namespace slackline::bench
