"""`fleet run`: starts the processes of a job, stays with them, and ends them all."""

import os
import shlex
import signal
import socket
import time
from pathlib import Path

from . import hosts, progress, rundir
from .processes import POLL_S, Process, end_all

REPOSITORY = Path(__file__).resolve().parent.parent.parent
WATCH_S = 0.2
PORT_FILE_TIMEOUT_S = 15
# The coordinator shuts servers and workers down first, and gives them five seconds.
COORDINATOR_PATIENCE_S = 8
OTHERS_PATIENCE_S = 10
EXIT_INTERRUPTED = 130
BEFORE_TRAINING = (None, "gathering", "placing")  # Phases of the coordinator's page; None: no page.


class Stop(Exception):
    """The run ends now, with this exit code."""

    def __init__(self, reason, code=1):
        super().__init__(reason)
        self.reason = reason
        self.code = code


def run(options, worker_flags):
    return Fleet(options, worker_flags).run()


def find_programs(build):
    """The directory of the programs, all there."""
    directory = Path(build) if os.sep in build else REPOSITORY / "build" / build / "bin"
    for name in ("slackline-coordinator", "slackline-server", "slackline-worker"):
        if not os.access(directory / name, os.X_OK):
            raise rundir.UsageError(
                f"--build {build}: {directory / name} is missing; build it with: cmake --preset "
                f"{build} && cmake --build --preset {build}")
    return directory.resolve()


