#!/usr/bin/env python3
"""The repository's checks find what they are for: every rule is shown a file that breaks it."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parent.parent.parent / "scripts"


class CheckTest(unittest.TestCase):
    """Runs a check over a small tree."""

    script = ""

    def run_check(self, files):
        """The exit code and the lines that the script prints for {path: text}."""
        with tempfile.TemporaryDirectory() as root:
            for name, text in files.items():
                path = pathlib.Path(root) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(text if isinstance(text, bytes) else text.encode())
            result = subprocess.run([sys.executable, str(SCRIPTS / self.script), root],
                                    capture_output=True, text=True, check=False)
        self.assertEqual(result.stderr, "")
        return result.returncode, result.stdout.splitlines()

    def assert_clean(self, files):
        self.assertEqual(self.run_check(files), (0, []))

    def assert_found(self, files, *parts):
        """One violation, whose line has all of parts."""
        code, lines = self.run_check(files)
        self.assertEqual(code, 1)
        self.assertEqual(len(lines), 1, lines)
        for part in parts:
            self.assertIn(part, lines[0])


def header(*includes):
    return "#pragma once\n" + "".join(f"#include {name}\n" for name in includes)


class IncludesTest(CheckTest):
    script = "check_includes.py"

    # A file in every layer, for others to include.
    LAYERS = {f"{folder}/x.h": header() for folder in
              ("common", "proto", "transport", "server", "server/consistency", "worker",
               "worker/client", "tests", "benchmarks")}

    def including(self, path, name):
        return {**self.LAYERS, path: header(name)}

    def test_layers_may_look_down(self):
        self.assert_clean(self.including("proto/a.h", '"common/x.h"'))
        self.assert_clean(self.including("transport/tcp/a.h", '"proto/control.pb.h"'))
        self.assert_clean(self.including("server/a.h", '"server/consistency/x.h"'))
        self.assert_clean(self.including("worker/trainer/a.h", '"worker/client/x.h"'))
        self.assert_clean(self.including("tests/server/a.h", '"worker/x.h"'))
        self.assert_clean(self.including("benchmarks/a.h", '"server/x.h"'))

    def test_layers_may_not_look_up_or_across(self):
        for path, target in (("common/a.h", "proto/x.h"), ("proto/a.h", "transport/x.h"),
                             ("transport/a.h", "server/x.h"), ("server/a.h", "worker/x.h"),
                             ("worker/a.h", "server/x.h"), ("worker/client/a.h", "worker/x.h"),
                             ("server/consistency/a.h", "proto/x.h"),
                             ("common/a.h", "proto/control.pb.h")):
            self.assert_found(self.including(path, f'"{target}"'), f"{path}:2", target, "not below")

    def test_tests_are_included_by_nobody(self):
        self.assert_found(self.including("server/a.h", '"tests/x.h"'), "tests and benchmarks only")
        self.assert_found(self.including("common/a.h", '"benchmarks/x.h"'), "benchmarks only")

    def test_includes_are_from_the_root_and_exist(self):
        self.assert_found(self.including("common/a.h", '"x.h"'), "does not exist")
        self.assert_found(self.including("common/a.h", '"../common/x.h"'), "relative")
        self.assert_found(self.including("common/a.h", '"gtest/gtest.h"'), "system headers go in")

    def test_libraries_see_no_flags(self):
        files = {**self.LAYERS, "common/flags.h": header()}
        self.assert_found({**files, "server/shard.cc": '#include "common/flags.h"\n'}, "main.cc")
        self.assert_found({**files, "server/shard.cc": "#include <gflags/gflags.h>\n"}, "main.cc")
        self.assert_clean({**files, "server/main.cc": '#include "common/flags.h"\n'})
        self.assert_clean({**files, "tests/a.cc": "#include <gflags/gflags.h>\n"})

    def test_system_headers_stay_where_they_belong(self):
        self.assert_found(self.including("worker/client/a.h", "<torch/torch.h>"), "libtorch")
        self.assert_clean(self.including("worker/model/a.h", "<torch/torch.h>"))
        self.assert_found(self.including("server/a.h", "<boost/asio.hpp>"), "Boost")
        self.assert_found(self.including("transport/a.h", "<mutex>"), "common/mutex.h")
        self.assert_clean(self.including("common/a.h", "<mutex>"))
        self.assert_found(self.including("server/consistency/a.h", "<chrono>"), "handed")

    def test_headers_have_a_guard(self):
        self.assert_found({"common/a.h": "int f();\n"}, "common/a.h", "#pragma once")
        self.assert_clean({"common/a.cc": "int f() { return 1; }\n"})
        self.assert_clean({"common/a-inl.h": '#include "hwy/highway.h"\n'})

    def test_an_empty_tree_is_no_success(self):
        self.assert_found({}, "no C++ files")


class TextTest(CheckTest):
    script = "check_text.py"

    def test_clean_text_passes(self):
        self.assert_clean({"a.cc": "// Under /usr/include and at ./work/here.\n", "b.md": ""})

    def test_each_rule_finds_its_own(self):
        # Put together here, so that this file passes the check.
        for text, what in (("see /" + "home/me/x\n", "path"), ("x=/" + "work/repo\n", "path"),
                           ("// TO" + "DO: later\n", "unfinished"), ("int a; \n", "blanks"),
                           ("int a;", "newline"), (b"\xff\n", "UTF-8")):
            self.assert_found({"docs/a.md": text}, "docs/a.md", what)

    def test_corpora_are_data(self):
        self.assert_clean({"a.cc": "\n", "tests/common/corpus/some_fuzz/x": b"\xff "})


if __name__ == "__main__":
    unittest.main()
