#!/usr/bin/env python3
"""Fail when a shell script of the tree has a syntax error, or is not executable.

usage: check_shell.py [root]
"""
import os
import pathlib
import subprocess
import sys

import tree


def is_script(path):
    with path.open("rb") as file:
        first = file.readline(80)
    return first.startswith(b"#!") and first.rstrip().endswith((b"bash", b"/sh"))


def check(root):
    complaints = []
    for rel in tree.files(root):
        if not is_script(root / rel):
            continue
        run = subprocess.run(["bash", "-n", str(root / rel)], capture_output=True, text=True)
        if run.returncode:
            complaints.append(f"{rel}: {run.stderr.strip()}")
        if not os.access(root / rel, os.X_OK):
            complaints.append(f"{rel}: not executable")
    return complaints


if __name__ == "__main__":
    sys.exit(tree.finish("shell", check(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else tree.ROOT)))
