"""The User-Mode Linux kernel with rdma_rxe: found, or built from Debian's kernel source."""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from . import kernel
from .errors import MissingError

FRAGMENT = Path(__file__).parent / "uml.config"
SOURCE_PACKAGE = "linux-source-6.1"
BUILD_TOOLS = (("make", "make"), ("gcc", "gcc"), ("flex", "flex"), ("bison", "bison"),
               ("bc", "bc"), ("xz", "xz-utils"), ("tar", "tar"))
BUILD_TIMEOUT_S = 3600
KERNEL_VARIABLE = "SLACKLINE_UML_KERNEL"


def built_kernel():
    return kernel.cache_directory() / "uml" / "linux"


def find_kernel(given):
    """--uml-kernel, or the environment's, or the one that was built here."""
    path = given or os.environ.get(KERNEL_VARIABLE)
    if path:
        if not os.access(path, os.X_OK):
            raise MissingError(f"{path}: no program there that could be the User-Mode Linux kernel")
        return Path(path).resolve()
    if not built_kernel().exists():
        raise MissingError(f"no User-Mode Linux kernel: build it (7 minutes on two cores) with: "
                           f"scripts/soft_roce build-uml; or name one with --uml-kernel or "
                           f"{KERNEL_VARIABLE}. Debian's own has no RDMA")
    return built_kernel()


def build(jobs, say):
    """Builds the kernel into the cache."""
    missing = [package for program, package in BUILD_TOOLS if shutil.which(program) is None]
    if missing:
        raise MissingError(f"missing; install with: apt-get install {' '.join(missing)}")
    target = built_kernel()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="build-", dir=target.parent) as temporary:
        directory = Path(temporary)
        say(f"fetching {SOURCE_PACKAGE} (140 MB; not installed)")
        tree = kernel.download(SOURCE_PACKAGE, directory)
        source = directory / "source"
        source.mkdir()
        say("unpacking")
        run(["tar", "-xf", next(tree.glob("usr/src/linux-source-*.tar.xz")), "-C", source,
             "--strip-components=1"], directory)
        make = ["make", "-C", source, "ARCH=um", f"-j{jobs}"]
        run([*make, f"KCONFIG_ALLCONFIG={FRAGMENT}", "allnoconfig"], directory)
        check_config((source / ".config").read_text())
        say("building (7 minutes on two cores)")
        run([*make, "linux"], directory)
        run(["strip", source / "linux"], directory)
        os.replace(source / "linux", target)
    say(f"built {target}")


def check_config(config):
    """Kconfig drops silently what depends on something that is off."""
    got = set(config.splitlines())
    for line in FRAGMENT.read_text().splitlines():
        if re.fullmatch(r"CONFIG_\w+=[ym]", line) and line not in got:
            raise MissingError(f"this kernel source does not take {line}; {SOURCE_PACKAGE} does")


def run(command, directory):
    log = directory / "build.log"
    with open(log, "wb") as out:
        done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL,
                              stdout=out, stderr=out, timeout=BUILD_TIMEOUT_S, check=False)
    if done.returncode != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
        raise MissingError(f"{Path(command[0]).name} failed with exit code {done.returncode}:\n"
                           f"{tail}")
