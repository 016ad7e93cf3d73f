"""Processes of a fleet: started in groups of their own, logged, watched, ended for certain."""

import ctypes
import os
import signal
import subprocess
import time

from . import hosts

POLL_S = 0.05
TAIL_LINES = 15
TAIL_BYTES = 16384
PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def _die_with_parent():
    # So that even a fleet that is killed outright leaves nothing behind on this machine.
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class Process:
    """One coordinator, server or worker, here or (through ssh) on another host."""

    def __init__(self, role, index, command, log_path, host=None, ssh="ssh", environment=None,
                 label=None):
        self.role = role
        self.index = index
        self.label = label or f"{role}-{index}"
        self.host = host
        self.log_path = log_path
        self.reported = False  # Its end has been told.
        environment = environment or {}
        if host is not None and not hosts.is_local(host):
            command = hosts.ssh_command(ssh, host, os.getcwd(), command, environment)
            environment = {}
        with open(log_path, "ab") as log:
            self._log_begin = log.tell()  # A run that goes on adds to the logs of the one before.
            self._popen = subprocess.Popen(
                [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, env={**os.environ, **environment},
                preexec_fn=_die_with_parent)
        self.pid = self._popen.pid

    def poll(self):
        """The exit code (negative: a signal), or None while it runs."""
        return self._popen.poll()

    def wait(self, deadline):
        """Waits until the time of the monotonic clock. Whether it has ended."""
        try:
            self._popen.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return False
        return True

    def send(self, number):
        """Sends a signal to it and to whatever it has started, if it still runs."""
        # Once it was waited for, its number may be another's.
        if self.poll() is None:
            os.killpg(self.pid, number)

    def how_it_ended(self):
        code = self.poll()
        if code is None:
            return "still runs"
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return f"exit code {code}"

    def log_tail(self):
        """The last lines that it wrote to its log."""
        try:
            with open(self.log_path, "rb") as log:
                log.seek(0, os.SEEK_END)
                log.seek(max(self._log_begin, log.tell() - TAIL_BYTES))
                text = log.read().decode(errors="replace")
        except OSError as error:
            return [f"(no log: {error})"]
        return text.splitlines()[-TAIL_LINES:]


def end_all(processes, patience_s, hurry):
    """SIGTERM, again after half of `patience_s`, then SIGKILL to those that are left.

    A second SIGTERM ends a wait for a coordinator that has gone. hurry() makes an end at once.
    Returns the ones that had to be killed.
    """
    running = [process for process in processes if process.poll() is None]
    for process in running:
        process.send(signal.SIGTERM)
    for remind in (True, False):
        deadline = time.monotonic() + patience_s / 2
        while (any(process.poll() is None for process in running) and time.monotonic() < deadline
               and not hurry()):
            time.sleep(POLL_S)
        for process in running if remind else []:
            process.send(signal.SIGTERM)
    stubborn = [process for process in running if process.poll() is None]
    for process in stubborn:
        process.send(signal.SIGKILL)
    for process in stubborn:
        # SIGKILL cannot be refused; a process in an endless system call is the kernel's.
        process.wait(time.monotonic() + 5)
    return stubborn
