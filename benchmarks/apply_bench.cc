// slackline-bench apply: each fused optimizer, on arrays far larger than any cache, against passes
// that do next to no arithmetic and move the same number of bytes.
//
// Bytes are those that the program reads and writes: weights, gradient and state in, weights and
// state out. Two triads serve as yardsticks. a = b + s*c is STREAM's; it writes an array that it
// has not read, so the memory moves a third more than is counted. a = a + s*b writes what it has
// read, as an optimizer does. The ratio is taken to the second, the faster, as it runs just before
// and just after each step.
#include <gflags/gflags.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "benchmarks/bench.h"
#include "benchmarks/measure.h"
#include "common/flags.h"
#include "server/optimizer/optimizer.h"

DEFINE_int32(megabytes, 64, "MiB of FP32 weights");
DEFINE_double(target, 0.8, "ratio to the triad below which the program exits with 1; 0 for none");

namespace slackline::bench {
namespace {

using server::Optimizer;
using server::OptimizerKind;

// The most bytes a parameter moves: AdamW's w, g, m, v read and w, m, v written.
constexpr size_t kMostBytesPerParameter = 7 * sizeof(float);

// Everything that the passes touch; allocated once, so that all run on the same pages.
struct Memory {
  explicit Memory(size_t count)
      : weights(MakeFloats(count, 0.5f)),
        slot0(MakeFloats(count, 0.25f)),
        slot1(MakeFloats(count, 0.25f)),
        a(MakeFloats(TriadCount(count, kMostBytesPerParameter), 1.0f)),
        b(MakeFloats(TriadCount(count, kMostBytesPerParameter), 1.0f)),
        c(MakeFloats(TriadCount(count, kMostBytesPerParameter), 1.0f)) {}

  static size_t TriadCount(size_t count, size_t bytes_per_parameter) {
    return count * bytes_per_parameter / kTriadBytes;
  }

