// slackline-doctor's checks against copies of /proc, /sys and /dev with one fault each, and its
// talk with other hosts against real sockets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "common/file.h"
#include "tests/testing/temp_directory.h"
#include "transport/doctor/checks.h"
#include "transport/doctor/peers.h"

namespace slackline::transport {
namespace {

using ::testing::HasSubstr;

constexpr char kPort[] = "/sys/class/infiniband/mlx5_0/ports/1";

// Somebody on a free port of this host who accepts and says nothing.
class Listener {
 public:
  Listener() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    socklen_t size = sizeof address;
    EXPECT_EQ(listen(socket_.get(), 4), 0);
    getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
  }
  uint16_t port() const { return port_; }

 private:
  Fd socket_;
  uint16_t port_ = 0;
};

// A host on which a run over RDMA works.
class DoctorTest : public ::testing::Test {
 protected:
  DoctorTest() {
    options_.transport = "rdma";
    const std::string port = kPort;
    Write("/proc/sys/kernel/osrelease", "6.1.0-57-amd64\n");
    Write("/proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n");
    Write("/proc/self/limits", "Limit  Soft  Hard  Units\nMax locked memory  unlimited  bytes\n");
    Write("/proc/self/status", "Name:\tx\nCapEff:\t0000000000000000\n");
    Write("/proc/meminfo", "HugePages_Free:  64\nHugepagesize:    2048 kB\n");
    Write("/dev/shm/file", "");
    Write("/etc/libibverbs.d/mlx5.driver", "driver mlx5\n");
    Write("/dev/infiniband/uverbs0", "");
    Write("/sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0\n");
    Write(port + "/state", "4: ACTIVE\n");
    Write(port + "/phys_state", "5: LinkUp\n");
    Write(port + "/link_layer", "Ethernet\n");
    Write(port + "/rate", "100 Gb/sec (4X EDR)\n");
    WriteGid("0", "fe80:0000:0000:0000:5054:00ff:fe12:3456", "RoCE v2");
    WriteGid("1", "0000:0000:0000:0000:0000:ffff:0a00:0002", "RoCE v2");
    WriteGid("2", "0000:0000:0000:0000:0000:0000:0000:0000", "RoCE v2");
    Write("/sys/class/net/eth2/mtu", "9000\n");
  }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_.path() + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void WriteGid(const std::string& index, const std::string& gid, const std::string& type) {
    const std::string port = kPort;
    Write(port + "/gids/" + index, gid + "\n");
    Write(port + "/gid_attrs/types/" + index, type + "\n");
    Write(port + "/gid_attrs/ndevs/" + index, "eth2\n");
  }
  void Remove(const std::string& path) { std::filesystem::remove_all(root_.path() + path); }

  Report Check() const { return CheckHost(Host(root_.path()), options_); }
  // The findings of one verdict, each "check: found -> cure".
  std::string Findings(Verdict verdict) const {
    const Report report = Check();
    std::string text;
    for (const Finding& finding : report.findings()) {
      if (finding.verdict != verdict) continue;
      text += finding.check + ": " + finding.found + " -> " + finding.cure + "\n";
    }
    return text;
  }
  std::string Failures() const { return Findings(Verdict::kFailure); }
  std::string Warnings() const { return Findings(Verdict::kWarning); }

