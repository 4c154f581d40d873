"""Sheets to print and to fill in by hand: tables with empty cells, on A4, black on white.

    python docs/course/sheets.py                  all sheets, blank, into out/sheets
    python docs/course/sheets.py ring pipeline    two of them
    python docs/course/sheets.py --solved         the same with all cells filled, NAME_solved
    make sheets                                   both forms of all

Each sheet is NAME.pdf to print, NAME.svg to change, and NAME.png to show. A cell of a solved sheet
is computed by minidl when the sheet is drawn: the ring is run, the kernel is launched, the
schedule is made. So a sheet says what the library does.

Test: tests/course/test_sheets.py   Which lesson uses which sheet: docs/course/outlines/README.md
"""

import argparse
import math
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

import minidl
from minidl.comm import Ledger, cost, ring, simulate
from minidl.course.out import write
from minidl.memory.predict import predict
from minidl.parallel.model import schedule
from minidl.plain import flash
from minidl.plain import ring as plain_ring
from minidl.plain import zero

WIDTH, HEIGHT, MARGIN = 297, 210, 10  # mm: A4, the long side at the bottom
MM = 1 / 25.4  # inches


class Block(NamedTuple):
    """A table of a sheet. Sizes are in mm.

    cells: its texts, a list of rows. given: the places (row, column) that the blank form shows."""

    title: str
    columns: list
    rows: list
    cells: list
    given: set = frozenset()
    cell: tuple = (13, 10)
    label: float = 14


class Sheet(NamedTuple):
    """task: what to do, a list of lines. lines: lists of Blocks, from left to right."""

    title: str
    task: list
    lines: list


def row(i, n):
    """The places of row i."""
    return {(i, j) for j in range(n)}


# -- the ring


def ring_film(p):
    """[after 0, 1, ... steps of the ring all-reduce: (p, p) array]: at [r, c] the sum that rank r
    holds of chunk c. Rank r begins with 2^r in each chunk, so the bits say who is in a sum."""
    def run(t):
        x = np.full(p, 2.0**t.rank)
        frames = []

        def sendrecv(*message):
            frames.append(x.copy())
            return t.sendrecv(*message)

        plain_ring.all_reduce(SimpleNamespace(rank=t.rank, size=p, sendrecv=sendrecv), x)
        return [*frames, x]

    return np.array(simulate(p, run), int).swapaxes(0, 1)


def members(bits, p):
    """5 -> "0 2"."""
    return " ".join(str(r) for r in range(p) if bits >> r & 1)


def ring_sheet():
    p, n = 4, 1_000_000
    film = ring_film(p)
    names = ["start", *(f"reduce-scatter, step {s}" for s in range(p - 1)),
             *(f"all-gather, step {s}" for s in range(p - 1))]
    blocks = []
    for i, (name, frame) in enumerate(zip(names, film, strict=True)):
        cells = [[members(bits, p) for bits in held] for held in frame]
        given = {(r, c) for r in range(p) for c in range(p)} if i == 0 else set()
        blocks.append(Block(name, [f"chunk {c}" for c in range(p)],
                            [f"rank {r}" for r in range(p)], cells, given, (13, 14), 12))
    counted = Block("what a rank sends", ["answer"],
                    ["messages", "chunks", f"bytes, {n:,} float32"],
                    [[str(len(film) - 1)], [str(len(film) - 1)],
                     [f"{ring.bytes_sent(n, 4, p, 0):,}"]], cell=(22, 14), label=40)
    return Sheet(
        "The ring all-reduce on 4 ranks",
        ["In each step every rank sends one chunk to its right: 0 to 1, 1 to 2, 2 to 3, 3 to 0. "
         "In step s of reduce-scatter rank r sends chunk r - s, and adds what comes to its own "
         "chunk. In step s of all-gather it sends chunk r + 1 - s, and copies what comes.",
         "Chunk numbers are modulo 4. Write into each cell whose numbers are in the sum after this "
         "step, such as 0 1."],
        [blocks[:p], [*blocks[p:], counted]])


# -- the pipeline


def slots(parts):
    """[for each rank what it does in each slot, "" where it waits]; F and B take a slot each."""
    lanes = schedule.timeline(parts, F=1, B=1, W=0)
    n = round(schedule.makespan(lanes))
    chart = [[""] * n for _ in lanes]
    for stage, lane in enumerate(lanes):
        for do, start, _ in lane:
            chart[stage][round(start)] = f"{do.kind}{do.micro}"
    return chart


