// Sums and products of arrays, in SIMD chosen at run time: what servers and workers need to add
// gradients.
//
// Threading: pure functions on memory nobody else touches. Pointers need the alignment of float
// only; arrays must not overlap. Every element is rounded once an operation, so the results are the
// same on every processor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace slackline {

// to[i] += from[i]
void AddArrays(float* to, const float* from, size_t count);
// to[i] *= factor
void ScaleArray(float* to, size_t count, float factor);
// to[i] += from[i] * factor
void AddScaled(float* to, const float* from, size_t count, float factor);
// The sum of a[i] * b[i]. Product i is added to partial sum i mod 32, and those in pairs that
// halve: one order on every processor.
float DotProduct(const float* a, const float* b, size_t count);

// to[i] = from[i], and to[i] += from[i].
void WidenArray(int32_t* to, const int8_t* from, size_t count);
void AddWidened(int32_t* to, const int8_t* from, size_t count);
// to[i] = from[i] * factor, from[i] rounded to FP32 before.
void ScaleIntegers(float* to, const int32_t* from, size_t count, float factor);

// Sums n = leaves.size() arrays of `count` values into leaves[0], in the pairwise tree of
// --deterministic: tree(n) = tree(first p) + tree(the rest), p the largest power of two below n.
// The other arrays hold partial sums afterwards. Whoever adds the same leaves in the same order
// through this function gets the same bits, whether they are workers or micro-batches.
void TreeSum(std::span<float* const> leaves, size_t count);

}  // namespace slackline
