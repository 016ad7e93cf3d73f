"""The progress line, from the coordinator's status page."""

import shutil
import sys
import time

PLAIN_INTERVAL_S = 5.0
FIRST_WAIT_S = 2.0


def number(value, digits=3):
    """1234567 -> '1.23M'."""
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.{digits}g}{suffix}"
    return f"{value:.{digits}g}"


def duration(seconds):
    """75 -> '1:15', 3700 -> '1:01:40'."""
    minutes, second = divmod(int(round(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def or_dash(value, form=str):
    return "-" if value is None else form(value)


def line_of(page):
    """One line for a person, without its prefix; None: there is nothing to say yet."""
    phase = page.get("phase")
    waiting = page.get("waiting_for") or []
    if phase in ("gathering", "placing", "finishing"):
        return "waiting: " + "; ".join(waiting) if waiting else None
    if phase not in ("running", "ending", "ended"):
        return None
    progress = page["progress"]
    text = (f"step {progress['step']}/{progress['steps']}"
            f"  loss {or_dash(progress['loss'], lambda v: f'{v:.3f}')}"
            f"  {number(progress['tokens_per_s'])} tokens/s"
            f"  staleness p50 {or_dash(progress['staleness_p50'])}"
            f" max {or_dash(progress['staleness_max'])}"
            f"  {progress['bytes_pushed_per_s'] / 1e6:.1f} MB/s up"
            f"  {progress['bytes_pulled_per_s'] / 1e6:.1f} MB/s down"
            f"  ETA {or_dash(progress['eta_s'], duration)}")
    if phase == "running" and waiting:
        text += "  (waiting: " + "; ".join(waiting) + ")"
    return text


class Reporter:
    """Prints events, and the progress as one line that is rewritten on a terminal."""

    def __init__(self, out=None):
        self._out = out or sys.stdout
        self._terminal = self._out.isatty()
        self._open_line = False  # A progress line stands where the cursor is.
        self._next_plain = time.monotonic() + FIRST_WAIT_S
        self._last = None

    def event(self, text):
        self._close_line()
        print(f"fleet: {text}", file=self._out, flush=True)

    def block(self, lines):
        self._close_line()
        for line in lines:
            print(f"    {line}", file=self._out)
        self._out.flush()

    def progress(self, text):
        if text is None:
            return
        if self._terminal:
            width = shutil.get_terminal_size().columns
            self._out.write("\r" + f"fleet: {text}"[:width - 1] + "\x1b[K")
            self._out.flush()
            self._open_line = True
            return
        now = time.monotonic()
        if now < self._next_plain:
            return
        self._next_plain = now + PLAIN_INTERVAL_S
        # The same step for a while is worth a line too: it says that nothing moves.
        print(f"fleet: {text}", file=self._out, flush=True)

    def _close_line(self):
        if self._open_line:
            self._out.write("\n")
            self._open_line = False
