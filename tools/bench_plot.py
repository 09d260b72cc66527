"""Plots of bench rows as SVG: time against tokens, both axes logarithmic, legible on light and dark. Pure
functions, no packages."""
import math
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 760, 460
LEFT, RIGHT, TOP, BOTTOM = 70, 200, 50, 55
# Class, what the legend says, and where a row has the value.
CONTESTANTS = (
    ("default", "MPI as installed", lambda row: fastest(row, "default")),
    ("tuned", "MPI tuned", lambda row: fastest(row, "tuned")),
    ("windows", "shared memory by hand", lambda row: row["windows_us"]),
    ("push", "m2n push", lambda row: own(row, "push")),
    ("arena", "m2n arena", lambda row: own(row, "arena")),
    ("roof", "plain copies", lambda row: row["roof_us"]),
)
STYLE = """
svg { font: 13px sans-serif; background: #ffffff; }
text { fill: #222222; } .grid { stroke: #d8d8d8; } .axis { stroke: #555555; fill: none; }
.line { fill: none; stroke-width: 2; }
.default { stroke: #c0392b; } .tuned { stroke: #d35400; } .windows { stroke: #7f6aa8; }
.push { stroke: #1f6fb2; } .arena { stroke: #138d75; } .roof { stroke: #777777; stroke-dasharray: 5 4; }
@media (prefers-color-scheme: dark) {
  svg { background: #16181c; } text { fill: #e6e6e6; } .grid { stroke: #33363c; } .axis { stroke: #999999; }
  .default { stroke: #ff7a6b; } .tuned { stroke: #ffab5e; } .windows { stroke: #b9a5e8; }
  .push { stroke: #6bb5f5; } .arena { stroke: #4fd6b8; } .roof { stroke: #aaaaaa; }
}
"""


def own(row, given):
    times = row["inputs"].get(given)
    return times["us"] if times else None


def fastest(row, kind):
    found = [times[kind]["us"] for times in row["inputs"].values() if times[kind]]
    return min(found) if found else None


def plots(rows):
    """File name -> SVG, one per case and core state."""
    groups = {}
    for row in rows:
        groups.setdefault((row["case"], row["core_state"]), []).append(row)
    return {f"{case}-{state}.svg": plot(f"{case}, cores {state}: round trip, median", group)
            for (case, state), group in groups.items()}


def decades(low, high):
    """Powers of ten that enclose low..high; at least one decade."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return first, max(last, first + 1)


def steps_of_1_2_5(first, last):
    return [step * 10.0 ** power for power in range(first, last) for step in (1, 2, 5)] + [10.0 ** last]


def short(value):
    return f"{value:g}" if value < 10000 else f"{value / 1000:g}k"


def plot(title, rows):
    rows = sorted(rows, key=lambda row: row["tokens"])
    lines = [(kind, text, [(row["tokens"], value(row)) for row in rows if value(row)])
             for kind, text, value in CONTESTANTS]
    lines = [line for line in lines if line[2]]
    times = [time for _, _, points in lines for _, time in points]
    bottom, top = decades(min(times), max(times))
    tokens = [row["tokens"] for row in rows]
    left, right = math.log2(tokens[0]), max(math.log2(tokens[-1]), math.log2(tokens[0]) + 1)

    def x(count):
        return LEFT + (math.log2(count) - left) / (right - left) * (WIDTH - LEFT - RIGHT)

    def y(time):
        return HEIGHT - BOTTOM - (math.log10(time) - bottom) / (top - bottom) * (HEIGHT - TOP - BOTTOM)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
           f"<title>{escape(title)}</title>", f"<style>{escape(STYLE)}</style>",
           f'<text x="{LEFT}" y="24" font-weight="bold">{escape(title)}</text>']
    out += axes(x, y, tokens, steps_of_1_2_5(bottom, top))
    for place, (kind, text, points) in enumerate(lines):
        path = " ".join(f"{x(count):.1f},{y(time):.1f}" for count, time in points)
        out.append(f'<polyline class="line {kind}" points="{path}"/>')
        out += [f'<circle class="line {kind}" cx="{x(count):.1f}" cy="{y(time):.1f}" r="3">'
                f"<title>{escape(text)}, {count} tokens: {time:.2f} us</title></circle>" for count, time in points]
        at = TOP + 12 + 22 * place
        out.append(f'<line class="line {kind}" x1="{WIDTH - RIGHT + 16}" x2="{WIDTH - RIGHT + 44}" y1="{at}" y2="{at}"/>')
        out.append(f'<text x="{WIDTH - RIGHT + 50}" y="{at + 4}">{escape(text)}</text>')
    return "\n".join([*out, "</svg>", ""])


def axes(x, y, tokens, ticks):
    floor, end = HEIGHT - BOTTOM, WIDTH - RIGHT
    out = []
    for tick in ticks:
        out.append(f'<line class="grid" x1="{LEFT}" x2="{end}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{short(tick)}</text>')
    for count in tokens:
        out.append(f'<line class="grid" x1="{x(count):.1f}" x2="{x(count):.1f}" y1="{TOP}" y2="{floor}"/>')
        out.append(f'<text x="{x(count):.1f}" y="{floor + 20}" text-anchor="middle">{count}</text>')
    out.append(f'<path class="axis" d="M{LEFT},{TOP} V{floor} H{end}"/>')
    out.append(f'<text x="{(LEFT + end) / 2}" y="{HEIGHT - 12}" text-anchor="middle">tokens per attention rank</text>')
    out.append(f'<text transform="translate(18 {(TOP + floor) / 2}) rotate(-90)" text-anchor="middle">us</text>')
    return out
