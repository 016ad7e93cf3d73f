#include "worker/worker_flags.h"

#include <gflags/gflags.h>
#include <glog/logging.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <initializer_list>
#include <span>
#include <utility>

#include "common/codec/chunk_codec.h"
#include "common/flags.h"
#include "transport/transport_flags.h"
#include "worker/update_flags.h"

DEFINE_string(mode, "train", "train, evaluate or generate");
DEFINE_string(coordinator, "", "host:port of the coordinator; needed to train");
DEFINE_int32(rank, -1, "rank to take; -1: any free one");
DEFINE_double(connect_timeout_s, 15, "how long to look for the coordinator");
DEFINE_double(start_timeout_s, 120, "how long to wait for all servers and workers");
DEFINE_double(stall_timeout_s, 60, "how long a server may leave a request without any answer");
DEFINE_double(finish_timeout_s, 600, "how long to wait for slower workers at the end");
DEFINE_int64(credit_bytes, 64 << 20, "bytes under way to one shard that it has not taken yet");

DEFINE_string(model, "gpt", "gpt or mlp");
DEFINE_int64(layers, 4, "gpt: blocks");
DEFINE_int64(heads, 4, "gpt: attention heads");
DEFINE_int64(width, 128, "gpt: of the residual stream, a multiple of --heads");
DEFINE_int64(context, 128, "gpt: tokens a sample");
DEFINE_string(hidden, "128", "mlp: widths of the hidden layers, e.g. 256,128; empty: none");

DEFINE_string(
    data, "",
    "directory made by scripts/prepare_data; empty: data/text for gpt, data/digits for mlp");
DEFINE_int64(batch, 8, "samples in a micro-batch");
DEFINE_int32(accumulate, 1, "micro-batches that are summed for one push");
DEFINE_uint64(seed, 1, "of initial weights, sample order and generated text");
DEFINE_int64(lease_samples, 0, "SSP, ASP: samples in a data lease; 0: those of 4 steps");

DEFINE_int64(steps, 300, "clocks to train; every worker makes each");
DEFINE_string(staleness, "0", "0 (BSP), a bound > 0 (SSP) or async");
DEFINE_string(async_scale, "mean",
              "SSP, ASP: mean divides a push's step by the workers, sum does not");
DEFINE_bool(deterministic, false, "BSP: the same bits in every run and for every split in workers");
DEFINE_string(optimizer, "adamw",
              "sgd, momentum, nesterov, delayed_nesterov, adam, adamw or adagrad; of the workers' "
              "steps with --local_steps");
DEFINE_double(learning_rate, 1e-3, "at its highest");
DEFINE_string(schedule, "constant", "of the learning rate: constant, cosine or step");
DEFINE_int64(warmup_steps, 0, "clocks in which the learning rate rises to its highest");
DEFINE_double(final_fraction, 0.1, "cosine: part of the learning rate that is left at the end");
DEFINE_int64(step_every, 1000, "step: clocks between two drops");
DEFINE_double(step_factor, 0.1, "step: factor of a drop");
DEFINE_double(momentum, 0.9, "momentum, nesterov");
DEFINE_double(beta1, 0.9, "adam, adamw");
DEFINE_double(beta2, 0.999, "adam, adamw");
DEFINE_double(epsilon, 1e-8, "adam, adamw, adagrad");
DEFINE_double(weight_decay, 0, "of matrices and tables; decoupled for adamw");
DEFINE_double(clip, 1.0, "largest norm of a micro-batch's mean gradient; 0: any");
DEFINE_bool(overlap, true, "push during backward; clips by the previous step's norm");
DEFINE_int64(checkpoint_every, 0, "clocks between checkpoints; 0: only at the end");

DEFINE_string(
    codec, "",
    "on the wire: fp32, fp16 or bf16 both ways; or for gradients, with --precision for "
    "weights, int8, int4, onebit, fp8_e4m3, fp8_e5m2, topk or randk; empty: as --precision");