class Fleet:
    def __init__(self, options, worker_flags):
        self._options = options
        self._worker_flags = worker_flags
        self._run_dir = options.run_dir
        self._programs = find_programs(options.build)
        self._place_processes()
        rundir.prepare(self._run_dir, options.resume, options.overwrite)
        self._report = progress.Reporter()
        self._coordinator = None
        self._address = None
        self._servers = []
        self._workers = []
        self._restarts_left = options.restart_workers
        self._lives = [0] * options.workers
        self._signals = []
        self._server_lost_at = None

    def _place_processes(self):
        options = self._options
        if options.hostfile is None:
            self._server_hosts = [None] * options.servers
            self._worker_hosts = [None] * options.workers
            self._coordinator_host = options.coordinator_host or "127.0.0.1"
            return
        try:
            text = options.hostfile.read_text()
        except OSError as error:
            raise hosts.UsageError(f"--hostfile {options.hostfile}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise hosts.UsageError(f"--hostfile {options.hostfile}: not a text") from error
        known = hosts.parse(text, str(options.hostfile))
        taken = {}
        self._server_hosts = hosts.place(known, "server", options.servers, taken)
        self._worker_hosts = hosts.place(known, "worker", options.workers, taken)
        here = all(hosts.is_local(host) for host in self._server_hosts + self._worker_hosts)
        self._coordinator_host = (options.coordinator_host
                                  or ("127.0.0.1" if here else socket.getfqdn()))

    # ---- The life of a run ----------------------------------------------------------------------

    def run(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _frame: self._signals.append(number))
        unused = False
        try:
            self._start()
            code = self._watch()
        except Stop as stop:
            self._report.event(f"{'stopped' if stop.code == EXIT_INTERRUPTED else 'failed'}: "
                               f"{stop.reason}")
            code = stop.code
            unused = code == 2 and self._page().get("phase") in BEFORE_TRAINING
        except OSError as error:
            self._report.event(f"failed: {error}")
            code = 1
        finally:
            self._end()
        if unused and not self._options.resume:
            # The same command with the right argument shall find the directory as this one did.
            rundir.discard(self._run_dir)
        return code

    def _start(self):
        self._report.event(f"run directory {self._run_dir}")
        self._start_coordinator()
        for index, host in enumerate(self._server_hosts):
            self._servers.append(self._launch("server", index, [
                self._programs / "slackline-server", f"--coordinator={self._address}",
                f"--shards={self._options.shards}", f"--transport={self._options.transport}",
                f"--host={host or '127.0.0.1'}", *self._throttle()], host))
        for rank in range(self._options.workers):
            self._workers.append(self._start_worker(rank))
        self._write_record()

    def _throttle(self):
        gbps = self._options.link_gbps
        return [] if gbps is None else [f"--link_gbps={gbps:g}"]

    def _start_coordinator(self):
        options = self._options
        port_file = self._run_dir / "port"
        bind = "127.0.0.1" if self._coordinator_host == "127.0.0.1" else "0.0.0.0"
        command = [self._programs / "slackline-coordinator", f"--host={bind}",
                   f"--port_file={port_file}", f"--run_dir={self._run_dir}",
                   f"--checkpoint={self._run_dir / 'checkpoints'}",
                   f"--servers={options.servers}", f"--workers={options.workers}",
                   f"--lease_ms={options.lease_ms}",
                   f"--start_timeout_s={options.start_timeout:g}"]
        if options.resume:
            command.append(f"--resume={options.resume}")
        self._coordinator = self._launch("coordinator", 0, command, None)
        deadline = time.monotonic() + PORT_FILE_TIMEOUT_S
        while not port_file.exists():
            self._check_signals()
            if self._coordinator.poll() is not None:
                self._tell_death(self._coordinator)
                code = self._coordinator.poll()
                raise Stop("the coordinator did not start", 2 if code == 2 else 1)
            if time.monotonic() >= deadline:
                raise Stop(f"the coordinator did not listen within {PORT_FILE_TIMEOUT_S} s")
            time.sleep(0.02)
        self._address = f"{self._coordinator_host}:{port_file.read_text().strip()}"
        self._report.event(f"coordinator {self._address}")

    def _start_worker(self, rank):
        flags = [f"--coordinator={self._address}", f"--transport={self._options.transport}",
                 f"--rank={rank}", *self._throttle()]
        if self._options.staleness is not None:
            flags.append(f"--staleness={self._options.staleness}")
        self._lives[rank] += 1
        life = self._lives[rank]
        label = f"worker-{rank}" if life == 1 else f"worker-{rank}.{life}"
        return self._launch("worker", rank,
                            [self._programs / "slackline-worker", *flags, *self._worker_flags],
                            self._worker_hosts[rank], label)

    def _launch(self, role, index, command, host, label=None):
        label = label or (role if role == "coordinator" else f"{role}-{index}")
        # BLAS and OpenMP would each start a thread a core in every process.
        environment = {name: os.environ.get(name, "1")
                       for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
        log_path = self._run_dir / "logs" / f"{label}.log"
        with open(log_path, "a") as log:
            log.write(f"$ {shlex.join(str(word) for word in command)}\n")
        process = Process(role, index, command, log_path, host, self._options.ssh, environment,
                          label)
        place = f" on {host}" if host else ""
        self._report.event(f"started {label} (pid {process.pid}){place}")
        return process

    def _write_record(self):
        rundir.write_fleet(self._run_dir, {
            "fleet": rundir.record_of(os.getpid()),
            "coordinator": self._address,
            "processes": [rundir.record_of(process.pid, name=process.label)
                          for process in self._all() if process.poll() is None]})

    def _all(self):
        return [p for p in [self._coordinator, *self._servers, *self._workers] if p is not None]

    # ---- Watching -------------------------------------------------------------------------------

    def _watch(self):
        options = self._options
        deadline = time.monotonic() + options.timeout if options.timeout else None
        while True:
            self._check_signals()
            if self._coordinator.poll() is not None:
                return self._finish()
            self._watch_servers()
            self._watch_workers()
            self._report.progress(progress.line_of(self._page()))
            if deadline is not None and time.monotonic() >= deadline:
                raise Stop(f"the run did not end within --timeout {options.timeout:g} s")
            time.sleep(WATCH_S)

    def _page(self):
        return rundir.read_json(self._run_dir / "status.json") or {}

    def _check_signals(self):
        if self._signals:
            name = signal.Signals(self._signals[0]).name
            raise Stop(f"interrupted ({name})", EXIT_INTERRUPTED)

    def _tell_death(self, process):
        self._report.event(f"{process.label} died: {process.how_it_ended()}; the end of "
                           f"{process.log_path}:")
        self._report.block(process.log_tail())

    def _new_deaths(self, processes):
        """Those that ended by themselves since the last call, told; with the job's phase then.

        The coordinator writes the page before it tells the others to go, so that a death which
        finds the job running is one.
        """
        deaths = []
        for process in processes:
            if process.reported or process.poll() is None:
                continue
            process.reported = True
            phase = self._page().get("phase")
            if process.poll() == 0 or phase in ("ending", "ended"):
                continue
            self._tell_death(process)
            if process.poll() == 2:
                raise Stop(f"{process.label} was given a wrong argument", 2)
            deaths.append((process, phase in BEFORE_TRAINING))
        return deaths

    def _watch_servers(self):
        for server, starting in self._new_deaths(self._servers):
            if starting:
                raise Stop(f"{server.label} died before training began")
            # The coordinator ends the job when the lease has run out, and says what was lost.
            self._server_lost_at = self._server_lost_at or time.monotonic()
        bound = self._options.lease_ms / 1000 + 2 * OTHERS_PATIENCE_S
        if self._server_lost_at is not None and time.monotonic() - self._server_lost_at > bound:
            raise Stop(f"a server is lost and the coordinator has not ended the job in {bound:g} s")

    def _watch_workers(self):
        for worker, starting in self._new_deaths(self._workers):
            if self._restarts_left > 0:
                # The coordinator lets it in when the lease of the dead one has run out.
                self._restarts_left -= 1
                self._workers[worker.index] = self._start_worker(worker.index)
                self._write_record()
            elif starting:
                raise Stop(f"{worker.label} died before training began")
        if all(worker.poll() not in (None, 0) for worker in self._workers) and (
                self._page().get("phase") not in ("ending", "ended")):
            raise Stop("no worker is left" + self._resume_hint(self._page()))

    def _finish(self):
        """The coordinator has gone: the job is over, well or not."""
        page = self._page()
        if self._coordinator.poll() != 0:
            if page.get("phase") != "ended":
                self._tell_death(self._coordinator)
            raise Stop(page.get("reason") or "the coordinator died "
                       f"({self._coordinator.how_it_ended()}){self._resume_hint(page)}")
        deadline = time.monotonic() + OTHERS_PATIENCE_S
        for process in self._servers + self._workers:
            if not process.wait(deadline):
                self._report.event(f"{process.label} has not ended {OTHERS_PATIENCE_S} s after "
                                   "the job; ending it")
        self._report.progress(progress.line_of(page))
        self._report.event("done: the job is complete")
        self._show_summary()
        return 0

    @staticmethod
    def _resume_hint(page):
        last = (page.get("checkpoint") or {}).get("last")
        return f"; go on from {last} with --resume" if last else ""

    def _show_summary(self):
        summary = rundir.read_json(self._run_dir / "summary.json")
        if summary is None:
            raise Stop(f"the coordinator left no {self._run_dir / 'summary.json'}")
        width = max(len(name) for name in summary)
        self._report.block(f"{name.ljust(width)}  {progress.or_dash(value)}"
                           for name, value in summary.items())
        sample = self._run_dir / "sample.txt"
        if sample.exists():
            self._report.event("a sample of the model:")
            self._report.block(sample.read_text(errors="replace").splitlines())

    # ---- The end --------------------------------------------------------------------------------

    def _end(self):
        """Leaves nothing running, whatever happened. A second Ctrl-C makes it quick."""
        def hurry():
            return len(self._signals) > 1

        running = [process for process in self._all() if process.poll() is None]
        if self._coordinator is not None and self._coordinator.poll() is None and not hurry():
            self._report.event(f"stopping {len(running)} processes")
            # It tells the others to go; they are ended below if they do not.
            self._coordinator.send(signal.SIGTERM)
            deadline = time.monotonic() + COORDINATOR_PATIENCE_S
            while (self._coordinator.poll() is None and time.monotonic() < deadline
                   and not hurry()):
                time.sleep(POLL_S)
        for process in end_all(self._all(), OTHERS_PATIENCE_S, hurry):
            self._report.event(f"{process.label} (pid {process.pid}) had to be killed")
        if running:
            self._report.event("all processes have ended")