  testing::TempDirectory root_;
  DoctorOptions options_;
};

TEST_F(DoctorTest, AHealthyHostHasNothingToCure) {
  EXPECT_EQ(Failures(), "");
  EXPECT_EQ(Warnings(), "");
  EXPECT_TRUE(Check().ok());
  EXPECT_THAT(Check().Text(), HasSubstr("a run can start"));
}

TEST_F(DoctorTest, WithoutADeviceOnlyRdmaFails) {
  Remove("/sys/class/infiniband");
  EXPECT_THAT(Failures(), HasSubstr("no RDMA device"));
  for (const char* transport : {"tcp", "shm", "auto"}) {
    options_.transport = transport;
    options_.memory_bytes = 0;
    EXPECT_EQ(Failures(), "") << transport;
  }
}

TEST_F(DoctorTest, ACardWithoutDriverIsNamed) {
  Remove("/sys/class/infiniband");
  Write("/sys/bus/pci/devices/0000:3b:00.0/vendor", "0x15b3\n");
  Write("/sys/bus/pci/devices/0000:3b:00.0/class", "0x020000\n");
  EXPECT_THAT(Failures(), HasSubstr("modprobe mlx5_ib"));
}

TEST_F(DoctorTest, APortThatIsDown) {
  Write(std::string(kPort) + "/state", "1: DOWN\n");
  Write(std::string(kPort) + "/phys_state", "3: Disabled\n");
  EXPECT_THAT(Failures(), HasSubstr("mlx5_0 port 1: state 1: DOWN, 3: Disabled, Ethernet"));
  EXPECT_THAT(Failures(), HasSubstr("ip link set INTERFACE up"));
}

TEST_F(DoctorTest, AnInfiniBandPortWithoutSubnetManager) {
  Write(std::string(kPort) + "/state", "2: INIT\n");
  Write(std::string(kPort) + "/link_layer", "InfiniBand\n");
  EXPECT_THAT(Failures(), HasSubstr("opensm"));
}

TEST_F(DoctorTest, OnePortThatWorksIsEnough) {
  const std::string second = "/sys/class/infiniband/mlx5_1/ports/1";
  Write(second + "/state", "1: DOWN\n");
  Write(second + "/link_layer", "Ethernet\n");
  EXPECT_EQ(Failures(), "");
  EXPECT_THAT(Findings(Verdict::kNote), HasSubstr("mlx5_1 port 1: state 1: DOWN"));
}

TEST_F(DoctorTest, APortWithoutRoceV2) {
  WriteGid("0", "fe80:0000:0000:0000:5054:00ff:fe12:3456", "IB/RoCE v1");
  WriteGid("1", "0000:0000:0000:0000:0000:ffff:0a00:0002", "IB/RoCE v1");
  EXPECT_THAT(Failures(), HasSubstr("no RoCE v2 GID; its GIDs: 0 (IB/RoCE v1), 1 (IB/RoCE v1"));
}

TEST_F(DoctorTest, OnlyALinkLocalGid) {
  Remove(std::string(kPort) + "/gids/1");
  EXPECT_EQ(Failures(), "");
  EXPECT_THAT(Warnings(), HasSubstr("ip addr add ADDRESS/24 dev eth2"));
}

TEST_F(DoctorTest, ASmallMtu) {
  Write("/sys/class/net/eth2/mtu", "1500\n");
  EXPECT_THAT(Warnings(), HasSubstr("packets of at most 1024 bytes -> ip link set eth2 mtu 9000"));
}

TEST_F(DoctorTest, NoWayForProgramsToTheDevice) {
  Remove("/dev/infiniband/uverbs0");
  EXPECT_THAT(Failures(), HasSubstr("--device=/dev/infiniband"));
  Remove("/sys/class/infiniband_verbs");
  EXPECT_THAT(Failures(), HasSubstr("modprobe ib_uverbs"));
  Remove("/etc/libibverbs.d");
  EXPECT_THAT(Failures(), HasSubstr("apt-get install ibverbs-providers"));
}

TEST_F(DoctorTest, TooLittleMemoryMayBeLocked) {
  Write("/proc/self/limits", "Max locked memory  8388608  8388608  bytes\n");
  EXPECT_THAT(Failures(), HasSubstr("8 MiB may be locked, RDMA memory of 1024 MiB"));
  EXPECT_THAT(Failures(), HasSubstr("ulimit -l unlimited"));
  options_.memory_bytes = 8 << 20;
  EXPECT_EQ(Failures(), "");
  options_.memory_bytes = 9 << 20;
  Write("/proc/self/status", "CapEff:\t000001ffffffffff\n");  // The administrator's.
  EXPECT_EQ(Failures(), "");
}

TEST_F(DoctorTest, NoHugePages) {
  Write("/proc/meminfo", "HugePages_Free:  0\nHugepagesize:    2048 kB\n");
  Write("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  EXPECT_THAT(Warnings(), HasSubstr("echo madvise > "));
  Write("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  EXPECT_EQ(Warnings(), "");
}

TEST_F(DoctorTest, TooLittleSharedMemory) {
  options_.transport = "shm";
  options_.memory_bytes = uint64_t{1} << 60;
  EXPECT_THAT(Failures(), HasSubstr("mount -o remount,size=50% /dev/shm"));
  Remove("/dev/shm");
  EXPECT_THAT(Failures(), HasSubstr("mount -t tmpfs tmpfs /dev/shm"));
}

TEST_F(DoctorTest, GpusAndHowANicReachesThem) {
  Write("/sys/bus/pci/devices/0000:1b:00.0/vendor", "0x10de\n");
  Write("/sys/bus/pci/devices/0000:1b:00.0/class", "0x030200\n");
  EXPECT_THAT(Warnings(), HasSubstr("1 NVIDIA GPUs without a driver"));
  Write("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module 550\n");
  EXPECT_THAT(Warnings(), HasSubstr("modprobe nvidia_peermem"));
  Write("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module 550\n");
  EXPECT_EQ(Warnings(), "");
  Write("/proc/sys/kernel/osrelease", "5.4.0\n");  // Has no dmabuf for RDMA.
  EXPECT_THAT(Warnings(), HasSubstr("modprobe nvidia_peermem"));
  Write("/sys/module/nvidia_peermem/refcnt", "0\n");
  EXPECT_EQ(Warnings(), "");
}

TEST_F(DoctorTest, PortsThatAreTakenOrFew) {
  Listener listener;
  options_.ports = {listener.port(), listener.port()};
  EXPECT_THAT(Failures(), HasSubstr("port " + std::to_string(listener.port()) + ": Address"));
  options_.ports = {0, 0};
  Write("/proc/sys/net/ipv4/ip_local_port_range", "40000\t40100\n");
  EXPECT_THAT(Warnings(), HasSubstr("sysctl net.ipv4.ip_local_port_range"));
}

TEST_F(DoctorTest, AnEmptyRootIsNoCrash) {
  const testing::TempDirectory empty;
  for (const char* transport : {"tcp", "shm", "rdma", "auto"}) {
    options_.transport = transport;
    const Report report = CheckHost(Host(empty.path()), options_);
    EXPECT_EQ(report.ok(), options_.transport == "tcp" || options_.transport == "auto");
    EXPECT_EQ(report.Json()["findings"].size(), report.findings().size());
  }
}

// ---- Other hosts ----

TEST(DoctorPeersTest, AHostfileGivesTheOtherHostsOnce) {
  const testing::TempDirectory directory;
  std::ofstream(directory.Path("hosts")) << "# ours\nnode1 4 server\n\nnode2\nnode1 2 # again\n"
                                            "localhost\n";
  const auto hosts = ReadHostfile(directory.Path("hosts"));
  ASSERT_TRUE(hosts) << hosts.error();
  EXPECT_THAT(*hosts, ::testing::ElementsAre("node1", "node2"));

  std::ofstream(directory.Path("evil")) << "node1\n-oProxyCommand=x\n";
  const auto refused = ReadHostfile(directory.Path("evil"));
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr("evil, line 2"));
  EXPECT_FALSE(ReadHostfile(directory.Path("none")));
}

// A doctor that serves for a second.
class Server {
 public:
  explicit Server(const Report& report)
      : thread_([this, &report] {
          const Status status =
              ServePeers(0, kNsPerSecond, report, [this](uint16_t port) { port_.set_value(port); });
          EXPECT_TRUE(status.ok()) << status;
        }) {}
  ~Server() { thread_.join(); }
  std::string address() { return "127.0.0.1:" + std::to_string(port_.get_future().get()); }

 private:
  std::promise<uint16_t> port_;
  std::thread thread_;
};

TEST(DoctorPeersTest, AnotherHostsFaultsAndClockAreTold) {
  Report theirs;
  theirs.Fail("memlock", "8 MiB may be locked", "ulimit -l unlimited");
  theirs.Ok("verbs", "fine");
  Server server(theirs);
  Report report;
  CheckPeer(server.address(), PeerOptions{}, report);
  EXPECT_FALSE(report.ok());
  EXPECT_THAT(report.Text(), HasSubstr("memlock: 8 MiB may be locked\n"));
  EXPECT_THAT(report.Text(), HasSubstr("the route leaves from 127.0.0.1"));
  EXPECT_THAT(report.Text(), HasSubstr("1 checks of its own found nothing to cure"));
  EXPECT_THAT(report.Text(), HasSubstr("clock "));
}

TEST(DoctorPeersTest, StrangersAndTheSilentAreToldApart) {
  PeerOptions options;
  options.timeout_ns = 200 * kNsPerMs;
  Report refused;
  const uint16_t gone = Listener().port();
  CheckPeer("127.0.0.1:" + std::to_string(gone), options, refused);
  EXPECT_THAT(refused.Text(), HasSubstr("Connection refused"));

  Listener listener;  // Accepts (in the kernel) and says nothing.
  Report silent;
  CheckPeer("127.0.0.1:" + std::to_string(listener.port()), options, silent);
  EXPECT_THAT(silent.Text(), HasSubstr("something else answers: ''"));
  EXPECT_FALSE(silent.ok());

  Report malformed;
  CheckPeer("no port", options, malformed);
  EXPECT_FALSE(malformed.ok());
}

TEST(DoctorPeersTest, SshThatFailsIsToldWithItsWords) {
  PeerOptions options;
  options.ssh = "echo no-such-key:";  // Says that, its options and the host, and ends.
  options.program = "slackline-doctor";
  Report report;
  CheckPeerOverSsh("node7", options, report);
  EXPECT_THAT(report.Text(), HasSubstr("cannot be started over ssh: no-such-key:"));
  EXPECT_FALSE(report.ok());
}

}  // namespace
}  // namespace slackline::transport
