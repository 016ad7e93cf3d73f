"""How a guest is started: under QEMU, or as a User-Mode Linux process."""

import os
import shutil
import socket
from pathlib import Path

from . import kernel, uml
from .errors import MissingError

# What the guest itself runs; the command has its own needs.
GUEST_PROGRAMS = (("ip", "iproute2"), ("rdma", "iproute2"), ("tc", "iproute2"),
                  ("busybox", "busybox-static"), ("stty", "coreutils"), ("mount", "mount"))
GUEST_LIBRARY = "ibverbs-providers"
# What costs an emulated boot time and is of no use in a machine that lives for minutes.
KERNEL_OPTIONS = ("console=ttyS0 quiet panic=-1 mitigations=off cryptomgr.notests audit=0 "
                  "apparmor=0 init_on_alloc=0 nokaslr no_timer_check")


def check_guest_tools():
    """The guest uses this host's tree: what is missing here is missing there."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    missing = {package for program, package in GUEST_PROGRAMS
               if shutil.which(program, path=path) is None}
    if not list(Path("/etc/libibverbs.d").glob("rxe.driver")):
        missing.add(GUEST_LIBRARY)
    if missing:
        packages = " ".join(sorted(missing))
        raise MissingError(f"missing for the guest; install with: apt-get install {packages}")


class Qemu:
    """A whole machine, emulated unless --accel=kvm: slow, and the kernel as users have it."""

    def __init__(self, options, say):
        self._program = shutil.which("qemu-system-x86_64")
        if self._program is None:
            raise MissingError("qemu-system-x86_64 is missing; install it with: apt-get install "
                               "qemu-system-x86")
        check_guest_tools()
        self._kernel, self._initrd = kernel.prepare(say)
        self._options = options
        self._wire = socket.socketpair() if options.machines == 2 else None

    def start(self, machine, results):
        options = self._options
        accel = "kvm" if options.accel == "kvm" else "tcg,thread=multi"
        command = [
            self._program, "-accel", accel, "-cpu", "max", "-smp", options.cpus,
            "-m", options.memory_mb, "-nodefaults", "-nographic", "-serial", "stdio",
            "-no-reboot", "-kernel", self._kernel, "-initrd", self._initrd,
            "-append", f"{KERNEL_OPTIONS} soft_roce={machine.number}",
            *share("/", "hostroot", "readonly=on,multidevs=remap"),
            *share(results, "results", "multidevs=remap")]
        fds = ()
        if self._wire:
            # The wire is a pair of sockets that both machines are born with: no port, no race.
            fds = (self._wire[machine.number].fileno(),)
            mac = f"52:54:00:77:00:0{machine.number}"
            # An empty ROM: the machine never boots from its card, and saves five seconds.
            command += ["-netdev", f"socket,id=wire,fd={fds[0]}",
                        "-device", f"virtio-net-pci,netdev=wire,romfile=,mac={mac}"]
        machine.start(command, fds)
        if self._wire:
            self._wire[machine.number].close()


def share(path, tag, more):
    """A directory of the host as the guest's 9p file system `tag`."""
    escaped = str(path).replace(",", ",,")
    return ["-fsdev", f"local,id={tag},path={escaped},security_model=none,{more}",
            "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]


class UserModeLinux:
    """A kernel that is an ordinary process: ten times faster, one CPU, one machine."""

    def __init__(self, options, _say):
        self._kernel = uml.find_kernel(options.uml_kernel)
        check_guest_tools()
        self._options = options

    def start(self, machine, results):
        for path in (results, Path(__file__).parent):
            if any(character.isspace() for character in str(path)):
                raise MissingError(f"{path}: the uml engine cannot do paths with blanks")
        with open(machine.directory / "output.log", "ab") as output:
            command = [
                self._kernel, f"mem={self._options.memory_mb}M", "rootfstype=hostfs", "rootflags=/",
                "ro", "con=null", "ssl=null", "con0=fd:0,fd:1", f"con1=null,fd:{output.fileno()}",
                "quiet", "panic=-1", "init=/bin/bash", "--",
                Path(__file__).parent / "guest.sh", results, machine.number]
            # Its memory is a file there; it has to be memory, not a disk.
            memory = {"TMPDIR": "/dev/shm"} if os.access("/dev/shm", os.W_OK) else None
            machine.start(command, (output.fileno(),), memory)
