#!/usr/bin/env python3
"""Fail when clang-format 14 would change a C++ file.

usage: check_format.py [root]
"""
import pathlib
import subprocess
import sys

import tree


def check(root, style="file"):
    def one(rel):
        run = subprocess.run(["clang-format-14", "--dry-run", "--Werror", f"--style={style}", str(root / rel)],
                             capture_output=True, text=True)
        return f"{rel}: {run.stderr.splitlines()[0] if run.stderr else 'cannot format'}" if run.returncode else ""
    return tree.each(one, tree.files(root, tree.SOURCES))


if __name__ == "__main__":
    sys.exit(tree.finish("format", check(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else tree.ROOT)))
