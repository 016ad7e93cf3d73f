#include "tests/sim/ledger.h"

#include <glog/logging.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace slackline::sim {

Ledger::Ledger(const LedgerOptions& options) : options_(options) {
  CHECK(!options.bsp || options.slots == options.clocks) << "BSP needs one element a clock";
  pushes_.resize(static_cast<size_t>(options.clocks) * options.workers * options.chunks);
}

Ledger::Lives& Ledger::At(WorkerId worker, Clock clock, ChunkIndex chunk) {
  return const_cast<Lives&>(std::as_const(*this).At(worker, clock, chunk));
}

const Ledger::Lives& Ledger::At(WorkerId worker, Clock clock, ChunkIndex chunk) const {
  CHECK(worker < options_.workers && clock >= 0 && clock < options_.clocks &&
        chunk < options_.chunks)
      << "worker " << worker << ", clock " << clock << ", chunk " << chunk;
  return pushes_[(static_cast<size_t>(clock) * options_.workers + worker) * options_.chunks +
                 chunk];
}

Ledger::Push& Ledger::Find(WorkerId worker, Incarnation incarnation, Clock clock,
                           ChunkIndex chunk) {
  Lives& lives = At(worker, clock, chunk);
  const auto found = std::find_if(lives.begin(), lives.end(), [&](const Push& push) {
    return push.incarnation == incarnation;
  });
  CHECK(found != lives.end()) << "an answer to a push that was not sent";
  return *found;
}

void Ledger::Sent(WorkerId worker, Incarnation incarnation, Clock clock, ChunkIndex chunk,
                  bool empty) {
  At(worker, clock, chunk).push_back({.incarnation = incarnation, .empty = empty});
}

void Ledger::Acknowledged(WorkerId worker, Incarnation incarnation, Clock clock, ChunkIndex chunk,
                          TimeNs now_ns) {
  Push& push = Find(worker, incarnation, clock, chunk);
  push.state = Push::State::kAcknowledged;
  push.answered_ns = now_ns;
  ++acknowledged_;
}

void Ledger::Refused(WorkerId worker, Incarnation incarnation, Clock clock, ChunkIndex chunk) {
  Find(worker, incarnation, clock, chunk).state = Push::State::kRefused;
  ++refused_;
}

uint64_t Ledger::unanswered() const {
  uint64_t count = 0;
  for (const Lives& lives : pushes_) {
    for (const Push& push : lives) count += push.state == Push::State::kSent && !push.empty;
  }
  return count;
}

bool Ledger::May(const Lives& lives) {
  return std::any_of(lives.begin(), lives.end(), [](const Push& push) {
    return !push.empty && push.state != Push::State::kRefused;
  });
}

bool Ledger::MustSince(const Lives& lives, TimeNs asked_ns) {
  return std::any_of(lives.begin(), lives.end(), [&](const Push& push) {
    return !push.empty && push.state == Push::State::kAcknowledged && push.answered_ns <= asked_ns;
  });
}

std::string Ledger::CheckRead(ChunkIndex chunk, std::span<const float> values, TimeNs asked_ns,
                              std::span<const MustSee> must_see) const {
  std::vector<uint32_t> low(elements(), 0), high(elements(), 0);
  std::string wrong;
  for (WorkerId worker = 0; worker < options_.workers; ++worker) {
    const auto promise = std::find_if(must_see.begin(), must_see.end(),
                                      [&](const MustSee& must) { return must.worker == worker; });
    for (Clock clock = 0; clock < options_.clocks; ++clock) {
      const Lives& lives = At(worker, clock, chunk);
      bool must = MustSince(lives, asked_ns);
      if (promise != must_see.end() && clock >= promise->from && clock <= promise->through) {
        const auto push = std::find_if(lives.begin(), lives.end(), [&](const Push& candidate) {
          return candidate.incarnation == promise->incarnation;
        });
        if (push == lives.end()) {
          wrong += "  worker " + std::to_string(worker) + " has not even sent clock " +
                   std::to_string(clock) + ", which was promised\n";
        } else {
          must = must || (!push->empty && push->state != Push::State::kRefused);
        }
      }
      low[Element(worker, clock)] += must;
      high[Element(worker, clock)] += May(lives);
    }
  }
  for (WorkerId worker = 0; worker < options_.workers; ++worker) {
    for (uint32_t slot = 0; slot < options_.slots; ++slot) {
      const size_t element = worker * options_.slots + slot;
      wrong += CheckElement(chunk, worker, slot, values[element], low[element], high[element]);
    }
  }
  return wrong;
}

