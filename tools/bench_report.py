"""From lines of m2n_perf, each with its case, setting and input, to one row per case, core state and size.
Pure functions."""
import statistics

# Settings that are an MPI as installed; the others are tuned.
INSTALLED = ("openmpi", "mpich")
STATES = ("near", "far", "mixed")


def complaints(lines):
    """One text per line that must not be used."""
    return [f"{line['case']} {line['setting']} {line['input']}, {line['tokens']} tokens: wrong = {line.get('wrong')}"
            for line in lines if line.get("wrong") != 0]


def usable(line):
    return line.get("wrong") == 0 and line.get("baseline_roundtrip_p50_us") and line.get("roundtrip_p50_us")


def best(lines):
    """The run in which MPI was fastest. The ratio is of that one run: both sides took turns in it."""
    line = min(lines, key=lambda line: line["baseline_roundtrip_p50_us"])
    return {"setting": line["setting"], "way": line["baseline"], "us": line["baseline_roundtrip_p50_us"],
            "m2n_us": line["roundtrip_p50_us"], "speedup": line["baseline_roundtrip_p50_us"] / line["roundtrip_p50_us"]}


def middle(lines, field):
    values = [line[field] for line in lines if line.get(field) is not None]
    return statistics.median(values) if values else None


def summarise(lines):
    """Rows, sorted by case, state and size. `inputs` has push and arena, each against default and tuned."""
    groups = {}
    for line in filter(usable, lines):
        key = (line["case"], STATES.index(line["core_state"]), line["tokens"])
        groups.setdefault(key, []).append(line)
    rows = []
    for (case, state, tokens), group in sorted(groups.items()):
        row = {"case": case, "core_state": STATES[state], "tokens": tokens, "flag_ns": middle(group, "flag_ns"),
               "roof_us": middle(group, "roof_us"), "windows_us": middle(group, "shared_window_roundtrip_p50_us"),
               "oversubscribed": any(line["oversubscribed"] for line in group),
               "noisy": any(line["noisy"] for line in group), "inputs": {}}
        for given in sorted({line["input"] for line in group}, reverse=True):
            mine = [line for line in group if line["input"] == given]
            installed = [line for line in mine if line["setting"] in INSTALLED]
            row["inputs"][given] = {"us": middle(mine, "roundtrip_p50_us"), "p99_us": middle(mine, "roundtrip_p99_us"),
                                    "produce_us": middle(mine, "produce_us"),
                                    "default": best(installed) if installed else None, "tuned": best(mine)}
        rows.append(row)
    return rows


def number(value):
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


HEAD = (f"{'case':<10} {'tokens':>6} {'input':>6} {'m2n us':>8} {'p99':>8} {'roof us':>8} {'windows':>8} "
        f"{'default':>8} {'x':>5} {'tuned':>8} {'x':>5}  by")


def table(rows):
    """The closing table, one part per core state."""
    out = ["round trip, median, us. default = fastest MPI as installed, tuned = fastest of all settings, x = how many",
           "times the library's time in the same run; windows = shared memory by hand under MPI (docs/perf.md)"]
    for state in STATES:
        mine = [row for row in rows if row["core_state"] == state]
        if not mine:
            continue
        flags = [row["flag_ns"] for row in mine if row["flag_ns"]]
        seen = f", flag {min(flags):.0f} to {max(flags):.0f} ns" if flags else ""
        out += ["", f"== cores {state}{seen}", HEAD]
        for row in mine:
            out += [table_line(row, given, times) for given, times in row["inputs"].items()]
    return "\n".join(out)


def table_line(row, given, times):
    default, tuned = times["default"], times["tuned"]
    marks = "".join(f"  {mark}" for mark in ("oversubscribed", "noisy") if row[mark])
    names = ", ".join(dict.fromkeys(best["setting"] for best in (default, tuned) if best))
    ratio = f"{default['speedup']:.2f}" if default else "-"
    return (f"{row['case']:<10} {row['tokens']:>6} {given:>6} {number(times['us']):>8} {number(times['p99_us']):>8} "
            f"{number(row['roof_us']):>8} {number(row['windows_us']):>8} {number(default and default['us']):>8} "
            f"{ratio:>5} {number(tuned['us']):>8} {tuned['speedup']:>5.2f}  {names}{marks}")
