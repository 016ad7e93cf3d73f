// slackline-bench codec: each pass of each codec against memcpy of the FP32 values behind it.
#include <gflags/gflags.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "benchmarks/bench.h"
#include "benchmarks/measure.h"
#include "common/codec/codec.h"
#include "common/flags.h"

DEFINE_int32(codec_megabytes, 16, "MiB of FP32 values to encode and decode");

namespace slackline::bench {
namespace {

struct Row {
  std::string_view codec;
  std::string operation;
  double ratio_to_memcpy = 0;
  double gbytes_per_s = 0;  // Of FP32 values.
  double compression = 0;   // FP32 bytes over encoded bytes.
};

// Times `operation` and memcpy in turn, so that both meet the same disturbances.
template <class Operation>
Row Measure(const Codec& codec, std::string name, const float* values, float* copy, size_t count,
            const Operation& operation) {
  std::vector<double> ratios;
  std::vector<double> seconds;
  for (int i = 0; i < FLAGS_repetitions; ++i) {
    const double copied = TimePass([&] { CopyPass(copy, values, count); });
    seconds.push_back(TimePass(operation));
    ratios.push_back(copied / seconds.back());
  }
  const auto bytes = static_cast<double>(count * sizeof(float));
  return {codec.name(), std::move(name), Median(ratios), bytes / Median(seconds) / 1e9,
          bytes / static_cast<double>(codec.EncodedBytes(count))};
}

std::vector<Row> MeasureCodec(const Codec& codec, size_t count) {
  const FloatBuffer values = MakeFloats(count, 0.125f);
  const FloatBuffer copy = MakeFloats(count, 0);
  const FloatBuffer decoded = MakeFloats(count, 0);
  const FloatBuffer encoded = MakeFloats((codec.EncodedBytes(count) + 3) / 4, 0);
  auto* bytes = reinterpret_cast<std::byte*>(encoded.get());
  const ConstBytes payload(bytes, codec.EncodedBytes(count));
  size_t refused = 0;
  std::vector<Row> rows;
  const auto measure = [&](std::string name, const auto& operation) {
    rows.push_back(Measure(codec, std::move(name), values.get(), copy.get(), count, operation));
  };
  measure("encode", [&] { codec.Encode(values.get(), count, 1024, bytes); });
  measure("validate", [&] { refused += codec.Validate(payload, count).ok() ? 0 : 1; });
  measure("decode", [&] { codec.Decode(bytes, count, 1.0f / 1024, decoded.get()); });
  measure("decode_add", [&] { codec.DecodeAdd(bytes, count, 1.0f / 1024, decoded.get()); });
  if (refused != 0) std::fprintf(stderr, "%s refused its own output\n", codec.name().data());
  return rows;
}

}  // namespace

int RunCodec(int argc, char** argv) {
  ParseFlags(argc, argv,
             {.name = argv[0],
              .summary = "Encode, validate and decode of each codec against memcpy of the FP32 "
                         "values behind it, measured in turn.",
              .examples = "slackline-bench codec --codec_megabytes=64 --json=codec.json",
              .groups = {{"Measurement", {"codec_megabytes", "repetitions", "json"}}}});
  ExitOnFlagError(CheckRange("codec_megabytes", FLAGS_codec_megabytes, 1, 4096));
  ExitOnFlagError(CheckRange("repetitions", FLAGS_repetitions, 1, 1000));

  const size_t count = static_cast<size_t>(FLAGS_codec_megabytes) * (1 << 20) / sizeof(float);
  Table table({"codec", "operation", "of memcpy", "GB/s of FP32", "compression"});
  nlohmann::json results = nlohmann::json::array();
  for (const CodecId id : {CodecId::kFp32, CodecId::kFp16, CodecId::kBf16}) {
    for (const Row& row : MeasureCodec(*FindCodec(id), count)) {
      table.AddRow({std::string(row.codec), row.operation, FormatNumber(row.ratio_to_memcpy, 2),
                    FormatNumber(row.gbytes_per_s, 2), FormatNumber(row.compression, 2)});
      results.push_back({{"codec", row.codec},
                         {"operation", row.operation},
                         {"ratio_to_memcpy", row.ratio_to_memcpy},
                         {"gbytes_per_s", row.gbytes_per_s},
                         {"compression", row.compression}});
    }
  }
  table.Print();
  const Status written = WriteJson(FLAGS_json, results);
  if (!written.ok()) std::fprintf(stderr, "%s\n", written.message().c_str());
  return written.ok() ? 0 : 1;
}

}  // namespace slackline::bench
