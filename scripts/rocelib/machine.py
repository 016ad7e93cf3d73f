"""One guest: a QEMU or User-Mode Linux process, its output, its exit code."""

import ctypes
import os
import shlex
import signal
import subprocess
import sys
import time

PR_SET_PDEATHSIG = 1
TAIL_LINES = 15
_libc = ctypes.CDLL(None, use_errno=True)


def _die_with_parent():
    # So that even a run that is killed outright leaves no machine behind.
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Machine:
    """A guest from its start to its end.

    Its directory, RESULTS/machine-N, gets output.log (what the command writes), exit_code and
    console.log (what the kernel says).
    """

    def __init__(self, number, results, settings, command):
        self.number = number
        self.directory = results / f"machine-{number}"
        self.directory.mkdir(parents=True)
        self.killed = False  # On purpose.
        self._shown = 0
        self._partial = b""
        self._process = None
        lines = [f"{name}={shlex.quote(str(value))}" for name, value in settings.items()]
        (self.directory / "settings.sh").write_text("\n".join(lines) + "\n")
        (self.directory / "command.sh").write_text(command + "\n")
        (self.directory / "output.log").touch()

    def start(self, command, pass_fds=(), environment=None):
        with open(self.directory / "console.log", "ab") as log:
            self._process = subprocess.Popen(
                [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, pass_fds=pass_fds, preexec_fn=_die_with_parent,
                env={**os.environ, **(environment or {})})

    def ready(self):
        """Whether the guest has set itself up and waits for the word to run the command."""
        return (self.directory / "ready").exists()

    def running(self):
        return self._process.poll() is None

    def exit_code(self):
        """The command's exit code; None if it has not ended (or its machine ended before)."""
        try:
            return int((self.directory / "exit_code").read_text())
        except (OSError, ValueError):
            return None

    def end(self):
        """Takes the power away. Whatever state the guest is in, it ends."""
        if self._process is None:
            return
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()

    def show(self, final=False):
        """Prints what the command has written since, by whole lines, with the machine's number."""
        with open(self.directory / "output.log", "rb") as log:
            log.seek(self._shown)
            text = log.read()
        self._shown += len(text)
        *lines, self._partial = (self._partial + text.replace(b"\r\n", b"\n")).split(b"\n")
        if final and self._partial:
            lines.append(self._partial)
            self._partial = b""
        for line in lines:
            sys.stdout.write(f"machine {self.number}| {line.decode(errors='replace')}\n")
        if lines:
            sys.stdout.flush()

    def console_tail(self):
        try:
            text = (self.directory / "console.log").read_text(errors="replace")
        except OSError:
            return []
        return [line for line in text.splitlines() if line.strip()][-TAIL_LINES:]


def wait_until(condition, deadline, poll_s=0.05):
    """Whether the condition became true before the time of the monotonic clock."""
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(poll_s)
    return True
