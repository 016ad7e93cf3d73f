#include "transport/rdma/rdma_options.h"

#include <bit>

namespace slackline::transport {
namespace {

Status OutOfRange(const char* option, int64_t value, const std::string& expected) {
  return InvalidArgument("RDMA option " + std::string(option) + " is " + std::to_string(value) +
                         ", expected " + expected);
}

}  // namespace

Status CheckRdmaOptions(const RdmaOptions& options) {
  const auto check = [](const char* option, int64_t value, int64_t low, int64_t high) {
    if (value >= low && value <= high) return OkStatus();
    return OutOfRange(option, value, std::to_string(low) + " to " + std::to_string(high));
  };
  if (options.devices.size() > kMaxRdmaRails) {
    return OutOfRange("devices", static_cast<int64_t>(options.devices.size()),
                      "at most " + std::to_string(kMaxRdmaRails) + " names");
  }
  SLACKLINE_RETURN_IF_ERROR(check("port", options.port, 0, 255));
  SLACKLINE_RETURN_IF_ERROR(check("gid_index", options.gid_index, -1, 255));
  SLACKLINE_RETURN_IF_ERROR(check("service_level", options.service_level, 0, 15));
  // 31 would be a timeout of 2.4 hours; 0 would be none at all.
  SLACKLINE_RETURN_IF_ERROR(check("timeout", options.timeout, 1, 31));
  SLACKLINE_RETURN_IF_ERROR(check("retry_count", options.retry_count, 0, 7));
  SLACKLINE_RETURN_IF_ERROR(check("rnr_retry", options.rnr_retry, 0, 7));
  SLACKLINE_RETURN_IF_ERROR(check("eager_bytes", options.eager_bytes, 0, kMaxEagerBytes));
  SLACKLINE_RETURN_IF_ERROR(
      check("handshake_timeout_ns", options.handshake_timeout_ns, kNsPerMs, 3600 * kNsPerSecond));
  const uint32_t mtu = options.mtu_bytes;
  if (mtu != 0 && (!std::has_single_bit(mtu) || mtu < 256 || mtu > 4096)) {
    return OutOfRange("mtu_bytes", mtu, "0 (the port's), 256, 512, 1024, 2048 or 4096");
  }
  return OkStatus();
}

}  // namespace slackline::transport
