"""slackline-bench transport: every transport of this host, its JSON, its plot, its bad input."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest
import xml.dom.minidom

BENCH = pathlib.Path(os.environ["SLACKLINE_BIN"]) / "slackline-bench"
BOUND_S = 60
QUICK = ["--sizes=64,100000", "--repetitions=1", "--duration=0.02"]


def bench(*arguments):
    return subprocess.run([BENCH, "transport", *arguments], capture_output=True, text=True,
                          timeout=BOUND_S, check=False)


class Bench(unittest.TestCase):
    def test_every_operation_over_every_transport(self):
        for transport, scheme in {"shm": "shm", "tcp": "tcp", "auto": "shm"}.items():
            for arguments in (["--op=pushpull"], ["--op=read", "--queue_pairs=2"],
                              ["--op=send", "--bidirectional"], ["--op=write", "--poll=sleep"]):
                with self.subTest(transport=transport, arguments=arguments), \
                        tempfile.TemporaryDirectory() as directory:
                    rows = pathlib.Path(directory) / "rows.json"
                    plot = pathlib.Path(directory) / "plot.svg"
                    result = bench(f"--transport={transport}", *arguments, *QUICK,
                                   f"--json={rows}", f"--plot={plot}")
                    self.assertEqual(result.returncode, 0, result.stderr)
                    small, large = json.loads(rows.read_text())
                    self.assertTrue(small["peer"].startswith(scheme + "://"), small["peer"])
                    self.assertEqual(large["payload_bytes"], 100000)
                    for row in (small, large):
                        self.assertGreater(row["messages_per_s"], 0)
                        self.assertGreater(row["ratio_to_memcpy"], 0)
                        self.assertGreater(row["cpu_ns_per_byte"], 0)
                        self.assertGreater(row["latency_min_us"], 0)
                        self.assertLessEqual(row["latency_min_us"], row["latency_p50_us"])
                        self.assertLessEqual(row["latency_p50_us"], row["latency_p999_us"])
                    lines = xml.dom.minidom.parse(str(plot)).getElementsByTagName("polyline")
                    self.assertEqual([len(line.getAttribute("points").split()) for line in lines],
                                     [2, 2, 2, 2])

    def test_two_ends(self):
        with subprocess.Popen([BENCH, "transport", "--transport=auto",
                               "--listen=auto://127.0.0.1:0"], stdout=subprocess.PIPE,
                              text=True) as listening:
            try:
                address = listening.stdout.readline().split()[-1]
                result = bench(f"--connect={address}", "--transport=tcp", *QUICK)
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertIn("pushpull to tcp://", result.stdout)
            finally:
                listening.kill()

    def test_wrong_input_is_one_line(self):
        for flag, words in {"--transport=pigeon": ["pigeon", "shm", "tcp"],
                            "--op=juggle": ["juggle", "pushpull"],
                            "--sizes=0": ["sizes", "67108864"],
                            "--queue_pairs=0": ["queue_pairs"],
                            "--connect=nowhere": ["connect", "nowhere"],
                            "--poll=never": ["poll", "busy"]}.items():
            with self.subTest(flag):
                result = bench(flag)
                self.assertEqual(result.returncode, 2)
                self.assertEqual(len(result.stderr.strip().splitlines()), 1, result.stderr)
                for word in words:
                    self.assertIn(word, result.stderr)

    def test_nobody_there_is_said(self):
        result = bench("--transport=shm", "--connect=shm://127.0.0.1:9", *QUICK)
        self.assertEqual(result.returncode, 1)
        self.assertIn("nobody listens", result.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
