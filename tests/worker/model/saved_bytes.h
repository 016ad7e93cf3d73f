// How much memory the tensor library holds: what a forward pass keeps for backward.
// Threading: counts what the calling thread allocates and frees.
#pragma once

#include <cstdint>
#include <functional>

namespace slackline::worker {

// Bytes that `work` allocated and did not free.
int64_t BytesKeptBy(const std::function<void()>& work);

}  // namespace slackline::worker
