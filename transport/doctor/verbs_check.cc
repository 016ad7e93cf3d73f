#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "common/file.h"
#include "transport/doctor/checks.h"
#include "transport/rdma/device.h"

namespace slackline::transport {
namespace {

constexpr char kDevices[] = "/sys/class/infiniband";
// An Ethernet frame for RDMA packets of 4096 bytes: those and their headers.
constexpr long long kFullMtu = 4200;

std::string PortPath(const std::string& device, const std::string& port) {
  return std::string(kDevices) + "/" + device + "/ports/" + port;
}

// A card of a vendor that makes little else, without a driver for RDMA.
bool HasUndrivenCard(const Host& host) {
  constexpr char kPci[] = "/sys/bus/pci/devices/";
  for (const std::string& card : host.Names(kPci)) {
    const std::string vendor = host.Line(kPci + card + "/vendor");
    const std::string kind = host.Line(kPci + card + "/class");
    if (kind.starts_with("0x0207") || (vendor == "0x15b3" && kind.starts_with("0x02"))) return true;
  }
  return false;
}

void NoDevice(const Host& host, bool needed, Report& report) {
  if (HasUndrivenCard(host)) {
    report.FailIf(needed, "verbs", "an RDMA card is there, but no RDMA device",
                  "load its driver (modprobe mlx5_ib for ConnectX; see dmesg)");
    return;
  }
  report.FailIf(needed, "verbs", "no RDMA device",
                "use --transport=tcp or auto; for tests: modprobe rdma_rxe && rdma link add rxe0 "
                "type rxe netdev eth0");
}

// The character device through which programs reach an RDMA device. Returns whether it opens.
bool CheckAccess(const Host& host, const std::string& device, bool needed, Report& report) {
  constexpr char kVerbs[] = "/sys/class/infiniband_verbs/";
  std::string file;
  for (const std::string& name : host.Names(kVerbs)) {
    if (host.Line(kVerbs + name + "/ibdev") == device) file = "/dev/infiniband/" + name;
  }
  const std::string check = "verbs " + device;
  if (file.empty()) {
    report.FailIf(needed, check, "no user-space access", "modprobe ib_uverbs");
  } else if (!host.Exists(file)) {
    report.FailIf(needed, check, file + " does not exist",
                  "in a container give it in: --device=/dev/infiniband; else udev is not running");
  } else if (Fd(open(host.Path(file).c_str(), O_RDWR | O_CLOEXEC)).valid()) {
    report.Ok(check, "opens (" + file + ")");
    return true;
  } else {
    report.FailIf(needed, check, file + " may not be opened by this user",
                  "install rdma-core, whose udev rules open it, or: chmod a+rw " + file);
  }
  return false;
}

struct Gid {
  std::string index, text, type, interface;

