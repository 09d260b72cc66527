#!/usr/bin/env python3
"""m2n_perf and m2n_info alone: exit codes, tables, JSON. program_test.py PERF INFO TRACE"""
import os
import re
import sys
import tempfile

from common import expect, finish, json_lines, run, table_rows

PERF, INFO, TRACE = sys.argv[1:4]
SMALL = ["--hidden", "64", "--tokens", "1:16:x4", "--iters", "8", "--warmup", "2"]


def good(arguments, sizes=3):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "lines.json")
        output = run([PERF, *SMALL, *arguments, "--json", path])
        name = " ".join(arguments)
        expect(output[0] == 0, f"{name}: exit code {output[0]}", output[1:])
        if output[0] != 0:
            return
        expect("experts" in output[1].split("tokens")[0], f"{name}: prints its configuration first")
        lines = json_lines(path)
        expect(len({line.get("tokens", line.get("bytes")) for line in lines}) == sizes or any(
            "change their state" in text for text in output[1].splitlines()),
            f"{name}: one line per size", output[1:])
        for line in lines:
            expect(line.get("wrong") == 0, f"{name}: wrong = {line.get('wrong')}")
            if line["op"] != "put":
                expect(0 < line["wire_bytes"] and 0 < line["logical_bytes"], f"{name}: bytes")
                expect(line["wire_bytes"] < line["logical_bytes"] + 65536, f"{name}: wire bytes")


def bad(arguments, word):
    output = run([PERF, *arguments])
    name = " ".join(arguments)
    expect(output[0] not in (0, -6, -11), f"{name}: exit code {output[0]}", output[1:])
    expect(word in output[2], f"{name}: stderr names {word}", output[1:])
    expect(not table_rows(output[1]), f"{name}: prints no numbers", output[1:])


for transport in ("inproc", "shm"):
    good(["--transport", transport])
    good(["--transport", transport, "--ranks", "2x2", "--routing", "file:" + TRACE])
good(["--transport", "shm", "--routing", "zipf:1.2", "--ranks", "1x2"])
good(["--transport", "shm", "--ranks", "2x1", "--combine", "per-expert", "--micro-batches", "2"])
good(["--transport", "shm", "--layout", "grouped", "--routing", "all-to:3"])
good(["--transport", "inproc", "--layout", "packed", "--dtype", "fp8"])
good(["--transport", "inproc", "--dtype", "f32", "--op", "dispatch"])
good(["--transport", "inproc", "--exchange", "shared", "--input", "arena", "--dtype", "f16"])
good(["--transport", "shm", "--exchange", "push", "--bind", "off", "--op", "combine"])
good(["--transport", "shm", "--ranks", "2x2", "--max-tokens", "3"])
good(["--transport", "inproc", "--ranks", "2x1", "--max-tokens", "5", "--combine", "per-expert", "--receive", "whole"])
good(["--transport", "inproc", "--ranks", "1x2", "--receive", "early"])
good(["--transport", "shm", "--op", "put"])
bad(["--tokenz", "1"], "--tokenz")
bad(["--tokens", "1:0"], "--tokens")
bad(["--routing", "file:" + TRACE, "--experts", "64"], "--experts")
bad(["--baseline", "mpi"], "mpirun")
bad([*SMALL, "--transport", "inproc", "--max-tokens", "4", "--layout", "grouped"], "--max-tokens")
for transport in ("inproc", "shm"):
    bad([*SMALL, "--transport", transport, "--json", "/nonexistent/lines.json"], "/nonexistent/lines.json")
for transport in ("inproc", "shm"):
    bad([*SMALL, "--transport", transport, "--corrupt"], "data check failed")
code, text, errors = run([INFO, "--ranks", "2x2", "--model", "mixtral-8x7b"])
expect(code == 0 and not errors, "m2n_info", (text, errors))
for words in ("inproc   available", "avx512-bf16, avx512, avx2, portable", "plain or streaming", "exchange = automatic",
              "x in the arena  shared", "event descriptors        3"):
    expect(words in text, f"m2n_info says: {words}", (text,))


def info(row, *arguments):
    """The cells of one line of m2n_info's table: "3.50 MiB" or "-"."""
    line = next(line for line in run([INFO, "--ranks", "2x3", "--model", "mixtral-8x7b", "--tokens", "512", *arguments])[1]
                .splitlines() if line.startswith("  " + row))
    return re.findall(r"[\d.]+ [KMGT]?i?B|(?<= )-$|(?<= )-(?= )", line)


for row in ("one row", "one slot", "windows", "arena", "host", "total", "more where peers' memory", "more for grouped"):
    expect(len(info(row)) == 2, f"m2n_info: two columns for {row}", info(row))
expect(info("one row") == ["8192 B", "8192 B"], "m2n_info: rows of 4096 bf16", info("one row"))
expect(info("arena", "--exchange", "push")[0] == "0 B" != info("arena")[0], "m2n_info: push needs no arena")
expect(info("more for grouped", "--layout", "grouped")[1] != info("more for grouped")[1], "m2n_info: grouped batches")
expect(run([INFO, "--ranks", "2"])[0] == 2, "m2n_info refuses --ranks 2")
finish()
