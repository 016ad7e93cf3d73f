// One process's end of a SimNetwork: transport::Endpoint in virtual time.
//
// Addresses are "sim://host:port"; the host is only a word. Poll(0) handles what has arrived.
// Poll(w) with nothing ready lets the network run, for at most w of virtual time, until something
// is. Threading: the network's thread; Wake() too.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "transport/sim/sim_channel.h"
#include "transport/sim/sim_network.h"
#include "transport/transport.h"

namespace slackline::transport {

class SimEndpoint final : public Endpoint {
 public:
  // Made by SimNetwork::CreateEndpoint.
  SimEndpoint(SimNetwork& network, std::string name);
  ~SimEndpoint() override;
  SimEndpoint(const SimEndpoint&) = delete;
  SimEndpoint& operator=(const SimEndpoint&) = delete;

  void set_handler(Handler* handler) override { handler_ = handler; }
  Result<std::string> Listen(std::string_view address) override;
  Result<Channel*> Connect(std::string_view address, TimeNs timeout_ns) override;
  size_t Poll(TimeNs max_wait_ns) override;
  void Wake() override { woken_ = true; }
  Result<std::unique_ptr<Region>> Allocate(size_t size_bytes) override;
  const EndpointStats& stats() const override { return stats_; }
  std::string_view name() const override { return "sim"; }

  // Something waits for Poll.
  bool ready() const { return !ready_.empty(); }
  // Called, inside the network's Step, whenever ready() turns true: a simulated process schedules
  // its next turn here. It must not poll.
  void set_on_ready(std::function<void()> on_ready) { on_ready_ = std::move(on_ready); }
  const std::string& process_name() const { return process_name_; }

  // Bound on the memory of one endpoint's regions.
  static constexpr size_t kMaxRegionBytes = size_t{1} << 30;

 private:
  friend class SimNetwork;
  friend class SimChannel;

  // What Poll is to do for a channel.
  struct Ready {
    enum class Kind : uint8_t { kOpened, kReceive, kReplySent, kFailed };
    uint64_t channel = 0;
    Kind kind = Kind::kReceive;
    uint64_t reply_number = 0;  // kReplySent: the channel's replies up to this one.
    Status status = {};         // kFailed: a connect that came to nothing.
  };

  SimChannel* AddChannel(std::string peer, SimChannel::State state);
  void Enqueue(Ready ready);
  size_t HandleReady();
  void Handle(const Ready& ready);
  // Takes the channel out; it is destroyed when the present (or the next) Poll returns.
  void Bury(uint64_t channel);

  SimNetwork& network_;
  const std::string process_name_;
  Handler* handler_ = nullptr;
  std::function<void()> on_ready_;
  std::vector<std::string> listening_;
  std::map<uint64_t, std::unique_ptr<SimChannel>> channels_;
  std::vector<std::unique_ptr<SimChannel>> buried_;
  std::deque<Ready> ready_;
  EndpointStats stats_;
  size_t region_bytes_ = 0;
  bool polling_ = false;
  bool woken_ = false;
};

}  // namespace slackline::transport
