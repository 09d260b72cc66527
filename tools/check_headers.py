#!/usr/bin/env python3
"""Fail when a header of the library does not compile on its own, included twice.

usage: check_headers.py [root]
"""
import pathlib
import subprocess
import sys

import tree

FLAGS = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror"]


def check(root):
    def one(rel):
        name = rel.removeprefix("include/")
        source = f'#include "{name}"\n#include "{name}"\n'
        run = subprocess.run(["g++", *FLAGS, f"-I{root}", f"-I{root / 'include'}", "-x", "c++", "-"],
                             input=source, capture_output=True, text=True)
        return f"{rel}: not self-contained:\n{run.stderr}" if run.returncode else ""
    headers = [rel for rel in tree.files(root, (".hpp", ".h"))
               if rel.split("/")[0] in ("include", "transport", "collectives")]
    return tree.each(one, headers)


if __name__ == "__main__":
    sys.exit(tree.finish("headers", check(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else tree.ROOT)))
