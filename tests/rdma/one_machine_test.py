"""One machine: fleets of the real trainer over RDMA, synchronous and bounded-stale."""

import json
import pathlib
import sys
import tempfile
import unittest

from guest import BUILD, RESULTS, ROOT, GuestTest

sys.path.insert(0, str(ROOT / "tests" / "fleet"))
from live import TINY_MLP, make_images  # noqa: E402  (the path has to be set first)


class OneMachine(GuestTest):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.temporary.cleanup)
        cls.data = make_images(pathlib.Path(cls.temporary.name))

    def train(self, name, staleness, steps):
        process = self.fleet(name, "--servers", "1", "--workers", "2", "--staleness", staleness,
                             "--lease-ms", "60000", "--start-timeout", "240",
                             worker=(*TINY_MLP, f"--data={self.data}", f"--steps={steps}"), build=BUILD / "bin")
        self.finish(name, process)
        summary = json.loads((RESULTS / name / "summary.json").read_text())
        self.assertEqual(summary["steps"], steps)
        losses = [json.loads(line)["loss"] for line in
                  (RESULTS / name / "metrics.jsonl").read_text().splitlines()]
        self.assertLess(sum(losses[-4:]), sum(losses[:4]))  # It learns.
        print(f"{name}: {steps} steps, loss {losses[0]:.3f} to {losses[-1]:.3f}")

    def test_synchronous(self):
        self.train("bsp", "0", 30)

    def test_bounded_staleness(self):
        self.train("ssp", "2", 30)


if __name__ == "__main__":
    unittest.main(verbosity=2)
