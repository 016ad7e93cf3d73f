// slackline-bench codec: each pass of each codec against memcpy of the FP32 values behind it.
#include <gflags/gflags.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "benchmarks/bench.h"
#include "benchmarks/measure.h"
#include "common/codec/codec.h"
#include "common/codec/residual_codec.h"
#include "common/flags.h"
#include "common/random.h"

DEFINE_int32(codec_megabytes, 16, "MiB of FP32 values to encode and decode");
DEFINE_int32(codec_block, 0, "Values that share a scale in codecs by block; 0: the default");
DEFINE_double(codec_fraction, 0.01, "Part of the values that topk and randk send");

namespace slackline::bench {
namespace {

struct Row {
  std::string codec;
  std::string operation;
  double ratio_to_memcpy = 0;
  double gbytes_per_s = 0;  // Of FP32 values.
  double compression = 0;   // FP32 bytes over encoded bytes.
  double error = 0;         // Norm of what one encoding loses over the norm of the values.
};

// Values that are encoded in one payload: the default chunk, as workers push it.
constexpr size_t kChunk = 262144;

// Times `operation` and memcpy in turn, so that both meet the same disturbances.
template <class Operation>
Row TimeAgainstMemcpy(const Codec& codec, std::string name, const float* values, float* copy,
                      size_t count, const Operation& operation) {
  std::vector<double> ratios;
  std::vector<double> seconds;
  for (int i = 0; i < FLAGS_repetitions; ++i) {
    const double copied = TimePass([&] { CopyPass(copy, values, count); });
    seconds.push_back(TimePass(operation));
    ratios.push_back(copied / seconds.back());
  }
  const size_t chunk = std::min(count, kChunk);
  return {.codec = std::string(codec.name()),
          .operation = std::move(name),
          .ratio_to_memcpy = Median(ratios),
          .gbytes_per_s = static_cast<double>(count * sizeof(float)) / Median(seconds) / 1e9,
          .compression = static_cast<double>(chunk * sizeof(float)) /
                         static_cast<double>(codec.EncodedBytes(chunk))};
}

// One codec on `count` values, chunk by chunk.
class CodecRun {
 public:
  CodecRun(const Codec& codec, size_t count)
      : codec_(codec),
        count_(count),
        chunk_bytes_((codec.EncodedBytes(std::min(count, kChunk)) + 3) / 4 * 4),
        values_(MakeFloats(count, 0)),
        copy_(MakeFloats(count, 0)),
        decoded_(MakeFloats(count, 0)),
        encoded_(MakeFloats((count / kChunk + 1) * chunk_bytes_ / 4, 0)) {
    // Normally distributed, as gradients nearly are: topk's work depends on it. A stretch is drawn
    // and repeated, since drawing takes far longer than encoding.
    constexpr size_t kDrawn = 65521;  // A prime, so that chunks differ.
    Rng random(1);
    for (size_t i = 0; i < std::min(count, kDrawn); ++i) {
      values_[i] = static_cast<float>(random.Normal());
    }
    for (size_t i = kDrawn; i < count; ++i) values_[i] = values_[i - kDrawn];
  }

  std::vector<Row> Measure() {
    size_t refused = 0;
    AddRow("encode", [&] {
      ForEachChunk([&](size_t first, size_t n, std::byte* bytes) {
        codec_.Encode(&values_[first], n, 1, bytes);
      });
    });
    AddRow("validate", [&] {
      ForEachChunk([&](size_t, size_t n, std::byte* bytes) {
        refused += codec_.Validate({bytes, codec_.EncodedBytes(n)}, n).ok() ? 0 : 1;
      });
    });
    AddRow("decode", [&] {
      ForEachChunk([&](size_t first, size_t n, std::byte* bytes) {
        codec_.Decode(bytes, n, 1, &decoded_[first]);
      });
    });
    const double error = RelativeError();
    AddRow("decode_add", [&] {
      ForEachChunk([&](size_t first, size_t n, std::byte* bytes) {
        codec_.DecodeAdd(bytes, n, 1, &decoded_[first]);
      });
    });
    for (Row& row : rows_) row.error = error;
    if (refused != 0) std::fprintf(stderr, "%s refused its own output\n", codec_.name().data());
    return std::move(rows_);
  }

  // The residual is updated in place, as when a push is committed before the next encoding.
  Row MeasureResidual(const ResidualCodec& codec) {
    const FloatBuffer residual = MakeFloats(count_, 0);
    AddRow("encode_residual", [&] {
      ForEachChunk([&](size_t first, size_t n, std::byte* bytes) {
        codec.EncodeResidual(&values_[first], n, 1, &residual[first], &residual[first],
                             {.chunk = static_cast<uint32_t>(first / kChunk)}, bytes);
      });
    });
    Row row = std::move(rows_.back());
    rows_.clear();
    return row;
  }

 private:
  template <class Operation>
  void AddRow(std::string name, const Operation& operation) {
    rows_.push_back(
        TimeAgainstMemcpy(codec_, std::move(name), values_.get(), copy_.get(), count_, operation));
  }