def pipeline_sheet():
    p, m = 4, 8
    orders = {"GPipe": schedule.gpipe(p, m), "1F1B": schedule.one_f_one_b(p, m)}
    lines = []
    for name, parts in orders.items():
        chart = slots(parts)
        n = len(chart[0]) + 2  # two more: the number of slots is a result
        lines.append([Block(name, [str(i) for i in range(n)], [f"stage {s}" for s in range(p)],
                            [lane + [""] * (n - len(lane)) for lane in chart], {(0, 0)},
                            (10.8, 9), 15)])
    lanes = [schedule.timeline(parts, F=1, B=1, W=0) for parts in orders.values()]
    span = [round(schedule.makespan(lane)) for lane in lanes]
    lines.append([
        Block("what it costs", list(orders), ["slots until all is done",
                                              "slots in which a stage waits", "bubble"],
              [[str(n) for n in span], [str(n - 2 * m) for n in span],
               [f"{schedule.bubble(lane):.0%}" for lane in lanes]], cell=(20, 9), label=50),
        Block("micro-batches that a stage holds at the most", [f"stage {s}" for s in range(p)],
              list(orders), [[str(n) for n in schedule.live(parts)] for parts in orders.values()],
              cell=(20, 9), label=16)])
    return Sheet(
        "A pipeline of 4 stages and 8 micro-batches",
        ["F3 is the forward of micro-batch 3, B3 its backward. Each takes one slot. F3 of a stage "
         "waits for F3 of the stage before it, B3 for B3 of the stage after it.",
         "GPipe: all F, then all B. 1F1B: stage s makes 3 - s F first, then one F and one B in "
         "turn, then the B that are left. Leave a slot empty where a stage waits."],
        lines)


# -- ZeRO


def zero_bytes(stage, n):
    """[bytes a parameter on one of n ranks: weights, gradients, optimizer, all]."""
    x = 1024 * n  # divides by the ranks
    held = predict(x, precision="O2", zero=stage, world=n)
    each = [held["parameters"], held["gradients"], held["master weights"] + held["optimizer"]]
    return [b / x for b in (*each, held["total"])]


def zero_units(stage, n):
    """How many times (n-1)/n K bytes a rank sends in a step of ZeRO on one vector of K bytes."""
    length = 4 * n

    def run(t):
        t = Ledger(t)
        x = np.ones(length)

        def backward(weights):
            return [np.ones(length)]

        def update(i, w, g):
            w -= g

        if stage == 0:
            plain_ring.all_reduce(t, x)
        elif stage == 3:
            layer = (lambda w, y: y), (lambda w, y, gy: (np.ones(length), gy))
            zero.step3(t, [zero.own(t, x).copy()], [length], [layer], x, np.ones_like, update)
        else:
            (zero.step1 if stage == 1 else zero.step2)(t, [x], backward, update)
        return t.bytes_sent

    return simulate(n, run)[0] / ((n - 1) / n * 8 * length)


def zero_sheet():
    ranks, stages = (4, 8, 64), range(4)
    names = [f"stage {s}" for s in stages]
    kinds = ["weights", "gradients", "master, m, v", "sum"]

    def table(n):
        cells = [[f"{b:.4g}" for b in zero_bytes(s, n)] for s in stages]
        given = row(0, 4) if n == ranks[0] else set()
        return Block(f"bytes a parameter on each of N = {n} ranks", kinds, names, cells, given,
                     (22, 14), 16)

    memory = 80e9
    largest = Block("billions of parameters that fit into 80 GB", names,
                    [f"N = {n}" for n in ranks],
                    [[f"{memory / zero_bytes(s, n)[3] / 1e9:.3g}" for s in stages] for n in ranks],
                    set(), (22, 14), 16)
    sent = Block("sent in a step", ["x (N-1)/N 2X"], names,
                 [[f"{zero_units(s, 4):.0f}"] for s in stages], {(0, 0)}, (22, 14), 16)
    return Sheet(
        "ZeRO: what a rank holds, and what it sends",
        ["Mixed precision with Adam: weight and gradient have 2 bytes each, the master weight, m "
         "and v have 4 bytes each. X parameters, N ranks.",
         "Stage 1 divides master weight, m and v by N. Stage 2 divides the gradients, too. Stage 3 "
         "divides the weights, too. Activations are left out."],
        [[table(4), table(8), sent], [table(64), largest]])


# -- the warp

