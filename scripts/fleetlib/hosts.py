"""Hostfiles: which process runs where."""

import shlex
from dataclasses import dataclass

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
ROLES = ("server", "worker", "any")
MAX_SLOTS = 1024


class UsageError(Exception):
    """An argument is wrong; the message is for the person."""


@dataclass
class Host:
    name: str
    slots: int = 1
    role: str = "any"


def parse(text, source="the hostfile"):
    """Returns the hosts of a hostfile's text."""
    hosts = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        host = Host(words[0])
        rest = words[1:]
        # A name that begins with a dash would be an option to ssh.
        good = not host.name.startswith("-") and len(rest) <= 2
        if rest and rest[0].isdigit():
            host.slots = int(rest.pop(0))
            good = good and 1 <= host.slots <= MAX_SLOTS
        if rest:
            host.role = rest.pop(0)
        if not good or rest or host.role not in ROLES:
            raise UsageError(f"{source}, line {number}: expected HOST [SLOTS] [server|worker|any], "
                             f"found '{line.strip()}'")
        hosts.append(host)
    if not hosts:
        raise UsageError(f"{source}: no host in it")
    return hosts


def place(hosts, role, count, taken):
    """Chooses a host for each of `count` processes, one after the other in turn.

    Hosts of that role go before those for any. `taken` counts slots by host position and is
    updated.
    """
    chosen = []
    order = [i for i, host in enumerate(hosts) if host.role == role]
    order += [i for i, host in enumerate(hosts) if host.role == "any"]
    while len(chosen) < count:
        free = [i for i in order if taken.get(i, 0) < hosts[i].slots]
        if not free:
            raise UsageError(f"the hostfile has slots for {len(chosen)} of {count} {role}s")
        for index in free[:count - len(chosen)]:
            taken[index] = taken.get(index, 0) + 1
            chosen.append(hosts[index].name)
    return chosen


def is_local(host):
    return host in LOCAL_NAMES


def ssh_command(ssh, host, directory, command, environment):
    """The local command that runs `command` on the host.

    With a terminal (-tt) the remote process gets a hang-up when this end goes, so that nothing
    stays behind there.
    """
    words = ["env"] + [f"{name}={value}" for name, value in environment.items()]
    words += [str(word) for word in command]
    remote = f"cd {shlex.quote(str(directory))} && exec {shlex.join(words)}"
    return shlex.split(ssh) + ["-tt", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", host,
                               remote]
