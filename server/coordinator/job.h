// What a job is allowed to be, and whether two descriptions of it agree.
//
// The first worker defines the job and the model; every later one must say the same. The messages
// name the flag and both values, since the usual cause is one worker started with another flag.
// Threading: pure functions.
// Errors: InvalidArgument, with a message for the person who started the worker.
#pragma once

#include <google/protobuf/repeated_field.h>

#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "proto/control.pb.h"

namespace slackline::server::coordinator {

using Tensors = google::protobuf::RepeatedPtrField<control::TensorSpec>;

// Every field in its range.
Status CheckJob(const control::JobSpec& job);

// "--optimizer: worker 1 has adam, the job has sgd" for the first field that differs.
Status CompareJobs(const control::JobSpec& job, std::string_view who,
                   const control::JobSpec& offered);

// Whether `job` may go on from a checkpoint of `saved`: model, its configuration, optimizer and
// chunk size must agree; the rest may change. Returns a line for each field that changed.
Result<std::vector<std::string>> CompareForResume(const control::JobSpec& saved,
                                                  const control::JobSpec& job);

// Names and shapes in their ranges, names unique, the total below kMaxElements.
Status CheckTensors(const Tensors& tensors);

// "tensor 3: worker 1 declares 'wte' [256, 384], the job has 'wte' [256, 192]".
Status CompareTensors(const Tensors& model, std::string_view holder, std::string_view who,
                      const Tensors& offered);

// Elements of a checked tensor; a scalar (no extents) has one.
uint64_t ElementCount(const control::TensorSpec& tensor);

// BSP whose round c holds the pushes of clock c, and no others: without a quorum.
bool HasExactRounds(const control::JobSpec& job);
// "bsp", "ssp" or "asp".
std::string_view ModeName(int32_t staleness);

}  // namespace slackline::server::coordinator
