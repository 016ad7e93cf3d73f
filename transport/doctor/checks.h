// The checks of one host. Each adds its findings to the report, with the command that cures a
// fault; whether a fault is a failure depends on the transport that was chosen.
// Threading: pure functions of the system.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "transport/doctor/host.h"
#include "transport/doctor/report.h"

namespace slackline::transport {

struct DoctorOptions {
  std::string transport = "auto";  // tcp, shm, rdma or auto.
  // What a process will register for RDMA or hold in shared memory.
  uint64_t memory_bytes = uint64_t{1} << 30;
  // Fixed ports that a run shall listen on, first and last; none: {0, 0}.
  std::pair<uint16_t, uint16_t> ports{0, 0};

  bool needs_rdma() const { return transport == "rdma"; }
  bool may_use_rdma() const { return transport == "rdma" || transport == "auto"; }
};

// Kernel, and the versions of what two hosts must have in common.
void CheckVersions(const Host& host, Report& report);
// Devices, ports, link layers, GIDs, MTU, user-space access.
void CheckVerbs(const Host& host, const DoctorOptions& options, Report& report);
// Locked memory, huge pages, shared memory.
void CheckMemory(const Host& host, const DoctorOptions& options, Report& report);
// GPUs, their access by a NIC (peer memory or dmabuf), NCCL.
void CheckGpus(const Host& host, const DoctorOptions& options, Report& report);
// Ports that are free, and which a firewall must let through.
void CheckPorts(const Host& host, const DoctorOptions& options, Report& report);

// All of the above.
Report CheckHost(const Host& host, const DoctorOptions& options);

}  // namespace slackline::transport
