#include "transport/rdma/rail.h"

#include <fcntl.h>
#include <glog/logging.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "transport/mapped_region.h"
#include "transport/rdma/frame.h"

namespace slackline::transport {
namespace {

// Units of one registration: about a megabyte, so that many workers are few regions.
constexpr uint32_t kUnitsPerBlock = 8;
constexpr size_t kPollBatch = 32;
constexpr size_t kRecycleBatch = 32;
constexpr size_t kBufferAlignment = 64;

std::string MemlockLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "not known";
  return limit.rlim_cur == RLIM_INFINITY ? "unlimited" : std::to_string(limit.rlim_cur) + " bytes";
}

size_t RoundUp(size_t bytes) {
  return (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
}

}  // namespace

Rail::Rail(RdmaPort port, uint32_t index, const RdmaOptions& options)
    : port_(std::move(port)),
      index_(index),
      max_region_bytes_(options.max_region_bytes),
      receive_bytes_(RoundUp(kPrefixBytes + options.eager_bytes)) {}

Status Rail::Start() {
  if (started()) return OkStatus();
  const auto failed = [this](const char* what) {
    return ErrnoStatus(errno, std::string(what) + " on RDMA device " + port_.device);
  };
  ibv_context* context = port_.context.get();
  const ibv_device_attr& limits = port_.limits;
  const auto most_units = static_cast<uint32_t>(
      std::min({static_cast<size_t>(limits.max_cqe) / kChannelCompletions,
                static_cast<size_t>(limits.max_srq_wr) / kChannelReceives, kMaxRdmaChannels}));
  domain_.reset(ibv_alloc_pd(context));
  if (!domain_) return failed("ibv_alloc_pd");
  events_.reset(ibv_create_comp_channel(context));
  if (!events_) return failed("ibv_create_comp_channel");
  const int flags = fcntl(events_->fd, F_GETFL);
  if (flags < 0 || fcntl(events_->fd, F_SETFL, flags | O_NONBLOCK) != 0) return failed("fcntl");
  completions_.reset(ibv_create_cq(context, static_cast<int>(most_units * kChannelCompletions),
                                   nullptr, events_.get(), 0));
  if (!completions_) return failed("ibv_create_cq");
  ibv_srq_init_attr attributes{};
  attributes.attr.max_wr = most_units * kChannelReceives;
  attributes.attr.max_sge = 1;
  VerbsPtr<ibv_srq> receives(ibv_create_srq(domain_.get(), &attributes));
  if (!receives) return failed("ibv_create_srq");
  has_windows_ = (limits.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B) != 0;
  max_units_ = most_units;
  recycled_.reserve(kRecycleBatch);
  free_units_.reserve(most_units);
  batch_.reserve(kPollBatch);
  receives_ = std::move(receives);
  return OkStatus();
}

Result<VerbsPtr<ibv_mr>> Rail::Register(MutableBytes memory, bool granted) const {
  int access = IBV_ACCESS_LOCAL_WRITE;
  // Where windows grant access, the region's own key grants none.
  if (granted) {
    access |= has_windows_ ? IBV_ACCESS_MW_BIND : IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
  }
  VerbsPtr<ibv_mr> region(ibv_reg_mr(domain_.get(), memory.data(), memory.size(), access));
  if (region) return region;
  const int error = errno;
  return Err(ResourceExhausted(
      "RDMA device " + port_.device + " cannot register " + std::to_string(memory.size()) +
      " bytes (" + std::strerror(error) + "); the limit of locked memory is " + MemlockLimit() +
      ": raise it with 'ulimit -l unlimited' or LimitMEMLOCK=infinity in the service's unit"));
}

// ---- Units ----

size_t Rail::UnitBytes() const {
  return kChannelReceives * receive_bytes_ + kMaxPostedMessages * kPrefixBytes;
}

MutableBytes Rail::Unit(uint32_t unit) const {
  const Block& block = blocks_[unit / kUnitsPerBlock];
  return block.memory->bytes().subspan(unit % kUnitsPerBlock * UnitBytes(), UnitBytes());
}

Status Rail::AddBlock() {
  Block block;
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(
      block.memory,
      MappedRegion::Create(kUnitsPerBlock * UnitBytes(), max_region_bytes_, &region_bytes_));
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(block.registration,
                                    Register(block.memory->bytes(), /*granted=*/false));
  blocks_.push_back(std::move(block));
  return OkStatus();
}

Result<uint32_t> Rail::TakeUnit() {
  if (!free_units_.empty()) {
    const uint32_t unit = free_units_.back();
    free_units_.pop_back();
    return unit;
  }
  if (units_ == max_units_) {
    return Err(ResourceExhausted("RDMA device " + port_.device + " serves " +
                                 std::to_string(max_units_) + " channels of an endpoint at most"));
  }
  if (units_ / kUnitsPerBlock == blocks_.size()) SLACKLINE_RETURN_ERR_IF_ERROR(AddBlock());
  const uint32_t unit = units_++;
  for (uint32_t i = 0; i < kChannelReceives; ++i) Recycle(unit * kChannelReceives + i);
  PostRecycled();
  return unit;
}

MutableBytes Rail::SendSlot(uint32_t unit, uint32_t slot) const {
  return Unit(unit).subspan(kChannelReceives * receive_bytes_ + slot * kPrefixBytes, kPrefixBytes);
}

uint32_t Rail::SendKey(uint32_t unit) const {
  return blocks_[unit / kUnitsPerBlock].registration->lkey;
}

// ---- Receives ----

ConstBytes Rail::Received(uint32_t buffer, uint32_t bytes) const {
  return Unit(buffer / kChannelReceives)
      .subspan(buffer % kChannelReceives * receive_bytes_, receive_bytes_)
      .first(bytes);
}

void Rail::Recycle(uint32_t buffer) {
  recycled_.push_back(buffer);
  if (recycled_.size() == kRecycleBatch) PostRecycled();
}

void Rail::PostRecycled() {
  if (recycled_.empty()) return;
  std::array<ibv_recv_wr, kRecycleBatch> requests;
  std::array<ibv_sge, kRecycleBatch> places;
  for (size_t i = 0; i < recycled_.size(); ++i) {
    const uint32_t buffer = recycled_[i];
    places[i] = {.addr = reinterpret_cast<uint64_t>(Received(buffer, 0).data()),
                 .length = static_cast<uint32_t>(receive_bytes_),
                 .lkey = SendKey(buffer / kChannelReceives)};
    requests[i] = {.wr_id = kReceiveBit | buffer,
                   .next = i + 1 < recycled_.size() ? &requests[i + 1] : nullptr,
                   .sg_list = &places[i],
                   .num_sge = 1};
  }
  recycled_.clear();
  ibv_recv_wr* bad = nullptr;
  const int error = ibv_post_srq_recv(receives_.get(), requests.data(), &bad);
  // The queue holds all buffers that there are: only a device that is gone refuses.
  LOG_IF(ERROR, error != 0) << "ibv_post_srq_recv on " << port_.device << ": "
                            << std::strerror(error);
}

// ---- Completions ----

bool Rail::NextCompletion(ibv_wc* completion) {
  if (next_ == batch_.size()) {
    batch_.resize(kPollBatch);
    const int count = ibv_poll_cq(completions_.get(), kPollBatch, batch_.data());
    LOG_IF(ERROR, count < 0) << "ibv_poll_cq on " << port_.device << " failed";
    batch_.resize(static_cast<size_t>(std::max(count, 0)));
    next_ = 0;
    if (batch_.empty()) return false;
  }
  *completion = batch_[next_++];
  return true;
}

void Rail::Forget(uint32_t queue_pair) {
  // Everything that the queue holds is read before the provider drops the pair's entries.
  batch_.erase(batch_.begin(), batch_.begin() + static_cast<ptrdiff_t>(next_));
  next_ = 0;
  int count = 0;
  do {
    const size_t size = batch_.size();
    batch_.resize(size + kPollBatch);
    count = ibv_poll_cq(completions_.get(), kPollBatch, batch_.data() + size);
    batch_.resize(size + static_cast<size_t>(std::max(count, 0)));
  } while (count == static_cast<int>(kPollBatch));
  std::erase_if(batch_, [&](const ibv_wc& completion) {
    if (completion.qp_num != queue_pair) return false;
    if ((completion.wr_id & kReceiveBit) != 0) Recycle(static_cast<uint32_t>(completion.wr_id));
    return true;
  });
}

void Rail::Arm() {
  if (armed_) return;
  const int error = ibv_req_notify_cq(completions_.get(), 0);
  LOG_IF(ERROR, error != 0) << "ibv_req_notify_cq on " << port_.device << ": "
                            << std::strerror(error);
  armed_ = error == 0;
}

void Rail::TakeEvents() {
  ibv_cq* queue = nullptr;
  void* context = nullptr;
  // One event an arming.
  while (ibv_get_cq_event(events_.get(), &queue, &context) == 0) {
    ibv_ack_cq_events(queue, 1);
    armed_ = false;
  }
}

}  // namespace slackline::transport
