#!/usr/bin/env python3
"""Fail when a text of the tree says what only one machine or one day knows.

usage: check_text.py [root]          one line per violation: file:line: rule: text
"""
import pathlib
import re
import sys

import tree

# Written in pieces, so that this file passes its own check.
RULES = {
    "path of a machine": r"(?<![\w.$}])/(?:" + "|".join(("ho" "me", "ro" "ot", "wo" "rk", "Us" "ers",
                                                        "mnt" "/data")) + r")/[\w.]",
    "registry": "|".join((r"\bdocker" r"\.io\b", r"\b(?:ghcr|gcr|quay)" r"\.io\b", r"\bpypi" r"\.org\b",
                          r"\bcrates" r"\.io\b", r"\bnpmjs" r"\.", r"\bpkg" r"\.dev\b",
                          r"\bartifact" r"ory\b", r"\bdeb\.debian" r"\.org\b",
                          r"\bregistry" r"\.[\w-]+\.[a-z]{2,}\b")),
    "unfinished": r"\b(?:TO" r"DO|FIX" r"ME|X" r"XX|HA" r"CK)\b",
    "conflict": r"^(?:<{7}|>{7}) ",
    "trailing space": r"[ \t]+$",
}
COMPILED = {name: re.compile(pattern) for name, pattern in RULES.items()}


def check_file(rel, text):
    for number, line in enumerate(text.splitlines(), 1):
        for name, pattern in COMPILED.items():
            if pattern.search(line):
                yield f"{rel}:{number}: {name}: {line.strip()[:100]}"


def check(root):
    complaints = []
    for rel in tree.files(root):
        data = (root / rel).read_bytes()
        if b"\0" in data:
            continue
        text = data.decode(errors="replace")
        complaints += check_file(rel, text)
        if text and not text.endswith("\n"):
            complaints.append(f"{rel}:{text.count(chr(10)) + 1}: no newline at the end")
    return complaints


if __name__ == "__main__":
    sys.exit(tree.finish("texts", check(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else tree.ROOT)))