std::string Ledger::CheckAggregate(ChunkIndex chunk, Clock clock, std::span<const float> values) {
  const std::vector<float> mine(values.begin(), values.end());
  const auto [first, is_new] = aggregates_.try_emplace({chunk, clock}, mine);
  if (is_new || first->second == mine) return {};
  return "chunk " + std::to_string(chunk) + " has two aggregates of clock " + std::to_string(clock);
}

std::string Ledger::CheckFinal(ChunkIndex chunk, std::span<const float> values) const {
  // After the end every acknowledgement is old.
  return CheckRead(chunk, values, kNever, {}) + (options_.quorum ? CheckShares(chunk, values)
                                                 : options_.bsp  ? CheckRounds(chunk, values)
                                                                 : std::string());
}

std::string Ledger::CheckElement(ChunkIndex chunk, WorkerId worker, uint32_t slot, float value,
                                 uint32_t low, uint32_t high) const {
  // BSP: a share of one round, at most the whole.
  // With a quorum also of lives that left with a push in the round, and of those after them.
  constexpr double kMostLives = 8;
  const double share = 1.0 / options_.workers / (options_.quorum ? kMostLives : 1);
  const double least = low == 0 ? 0 : options_.bsp ? share : low;
  const double slack = options_.tolerance * std::max(1.0, std::fabs(static_cast<double>(value)));
  const bool whole = options_.bsp || std::fabs(value - std::round(value)) <= slack;
  if (whole && value >= least - slack && value <= high + slack) return {};
  return "  chunk " + std::to_string(chunk) + ", worker " + std::to_string(worker) + ", slot " +
         std::to_string(slot) + ": " + std::to_string(value) + ", expected " + std::to_string(low) +
         ".." + std::to_string(high) + " pushes\n";
}

std::string Ledger::CheckRounds(ChunkIndex chunk, std::span<const float> values) const {
  std::string wrong;
  for (Clock clock = 0; clock < options_.clocks; ++clock) {
    uint32_t pushes = 0;
    for (WorkerId worker = 0; worker < options_.workers; ++worker) {
      pushes += values[Element(worker, clock)] != 0;
    }
    for (WorkerId worker = 0; worker < options_.workers; ++worker) {
      const float value = values[Element(worker, clock)];
      if (value == 0 || std::fabs(value * static_cast<float>(pushes) - 1) <= 1e-5f) continue;
      wrong += "  chunk " + std::to_string(chunk) + ", round " + std::to_string(clock) +
               ", worker " + std::to_string(worker) + ": " + std::to_string(value) +
               ", expected the mean of " + std::to_string(pushes) + " pushes\n";
    }
  }
  return wrong;
}

std::string Ledger::CheckShares(ChunkIndex chunk, std::span<const float> values) const {
  std::map<long, long> elements;  // Of value 1 / n, by n.
  for (const float value : values.first(this->elements())) {
    if (value == 0) continue;
    const long n = std::lround(1 / value);
    if (n < 1 || std::fabs(value * static_cast<float>(n) - 1) > 1e-5f) {
      return "  chunk " + std::to_string(chunk) + ": " + std::to_string(value) +
             " is no share of a round\n";
    }
    ++elements[n];
  }
  for (const auto& [n, count] : elements) {
    if (count % n == 0) continue;
    return "  chunk " + std::to_string(chunk) + ": " + std::to_string(count) +
           " shares of rounds of " + std::to_string(n) + "\n";
  }
  return {};
}

}  // namespace slackline::sim
