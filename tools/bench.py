#!/usr/bin/env python3
"""Side by side with MPI: runs m2n_perf under five MPI settings and compares what they measured.

usage: bench.py PROGRAM [m2n_perf options...]
The library and MPI take turns inside each run (m2n_perf --baseline mpi). `default` is the fastest MPI as
installed, `tuned` the fastest of all settings; a size is compared only where the data check passed.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

# name -> (installed as it is, command in front of the program, environment)
NO_CMA = ["--mca", "btl_vader_single_copy_mechanism", "none"]
SETTINGS = {
    "openmpi": (True, ["mpirun.openmpi"], {}),
    "openmpi-no-cma": (False, ["mpirun.openmpi", *NO_CMA], {}),
    "openmpi-no-cma-eager64k": (False, ["mpirun.openmpi", *NO_CMA, "--mca", "btl_vader_eager_limit", "65536"], {}),
    "mpich": (True, ["mpirun.mpich"], {}),
    "mpich-posix": (False, ["mpirun.mpich"], {"UCX_TLS": "posix,self"}),
}
DEFAULTS = {"--ranks": "2x2", "--transport": "shm", "--model": "deepseek-v3", "--tokens": "1:1024:x4"}


def with_defaults(extra):
    """All options for m2n_perf, and the number of ranks they ask for."""
    chosen = [word for key, value in DEFAULTS.items() if key not in extra for word in (key, value)] + extra
    m, n = chosen[chosen.index("--ranks") + 1].split("x")
    return chosen, int(m) + int(n)


def run(command, environment, json_file):
    """The lines of one run, after printing its table; None if it failed."""
    print("\n== " + " ".join([f"{key}={value}" for key, value in environment.items()] + command), flush=True)
    arguments = ["env", *[f"{key}={value}" for key, value in environment.items()], *command]
    if subprocess.run(arguments, stdin=subprocess.DEVNULL).returncode:
        return None
    return [json.loads(line) for line in json_file.read_text().splitlines() if line.strip()]


def usable(line):
    return line.get("wrong") == 0 and line.get("baseline_roundtrip_p50_us")


def summarise(measured):
    """Lines of the closing table: per size the best MPI of both kinds, and the library beside it."""
    by_size = {}
    for name, lines in measured.items():
        for line in filter(usable, lines):
            by_size.setdefault((line["tokens"], line["core_state"]), []).append(
                (line["baseline_roundtrip_p50_us"], line["roundtrip_p50_us"], name))
    out = [f"{'tokens':>7} {'cores':>6} {'m2n us':>9} {'default us':>11} {'speedup':>8} {'tuned us':>9} "
           f"{'speedup':>8}  by"]
    for (tokens, state), rows in sorted(by_size.items()):
        installed = [row for row in rows if SETTINGS[row[2]][0]]
        tuned = min(rows)
        if not installed:
            continue
        default = min(installed)
        # Each ratio is of one run: the library's time there against that MPI's.
        out.append(f"{tokens:>7} {state:>6} {default[1]:>9.1f} {default[0]:>11.1f} {default[0] / default[1]:>8.2f} "
                   f"{tuned[0]:>9.1f} {tuned[0] / tuned[1]:>8.2f}  {default[2]}, {tuned[2]}")
    return out


def main(program, extra):
    options, ranks = with_defaults(extra)
    measured, failed = {}, []
    with tempfile.TemporaryDirectory() as directory:
        for name, (_, launcher, environment) in SETTINGS.items():
            file = pathlib.Path(directory) / f"{name}.json"
            many = ranks > (os.cpu_count() or 1) and launcher[0].endswith("openmpi")
            command = [*launcher, *(["--oversubscribe"] if many else []), "-n", str(ranks), program, *options,
                       "--baseline", "mpi", "--json", str(file)]
            lines = run(command, environment, file)
            if lines is None:
                failed.append(name)
            else:
                measured[name] = lines
    print("\n== round trip, median; default = best MPI as installed, tuned = best of all settings")
    print("\n".join(summarise(measured)))
    if failed:
        print(f"bench: failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
