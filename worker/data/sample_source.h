// Which samples come next: the order of passes, and who trains which part of it.
//
// A pass goes through all samples once, in a permutation chosen by (seed, pass); any process
// computes any position of it. Under BSP the positions of a micro-batch are a function of the clock
// and of its global number rank * A + a among the W * A micro-batches of that clock, so that W
// workers see together exactly what one worker sees that accumulates W times as often. Under SSP
// and ASP ranges of positions are leased from the coordinator, so that nobody's share waits for a
// slow or dead worker.
// Threading: a SampleSource belongs to one thread, the data thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/random.h"
#include "common/status.h"
#include "common/types.h"
#include "worker/data/batch.h"

namespace slackline::worker {

// The sample at a position of a pass. Values; belongs to one thread.
class SampleOrder {
 public:
  // samples > 0.
  SampleOrder(uint64_t samples, uint64_t seed) : samples_(samples), seed_(seed) {}

  uint64_t samples() const { return samples_; }
  // `position` < samples().
  SampleId At(uint64_t pass, uint64_t position);

 private:
  uint64_t samples_;
  uint64_t seed_;
  uint64_t pass_ = 0;
  std::optional<Permutation> permutation_;  // Of pass_.
};

struct MicroBatch {
  std::vector<SampleId> samples;
  std::vector<uint64_t> finished_leases;
};

class SampleSource {
 public:
  virtual ~SampleSource() = default;
  // Fills in the next micro-batch, keeping its memory. False: there are no more. Errors end the
  // source.
  virtual Result<bool> Next(MicroBatch& out) = 0;
};

struct SharedOrder {
  Clock first_clock = 0;
  Clock end_clock = 0;         // The clock after the last one.
  uint32_t rank = 0;           // Below workers.
  uint32_t workers = 1;        // W
  uint32_t micro_batches = 1;  // A, a clock and worker.
  uint64_t batch = 1;          // Samples in a micro-batch.
};

// BSP: a pure function of (seed, clock, rank * A + a, W * A).
class BspSource final : public SampleSource {
 public:
  BspSource(SampleOrder order, const SharedOrder& share);
  Result<bool> Next(MicroBatch& out) override;

 private:
  SampleOrder order_;
  SharedOrder share_;
  Clock clock_;
  uint32_t micro_batch_ = 0;
};

}  // namespace slackline::worker
