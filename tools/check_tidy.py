#!/usr/bin/env python3
"""Run clang-tidy 14 with the checks of .clang-tidy over the library's sources, on all cores.

usage: check_tidy.py BUILD_DIR [FILE...]      BUILD_DIR has compile_commands.json
Tests, tools and examples are left to the compiler's warnings: clang-tidy takes seconds per file.
"""
import json
import pathlib
import subprocess
import sys

import tree

LAYERS = ("collectives/", "transport/")


def library_sources(build, root):
    entries = json.loads((build / "compile_commands.json").read_text())
    names = {pathlib.Path(entry["directory"], entry["file"]).resolve() for entry in entries}
    inside = [name for name in names if name.is_relative_to(root)]
    # Long files first, so that no core waits for the last one.
    return sorted((name for name in inside if name.relative_to(root).as_posix().startswith(LAYERS)),
                  key=lambda name: -name.stat().st_size)


def run(arguments, file):
    """What clang-tidy has to say about one file, or ''."""
    done = subprocess.run(["clang-tidy-14", "--quiet", "--warnings-as-errors=*",
                           "--extra-arg-before=-Wno-unknown-warning-option", *arguments],
                          capture_output=True, text=True)
    return (done.stdout or f"{file}: {done.stderr}").strip() if done.returncode else ""


def check(build, chosen):
    return tree.each(lambda name: run(["-p", str(build), str(name)], name), chosen)


if __name__ == "__main__":
    where = pathlib.Path(sys.argv[1])
    sources = [pathlib.Path(name) for name in sys.argv[2:]] or library_sources(where, tree.ROOT)
    if not sources:
        sys.exit("check_tidy: no library source in the compile database")
    sys.exit(tree.finish(f"clang-tidy, {len(sources)} files", check(where, sources)))