  bool is_v2() const { return type == "RoCE v2"; }
  bool is_ipv4() const { return text.starts_with("0000:0000:0000:0000:0000:ffff:"); }
};

std::vector<Gid> GidsOf(const Host& host, const std::string& port) {
  std::vector<Gid> gids;
  for (const std::string& index : host.Names(port + "/gids")) {
    const std::string text = host.Line(port + "/gids/" + index);
    if (text.find_first_not_of("0:") == std::string::npos) continue;  // Empty slots are all zero.
    gids.push_back({index, text, host.Line(port + "/gid_attrs/types/" + index),
                    host.Line(port + "/gid_attrs/ndevs/" + index)});
  }
  return gids;
}

// Returns whether the port can carry a run.
bool CheckRoceGids(const Host& host, const std::string& port, const std::string& check, bool needed,
                   Report& report) {
  const std::vector<Gid> gids = GidsOf(host, port);
  std::string list;
  for (const Gid& gid : gids) {
    list += (list.empty() ? "" : ", ") + gid.index + " (" + gid.type +
            (gid.is_ipv4() ? ", IPv4" : "") + ")";
  }
  const auto v2 = std::find_if(gids.begin(), gids.end(), [](const Gid& g) { return g.is_v2(); });
  if (v2 == gids.end()) {
    report.FailIf(needed, check, "no RoCE v2 GID; its GIDs: " + (list.empty() ? "none" : list),
                  "give its network interface an address: ip addr add ADDRESS/24 dev INTERFACE");
    return false;
  }
  const bool ipv4 = std::any_of(gids.begin(), gids.end(),
                                [](const Gid& gid) { return gid.is_v2() && gid.is_ipv4(); });
  if (ipv4) {
    report.Ok(check, "GIDs: " + list);
  } else {
    report.Warn(check, "no RoCE v2 GID with an IPv4 address; GIDs: " + list,
                "a link-local GID reaches the same segment only: ip addr add ADDRESS/24 dev " +
                    v2->interface);
  }
  const long long mtu = NumberOr(host.Line("/sys/class/net/" + v2->interface + "/mtu"), -1);
  if (mtu >= 0 && mtu < kFullMtu) {
    report.Warn(check,
                "MTU " + std::to_string(mtu) + " of " + v2->interface +
                    " allows RDMA packets of at most " + (mtu < 1100 ? "512" : "1024") + " bytes",
                "ip link set " + v2->interface + " mtu 9000 (on every host and switch between)");
  } else if (mtu >= 0) {
    report.Ok(check, "MTU " + std::to_string(mtu) + " of " + v2->interface);
  }
  return true;
}

// Returns whether the port can carry a run.
bool CheckPort(const Host& host, const std::string& device, const std::string& number, bool needed,
               Report& report) {
  const std::string port = PortPath(device, number);
  const std::string check = "verbs " + device + " port " + number;
  const std::string state = host.Line(port + "/state");          // "4: ACTIVE"
  const std::string physical = host.Line(port + "/phys_state");  // "5: LinkUp"
  const std::string layer = host.Line(port + "/link_layer");
  if (!state.starts_with("4:")) {
    const bool no_link = !physical.starts_with("5:");
    const std::string found = "state " + state + ", " + physical + ", " + layer;
    std::string cure = "check the cable";
    if (layer == "Ethernet") cure += ", or bring its interface up: ip link set INTERFACE up";
    if (layer == "InfiniBand" && !no_link) cure = "start a subnet manager (opensm) on the fabric";
    report.FailIf(needed, check, found, cure);
    return false;
  }
  report.Ok(check, "active, " + layer + ", " + host.Line(port + "/rate"));
  return layer != "Ethernet" || CheckRoceGids(host, port, check, needed, report);
}

// What --transport=rdma takes without further flags, asked of the transport itself.
void CheckChoice(bool needed, Report& report) {
  const Result<std::vector<RdmaPort>> ports = OpenPorts(RdmaOptions{});
  if (!ports) {
    report.FailIf(needed, "rdma choice", ports.error().message(), "cure what is named above");
    return;
  }
  for (const RdmaPort& port : *ports) {
    // Without a peer there is no route; a channel takes the GID of the address that leads to it.
    const RdmaGid& gid = port.GidFor("");
    report.Ok("rdma choice", port.device + " port " + std::to_string(port.port) + ", GID index " +
                                 std::to_string(gid.index) + " (" + GidText(gid.gid) +
                                 "), packets of " +
                                 std::to_string(MtuBytes(port.state.active_mtu)) + " bytes");
  }
}

}  // namespace

void CheckVerbs(const Host& host, const DoctorOptions& options, Report& report) {
  const bool needed = options.needs_rdma();
  const std::vector<std::string> devices = host.Names(kDevices);
  if (devices.empty()) {
    NoDevice(host, needed, report);
    return;
  }
  if (host.Names("/etc/libibverbs.d").empty()) {
    report.FailIf(needed, "verbs", "no user-space driver of libibverbs",
                  "apt-get install ibverbs-providers");
  }
  // One port that works is enough: what is wrong with the others is then a note.
  size_t usable = 0;
  for (const bool rehearsal : {true, false}) {
    Report ignored;
    Report& out = rehearsal ? ignored : report;
    const bool fail = needed && usable == 0;
    for (const std::string& device : devices) {
      const bool opens = CheckAccess(host, device, fail, out);
      for (const std::string& port : host.Names(std::string(kDevices) + "/" + device + "/ports")) {
        if (CheckPort(host, device, port, fail, out) && opens && rehearsal) ++usable;
      }
    }
  }
  if (host.real()) CheckChoice(needed, report);
}

}  // namespace slackline::transport
