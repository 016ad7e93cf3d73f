#include "benchmarks/pushpull_fleet.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "benchmarks/measure.h"
#include "common/codec/codec.h"
#include "common/thread.h"
#include "common/time_source.h"
#include "proto/control.pb.h"
#include "server/shard.h"
#include "transport/factory.h"
#include "worker/client/client_core.h"

namespace slackline::bench {

namespace {

constexpr size_t kAddressBytes = 128;
constexpr TimeNs kPollNs = 20 * kNsPerMs;
constexpr float kGradient = 1e-3F;  // Small steps: the weights stay finite for any duration.

// ---- Pipes between the parent and its children: fixed-size values, whole or not at all.

struct Pipe {
  int read_fd = -1;
  int write_fd = -1;
  static Result<Pipe> Create() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return Err(ErrnoStatus(errno, "pipe"));
    return Pipe{ends[0], ends[1]};
  }
};

template <typename T>
bool Put(int fd, const T& value) {
  return write(fd, &value, sizeof value) == static_cast<ssize_t>(sizeof value);
}

template <typename T>
bool Get(int fd, T* value) {
  size_t done = 0;
  while (done < sizeof *value) {
    const ssize_t size = read(fd, reinterpret_cast<char*>(value) + done, sizeof *value - done);
    if (size <= 0) return false;
    done += static_cast<size_t>(size);
  }
  return true;
}

struct Child {
  pid_t pid = -1;
  int to = -1;    // The parent writes.
  int from = -1;  // The parent reads.
};

struct Address {
  char text[kAddressBytes] = "";
};

// Where a process stands; the parent asks twice and takes the difference.
struct Snapshot {
  double seconds = 0;
  double cpu_seconds = 0;
  uint64_t push_pulls = 0;
  uint64_t bytes = 0;  // One direction.
  uint64_t copied = 0;
  uint64_t resends = 0;
};

// ---- The job, as a coordinator would cut it.

uint64_t ElementsOf(const FleetConfig& config) { return config.model_bytes / sizeof(float); }

control::ShardMap MakeMap(const FleetConfig& config, const std::vector<std::string>& addresses) {
  control::ShardMap map;
  map.set_epoch(1);
  for (const std::string& address : addresses) map.add_shard_addresses(address);
  control::TensorSpec& tensor = *map.add_tensors();
  tensor.set_name("w");
  tensor.add_shape(static_cast<int64_t>(ElementsOf(config)));
  tensor.set_decay(true);
  const uint64_t chunk_elements = config.chunk_bytes / sizeof(float);
  for (uint64_t offset = 0; offset < ElementsOf(config); offset += chunk_elements) {
    control::Chunk& chunk = *map.add_chunks();
    const auto index = static_cast<uint32_t>(map.chunks_size() - 1);
    chunk.set_index(index);
    chunk.set_flat_offset(offset);
    chunk.set_count(std::min(chunk_elements, ElementsOf(config) - offset));
    chunk.set_shard(index % config.shards);
    control::Segment& segment = *chunk.add_segments();
    segment.set_tensor_offset(offset);
    segment.set_count(chunk.count());
  }
  control::JobSpec& job = *map.mutable_job();
  job.set_model("bench");
  job.set_steps(INT64_MAX);
  job.set_staleness(config.staleness);
  job.mutable_optimizer()->set_name(config.optimizer);
  job.mutable_optimizer()->set_momentum(0.9);
  job.mutable_optimizer()->set_beta1(0.9);
  job.mutable_optimizer()->set_beta2(0.999);
  job.mutable_optimizer()->set_epsilon(1e-8);
  job.mutable_schedule()->set_name("constant");
  job.mutable_schedule()->set_learning_rate(1e-6);
  job.set_push_codec(config.codec);
  job.set_pull_codec(config.codec);
  job.set_chunk_bytes(config.chunk_bytes);
  return map;
}

control::View MakeView(const FleetConfig& config) {
  control::View view;
  view.set_version(1);
  for (uint32_t worker = 0; worker < config.workers; ++worker) {
    control::Member& member = *view.add_members();
    member.set_worker(worker);
    member.set_incarnation(1);
  }
  return view;
}

int Fail(const Status& status) {
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}

// ---- The server process

// One shard and its thread.
class ShardThread {
 public:
  static Result<std::unique_ptr<ShardThread>> Create(const FleetConfig& config, ShardIndex index) {
    std::unique_ptr<ShardThread> self(new ShardThread);
    SLACKLINE_ASSIGN_OR_RETURN(self->endpoint_, transport::CreateEndpoint(config.transport));
    server::ShardOptions options;
    options.shard = index;
    options.expected_workers = config.workers;
    self->shard_ = std::make_unique<server::Shard>(*self->endpoint_, self->time_, options);
    self->endpoint_->set_handler(self->shard_.get());
    SLACKLINE_ASSIGN_OR_RETURN(self->address_,
                               self->endpoint_->Listen(config.transport + "://127.0.0.1:0"));
    return self;
  }
  ~ShardThread() {
    stop_.store(true);
    if (endpoint_) endpoint_->Wake();
    thread_.Join();
  }
  const std::string& address() const { return address_; }
  Status Start(const control::ShardMap& map, const control::View& view) {
    SLACKLINE_RETURN_IF_ERROR(shard_->InstallMap(map));
    SLACKLINE_RETURN_IF_ERROR(shard_->InstallView(view));
    thread_ = Thread("shard", [this] {
      while (!stop_.load()) {
        const TimeNs wait_ns = shard_->NextDeadline() - time_.NowNs();
        endpoint_->Poll(std::clamp<TimeNs>(wait_ns, 0, kPollNs));
        shard_->OnTick(time_.NowNs());
      }
    });
    return OkStatus();
  }
  uint64_t copied() const { return endpoint_->stats().payload_bytes_copied; }

