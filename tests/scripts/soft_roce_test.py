"""scripts/soft_roce: arguments, what it says when something is missing, and how it ends a run.

The machines here are shell scripts that stand in for QEMU: they do what a guest does to its results
directory. The real ones run in `scripts/test.sh rdma`.
"""

import os
import pathlib
import stat
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOFT_ROCE = ROOT / "scripts" / "soft_roce"
BOUND_S = 60

# Stands in for QEMU: finds its number and the results in its arguments, and plays the guest.
GUEST = """\
#!/bin/bash
for word in "$@"; do
  case $word in
    *soft_roce=*) machine=${word##*soft_roce=} ;;
    local,id=results,path=*) results=${word#*path=}; results=${results%%,*} ;;
  esac
done
share=$results/machine-$machine
echo "console of $machine"
source "$share/settings.sh"
export SOFT_ROCE_MACHINE=$machine SOFT_ROCE_RESULTS=$results
: >"$share/ready"
while [[ ! -e $results/.start ]]; do sleep 0.01; done
bash "$share/command.sh" >"$share/output.log" 2>&1
code=$?
[[ -e $results/crash ]] || echo $code >"$share/exit_code"
"""


class SoftRoce(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="slackline-roce-")
        self.addCleanup(temporary.cleanup)
        self.directory = pathlib.Path(temporary.name)
        self.results = self.directory / "results"
        self.bin = self.directory / "bin"
        self.bin.mkdir()
        self.program("qemu-system-x86_64", GUEST)
        # A kernel that is there already; apt does not know a newer one.
        self.program("apt-cache", "#!/bin/sh\n")
        kernel = self.directory / "cache" / "slackline" / "soft_roce" / "linux-image-1"
        kernel.mkdir(parents=True)
        (kernel / "vmlinuz").touch()
        (kernel / "order").touch()
        self.path = f"{self.bin}:{os.environ['PATH']}"

    def program(self, name, text):
        path = self.bin / name
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def run_it(self, *arguments):
        return subprocess.run(
            [sys.executable, SOFT_ROCE, *arguments], capture_output=True, text=True,
            timeout=BOUND_S, cwd=self.directory, check=False,
            env={"PATH": self.path, "XDG_CACHE_HOME": str(self.directory / "cache"),
                 "HOME": str(self.directory)})

    def run_machines(self, *arguments):
        done = self.run_it("--results", str(self.results), *arguments)
        if done.returncode == 77:
            self.skipTest(done.stderr.strip())
        return done

    def test_wrong_arguments_are_one_line_and_exit_code_2(self):
        for arguments, message in (
                ([], "no command"),
                (["--machines", "3", "--", "true"], "a whole number, 1 to 2"),
                (["--loss", "1%", "--", "true"], "--loss needs --machines 2"),
                (["--kill-after", "5s", "--", "true"], "--kill-after needs --machines 2"),
                (["--machines", "2", "--loss", "1", "--", "true"], "a percentage such as 1%"),
                (["--machines", "2", "--loss", "101%", "--", "true"], "a percentage"),
                (["--machines", "2", "--cut-after", "5x", "--", "true"], "seconds above 0"),
                (["--machines", "2", "--cut-after", "../x", "--", "true"], "a file name"),
                (["--machines", "2", "--engine", "uml", "--", "true"], "--engine qemu"),
                (["--env", "1=2", "--", "true"], "NAME=VALUE"),
                (["--timeout", "0", "--", "true"], "seconds above 0"),
                (["--bogus", "--", "true"], "--bogus")):
            done = self.run_it(*arguments)
            self.assertEqual(done.returncode, 2, arguments)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
            self.assertIn(message, done.stderr)

    def test_what_is_missing_is_named_with_the_command_that_brings_it(self):
        self.path = str(self.bin)
        (self.bin / "qemu-system-x86_64").unlink()
        done = self.run_it("--", "true")
        self.assertEqual(done.returncode, 77)
        self.assertIn("apt-get install qemu-system-x86", done.stderr)
        done = self.run_it("--engine", "uml", "--", "true")
        self.assertEqual(done.returncode, 77)
        self.assertIn("scripts/soft_roce build-uml", done.stderr)
        done = self.run_it("--engine", "uml", "--uml-kernel", "/none", "--", "true")
        self.assertEqual(done.returncode, 77)
        self.assertIn("/none", done.stderr)

    def test_a_kernel_that_apt_does_not_know_is_said(self):
        (self.directory / "cache" / "slackline" / "soft_roce" / "linux-image-1" / "vmlinuz").unlink()
        done = self.run_it("--results", str(self.results), "--", "true")
        self.assertEqual(done.returncode, 77)
        self.assertIn("apt-get", done.stderr)

    def test_output_has_a_prefix_and_the_exit_code_is_the_commands(self):
        done = self.run_machines("--env", "WHO=all of you", "--", "bash", "-c",
                                 'echo "hello $WHO"; printf unfinished; exit 3')
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertEqual(done.stdout, "machine 0| hello all of you\nmachine 0| unfinished\n")
        self.assertIn("console of 0", (self.results / "machine-0" / "console.log").read_text())

    def test_two_machines_and_the_first_code_that_is_not_0(self):
        done = self.run_machines("--machines", "2", "--second", "echo second; exit 4", "--",
                                 "echo", "first")
        self.assertEqual(done.returncode, 4)
        self.assertIn("machine 0| first\n", done.stdout)
        self.assertIn("machine 1| second\n", done.stdout)

    def test_a_command_without_end_is_ended_with_all_it_started(self):
        begin = time.monotonic()
        done = self.run_machines("--timeout", "0.5s", "--", "sleep", "1234567")
        self.assertEqual(done.returncode, 124)
        self.assertIn("machine 0 ran past --timeout", done.stdout)
        self.assertLess(time.monotonic() - begin, BOUND_S / 2)
        self.assertNotIn("1234567", subprocess.run(["ps", "ax", "-o", "args"], text=True, check=True,
                                                   stdout=subprocess.PIPE).stdout)

    def test_a_machine_that_dies_is_told_with_its_console(self):
        done = self.run_machines("--", "touch", str(self.results / "crash"))
        self.assertEqual(done.returncode, 125)
        self.assertIn("machine 0 died by itself", done.stdout)
        self.assertIn("console of 0", done.stdout)

    def test_power_is_lost_when_a_file_appears_and_that_is_no_failure(self):
        self.results.mkdir()
        (self.results / "now").touch()  # An earlier run's does not count.
        done = self.run_machines(
            "--machines", "2", "--kill-after", "now", "--second", "sleep 1234567", "--", "bash",
            "-c", f"sleep 0.3; touch {self.results}/now; sleep 0.3; echo survived")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("machine 1 has lost its power", done.stdout)
        self.assertIn("machine 0| survived", done.stdout)

    def test_results_are_one_runs_at_a_time(self):
        first = subprocess.Popen(
            [sys.executable, SOFT_ROCE, "--results", str(self.results), "--", "sleep", "30"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self.directory,
            env={"PATH": self.path, "XDG_CACHE_HOME": str(self.directory / "cache"),
                 "HOME": str(self.directory)})
        try:
            deadline = time.monotonic() + BOUND_S
            while not (self.results / "machine-0" / "ready").exists():
                if first.poll() == 77:
                    self.skipTest("see the other cases")
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.02)
            done = self.run_it("--results", str(self.results), "--", "true")
            self.assertEqual(done.returncode, 2)
            self.assertIn("another run uses it", done.stderr)
        finally:
            first.terminate()
            self.assertEqual(first.wait(BOUND_S), 143)


if __name__ == "__main__":
    unittest.main(verbosity=2)
