#!/usr/bin/env python3
"""Fail when the shared library shows a symbol that is not part of the public namespace.

usage: symbols.py LIBRARY
Allowed: m2n::Name (but nothing of m2n::transport, m2n::collectives or an unnamed namespace), with its
type information and virtual table; and weak instances of standard templates.
"""
import re
import subprocess
import sys

INNER = re.compile(r"m2n::(?:transport|collectives|detail)\b|\(anonymous namespace\)")
PUBLIC = re.compile(r"^(?:(?:typeinfo(?: name)?|vtable|VTT|non-virtual thunk to|guard variable) for )?m2n::")
STANDARD = re.compile(r"\bstd::|__gnu_cxx::|\boperator (new|delete)")


def complaint(kind, symbol):
    """Why this symbol may not be shown, or None."""
    if PUBLIC.search(symbol):
        return "internal" if INNER.search(symbol) else None
    if kind in "WVuvw" and STANDARD.search(symbol):
        return None
    return "not in namespace m2n"


def main(library):
    text = subprocess.run(["nm", "-DC", "--defined-only", library], check=True, capture_output=True,
                          text=True).stdout
    bad, shown = [], 0
    for line in text.splitlines():
        match = re.match(r"[0-9a-f]* *([A-Za-z]) (.*)", line)
        if not match:
            continue
        why = complaint(match[1], match[2])
        if why:
            bad.append(f"{why}: {match[1]} {match[2]}")
        shown += bool(PUBLIC.search(match[2]))
    if not shown:
        bad.append("nothing of m2n is shown")
    print("\n".join(bad) if bad else f"{shown} symbols of m2n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
