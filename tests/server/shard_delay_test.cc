// Real staleness equals claimed staleness: gradient descent with delay tau on w -> lambda/2 w^2 is
// stable up to eta * lambda = 2 sin(pi / (2 (2 tau + 1))) and unstable above. tau + 1 workers in
// round-robin under ASP have exactly that delay, if the shard's arithmetic and order are right.
// Source of the threshold: the characteristic equation z^(tau+1) - z^tau + eta lambda = 0 has its
// first root on the unit circle there (e.g. Yang et al., "PipeMare", MLSys 2021, lemma 1).
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "tests/server/tcp_rig.h"

namespace slackline::server {
namespace {

// |w| after many turns, over |w| somewhat earlier, both as the largest of a window that covers the
// oscillation: above 1 if it grows.
double Growth(int tau, double eta_lambda, int turns) {
  control::JobSpec job = TestJob(-1);
  job.set_async_scale_sum(true);
  job.mutable_schedule()->set_learning_rate(eta_lambda);  // lambda = 1.
  TcpRig rig(TestMap(job, {1}), static_cast<uint32_t>(tau + 1));
  rig.InitAll(1);
  for (int w = 0; w <= tau; ++w) rig.worker(static_cast<size_t>(w)).landing[0] = 1;
  double early = 0;
  double late = 0;
  const int window = turns / 4;
  for (int turn = 0; turn < turns; ++turn) {
    RigWorker& worker = rig.worker(static_cast<size_t>(turn % (tau + 1)));
    // The gradient at the weights that it got tau + 1 turns ago.
    worker.gradient[0] = worker.landing[0];
    const proto::WireHeader header = rig.PushPullHeader(worker, 0, turn / (tau + 1));
    rig.Ask(worker, header, TcpRig::GradientBytes(worker, header.payload_bytes));
    const double size = std::abs(static_cast<double>(worker.landing[0]));
    if (turn >= turns - 3 * window && turn < turns - 2 * window) early = std::max(early, size);
    if (turn >= turns - window) late = std::max(late, size);
  }
  return late / early;
}

TEST(ShardDelay, TheStabilityThresholdIsWhereTheoryPutsIt) {
  for (int tau : {0, 1, 2, 4, 8, 16}) {
    const double threshold = 2 * std::sin(std::numbers::pi / (2 * (2 * tau + 1)));
    const int turns = 400 + 200 * tau;
    EXPECT_LT(Growth(tau, 0.97 * threshold, turns), 0.9) << "tau " << tau << " below";
    EXPECT_GT(Growth(tau, 1.03 * threshold, turns), 1.1) << "tau " << tau << " above";
  }
}

}  // namespace
}  // namespace slackline::server
