#!/usr/bin/env python3
"""Side by side with MPI: runs m2n_perf under five MPI settings and compares what they measured.

usage: bench.py PROGRAM [--out DIRECTORY] [--quick] [--only NAME]...
NAME is a setting or a case (all are printed by --help). The library and MPI take turns inside each run
(m2n_perf --baseline mpi). `default` is the fastest MPI as installed, `tuned` the fastest of all settings.
Writes bench.json (every line of m2n_perf with its setting, and the summary) and one plot per case and core
state. Fails if a run fails, if a row was wrong, or if the data check did not run.
"""
import argparse
import json
import os
import pathlib
import platform
import subprocess
import sys

import bench_plot
import bench_report

NO_CMA = ["--mca", "btl_vader_single_copy_mechanism", "none"]
# name -> (command in front of the program, environment)
SETTINGS = {
    "openmpi": (["mpirun.openmpi"], {}),
    "openmpi-no-cma": (["mpirun.openmpi", *NO_CMA], {}),
    "openmpi-no-cma-eager64k": (["mpirun.openmpi", *NO_CMA, "--mca", "btl_vader_eager_limit", "65536"], {}),
    "mpich": (["mpirun.mpich"], {}),
    "mpich-posix": (["mpirun.mpich"], {"UCX_TLS": "posix,self"}),
}
# name -> (ranks, options, tokens, tokens with --quick)
CASES = {
    "1x1-h7168": ((1, 1), ["--experts", "1", "--top-k", "1", "--hidden", "7168"], "1,8,32,128,512,4096", "1,8,128"),
    "1x1-h4096": ((1, 1), ["--experts", "1", "--top-k", "1", "--hidden", "4096"], "1,8,32,128,512,4096", "1,8,128"),
    "2x2-top8": ((2, 2), ["--experts", "64", "--top-k", "8", "--hidden", "7168"], "1,8,128", "1,128"),
}
# How x reaches the library: copied from the caller's memory, or written into the arena by the caller.
INPUTS = {"push": ["--exchange", "push"], "arena": ["--exchange", "shared", "--input", "arena"]}
TIMEOUT_S = 600


def launcher_of(setting, ranks, cores):
    """The command in front of m2n_perf; None if that MPI cannot compete there."""
    command, _ = SETTINGS[setting]
    if ranks <= cores:
        return [*command, "-n", str(ranks)]
    # Waiting ranks must leave their core to those that work. MPICH's never do.
    if "mpich" in setting:
        return None
    return [*command, "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1", "-n", str(ranks)]


def plan(quick, only, cores):
    """What will be run: (case, setting, input, command without --json, environment)."""
    runs = []
    for case, (ranks, options, tokens, few) in CASES.items():
        for setting, (_, environment) in SETTINGS.items():
            front = launcher_of(setting, sum(ranks), cores)
            if front is None or not wanted(only, case, setting):
                continue
            for given, how in INPUTS.items():
                arguments = ["--ranks", f"{ranks[0]}x{ranks[1]}", "--transport", "shm", *options, *how,
                             "--tokens", few if quick else tokens, "--baseline", "mpi"]
                runs.append((case, setting, given, front, arguments, environment))
    return runs


def wanted(only, case, setting):
    """Names of cases and of settings narrow separately."""
    for names, mine in ((CASES, case), (SETTINGS, setting)):
        chosen = [name for name in only if name in names]
        if chosen and mine not in chosen:
            return False
    return True


def measure(command, environment, file):
    """Runs m2n_perf, which prints its table; its lines, or None if it failed."""
    print("\n== " + " ".join([f"{key}={value}" for key, value in environment.items()] + command), flush=True)
    file.unlink(missing_ok=True)
    try:
        done = subprocess.run([*command, "--json", str(file)], stdin=subprocess.DEVNULL, timeout=TIMEOUT_S,
                              env={**os.environ, **environment}, check=False)
    except subprocess.TimeoutExpired:
        print(f"bench: no end after {TIMEOUT_S} s", file=sys.stderr)
        return None
    if done.returncode:
        return None
    return [json.loads(line) for line in file.read_text().splitlines() if line.strip()]


def machine():
    model = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo", encoding="utf-8")
                  if line.startswith("model name")), platform.machine())
    return {"cpu": model, "cores": len(os.sched_getaffinity(0)), "kernel": platform.release()}


def arguments_of(words):
    names = [*CASES, *SETTINGS]
    parser = argparse.ArgumentParser(prog="./dev bench", description="Side by side with MPI under five settings.")
    parser.add_argument("program")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("build/bench"), help="folder for the results")
    parser.add_argument("--quick", action="store_true", help="fewer sizes")
    parser.add_argument("--only", action="append", default=[], choices=names, metavar="NAME",
                        help=f"a case or a setting, may be repeated: {', '.join(names)}")
    return parser.parse_args(words)


def main(words):
    chosen = arguments_of(words)
    chosen.out.mkdir(parents=True, exist_ok=True)
    lines, failed = [], []
    for case, setting, given, front, arguments, environment in plan(chosen.quick, chosen.only,
                                                                   len(os.sched_getaffinity(0))):
        got = measure([*front, chosen.program, *arguments], environment, chosen.out / "run.json")
        if got is None:
            failed.append(f"{case} {setting} {given}: failed")
            continue
        lines += [{"case": case, "setting": setting, "input": given, **line} for line in got]
    (chosen.out / "run.json").unlink(missing_ok=True)
    failed += bench_report.complaints(lines)
    rows = bench_report.summarise(lines)
    result = {"machine": machine(), "lines": lines, "summary": rows, "failed": failed}
    (chosen.out / "bench.json").write_text(json.dumps(result, indent=1) + "\n")
    print("\n" + bench_report.table(rows))
    for name, svg in bench_plot.plots(rows).items():
        (chosen.out / name).write_text(svg)
        print(f"plot: {chosen.out / name}")
    print(f"all lines: {chosen.out / 'bench.json'}")
    for text in failed:
        print(f"bench: {text}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
