"""scripts/prepare_data: what it makes, and the one line that bad input gets."""

import json
import subprocess
import tempfile
import unittest
from pathlib import Path

PREPARE = Path(__file__).resolve().parent.parent.parent / "scripts" / "prepare_data"
BOUND_S = 60


class PrepareDataTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.dir = Path(temporary.name)
        self.out = self.dir / "out"

    def file(self, name, content):
        path = self.dir / name
        path.write_bytes(content)
        return str(path)

    def prepare(self, *arguments, code=0):
        done = subprocess.run([str(PREPARE), *map(str, arguments)], capture_output=True, text=True,
                              timeout=BOUND_S)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def refused(self, *arguments):
        line = self.prepare(*arguments, code=1).stderr
        self.assertEqual(len(line.splitlines()), 1, line)
        self.assertTrue(line.startswith("prepare_data: "), line)
        self.assertFalse(self.out.exists())
        return line

    def test_text_becomes_shards_that_check(self):
        self.prepare("--out", self.out, self.file("a.txt", b"A line of some words.\n" * 1000))
        self.prepare("--check", self.out)
        shard = self.out / "train-0000.bin"
        shard.write_bytes(shard.read_bytes().replace(b"some", b"sume", 1))
        self.assertIn("train-0000.bin: damaged", self.prepare("--check", self.out, code=1).stderr)

    def test_files_that_are_no_text(self):
        self.assertIn("not UTF-8 at byte 2: 0xff",
                      self.refused("--out", self.out, self.file("b", b"ok\xff")))
        self.assertIn("found 0 bytes", self.refused("--out", self.out, self.file("c", b"")))
        self.assertIn("nowhere: cannot be read: No such file",
                      self.refused("--out", self.out, "nowhere"))
        self.assertIn("cannot be unpacked",
                      self.refused("--out", self.out, self.file("d.gz", b"\x1f\x8b\x08\x00")))

    def test_tables_that_are_no_images(self):
        for content in (b"1,nan\n", b"1,inf\n", b"1,256\n", b"1,0.5\n"):
            self.assertIn("expected whole numbers from 0 to 255", self.refused(
                "--out", self.out, "--images", self.file("t.csv", content)))
        self.assertIn(":2: expected numbers between commas", self.refused(
            "--out", self.out, "--images", self.file("t.csv", b"1,2\nx" + b"y" * 9999)))

    def test_manifests_that_are_none(self):
        for manifest in ([], {"splits": []}, {"splits": {"train": 3}}, {}):
            directory = self.dir / "m"
            directory.mkdir(exist_ok=True)
            (directory / "manifest.json").write_text(json.dumps(manifest))
            self.assertIn("not the manifest of a data directory",
                          self.refused("--check", directory))

    def test_wrong_flags_exit_with_2(self):
        for bad in ([], ["--nonsense"], ["--validation", "2", "x"], ["x"]):
            self.prepare(*bad, code=2)


if __name__ == "__main__":
    unittest.main()
