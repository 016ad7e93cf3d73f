// Which values topk sends: the `kept` of largest magnitude, by histograms instead of a sort.
//
// The values are passed over once. A sample gives a lower bound for the threshold; the few values
// above it are noted, and the exact threshold is found among these. If the sample misled, all
// values are noted: the result is the same.
// Threading: pure, but for the calling thread's scratch.
#pragma once

#include <cstddef>

#include "common/codec/selected_values.h"
#include "common/codec/tiles.h"

namespace slackline {

// Bits of a magnitude that do not count when values are compared.
inline constexpr uint32_t kTopKIgnoredBits = 9;

// Loads all tiles. 0 < kept <= tiles->count(). The result's first `kept` elements are the values
// chosen, ascending by index; among equal magnitudes the lower index wins.
SelectedValues SelectLargest(Tiles* tiles, size_t kept);

}  // namespace slackline
