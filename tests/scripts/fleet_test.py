"""scripts/fleet with stand-ins for the programs: what it starts, tells, ends and leaves behind."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
ROOT = Path(__file__).resolve().parent.parent.parent
FLEET = ROOT / "scripts" / "fleet"
FAKE = Path(__file__).resolve().parent / "fake_program.py"
BOUND_S = 60
sys.path.insert(0, str(ROOT / "scripts"))

from fleetlib import hosts, progress  # noqa: E402  (the path has to be set first)


def alive(pid):
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat[stat.rindex(")") + 2] != "Z"


class FleetTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.dir = Path(temporary.name)
        self.bin = self.dir / "bin"
        self.bin.mkdir()
        for name in ("coordinator", "server", "worker"):
            (self.bin / f"slackline-{name}").symlink_to(FAKE)
        self.run_dir = self.dir / "run"

    def scenario(self, **entries):
        entries = {name.replace("_", "-"): entry for name, entry in entries.items()}
        (self.bin / "scenario.json").write_text(json.dumps(entries))

    def command(self, *more):
        return [str(FLEET), "run", "--build", f"{self.bin}/", "--run-dir", str(self.run_dir), *more]

    def run_fleet(self, *more, code=0):
        done = subprocess.run(self.command(*more), capture_output=True, text=True, timeout=BOUND_S)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        for line in done.stdout.splitlines():
            if line.startswith("fleet: started"):
                pid = int(line.split("(pid ")[1].split(")")[0])
                self.assertFalse(alive(pid), f"left running: {line}")
        return done

    def start_fleet(self, *more):
        fleet = subprocess.Popen(self.command(*more), stdout=subprocess.PIPE, text=True)
        self.addCleanup(fleet.stdout.close)
        self.addCleanup(fleet.wait)
        self.addCleanup(fleet.kill)
        return fleet

    def read_until(self, fleet, text):
        seen = []
        for line in fleet.stdout:
            seen.append(line)
            if text in line:
                return seen
        self.fail(f"the fleet ended without '{text}': {''.join(seen)}")

    def test_a_job_that_ends_well(self):
        self.scenario()
        done = self.run_fleet("--servers", "2", "--workers", "2", "--staleness", "3", "--shards",
                              "4", "--", "--model=gpt", "--steps=10")
        for text in ("coordinator 127.0.0.1:4711", "started server-1", "started worker-1",
                     "done: the job is complete", "once upon a time", "validation_loss  -"):
            self.assertIn(text, done.stdout)
        log = (self.run_dir / "logs" / "worker-1.log").read_text()
        for flag in ("--coordinator=127.0.0.1:4711", "--rank=1", "--staleness=3", "--model=gpt",
                     "--steps=10", "--transport=auto"):
            self.assertIn(flag, log)
        self.assertIn("--shards=4", (self.run_dir / "logs" / "server-0.log").read_text())
        self.assertIn("--checkpoint=", (self.run_dir / "logs" / "coordinator.log").read_text())

    def test_progress_is_shown_in_plain_lines(self):
        self.scenario(coordinator={"phases": [["running", 3]]})
        done = self.run_fleet()
        self.assertIn("fleet: step 7/10  loss 2.500  1.23k tokens/s  staleness p50 0 max 3  "
                      "2.0 MB/s up  1.0 MB/s down  ETA 1:05", done.stdout)

    def test_says_what_is_waited_for(self):
        self.scenario(coordinator={"phases": [["gathering", 3]]})
        self.assertIn("fleet: waiting: 1 of 1 server to register", self.run_fleet().stdout)

    def test_a_failed_job_gives_the_coordinators_reason(self):
        self.scenario(coordinator={"code": 1, "reason": "shard 1 is lost"})
        self.assertIn("fleet: failed: shard 1 is lost", self.run_fleet(code=1).stdout)

    def test_a_dead_worker_is_named_with_its_log_and_does_not_end_the_run(self):
        self.scenario(coordinator={"phases": [["running", 1.5]]},
                      worker_1={"after": 0.2, "signal": 9, "output": "my last words"})
        done = self.run_fleet("--workers", "2")
        self.assertIn("worker-1 died: killed by SIGKILL", done.stdout)
        self.assertIn("my last words", done.stdout)
        self.assertIn("done: the job is complete", done.stdout)

    def test_a_dead_worker_is_replaced_as_often_as_asked(self):
        self.scenario(coordinator={"phases": [["running", 2.5]]},
                      worker_1={"after": 0.2, "code": 1, "lives": 2})
        done = self.run_fleet("--workers", "2", "--restart-workers", "2")
        self.assertIn("worker-1.2 died: exit code 1", done.stdout)
        self.assertIn("started worker-1.3", done.stdout)
        self.assertTrue((self.run_dir / "logs" / "worker-1.3.log").exists())

    def test_when_the_last_worker_dies_the_run_fails(self):
        self.scenario(coordinator={"phases": [["running", 20]]},
                      worker_0={"after": 0.5, "code": 1})
        self.assertIn("failed: no worker is left", self.run_fleet(code=1).stdout)

    def test_a_worker_that_dies_before_training_fails_the_run_at_once(self):
        self.scenario(coordinator={"phases": [["gathering", 20]]},
                      worker_0={"after": 0, "code": 1, "output": "data/x: no such directory"})
        done = self.run_fleet("--workers", "2", code=1)
        self.assertIn("data/x: no such directory", done.stdout)
        self.assertIn("failed: worker-0 died before training began", done.stdout)

    def test_a_workers_flag_error_is_the_fleets(self):
        self.scenario(coordinator={"phases": [["gathering", 20]]},
                      worker_0={"after": 0, "code": 2, "output": "--steps=x: expected a number"})
        self.assertIn("--steps=x: expected", self.run_fleet("--", "--steps=x", code=2).stdout)
        # The corrected command needs no --overwrite.
        (self.bin / "ended").unlink(missing_ok=True)
        self.scenario()
        self.run_fleet("--", "--steps=10")

    def test_a_coordinator_that_does_not_start(self):
        self.scenario(coordinator={"refuses": True, "code": 1, "output": "port in use"})
        done = self.run_fleet(code=1)
        self.assertIn("port in use", done.stdout)
        self.assertIn("failed: the coordinator did not start", done.stdout)

    def test_a_coordinator_that_is_killed(self):
        self.scenario(coordinator={"phases": [["running", 25]]})
        fleet = self.start_fleet()
        started = self.read_until(fleet, "started worker-0")
        pids = [int(line.split("(pid ")[1].split(")")[0]) for line in started if "(pid " in line]
        os.kill(pids[0], signal.SIGKILL)
        self.assertIn("failed: the coordinator died (killed by SIGKILL)", fleet.stdout.read())
        self.assertEqual(fleet.wait(BOUND_S), 1)
        self.assertEqual([pid for pid in pids if alive(pid)], [])

    def test_the_end_of_a_log_is_this_runs(self):
        self.scenario(worker_0={"after": 0, "code": 1, "output": "words of old"})
        self.run_fleet(code=1)
        self.scenario(worker_0={"after": 0, "code": 1, "output": "new words", "lives": 2})
        done = self.run_fleet("--resume", code=1)
        self.assertIn("new words", done.stdout)
        self.assertNotIn("words of old", done.stdout)

    def test_an_interrupt_ends_everything(self):
        self.scenario(coordinator={"phases": [["running", 25]]})
        fleet = self.start_fleet("--workers", "2")
        started = self.read_until(fleet, "started worker-1")
        pids = [int(line.split("(pid ")[1].split(")")[0]) for line in started if "(pid " in line]
        fleet.send_signal(signal.SIGINT)
        rest = fleet.stdout.read()
        self.assertEqual(fleet.wait(BOUND_S), 130)
        self.assertIn("stopped: interrupted (SIGINT)", rest)
        self.assertIn("all processes have ended", rest)
        self.assertEqual([pid for pid in pids if alive(pid)], [])

    def test_a_process_that_does_not_end_is_killed_and_named(self):
        self.scenario(coordinator={"phases": [["running", 25]]}, worker_0={"stubborn": True})
        fleet = self.start_fleet()
        self.read_until(fleet, "started worker-0")
        while "argv" not in (self.run_dir / "logs" / "worker-0.log").read_text():
            time.sleep(0.01)  # Polls for the line that follows its signal handler.
        fleet.send_signal(signal.SIGINT)
        fleet.stdout.readline()
        fleet.send_signal(signal.SIGINT)  # Impatient: no waiting for it.
        self.assertIn("worker-0 (pid", fleet.stdout.read())
        self.assertEqual(fleet.wait(BOUND_S), 130)

    def test_a_time_limit(self):
        self.scenario(coordinator={"phases": [["running", 25]]})
        self.assertIn("did not end within --timeout 1 s", self.run_fleet("--timeout", "1",
                                                                         code=1).stdout)

    def test_status_and_stop_from_outside(self):
        self.scenario(coordinator={"phases": [["running", 25]]})
        fleet = self.start_fleet()
        self.read_until(fleet, "started worker-0")
        while not (self.run_dir / "fleet.json").exists():
            time.sleep(0.01)  # It is written right after that line.
        status = subprocess.run([str(FLEET), "status", "--run-dir", str(self.run_dir)],
                                capture_output=True, text=True, timeout=BOUND_S)
        self.assertIn("fleet: running, pid", status.stdout)
        self.assertIn("step 7/10", status.stdout)
        stop = subprocess.run([str(FLEET), "stop", "--run-dir", str(self.run_dir)],
                              capture_output=True, text=True, timeout=BOUND_S)
        self.assertEqual(stop.returncode, 0, stop.stdout)
        self.assertEqual(fleet.wait(BOUND_S), 130)

    def test_a_fleet_that_is_killed_leaves_nothing(self):
        self.scenario(coordinator={"phases": [["running", 25]]})
        fleet = self.start_fleet()
        started = self.read_until(fleet, "started worker-0")
        pids = [int(line.split("(pid ")[1].split(")")[0]) for line in started if "(pid " in line]
        fleet.kill()
        deadline = time.monotonic() + 10
        while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
            time.sleep(0.02)
        self.assertEqual([pid for pid in pids if alive(pid)], [])

    def test_a_used_directory_needs_a_word(self):
        self.scenario()
        self.run_fleet()
        again = self.run_fleet(code=2)
        self.assertEqual(len(again.stderr.splitlines()), 1)
        self.assertIn("not empty; choose another one, or --resume", again.stderr)
        (self.bin / "ended").unlink()
        keep = self.run_dir / "notes.txt"
        keep.write_text("mine")
        self.run_fleet("--overwrite")
        self.assertEqual(keep.read_text(), "mine")
        self.run_fleet("--resume")
        self.assertIn("--resume=latest", (self.run_dir / "logs" / "coordinator.log").read_text())

    def test_bad_arguments(self):
        self.scenario()
        for bad in (["--workers", "0"], ["--staleness", "-1"], ["--staleness", "x"], ["--nonsense"],
                    ["--lease-ms", "x"], ["--resume", "--overwrite"], ["--hostfile", "/nowhere"]):
            self.run_fleet(*bad, code=2)
        no_text = self.dir / "hosts"
        no_text.write_bytes(b"\xff\xfe")
        for bad in (["--hostfile", str(no_text)], ["--run-dir", "/proc/nowhere"]):
            self.assertEqual(len(self.run_fleet(*bad, code=2).stderr.splitlines()), 1)
        missing = subprocess.run([str(FLEET), "run", "--run-dir", str(self.run_dir), "--build",
                                  "nothing"], capture_output=True, text=True, timeout=BOUND_S)
        self.assertEqual(missing.returncode, 2)
        self.assertIn("cmake --build --preset nothing", missing.stderr)

    def test_remote_processes_start_through_ssh(self):
        self.scenario()
        ssh = self.dir / "ssh"
        ssh.write_text('#!/bin/sh\necho "ssh $*"\nfor last; do :; done\nexec sh -c "$last"\n')
        ssh.chmod(0o755)
        hostfile = self.dir / "hosts"
        hostfile.write_text("# two machines\nnode-a 1 server\nnode-b 2\n")
        done = self.run_fleet("--workers", "2", "--hostfile", str(hostfile), "--ssh", str(ssh),
                              "--coordinator-host", "head")
        self.assertIn("started server-0", done.stdout)
        log = (self.run_dir / "logs" / "worker-1.log").read_text()
        self.assertIn("-tt -o BatchMode=yes", log)
        self.assertIn("node-b", log)
        self.assertIn("--coordinator=head:4711", log)
        self.assertIn("--host=node-a", (self.run_dir / "logs" / "server-0.log").read_text())
        self.assertIn("--host=0.0.0.0", (self.run_dir / "logs" / "coordinator.log").read_text())


class HostfileTest(unittest.TestCase):
    def test_roles_and_slots(self):
        known = hosts.parse("a 2 server\nb\nc worker\nd 3 any  # comment\n")
        taken = {}
        self.assertEqual(hosts.place(known, "server", 3, taken), ["a", "b", "d"])
        self.assertEqual(hosts.place(known, "worker", 3, taken), ["c", "d", "d"])
        with self.assertRaisesRegex(hosts.UsageError, "slots for 0 of 1 workers"):
            hosts.place(known, "worker", 1, taken)

    def test_lines_that_cannot_be(self):
        for text in ("", "# nothing\n", "a b c", "a 0", "a 1 boss", "-oProxyCommand=x", "a 9999"):
            with self.assertRaises(hosts.UsageError):
                hosts.parse(text)


class ProgressTest(unittest.TestCase):
    def test_numbers(self):
        self.assertEqual(progress.number(1234567), "1.23M")
        self.assertEqual(progress.duration(3700), "1:01:40")
        self.assertIsNone(progress.line_of({}))


if __name__ == "__main__":
    unittest.main()
