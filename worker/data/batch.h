// A batch, and how sample numbers become one: plain buffers, no tensor library.
//
// Text: a sample is a window of `context` tokens and, as targets, the tokens one further on. The
// windows of a pass do not overlap; each pass shifts them all by its own offset, so that later
// passes see other cuts. Images: a sample is a record.
// Threading: a Batch belongs to one thread at a time; a BatchBuilder is immutable.
// Ownership: the Dataset must outlive the builder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/status.h"
#include "worker/data/dataset.h"

namespace slackline::worker {

struct SampleId {
  uint64_t pass = 0;   // How often all samples were gone through before.
  uint64_t index = 0;  // Below BatchBuilder::samples().

  friend bool operator==(const SampleId&, const SampleId&) = default;
};

struct Batch {
  size_t samples = 0;
  size_t positions = 0;                   // Targets a sample: the context, or 1 for images.
  std::vector<int64_t> tokens;            // Text: [samples, positions].
  std::vector<float> pixels;              // Images: [samples, features], from 0 to 1.
  std::vector<int64_t> targets;           // [samples, positions]
  std::vector<uint64_t> finished_leases;  // Data leases whose last sample is in this batch.
};

class BatchBuilder {
 public:
  // `context`: tokens a sample; ignored for images. `seed` chooses the passes' offsets; without
  // `shift` there are none (validation). InvalidArgument: too little data for one sample.
  static Result<BatchBuilder> Create(const Dataset& data, size_t context, uint64_t seed,
                                     bool shift);

  // Samples in a pass.
  uint64_t samples() const { return samples_; }
  // Replaces the content of `batch`, keeping its memory. DataLoss: a record holds a token or a
  // label that the manifest rules out.
  Status Fill(std::span<const SampleId> samples, Batch& batch) const;

 private:
  BatchBuilder(const Dataset& data, size_t context, uint64_t seed, bool shift, uint64_t samples)
      : data_(&data), context_(context), seed_(seed), shift_(shift), samples_(samples) {}

  Status FillText(std::span<const SampleId> samples, Batch& batch) const;
  Status FillImages(std::span<const SampleId> samples, Batch& batch) const;

  const Dataset* data_;
  size_t context_;
  uint64_t seed_;
  bool shift_;
  uint64_t samples_;
};

}  // namespace slackline::worker
