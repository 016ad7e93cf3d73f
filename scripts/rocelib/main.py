"""The command line. Bad arguments exit with 2."""

import argparse
import re
import shlex
import sys
from pathlib import Path

from . import engines, run, uml
from .errors import MissingError, UsageError

EXIT_MISSING = 77

DESCRIPTION = """\
Runs a command where there is an RDMA device, without a NIC: in one or two virtual machines that use
this host's file tree (read-only) and have a Soft-RoCE device (the kernel's rdma_rxe).

  scripts/soft_roce -- ibv_devinfo -v
  scripts/soft_roce --machines 2 --loss 1% --second 'ib_write_bw' -- \\
      bash -c 'sleep 2; ib_write_bw $SOFT_ROCE_PEER'
  scripts/soft_roce --engine uml -- ctest --test-dir build/release -L rdma
  scripts/soft_roce build-uml
  scripts/soft_roce prepare         # says what is missing; fetches the kernel

The command runs as root in this directory. It can write to --results, which lies in the same place
inside, and to /tmp, /run and /dev/shm, which vanish. Its environment has
  SOFT_ROCE_MACHINE, SOFT_ROCE_MACHINES   0 or 1; how many there are
  SOFT_ROCE_ADDRESS, SOFT_ROCE_PEER       this machine's and the other's IPv4 address
  SOFT_ROCE_RESULTS                       the results directory, shared by the machines
The RDMA device is rxe0; GID index 1 is RoCE v2 with the IPv4 address. The machines are also
"machine0" and "machine1" by name. WHEN is seconds after the commands began (5s, 0.5s), or a file
name: the moment when a file of that name appears in the results directory.
"""

EPILOG = """\
The results directory gets machine-N/output.log, machine-N/exit_code, machine-N/console.log and what
the command writes there.

Exit code: the command's; with two machines the first that is not 0. 124 it ran past --timeout, 125
a machine did not start or died by itself, 2 an argument is wrong, 77 something is missing on this
host (the message says what installs it).
"""


def duration(text):
    match = re.fullmatch(r"(\d+(?:\.\d+)?)s?", text)
    if not match or not 0 < float(match.group(1)) <= 86400:
        raise argparse.ArgumentTypeError(f"{text}: expected seconds above 0, such as 5s")
    return float(match.group(1))


def when(text):
    """Seconds (as text), or the name of a file in the results directory."""
    if text[:1].isdigit():
        return f"{duration(text):g}"
    if not re.fullmatch(r"[A-Za-z_][\w.-]*", text):
        raise argparse.ArgumentTypeError(f"{text}: expected seconds such as 5s, or a file name")
    return text


def loss(text):
    match = re.fullmatch(r"(\d+(?:\.\d+)?)%", text)
    if not match or not 0 <= float(match.group(1)) <= 100:
        raise argparse.ArgumentTypeError(f"{text}: expected a percentage such as 1%")
    return text


def whole(low, high):
    def check(text):
        if not text.isdecimal() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text}: expected a whole number, {low} to {high}")
        return int(text)
    return check


class Parser(argparse.ArgumentParser):
    """A wrong argument is one line; argparse would print the usage before it."""

    def error(self, message):
        self.exit(2, f"{self.prog}: {message} (--help lists all)\n")


def make_parser():
    usage = ("soft_roce [options] -- COMMAND...\n       soft_roce prepare [options]\n"
             "       soft_roce build-uml [--jobs N]")
    parser = Parser(prog="soft_roce", usage=usage, description=DESCRIPTION, epilog=EPILOG,
                    allow_abbrev=False,
                    formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", type=whole(1, 2), default=1, metavar="N",
                        help="1 (default), or 2 on one wire")
    parser.add_argument("--second", metavar="SHELL",
                        help="what machine 1 runs (by bash) instead of the command")
    parser.add_argument("--results", type=Path, default=Path("build/soft_roce"), metavar="DIR",
                        help="made if it is not there (default build/soft_roce)")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE",
                        help="a variable for the command; may be repeated")
    parser.add_argument("--timeout", type=duration, default=600, metavar="S",
                        help="for the commands, after the machines are up (default 600s)")

    faults = parser.add_argument_group("faults, with --machines 2")
    faults.add_argument("--loss", type=loss, metavar="P%",
                        help="both machines lose so many of the packets that they send")
    faults.add_argument("--cut-after", type=when, metavar="WHEN",
                        help="machine 1 takes its link down")
    faults.add_argument("--cut-for", type=duration, default=10, metavar="S",
                        help="and up again after so long (default 10s)")
    faults.add_argument("--kill-after", type=when, metavar="WHEN",
                        help="machine 1 loses its power; its exit code counts no more")

    machine = parser.add_argument_group("the machine")
    machine.add_argument("--engine", choices=("qemu", "uml"), default="qemu",
                         help="qemu (default): emulated, Debian's own kernel. uml: User-Mode "
                              "Linux, ten times faster, one CPU, one machine, see build-uml")
    machine.add_argument("--accel", choices=("tcg", "kvm"), default="tcg",
                         help="qemu: emulation (default), or the processor's virtualization")
    machine.add_argument("--uml-kernel", metavar="FILE",
                         help=f"default: ${uml.KERNEL_VARIABLE}, or the one that build-uml made")
    machine.add_argument("--cpus", type=whole(1, 64), default=2, metavar="N",
                         help="of each machine, qemu only (default 2)")
    machine.add_argument("--memory-mb", type=whole(256, 1048576), metavar="MB",
                         help="of each machine (default 2048, uml 3072)")
    return parser


def make_build_parser():
    parser = Parser(prog="soft_roce build-uml", allow_abbrev=False,
                    description="Builds the User-Mode Linux kernel of --engine uml from Debian's "
                                "linux-source-6.1 into the cache directory.")
    parser.add_argument("--jobs", type=whole(1, 1024), default=2, metavar="N")
    return parser


def check(options, command):
    if not command:
        raise UsageError("no command; it stands after -- (--help has examples)")
    if options.machines == 1:
        for name in ("second", "loss", "cut_after", "kill_after"):
            if getattr(options, name):
                raise UsageError(f"--{name.replace('_', '-')} needs --machines 2")
    if options.machines == 2 and options.engine == "uml":
        raise UsageError("--machines 2 needs --engine qemu: UML's network device cannot carry rxe")
    for variable in options.env:
        if not re.match(r"[A-Za-z_]\w*=", variable):
            raise UsageError(f"--env {variable}: expected NAME=VALUE")
    if options.memory_mb is None:
        options.memory_mb = 3072 if options.engine == "uml" else 2048


def say(text):
    print(f"soft_roce: {text}", flush=True)


def main(arguments):
    command = []
    if "--" in arguments:
        cut = arguments.index("--")
        arguments, command = arguments[:cut], arguments[cut + 1:]
    try:
        if arguments[:1] == ["build-uml"]:
            uml.build(make_build_parser().parse_args(arguments[1:]).jobs, say)
            return 0
        prepare_only = arguments[:1] == ["prepare"]
        options = make_parser().parse_args(arguments[1:] if prepare_only else arguments)
        check(options, command or (["true"] if prepare_only else []))
        engine = (engines.UserModeLinux if options.engine == "uml" else engines.Qemu)(options, say)
        return 0 if prepare_only else run.run(options, shlex.join(command), engine, say)
    except UsageError as error:
        print(f"soft_roce: {error}", file=sys.stderr)
        return 2
    except MissingError as error:
        print(f"soft_roce: {error}", file=sys.stderr)
        return EXIT_MISSING