WARP = """
__global__ void steps(int* held, const int* x, int width, int down) {
  int lane = threadIdx.x, v = x[lane];
  held[lane] = v;
  int step = 1;
  for (int delta = width / 2; delta > 0; delta /= 2, step += 1) {
    v += down ? __shfl_down_sync(0xffffffff, v, delta, width)
              : __shfl_xor_sync(0xffffffff, v, delta, width);
    held[32 * step + lane] = v;
  }
}
"""


def warp_steps(x, down):
    """(1 + log2 n, n): what each lane holds before a warp's sum and after each of its steps."""
    n = len(x)
    held = np.zeros((1 + int(math.log2(n)), 32), np.int32)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "warp.cu")
        file.write_text(WARP, encoding="utf-8")
        minidl.kernel(file, "steps")(1, 32, (held, np.resize(x, 32).astype(np.int32), n,
                                             int(down)))
    return held[:, :n]


def warp_sheet():
    eight = np.array([3, 1, 4, 1, 5, 9, 2, 6])

    def table(title, x, down, cell, label):
        n = len(x)
        names = ["at first", *(f"{n >> s}" for s in range(1, int(math.log2(n)) + 1))]
        return Block(title, [str(i) for i in range(n)], names,
                     [[str(v) for v in held] for held in warp_steps(x, down)], row(0, n), cell,
                     label)

    whole = 3 * np.arange(32) % 5
    return Sheet(
        "A warp adds up its numbers",
        ["Each step: v += __shfl_down_sync(all, v, delta). Lane i adds the number of lane i + "
         "delta to its own. If there is no such lane, it adds its own number. All lanes read "
         "before any lane writes.",
         "With __shfl_xor_sync lane i adds the number of lane i XOR delta. The rows are the steps, "
         "named by delta. Afterwards: underline each sum that is the sum of all numbers."],
        [[table("8 lanes, down: delta in the first column", eight, True, (14, 9), 15),
          table("8 lanes, xor", eight, False, (14, 9), 15)],
         [table("a whole warp of 32 lanes, down", whole, True, (8.2, 9), 14)]])


# -- flash attention


def tile_kinds(length, size):
    """[["all" | "mask" | "none"]] of the size x size tiles of a causal mask."""
    seen = np.tril(np.ones((length, length), bool))
    kinds = []
    for i in range(0, length, size):
        tiles = [seen[i : i + size, j : j + size] for j in range(0, length, size)]
        kinds.append(["all" if t.all() else "mask" if t.any() else "none" for t in tiles])
    return kinds


def online(scores, values, size):
    """[(m, l, o)] of a row after each tile of `size` keys, by minidl/plain/flash.py."""
    states = []
    for end in range(size, len(scores) + 1, size):
        k = np.array(scores[:end], float)[:, None]
        o, lse = flash.forward(np.ones((1, 1)), k, np.array(values[:end], float)[:, None], size)
        m = max(scores[:end])
        total = math.exp(lse[0, 0] - m)
        states.append((m, total, o[0, 0] * total))
    return states


def flash_sheet():
    scores, values, size = [1, 3, 2, 2, 5, 0], [2, 4, 1, 3, 1, 7], 2
    states = online(scores, values, size)
    n_tiles = len(states)
    final = states[-1][2] / states[-1][1]
    kinds = tile_kinds(512, 128)
    counts = [str(sum(r.count(kind) for r in tile_kinds(4096, 128)))
              for kind in ("all", "mask", "none")]
    keys = Block("one query: its scores, and the values of the keys",
                 [f"key {j}" for j in range(len(scores))], ["score", "value"],
                 [[str(x) for x in scores], [str(x) for x in values]], row(0, 6) | row(1, 6),
                 (15, 9), 15)
    sums = Block("after each tile of 2 keys", [f"tile {i}" for i in range(n_tiles)],
                 ["m", "e^(old m - m)", "l", "o"],
                 [[str(s[0]) for s in states],
                  ["0", *(f"{math.exp(a[0] - b[0]):.3f}"
                          for a, b in zip(states, states[1:], strict=False))],
                  [f"{s[1]:.3f}" for s in states], [f"{s[2]:.3f}" for s in states]],
                 {(1, 0)}, (26, 12), 30)
    result = Block("at the end", ["answer"], ["O = o / l"], [[f"{final:.3f}"]], cell=(26, 12),
                   label=22)
    tiles = Block("tiles of 128 x 128, L = 512, causal", [f"keys {128 * j}" for j in range(4)],
                  [f"rows {128 * i}" for i in range(4)], kinds, {(0, 0)}, (20, 12), 20)
    many = Block("L = 4,096: how many tiles", ["tiles"],
                 ["computed whole", "computed with the mask", "left out"],
                 [[c] for c in counts], cell=(26, 12), label=50)
    return Sheet(
        "Flash attention: tiles, and the sums that go from one to the next",
        ["A tile brings scores s and values v. m' = max(m, s). l' = e^(m - m') l + sum of "
         "e^(s - m'). o' = e^(m - m') o + sum of e^(s - m') v. Three digits.",
         "Of a causal mask a query at place i sees the keys 0 to i. Write all, mask or none: is "
         "the tile computed whole, computed with the mask, or left out?"],
        [[keys], [sums, result], [tiles, many]])


