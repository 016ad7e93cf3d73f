"""The guest's kernel and its initial RAM disk: fetched once, kept in a cache directory.

The kernel is the package that Debian's linux-image-amd64 depends on, unpacked and not installed.
Of its modules only those that the machine loads are kept.
"""

import gzip
import os
import re
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

from .errors import MissingError

META_PACKAGE = "linux-image-amd64"
# In the order in which they load. crc32_generic is what rxe computes its checksums with: without
# it a device cannot be added, and the message does not say why.
MODULES = (
    "virtio_ring", "virtio", "virtio_pci_modern_dev", "virtio_pci_legacy_dev", "virtio_pci",
    "netfs", "fscache", "9pnet", "9pnet_virtio", "9p",
    "crc32_generic", "udp_tunnel", "ip6_udp_tunnel", "ib_core", "ib_uverbs", "rdma_rxe",
    "configfs", "ib_cm", "iw_cm", "rdma_cm", "rdma_ucm", "dummy",
    "failover", "net_failover", "virtio_net", "sch_netem")
DOWNLOAD_TIMEOUT_S = 600

INIT = """\
#!/bin/busybox sh
# Mounts the host's root and goes on there.
/bin/busybox mkdir -p /proc /share /host
/bin/busybox mount -t proc proc /proc
for module in $(/bin/busybox cat /modules/order); do
  /bin/busybox insmod "/modules/$module.ko" || echo "soft_roce: $module does not load"
done
nine=trans=virtio,version=9p2000.L,msize=524288
# The tree does not change under a running guest; results are seen at once on both sides.
/bin/busybox mount -t 9p -o "ro,$nine,cache=loose" hostroot /host
/bin/busybox mount -t 9p -o "$nine,cache=mmap" results /share
results=$(/bin/busybox cat /share/.results)
/bin/busybox mount -o move /share "/host$results"
machine=$(/bin/busybox sed -n 's/.*soft_roce=\\([0-9]\\).*/\\1/p' /proc/cmdline)
guest=$(/bin/busybox cat "/host$results/.guest")
exec /bin/busybox chroot /host /bin/bash "$guest" "$results" "$machine"
"""


def cache_directory():
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "slackline" / "soft_roce"


def package_of(meta_package):
    """The package that brings the kernel, or None where apt does not know."""
    try:
        listed = subprocess.run(["apt-cache", "depends", meta_package], capture_output=True,
                                text=True, timeout=DOWNLOAD_TIMEOUT_S, check=False)
    except FileNotFoundError:
        return None
    match = re.search(r"Depends: (linux-image-\S+)", listed.stdout)
    return match.group(1) if match else None


def prepare(say):
    """Returns the paths of kernel and initial RAM disk; fetches what is not in the cache."""
    package = package_of(META_PACKAGE)
    cache = cache_directory()
    if package is None:
        cached = sorted(cache.glob("linux-image-*/vmlinuz"))
        if not cached:
            raise MissingError(f"apt does not know {META_PACKAGE}, whose kernel the machine boots; "
                               "on Debian run: apt-get update")
        directory = cached[-1].parent
    else:
        directory = cache / package
        if not (directory / "vmlinuz").exists():
            say(f"fetching {package} (70 MB, once; not installed)")
            fetch(package, directory)
    return directory / "vmlinuz", initial_ram_disk(directory)


def download(package, into):
    """Downloads a package into a directory and unpacks it there; returns the unpacked tree."""
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            raise MissingError(f"{program} is needed to fetch {package}: this works on Debian")
    fetched = subprocess.run(["apt-get", "-q", "download", package], cwd=into, check=False,
                             capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S)
    archives = list(into.glob("*.deb"))
    if fetched.returncode != 0 or len(archives) != 1:
        lines = fetched.stderr.strip().splitlines() or ["no reason given"]
        raise MissingError(f"cannot download {package}: {lines[-1]} (run: apt-get update)")
    tree = into / "tree"
    subprocess.run(["dpkg-deb", "-x", archives[0], tree], check=True, timeout=DOWNLOAD_TIMEOUT_S)
    archives[0].unlink()
    return tree


def fetch(package, directory):
    directory.parent.mkdir(parents=True, exist_ok=True)
    # Beside the final place, so that the rename at the end is one step.
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=directory.parent) as temporary:
        tree = download(package, Path(temporary))
        kept = Path(temporary) / "kept"
        kept.mkdir()
        kernels = list(tree.glob("boot/vmlinuz-*"))
        files = {path.name.split(".ko")[0]: path for path in tree.rglob("*.ko*")}
        builtin = " ".join(path.read_text() for path in tree.rglob("modules.builtin"))
        order = []
        for name in MODULES:
            if name in files:
                if files[name].suffix != ".ko":
                    raise MissingError(f"{package} has compressed modules; Debian 12's are not")
                shutil.copy(files[name], kept / f"{name}.ko")
                order.append(name)
            elif f"/{name}.ko" not in builtin.replace("-", "_"):
                raise MissingError(f"{package} has no module {name}; the -cloud- kernels, for one, "
                                   "have no rdma_rxe")
        (kept / "order").write_text("\n".join(order) + "\n")
        shutil.copy(kernels[0], kept / "vmlinuz")
        try:
            kept.rename(directory)
        except OSError:
            if not (directory / "vmlinuz").exists():  # Else another run was faster.
                raise


def initial_ram_disk(directory):
    """Writes DIRECTORY/initrd.gz anew: it is small, and cannot be out of date."""
    busybox = shutil.which("busybox", path=os.environ.get("PATH", "") + ":/bin:/usr/bin")
    if busybox is None:
        raise MissingError("busybox is missing; install it with: apt-get install busybox-static")
    program = Path(busybox).read_bytes()
    if is_dynamic(program):
        raise MissingError("busybox is not static, as the guest needs it; install it with: apt-get "
                           "install busybox-static")
    entries = [("bin", None), ("dev", None), ("modules", None), ("bin/busybox", program),
               ("init", INIT.encode())]
    entries += [(f"modules/{path.name}", path.read_bytes())
                for path in sorted(directory.glob("*.ko")) + [directory / "order"]]
    temporary = directory / f"initrd.{os.getpid()}"
    temporary.write_bytes(gzip.compress(cpio(entries), compresslevel=1))
    os.replace(temporary, directory / "initrd.gz")
    return directory / "initrd.gz"


def is_dynamic(program):
    """Whether an ELF program names a loader (has a PT_INTERP header)."""
    offset = int.from_bytes(program[32:40], "little")
    size, count = struct.unpack_from("<HH", program, 54)
    return any(program[offset + size * i:offset + size * i + 4] == b"\3\0\0\0"
               for i in range(count))


def cpio(entries):
    """An archive in the "newc" format: (name, content; None: a directory) each, executable."""
    out = bytearray()
    for inode, (name, content) in enumerate([*entries, ("TRAILER!!!", b"")], 1):
        mode = 0o040755 if content is None else 0o100755
        data = content or b""
        encoded = name.encode() + b"\0"
        fields = (inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(encoded), 0)
        out += b"070701" + b"".join(b"%08x" % field for field in fields) + encoded
        out += b"\0" * (-len(out) % 4) + data
        out += b"\0" * (-len(out) % 4)
    return bytes(out)
