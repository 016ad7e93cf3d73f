"""Runs one case with one seed through scripts/fleet and keeps what came out of it.

A run's directory is named by what was run, so that a finished one is found again and not repeated,
also where two cases are the same run.
"""

import hashlib
import json
import shutil
import subprocess
import time
from pathlib import Path

from . import grid

REPOSITORY = Path(__file__).resolve().parent.parent.parent
POINTS = 100  # Of a run's curve that are kept.
RUN_TIMEOUT_S = 600


def directory_of(runs, case, seed, link_gbps):
    """Changes with everything that changes the run, and with nothing else."""
    text = json.dumps([grid.train_flags(case), case.staleness, case.workers, link_gbps])
    return runs / f"{case.model}-{hashlib.sha256(text.encode()).hexdigest()[:10]}" / f"seed-{seed}"


def load(directory):
    try:
        return json.loads((directory / "result.json").read_text())
    except (OSError, ValueError):
        return None


def curve(lines, workers):
    """[clock, loss, bytes, seconds] of every clock: the mean over workers, and sums up to it.

    The coordinator hears of steps in batches; how long each took is the worker's own word.
    """
    clocks = {}
    for line in lines:
        part = clocks.setdefault(line["clock"], [[], 0, 0])
        part[0].append(line["loss"])
        part[1] += line["bytes_pushed"] + line["bytes_pulled"]
        part[2] += line["seconds"]
    points, moved, seconds = [], 0, 0
    for clock in sorted(clocks):
        losses, clock_bytes, clock_seconds = clocks[clock]
        moved += clock_bytes / workers
        seconds += clock_seconds / len(losses)
        points.append([clock + 1, sum(losses) / len(losses), moved, seconds])
    return points


def smooth(points, keep=POINTS):
    """The means of `keep` neighbourhoods, each at its last point."""
    width = max(1, len(points) // keep)
    kept = []
    for end in range(width, len(points) + 1, width):
        part = points[end - width:end]
        kept.append([part[-1][0], sum(point[1] for point in part) / len(part), *part[-1][2:]])
    return kept


def steps_per_second(lines):
    """By the median time of a step: what start, end and a busy moment take is not in it."""
    times = sorted(line["seconds"] for line in lines)
    return 1 / times[len(times) // 2] if times and times[len(times) // 2] > 0 else None


def run(case, seed, link_gbps, runs, build):
    """The result, or a reason why there is none."""
    directory = directory_of(runs, case, seed, link_gbps)
    done = load(directory)
    if done is not None:
        return done, None
    shutil.rmtree(directory, ignore_errors=True)
    directory.parent.mkdir(parents=True, exist_ok=True)
    command = [REPOSITORY / "scripts" / "fleet", "run", "--run-dir", directory, "--servers", "1",
               "--workers", str(case.workers), "--transport", "tcp", "--staleness", case.staleness,
               "--build", build, "--timeout", str(RUN_TIMEOUT_S), "--lease-ms", "30000"]
    if link_gbps:
        command += ["--link-gbps", f"{link_gbps:g}"]
    command += ["--", f"--seed={seed}", *grid.train_flags(case)]
    began = time.monotonic()
    ended = subprocess.run([str(word) for word in command], cwd=REPOSITORY, capture_output=True,
                           text=True, check=False)
    if ended.returncode != 0:
        return None, reason_of(ended.stdout + ended.stderr)
    summary = json.loads((directory / "summary.json").read_text())
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    points = curve(lines, case.workers)
    clocks = len(points)
    result = {"case": case.key, "seed": seed, "validation_loss": summary["validation_loss"],
              "train_loss": summary["train_loss_last"], "seconds": summary["seconds"],
              "wall_s": time.monotonic() - began, "clocks": clocks,
              "steps_per_s": steps_per_second(lines),
              "bytes_pushed": summary["bytes_pushed"] / case.workers,
              "bytes_pulled": summary["bytes_pulled"] / case.workers,
              "staleness_max": summary["staleness_max"], "empty_steps": summary["empty_steps"],
              "throttled_to_gbps": link_gbps or None, "command": [str(w) for w in command[1:]],
              "curve": smooth(points)}
    # Checkpoints and logs of a good run are of no more use.
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    partial = directory / "result.json.partial"
    partial.write_text(json.dumps(result))
    partial.rename(directory / "result.json")
    return result, None


def reason_of(output):
    """The line that says why: a flag that is refused, or the fleet's last word."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for line in lines:
        if "expected" in line or "unknown" in line:
            return line.removeprefix("fleet:").strip()
    for line in lines:
        if line.startswith("fleet: failed"):
            return line.removeprefix("fleet: ")
    return lines[-1] if lines else "no output"
