#include "worker/update_flags.h"

#include <gflags/gflags.h>
#include <glog/logging.h>

#include <algorithm>

#include "common/codec/codec.h"
#include "proto/optimizer_spec.h"

DEFINE_int32(local_steps, 0,
             "steps of the worker's own optimizer in a clock, which then pushes how far they went "
             "(DiLoCo); 0: a clock pushes a gradient");
DEFINE_string(outer_optimizer, "",
              "of the servers with --local_steps: nesterov, delayed_nesterov (SSP, async), sgd or "
              "momentum; empty: nesterov, or delayed_nesterov where nobody waits");
DEFINE_double(outer_learning_rate, 0.7, "of the servers with --local_steps");
DEFINE_double(outer_momentum, 0.9, "of the servers with --local_steps");
DEFINE_int32(nesterov_period, 0,
             "delayed_nesterov: pushes between two steps of its momentum; 0: as many as workers");
DEFINE_double(nesterov_activation, 0,
              "delayed_nesterov: part of the momentum in every push's step, at most 1 / period");
DEFINE_int32(
    quorum, 0,
    "BSP: pushes after which a round waits only --grace_ms more; who comes later joins the "
    "next round; 0: rounds are of all workers");
DEFINE_int64(grace_ms, 20, "with --quorum");
DEFINE_bool(staleness_rate, false,
            "SSP, async: a push's step is divided by max(1, updates missed / workers)");
DEFINE_double(delay_compensation, 0,
              "SSP, async: lambda of g + lambda g g (w - w_read), e.g. 0.04; the servers keep a "
              "copy of the weights for each worker; 0: off");

DEFINE_string(precision, "fp16",
              "fp32 (known as O0), fp16 (O1, O2: 16-bit gradients with a loss scale) or bf16 (16 "
              "bits, no loss scale): of the wire where no codec is named, and of matrix products "
              "where the processor has the type. Master weights are FP32 in any case");
DEFINE_bool(recompute, false,
            "gpt: gradient checkpointing; backward computes each block again instead of keeping "
            "its activations");

