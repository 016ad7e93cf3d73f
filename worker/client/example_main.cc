// slackline-example: a training loop of one's own against the client library, without libtorch.
//
// Softmax regression: ten Gaussian clouds in 32 dimensions, of which each worker draws its own
// samples. Start it once a worker, next to a coordinator and servers:
//   slackline-coordinator --workers=2 --servers=1 --port=4700 &
//   slackline-server --coordinator=127.0.0.1:4700 &
//   slackline-example --coordinator=127.0.0.1:4700 &
//   slackline-example --coordinator=127.0.0.1:4700
#include <gflags/gflags.h>

#include <cmath>
#include <cstdio>
#include <vector>

#include "common/flags.h"
#include "common/random.h"
#include "transport/address.h"
#include "worker/client/client.h"

DEFINE_string(coordinator, "127.0.0.1:4700", "host:port of slackline-coordinator");
DEFINE_int32(steps, 200, "training steps");
DEFINE_int32(staleness, 0, "0: BSP; s > 0: SSP with this bound; -1: ASP");
DEFINE_int32(batch, 32, "samples a step and worker");

namespace slackline {
namespace {

constexpr size_t kInputs = 32, kClasses = 10;

struct Sample {
  float x[kInputs];
  size_t label;
};

Sample Draw(Rng* rng) {
  Sample sample{};
  sample.label = rng->Below(kClasses);
  Rng center(sample.label + 1);
  for (float& x : sample.x) x = static_cast<float>(center.Normal() + rng->Normal());
  return sample;
}

// Adds the gradient of -log softmax(x W + b)[label] and returns the loss.
double AddGradient(const Sample& sample, std::span<const float> w, std::span<const float> b,
                   std::span<float> dw, std::span<float> db) {
  double logits[kClasses], sum = 0;
  for (size_t c = 0; c < kClasses; ++c) {
    logits[c] = b[c];
    for (size_t i = 0; i < kInputs; ++i) logits[c] += sample.x[i] * w[i * kClasses + c];
    sum += std::exp(logits[c]);
  }
  for (size_t c = 0; c < kClasses; ++c) {
    const auto d = static_cast<float>(std::exp(logits[c]) / sum - (c == sample.label ? 1 : 0));
    for (size_t i = 0; i < kInputs; ++i) dw[i * kClasses + c] += d * sample.x[i];
    db[c] += d;
  }
  return std::log(sum) - logits[sample.label];
}

Status Train() {
  worker::ClientOptions options{.coordinator = FLAGS_coordinator};
  options.job.set_model("softmax-regression");
  options.job.set_steps(FLAGS_steps);
  options.job.set_staleness(FLAGS_staleness);
  options.job.mutable_optimizer()->set_name("sgd");
  options.job.mutable_schedule()->set_name("constant");
  options.job.mutable_schedule()->set_learning_rate(0.1);
  options.job.set_push_codec("fp32");
  options.job.set_pull_codec("fp32");
  options.job.set_chunk_bytes(1024);
  options.on_wait = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); };
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(auto client, worker::Client::Connect(options));
  SLACKLINE_RETURN_IF_ERROR(client->Declare({{"w", {kInputs, kClasses}}, {"b", {kClasses}}}));
  SLACKLINE_RETURN_IF_ERROR(client->Initialize());  // weights() are zeros, which is good enough.

  Rng rng(1000 + client->rank());
  for (Clock clock = client->first_clock(); clock < FLAGS_steps; ++clock) {
    std::ranges::fill(client->gradients(), 0.0F);
    double loss = 0;
    for (int i = 0; i < FLAGS_batch; ++i) {
      loss += AddGradient(Draw(&rng), client->tensor_weights(0), client->tensor_weights(1),
                          client->tensor_gradients(0), client->tensor_gradients(1));
    }
    // The sum over samples and their number: the servers divide.
    SLACKLINE_RETURN_IF_ERROR(
        client->BeginStep(clock, {.weight = static_cast<double>(FLAGS_batch)}));
    for (ChunkIndex chunk : client->chunk_order()) {
      SLACKLINE_RETURN_IF_ERROR(client->PushPull(chunk));
    }
    SLACKLINE_ASSIGN_OR_RETURN_STATUS(const worker::StepStats stats, client->FinishStep());
    if (clock % 20 == 0 || clock + 1 == FLAGS_steps) {
      std::printf("worker %u step %ld loss %.4f, waited %.2f ms\n", client->rank(), clock,
                  loss / FLAGS_batch, static_cast<double>(stats.wait_ns) / 1e6);
    }
  }
  return client->Leave(/*done=*/true, "");
}

}  // namespace
}  // namespace slackline

int main(int argc, char** argv) {
  slackline::ParseFlags(argc, argv,
                        {.name = "slackline-example",
                         .summary = "Softmax regression on synthetic data, as one worker.",
                         .examples = "slackline-example --coordinator=127.0.0.1:4700",
                         .groups = {{"Training", {"coordinator", "steps", "staleness", "batch"}}}});
  slackline::ExitOnFlagError(slackline::CheckRange("steps", FLAGS_steps, 1, 1e9));
  slackline::ExitOnFlagError(slackline::CheckRange("staleness", FLAGS_staleness, -1, 1e6));
  slackline::ExitOnFlagError(slackline::CheckRange("batch", FLAGS_batch, 1, 1e6));
  if (!slackline::transport::ParseHostPort(FLAGS_coordinator)) {
    slackline::ExitOnFlagError(
        slackline::FlagStatus("coordinator", FLAGS_coordinator, "host:port"));
  }
  slackline::InitLogging("slackline-example");
  const slackline::Status status = slackline::Train();
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
