// The values that a selecting codec (topk, randk) sends: FP16 or integers of 8 bits, all under one
// scale, a power of two, so that on integers nothing is lost but what rounding to the format loses.
// Threading: pure functions; the scratch belongs to its thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/codec/payload_header.h"
#include "common/status.h"
#include "common/types.h"

namespace slackline {

// Chosen values and where they stand among all. Room for `count` of them; it is this thread's and
// is handed out again by the next call. Allocates only when no call before asked for as many.
struct SelectedValues {
  uint32_t* indices;
  float* values;
};
SelectedValues SelectedScratch(size_t count);

// max(1, ceil(fraction * count)), 0 of none: how many values are sent.
size_t KeptValues(double fraction, size_t count);

size_t ValueBytes(ValueFormat format);

// The power of two by which values are divided: it brings the largest magnitude (kSmallestScaled at
// least) to [2^14, 2^15) for FP16 and to [2^6, 2^7) for integers, which end at 127.
float SelectedScale(ValueFormat format, float largest);

// Encodes `kept` values, sets *scale to the factor of the codes, and leaves in the values what the
// codes lose.
void EncodeSelected(ValueFormat format, size_t kept, float* values, float* scale, std::byte* codes);

// values[i] = code[first + i] * factor.
void DecodeSelected(ValueFormat format, const std::byte* codes, size_t first, size_t count,
                    float factor, float* values);

// Whether the scale is one of SelectedScale's and the codes are finite. InvalidArgument says why
// not.
Status CheckSelected(ValueFormat format, float scale, const std::byte* codes, size_t kept,
                     std::string_view codec_name);

}  // namespace slackline
