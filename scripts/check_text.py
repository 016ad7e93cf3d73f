#!/usr/bin/env python3
"""Checks the text of every tracked file that people read or run.

No paths of one person's machine, no notes of unfinished work, no trailing blanks, a newline at the
end. Fuzzing corpora are data and are left alone.

Usage: scripts/check_text.py [ROOT]. Prints one line a violation; exit code 1 if there are any.
"""

import pathlib
import re
import subprocess
import sys

SUFFIXES = {".h", ".cc", ".cmake", ".txt", ".md", ".py", ".sh", ".json", ".proto", ".yml", ""}

# Brackets keep the expressions from matching themselves.
RULES = [
    (re.compile(r"(^|[^\w.])/(home|Users|work|root)[/]\w"), "a path of one machine"),
    (re.compile(r"/tmp/(bash|wt)[_]"), "a path of one machine"),
    (re.compile(r"\b(TO[D]O|FIX[M]E|X[X]X)\b"), "a note of unfinished work"),
    (re.compile(r"[ \t]+$"), "trailing blanks"),
]


def text_files(root):
    """Tracked and new files under root that are text by their suffix, relative to it."""
    listed = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True, check=False)
    if listed.returncode == 0:
        names = [name for name in listed.stdout.decode().split("\0") if name]
    else:
        names = [str(path.relative_to(root)) for path in root.rglob("*")]
    return sorted(name for name in names
                  if pathlib.Path(name).suffix in SUFFIXES and "/corpus/" not in name and
                  (root / name).is_file())


def check_file(name, data):
    """Violations of one file, each a line for a person."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return [f"{name}: is not UTF-8"]
    found = []
    for number, line in enumerate(text.split("\n"), start=1):
        found += [f"{name}:{number}: {what}" for rule, what in RULES if rule.search(line)]
    if text and not text.endswith("\n"):
        found.append(f"{name}: has no newline at its end")
    return found


def main(arguments):
    if len(arguments) > 1 or (arguments and arguments[0].startswith("-")):
        print(__doc__.strip(), file=sys.stderr)
        return 2
    root = pathlib.Path(arguments[0] if arguments else pathlib.Path(__file__).parent.parent)
    files = text_files(root)
    found = []
    for name in files:
        found += check_file(name, (root / name).read_bytes())
    for line in found:
        print(line)
    if not files:
        print(f"{root}: no files found")
    return 1 if found or not files else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
