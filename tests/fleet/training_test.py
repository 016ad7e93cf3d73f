"""A fleet trains: every mode, its summary, its checkpoints, resuming and exact equality."""

import array
import subprocess
import unittest

from live import BIN, LiveTest, RUN_BOUND_S, TRANSPORT, alive

SUMMARY_KEYS = {"steps", "train_loss_first", "train_loss_last", "validation_loss", "tokens_per_s",
                "bytes_pushed", "bytes_pulled", "staleness_p50", "staleness_p99", "staleness_max",
                "mode", "seconds"}


class Training(LiveTest):
    def weights(self, name):
        """The bytes of all tensors of the run's last checkpoint, merged into one file."""
        output = self.directory / name / "model.safetensors"
        subprocess.run([BIN / "slackline-merge", f"--output={output}",
                        f"--checkpoint={self.directory / name / 'checkpoints'}"],
                       check=True, capture_output=True, timeout=RUN_BOUND_S)
        content = output.read_bytes()
        header_bytes = int.from_bytes(content[:8], "little")
        return content[8 + header_bytes:]

    def assert_same_bits(self, one, other):
        self.assertTrue(self.weights(one) == self.weights(other), f"{one} and {other} differ")

    def check_learned(self, name, steps, workers):
        summary = self.summary(name)
        self.assertLessEqual(SUMMARY_KEYS, summary.keys())
        self.assertEqual(summary["steps"], steps)
        self.assertLess(summary["train_loss_last"], 0.7 * summary["train_loss_first"])
        self.assertLess(summary["validation_loss"], summary["train_loss_first"])
        lines = self.metrics(name)
        self.assertEqual(len(lines), steps * workers, "a line a step and worker")
        return summary

    def test_bsp_has_no_staleness_and_leaves_nothing_running(self):
        self.run_fleet("bsp", 2, 2, 0, ["--steps=60"])
        summary = self.check_learned("bsp", 60, 2)
        self.assertEqual(summary["staleness_max"], 0)
        for pid in self.pids("bsp"):
            self.assertFalse(alive(pid), f"process {pid} outlived its fleet")

    def test_ssp_keeps_its_bound(self):
        self.run_fleet("ssp", 2, 3, 2, ["--steps=60"])
        summary = self.check_learned("ssp", 60, 3)
        self.assertLessEqual(summary["staleness_max"], 2)

    def test_asp_learns(self):
        self.run_fleet("asp", 1, 2, "async", ["--steps=120"])
        self.check_learned("asp", 120, 2)

    def test_lossy_gradients_learn(self):
        sent = {}
        for codec in ("fp16", "int8", "onebit", "topk"):
            self.run_fleet(codec, 2, 2, 0, ["--steps=60", f"--push_codec={codec}",
                                            "--codec_min_elements=100", "--topk_fraction=0.05",
                                            "--topk_warmup_steps=10"])
            self.check_learned(codec, 60, 2)
            sent[codec] = self.metrics(codec)[-1]["bytes_pushed"]
        for codec in ("int8", "topk", "onebit"):
            self.assertLess(sent[codec], sent["fp16"], f"{codec} does not compress")

    def test_deterministic_workers_equal_one_that_accumulates(self):
        exact = ["--steps=25", "--deterministic", "--overlap=off", "--chunk_bytes=4096"]
        self.run_fleet("four", 2, 4, 0, exact)
        # What carries the bytes does not change them: shared memory here, TCP there.
        self.run_fleet("one", 1, 1, 0, [*exact, "--accumulate=4"], options=["--transport", "tcp"])
        self.assert_same_bits("four", "one")
        if TRANSPORT != "auto":
            return
        logs = [path.read_text() for path in (self.directory / "four" / "logs").iterdir()]
        self.assertTrue(any("shm (same host)" in log for log in logs), "the workers say their way")

    def test_workers_equal_a_larger_batch_to_rounding(self):
        exact = ["--steps=25", "--deterministic", "--overlap=off", "--clip=0"]
        self.run_fleet("split", 2, 4, 0, [*exact, "--batch=8"])
        self.run_fleet("large", 1, 1, 0, [*exact, "--batch=32"])
        split, large = (array.array("f", self.weights(name)) for name in ("split", "large"))
        self.assertEqual(len(split), len(large))
        self.assertLess(max(abs(a - b) for a, b in zip(split, large)), 1e-5)
        self.assertGreater(max(map(abs, large)), 0.1)

    def test_resume_on_another_number_of_servers_is_exact(self):
        exact = ["--deterministic", "--overlap=off", "--chunk_bytes=4096"]
        self.run_fleet("whole", 2, 2, 0, ["--steps=30", *exact])
        self.run_fleet("half", 2, 2, 0, ["--steps=15", *exact])
        self.run_fleet("half", 1, 2, 0, ["--steps=30", *exact], options=["--resume"])
        self.assert_same_bits("half", "whole")

    def test_resume_with_lossy_weights_is_exact(self):
        exact = ["--deterministic", "--overlap=off", "--chunk_bytes=4096", "--push_codec=fp32",
                 "--pull_codec=int4", "--codec_min_elements=100"]
        self.run_fleet("lossy-whole", 2, 2, 0, ["--steps=30", *exact])
        self.run_fleet("lossy-half", 2, 2, 0, ["--steps=15", *exact])
        self.run_fleet("lossy-half", 1, 2, 0, ["--steps=30", *exact], options=["--resume"])
        self.assert_same_bits("lossy-half", "lossy-whole")
        self.assertLess(self.metrics("lossy-whole")[-1]["bytes_pulled"],
                        self.metrics("lossy-whole")[-1]["bytes_pushed"] / 4)

    def test_a_checkpoint_of_another_model_is_refused(self):
        self.run_fleet("small", 1, 1, 0, ["--steps=5"])
        output = self.finish(self.start("small", 1, 1, 0, ["--steps=10", "--hidden=48"],
                                        options=["--resume"]), expected=1)
        self.assertRegex(output, "(?i)model|tensor|hidden")

    def test_the_merged_model_evaluates_as_the_run_did(self):
        self.run_fleet("merge", 2, 2, 0, ["--steps=40"])
        result = subprocess.run(
            [BIN / "slackline-worker", "--mode=evaluate", f"--data={self.data}",
             f"--checkpoint={self.directory / 'merge' / 'checkpoints'}"],
            check=True, capture_output=True, text=True, timeout=RUN_BOUND_S)
        expected = self.summary("merge")["validation_loss"]
        self.assertIn(f"{expected:.3f}", result.stdout + result.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
