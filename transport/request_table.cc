#include "transport/request_table.h"

#include <bit>

namespace slackline::transport {

RequestTable::RequestTable() : slots_(std::make_unique<Entry[]>(kSlots)) {}

size_t RequestTable::HomeOf(uint64_t id) {
  // Fibonacci hashing: consecutive ids, the usual case, spread over the table.
  constexpr uint64_t kGoldenRatio = 0x9E3779B97F4A7C15;
  return static_cast<size_t>((id * kGoldenRatio) >> (64 - std::countr_zero(kSlots)));
}

size_t RequestTable::Probe(uint64_t id) const {
  size_t slot = HomeOf(id);
  while (slots_[slot].used && slots_[slot].id != id) slot = (slot + 1) & (kSlots - 1);
  return slot;
}

RequestTable::Entry* RequestTable::Find(uint64_t id) {
  Entry& entry = slots_[Probe(id)];
  return entry.used ? &entry : nullptr;
}

RequestTable::Entry* RequestTable::Insert(uint64_t id) {
  if (full()) return nullptr;
  Entry& entry = slots_[Probe(id)];
  if (entry.used) return nullptr;
  entry = Entry{};
  entry.id = id;
  entry.used = true;
  ++size_;
  return &entry;
}

bool RequestTable::Erase(uint64_t id) {
  size_t hole = Probe(id);
  if (!slots_[hole].used) return false;
  --size_;
  // Entries behind the hole move up if their home is not between the hole and them, so that probes
  // need no tombstones.
  for (size_t slot = (hole + 1) & (kSlots - 1); slots_[slot].used;
       slot = (slot + 1) & (kSlots - 1)) {
    const size_t home = HomeOf(slots_[slot].id);
    const size_t from_home = (slot - home) & (kSlots - 1);
    const size_t from_hole = (slot - hole) & (kSlots - 1);
    if (from_home >= from_hole) {
      slots_[hole] = slots_[slot];
      hole = slot;
    }
  }
  slots_[hole] = Entry{};
  return true;
}

void RequestTable::Clear() {
  for (size_t slot = 0; slot < kSlots; ++slot) slots_[slot] = Entry{};
  size_ = 0;
}

}  // namespace slackline::transport
