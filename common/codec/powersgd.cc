#include "common/codec/powersgd.h"

#include <algorithm>
#include <cmath>

#include "common/codec/arithmetic.h"
#include "common/codec/array_math.h"
#include "common/random.h"

namespace slackline {

void StartRight(const PowerSgdShape& shape, uint64_t seed, float* right) {
  Rng random(seed);
  for (size_t i = 0; i < shape.right_count(); ++i) {
    right[i] = static_cast<float>(2 * random.Uniform() - 1);
  }
}

void ProjectLeft(const PowerSgdShape& shape, const float* matrix, const float* right, float* left) {
  for (size_t row = 0; row < shape.rows; ++row) {
    for (size_t k = 0; k < shape.rank; ++k) {
      left[k * shape.rows + row] =
          DotProduct(matrix + row * shape.cols, right + k * shape.cols, shape.cols);
    }
  }
}

void Orthonormalize(const PowerSgdShape& shape, float* left) {
  const size_t rows = shape.rows;
  for (size_t k = 0; k < shape.rank; ++k) {
    float* const column = left + k * rows;
    for (size_t before = 0; before < k; ++before) {
      const float* const unit = left + before * rows;
      AddScaled(column, unit, rows, -DotProduct(unit, column, rows));
    }
    float largest = 0;
    for (size_t i = 0; i < rows; ++i) largest = std::max(largest, std::fabs(column[i]));
    if (largest < kSmallestScaled) {
      std::fill_n(column, rows, 0.0f);
      continue;
    }
    // To a largest value of 1 first, so that no square leaves the range.
    ScaleArray(column, rows, 1 / largest);
    ScaleArray(column, rows, 1 / std::sqrt(DotProduct(column, column, rows)));
  }
}

void ProjectRight(const PowerSgdShape& shape, const float* matrix, const float* left,
                  float* right) {
  std::fill_n(right, shape.right_count(), 0.0f);
  for (size_t row = 0; row < shape.rows; ++row) {
    for (size_t k = 0; k < shape.rank; ++k) {
      AddScaled(right + k * shape.cols, matrix + row * shape.cols, shape.cols,
                left[k * shape.rows + row]);
    }
  }
}

void AddLowRank(const PowerSgdShape& shape, const float* left, const float* right, float factor,
                float* matrix) {
  for (size_t row = 0; row < shape.rows; ++row) {
    for (size_t k = 0; k < shape.rank; ++k) {
      AddScaled(matrix + row * shape.cols, right + k * shape.cols, shape.cols,
                factor * left[k * shape.rows + row]);
    }
  }
}

}  // namespace slackline
