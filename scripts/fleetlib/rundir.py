"""The run directory: what is in it, and whether a fleet lives in it."""

import json
import os
import shutil
from pathlib import Path

# What a fleet and its coordinator write; --overwrite removes these and nothing else.
FILES = ("summary.json", "metrics.jsonl", "status.json", "status.json.tmp", "sample.txt",
         "fleet.json", "fleet.json.tmp", "port", "port.tmp")
DIRECTORIES = ("logs", "checkpoints")


class UsageError(Exception):
    """An argument is wrong; the message is for the person."""


def start_time(pid):
    """When a process of this machine started, in clock ticks since boot; None: there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name in parentheses may hold anything; fields count after it. 3 is the state.
    fields = stat[stat.rindex(")") + 2:].split()
    return None if fields[0] == "Z" else int(fields[19])


def is_alive(record):
    """Whether the process of a fleet.json record still runs (and is not another with its pid)."""
    started = start_time(record["pid"])
    return started is not None and started == record["started"]


def record_of(pid, **more):
    return {"pid": pid, "started": start_time(pid), **more}


def read_json(path):
    """The file's content; None if it is not there or not (yet) JSON."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def read_fleet(run_dir):
    fleet = read_json(run_dir / "fleet.json")
    return fleet if isinstance(fleet, dict) and "fleet" in fleet else None


def write_fleet(run_dir, fleet):
    temporary = run_dir / "fleet.json.tmp"
    temporary.write_text(json.dumps(fleet, indent=1) + "\n")
    os.replace(temporary, run_dir / "fleet.json")


def prepare(run_dir, resume, overwrite):
    """Makes the directory, or says why it cannot be used."""
    try:
        _prepare(run_dir, resume, overwrite)
    except OSError as error:
        raise UsageError(f"--run-dir {run_dir}: cannot be used: {error.filename}: "
                         f"{error.strerror}") from error


def _prepare(run_dir, resume, overwrite):
    if run_dir.exists() and not run_dir.is_dir():
        raise UsageError(f"--run-dir {run_dir}: not a directory")
    fleet = read_fleet(run_dir)
    if fleet is not None and is_alive(fleet["fleet"]):
        raise UsageError(f"--run-dir {run_dir}: a fleet is running in it (pid "
                         f"{fleet['fleet']['pid']}); stop it with scripts/fleet stop")
    if run_dir.is_dir() and any(run_dir.iterdir()):
        if overwrite:
            clean(run_dir)
        elif not resume:
            raise UsageError(f"--run-dir {run_dir}: not empty; choose another one, or --resume "
                             "the run in it, or --overwrite it")
    elif resume == "latest":
        raise UsageError(f"--run-dir {run_dir}: nothing in it to resume")
    (run_dir / "logs").mkdir(parents=True, exist_ok=True)
    # Of the run before: nobody shall take them for this run's.
    for name in ("port", "status.json", "summary.json", "sample.txt"):
        (run_dir / name).unlink(missing_ok=True)


def clean(run_dir):
    for name in FILES:
        (run_dir / name).unlink(missing_ok=True)
    for name in DIRECTORIES:
        if (run_dir / name).is_dir():
            shutil.rmtree(run_dir / name)


def discard(run_dir):
    """Removes what a run that never began has left, and the directory if nothing else is in it."""
    clean(run_dir)
    try:
        run_dir.rmdir()
    except OSError:
        pass  # The user keeps something there.