 private:
  ShardThread() = default;
  SteadyTimeSource time_;
  std::unique_ptr<transport::Endpoint> endpoint_;
  std::unique_ptr<server::Shard> shard_;
  std::string address_;
  std::atomic<bool> stop_{false};
  Thread thread_;
};

// Sends an address a shard, then a snapshot for every byte that it is sent.
int RunServer(const FleetConfig& config, int from_parent, int to_parent) {
  std::vector<std::unique_ptr<ShardThread>> shards;
  std::vector<std::string> addresses;
  for (ShardIndex index = 0; index < config.shards; ++index) {
    Result<std::unique_ptr<ShardThread>> shard = ShardThread::Create(config, index);
    if (!shard) return Fail(shard.error());
    shards.push_back(std::move(*shard));
    addresses.push_back(shards.back()->address());
  }
  const control::ShardMap map = MakeMap(config, addresses);
  for (auto& shard : shards) {
    if (const Status status = shard->Start(map, MakeView(config)); !status.ok()) {
      return Fail(status);
    }
  }
  for (const std::string& text : addresses) {
    Address address;
    text.copy(address.text, kAddressBytes - 1);
    if (!Put(to_parent, address)) return 1;
  }
  for (char question = 0; Get(from_parent, &question);) {
    Snapshot snapshot{.seconds = WallSeconds(), .cpu_seconds = CpuSeconds()};
    for (auto& shard : shards) snapshot.copied += shard->copied();
    if (!Put(to_parent, snapshot)) return 1;
  }
  return 0;
}

// ---- A worker process

class BenchWorker final : private worker::CoreEvents {
 public:
  BenchWorker(const FleetConfig& config, uint32_t rank) : config_(config), rank_(rank) {}

  Status Start(const control::ShardMap& map) {
    SLACKLINE_ASSIGN_OR_RETURN_STATUS(endpoint_, transport::CreateEndpoint(config_.transport));
    const Codec& codec = *FindCodec(config_.codec);
    const uint64_t elements = ElementsOf(config_);
    SLACKLINE_ASSIGN_OR_RETURN_STATUS(initial_, endpoint_->Allocate(elements * sizeof(float)));
    SLACKLINE_ASSIGN_OR_RETURN_STATUS(push_, endpoint_->Allocate(codec.EncodedBytes(elements)));
    SLACKLINE_ASSIGN_OR_RETURN_STATUS(pull_, endpoint_->Allocate(codec.EncodedBytes(elements)));
    std::vector<float> gradient(elements, kGradient);
    codec.Encode(gradient.data(), elements, 1.0F, push_->bytes().data());
    std::ranges::fill(initial_->bytes(), std::byte{0});
    std::ranges::fill(pull_->bytes(), std::byte{0});
    for (const control::Chunk& chunk : map.chunks()) {
      chunks_.push_back({.offset = codec.EncodedBytes(chunk.flat_offset()),
                         .size = codec.EncodedBytes(chunk.count()),
                         .fp32_offset = chunk.flat_offset() * sizeof(float),
                         .fp32_size = chunk.count() * sizeof(float)});
    }
    worker::CoreOptions options;
    options.worker = rank_;
    options.credit_bytes = config_.credit_bytes;
    core_ = std::make_unique<worker::ClientCore>(options, *endpoint_, time_,
                                                 static_cast<worker::CoreEvents&>(*this));
    worker::CoreMap core_map;
    core_map.shard_addresses.assign(map.shard_addresses().begin(), map.shard_addresses().end());
    for (const control::Chunk& chunk : map.chunks()) core_map.chunk_shard.push_back(chunk.shard());
    SLACKLINE_RETURN_IF_ERROR(core_->SetMap(core_map));
    return Initialise();
  }

