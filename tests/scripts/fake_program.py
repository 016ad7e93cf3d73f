#!/usr/bin/env python3
"""Stands in for slackline-coordinator, -server and -worker in the tests of scripts/fleet.

Its name says which it is; scenario.json beside it says what it does:
  {"coordinator": {"phases": [["running", 0.5], ["ended", 0]], "code": 0, "reason": ""},
   "server-0": {...}, "worker-1": {"after": 0.3, "code": 1, "output": "text", "stubborn": true,
                                   "lives": 1}}
A server or worker without an entry stays until the coordinator has ended. `lives`: how many lives
of this rank do what the entry says.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

HERE = Path(sys.argv[0]).resolve().parent if not Path(sys.argv[0]).is_symlink() else Path(
    sys.argv[0]).parent
BOUND_S = 30  # No fake outlives a test.


def flags():
    pairs = [word.removeprefix("--").split("=", 1) for word in sys.argv[1:] if "=" in word]
    return dict(pairs)


def page(phase, reason, failed):
    return {
        "phase": phase, "reason": reason, "failed": failed, "servers": [], "workers": [],
        "shards": [], "checkpoint": None,
        "waiting_for": ["1 of 1 server to register"] if phase == "gathering" else [],
        "progress": {"step": 7, "steps": 10, "loss": 2.5, "tokens_per_s": 1234.0,
                     "bytes_pushed_per_s": 2e6, "bytes_pulled_per_s": 1e6, "staleness_p50": 0,
                     "staleness_max": 3, "eta_s": 65.0}}


def write(path, text):
    """Atomically, as the real programs do: a reader never sees half a file."""
    temporary = path.with_suffix(".new")
    temporary.write_text(text)
    os.replace(temporary, path)


def coordinate(scenario, values):
    run_dir = Path(values["run_dir"])
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    if "output" in scenario:
        print(scenario["output"], flush=True)
    if scenario.get("refuses"):
        sys.exit(scenario["code"])
    write(Path(values["port_file"]), "4711\n")
    code = scenario.get("code", 0)
    for phase, seconds in scenario.get("phases", [["running", 0.5]]):
        write(run_dir / "status.json", json.dumps(page(phase, "", False)))
        end = time.monotonic() + seconds
        while time.monotonic() < end and not stopped:
            time.sleep(0.01)
    if code == 0 and not stopped:
        (run_dir / "summary.json").write_text(json.dumps({"steps": 10, "validation_loss": None}))
        (run_dir / "sample.txt").write_text("once upon a time\n")
    reason = "interrupted" if stopped else scenario.get("reason", "the job is complete")
    write(run_dir / "status.json", json.dumps(page("ended", reason, code != 0)))
    (HERE / "ended").touch()
    sys.exit(1 if stopped else code)


def work(scenario):
    if scenario.get("stubborn"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    start = time.monotonic()
    print(f"argv {' '.join(sys.argv[1:])}", flush=True)
    while time.monotonic() - start < BOUND_S:
        if "after" in scenario and time.monotonic() - start >= scenario["after"]:
            print(scenario.get("output", ""), flush=True)
            if "signal" in scenario:
                os.kill(os.getpid(), scenario["signal"])
            sys.exit(scenario.get("code", 0))
        if (HERE / "ended").exists() and not scenario.get("stubborn"):
            sys.exit(0)
        time.sleep(0.01)


def life_number(name):
    """Counts the starts of this process over its replacements."""
    count = 1
    while True:
        try:
            os.close(os.open(HERE / f"{name}.{count}", os.O_CREAT | os.O_EXCL))
            return count
        except FileExistsError:
            count += 1


def main():
    role = Path(sys.argv[0]).name.removeprefix("slackline-")
    scenarios = json.loads((HERE / "scenario.json").read_text())
    values = flags()
    if role == "coordinator":
        coordinate(scenarios.get("coordinator", {}), values)
    name = f"worker-{values['rank']}" if role == "worker" else "server-0"
    scenario = scenarios.get(name, {})
    if life_number(name) > scenario.get("lives", 1):
        scenario = {}
    work(scenario)


main()
