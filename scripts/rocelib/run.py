"""One run: machines up, commands together, faults at their time, everything down."""

import fcntl
import os
import shutil
import signal
import time
from pathlib import Path

from .errors import UsageError
from .machine import Machine, wait_until

EXIT_TIMED_OUT = 124
EXIT_MACHINE_DIED = 125
# An emulated machine is up in 5 s; on a host with other work it has been seen to take a minute.
BOOT_TIMEOUT_S = 300
# From the file with the exit code to power off.
POWER_OFF_TIMEOUT_S = 20
POLL_S = 0.05


class Stop(Exception):
    """The run is over; what to say and the exit code."""

    def __init__(self, reason, code):
        super().__init__(reason)
        self.code = code


def run(options, command, engine, say):
    results = prepare(options.results)
    with open(results / ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UsageError(f"--results {results}: another run uses it") from error
        clear(results, options)
        machines = [Machine(number, results, settings_of(options, number),
                            options.second if number == 1 and options.second else command)
                    for number in range(options.machines)]
        signals = []
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _frame: signals.append(number))
        try:
            return watch(options, results, machines, engine, signals)
        except Stop as stop:
            say(stop)
            return stop.code
        finally:
            for machine in machines:
                machine.end()
                machine.show(final=True)


def prepare(results):
    try:
        results.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--results {results}: {error.strerror}") from error
    return results.resolve()


def clear(results, options):
    """Removes what an earlier run left, and writes what the guests read first."""
    for moment in (options.cut_after, options.kill_after):
        if moment and is_file_name(moment):
            (results / moment).unlink(missing_ok=True)
    for machine in results.glob("machine-[01]"):
        shutil.rmtree(machine)
    (results / ".start").unlink(missing_ok=True)
    (results / ".results").write_text(f"{results}\n")
    (results / ".directory").write_text(f"{os.getcwd()}\n")
    (results / ".guest").write_text(f"{Path(__file__).resolve().parent / 'guest.sh'}\n")


def settings_of(options, number):
    settings = {"machines": options.machines, "loss": options.loss or "",
                "cut_when": options.cut_after or "",
                "cut_for_s": f"{options.cut_for:g}"}
    for variable in options.env:
        name, value = variable.split("=", 1)
        settings[f"export {name}"] = value
    return settings


def watch(options, results, machines, engine, signals):
    def check(seen):
        """Shows what is new; raises Stop if the run cannot go on. Whether seen() holds."""
        for machine in machines:
            machine.show()
            # In this order: a machine writes its exit code before it ends.
            if not machine.running() and machine.exit_code() is None and not machine.killed:
                tail = "\n".join(machine.console_tail())
                raise Stop(f"machine {machine.number} died by itself; its console:\n{tail}",
                           EXIT_MACHINE_DIED)
        if signals:
            raise Stop("interrupted", 128 + signals[0])
        return seen()

    def all_ready():
        return all(machine.ready() or machine.exit_code() is not None for machine in machines)

    for machine in machines:
        engine.start(machine, results)
    if not wait_until(lambda: check(all_ready), time.monotonic() + BOOT_TIMEOUT_S, POLL_S):
        late = next(machine for machine in machines if not machine.ready())
        tail = "\n".join(late.console_tail())
        raise Stop(f"machine {late.number} was not up within {BOOT_TIMEOUT_S} s; its console:\n"
                   f"{tail}", EXIT_MACHINE_DIED)

    begin = time.monotonic()
    (results / ".start").touch()

    def all_ended():
        kill_when_due(options.kill_after, results, machines, begin)
        return all(machine.killed or machine.exit_code() is not None for machine in machines)

    if not wait_until(lambda: check(all_ended), begin + options.timeout, POLL_S):
        still = " and ".join(f"machine {machine.number}" for machine in machines
                             if machine.exit_code() is None and not machine.killed)
        raise Stop(f"{still} ran past --timeout, {options.timeout:g} s", EXIT_TIMED_OUT)
    # Until it is off a machine may still be writing results.
    wait_until(lambda: check(lambda: not any(machine.running() for machine in machines)),
               time.monotonic() + POWER_OFF_TIMEOUT_S, POLL_S)
    codes = [machine.exit_code() for machine in machines if not machine.killed]
    return next((code for code in codes if code != 0), 0)


def is_file_name(moment):
    return not moment[0].isdigit()


def kill_when_due(kill_after, results, machines, begin):
    if not kill_after or machines[-1].killed or machines[-1].exit_code() is not None:
        return
    due = ((results / kill_after).exists() if is_file_name(kill_after)
           else time.monotonic() - begin >= float(kill_after))
    if due:
        machines[-1].killed = True
        machines[-1].end()
        print(f"soft_roce: machine {machines[-1].number} has lost its power", flush=True)
