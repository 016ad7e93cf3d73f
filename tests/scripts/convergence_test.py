"""benchmarks/convergence without fleets: its grid, its arithmetic, its table and its plots."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
from convergencelib import grid, report, runs, svg  # noqa: E402  (the path comes first)


def step(clock, worker, loss, seconds=0.5):
    return {"clock": clock, "worker": worker, "loss": loss, "seconds": seconds,
            "bytes_pushed": 30, "bytes_pulled": 10}


def result(loss, rate):
    return {"case": "x", "seed": 1, "validation_loss": loss, "train_loss": loss, "seconds": 10,
            "wall_s": 11, "clocks": 2, "steps_per_s": rate, "bytes_pushed": 60, "bytes_pulled": 20,
            "staleness_max": 0, "empty_steps": 0, "throttled_to_gbps": 1, "command": ["/a/scripts/fleet", "run", "--run-dir", "/a/b", "--build", "/c", "--servers", "1"],
            "curve": [[1, loss + 1, 40, 0.5], [2, loss, 80, 1.0]]}


class Convergence(unittest.TestCase):
    def test_cases_have_names_of_their_own_and_runs_directories_of_theirs(self):
        cases = grid.cases()
        self.assertEqual(len({case.key for case in cases}), len(cases))
        a, b = (next(case for case in cases if case.key == key)
                for key in ("gpt/codecs/fp32", "gpt/codecs/fp16"))
        base = pathlib.Path("runs")
        self.assertNotEqual(runs.directory_of(base, a, 1, 1), runs.directory_of(base, b, 1, 1))
        self.assertNotEqual(runs.directory_of(base, a, 1, 1), runs.directory_of(base, a, 2, 1))
        self.assertNotEqual(runs.directory_of(base, a, 1, 1), runs.directory_of(base, a, 1, 2))

    def test_a_curve_is_the_mean_over_workers_and_the_sum_over_clocks(self):
        lines = [step(1, 0, 3.0), step(0, 0, 5.0), step(0, 1, 7.0, 1.5), step(1, 1, 4.0)]
        self.assertEqual(runs.curve(lines, 2), [[1, 6.0, 40, 1.0], [2, 3.5, 80, 1.5]])
        self.assertEqual(runs.steps_per_second(lines), 2)
        points = [[clock, float(clock), clock, clock] for clock in range(1, 101)]
        smoothed = runs.smooth(points, keep=10)
        self.assertEqual(len(smoothed), 10)
        self.assertEqual(smoothed[0], [10, 5.5, 10, 10])

    def test_plots_are_drawings_with_every_series(self):
        for log_x in (False, True):
            document = svg.plot("a < b", "x", "y", [("one", [(1, 2.0), (10, 1.0)]),
                                                    ("two & more", [(1, 3.0), (20, 0.5)])], log_x)
            root = xml.etree.ElementTree.fromstring(document)
            lines = [node for node in root.iter() if node.tag.endswith("polyline")]
            self.assertEqual(len(lines), 2)
            for line in lines:
                for point in line.get("points").split():
                    x, y = map(float, point.split(","))
                    self.assertTrue(0 <= x <= svg.WIDTH and 0 <= y <= svg.HEIGHT, point)
        self.assertIsNone(svg.plot("none", "x", "y", [("empty", [])]))
        self.assertEqual(svg.ticks(0, 10), [0, 2, 4, 6, 8, 10])

    def test_the_table_says_what_was_measured_and_that_links_are_throttled(self):
        cases = [grid.Case("codecs", "gpt", "fp32"), grid.Case("codecs", "gpt", "onebit")]
        finished = [(cases[0], [result(2.0, 4.0), result(3.0, 4.0)]), (cases[1], [result(3.0, 20.0)])]
        with tempfile.TemporaryDirectory() as directory:
            out = pathlib.Path(directory)
            report.write(out, finished, [("gpt/codecs/x", "no such codec")], "a machine")
            text = (out / "convergence.md").read_text()
            self.assertIn("Throttled to 1 Gb/s", text)
            self.assertIn("| fp32 | 2.500 ± 0.707 | 1.000 | 2 |", text)
            self.assertIn("| onebit | 3.000 ± 0.000 | 1.200 | 1 |", text)
            self.assertIn("| 20.0 | 5.00 |", text)
            self.assertIn("gpt/codecs/x: no such codec", text)
            rows = json.loads((out / "convergence.json").read_text())["rows"]
            self.assertEqual([row["case"] for row in rows], ["fp32", "onebit"])
            self.assertEqual(" ".join(rows[0]["command"]),
                             "scripts/fleet run --run-dir runs/x --build release --servers 1")
            self.assertEqual(sorted(path.name for path in out.glob("*.svg")),
                             [f"gpt-codecs-{name}.svg" for name in ("bytes", "step", "time")])
            self.assertIn("throttled to 1 Gb/s", (out / "gpt-codecs-time.svg").read_text())

    def test_a_wrong_selection_is_one_line(self):
        ended = subprocess.run([ROOT / "benchmarks" / "convergence", "--only", "nothing"],
                               capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(ended.returncode, 2)
        self.assertEqual(len(ended.stderr.strip().splitlines()), 1)


if __name__ == "__main__":
    unittest.main()
