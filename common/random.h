// Deterministic randomness: the same seed gives the same numbers on every platform and standard
// library, which <random>'s distributions do not promise. Nothing here is for secrets.
// Threading: values; an Rng belongs to one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace slackline {

// A bijective mix of 64 bits (the finalizer of SplitMix64; Steele, Lea and Flood, "Fast splittable
// pseudorandom number generators", OOPSLA 2014). Also derives independent seeds:
// Mix64(seed ^ Mix64(purpose)).
uint64_t Mix64(uint64_t value);

// xoshiro256++ (Blackman and Vigna, "Scrambled linear pseudorandom number generators", ACM TOMS
// 2021), its state filled by SplitMix64 from the seed. Period 2^256 - 1.
class Rng {
 public:
  explicit Rng(uint64_t seed);

  uint64_t Next();
  // Uniform in [0, bound), without bias; bound > 0. (Lemire, "Fast random integer generation in an
  // interval", ACM TOMACS 2019.)
  uint64_t Below(uint64_t bound);
  // Uniform in [0, 1), a multiple of 2^-53.
  double Uniform();
  // Standard normal: the polar method (Marsaglia and Bray 1964). Uses log and sqrt of the C
  // library, whose log may differ in the last bit between libraries.
  double Normal();
  // True with probability p.
  bool Chance(double p) { return Uniform() < p; }

 private:
  std::array<uint64_t, 4> state_;
  double spare_normal_ = 0;
  bool has_spare_normal_ = false;
};

// A permutation of [0, size) chosen by a seed, evaluated one element at a time in O(1) memory: the
// order of a pass over the samples, which any process computes for any position.
//
// A four-round balanced Feistel network over the smallest even number of bits that holds `size`
// (Luby and Rackoff, "How to construct pseudorandom permutations from pseudorandom functions", SIAM
// J. Comput. 1988), walked until the value falls inside the domain again (cycle walking; Black and
// Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002). The network's domain is at most
// four times `size`, so that a walk takes four steps or fewer on average, and always ends: it
// follows the cycle of a permutation that contains the start.
class Permutation {
 public:
  // 0 < size <= 2^62.
  Permutation(uint64_t size, uint64_t seed);

  uint64_t size() const { return size_; }
  // Where `position` (< size) goes; a bijection of [0, size).
  uint64_t operator()(uint64_t position) const;

 private:
  static constexpr size_t kRounds = 4;
  uint64_t Encrypt(uint64_t value) const;

  uint64_t size_;
  uint32_t half_bits_;
  uint64_t half_mask_;
  std::array<uint64_t, kRounds> keys_;
};

}  // namespace slackline
