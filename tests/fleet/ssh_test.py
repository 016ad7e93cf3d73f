"""A fleet over ssh, with a real sshd of this test's own on a loopback port.

Skipped (exit code 77, counted by ctest) where there is no sshd: scripts/setup.sh does not install
one, since Debian's package starts a service.
"""

import os
import shutil
import socket
import subprocess
import sys
import unittest

from live import LiveTest, RUN_BOUND_S, alive

SSHD = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin")
SKIPPED = 77


class OverSsh(LiveTest):
    def start_sshd(self):
        folder = self.directory / "ssh"
        folder.mkdir()
        for name in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name],
                           check=True, timeout=RUN_BOUND_S)
        shutil.copy(folder / "user.pub", folder / "authorized_keys")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        os.makedirs("/run/sshd", exist_ok=True)  # sshd wants it even when no service made it.
        sshd = subprocess.Popen(
            [SSHD, "-D", "-p", str(port), "-h", folder / "host", "-o", "ListenAddress=127.0.0.1",
             "-o", f"AuthorizedKeysFile={folder / 'authorized_keys'}", "-o", "StrictModes=no",
             "-o", "PidFile=none", "-E", folder / "sshd.log"])
        self.addCleanup(sshd.wait, RUN_BOUND_S)
        self.addCleanup(sshd.terminate)
        self.wait_until("sshd listens", lambda: self.listens(port), sshd)
        return (f"ssh -p {port} -i {folder / 'user'} -o StrictHostKeyChecking=no "
                f"-o UserKnownHostsFile={folder / 'known'}")

    def listens(self, port):
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    def test_a_job_over_ssh_is_complete_and_leaves_nothing(self):
        hosts = self.directory / "hosts"
        hosts.write_text("127.0.0.1 8\n")
        self.run_fleet("remote", 2, 2, 1, ["--steps=40"],
                       options=["--hostfile", str(hosts), "--coordinator-host", "127.0.0.1",
                                "--ssh", self.start_sshd()])
        self.assertEqual(self.summary("remote")["steps"], 40)
        page = self.status("remote")
        for process in page["servers"] + page["workers"]:
            self.assertFalse(alive(process["pid"]), f"process {process['pid']} outlived its fleet")


if __name__ == "__main__":
    if SSHD is None:
        print("skipped: no sshd here")
        sys.exit(SKIPPED)
    unittest.main(verbosity=2)
