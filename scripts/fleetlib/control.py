"""`fleet status` and `fleet stop`: looking at and ending a fleet that another process runs."""

import os
import signal
import time

from . import progress, rundir


def status(run_dir, as_json):
    fleet = rundir.read_fleet(run_dir)
    page_path = run_dir / "status.json"
    page = rundir.read_json(page_path)
    if fleet is None and page is None:
        raise rundir.UsageError(f"--run-dir {run_dir}: no run in it")
    if as_json:
        if page is None:
            raise rundir.UsageError(f"{page_path}: not there yet")
        print(page_path.read_text(), end="")
        return 0
    alive = fleet is not None and rundir.is_alive(fleet["fleet"])
    print(f"fleet: {'running, pid ' + str(fleet['fleet']['pid']) if alive else 'not running'}")
    if page is None:
        print("coordinator: no status yet")
        return 0
    print_page(page)
    return 0


def print_page(page):
    outcome = f" ({page['reason']})" if page["reason"] else ""
    print(f"job: {page['phase']}{outcome}")
    line = progress.line_of(page)
    if line:
        print(line)
    for worker in page["workers"]:
        loss = progress.or_dash(worker["loss"], lambda value: f"{value:.3f}")
        print(f"worker {worker['rank']}: {worker['state']}, life {worker['incarnation']}, clock "
              f"{worker['clock']}, loss {loss}, {describe_process(worker)}")
    for server in page["servers"]:
        shards = [shard for shard in page["shards"] if shard["server"] == server["id"]]
        state = "live" if server["live"] else "gone"
        print(f"server {server['id']}: {state}, {describe_process(server)}")
        for shard in shards:
            print(f"  shard {shard['shard']} at {shard['address']}: {shard['chunks']} chunks, "
                  f"slowest clock {shard['min_clock']}, {progress.number(shard['bytes_in'])}B in, "
                  f"{progress.number(shard['bytes_out'])}B out")
    checkpoint = page.get("checkpoint")
    if checkpoint:
        print(f"checkpoint: {checkpoint['last'] or 'none yet'}"
              + (f", {checkpoint['failures']} failed ({checkpoint['last_error']})"
                 if checkpoint["failures"] else ""))


def describe_process(process):
    text = f"{process['host']} pid {process['pid']}"
    if process["lease_s"] > 0:
        text += f", lease {process['lease_s']:.1f} s"
        text += "" if process["connected"] else ", disconnected"
    if process["waiting_for"]:
        text += f", waiting for {process['waiting_for']}"
    return text


def stop(run_dir, timeout_s):
    """Asks the fleet to stop; if it has gone already, ends what it left on this machine."""
    fleet = rundir.read_fleet(run_dir)
    if fleet is None:
        raise rundir.UsageError(f"--run-dir {run_dir}: no run in it")
    deadline = time.monotonic() + timeout_s
    if rundir.is_alive(fleet["fleet"]):
        pid = fleet["fleet"]["pid"]
        print(f"fleet: stopping the run in {run_dir} (pid {pid})", flush=True)
        os.kill(pid, signal.SIGTERM)
        if not wait_until_gone([fleet["fleet"]], deadline):
            print(f"fleet: pid {pid} did not end within {timeout_s:g} s")
            return 1
        print("fleet: stopped")
        return 0
    left = [record for record in fleet["processes"] if rundir.is_alive(record)]
    if not left:
        print(f"fleet: nothing of the run in {run_dir} is running")
        return 0
    names = ", ".join(record["name"] for record in left)
    print(f"fleet: the fleet has gone and left {names}; ending them", flush=True)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for record in left:
            if rundir.is_alive(record):
                os.killpg(record["pid"], number)
        if wait_until_gone(left, min(deadline, time.monotonic() + 5)):
            print("fleet: stopped")
            return 0
    print("fleet: some processes did not end")
    return 1


def wait_until_gone(records, deadline):
    while any(rundir.is_alive(record) for record in records):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.05)
    return True
