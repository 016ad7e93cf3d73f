#!/usr/bin/env python3
"""Checks that includes follow the layers of docs/architecture.md.

    common  <-  proto  <-  transport  <-  server
                                      <-  worker

Usage: scripts/check_includes.py [ROOT]. Prints one line a violation; exit code 1 if there are any.
"""

import pathlib
import re
import subprocess
import sys

# What the files of a folder may include. The longest folder that contains a file decides.
# tests/ and benchmarks/ may include anything and are included by no other folder.
LAYERS = {
    "common": {"common"},
    "proto": {"common", "proto"},
    "transport": {"common", "proto", "transport"},
    "server": {"common", "proto", "transport", "server"},
    "worker": {"common", "proto", "transport", "worker"},
    # The pure state machine: no I/O below it.
    "server/consistency": {"common", "server/consistency"},
    # The library for other people's training loops: nothing of the trainer.
    "worker/client": {"common", "proto", "transport", "worker/client"},
}
UNRESTRICTED = {"tests", "benchmarks"}

# System headers that are kept out of folders: (header, folders it may not be in, why).
LIBRARIES = ("common", "proto", "transport", "server", "worker")
SYSTEM_RULES = [
    (re.compile(r"(torch|ATen|c10)/"), ("common", "proto", "transport", "server", "worker/client"),
     "is libtorch, which is the trainer's alone"),
    (re.compile(r"boost/"), ("common", "proto", "server", "worker"),
     "is Boost, which is the transports' alone"),
    (re.compile(r"(mutex|shared_mutex|condition_variable)$"),
     ("proto", "transport", "server", "worker"),
     "has no annotations for -Wthread-safety; use common/mutex.h"),
    (re.compile(r"(thread|atomic|chrono|random|fstream|iostream|filesystem)$"),
     ("server/consistency",), "is time, threads or I/O, which the state machine is handed"),
]

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def source_files(root):
    """C++ files under root, as paths relative to it."""
    listed = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard",
         "--", "*.h", "*.cc"], capture_output=True, check=False)
    if listed.returncode == 0:
        names = listed.stdout.decode().split("\0")
        return sorted(name for name in names if name and (root / name).exists())
    return sorted(str(path.relative_to(root)) for path in root.rglob("*")
                  if path.suffix in (".h", ".cc"))


def is_inside(path, folder):
    return path == folder or path.startswith(folder + "/")


def longest_folder(path, folders):
    """The most specific of `folders` that contains path, or None."""
    inside = [folder for folder in folders if is_inside(path, folder)]
    return max(inside, key=len) if inside else None


def check_project_include(path, target, root):
    """Why `path` may not include the project's header `target`, or None."""
    if target.startswith(".") or "/../" in target:
        return "is relative; write it from the repository's root"
    if target.startswith("hwy/"):  # In quotes by Highway's own convention.
        return None
    generated = target.startswith("proto/") and target.endswith(".pb.h")
    if not generated and not (root / target).is_file():
        return "does not exist in this repository; system headers go in <>"
    if is_inside(target, "tests") or is_inside(target, "benchmarks"):
        if longest_folder(path, UNRESTRICTED) is None:
            return "is for tests and benchmarks only"
    layer = longest_folder(path, LAYERS)
    if longest_folder(path, UNRESTRICTED) is not None or layer is None:
        return None
    if not any(is_inside(target, allowed) for allowed in LAYERS[layer]):
        return f"is not below {layer}/, which may include {', '.join(sorted(LAYERS[layer]))}"
    if target == "common/flags.h" and not may_know_flags(path):
        return "is for main.cc files only; take a validated Options struct"
    return None


def check_system_include(path, target):
    """Why `path` may not include the system header `target`, or None."""
    for header, folders, reason in SYSTEM_RULES:
        if header.match(target) and any(is_inside(path, folder) for folder in folders):
            return reason
    in_library = longest_folder(path, LIBRARIES) is not None
    if target.startswith("gflags/") and in_library and not may_know_flags(path):
        return "is for main.cc files only; take a validated Options struct"
    return None


def may_know_flags(path):
    """Programs: main.cc or X_main.cc, and the *_flags files that a long one is split into."""
    name = path.rsplit("/", 1)[-1]
    return (path in ("common/flags.cc", "common/logging.cc") or
            name in ("main.cc", "flags.h", "flags.cc") or
            name.endswith(("_main.cc", "_flags.h", "_flags.cc")))


def check_file(path, text, root):
    """Violations of one file, each a line for a person."""
    found = []
    # Highway includes its -inl.h files once a SIMD target: they have guards of another kind.
    if path.endswith(".h") and not path.endswith("-inl.h") and "#pragma once" not in text:
        found.append(f"{path}: has no #pragma once")
    for number, line in enumerate(text.splitlines(), start=1):
        match = INCLUDE.match(line)
        if not match:
            continue
        bracket, target = match.groups()
        reason = (check_project_include(path, target, root) if bracket == '"' else
                  check_system_include(path, target))
        if reason:
            found.append(f"{path}:{number}: {target} {reason}")
    return found


def main(arguments):
    if len(arguments) > 1 or (arguments and arguments[0].startswith("-")):
        print(__doc__.strip(), file=sys.stderr)
        return 2
    root = pathlib.Path(arguments[0] if arguments else pathlib.Path(__file__).parent.parent)
    files = source_files(root)
    found = []
    for name in files:
        found += check_file(name, (root / name).read_text(encoding="utf-8"), root)
    for line in found:
        print(line)
    if not files:
        print(f"{root}: no C++ files found")
    return 1 if found or not files else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
