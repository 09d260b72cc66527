#!/usr/bin/env python3
"""m2n_perf under mpirun. mpirun_test.py PERF MPIRUN openmpi|mpich"""
import os
import sys
import tempfile

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
            expect("x MPI" in output[1], "a speedup column", output[1:])
    spoiled = launch(ranks, ["--corrupt"])
    expect(spoiled[0] != 0, f"{ranks} ranks, spoiled: exit code 0", spoiled[1:])
    expect(not table_rows(spoiled[1]), "spoiled: prints no numbers", spoiled[1:])
    expect("data check failed" in spoiled[2], "spoiled: says why", spoiled[1:])
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
