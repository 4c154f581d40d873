"""Draws the profile as a PNG: each rank's lanes in the last steps, and the operators' roofline.

The page (page.py) has every span, and can be moved and zoomed, but has no roofline. This picture is
for a report on paper and for tutorial 19. The page and the picture use the same colours.

Test: tests/profile/test_page.py
"""

from minidl.profile.page import COLOURS
from minidl.profile.summary import bounds

STEPS = 3  # the number of steps in the picture. With a hundred steps the spans are too small to see


def write(path, ranks, summary):
    """Writes the picture into the file `path`. Needs matplotlib, which minidl[tutorials] installs.
    ranks: the Records. summary: the dict that summary.of() returns."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure = draw(plt, ranks, summary)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def draw(plt, ranks, summary):
    """Returns the picture, a matplotlib figure. plt: the module matplotlib.pyplot."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(15, 5), layout="constrained",
                                         width_ratios=[2, 1])
    _lanes(left, ranks)
    _roofline(right, summary)
    return figure


def _lanes(axes, ranks):
    steps = bounds(ranks[0])[-STEPS:]
    begin, end = steps[0][0], steps[-1][1]
    names, seen = [], {}
    for record in ranks:
        for lane, spans in record.lanes.items():
            bars = {"backward": []}  # backward is drawn first, because forward may be inside of it
            for kind, _, a, b, _, _ in spans:
                if kind not in ("module", "kernel", "launch", "user") and b > begin and a < end:
                    bars.setdefault(kind, []).append((1e3 * (a - begin), 1e3 * (b - a)))
            for kind, places in bars.items():
                seen[kind] = axes.broken_barh(places, (len(names) - 0.4, 0.8), color=COLOURS[kind])
            names.append(f"rank {record.rank}" if lane == "main" else lane)
    for a, _ in steps:
        axes.axvline(1e3 * (a - begin), color="black", linewidth=0.8)
    axes.set(xlim=(0, 1e3 * (end - begin)), xlabel="ms", title=f"the last {len(steps)} steps")
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.legend(seen.values(), seen, loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=6)


def _roofline(axes, summary):
    """Draws the roofline, if the peaks are known, and a dot for each operator that has
    floating-point operations. x is operations per byte, y is GFLOP/s."""
    ops = [op for op in summary["operators"] if op["flops"] and op["s"]]
    for op in ops:
        x, y = op["flops"] / op["bytes"], op["flops"] / op["s"] / 1e9
        axes.plot(x, y, "o", label=f"{op['name']} {op['phase']}")
    if ops:
        axes.legend(loc="lower right")
    if peak := summary["peak"]:
        ridge = peak["float32"] / peak["bandwidth"]
        xs = [ridge / 64, ridge, ridge * 64]
        axes.plot(xs, [min(peak["float32"], peak["bandwidth"] * at) / 1e9 for at in xs], "k-")
        axes.set(xscale="log", yscale="log")
    elif ops:
        axes.set(xlim=(0, 1.1 * axes.dataLim.x1), ylim=(0, 1.1 * axes.dataLim.y1))
    title = ("speed of each operator, and the roofline" if peak else
             "speed of each operator\n(`minidl doctor --peaks` adds the roofline)")
    axes.set(xlabel="operations per byte", ylabel="GFLOP/s", title=title)
