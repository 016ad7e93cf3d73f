"""Runs commands on the other machine for scripts/fleet, as ssh would: guests have no sshd.

  remote.py serve PORT                      on the other machine
  remote.py PORT [ssh options] HOST COMMAND in place of ssh

The command ends when its caller does. No authentication: between two guests on a wire of their own.
"""

import os
import signal
import socket
import socketserver
import subprocess
import sys
import threading

MAX_COMMAND_BYTES = 65536


class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        command = self.rfile.readline(MAX_COMMAND_BYTES).decode().replace("\0", "\n").rstrip("\n")
        process = subprocess.Popen(["/bin/bash", "-c", command], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   start_new_session=True)

        def end_with_caller():
            self.rfile.read(1)  # Returns when the caller has gone.
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)

        threading.Thread(target=end_with_caller, daemon=True).start()
        for line in process.stdout:
            self.wfile.write(line)
        self.wfile.write(f"exit {process.wait()}\n".encode())


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


def call(port, host, command):
    """The remote command's exit code; its output goes to ours."""
    line = b""
    with socket.create_connection((host, port), timeout=60) as connection:
        connection.settimeout(None)
        connection.sendall(command.replace("\n", "\0").encode() + b"\n")
        for line in connection.makefile("rb"):
            if line.startswith(b"exit "):
                code = int(line.split()[1])
                return code if code >= 0 else 128 - code
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
    return 255  # As ssh, when the connection is lost.


def main(arguments):
    if arguments[0] == "serve":
        Server(("0.0.0.0", int(arguments[1])), Handler).serve_forever()
    return call(int(arguments[0]), arguments[-2], arguments[-1])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
