// I/O memory of the TCP transport: anonymous pages, zero-filled, resident from the start, in huge
// pages where the system has them.
// Threading: owner thread of the endpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "common/status.h"
#include "transport/transport.h"

namespace slackline::transport {

class MappedRegion final : public Region {
 public:
  // Counts its bytes in `*in_use_bytes`, which must outlive it, and stays below `limit_bytes`.
  static Result<std::unique_ptr<Region>> Create(size_t size_bytes, uint64_t limit_bytes,
                                                uint64_t* in_use_bytes);
  ~MappedRegion() override;

 private:
  MappedRegion(MutableBytes bytes, size_t mapped_bytes, uint64_t* in_use_bytes);

  const size_t mapped_bytes_;
  uint64_t* const in_use_bytes_;
};

}  // namespace slackline::transport