  // Trains until the parent is gone; sends a snapshot for every byte that it is sent.
  Status Train(int from_parent, int to_parent) {
    if (fcntl(from_parent, F_SETFL, O_NONBLOCK) != 0) return ErrnoStatus(errno, "fcntl");
    unfinished_ = chunks_.size();
    for (ChunkIndex chunk = 0; chunk < chunks_.size(); ++chunk) PushPull(chunk);
    TimeNs look_ns = 0;
    for (;;) {
      SLACKLINE_RETURN_IF_ERROR(Step());
      if (time_.NowNs() < look_ns) continue;
      look_ns = time_.NowNs() + kNsPerMs;
      char question = 0;
      const ssize_t size = read(from_parent, &question, 1);
      if (size == 0) return OkStatus();
      if (size == 1 && !Put(to_parent, Look())) return OkStatus();
    }
  }

 private:
  struct Chunk {
    size_t offset = 0, size = 0;
    size_t fp32_offset = 0, fp32_size = 0;
    Clock clock = 0;  // Of its open push, or its next one.
    bool open = false;
  };

  Status Initialise() {
    for (ChunkIndex chunk = 0; chunk < chunks_.size(); ++chunk) {
      SLACKLINE_RETURN_IF_ERROR(
          core_->Submit({.kind = proto::MessageKind::kInit,
                         .chunk = chunk,
                         .codec = CodecId::kFp32,
                         .payload = initial_->bytes().subspan(chunks_[chunk].fp32_offset,
                                                              chunks_[chunk].fp32_size)}));
    }
    while (core_->open_requests() > 0) SLACKLINE_RETURN_IF_ERROR(Step());
    return OkStatus();
  }

  Status Step() {
    const TimeNs wait_ns = core_->NextDeadline() - time_.NowNs();
    endpoint_->Poll(std::clamp<TimeNs>(wait_ns, 0, kPollNs));
    if (time_.NowNs() >= core_->NextDeadline()) core_->OnTick();
    return core_->failure();
  }

  Snapshot Look() const {
    return {.seconds = WallSeconds(),
            .cpu_seconds = CpuSeconds(),
            .push_pulls = push_pulls_,
            .bytes = bytes_,
            .copied = endpoint_->stats().payload_bytes_copied,
            .resends = core_->stats().resends};
  }

  void PushPull(ChunkIndex index) {
    Chunk& chunk = chunks_[index];
    chunk.open = true;
    const MutableBytes landing = pull_->bytes().subspan(chunk.offset, chunk.size);
    const Status status =
        core_->Submit({.chunk = index,
                       .clock = chunk.clock,
                       .codec = FindCodec(config_.codec)->id(),
                       .reply_codec = FindCodec(config_.codec)->id(),
                       .weight = 1,
                       .payload = push_->bytes().subspan(chunk.offset, chunk.size),
                       .landing = landing});
    if (!status.ok()) core_->Fail(status);
  }

  void OnChunkDone(const worker::ChunkResult& result) override {
    if (result.bytes_received == 0) return;  // Initial weights.
    Chunk& chunk = chunks_[result.chunk];
    chunk.open = false;
    ++push_pulls_;
    bytes_ += result.bytes_received;
    const bool of_slowest = chunk.clock++ == slowest_clock_;
    if (chunk.clock <= slowest_clock_ + 1) PushPull(result.chunk);
    if (of_slowest && --unfinished_ == 0) NextClock();
  }
  // Two clocks are under way at a time. Without a bound a few chunks would run ahead of all others,
  // and their memory would stay in the cache.
  void NextClock() {
    ++slowest_clock_;
    for (ChunkIndex index = 0; index < chunks_.size(); ++index) {
      if (chunks_[index].clock == slowest_clock_) ++unfinished_;
      if (!chunks_[index].open && chunks_[index].clock <= slowest_clock_ + 1) PushPull(index);
    }
  }
  void OnFailed(const Status& status) override { Fail(status); }

