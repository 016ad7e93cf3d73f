"""Live fleets with the variants of the update: local steps, a quorum, staleness-aware rates, delay
compensation, delayed Nesterov, and links that are throttled."""

import array
import subprocess
import unittest

from live import BIN, LiveTest, RUN_BOUND_S


class Variants(LiveTest):
    def weights(self, name):
        output = self.directory / name / "model.safetensors"
        subprocess.run([BIN / "slackline-merge", f"--output={output}",
                        f"--checkpoint={self.directory / name / 'checkpoints'}"],
                       check=True, capture_output=True, timeout=RUN_BOUND_S)
        content = output.read_bytes()
        return array.array("f", content[8 + int.from_bytes(content[:8], "little"):])

    def check_learned(self, name, steps):
        summary = self.summary(name)
        self.assertEqual(summary["steps"], steps)
        self.assertLess(summary["train_loss_last"], 0.7 * summary["train_loss_first"])
        return summary

    def test_one_local_step_and_a_plain_outer_step_are_bsp(self):
        """w - mean(w - (w - r g)) is w - r mean(g)."""
        common = ["--steps=25", "--overlap=off", "--clip=0.5"]
        self.run_fleet("bsp", 2, 3, 0, common)
        self.run_fleet("local", 2, 3, 0, [*common, "--local_steps=1", "--outer_optimizer=sgd",
                                          "--outer_learning_rate=1"])
        bsp, local = self.weights("bsp"), self.weights("local")
        self.assertEqual(len(bsp), len(local))
        self.assertLess(max(abs(a - b) for a, b in zip(bsp, local)), 2e-5)
        self.assertGreater(max(map(abs, bsp)), 0.1)

    def test_local_steps_learn_with_a_clock_for_ten(self):
        self.run_fleet("diloco", 1, 2, 0, ["--steps=12", "--local_steps=10"])
        summary = self.check_learned("diloco", 12)
        self.assertEqual(summary["local_steps"], 10)
        self.run_fleet("delayed", 1, 2, "async", ["--steps=12", "--local_steps=10"])
        self.check_learned("delayed", 12)
        log = (self.directory / "delayed" / "logs" / "worker-0.log").read_text()
        self.assertNotIn("WARNING", log)

    def test_late_pushes(self):
        self.run_fleet("late", 1, 3, "async", ["--steps=60", "--staleness_rate",
                                               "--delay_compensation=0.04"])
        self.check_learned("late", 60)
        log = (self.directory / "late" / "logs" / "server-0.log").read_text()
        self.assertRegex(log, r"delay compensation keeps \d+ bytes")

    def test_a_quorum_trains_every_clock(self):
        self.run_fleet("quorum", 2, 3, 0, ["--steps=60", "--quorum=2", "--grace_ms=1"])
        summary = self.check_learned("quorum", 60)
        self.assertEqual(summary["quorum"], 2)
        self.assertEqual(len(self.metrics("quorum")), 3 * 60)
        output = self.finish(self.start("many", 1, 2, 0, ["--steps=5", "--quorum=3"]), expected=1)
        self.assertIn("--quorum=3: expected at most the 2 workers", output)

    def test_a_throttled_link_says_so_and_takes_its_time(self):
        # 64 * 512 + 512 * 10 weights of 4 bytes: 1.2 Mbit each way, at 0.01 Gb/s 0.12 s a step.
        self.run_fleet("slow", 1, 1, 0, ["--steps=6", "--hidden=512"], options=["--link-gbps", "0.01"])
        summary = self.summary("slow")
        self.assertEqual(summary["throttled_to_gbps"], 0.01)
        self.assertGreater(summary["seconds"], 5 * 0.12)
        self.run_fleet("fast", 1, 1, 0, ["--steps=6", "--hidden=512"])
        self.assertIsNone(self.summary("fast")["throttled_to_gbps"])

    def test_what_does_not_fit_is_one_line(self):
        for flags, words in ((["--staleness_rate"], "an SSP or async --staleness"),
                             (["--outer_momentum=0.5"], "--local_steps above 0"),
                             (["--precision=int8"], "one of fp32, fp16, bf16")):
            with self.subTest(flags=flags):
                output = self.finish(self.start("wrong", 1, 1, 0, ["--steps=5", *flags]),
                                     expected=2)
                self.assertIn(words, output)


if __name__ == "__main__":
    unittest.main()
