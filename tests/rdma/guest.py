"""What the tests in the Soft-RoCE machines share."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("SLACKLINE_BUILD", ROOT / "build" / "release"))
RESULTS = pathlib.Path(os.environ["SOFT_ROCE_RESULTS"])
FLEET = ROOT / "scripts" / "fleet"
# An emulated machine on a host with other work: bounds against hanging, not expectations.
RUN_BOUND_S = 300


def programs():
    """A directory of fleet programs with sum_worker in the trainer's place."""
    directory = RESULTS / "programs"
    directory.mkdir(exist_ok=True)
    for name, target in (("slackline-coordinator", BUILD / "bin" / "slackline-coordinator"),
                         ("slackline-server", BUILD / "bin" / "slackline-server"),
                         ("slackline-worker", BUILD / "tests" / "sum_worker")):
        link = directory / name
        link.unlink(missing_ok=True)
        link.symlink_to(target)
    return directory


class GuestTest(unittest.TestCase):
    transport = os.environ.get("SLACKLINE_TRANSPORT", "rdma")

    def fleet(self, name, *options, worker=(), build=None):
        """Starts a fleet in RESULTS/NAME; its output goes to a file beside it."""
        shutil.rmtree(RESULTS / name, ignore_errors=True)  # An earlier run's status is none.
        command = [sys.executable, FLEET, "run", "--run-dir", RESULTS / name,
                   "--transport", self.transport, "--build", build or programs(), *options, "--",
                   *worker]
        with open(RESULTS / f"{name}.log", "w") as log:
            process = subprocess.Popen([str(word) for word in command], stdout=log,
                                       stderr=subprocess.STDOUT)
        self.addCleanup(process.kill)
        return process

    def finish(self, name, process, expected=0):
        try:
            code = process.wait(RUN_BOUND_S)
        except subprocess.TimeoutExpired:
            self.fail(f"{name} hangs:\n{self.output(name)}")
        self.assertEqual(code, expected, self.everything(name))

    def output(self, name):
        return (RESULTS / f"{name}.log").read_text(errors="replace")

    def log(self, name, process):
        path = RESULTS / name / "logs" / f"{process}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def everything(self, name):
        logs = sorted((RESULTS / name / "logs").glob("*.log"))
        return self.output(name) + "".join(
            f"\n---- {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in logs)

    def weights(self, name):
        """The hash of the weights that every worker of a run ended with."""
        hashes = {match.group(1) for rank in range(2) for match in
                  re.finditer(r"^weights (\w+)", self.log(name, f"worker-{rank}"), re.M)}
        self.assertEqual(len(hashes), 1, self.everything(name))
        return hashes.pop()

    def wait_until(self, what, condition, name, process, bound_s=RUN_BOUND_S):
        deadline = time.monotonic() + bound_s
        while not condition():
            if process.poll() is not None:
                self.fail(f"{name} ended before {what}:\n{self.everything(name)}")
            if time.monotonic() > deadline:
                self.fail(f"{bound_s} s without {what}:\n{self.everything(name)}")
            time.sleep(0.1)
