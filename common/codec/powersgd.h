// powersgd: a matrix of gradients as the product of two thin ones, after Vogels, Karimireddy and
// Jaggi, "PowerSGD: practical low-rank gradient compression for distributed optimization", NeurIPS
// 2019, arXiv 1905.13727, algorithms 1 and 2.
//
// With M_w the gradient of worker w plus what its last pushes dropped, and Q the right factor of
// the clock before (warm start):
//   P = sum over w of M_w Q, in a first round;    P^ = P with orthonormal columns;
//   Q_w = M_w^T P^, in a second round;            worker w sends P^ Q_w^T and keeps the rest of
//   M_w; the mean gradient is P^ Q^T / W with Q the sum of the Q_w, and Q / W starts the next
//   clock.
// It is linear in the workers, so that sums of factors are factors of the sum.
//
// Factors are stored column by column: `left` is rank * rows values (P, P^), `right` rank * cols
// (Q). All sums have one order on every processor, so that workers who start from the same bits end
// with the same bits.
// Threading: pure functions. Memory: the caller's; matrices are row by row. Nothing allocates.
#pragma once

#include <cstddef>
#include <cstdint>

namespace slackline {

struct PowerSgdShape {
  size_t rows = 0;
  size_t cols = 0;
  size_t rank = 0;

  size_t left_count() const { return rank * rows; }
  size_t right_count() const { return rank * cols; }
  // Whether both factors together have fewer values than the matrix: others travel as they are.
  bool Compresses() const { return left_count() + right_count() < rows * cols; }
};

// The right factor of the first clock: uniform in [-1, 1), the same for all workers.
void StartRight(const PowerSgdShape& shape, uint64_t seed, float* right);

// left = matrix * right, as what a worker contributes to the first round.
void ProjectLeft(const PowerSgdShape& shape, const float* matrix, const float* right, float* left);

// Makes the columns orthonormal, by modified Gram-Schmidt; the factor of all of them together does
// not matter. A column of zeros stays one.
void Orthonormalize(const PowerSgdShape& shape, float* left);

// right = matrix^T * left, as what a worker contributes to the second round.
void ProjectRight(const PowerSgdShape& shape, const float* matrix, const float* left, float* right);

// matrix += factor * left * right^T. With a factor of -1 and a worker's own right factor it leaves
// in the matrix what was not sent; with 1 / W and the sum it adds the mean gradient.
void AddLowRank(const PowerSgdShape& shape, const float* left, const float* right, float factor,
                float* matrix);

}  // namespace slackline
