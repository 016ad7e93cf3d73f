#include <charconv>
#include <string>

#include "common/file.h"
#include "transport/doctor/checks.h"

namespace slackline::transport {
namespace {

constexpr int kCapIpcLock = 14;  // capabilities(7): CAP_IPC_LOCK.

std::string MiB(uint64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

bool MayLockWithoutLimit(const Host& host) {
  const std::string text = host.Field("/proc/self/status", "CapEff:");
  uint64_t mask = 0;
  std::from_chars(text.data(), text.data() + text.size(), mask, 16);
  return ((mask >> kCapIpcLock) & 1) != 0;
}

void CheckMemlock(const Host& host, const DoctorOptions& options, Report& report) {
  const std::string limits = host.Field("/proc/self/limits", "Max locked memory");
  if (limits.starts_with("unlimited") || MayLockWithoutLimit(host)) {
    report.Ok("memlock", "no limit on locked memory");
    return;
  }
  const long long limit = NumberOr(limits, -1);
  if (limit < 0) {
    report.Note("memlock", "the limit on locked memory cannot be read");
  } else if (static_cast<uint64_t>(limit) >= options.memory_bytes) {
    report.Ok("memlock", MiB(static_cast<uint64_t>(limit)) + " may be locked");
  } else {
    report.FailIf(options.needs_rdma(), "memlock",
                  MiB(static_cast<uint64_t>(limit)) + " may be locked, RDMA memory of " +
                      MiB(options.memory_bytes) + " is to be registered",
                  "ulimit -l unlimited; for good: a line '* - memlock unlimited' in "
                  "/etc/security/limits.d/rdma.conf, LimitMEMLOCK=infinity in a systemd unit, "
                  "--ulimit memlock=-1 for a container");
  }
}

void CheckHugePages(const Host& host, const DoctorOptions& options, Report& report) {
  const long long free = NumberOr(host.Field("/proc/meminfo", "HugePages_Free:"), 0);
  const long long page_kib = NumberOr(host.Field("/proc/meminfo", "Hugepagesize:"), 0);
  const std::string transparent = host.Line("/sys/kernel/mm/transparent_hugepage/enabled");
  if (free > 0) {
    report.Ok("huge pages",
              std::to_string(free) + " of " + std::to_string(page_kib) + " KiB are free");
  } else if (transparent.find("[never]") == std::string::npos && !transparent.empty()) {
    report.Ok("huge pages", "none set aside; transparent ones: " + transparent);
  } else if (options.may_use_rdma()) {
    report.Warn("huge pages", "none: a NIC needs 512 times the page entries",
                "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled");
  } else {
    report.Note("huge pages", "none");
  }
}

void CheckSharedMemory(const Host& host, const DoctorOptions& options, Report& report) {
  if (options.transport != "shm" && options.transport != "auto") return;
  const Result<uint64_t> free = FreeBytes(host.Path("/dev/shm"));
  if (!free) {
    report.FailIf(options.transport == "shm", "shared memory", free.error().message(),
                  "mount -t tmpfs tmpfs /dev/shm");
  } else if (*free < options.memory_bytes) {
    report.FailIf(options.transport == "shm", "shared memory",
                  MiB(*free) + " are free, " + MiB(options.memory_bytes) + " are wanted",
                  "mount -o remount,size=50% /dev/shm; --shm-size=8g for a container");
  } else {
    report.Ok("shared memory", MiB(*free) + " are free");
  }
}

}  // namespace

void CheckMemory(const Host& host, const DoctorOptions& options, Report& report) {
  CheckMemlock(host, options, report);
  CheckHugePages(host, options, report);
  CheckSharedMemory(host, options, report);
}

}  // namespace slackline::transport
