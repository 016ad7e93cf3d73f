#include "common/codec/powersgd.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "common/codec/array_math.h"
#include "tests/common/simd_targets.h"

namespace slackline {
namespace {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

constexpr PowerSgdShape kShape = {.rows = 37, .cols = 70, .rank = 3};
constexpr size_t kCount = kShape.rows * kShape.cols;

// A matrix of low rank with noise on top, as gradients are.
Floats Gradient(uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Floats matrix(kCount);
  for (int k = 0; k < 4; ++k) {
    Floats left(kShape.rows), right(kShape.cols);
    for (float& value : left) value = normal(random);
    for (float& value : right) value = normal(random);
    for (size_t i = 0; i < kCount; ++i) {
      matrix[i] += left[i / kShape.cols] * right[i % kShape.cols] / static_cast<float>(k + 1);
    }
  }
  for (float& value : matrix) value += 0.1f * normal(random);
  return matrix;
}

// The algorithm in double precision, written from the paper: all workers of one clock.
class Reference {
 public:
  Reference(size_t workers, const Floats& start)
      : residuals_(workers, Doubles(kCount)), right_(start.begin(), start.end()) {}

  // Returns the mean gradient as the workers get it.
  Doubles Step(const std::vector<Floats>& gradients) {
    const auto workers = static_cast<double>(gradients.size());
    for (size_t w = 0; w < gradients.size(); ++w) {
      for (size_t i = 0; i < kCount; ++i) {
        residuals_[w][i] += static_cast<double>(gradients[w][i]);
      }
    }
    Doubles left(kShape.left_count());
    for (const Doubles& matrix : residuals_) {
      ForEach([&](size_t i, size_t j, size_t k) {
        left[k * kShape.rows + i] +=
            matrix[i * kShape.cols + j] * right_[k * kShape.cols + j] / workers;
      });
    }
    Orthonormalize(&left);
    Doubles right(kShape.right_count());
    for (Doubles& matrix : residuals_) {
      Doubles own(kShape.right_count());
      ForEach([&](size_t i, size_t j, size_t k) {
        own[k * kShape.cols + j] += matrix[i * kShape.cols + j] * left[k * kShape.rows + i];
      });
      for (size_t i = 0; i < own.size(); ++i) right[i] += own[i] / workers;
      ForEach([&](size_t i, size_t j, size_t k) {
        matrix[i * kShape.cols + j] -= left[k * kShape.rows + i] * own[k * kShape.cols + j];
      });
    }
    right_ = right;
    Doubles mean(kCount);
    ForEach([&](size_t i, size_t j, size_t k) {
      mean[i * kShape.cols + j] += left[k * kShape.rows + i] * right[k * kShape.cols + j];
    });
    return mean;
  }
  const Doubles& residual(size_t worker) const { return residuals_[worker]; }

 private:
  template <class Visit>
  static void ForEach(const Visit& visit) {
    for (size_t k = 0; k < kShape.rank; ++k) {
      for (size_t i = 0; i < kShape.rows; ++i) {
        for (size_t j = 0; j < kShape.cols; ++j) visit(i, j, k);
      }
    }
  }
  static void Orthonormalize(Doubles* left) {
    for (size_t k = 0; k < kShape.rank; ++k) {
      double* column = left->data() + k * kShape.rows;
      double norm = 0;
      for (size_t i = 0; i < kShape.rows; ++i) norm += column[i] * column[i];
      for (size_t i = 0; i < kShape.rows; ++i) column[i] /= std::sqrt(norm);
      for (size_t rest = k + 1; rest < kShape.rank; ++rest) {
        double* other = left->data() + rest * kShape.rows;
        double dot = 0;
        for (size_t i = 0; i < kShape.rows; ++i) dot += column[i] * other[i];
        for (size_t i = 0; i < kShape.rows; ++i) other[i] -= dot * column[i];
      }
    }
  }

  std::vector<Doubles> residuals_;
  Doubles right_;
};

// The workers as they are: matrices become residuals in place.
class Workers {
 public:
  Workers(size_t workers, const Floats& start)
      : residuals_(workers, Floats(kCount)), right_(start) {}

  Floats Step(const std::vector<Floats>& gradients) {
    Floats left(kShape.left_count());
    Floats own(std::max(kShape.left_count(), kShape.right_count()));
    for (size_t w = 0; w < residuals_.size(); ++w) {
      AddArrays(residuals_[w].data(), gradients[w].data(), kCount);
      ProjectLeft(kShape, residuals_[w].data(), right_.data(), own.data());
      AddArrays(left.data(), own.data(), left.size());  // The first round.
    }
    Orthonormalize(kShape, left.data());
    Floats sum(kShape.right_count());
    for (Floats& matrix : residuals_) {
      ProjectRight(kShape, matrix.data(), left.data(), own.data());
      AddArrays(sum.data(), own.data(), sum.size());  // The second.
      AddLowRank(kShape, left.data(), own.data(), -1, matrix.data());
    }
    const float factor = 1 / static_cast<float>(residuals_.size());
    Floats mean(kCount);
    AddLowRank(kShape, left.data(), sum.data(), factor, mean.data());
    ScaleArray(sum.data(), sum.size(), factor);
    right_ = sum;
    left_ = left;
    return mean;
  }
  const Floats& residual(size_t worker) const { return residuals_[worker]; }
  const Floats& left() const { return left_; }