  const FleetConfig& config_;
  const uint32_t rank_;
  SteadyTimeSource time_;
  std::unique_ptr<transport::Endpoint> endpoint_;
  std::unique_ptr<transport::Region> initial_, push_, pull_;
  std::unique_ptr<worker::ClientCore> core_;  // After what it sends from: it closes first.
  std::vector<Chunk> chunks_;
  Clock slowest_clock_ = 0;
  size_t unfinished_ = 0;  // Chunks whose push of slowest_clock_ is not answered.
  uint64_t push_pulls_ = 0;
  uint64_t bytes_ = 0;
};

int RunWorker(const FleetConfig& config, uint32_t rank, const control::ShardMap& map,
              int from_parent, int to_parent) {
  BenchWorker worker(config, rank);
  Status status = worker.Start(map);
  if (status.ok()) status = worker.Train(from_parent, to_parent);
  return status.ok() ? 0 : Fail(status);
}

// ---- The parent

// Children that are ended, with their pipes, when it goes.
class Family {
 public:
  ~Family() {
    for (const Child& child : children_) {
      // Workers may wait for each other's pushes: they have nothing left to say.
      kill(child.pid, SIGKILL);
      waitpid(child.pid, nullptr, 0);
      close(child.to);
      close(child.from);
    }
  }

  // `body(from_parent, to_parent)` runs in a new process; its result is the exit code.
  template <typename Body>
  Status Fork(const Body& body) {
    SLACKLINE_ASSIGN_OR_RETURN_STATUS(const Pipe down, Pipe::Create());
    SLACKLINE_ASSIGN_OR_RETURN_STATUS(const Pipe up, Pipe::Create());
    std::fflush(nullptr);
    const pid_t pid = fork();
    if (pid < 0) return ErrnoStatus(errno, "fork");
    if (pid == 0) {
      for (const Child& other : children_) {  // Else they would not see the parent's end.
        close(other.to);
        close(other.from);
      }
      close(down.write_fd);
      close(up.read_fd);
      _exit(body(down.read_fd, up.write_fd));
    }
    close(down.read_fd);
    close(up.write_fd);
    children_.push_back({pid, down.write_fd, up.read_fd});
    return OkStatus();
  }

  Result<std::vector<Snapshot>> Look() const {
    std::vector<Snapshot> snapshots(children_.size());
    for (const Child& child : children_) {
      if (!Put(child.to, 'm')) return Err(Unavailable("a process of the benchmark is gone"));
    }
    for (size_t i = 0; i < children_.size(); ++i) {
      if (!Get(children_[i].from, &snapshots[i])) {
        return Err(Unavailable("a process of the benchmark is gone"));
      }
    }
    return snapshots;
  }

  const Child& first() const { return children_.front(); }

 private:
  std::vector<Child> children_;
};

void Sleep(double seconds) { usleep(static_cast<useconds_t>(seconds * 1e6)); }

FleetResult Difference(const std::vector<Snapshot>& before, const std::vector<Snapshot>& after) {
  FleetResult result;
  double gbytes_per_s = 0;
  for (size_t i = 0; i < before.size(); ++i) {
    const double seconds = after[i].seconds - before[i].seconds;
    const double cpu = (after[i].cpu_seconds - before[i].cpu_seconds) / seconds;
    (i == 0 ? result.server_cpu : result.worker_cpu) += cpu;
    result.payload_bytes_copied += after[i].copied;
    result.resends += after[i].resends - before[i].resends;
    gbytes_per_s += static_cast<double>(after[i].bytes - before[i].bytes) / seconds / 1e9;
    result.push_pulls_per_s +=
        static_cast<double>(after[i].push_pulls - before[i].push_pulls) / seconds;
  }
  result.gbytes_per_s_per_direction = gbytes_per_s;
  result.cpu_seconds_per_gbyte = (result.server_cpu + result.worker_cpu) / gbytes_per_s;
  return result;
}

}  // namespace

Result<FleetResult> RunFleet(const FleetConfig& config) {
  Family family;  // The server first.
  SLACKLINE_RETURN_ERR_IF_ERROR(
      family.Fork([&](int from, int to) { return RunServer(config, from, to); }));
  std::vector<std::string> addresses;
  for (uint32_t shard = 0; shard < config.shards; ++shard) {
    Address address;
    if (!Get(family.first().from, &address)) {
      return Err(Unavailable("the server did not start; its message is above"));
    }
    addresses.emplace_back(address.text);
  }
  const control::ShardMap map = MakeMap(config, addresses);
  for (uint32_t rank = 0; rank < config.workers; ++rank) {
    SLACKLINE_RETURN_ERR_IF_ERROR(family.Fork(
        [&, rank](int from, int to) { return RunWorker(config, rank, map, from, to); }));
  }
  Sleep(config.warmup_seconds);
  // The first look also waits until every worker trains.
  SLACKLINE_ASSIGN_OR_RETURN([[maybe_unused]] const auto started, family.Look());
  Sleep(config.warmup_seconds);
  SLACKLINE_ASSIGN_OR_RETURN(const auto before, family.Look());
  Sleep(config.seconds);
  SLACKLINE_ASSIGN_OR_RETURN(const auto after, family.Look());
  return Difference(before, after);
}

}  // namespace slackline::bench
