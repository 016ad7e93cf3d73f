// slackline-bench apply: each fused optimizer, on arrays far larger than any cache, against passes
// that do next to no arithmetic and move the same number of bytes.
//
// Bytes are those that the program reads and writes: weights, gradient and state in; weights, state
// and copy out. The yardsticks are two triads. a = b + s*c is STREAM's; it writes an array that it
// has not read, so the memory moves a third more than is counted. a = a + s*b writes what it has
// read and is the faster. A step that writes nothing but what it has read is held to that one, the
// others to STREAM's, measured just before and just after the step.
#include <gflags/gflags.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "benchmarks/bench.h"
#include "benchmarks/measure.h"
#include "common/flags.h"
#include "common/optimizer/optimizer.h"

DEFINE_int32(megabytes, 64, "MiB of FP32 weights");
DEFINE_double(target, 0.8, "ratio to the triad below which the program exits with 1; 0 for none");

namespace slackline::bench {
namespace {

// Where the gradient comes from and the weights go to, as in a shard: it keeps its weights in place
// and encodes a copy for replies, or, when replies are FP32, writes the weights where replies read
// them.
struct Form {
  CodecId gradient;
  bool in_place;
  CodecId copy;
  std::string_view output;
};

constexpr Form kForms[] = {
    {CodecId::kFp32, true, CodecId::kNone, "in place"},
    {CodecId::kFp16, true, CodecId::kNone, "in place"},
    {CodecId::kFp32, false, CodecId::kNone, "elsewhere"},
    {CodecId::kFp16, true, CodecId::kFp16, "in place, fp16 copy"},
};

// The most bytes a parameter moves: AdamW's w, g, m, v read and w, m, v written.
constexpr size_t kMostBytesPerParameter = 7 * sizeof(float);

// Everything that the passes touch; allocated once, so that all run on the same pages.
struct Memory {
  explicit Memory(size_t count)
      : weights(MakeFloats(count, 0.5f)),
        weights_out(MakeFloats(count, 0)),
        payload(MakeFloats(count, 0)),
        slot0(MakeFloats(count, 0.25f)),
        slot1(MakeFloats(count, 0.25f)),
        a(MakeFloats(TriadCount(count, kMostBytesPerParameter), 1.0f)),
        b(MakeFloats(TriadCount(count, kMostBytesPerParameter), 1.0f)),
        c(MakeFloats(TriadCount(count, kMostBytesPerParameter), 1.0f)) {}

  static size_t TriadCount(size_t count, size_t bytes_per_parameter) {
    return count * bytes_per_parameter / kTriadBytes;
  }