 private:
  std::vector<Floats> residuals_;
  Floats right_;
  Floats left_;
};

Floats Start() {
  Floats right(kShape.right_count());
  StartRight(kShape, 5, right.data());
  return right;
}

double Norm(const Floats& values) {
  double squares = 0;
  for (const float value : values) squares += std::pow(static_cast<double>(value), 2);
  return std::sqrt(squares);
}

TEST(PowerSgdTest, EqualsTheAlgorithmInDoublePrecision) {
  for (const size_t count : {1, 2, 5}) {
    ForEachSimdTarget([&] {
      Workers workers(count, Start());
      Reference reference(count, Start());
      for (uint32_t clock = 0; clock < 8; ++clock) {
        std::vector<Floats> gradients;
        for (uint32_t w = 0; w < count; ++w) gradients.push_back(Gradient(100 * w + clock / 2));
        const Floats mean = workers.Step(gradients);
        const Doubles want = reference.Step(gradients);
        for (size_t i = 0; i < kCount; ++i) {
          ASSERT_NEAR(static_cast<double>(mean[i]), want[i], 2e-4) << clock << " " << i;
          for (size_t w = 0; w < count; ++w) {
            ASSERT_NEAR(static_cast<double>(workers.residual(w)[i]), reference.residual(w)[i], 2e-4)
                << clock << " " << w << " " << i;
          }
        }
      }
    });
  }
}

// The same bits on every instruction set: a fleet of mixed machines agrees on the factors.
TEST(PowerSgdTest, EveryInstructionSetGivesTheSameBits) {
  Floats first;
  ForEachSimdTarget([&] {
    Workers workers(2, Start());
    Floats mean;
    for (uint32_t clock = 0; clock < 3; ++clock) {
      mean = workers.Step({Gradient(clock), Gradient(clock + 50)});
    }
    if (first.empty()) first = mean;
    EXPECT_EQ(mean, first);
  });
}

// What was sent and what is left make up the gradients, whatever the rank.
TEST(PowerSgdTest, SentAndResidualAreTheGradients) {
  Workers workers(2, Start());
  Doubles wanted(kCount), sent(kCount);
  for (uint32_t clock = 0; clock < 20; ++clock) {
    const std::vector<Floats> gradients = {Gradient(clock), Gradient(clock + 50)};
    const Floats mean = workers.Step(gradients);
    for (size_t i = 0; i < kCount; ++i) {
      wanted[i] += static_cast<double>(gradients[0][i]) + static_cast<double>(gradients[1][i]);
      sent[i] += 2 * static_cast<double>(mean[i]);
    }
  }
  for (size_t i = 0; i < kCount; ++i) {
    const auto left =
        static_cast<double>(workers.residual(0)[i]) + static_cast<double>(workers.residual(1)[i]);
    ASSERT_NEAR(sent[i] + left, wanted[i], 1e-3) << i;
  }
}

// On the same matrix again and again, warm starts find its best subspace: the error falls to that
// of the truncated singular value decomposition, which drops the fourth term and the noise.
TEST(PowerSgdTest, AWarmStartConverges) {
  const Floats matrix = Gradient(1);
  Floats right = Start();
  double first = 0;
  double last = 0;
  for (int clock = 0; clock < 10; ++clock) {
    Floats left(kShape.left_count());
    ProjectLeft(kShape, matrix.data(), right.data(), left.data());
    Orthonormalize(kShape, left.data());
    ProjectRight(kShape, matrix.data(), left.data(), right.data());
    Floats rest = matrix;
    AddLowRank(kShape, left.data(), right.data(), -1, rest.data());
    last = Norm(rest) / Norm(matrix);
    if (clock == 0) first = last;
  }
  EXPECT_LT(last, 0.8 * first);
}

TEST(PowerSgdTest, ColumnsAreOrthonormal) {
  Workers workers(1, Start());
  workers.Step({Gradient(3)});
  for (size_t a = 0; a < kShape.rank; ++a) {
    for (size_t b = 0; b < kShape.rank; ++b) {
      const float dot = DotProduct(workers.left().data() + a * kShape.rows,
                                   workers.left().data() + b * kShape.rows, kShape.rows);
      EXPECT_NEAR(dot, a == b ? 1 : 0, 1e-5) << a << b;
    }
  }
}

TEST(PowerSgdTest, ZerosAndHugeValuesStayFinite) {
  for (const float value : {0.0f, 1e-38f, 0x1p96f}) {
    Floats matrix(kCount, value);
    Floats left(kShape.left_count());
    Floats right = Start();
    ProjectLeft(kShape, matrix.data(), right.data(), left.data());
    Orthonormalize(kShape, left.data());
    ProjectRight(kShape, matrix.data(), left.data(), right.data());
    AddLowRank(kShape, left.data(), right.data(), -1, matrix.data());
    for (const float rest : matrix) ASSERT_TRUE(std::isfinite(rest)) << value;
    for (const float factor : right) ASSERT_TRUE(std::isfinite(factor)) << value;
  }
}

TEST(PowerSgdTest, CompressesOnlyWhatGetsSmaller) {
  EXPECT_TRUE(kShape.Compresses());
  EXPECT_FALSE((PowerSgdShape{.rows = 1, .cols = 1000, .rank = 1}.Compresses()));
  EXPECT_FALSE((PowerSgdShape{.rows = 8, .cols = 8, .rank = 4}.Compresses()));
}

}  // namespace
}  // namespace slackline