DEFINE_string(push_codec, "", "of gradients, if not --codec");
DEFINE_string(pull_codec, "", "of weights, if not --codec");
DEFINE_uint32(
    codec_block, 0,
    "int8, int4, onebit, fp8: values that share a scale, a power of two from 32 to 4096; 0: "
    "256, or 1024 for onebit");
DEFINE_string(codec_rounding, "nearest", "int8, int4: nearest or stochastic");
DEFINE_bool(error_feedback, true,
            "keep what a lossy push drops and add it to the next; off only to see what it is for");
DEFINE_double(topk_fraction, 0.01, "topk, randk: the part of a tensor's values that is sent");
DEFINE_string(topk_values, "fp16", "topk, randk: what values travel as, fp16 or int8");
DEFINE_int64(
    topk_warmup_steps, 0,
    "topk, randk: clocks in which the fraction of gradients falls to that, by fours from 1/4");
DEFINE_double(worker_momentum, 0,
              "momentum of gradients at the worker, before a codec with a residual selects from "
              "them, as in deep gradient compression; needs --optimizer=sgd; 0: none");
DEFINE_uint64(
    codec_min_elements, 8192,
    "where a codec is not fp32, fp16 or bf16: tensors with fewer elements (biases, norms) "
    "travel as fp16");
DEFINE_int64(chunk_bytes, 1 << 20, "of FP32 weights, the unit of transfer; a multiple of 4");
DEFINE_double(loss_scale, 0,
              "first loss scale, a power of two; 0: 1024 for fp16, else 1 and fixed");
DEFINE_int64(loss_scale_growth, 200, "good steps before the loss scale doubles; 0: it is fixed");
DEFINE_double(loss_scale_backoff, 0.5, "factor of the loss scale at an overflow, a power of two");
DEFINE_double(loss_scale_min, 1.0 / 1024, "smallest loss scale");
DEFINE_double(loss_scale_max, 16777216, "largest loss scale");

DEFINE_string(checkpoint, "", "evaluate, generate: merged file, step-* directory, or one of those");
DEFINE_int64(evaluate_samples, 512, "validation samples; 0: all of them");
DEFINE_string(prompt, "\n", "text to go on from");
DEFINE_int64(tokens, 300, "characters to generate");
DEFINE_double(temperature, 0.8, "of sampling; 0: always the likeliest");
DEFINE_int64(top_k, 0, "sample from the k likeliest; 0: from all");

DEFINE_int32(threads, 1, "for the model's arithmetic");
DEFINE_int64(log_every, 20, "steps between two log lines; 0: none");