# -- threads

GRID = """
__global__ void index(int* block_of, int* thread_of, int* i_of, int* works, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  block_of[i] = blockIdx.x;
  thread_of[i] = threadIdx.x;
  i_of[i] = i;
  works[i] = i < n;
}
"""


def threads(n, size):
    """(4, number of threads): block, place in it, i, and whether the guard lets it work."""
    n_blocks = -(-n // size)
    found = np.zeros((4, n_blocks * size), np.int32)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "index.cu")
        file.write_text(GRID, encoding="utf-8")
        minidl.kernel(file, "index")(n_blocks, size, (*found, n))
    return found


def threads_sheet():
    n, size = 10, 4
    block_of, thread_of, i_of, works = threads(n, size)
    cells = [[str(b) for b in block_of], [str(j) for j in thread_of], [str(i) for i in i_of],
             ["yes" if w else "no" for w in works]]
    spare = [""] * size  # the number of threads is a result
    grid = Block(f"n = {n}, blocks of {size} threads", [*spare, *(len(works) * [""])],
                 ["blockIdx.x", "threadIdx.x", "i", "works?"], [c + spare for c in cells],
                 {(0, 0), (1, 0), (2, 0), (3, 0)}, (15, 13), 26)
    cases = [(1_000, 256), (4_096, 256), (4_097, 256), (100_003, 128)]
    counted = []
    for n, size in cases:
        working = threads(n, size)[3]
        counted.append([str(len(working) // size), f"{len(working):,}",
                        str(int((working == 0).sum()))])
    many = Block("larger ones", ["blocks", "threads", "without work"],
                 [f"n = {n:,}, blocks of {size}" for n, size in cases], counted, cell=(30, 13),
                 label=58)
    return Sheet(
        "Threads and blocks: who works on what",
        ["i = blockIdx.x * blockDim.x + threadIdx.x. The guard is if (i < n). Take as few blocks "
         "as possible.",
         "A column of the first table is a thread. Draw a line between two blocks. Cross out the "
         "threads that the guard sends home."],
        [[grid], [many]])


# -- topologies


def topologies_sheet():
    ranks = (4, 8, 64)
    ways = {"ring": cost.ring_all_reduce, "halving and doubling": cost.halving_doubling_all_reduce,
            "tree": cost.tree_all_reduce, "double tree": cost.double_tree_all_reduce}

    def table(title, value):
        cells = [[value(way, p) for p in ranks] for way in ways.values()]
        return Block(title, [f"p = {p}" for p in ranks], list(ways), cells, set(), (24, 13), 42)

    sent = table("bytes sent by the busiest rank, in K",
                 lambda way, p: f"{way(p, 1.0, 0, 0).n_bytes:.4g}")
    small = table("microseconds for K = 1 kB",
                  lambda way, p: f"{1e6 * way(p, 1e3, 10e-6, 1e-9).time_s:.4g}")
    large = table("milliseconds for K = 100 MB",
                  lambda way, p: f"{1e3 * way(p, 1e8, 10e-6, 1e-9).time_s:.4g}")
    messages = table("messages sent by the busiest rank",
                     lambda way, p: str(way(p, 1.0, 0, 0).messages))
    return Sheet(
        "Four ways to an all-reduce of K bytes on p ranks",
        ["A message takes alpha = 10 microseconds and beta = 1 nanosecond a byte. H = log2 p.",
         "Tree: 2 H (alpha + K beta). Double tree, each half one message: 2 H alpha + "
         "(2 H - 1) K beta. Ring, and halving and doubling: find the formula.",
         "Fill the two tables above first. Then, below, first guess: which way is the fastest? "
         "Mark it in each column, and compute the time."],
        [[messages, sent], [small, large]])


SHEETS = {"ring": ring_sheet, "pipeline": pipeline_sheet, "zero": zero_sheet, "warp": warp_sheet,
          "flash": flash_sheet, "threads": threads_sheet, "topologies": topologies_sheet}


# -- drawing

INK, RULE = "black", 0.6
STYLE = {"font.size": 9, "font.family": "DejaVu Sans", "svg.fonttype": "none",
         "pdf.fonttype": 42}
LINE, TITLE, HEAD = 4.6, 6, 5  # mm: a line of the task, a block's title, its column names


def draw(plt, sheet, solved):
    """A figure of one page: the sheet with all its cells filled, or with those that are given."""
    figure = plt.figure(figsize=(WIDTH * MM, HEIGHT * MM), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, WIDTH), ylim=(HEIGHT, 0))
    axes.axis("off")
    axes.text(MARGIN, 12, sheet.title, fontsize=15, weight="bold", va="baseline")
    name = "solved" if solved else "Name: " + "." * 40
    axes.text(WIDTH - MARGIN, 12, name, fontsize=10, ha="right", va="baseline")
    y = 19
    for line in lines_of(sheet.task):
        axes.text(MARGIN, y, line, va="baseline")
        y += LINE
    heights = [max(TITLE + HEAD + len(b.rows) * b.cell[1] for b in line) for line in sheet.lines]
    free = HEIGHT - MARGIN - y - sum(heights)
    gap = min(9, free / len(heights))
    for line, height in zip(sheet.lines, heights, strict=True):
        widths = [b.label + len(b.columns) * b.cell[0] for b in line]
        between = (WIDTH - 2 * MARGIN - sum(widths)) / max(1, len(line) - 1)
        x = MARGIN
        for block, width in zip(line, widths, strict=True):
            _block(axes, block, x, y, solved)
            x += width + min(between, 14)
        y += height + gap
    return figure


