// A worker without a model, for the Soft-RoCE machines, where a model's arithmetic would take
// minutes: it pushes gradients that are known beforehand and looks at what the servers make of
// them. scripts/fleet starts it under the trainer's name.
//
// --gradients=integer: small integers under SGD with rate 1. Their sums are exact in FP32, so the
// weights at the end tell whether every push was applied exactly once.
// --gradients=float: random, and drawn towards the weights, so that the last bit of every step
// depends on all before it. The hash of the weights is printed for comparison between runs.
#include <gflags/gflags.h>

#include <cstdio>
#include <span>
#include <string>

#include "common/flags.h"
#include "common/hash.h"
#include "common/random.h"
#include "worker/client/client.h"

DEFINE_string(coordinator, "127.0.0.1:4700", "host:port of slackline-coordinator");
DEFINE_string(transport, "tcp", "transport of the data plane");
DEFINE_int32(rank, -1, "this worker's rank");
DEFINE_int32(staleness, 0, "0: BSP; s > 0: SSP with this bound");
DEFINE_int32(steps, 50, "training steps");
DEFINE_int32(floats, 100'000, "parameters");
DEFINE_string(gradients, "integer", "integer or float");
DEFINE_double(stall_s, 60, "a chunk without any answer for so long is an error");

namespace slackline {
namespace {

// In [-7, 7], different for every worker, clock and parameter.
float IntegerGradient(size_t i, Clock clock, WorkerId rank) {
  return static_cast<float>((i * 31 + static_cast<uint64_t>(clock) * 17 + rank * 7) % 15) - 7;
}

void FillGradients(worker::Client& client, Clock clock) {
  const std::span<float> gradients = client.gradients();
  if (FLAGS_gradients == "integer") {
    for (size_t i = 0; i < gradients.size(); ++i) {
      gradients[i] = IntegerGradient(i, clock, client.rank());
    }
    return;
  }
  Rng rng(Mix64(static_cast<uint64_t>(clock)) ^ client.rank());
  for (size_t i = 0; i < gradients.size(); ++i) {
    gradients[i] = 0.1F * client.weights()[i] + static_cast<float>(rng.Uniform() - 0.5);
  }
}

// The weights if each worker's push of each clock was applied once, as the clock's mean.
Status CheckSums(worker::Client& client) {
  const uint32_t workers = client.expected_workers();
  for (size_t i = 0; i < client.weights().size(); ++i) {
    float sum = 0;
    for (Clock clock = 0; clock < FLAGS_steps; ++clock) {
      for (WorkerId rank = 0; rank < workers; ++rank) sum += IntegerGradient(i, clock, rank);
    }
    const float expected = -sum / static_cast<float>(workers);
    if (client.weights()[i] != expected) {
      return DataLoss("parameter " + std::to_string(i) + " is " +
                      std::to_string(client.weights()[i]) + ", expected " +
                      std::to_string(expected));
    }
  }
  std::printf("sums exact\n");
  return OkStatus();
}

Status Train() {
  worker::ClientOptions options{.coordinator = FLAGS_coordinator};
  options.transport = FLAGS_transport;
  options.wanted_rank = FLAGS_rank;
  options.stall_timeout_ns = static_cast<TimeNs>(FLAGS_stall_s * kNsPerSecond);
  options.job.set_model("sums");
  options.job.set_steps(FLAGS_steps);
  options.job.set_staleness(FLAGS_staleness);
  options.job.set_deterministic(FLAGS_staleness == 0);
  options.job.mutable_optimizer()->set_name("sgd");
  options.job.mutable_schedule()->set_name("constant");
  options.job.mutable_schedule()->set_learning_rate(1);
  options.job.set_push_codec("fp32");
  options.job.set_pull_codec("fp32");
  options.job.set_chunk_bytes(64u << 10);
  options.on_wait = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); };
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(auto client, worker::Client::Connect(options));
  SLACKLINE_RETURN_IF_ERROR(client->Declare({{"w", {FLAGS_floats}, false}}));
  SLACKLINE_RETURN_IF_ERROR(client->Initialize());
  uint64_t resends = 0;
  for (Clock clock = client->first_clock(); clock < FLAGS_steps; ++clock) {
    FillGradients(*client, clock);
    SLACKLINE_RETURN_IF_ERROR(client->BeginStep(clock, {.weight = 1}));
    for (const ChunkIndex chunk : client->chunk_order()) {
      SLACKLINE_RETURN_IF_ERROR(client->PushPull(chunk));
    }
    SLACKLINE_ASSIGN_OR_RETURN_STATUS(const worker::StepStats stats, client->FinishStep());
    resends += stats.resends;
    control::StepReport report;
    report.set_clock(clock);
    client->Report(report);
  }
  if (FLAGS_gradients == "integer" && FLAGS_staleness == 0) {
    SLACKLINE_RETURN_IF_ERROR(CheckSums(*client));
  }
  std::printf("weights %s resends %lu\n",
              HashToHex(Hash64(std::as_bytes(client->weights()))).c_str(), resends);
  return client->Leave(/*done=*/true, "");
}

}  // namespace
}  // namespace slackline

int main(int argc, char** argv) {
  slackline::ParseFlags(argc, argv,
                        {.name = "sum-worker",
                         .summary = "Pushes gradients that are known beforehand.",
                         .examples = "",
                         .groups = {{"All",
                                     {"coordinator", "transport", "rank", "staleness", "steps",
                                      "floats", "gradients", "stall_s"}}}});
  slackline::InitLogging("sum-worker");
  const slackline::Status status = slackline::Train();
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
