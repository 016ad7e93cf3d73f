"""Two machines on one wire, run in machine 0: workers here, the server on machine 1.

The cases are in the order of their names; the last one loses machine 1. Machine 1 runs remote.py;
scripts/soft_roce cuts the link and takes the power when the files CUT and KILL appear in the
results directory.
"""

import json
import re
import subprocess
import time
import unittest

from guest import RESULTS, ROOT, GuestTest

REMOTE_PORT = 2200
CUT, KILL = RESULTS / "cut", RESULTS / "kill"
# What the test of a death gives the survivors beyond their lease: an emulated machine stalls.
LEASE_MS = 5000
GRACE_S = 45


class TwoMachines(GuestTest):
    @classmethod
    def setUpClass(cls):
        cls.hosts = RESULTS / "hosts"
        cls.hosts.write_text("127.0.0.1 2 worker\nmachine1 1 server\n")
        for path in (CUT, KILL):
            path.unlink(missing_ok=True)
        # Machine 1 waits for commands: without its end there would be none to the run.
        cls.addClassCleanup(KILL.touch)

    def across(self, name, lease_ms, *worker):
        ssh = f"python3 {ROOT / 'tests' / 'rdma' / 'remote.py'} {REMOTE_PORT}"
        return self.fleet(name, "--servers", "1", "--workers", "2", "--staleness", "0",
                          "--hostfile", self.hosts, "--coordinator-host", "machine0", "--ssh", ssh,
                          "--lease-ms", str(lease_ms), "--start-timeout", "240",
                          worker=worker)

    def step(self, name):
        try:
            page = json.loads((RESULTS / name / "status.json").read_text())
            return page["progress"]["step"]
        except (OSError, ValueError, KeyError):
            return -1

    def test_1_loss_changes_no_bit(self):
        arguments = ("--gradients=float", "--steps=30", "--floats=30000")
        self.finish("clean", self.across("clean", 30000, *arguments))
        subprocess.run(["tc", "qdisc", "add", "dev", "eth0", "root", "netem", "loss", "1%"],
                       check=True)
        try:
            self.finish("lossy", self.across("lossy", 30000, *arguments))
            lost = subprocess.run(["tc", "-s", "qdisc", "show", "dev", "eth0"], check=True,
                                  capture_output=True, text=True).stdout
        finally:
            subprocess.run(["tc", "qdisc", "del", "dev", "eth0", "root"], check=True)
        self.assertNotIn("dropped 0,", lost)  # Else nothing was tried.
        self.assertEqual(self.weights("lossy"), self.weights("clean"))
        print("loss of 1 %: weights", self.weights("lossy"), "as without;", re.search(r"dropped \d+", lost).group())

    def test_2_a_cut_link_that_comes_back_loses_and_doubles_nothing(self):
        process = self.across("cut-link", 120000, "--gradients=integer", "--steps=400",
                              "--floats=30000", "--stall_s=200")
        self.wait_until("a few steps", lambda: self.step("cut-link") >= 5, "cut-link", process)
        before = self.step("cut-link")
        CUT.touch()
        self.finish("cut-link", process)
        self.assertLess(before, 390, "the link was cut after the training")
        for rank in range(2):
            self.assertIn("sums exact", self.log("cut-link", f"worker-{rank}"))
        print("cut at step", before, "and back: sums exact")

    def test_3_a_server_that_dies_is_told_within_the_lease(self):
        process = self.across("killed", LEASE_MS, "--gradients=integer", "--steps=100000",
                              "--floats=30000")
        self.wait_until("a few steps", lambda: self.step("killed") >= 5, "killed", process)
        begin = time.monotonic()
        KILL.touch()
        self.finish("killed", process, expected=1)
        took_s = time.monotonic() - begin
        self.assertLess(took_s, LEASE_MS / 1000 + GRACE_S, self.everything("killed"))
        self.assertRegex(self.output("killed"), r"failed: .*shard")
        for rank in range(2):
            self.assertRegex(self.log("killed", f"worker-{rank}"), "shard|server")
        print(f"a server's machine lost its power: the fleet ended {took_s:.1f} s later")


if __name__ == "__main__":
    unittest.main(verbosity=2)