def lines_of(task, n_chars=160):
    """The task's sentences as lines of at most n_chars."""
    lines = []
    for text in task:
        lines.append("")
        for word in text.split():
            if len(lines[-1]) + 1 + len(word) > n_chars:
                lines.append("")
            lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def _block(axes, block, x, y, solved):
    wide, high = block.cell
    left, top = x + block.label, y + TITLE + HEAD
    axes.text(x, y + 3.5, block.title, weight="bold", va="baseline")
    for j, name in enumerate(block.columns):
        axes.text(left + (j + 0.5) * wide, top - 1.5, name, fontsize=7.5, ha="center",
                  va="baseline")
    for i, name in enumerate(block.rows):
        axes.text(left - 1.5, top + (i + 0.5) * high, name, fontsize=8, ha="right", va="center")
        for j, text in enumerate(block.cells[i]):
            axes.add_patch(_frame(left + j * wide, top + i * high, wide, high))
            if solved or (i, j) in block.given:
                weight = "bold" if (i, j) in block.given and solved else "normal"
                axes.text(left + (j + 0.5) * wide, top + (i + 0.5) * high, text, ha="center",
                          va="center", weight=weight, fontsize=8.5)


def _frame(x, y, wide, high):
    from matplotlib.patches import Rectangle

    return Rectangle((x, y), wide, high, fill=False, edgecolor=INK, linewidth=RULE)


def draw_all(names, solved, folder="sheets"):
    """Writes out/<folder>/NAME.pdf, .svg and .png of the sheets; returns the paths."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    made = []
    with plt.rc_context(STYLE):
        for name in names:
            figure = draw(plt, SHEETS[name](), solved)
            stem = f"{name}_solved" if solved else name
            for kind in "pdf", "svg", "png":
                made.append(write(f"{folder}/{stem}.{kind}",
                                  lambda path, of=figure: of.savefig(path, dpi=150)))
            plt.close(figure)
    return [path for path in made if path]


def main(arguments):
    parser = argparse.ArgumentParser(
        prog="docs/course/sheets.py", formatter_class=argparse.RawDescriptionHelpFormatter,
        description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SHEETS)}")
    parser.add_argument("--solved", action="store_true", help="all cells filled, NAME_solved")
    args = parser.parse_args(arguments)
    if unknown := [name for name in args.names if name not in SHEETS]:
        parser.error(f"no sheet {', '.join(unknown)}; there are {', '.join(SHEETS)}")
    for path in draw_all(args.names or SHEETS, args.solved):
        print(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
