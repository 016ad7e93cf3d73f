#include <dlfcn.h>

#include <memory>
#include <optional>
#include <string>

#include "transport/doctor/checks.h"

namespace slackline::transport {
namespace {

constexpr char kDriverVersion[] = "/proc/driver/nvidia/version";

size_t CountGpus(const Host& host) {
  constexpr char kPci[] = "/sys/bus/pci/devices/";
  size_t count = 0;
  for (const std::string& card : host.Names(kPci)) {
    const std::string kind = host.Line(kPci + card + "/class");
    const bool graphics = kind.starts_with("0x0300") || kind.starts_with("0x0302");
    count += graphics && host.Line(kPci + card + "/vendor") == "0x10de" ? 1 : 0;
  }
  return count;
}

// Whether a kernel's release ("6.1.0-57-amd64") is at least major.minor.
bool IsAtLeast(const std::string& release, int major, int minor) {
  const size_t dot = release.find('.');
  const long long first = NumberOr(release, 0);
  const long long second = dot == std::string::npos ? 0 : NumberOr(release.substr(dot + 1), 0);
  return first > major || (first == major && second >= minor);
}

// How a NIC may reach GPU memory: the peer-memory module, or dmabuf, which Linux has since 5.12 and
// of NVIDIA's drivers the open kernel modules.
void CheckPeerMemory(const Host& host, const DoctorOptions& options, Report& report) {
  if (host.Exists("/sys/module/nvidia_peermem")) {
    report.Ok("gpu memory", "reachable for NICs: nvidia_peermem is loaded");
    return;
  }
  const std::string driver = host.Text(kDriverVersion).value_or("");
  const bool open = driver.find("Open Kernel Module") != std::string::npos;
  const std::string release = host.Line("/proc/sys/kernel/osrelease");
  if (open && IsAtLeast(release, 5, 12)) {
    report.Ok("gpu memory", "reachable for NICs: dmabuf (open driver, Linux " + release + ")");
  } else if (options.may_use_rdma()) {
    report.Warn("gpu memory", "not reachable for NICs: every byte goes through host memory",
                "modprobe nvidia_peermem, or install NVIDIA's open kernel modules on Linux 5.12+");
  } else {
    report.Note("gpu memory", "not reachable for NICs");
  }
}

// "2.18.5", if the library is there.
std::optional<std::string> NcclVersion() {
  const std::unique_ptr<void, int (*)(void*)> library(dlopen("libnccl.so.2", RTLD_NOW), dlclose);
  if (!library) return std::nullopt;
  // Of NCCL's public interface: ncclResult_t ncclGetVersion(int* version); 0 is success.
  const auto get = reinterpret_cast<int (*)(int*)>(dlsym(library.get(), "ncclGetVersion"));
  int version = 0;
  if (get == nullptr || get(&version) != 0) return "unknown";
  // 2.9 and later: major * 10000 + minor * 100 + patch.
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

}  // namespace

void CheckGpus(const Host& host, const DoctorOptions& options, Report& report) {
  const size_t gpus = CountGpus(host);
  if (gpus == 0) {
    report.Note("gpu", "none: workers compute on the processor");
    return;
  }
  if (!host.Exists(kDriverVersion)) {
    report.Warn("gpu", std::to_string(gpus) + " NVIDIA GPUs without a driver",
                "install the driver (nvidia-smi must list them); until then workers compute on the "
                "processor");
    return;
  }
  report.Ok("gpu", std::to_string(gpus) + " NVIDIA GPUs, " + host.Line(kDriverVersion));
  CheckPeerMemory(host, options, report);
  if (!host.real()) return;
  if (const std::optional<std::string> version = NcclVersion()) {
    report.Ok("nccl", "version " + *version);
  } else {
    report.Warn("nccl", "libnccl.so.2 cannot be loaded: no local groups over GPUs",
                "install libnccl2, or add its directory to LD_LIBRARY_PATH");
  }
}

}  // namespace slackline::transport
