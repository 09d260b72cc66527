#!/usr/bin/env python3
"""The pure parts of tools/bench.py on invented lines: what is compared with what, and plots that are XML."""
import os
import sys
import xml.etree.ElementTree as ElementTree

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../tools"))

import bench
import bench_plot
import bench_report

from common import expect, finish


def line(setting, own, mpi, **more):
    return {"case": "1x1", "setting": setting, "input": "push", "tokens": 8, "core_state": "near", "wrong": 0,
            "roundtrip_p50_us": own, "roundtrip_p99_us": 2 * own, "baseline_roundtrip_p50_us": mpi,
            "baseline": "an MPI", "shared_window_roundtrip_p50_us": own, "roof_us": own / 2, "produce_us": 1.0,
            "flag_ns": 60.0, "oversubscribed": False, "noisy": False, **more}


LINES = [line("openmpi", 10, 50), line("mpich", 11, 44), line("openmpi-no-cma", 12, 36),
         line("openmpi", 9, 99, input="arena"), line("mpich-posix", 40, 90, core_state="far"),
         line("openmpi", 100, 500, tokens=128), line("mpich", 1, 2, wrong=3), line("mpich", 1, 2, wrong=None)]

rows = bench_report.summarise(LINES)
expect([(row["core_state"], row["tokens"]) for row in rows] == [("near", 8), ("near", 128), ("far", 8)],
       "a row per state and size")
push = rows[0]["inputs"]["push"]
expect(push["default"]["setting"] == "mpich" and push["default"]["speedup"] == 4, "default: as installed only")
expect(push["tuned"]["setting"] == "openmpi-no-cma" and push["tuned"]["speedup"] == 3, "tuned: the fastest of all")
expect(push["us"] == 11, "the library's time is the median over the runs")
expect(rows[0]["inputs"]["arena"]["tuned"]["speedup"] == 11, "inputs are kept apart")
far = rows[2]["inputs"]["push"]
expect(far["default"] is None and far["tuned"]["us"] == 90, "a state that only a tuned MPI saw")
expect(len(bench_report.complaints(LINES)) == 2, "wrong rows and unchecked lines are complaints")
expect(not bench_report.complaints(LINES[:6]), "right lines are none")
expect(bench_report.summarise([]) == [] and bench_plot.plots([]) == {}, "nothing measured")
text = bench_report.table(rows)
expect(text.count("== cores") == 2 and "mpich, openmpi-no-cma" in text, "a table per state", [text])

plots = bench_plot.plots(rows)
expect(set(plots) == {"1x1-near.svg", "1x1-far.svg"}, "a plot per case and state")
for name, svg in plots.items():
    root = ElementTree.fromstring(svg)
    expect(root.tag == "{http://www.w3.org/2000/svg}svg", f"{name}: is SVG")
    kinds = {element.get("class").split()[1] for element in root.iter() if element.tag.endswith("polyline")}
    wanted = {"tuned", "push", "windows", "roof"} | ({"default", "arena"} if "near" in name else set())
    expect(kinds == wanted, f"{name}: contestants {kinds}")
    expect("prefers-color-scheme: dark" in svg, f"{name}: dark background")
    places = [float(place) for element in root.iter() if element.tag.endswith("circle")
              for place in (element.get("cx"), element.get("cy"))]
    expect(all(0 < place < 760 for place in places), f"{name}: points lie inside", places)
expect("&lt;b&gt;" in bench_plot.plot("<b>", rows[:1]), "titles are escaped")

two, four = (bench.plan(False, [], cores) for cores in (2, 4))
expect(len(two) == 2 * (5 + 5 + 3) and len(four) == 2 * (5 + 5 + 5), "MPICH is left out where it cannot yield")
crowded = [front for case, _, _, front, _, _ in two if case == "2x2-top8"]
expect(all("mpi_yield_when_idle" in front for front in crowded), "Open MPI yields where ranks share cores")
expect({run[:2] for run in bench.plan(True, ["mpich", "1x1-h4096"], 2)} == {("1x1-h4096", "mpich")}, "--only")
finish()
