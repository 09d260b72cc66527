"""What the program tests share: run a command, and say what was expected of it."""
import json
import subprocess
import sys

failures = []


def run(command, timeout=60):
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    return done.returncode, done.stdout, done.stderr


def expect(condition, what, output=()):
    if condition:
        return
    failures.append(what)
    print(f"FAILED: {what}")
    for text in output:
        print(text)


def table_rows(stdout):
    """Lines of the table that carry numbers."""
    states = ("near", "far", "mixed")
    return [line for line in stdout.splitlines() if any(f" {s} " in line for s in states)]


def json_lines(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def finish():
    print(f"{len(failures)} failures")
    sys.exit(1 if failures else 0)