  FloatBuffer weights;
  FloatBuffer weights_out;  // Or the encoded copy.
  FloatBuffer payload;
  FloatBuffer slot0;
  FloatBuffer slot1;
  FloatBuffer a;
  FloatBuffer b;
  FloatBuffer c;
};

struct Row {
  std::string_view optimizer;
  std::string_view gradient;
  std::string_view output;
  size_t bytes_per_parameter = 0;
  double gbytes_per_s = 0;
  double triad_gbytes_per_s = 0;
  double triad_in_place_gbytes_per_s = 0;
  double copy_gbytes_per_s = 0;
  double ratio_to_triad = 0;
};

size_t ValueBytes(CodecId codec) {
  return codec == CodecId::kNone ? 0 : FindCodec(codec)->EncodedBytes(1);
}

// One step of the optimizer in this form over all of memory.
void Step(const Optimizer& optimizer, const Form& form, size_t count, Memory& memory,
          uint64_t step) {
  ParameterView parameters{.weights = memory.weights.get(),
                           .weights_out = memory.weights.get(),
                           .slot0 = memory.slot0.get(),
                           .slot1 = memory.slot1.get(),
                           .count = count,
                           .decay = true};
  if (!form.in_place) parameters.weights_out = memory.weights_out.get();
  if (form.copy != CodecId::kNone) {
    parameters.copy_out = reinterpret_cast<std::byte*>(memory.weights_out.get());
    parameters.copy_codec = form.copy;
  }
  const GradientView gradient{.payload = reinterpret_cast<std::byte*>(memory.payload.get()),
                              .payload_codec = form.gradient,
                              .payload_scale = 1.0f / 1024,
                              .scale = 0.5f};
  optimizer.Step(parameters, gradient, 1e-4f, step);
}

Row Measure(OptimizerKind kind, const Form& form, size_t count, Memory& memory) {
  const auto optimizer = Optimizer::Create({.kind = kind, .weight_decay = 0.01}).value();
  Row row{.optimizer = OptimizerKindName(kind),
          .gradient = FindCodec(form.gradient)->name(),
          .output = form.output,
          .bytes_per_parameter = ValueBytes(form.gradient) + ValueBytes(form.copy) +
                                 sizeof(float) * (2 + 2 * optimizer->slot_count())};
  const auto bytes = static_cast<double>(count * row.bytes_per_parameter);
  const size_t triad_count = Memory::TriadCount(count, row.bytes_per_parameter);
  const size_t copy_count = count * row.bytes_per_parameter / kCopyBytes;

  std::vector<double> ratios;
  std::vector<double> step;
  std::vector<double> triad;
  std::vector<double> triad_in_place;
  std::vector<double> copy;
  const auto time_triad = [&] {
    return TimePass(
        [&] { TriadPass(memory.a.get(), memory.b.get(), memory.c.get(), triad_count); });
  };
  const auto time_in_place = [&] {
    return TimePass([&] { TriadInPlacePass(memory.a.get(), memory.b.get(), triad_count); });
  };
  const bool writes_what_it_read = form.in_place && form.copy == CodecId::kNone;
  for (int i = 0; i < FLAGS_repetitions; ++i) {
    const double before = writes_what_it_read ? time_in_place() : time_triad();
    step.push_back(
        TimePass([&] { Step(*optimizer, form, count, memory, static_cast<uint64_t>(i) + 1); }));
    triad_in_place.push_back(time_in_place());
    triad.push_back(time_triad());
    const double after = writes_what_it_read ? triad_in_place.back() : triad.back();
    copy.push_back(TimePass([&] { CopyPass(memory.c.get(), memory.b.get(), copy_count); }));
    ratios.push_back((before + after) / 2 / step.back());
  }
  row.gbytes_per_s = bytes / Median(step) / 1e9;
  row.triad_gbytes_per_s = bytes / Median(triad) / 1e9;
  row.triad_in_place_gbytes_per_s = bytes / Median(triad_in_place) / 1e9;
  row.copy_gbytes_per_s = bytes / Median(copy) / 1e9;
  row.ratio_to_triad = Median(ratios);
  return row;
}

void AddRow(const Row& row, Table* table, nlohmann::json* results) {
  table->AddRow({std::string(row.optimizer), std::string(row.gradient), std::string(row.output),
                 std::to_string(row.bytes_per_parameter), FormatNumber(row.gbytes_per_s, 2),
                 FormatNumber(row.triad_gbytes_per_s, 2),
                 FormatNumber(row.triad_in_place_gbytes_per_s, 2),
                 FormatNumber(row.copy_gbytes_per_s, 2), FormatNumber(row.ratio_to_triad, 2)});
  results->push_back({{"optimizer", row.optimizer},
                      {"gradient", row.gradient},
                      {"output", row.output},
                      {"bytes_per_parameter", row.bytes_per_parameter},
                      {"gbytes_per_s", row.gbytes_per_s},
                      {"triad_gbytes_per_s", row.triad_gbytes_per_s},
                      {"triad_in_place_gbytes_per_s", row.triad_in_place_gbytes_per_s},
                      {"copy_gbytes_per_s", row.copy_gbytes_per_s},
                      {"ratio_to_triad", row.ratio_to_triad}});
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
  ExitOnFlagError(CheckJsonPath(FLAGS_json));
  ExitOnFlagError(CheckRange("target", FLAGS_target, 0, 100));

  const size_t count = static_cast<size_t>(FLAGS_megabytes) * (1 << 20) / sizeof(float);
  Memory memory(count);
  Table table({"optimizer", "gradient", "weights go", "B/param", "GB/s", "triad", "in place",
               "copy", "ratio"});
  nlohmann::json results = nlohmann::json::array();
  bool all_reached = true;
  for (const Form& form : kForms) {
    FindCodec(form.gradient)
        ->Encode(memory.a.get(), count, 1, reinterpret_cast<std::byte*>(memory.payload.get()));
    for (const OptimizerKind kind :
         {OptimizerKind::kSgd, OptimizerKind::kMomentum, OptimizerKind::kNesterov,
          OptimizerKind::kAdam, OptimizerKind::kAdamW, OptimizerKind::kAdagrad,
          OptimizerKind::kDelayedNesterov}) {
      const Row row = Measure(kind, form, count, memory);
      all_reached = all_reached && row.ratio_to_triad >= FLAGS_target;
      AddRow(row, &table, &results);
    }
  }
  table.Print();
  std::printf(
      "GB/s of bytes read and written; ratio to the triad that writes as the step does; medians of "
      "%d\n",
      FLAGS_repetitions);
  const Status written = WriteJson(FLAGS_json, results);
  if (!written.ok()) std::fprintf(stderr, "%s\n", written.message().c_str());
  return written.ok() && all_reached ? 0 : 1;
}

}  // namespace slackline::bench
