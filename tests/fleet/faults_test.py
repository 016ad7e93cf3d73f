"""A fleet under faults: dead workers, garbage on its ports, wrong flags, damaged data."""

import os
import random
import shutil
import signal
import socket
import subprocess
import unittest

from live import BIN, LiveTest, RUN_BOUND_S, listening_ports, send_bytes


class DeadWorkers(LiveTest):
    def test_a_killed_worker_leaves_and_a_replacement_joins(self):
        fleet = self.start("killed", 2, 2, 3, ["--steps=4000"],
                           options=["--lease-ms", "1000", "--restart-workers", "1"])
        self.wait_until("step 100", lambda: self.step("killed") >= 100, fleet)
        victim = self.worker_pid("killed", 1)
        os.kill(victim, signal.SIGKILL)
        output = self.finish(fleet)
        self.assertIn("worker", output)
        lines = self.metrics("killed")
        lives = {line["incarnation"] for line in lines if line["worker"] == 1}
        self.assertEqual(lives, {1, 2}, "the replacement trained as a second incarnation")
        survivor = [line["clock"] for line in lines if line["worker"] == 0]
        self.assertEqual(survivor, list(range(4000)))
        self.assertLessEqual(self.summary("killed")["staleness_max"], 3)

    def test_without_replacement_the_others_finish(self):
        fleet = self.start("alone", 1, 3, 0, ["--steps=3000"], options=["--lease-ms", "1000"])
        self.wait_until("step 100", lambda: self.step("alone") >= 100, fleet)
        os.kill(self.worker_pid("alone", 2), signal.SIGKILL)
        self.finish(fleet)
        self.assertEqual(self.summary("alone")["steps"], 3000)

    def worker_pid(self, name, rank):
        page = self.status(name)
        return next(worker["pid"] for worker in page["workers"] if worker["rank"] == rank)


class Garbage(LiveTest):
    def test_random_bytes_on_every_port_do_not_disturb_training(self):
        fleet = self.start("garbage", 2, 2, 0, ["--steps=4000"], options=["--transport", "tcp"])
        self.wait_until("step 10", lambda: self.step("garbage") >= 10, fleet)
        ports = {port for pid in self.pids("garbage") for port in listening_ports(pid)}
        self.assertGreaterEqual(len(ports), 3, "a coordinator and two servers listen")
        rng = random.Random(11)
        rounds = 0
        while fleet.poll() is None and rounds < 40:
            for port in ports:
                for size in (0, 1, 7, 64, 127, 128, 4096):
                    self.try_send(port, rng.randbytes(size))
                # The right magic numbers with absurd lengths behind them.
                self.try_send(port, b"1SLK\x01\x00\x02\x00" + b"\xff" * 4096)
            rounds += 1
        self.assertGreater(rounds, 1)
        self.finish(fleet)
        lines = self.metrics("garbage")
        for worker in (0, 1):
            self.assertEqual([line["clock"] for line in lines if line["worker"] == worker],
                             list(range(4000)))
        self.assertEqual(self.summary("garbage")["staleness_max"], 0)

    def try_send(self, port, payload):
        try:
            send_bytes(port, payload)
        except OSError:
            pass  # The fleet may just have ended; the assertions above judge it.


class WrongInput(LiveTest):
    def program(self, name, *arguments):
        return subprocess.run([BIN / name, *arguments], capture_output=True, text=True,
                              timeout=RUN_BOUND_S)

    def assert_one_line(self, result, code, *words):
        text = result.stderr.strip()
        self.assertEqual(result.returncode, code, text)
        for word in words:
            self.assertIn(word, text)
        self.assertNotIn("terminate called", text)
        self.assertNotIn("*** Check failure", text)

    def test_flags_are_refused_before_anything_starts(self):
        for flag, words in {
            "--staleness=-3": ["staleness", "-3", "async"],
            "--staleness=soon": ["staleness", "soon"],
            "--steps=many": ["steps", "many"],
            "--steps=0": ["steps", "0"],
            "--model=resnet": ["model", "resnet", "gpt"],
            "--transport=pigeon": ["transport", "pigeon", "tcp"],
            "--codec=zip": ["codec", "zip", "fp16"],
            "--optimizer=magic": ["optimizer", "magic", "adamw"],
            "--chunk_bytes=3": ["chunk_bytes", "3"],
            "--mode=dance": ["mode", "dance", "train"],
            "--no_such_flag=1": ["no_such_flag"],
        }.items():
            with self.subTest(flag):
                result = self.program("slackline-worker", flag, f"--data={self.data}")
                self.assert_one_line(result, 2, *words)
        for program in ("slackline-server", "slackline-coordinator"):
            self.assert_one_line(self.program(program, "--port=99999"), 2, "port", "99999")
            self.assert_one_line(self.program(program, "--port=high"), 2, "port", "high")

    def test_an_unreachable_coordinator_is_given_up(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        for program, more in (("slackline-server", []),
                              ("slackline-worker", ["--model=mlp", f"--data={self.data}"])):
            result = self.program(program, f"--coordinator=127.0.0.1:{port}",
                                  "--connect_timeout_s=1", *more)
            self.assert_one_line(result, 1, f"127.0.0.1:{port}")

    def test_a_port_in_use_is_named(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            result = self.program("slackline-coordinator", f"--port={port}", "--workers=1",
                                  "--servers=1")
        self.assert_one_line(result, 1, str(port))

    def test_damaged_data_is_refused_by_name(self):
        copy = self.directory / "damaged"
        shutil.copytree(self.data, copy)
        shard = next(copy.glob("train*"))
        content = bytearray(shard.read_bytes())
        content[len(content) // 2] ^= 1
        shard.write_bytes(content)
        arguments = ["--model=mlp", "--coordinator=127.0.0.1:1", "--connect_timeout_s=1"]
        self.assert_one_line(self.program("slackline-worker", *arguments, f"--data={copy}"), 1,
                             shard.name)
        missing = self.directory / "missing"
        self.assert_one_line(self.program("slackline-worker", *arguments, f"--data={missing}"), 1,
                             str(missing))

    def test_a_missing_worker_is_named_and_the_start_given_up(self):
        result = self.program("slackline-coordinator", "--workers=2", "--servers=1", "--port=0",
                              "--start_timeout_s=6")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, "(?i)server")
        self.assertRegex(result.stderr, "(?i)worker")


if __name__ == "__main__":
    unittest.main(verbosity=2)
