#!/usr/bin/env python3
"""m2n_perf under mpirun. mpirun_test.py PERF MPIRUN openmpi|mpich"""
import os
import shutil
import sys
import tempfile
import time

from common import expect, finish, json_lines, run, table_rows

PERF, MPIRUN, KIND = sys.argv[1:4]
SMALL = ["--model", "mixtral-8x7b", "--hidden", "64", "--tokens", "1:8:x8", "--iters", "8",
         "--warmup", "2"]
LAUNCH = [MPIRUN]
if KIND == "openmpi":
    LAUNCH += ["--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
    if os.getuid() == 0:
        LAUNCH.append("--allow-run-as-root")


def launch(ranks, arguments):
    return run([*LAUNCH, "-n", str(ranks), PERF, *SMALL, *arguments])


for ranks in (2, 4):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "lines.json")
        # MPICH does not yield: four ranks on two cores take 16 ms a round there.
        output = launch(ranks, ["--baseline", "mpi", "--json", path])
        expect(output[0] == 0, f"{ranks} ranks: exit code {output[0]}", output[1:])
        if output[0] == 0:
            for line in json_lines(path):
                expect(line["wrong"] == 0, "wrong rows")
                expect("speedup_p50" in line, "a baseline column", output[1:])
                expect(line["shared_window_roundtrip_p50_us"] > 0, "shared windows", output[1:])
                expect(len(line["baseline_ways"]) == 4, "all ways", output[1:])
            expect("x MPI" in output[1], "a speedup column", output[1:])
    spoiled = launch(ranks, ["--corrupt"])
    expect(spoiled[0] != 0, f"{ranks} ranks, spoiled: exit code 0", spoiled[1:])
    expect(not table_rows(spoiled[1]), "spoiled: prints no numbers", spoiled[1:])
    expect("data check failed" in spoiled[2], "spoiled: says why", spoiled[1:])


def refused(name, output, begin, word):
    """All ranks have ended, soon, with a text and without numbers."""
    expect(time.monotonic() - begin < 10, f"{name}: took {time.monotonic() - begin:.1f} s", output[1:])
    expect(output[0] != 0, f"{name}: exit code 0", output[1:])
    expect(word in output[2], f"{name}: names {word}", output[1:])
    expect(not table_rows(output[1]), f"{name}: prints no numbers", output[1:])


with tempfile.TemporaryDirectory() as folder:
    for ranks in (2, 4):
        begin = time.monotonic()
        output = launch(ranks, ["--baseline", "mpi", "--json", folder + "/absent/lines.json"])
        refused(f"{ranks} ranks, a file that cannot be opened", output, begin, "absent/lines.json")
    begin = time.monotonic()
    output = launch(2, ["--baseline", "mpi", "--json", "/dev/full"])
    expect(time.monotonic() - begin < 15 and output[0] != 0, "a full disk ends the run", output[1:])
    expect("/dev/full: cannot write" in output[2], "a full disk is named", output[1:])
    # A program without a module beside it, and one whose module is no module.
    program, module = folder + "/bin/m2n_perf", f"{folder}/lib/m2n/m2n_perf_mpi_{KIND}.so"
    os.makedirs(os.path.dirname(program))
    shutil.copy(PERF, program)
    begin = time.monotonic()
    output = run([*LAUNCH, "-n", "2", program, *SMALL, "--baseline", "mpi"])
    refused("no module", output, begin, os.path.basename(module))
    os.makedirs(os.path.dirname(module))
    with open(module, "w", encoding="utf-8") as file:
        file.write("nothing")
    begin = time.monotonic()
    output = run([*LAUNCH, "-n", "2", program, *SMALL, "--baseline", "mpi"])
    refused("a broken module", output, begin, os.path.basename(module))
    # As installed.
    prefix = folder + "/prefix"
    output = run(["cmake", "--install", os.path.dirname(os.path.dirname(PERF)), "--component", "tools",
                  "--prefix", prefix])
    expect(output[0] == 0, "cmake --install", output[1:])
    output = run([*LAUNCH, "-n", "2", prefix + "/bin/m2n_perf", *SMALL, "--baseline", "mpi"])
    expect(output[0] == 0 and table_rows(output[1]), "finds the installed module", output[1:])
# Expert ranks that get nothing, other numbers of ranks, one-byte payloads, expert-major copies.
for ranks, arguments in ((3, ["--ranks", "1x2", "--routing", "all-to:0", "--layout", "grouped"]),
                         (3, ["--ranks", "2x1", "--dtype", "fp8"])):
    output = launch(ranks, [*arguments, "--baseline", "mpi"])
    expect(output[0] == 0 and table_rows(output[1]), " ".join(arguments), output[1:])
plain = launch(2, [])
expect(plain[0] == 0 and table_rows(plain[1]), "without a baseline", plain[1:])
for ranks, arguments, word in ((1, [], "1 process"), (3, [], "--ranks"),
                               (2, ["--ranks", "2x2"], "--ranks"), (2, ["--nonsense"], "--nonsense"),
                               (2, ["--transport", "inproc"], "inproc")):
    output = launch(ranks, arguments)
    name = f"{ranks} ranks {' '.join(arguments)}"
    expect(output[0] != 0, f"{name}: exit code 0", output[1:])
    expect(word in output[2], f"{name}: names {word}", output[1:])
    expect(not table_rows(output[1]), f"{name}: prints no numbers", output[1:])
finish()