  template <class Visit>
  void ForEachChunk(const Visit& visit) {
    auto* bytes = reinterpret_cast<std::byte*>(encoded_.get());
    for (size_t first = 0; first < count_; first += kChunk, bytes += chunk_bytes_) {
      visit(first, std::min(kChunk, count_ - first), bytes);
    }
  }

  double RelativeError() const {
    double lost = 0;
    double whole = 0;
    for (size_t i = 0; i < count_; ++i) {
      const auto value = static_cast<double>(values_[i]);
      lost += std::pow(value - static_cast<double>(decoded_[i]), 2);
      whole += value * value;
    }
    return std::sqrt(lost / whole);
  }

  const Codec& codec_;
  const size_t count_;
  const size_t chunk_bytes_;  // Between the starts of two payloads.
  const FloatBuffer values_;
  const FloatBuffer copy_;
  const FloatBuffer decoded_;
  const FloatBuffer encoded_;
  std::vector<Row> rows_;
};

// All rows; nothing is measured if an option is refused.
Result<std::vector<Row>> MeasureAll(size_t count) {
  struct Named {
    std::string name;
    ResidualCodecOptions options;
  };
  const auto block = static_cast<size_t>(FLAGS_codec_block);
  const double fraction = FLAGS_codec_fraction;
  const std::vector<Named> named = {
      {"int8", {.name = "int8", .block = block}},
      {"int8 stochastic", {.name = "int8", .block = block, .stochastic = true}},
      {"int4", {.name = "int4", .block = block}},
      {"int4 stochastic", {.name = "int4", .block = block, .stochastic = true}},
      {"fp8_e4m3", {.name = "fp8_e4m3", .block = block}},
      {"fp8_e5m2", {.name = "fp8_e5m2", .block = block}},
      {"onebit", {.name = "onebit", .block = block}},
      {"topk", {.name = "topk", .fraction = fraction}},
      {"topk int8", {.name = "topk", .fraction = fraction, .int8_values = true}},
      {"randk", {.name = "randk", .fraction = fraction}},
  };
  std::vector<std::unique_ptr<const ResidualCodec>> codecs;
  for (const Named& each : named) {
    SLACKLINE_ASSIGN_OR_RETURN(auto codec, MakeResidualCodec(each.options));
    codecs.push_back(std::move(codec));
  }
  std::vector<Row> rows;
  for (const CodecId id : {CodecId::kFp32, CodecId::kFp16, CodecId::kBf16}) {
    for (Row& row : CodecRun(*FindCodec(id), count).Measure()) rows.push_back(std::move(row));
  }
  for (size_t i = 0; i < codecs.size(); ++i) {
    CodecRun run(*codecs[i], count);
    std::vector<Row> measured = run.Measure();
    Row residual = run.MeasureResidual(*codecs[i]);
    residual.error = measured.front().error;
    measured.insert(measured.begin() + 1, std::move(residual));
    for (Row& row : measured) {
      row.codec = named[i].name;
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

}  // namespace

int RunCodec(int argc, char** argv) {
  ParseFlags(argc, argv,
             {.name = argv[0],
              .summary = "Encode, validate and decode of each codec against memcpy of the FP32 "
                         "values behind it, measured in turn.",
              .examples = "slackline-bench codec --codec_megabytes=64 --json=codec.json",
              .groups = {{"Measurement", {"codec_megabytes", "repetitions", "json"}},
                         {"Codecs", {"codec_block", "codec_fraction"}}}});
  ExitOnFlagError(CheckRange("codec_megabytes", FLAGS_codec_megabytes, 1, 4096));
  ExitOnFlagError(CheckRange("repetitions", FLAGS_repetitions, 1, 1000));
  ExitOnFlagError(CheckJsonPath(FLAGS_json));
  ExitOnFlagError(CheckRange("codec_block", FLAGS_codec_block, 0, kMaxBlock));

  const size_t count = static_cast<size_t>(FLAGS_codec_megabytes) * (1 << 20) / sizeof(float);
  const Result<std::vector<Row>> rows = MeasureAll(count);
  if (!rows) ExitOnFlagError(rows.error());
  Table table({"codec", "operation", "of memcpy", "GB/s of FP32", "compression", "error"});
  nlohmann::json results = nlohmann::json::array();
  for (const Row& row : *rows) {
    table.AddRow({row.codec, row.operation, FormatNumber(row.ratio_to_memcpy, 2),
                  FormatNumber(row.gbytes_per_s, 2), FormatNumber(row.compression, 2),
                  FormatNumber(row.error, 5)});
    results.push_back({{"codec", row.codec},
                       {"operation", row.operation},
                       {"ratio_to_memcpy", row.ratio_to_memcpy},
                       {"gbytes_per_s", row.gbytes_per_s},
                       {"compression", row.compression},
                       {"error", row.error}});
  }
  table.Print();
  const Status written = WriteJson(FLAGS_json, results);
  if (!written.ok()) std::fprintf(stderr, "%s\n", written.message().c_str());
  return written.ok() ? 0 : 1;
}

}  // namespace slackline::bench