  FloatBuffer weights;
  FloatBuffer slot0;
  FloatBuffer slot1;
  FloatBuffer a;
  FloatBuffer b;
  FloatBuffer c;
};

struct Row {
  std::string_view optimizer;
  std::string_view gradient;
  size_t bytes_per_parameter = 0;
  double gbytes_per_s = 0;
  double triad_gbytes_per_s = 0;
  double triad_in_place_gbytes_per_s = 0;
  double copy_gbytes_per_s = 0;
  double ratio_to_triad = 0;
};

Row Measure(OptimizerKind kind, const Codec& codec, size_t count, const FloatBuffer& payload,
            Memory& memory) {
  const auto optimizer = Optimizer::Create({.kind = kind, .weight_decay = 0.01}).value();
  const server::ParameterView parameters{.weights = memory.weights.get(),
                                         .weights_out = memory.weights.get(),
                                         .slot0 = memory.slot0.get(),
                                         .slot1 = memory.slot1.get(),
                                         .count = count,
                                         .decay = true};
  const server::GradientView gradient{.payload = reinterpret_cast<std::byte*>(payload.get()),
                                      .payload_codec = codec.id(),
                                      .payload_scale = 1.0f / 1024,
                                      .scale = 0.5f};
  Row row{.optimizer = OptimizerKindName(kind),
          .gradient = codec.name(),
          .bytes_per_parameter =
              codec.EncodedBytes(1) + sizeof(float) * (2 + 2 * optimizer->slot_count())};
  const auto bytes = static_cast<double>(count * row.bytes_per_parameter);
  const size_t triad_count = Memory::TriadCount(count, row.bytes_per_parameter);
  const size_t copy_count = count * row.bytes_per_parameter / kCopyBytes;

  std::vector<double> ratios;
  std::vector<double> step;
  std::vector<double> triad;
  std::vector<double> triad_in_place;
  std::vector<double> copy;
  const auto time_triad_in_place = [&] {
    return TimePass([&] { TriadInPlacePass(memory.a.get(), memory.b.get(), triad_count); });
  };
  for (int i = 0; i < FLAGS_repetitions; ++i) {
    const double before = time_triad_in_place();
    step.push_back(TimePass(
        [&] { optimizer->Step(parameters, gradient, 1e-4f, static_cast<uint64_t>(i) + 1); }));
    const double after = time_triad_in_place();
    triad.push_back(
        TimePass([&] { TriadPass(memory.a.get(), memory.b.get(), memory.c.get(), triad_count); }));
    copy.push_back(TimePass([&] { CopyPass(memory.c.get(), memory.b.get(), copy_count); }));
    triad_in_place.push_back((before + after) / 2);
    ratios.push_back(triad_in_place.back() / step.back());
  }
  row.gbytes_per_s = bytes / Median(step) / 1e9;
  row.triad_gbytes_per_s = bytes / Median(triad) / 1e9;
  row.triad_in_place_gbytes_per_s = bytes / Median(triad_in_place) / 1e9;
  row.copy_gbytes_per_s = bytes / Median(copy) / 1e9;
  row.ratio_to_triad = Median(ratios);
  return row;
}

}  // namespace

int RunApply(int argc, char** argv) {
  ParseFlags(
      argc, argv,
      {.name = argv[0],
       .summary = "One step of each fused optimizer against a triad and a copy that move the "
                  "same number of bytes, measured in turn.",
       .examples = "slackline-bench apply --megabytes=128 --json=apply.json",
       .groups = {{"Measurement", {"megabytes", "repetitions", "target", "json"}}}});
  ExitOnFlagError(CheckRange("megabytes", FLAGS_megabytes, 1, 4096));
  ExitOnFlagError(CheckRange("repetitions", FLAGS_repetitions, 1, 1000));
  ExitOnFlagError(CheckRange("target", FLAGS_target, 0, 100));

  const size_t count = static_cast<size_t>(FLAGS_megabytes) * (1 << 20) / sizeof(float);
  Memory memory(count);
  const FloatBuffer values = MakeFloats(count, 0.125f);
  const FloatBuffer payload = MakeFloats(count, 0);
  Table table({"optimizer", "gradient", "B/param", "GB/s", "triad", "in place", "copy", "ratio"});
  nlohmann::json results = nlohmann::json::array();
  bool all_reached = true;
  for (const CodecId id : {CodecId::kFp32, CodecId::kFp16}) {
    const Codec& codec = *FindCodec(id);
    codec.Encode(values.get(), count, 1024, reinterpret_cast<std::byte*>(payload.get()));
    for (const OptimizerKind kind :
         {OptimizerKind::kSgd, OptimizerKind::kMomentum, OptimizerKind::kNesterov,
          OptimizerKind::kAdam, OptimizerKind::kAdamW, OptimizerKind::kAdagrad}) {
      const Row row = Measure(kind, codec, count, payload, memory);
      all_reached = all_reached && row.ratio_to_triad >= FLAGS_target;
      table.AddRow({std::string(row.optimizer), std::string(row.gradient),
                    std::to_string(row.bytes_per_parameter), FormatNumber(row.gbytes_per_s, 2),
                    FormatNumber(row.triad_gbytes_per_s, 2),
                    FormatNumber(row.triad_in_place_gbytes_per_s, 2),
                    FormatNumber(row.copy_gbytes_per_s, 2), FormatNumber(row.ratio_to_triad, 2)});
      results.push_back({{"optimizer", row.optimizer},
                         {"gradient", row.gradient},
                         {"bytes_per_parameter", row.bytes_per_parameter},
                         {"gbytes_per_s", row.gbytes_per_s},
                         {"triad_gbytes_per_s", row.triad_gbytes_per_s},
                         {"triad_in_place_gbytes_per_s", row.triad_in_place_gbytes_per_s},
                         {"copy_gbytes_per_s", row.copy_gbytes_per_s},
                         {"ratio_to_triad", row.ratio_to_triad}});
    }
  }
  table.Print();
  std::printf("GB/s of bytes read and written; ratio to the triad in place, medians of %d\n",
              FLAGS_repetitions);
  const Status written = WriteJson(FLAGS_json, results);
  if (!written.ok()) std::fprintf(stderr, "%s\n", written.message().c_str());
  return written.ok() && all_reached ? 0 : 1;
}

}  // namespace slackline::bench