namespace slackline::worker {
namespace {

bool IsSet(const char* flag) { return !google::GetCommandLineFlagInfoOrDie(flag).is_default; }

void Refuse(const char* flag, const char* expected) {
  ExitOnFlagError(
      FlagStatus(flag, google::GetCommandLineFlagInfoOrDie(flag).current_value, expected));
}

}  // namespace

FlagGroup UpdateFlagGroup() {
  return {
      "Update",
      {"local_steps", "outer_optimizer", "outer_learning_rate", "outer_momentum", "nesterov_period",
       "nesterov_activation", "quorum", "grace_ms", "staleness_rate", "delay_compensation"}};
}

FlagGroup PrecisionFlagGroup() { return {"Precision", {"precision", "recompute"}}; }

void CheckUpdateFlags(int32_t staleness) {
  const bool bsp = staleness == 0;
  ExitOnFlagError(CheckRange("local_steps", FLAGS_local_steps, 0, 1 << 20));
  ExitOnFlagError(CheckRange("outer_learning_rate", FLAGS_outer_learning_rate, 0, 1e6));
  ExitOnFlagError(CheckRange("outer_momentum", FLAGS_outer_momentum, 0, 0.99999));
  ExitOnFlagError(CheckRange("nesterov_period", FLAGS_nesterov_period, 0, 65536));
  ExitOnFlagError(CheckRange("nesterov_activation", FLAGS_nesterov_activation, 0, 1));
  ExitOnFlagError(CheckRange("quorum", FLAGS_quorum, 0, 256));
  ExitOnFlagError(CheckRange("grace_ms", static_cast<double>(FLAGS_grace_ms), 0, 3'600'000));
  ExitOnFlagError(CheckRange("delay_compensation", FLAGS_delay_compensation, 0, 1e6));
  constexpr std::string_view kOuter[] = {"nesterov", "delayed_nesterov", "sgd", "momentum"};
  if (!FLAGS_outer_optimizer.empty()) {
    ExitOnFlagError(CheckOneOf("outer_optimizer", FLAGS_outer_optimizer, kOuter));
  }
  constexpr std::string_view kPrecisions[] = {"fp32", "fp16", "bf16"};
  ExitOnFlagError(CheckOneOf("precision", FLAGS_precision, kPrecisions));
  for (const char* flag : {"outer_optimizer", "outer_learning_rate", "outer_momentum"}) {
    if (IsSet(flag) && FLAGS_local_steps == 0) Refuse(flag, "--local_steps above 0 with it");
  }
  if (bsp && FLAGS_staleness_rate) Refuse("staleness_rate", "an SSP or async --staleness with it");
  if (bsp && FLAGS_delay_compensation > 0) {
    Refuse("delay_compensation", "an SSP or async --staleness with it");
  }
  if (bsp && FLAGS_outer_optimizer == "delayed_nesterov") {
    Refuse("outer_optimizer", "an SSP or async --staleness with it");
  }
  if (!bsp && FLAGS_quorum > 0) Refuse("quorum", "--staleness=0 with it");
}

const std::string& PrecisionCodec() { return FLAGS_precision; }

ModelOptions ComputeFromFlags() {
  ModelOptions options;
  options.recompute = FLAGS_recompute;
  if (FLAGS_precision == "bf16" && DeviceHasBf16()) options.compute = ModelOptions::Compute::kBf16;
  if (IsSet("precision")) {
    LOG(INFO) << "--precision=" << FLAGS_precision << ": matrix products in "
              << (options.compute == ModelOptions::Compute::kBf16 ? "bf16" : "fp32");
  }
  return options;
}

void FillUpdateRule(control::JobSpec* job) {
  job->set_quorum(static_cast<uint32_t>(FLAGS_quorum));
  job->set_grace_ms(FLAGS_quorum > 0 ? FLAGS_grace_ms : 0);
  job->set_staleness_rate(FLAGS_staleness_rate);
  job->set_delay_compensation(FLAGS_delay_compensation);
  job->set_local_steps(static_cast<uint32_t>(FLAGS_local_steps));
  if (FLAGS_local_steps > 0) {
    *job->mutable_local_optimizer() = job->optimizer();
    *job->mutable_local_schedule() = job->schedule();
    job->mutable_local_schedule()->set_total_steps(job->steps() * FLAGS_local_steps);
    control::Optimizer& outer = *job->mutable_optimizer();
    outer.set_name(!FLAGS_outer_optimizer.empty() ? FLAGS_outer_optimizer
                   : job->staleness() == 0        ? "nesterov"
                                                  : "delayed_nesterov");
    outer.set_momentum(FLAGS_outer_momentum);
    outer.set_weight_decay(0);
    job->mutable_schedule()->set_name("constant");
    job->mutable_schedule()->set_warmup_steps(0);
    job->mutable_schedule()->set_learning_rate(FLAGS_outer_learning_rate);
  }
  job->mutable_optimizer()->set_period(static_cast<uint32_t>(FLAGS_nesterov_period));
  job->mutable_optimizer()->set_activation(FLAGS_nesterov_activation);
  const std::string& name = job->optimizer().name();
  if (FindCodec(job->push_codec()) == nullptr && (name == "adam" || name == "adamw")) {
    LOG(WARNING) << "--push_codec=" << job->push_codec() << " with the servers' " << name
                 << ": error feedback under Adam is known to fail (arXiv 2102.02888, section 3); "
                    "take momentum or sgd, or --local_steps";
  }
}

LocalStepOptions LocalStepsFromJob(const control::JobSpec& job) {
  LocalStepOptions local;
  local.steps = job.local_steps();
  if (local.steps == 0) return local;
  auto optimizer = proto::ParseOptimizer(job.local_optimizer());
  auto schedule = proto::ParseSchedule(job.local_schedule(), 0);
  ExitOnFlagError(optimizer ? OkStatus() : optimizer.error());
  ExitOnFlagError(schedule ? OkStatus() : schedule.error());
  local.optimizer = *optimizer;
  local.schedule = *schedule;
  return local;
}

}  // namespace slackline::worker
