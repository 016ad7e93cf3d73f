// Sums micro-gradients pairwise in a fixed tree, so that W workers with one micro-batch each and
// one worker with W give the same bits.
//
// The tree over n leaves in order: tree(0, n) adds tree(0, m) and tree(m, n - m), where m is half
// of n for a power of two, else the largest power of two below n. It is the tree in which a server
// adds the pushes of ranks under --deterministic. Its error grows with log n, not n, so that it is
// used for every accumulation. Like a binary counter, the sum of 2^k leaves waits in level k for
// its neighbour: log2(n) buffers are enough.
//
// The last leaf may be added in pieces, as its parts become complete.
// Threading: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace slackline::worker {

class TreeAccumulator {
 public:
  // `leaves` > 0 a sum, each of `count` values. One leaf needs no memory.
  TreeAccumulator(size_t leaves, size_t count);

  // Adds the next leaf but the last: leaf[i] * factor. Call leaves - 1 times.
  void AddLeaf(std::span<const float> leaf, float factor);
  // With the last leaf in `part`, which holds the values from `offset`: makes it the sum of all
  // leaves, the last one times `factor`. Parts may come in any order, each value once.
  void FinishPart(std::span<float> part, size_t offset, float factor) const;
  // Every part is finished: the next leaf is the first one again.
  void Reset() { added_ = 0; }

 private:
  size_t leaves_;
  size_t added_ = 0;
  std::vector<std::vector<float>> levels_;  // Level k is in use if bit k of added_ is set.
};

}  // namespace slackline::worker
