"""The command line: `fleet run`, `fleet status`, `fleet stop`. Bad arguments exit with 2."""

import argparse
import sys
from pathlib import Path

from . import control, hosts, run, rundir

DESCRIPTION = """\
Starts, watches and stops a Slackline fleet: one coordinator, servers and workers.

  scripts/fleet run --servers 2 --workers 2 --staleness 3 --run-dir runs/x -- \\
      --model=gpt --data=data/text --steps=300
  scripts/fleet status --run-dir runs/x
  scripts/fleet stop --run-dir runs/x

What stands after -- goes to every worker (slackline-worker --help lists it).
"""

RUN_EPILOG = """\
The run directory gets summary.json, metrics.jsonl, status.json, sample.txt, checkpoints/ and
logs/<role>-<number>.log.

Exit code: 0 the job is complete, 1 it failed, 2 an argument is wrong (of fleet or of a worker),
130 interrupted. When fleet returns, every process has exited.

Lines that scripts may rely on (standard output, each begins with "fleet: "):
  run directory DIR
  coordinator HOST:PORT
  started ROLE-N (pid PID)
  waiting: WHAT
  step N/STEPS  loss L  T tokens/s  staleness p50 P max M  U MB/s up  D MB/s down  ETA M:SS
  ROLE-N died: HOW
  done: the job is complete
  failed: REASON
  stopped: REASON
"""

HOSTFILE_HELP = """\
a line a host: HOST [SLOTS] [ROLE], ROLE server, worker or any; # begins a comment. Processes start
over ssh (no password prompt), in the same directory with the same paths. The coordinator stays
here, at --coordinator-host"""


def checked(convert, good, expected):
    """A converter for argparse that says what was expected."""
    def check(text):
        try:
            value = convert(text)
        except ValueError:
            value = None
        if value is None or not good(value):
            raise argparse.ArgumentTypeError(f"{text}: expected {expected}")
        return value
    return check


positive = checked(int, lambda value: value >= 1, "a whole number above 0")
not_negative = checked(int, lambda value: value >= 0, "a whole number, 0 or more")
gigabits = checked(float, lambda value: 0 < value <= 1e6, "Gb/s, above 0")
seconds = checked(float, lambda value: 0 <= value < 1e9, "seconds, 0 or more")


def staleness(text):
    if text == "async":
        return text
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text}: expected 0 (BSP), a bound > 0 (SSP) or async")
    return text


class Parser(argparse.ArgumentParser):
    """A wrong argument is one line; argparse would print the usage before it."""

    def error(self, message):
        self.exit(2, f"{self.prog}: {message} (--help lists all)\n")


def make_parser():
    parser = Parser(prog="fleet", description=DESCRIPTION, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True, metavar="run|status|stop")
    add_run(commands)

    status = commands.add_parser("status", help="show how a run stands", allow_abbrev=False)
    status.add_argument("--run-dir", type=Path, required=True)
    status.add_argument("--json", action="store_true", help="the coordinator's page as it is")

    stop = commands.add_parser("stop", help="end a run", allow_abbrev=False)
    stop.add_argument("--run-dir", type=Path, required=True)
    stop.add_argument("--timeout", type=seconds, default=30, metavar="S",
                      help="how long to wait for it (default 30)")
    return parser


def add_run(commands):
    parser = commands.add_parser(
        "run", help="start a fleet and stay until it ends", allow_abbrev=False,
        usage="fleet run --run-dir DIR [options] [-- worker flags]", epilog=RUN_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run-dir", type=Path, required=True, metavar="DIR",
                        help="where everything about this run goes; new, or see --resume")
    parser.add_argument("--servers", type=positive, default=1, metavar="N",
                        help="server processes (default 1)")
    parser.add_argument("--workers", type=positive, default=1, metavar="N",
                        help="worker processes (default 1)")
    parser.add_argument("--shards", type=positive, default=1, metavar="N",
                        help="shards (threads) of each server (default 1)")
    parser.add_argument("--transport", default="auto", metavar="T",
                        help="of the data plane: auto (the default: shared memory on one host, "
                             "RDMA where both ends have it, else TCP), shm, rdma or tcp")
    parser.add_argument("--staleness", type=staleness, metavar="S",
                        help="0 (BSP), a bound > 0 (SSP) or async; given to the workers")

    parser.add_argument("--link-gbps", type=gigabits, metavar="G",
                        help="throttle every shard and worker to a link of G Gb/s, each way: what a "
                             "slow network would do (tcp only)")

    again = parser.add_argument_group("a directory that was used before")
    again = again.add_mutually_exclusive_group()
    again.add_argument("--resume", nargs="?", const="latest", metavar="CHECKPOINT",
                       help="go on from the run's latest checkpoint, or from this one")
    again.add_argument("--overwrite", action="store_true",
                       help="remove what an earlier run left in --run-dir")

    patience = parser.add_argument_group("patience and loss")
    patience.add_argument("--lease-ms", type=positive, default=5000, metavar="MS",
                          help="a process silent for so long is taken for dead (default 5000)")
    patience.add_argument("--start-timeout", type=seconds, default=60, metavar="S",
                          help="until servers, workers and shards are ready (default 60)")
    patience.add_argument("--timeout", type=seconds, default=0, metavar="S",
                          help="for the whole run; 0 (default): none")
    patience.add_argument("--restart-workers", type=not_negative, default=0, metavar="N",
                          help="start a replacement for a dead worker, N times in all (default 0)")

    where = parser.add_argument_group("where")
    where.add_argument("--build", default="release", metavar="PRESET",
                       help="programs of build/PRESET/bin, or a directory (default release)")
    where.add_argument("--hostfile", type=Path, metavar="FILE", help=HOSTFILE_HELP)
    where.add_argument("--coordinator-host", metavar="HOST",
                       help="this machine, as others reach it (default 127.0.0.1; with a hostfile "
                            "this machine's name)")
    where.add_argument("--ssh", default="ssh", metavar="COMMAND",
                       help="how to reach a host (default ssh)")


def main(arguments):
    worker_flags = []
    if "--" in arguments:
        cut = arguments.index("--")
        arguments, worker_flags = arguments[:cut], arguments[cut + 1:]
    options = make_parser().parse_args(arguments)
    try:
        if options.command == "status":
            return control.status(options.run_dir, options.json)
        if options.command == "stop":
            return control.stop(options.run_dir, options.timeout)
        return run.run(options, worker_flags)
    except (rundir.UsageError, hosts.UsageError) as error:
        print(f"fleet: {error}", file=sys.stderr)
        return 2
