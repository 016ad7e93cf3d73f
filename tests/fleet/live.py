"""What the live-fleet tests share: real processes on this host, started by scripts/fleet."""

import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("SLACKLINE_BIN", ROOT / "build" / "release" / "bin"))
FLEET = ROOT / "scripts" / "fleet"
TRANSPORT = os.environ.get("SLACKLINE_TRANSPORT", "auto")
# No single run of these tests takes a tenth of it; past it something hangs.
RUN_BOUND_S = 150

# A model of a few thousand parameters: a step takes about a millisecond.
TINY_MLP = ["--model=mlp", "--hidden=32", "--batch=16", "--optimizer=sgd", "--learning_rate=0.05",
            "--codec=fp32", "--seed=7"]


def make_images(directory, rows=400, pixels=64, classes=10):
    """A data directory of separable synthetic images, made by the users' own script."""
    rng = random.Random(5)
    centres = [[rng.randrange(256) for _ in range(pixels)] for _ in range(classes)]
    table = directory / "rows.csv"
    with table.open("w") as out:
        for row in range(rows):
            label = row % classes
            values = [min(255, max(0, value + rng.randrange(-40, 41))) for value in centres[label]]
            out.write(",".join(map(str, [label, *values])) + "\n")
    data = directory / "data"
    subprocess.run([ROOT / "scripts" / "prepare_data", "--images", table, "--out", data],
                   check=True, stdout=subprocess.DEVNULL, timeout=RUN_BOUND_S)
    return data


class LiveTest(unittest.TestCase):
    """One temporary directory with data for a class; every run directory lies in it."""

    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="slackline-fleet-")
        cls.directory = pathlib.Path(cls.temporary.name)
        cls.data = make_images(cls.directory)

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def command(self, name, servers, workers, staleness, arguments, options=()):
        return [sys.executable, str(FLEET), "run", "--servers", str(servers), "--workers",
                str(workers), "--transport", TRANSPORT, "--staleness", str(staleness), "--build",
                str(BIN), "--run-dir", str(self.directory / name), *options, "--", *TINY_MLP,
                f"--data={self.data}", *arguments]

    def start(self, *arguments, **options):
        process = subprocess.Popen(self.command(*arguments, **options), stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, start_new_session=True)
        self.addCleanup(self.end, process)
        return process

    def end(self, process):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=RUN_BOUND_S)
        process.stdout.close()

    def finish(self, process, expected=0):
        output, _ = process.communicate(timeout=RUN_BOUND_S)
        self.assertEqual(process.returncode, expected, output)
        return output

    def run_fleet(self, *arguments, **options):
        return self.finish(self.start(*arguments, **options))

    def summary(self, name):
        return json.loads((self.directory / name / "summary.json").read_text())

    def metrics(self, name):
        lines = (self.directory / name / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def status(self, name):
        """The coordinator's status page, or None before there is one."""
        try:
            return json.loads((self.directory / name / "status.json").read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return None

    def pids(self, name):
        """Every process that the fleet started."""
        fleet = json.loads((self.directory / name / "fleet.json").read_text())
        return [process["pid"] for process in fleet["processes"]]

    def step(self, name):
        page = self.status(name)
        return page["progress"]["step"] if page else -1

    def wait_until(self, what, condition, process, bound_s=RUN_BOUND_S):
        """Polls a condition of live processes; fails when the fleet ends or the bound passes."""
        deadline = time.monotonic() + bound_s
        while not condition():
            if process.poll() is not None:
                self.fail(f"the fleet ended before {what}:\n{process.communicate()[0]}")
            if time.monotonic() > deadline:
                self.fail(f"{bound_s} s passed without {what}")
            time.sleep(0.02)


def alive(pid):
    """Whether a process runs; a zombie does not."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def listening_ports(pid):
    """TCP ports on which a process listens."""
    inodes = set()
    for descriptor in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(descriptor)
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    ports = []
    for line in pathlib.Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and fields[9] in inodes:
            ports.append(int(fields[1].split(":")[1], 16))
    return ports


def send_bytes(port, payload):
    """Sends bytes to a local port and closes; the other side may close first."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        try:
            connection.sendall(payload)
        except OSError:
            pass