namespace slackline::worker {
namespace {

constexpr int64_t kMaxSteps = 1'000'000'000'000;
constexpr int64_t kMaxBatch = 1 << 20;
constexpr double kMaxTimeoutS = 7 * 24 * 3600;
constexpr int32_t kMaxStaleness = 1 << 20;

ProgramHelp Help() {
  return {
      .name = "slackline-worker",
      .summary =
          "Trains a model together with other workers through parameter servers; evaluates "
          "a checkpoint or generates text from it.",
      .examples =
          "  slackline-worker --coordinator=127.0.0.1:4700 --data=data/text --steps=1000 "
          "--staleness=3\n"
          "  slackline-worker --mode=evaluate --checkpoint=runs/x/checkpoints --data=data/text\n"
          "  slackline-worker --mode=generate --checkpoint=model.safetensors --prompt='It was '\n",
      .groups = {
          {"What to do", {"mode", "checkpoint", "data", "seed"}},
          {"Training",
           {"steps", "staleness", "async_scale", "deterministic", "batch", "accumulate",
            "lease_samples", "clip", "overlap", "checkpoint_every"}},
          {"Optimizer",
           {"optimizer", "learning_rate", "schedule", "warmup_steps", "final_fraction",
            "step_every", "step_factor", "momentum", "beta1", "beta2", "epsilon", "weight_decay"}},
          UpdateFlagGroup(),
          PrecisionFlagGroup(),
          {"Model", {"model", "layers", "heads", "width", "context", "hidden"}},
          {"On the wire",
           {"codec", "push_codec", "pull_codec", "codec_block", "codec_rounding", "error_feedback",
            "topk_fraction", "topk_values", "topk_warmup_steps", "worker_momentum",
            "codec_min_elements", "chunk_bytes", "credit_bytes"}},
          transport::TransportFlagGroup(),
          {"Loss scale",
           {"loss_scale", "loss_scale_growth", "loss_scale_backoff", "loss_scale_min",
            "loss_scale_max"}},
          {"The cluster",
           {"coordinator", "rank", "connect_timeout_s", "start_timeout_s", "stall_timeout_s",
            "finish_timeout_s"}},
          {"Evaluation and text", {"evaluate_samples", "prompt", "tokens", "temperature", "top_k"}},
          {"Process", {"threads", "log_every"}}}};
}

void CheckChoice(std::string_view flag, std::string_view value,
                 std::initializer_list<std::string_view> allowed) {
  ExitOnFlagError(CheckOneOf(flag, value, std::span(allowed.begin(), allowed.size())));
}

void CheckNumber(std::string_view flag, double value, double low, double high) {
  ExitOnFlagError(CheckRange(flag, value, low, high));
}

// -1 for async.
int32_t ParseStaleness() {
  if (FLAGS_staleness == "async") return -1;
  int32_t value = -1;
  const char* end = FLAGS_staleness.data() + FLAGS_staleness.size();
  const auto [rest, error] = std::from_chars(FLAGS_staleness.data(), end, value);
  if (error != std::errc() || rest != end || value < 0 || value > kMaxStaleness) {
    ExitOnFlagError(FlagStatus("staleness", FLAGS_staleness,
                               "0 (BSP), a bound from 1 to 1048576 (SSP) or async"));
  }
  return value;
}

std::vector<int64_t> ParseHidden() {
  std::vector<int64_t> widths;
  const char* at = FLAGS_hidden.data();
  const char* const end = at + FLAGS_hidden.size();
  while (at != end) {
    int64_t width = 0;
    const auto [rest, error] = std::from_chars(at, end, width);
    const bool separated = rest == end || (*rest == ',' && rest + 1 != end);
    if (error != std::errc() || !separated || width < 1) {
      ExitOnFlagError(FlagStatus("hidden", FLAGS_hidden, "widths above 0, e.g. 256,128"));
    }
    widths.push_back(width);
    at = rest == end ? end : rest + 1;
  }
  return widths;
}

const std::string& BaseCodec() { return FLAGS_codec.empty() ? PrecisionCodec() : FLAGS_codec; }

// --push_codec, or --codec where it is not given.
const std::string& PushCodec() { return FLAGS_push_codec.empty() ? BaseCodec() : FLAGS_push_codec; }

// --pull_codec, or --codec where it is not given and says how weights travel.
std::string PullCodec() {
  if (!FLAGS_pull_codec.empty()) return FLAGS_pull_codec;
  return FindCodec(BaseCodec()) != nullptr ? BaseCodec() : PrecisionCodec();
}

bool IsFp16(std::string_view codec) {
  const Codec* dense = FindCodec(codec);
  return dense != nullptr && dense->id() == CodecId::kFp16;
}

void CheckCodecs() {
  const std::string allowed = std::string(CodecNames()) + ", " + std::string(ResidualCodecNames());
  const auto check = [&](std::string_view flag, const std::string& name) {
    if (!CodecPlan::Create({.name = name})) ExitOnFlagError(FlagStatus(flag, name, allowed));
    if (!CodecPlan::Create({.name = name, .block = FLAGS_codec_block})) {
      ExitOnFlagError(FlagStatus("codec_block", std::to_string(FLAGS_codec_block),
                                 "0, or a power of two from 32 to 4096"));
    }
  };
  CheckChoice("codec_rounding", FLAGS_codec_rounding, {"nearest", "stochastic"});
  CheckChoice("topk_values", FLAGS_topk_values, {"fp16", "int8"});
  if (!(FLAGS_topk_fraction > 0 && FLAGS_topk_fraction <= 1)) {
    ExitOnFlagError(FlagStatus("topk_fraction", std::to_string(FLAGS_topk_fraction),
                               "a number above 0 and at most 1"));
  }
  CheckNumber("topk_warmup_steps", static_cast<double>(FLAGS_topk_warmup_steps), 0, 1e12);
  check(FLAGS_push_codec.empty() ? "codec" : "push_codec", PushCodec());
  check(FLAGS_pull_codec.empty() ? "codec" : "pull_codec", PullCodec());
  CheckNumber("worker_momentum", FLAGS_worker_momentum, 0, 0.99999);
  if (FLAGS_worker_momentum > 0 && FindCodec(PushCodec()) != nullptr) {
    ExitOnFlagError(
        FlagStatus("worker_momentum", std::to_string(FLAGS_worker_momentum),
                   "0 unless --push_codec is one of " + std::string(ResidualCodecNames())));
  }
  if (FLAGS_worker_momentum > 0 && FLAGS_optimizer != "sgd") {
    ExitOnFlagError(FlagStatus("worker_momentum", std::to_string(FLAGS_worker_momentum),
                               "0 unless --optimizer=sgd, which then has no momentum of its own"));
  }
}

LossScaleOptions LossScaleOf(std::string_view push_codec) {
  LossScaleOptions options;
  options.backoff = FLAGS_loss_scale_backoff;
  options.min = FLAGS_loss_scale_min;
  options.max = FLAGS_loss_scale_max;
  options.growth_interval = FLAGS_loss_scale_growth;
  if (FLAGS_loss_scale != 0) {
    options.initial = FLAGS_loss_scale;
  } else if (IsFp16(push_codec)) {
    options.initial = std::clamp(options.initial, options.min, std::max(options.min, options.max));
  } else {
    // These formats have the range of FP32: nothing vanishes that FP32 would keep.
    options.initial = options.min = options.max = 1;
    options.growth_interval = 0;
  }
  return options;
}

void CheckPowerOfTwo(const char* flag, double value) {
  int exponent = 0;
  if (std::frexp(value, &exponent) == 0.5 && std::abs(exponent) <= 60) return;
  ExitOnFlagError(FlagStatus(flag, google::GetCommandLineFlagInfoOrDie(flag).current_value,
                             "a power of two from 2^-60 to 2^59"));
}

void CheckLossScale() {
  if (FLAGS_loss_scale != 0) CheckPowerOfTwo("loss_scale", FLAGS_loss_scale);
  CheckPowerOfTwo("loss_scale_min", FLAGS_loss_scale_min);
  CheckPowerOfTwo("loss_scale_max", FLAGS_loss_scale_max);
  CheckPowerOfTwo("loss_scale_backoff", FLAGS_loss_scale_backoff);
  CheckNumber("loss_scale_backoff", FLAGS_loss_scale_backoff, 0, 0.5);
  CheckNumber("loss_scale_growth", static_cast<double>(FLAGS_loss_scale_growth), 0, 1e12);
  // What is left is their order.
  if (!ValidateLossScale(LossScaleOf(PushCodec())).ok()) {
    ExitOnFlagError(FlagStatus("loss_scale",
                               google::GetCommandLineFlagInfoOrDie("loss_scale").current_value,
                               "--loss_scale_min <= --loss_scale <= --loss_scale_max"));
  }
}

void CheckModel() {
  if (FLAGS_model == "mlp") {
    (void)ParseHidden();
    return;
  }
  CheckNumber("layers", static_cast<double>(FLAGS_layers), 1, 256);
  CheckNumber("width", static_cast<double>(FLAGS_width), 1, 32768);
  CheckNumber("heads", static_cast<double>(FLAGS_heads), 1, static_cast<double>(FLAGS_width));
  CheckNumber("context", static_cast<double>(FLAGS_context), 1, 65536);
  if (FLAGS_width % FLAGS_heads != 0) {
    ExitOnFlagError(FlagStatus("width", std::to_string(FLAGS_width),
                               "a multiple of --heads=" + std::to_string(FLAGS_heads)));
  }
}

void CheckCommonFlags() {
  CheckChoice("mode", FLAGS_mode, {"train", "evaluate", "generate"});
  CheckChoice("model", FLAGS_model, {"gpt", "mlp"});
  CheckNumber("threads", FLAGS_threads, 1, 1024);
  CheckNumber("evaluate_samples", static_cast<double>(FLAGS_evaluate_samples), 0, 1e12);
  CheckNumber("tokens", static_cast<double>(FLAGS_tokens), 1, 1 << 19);
  CheckNumber("temperature", FLAGS_temperature, 0, 100);
  CheckNumber("top_k", static_cast<double>(FLAGS_top_k), 0, 256);
  if (FLAGS_prompt.empty() || FLAGS_prompt.size() > 1 << 16) {
    ExitOnFlagError(FlagStatus("prompt", FLAGS_prompt.substr(0, 40), "1 to 65536 characters"));
  }
  const bool needs_checkpoint = FLAGS_mode != "train";
  if (needs_checkpoint && FLAGS_checkpoint.empty()) {
    ExitOnFlagError(FlagStatus("checkpoint", "", "a merged file or a checkpoint's directory"));
  }
  if (!needs_checkpoint && !FLAGS_checkpoint.empty()) {
    ExitOnFlagError(FlagStatus("checkpoint", FLAGS_checkpoint,
                               "nothing with --mode=train: the coordinator takes checkpoints, see "
                               "its --checkpoint and --resume"));
  }
}

void CheckTrainingFlags() {
  (void)transport::TransportFromFlags();
  CheckChoice("async_scale", FLAGS_async_scale, {"mean", "sum"});
  CheckChoice("optimizer", FLAGS_optimizer,
              {"sgd", "momentum", "nesterov", "delayed_nesterov", "adam", "adamw", "adagrad"});
  CheckChoice("schedule", FLAGS_schedule, {"constant", "cosine", "step"});
  CheckNumber("rank", FLAGS_rank, -1, 255);
  CheckNumber("connect_timeout_s", FLAGS_connect_timeout_s, 0.1, kMaxTimeoutS);
  CheckNumber("start_timeout_s", FLAGS_start_timeout_s, 0.1, kMaxTimeoutS);
  CheckNumber("stall_timeout_s", FLAGS_stall_timeout_s, 0.1, kMaxTimeoutS);
  CheckNumber("finish_timeout_s", FLAGS_finish_timeout_s, 0.1, kMaxTimeoutS);
  CheckNumber("credit_bytes", static_cast<double>(FLAGS_credit_bytes), 1, 1e12);
  CheckNumber("batch", static_cast<double>(FLAGS_batch), 1, kMaxBatch);
  CheckNumber("accumulate", FLAGS_accumulate, 1, 1 << 16);
  CheckNumber("lease_samples", static_cast<double>(FLAGS_lease_samples), 0, UINT32_MAX);
  CheckNumber("steps", static_cast<double>(FLAGS_steps), 1, static_cast<double>(kMaxSteps));
  CheckNumber("learning_rate", FLAGS_learning_rate, 0, 1e6);
  CheckNumber("warmup_steps", static_cast<double>(FLAGS_warmup_steps), 0, 1e12);
  CheckNumber("final_fraction", FLAGS_final_fraction, 0, 1);
  CheckNumber("step_every", static_cast<double>(FLAGS_step_every), 1, 1e12);
  CheckNumber("step_factor", FLAGS_step_factor, 0, 1);
  CheckNumber("momentum", FLAGS_momentum, 0, 0.99999);
  CheckNumber("beta1", FLAGS_beta1, 0, 0.99999);
  CheckNumber("beta2", FLAGS_beta2, 0, 0.9999999);
  CheckNumber("epsilon", FLAGS_epsilon, 0, 1);
  CheckNumber("weight_decay", FLAGS_weight_decay, 0, 1e6);
  CheckNumber("clip", FLAGS_clip, 0, 1e12);
  CheckNumber("checkpoint_every", static_cast<double>(FLAGS_checkpoint_every), 0, 1e12);
  CheckNumber("chunk_bytes", static_cast<double>(FLAGS_chunk_bytes), 1024, 128 << 20);
  CheckNumber("log_every", static_cast<double>(FLAGS_log_every), 0, 1e12);
  if (FLAGS_chunk_bytes % 4 != 0) {
    ExitOnFlagError(
        FlagStatus("chunk_bytes", std::to_string(FLAGS_chunk_bytes), "a multiple of 4"));
  }
  const int32_t staleness = ParseStaleness();
  CheckCodecs();
  CheckUpdateFlags(staleness);
  CheckLossScale();
  CheckModel();
  if (FLAGS_deterministic && staleness != 0) {
    ExitOnFlagError(FlagStatus("deterministic", "true", "--staleness=0 (BSP) with it"));
  }
  if (FLAGS_deterministic && FLAGS_threads != 1) {
    ExitOnFlagError(FlagStatus("deterministic", "true", "--threads=1 with it"));
  }
  // Last, so that a wrong value is named even where a cluster was not.
  if (FLAGS_coordinator.empty() || FLAGS_coordinator.find(':') == std::string::npos) {
    ExitOnFlagError(FlagStatus("coordinator", FLAGS_coordinator, "host:port"));
  }
}

}  // namespace

void ParseWorkerFlags(int argc, char** argv) {
  ParseFlags(argc, argv, Help());
  CheckCommonFlags();
  if (FLAGS_mode == "train") CheckTrainingFlags();
}

Mode ModeFromFlags() {
  if (FLAGS_mode == "train") return Mode::kTrain;
  return FLAGS_mode == "evaluate" ? Mode::kEvaluate : Mode::kGenerate;
}

ProcessFlags ProcessFromFlags() {
  ProcessFlags flags;
  flags.data = !FLAGS_data.empty()    ? FLAGS_data
               : FLAGS_model == "mlp" ? "data/digits"
                                      : "data/text";
  flags.checkpoint = FLAGS_checkpoint;
  flags.threads = FLAGS_threads;
  flags.deterministic = FLAGS_deterministic;
  flags.seed = FLAGS_seed;
  flags.evaluate_samples = static_cast<uint64_t>(FLAGS_evaluate_samples);
  if (!google::GetCommandLineFlagInfoOrDie("model").is_default) flags.wanted_model = FLAGS_model;
  return flags;
}

ModelConfig ModelFromFlags(const DataShape& data) {
  ModelConfig config;
  const bool text = data.kind == DataKind::kText;
  if ((FLAGS_model == "gpt") != text) {
    ExitOnFlagError(FlagStatus("model", FLAGS_model,
                               text ? "gpt for a --data of text" : "mlp for a --data of images"));
  }
  if (text) {
    config.gpt = {FLAGS_layers, FLAGS_heads, FLAGS_width, FLAGS_context,
                  static_cast<int64_t>(data.vocabulary)};
  } else {
    config.kind = ModelConfig::Kind::kMlp;
    config.mlp = {static_cast<int64_t>(data.features), static_cast<int64_t>(data.classes),
                  ParseHidden()};
  }
  return config;
}

GenerateOptions GenerateFromFlags() {
  return {FLAGS_prompt, FLAGS_tokens, FLAGS_temperature, FLAGS_top_k, FLAGS_seed};
}

TrainerOptions TrainerFromFlags(const ModelConfig& model, const control::JobSpec& job) {
  TrainerOptions options;
  options.model = model;
  options.compute = ComputeFromFlags();
  options.local = LocalStepsFromJob(job);
  options.gradient.micro_batches = static_cast<uint32_t>(FLAGS_accumulate);
  options.gradient.batch = static_cast<uint64_t>(FLAGS_batch);
  options.gradient.clip_norm = FLAGS_clip;
  options.gradient.overlap = FLAGS_overlap;
  // Codecs with a residual take any finite value.
  const Codec* const dense = FindCodec(PushCodec());
  options.gradient.push_codec = dense != nullptr ? dense->id() : CodecId::kNone;
  options.gradient.loss_scale = LossScaleOf(PushCodec());
  options.sample = GenerateFromFlags();
  options.evaluate_samples = static_cast<uint64_t>(FLAGS_evaluate_samples);
  options.log_every = FLAGS_log_every;
  options.finish_timeout_ns = static_cast<TimeNs>(FLAGS_finish_timeout_s * kNsPerSecond);
  return options;
}

control::JobSpec JobFromFlags(const ModelConfig& model, const DataManifest& data,
                              uint64_t train_samples) {
  control::JobSpec job;
  job.set_model(FLAGS_model);
  job.set_model_config_json(ModelConfigJson(model));
  job.set_steps(FLAGS_steps);
  job.set_staleness(ParseStaleness());
  job.set_deterministic(FLAGS_deterministic);
  job.set_async_scale_sum(FLAGS_async_scale == "sum");
  job.set_seed(FLAGS_seed);
  control::Optimizer& optimizer = *job.mutable_optimizer();
  optimizer.set_name(FLAGS_optimizer);
  optimizer.set_momentum(FLAGS_momentum);
  optimizer.set_beta1(FLAGS_beta1);
  optimizer.set_beta2(FLAGS_beta2);
  optimizer.set_epsilon(FLAGS_epsilon);
  optimizer.set_weight_decay(FLAGS_weight_decay);
  control::Schedule& schedule = *job.mutable_schedule();
  schedule.set_name(FLAGS_schedule);
  schedule.set_learning_rate(FLAGS_learning_rate);
  schedule.set_warmup_steps(FLAGS_warmup_steps);
  schedule.set_total_steps(FLAGS_steps);
  schedule.set_final_fraction(FLAGS_final_fraction);
  schedule.set_step_every(FLAGS_step_every);
  schedule.set_step_factor(FLAGS_step_factor);
  job.set_push_codec(PushCodec());
  job.set_pull_codec(PullCodec());
  job.set_codec_block(FLAGS_codec_block);
  job.set_codec_stochastic(FLAGS_codec_rounding == "stochastic");
  job.set_topk_int8_values(FLAGS_topk_values == "int8");
  job.set_topk_fraction(FLAGS_topk_fraction);
  job.set_topk_warmup_steps(FLAGS_topk_warmup_steps);
  job.set_codec_min_elements(FLAGS_codec_min_elements);
  job.set_chunk_bytes(static_cast<uint32_t>(FLAGS_chunk_bytes));
  job.set_checkpoint_every(FLAGS_checkpoint_every);
  job.set_train_samples(train_samples);
  const uint64_t step_samples =
      static_cast<uint64_t>(FLAGS_batch) * static_cast<uint64_t>(FLAGS_accumulate);
  const auto wanted = FLAGS_lease_samples > 0 ? static_cast<uint64_t>(FLAGS_lease_samples)
                                              : std::min<uint64_t>(4 * step_samples, UINT32_MAX);
  job.set_lease_samples(static_cast<uint32_t>(std::min(wanted, train_samples)));
  job.set_data_fingerprint(data.fingerprint);
  FillUpdateRule(&job);
  job.set_link_gbps(transport::TransportFromFlags().options.link_gbps);
  return job;
}

ClientOptions ClientFromFlags(control::JobSpec job) {
  const auto seconds = [](double value) { return static_cast<TimeNs>(value * kNsPerSecond); };
  ClientOptions options;
  options.worker_momentum = FLAGS_worker_momentum;
  options.coordinator = FLAGS_coordinator;
  transport::TransportChoice transport = transport::TransportFromFlags();
  options.transport = std::move(transport.name);
  options.endpoint = std::move(transport.options);
  options.wanted_rank = FLAGS_rank;
  options.job = std::move(job);
  options.connect_timeout_ns = seconds(FLAGS_connect_timeout_s);
  options.start_timeout_ns = seconds(FLAGS_start_timeout_s);
  options.stall_timeout_ns = seconds(FLAGS_stall_timeout_s);
  options.error_feedback = FLAGS_error_feedback;
  options.credit_bytes = static_cast<size_t>(FLAGS_credit_bytes);
  options.on_wait = [](const std::string& line) { LOG(INFO) << line; };
  return options;
}

}  // namespace slackline::worker
