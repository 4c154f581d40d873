"""03  A tour of kernels: rows, rungs, barriers.                     60 minutes, needs: 02

Row reductions, warp shuffles, one-pass algorithms, and why __syncthreads matters.

    python tutorials/03_kernel_tour.py            one process; picture: out/03_kernel_tour.png

Layer norm and softmax need a sum over a row before the first result of that row can be written. The
naive kernels read the row again for each thing they need; every rung of the ladder reads it less:

    layer norm v1   a thread per row: mean, variance, result      3 reads, 1 write: 16 bytes
               v2   a block per row: mean and variance together   2 reads, 1 write: 12
               v3   a warp per row, which stays in registers      1 read,  1 write:  8
    softmax         v2 and v3 as above, the largest in place of the mean. v1 keeps the exponentials
                    in y: it reads x twice, writes y, reads it, writes it again: 20
    AdamW           reads w, g, m, v, writes w, m, v: 28 bytes a parameter. Written op by op, every
                    + and * reads its operands and writes its result.

All bytes are of float32, for each element; layer norm also writes 8 a row, mean and 1/std, and
reads its scale and shift, 8 bytes an element, the same for all rows: they come from a cache.

The threads of a block meet in shared memory. What one writes and another reads must have a barrier
between: __syncthreads(), which all threads of the block must reach. Without one, a kernel may be
right a thousand times: a GPU runs threads in any order. So part 2 leaves out one barrier after the
other and runs the threads in ascending, descending and shuffled order.

Sources: Harris, "Optimizing Parallel Reduction in CUDA", 2007; Milakov and Gimelshein, "Online
normalizer calculation for softmax", 2018; Karpathy, llm.c (dev/cuda), 2024, for the ladders.
Kernels: kernels/tour.cu, layer_norm.cu, softmax.cu, adamw.cu.
Check form: minidl/cuda/checks/checker.py.
Exercises: `minidl exercise 03` writes work/03_kernel_tour.py and work/tour.cu with the marked
regions empty; `minidl check 03` grades them.
"""

import tempfile
from pathlib import Path

import numpy as np

import minidl
from minidl import cuda
from minidl.tutorial import Table, launch, picture, say

BLOCK = 256  # threads in a block

# work/tour.cu beside work/03_kernel_tour.py, else kernels/tour.cu
OWN = Path(__file__).with_name("tour.cu")
FILE = OWN if OWN.exists() else cuda.KERNELS / "tour.cu"


def checked(file, name, grid, args, **options):
    """Launch under watch; the Report. An error ends the script."""
    report = cuda.check(file, grid, BLOCK, args, name=name, **options)
    if report.errors:
        raise SystemExit(str(report))
    return report


def layer_norm_ladder(x, w, b):
    """[Report of v1, v2, v3], largest error."""
    rows, cols = x.shape
    wide = x.astype(float)
    xhat = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    reports, error = [], 0.0
    for rung, grid in enumerate((-(-rows // BLOCK), rows, -(-rows * 32 // BLOCK)), 1):
        y, mean, rstd = np.empty_like(x), np.empty(rows, x.dtype), np.empty(rows, x.dtype)
        args = (y, mean, rstd, x, w, b, rows, cols, 1e-5)
        name = f"layer_norm_v{rung}"
        reports.append(checked("layer_norm.cu", name, grid, args, outputs=["y", "mean", "rstd"]))
        error = max(error, float(np.abs(y - (xhat * w + b)).max()))
    return reports, error


def softmax(x):
    e = np.exp(x.astype(float) - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def softmax_ladder(x):
    rows, cols = x.shape
    reports, error = [], 0.0
    for rung, grid in enumerate((-(-rows // BLOCK), rows, -(-rows * 32 // BLOCK)), 1):
        y = np.empty_like(x)
        args = (y, x, rows, cols)
        reports.append(checked("softmax.cu", f"softmax_v{rung}", grid, args, outputs=["y"]))
        error = max(error, float(np.abs(y - softmax(x)).max()))
    return reports, error


class Counted(np.ndarray):
    """An array that counts the bytes that NumPy's operations read and write."""

    n_bytes = 0

    def __array_ufunc__(self, ufunc, method, *inputs, **keywords):
        plain = [np.asarray(x) if isinstance(x, Counted) else x for x in inputs]
        result = getattr(ufunc, method)(*plain, **keywords)
        arrays = [x for x in (*plain, result) if isinstance(x, np.ndarray)]
        Counted.n_bytes += sum(x.nbytes for x in arrays)
        return result.view(Counted)


def adamw(w, g, m, v, lr=1e-3, b1=0.9, b2=0.999, eps=1e-8, decay=0.01):
    """A first AdamW step as one writes it: the new w, m, v."""
    m = b1 * m + (1 - b1) * g
    v = b2 * v + (1 - b2) * g * g
    w = (1 - lr * decay) * w - lr / (1 - b1) * m / (np.sqrt(v) / (1 - b2) ** 0.5 + eps)
    return w, m, v


def adamw_bytes(n):
    """Bytes a parameter (op by op, fused), and the largest difference in w."""
    generator = minidl.Generator(4)
    w, g, m = (generator.normal(n) for _ in range(3))
    v = generator.uniform(n)
    Counted.n_bytes = 0
    wanted = adamw(*(x.view(Counted) for x in (w, g, m, v)))[0]
    lr, b1, b2, eps, decay = 1e-3, 0.9, 0.999, 1e-8, 0.01
    step, inv_root = lr / (1 - b1), (1 - b2) ** -0.5
    args = (w, g, m, v, n, step, inv_root, b1, 1 - b1, b2, 1 - b2, eps, 1 - lr * decay, 0.0, 1.0)
    report = checked("adamw.cu", "adamw_naive", -(-n // BLOCK), args)
    difference = float(np.abs(w - np.asarray(wanted)).max())
    return Counted.n_bytes / n, (report.bytes_read + report.bytes_written) / n, difference


def without_barrier(number, x):
    """`center` of tour.cu with one __syncthreads() left out, on 64 threads a row; the Report."""
    parts = center_text().split("__syncthreads();")
    text = "__syncthreads();".join(parts[: number + 1])
    text += "/* left out */;" + "__syncthreads();".join(parts[number + 1 :])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "tour.cu")
        path.write_text(text)
        args = (np.empty_like(x), x, x.shape[1])
        return cuda.check(path, len(x), 64, args, name="center", shared_mem=4 * 64)


def center_text():
    """The text of kernels/tour.cu up to the end of its first kernel."""
    text = (cuda.KERNELS / "tour.cu").read_text()
    return text[: text.index("\n}\n") + 3]


def main(t, args):
    table = Table(t)
    generator = minidl.Generator(3)
    rows, cols = args.rows, args.cols
    n = rows * cols
    say(t, f"1. Bytes by rung, on {rows} rows of {cols} floats: every load and store counted.")
    x, w, b = generator.normal(rows, cols), generator.normal(cols), generator.normal(cols)
    norms, error = layer_norm_ladder(x, w, b)
    for rung, report, theory in zip((1, 2, 3), norms, (16, 12, 8), strict=True):
        moved = report.ledger["x"].load_bytes + report.ledger["y"].store_bytes
        table.row(f"layer norm v{rung}: bytes of x and y", moved, theory * n, "exact")
    moved = sum(norms[2].ledger[name].store_bytes for name in ("mean", "rstd"))
    table.row("layer norm: bytes of mean and 1/std", moved, 8 * rows, "exact")
    moved = sum(norms[2].ledger[name].load_bytes for name in ("w", "b"))
    table.row("layer norm: bytes of scale and shift", moved, 8 * n, "exact")
    table.row("layer norm: largest error", error, 0.0, "abs<1e-5")
    softmaxes, error = softmax_ladder(x)
    for rung, report, theory in zip((1, 2, 3), softmaxes, (20, 12, 8), strict=True):
        moved = report.bytes_read + report.bytes_written
        table.row(f"softmax v{rung}: bytes", moved, theory * n, "exact")
    table.row("softmax: largest error", error, 0.0, "abs<2e-6")
    by_ops, fused, difference = adamw_bytes(1000)
    table.row("AdamW op by op: bytes a parameter", by_ops, 4 * 33.0, "exact")
    table.row("AdamW fused: bytes a parameter", fused, 28.0, "exact")
    table.row("AdamW: largest difference", difference, 0.0, "abs<1e-6")

    say(t, "2. `center` of kernels/tour.cu, each barrier left out in turn, in three thread orders:")
    x = generator.normal(2, 100)
    for number, which in enumerate(("first", "second")):
        report = without_barrier(number, x)
        say(t, f"   without the {which} barrier:")
        for f in report.errors:
            say(t, f"      {f}")
        kinds = {f.kind for f in report.errors}
        table.row(f"no {which} barrier: data race", "data race" in kinds, True, "exact")
        depends = "result depends on thread order" in kinds
        table.row(f"no {which} barrier: order of threads shows", depends, True, "exact")

    say(t, "3. The same kernel whole, and softmax_online, the exercises.")
    x = generator.normal(rows, cols)
    y = np.empty_like(x)
    centered = checked(FILE, "center", rows, (y, x, cols), shared_mem=4 * BLOCK, outputs=["y"])
    error = float(np.abs(y - (x - x.astype(float).mean(1, keepdims=True))).max())
    table.row("center: largest error", error, 0.0, "abs<2e-6")
    shared = centered.shared["s"]
    # a tree over B threads adds B - 1 times: 2 loads, 1 store; every output element reads s[0]
    table.row("center: shared stores", shared.stores, rows * (2 * BLOCK - 1), "exact")
    table.row("center: shared loads", shared.loads, rows * 2 * (BLOCK - 1) + n, "exact")
    shared_mem = {"shared_mem": 8 * BLOCK}
    online = checked(FILE, "softmax_online", rows, (y, x, cols), **shared_mem, outputs=["y"])
    table.row("softmax_online: bytes", online.bytes_read + online.bytes_written, 12 * n, "exact")
    table.row("softmax_online: largest error", float(np.abs(y - softmax(x)).max()), 0.0, "abs<2e-6")
    picture(t, draw, norms, softmaxes, (by_ops, fused), n)
    return table


BLUE, RED, ORANGE, GREY = "#08306b", "#cb181d", "#d94801", "#bdbdbd"


def draw(plt, norms, softmaxes, adamws, n):
    """Left: a sum in shared memory, phase by phase. Right: bytes of every rung."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(13.5, 6.4), width_ratios=(1, 1.1))
    draw_tree(left, 8)
    bars = []  # (label, bytes loaded, bytes stored) for each element
    for word, reports in (("layer norm", norms), ("softmax", softmaxes)):
        for rung, report in enumerate(reports, 1):
            xy = [report.ledger[name] for name in ("x", "y")]
            loads, stores = sum(a.load_bytes for a in xy), sum(a.store_bytes for a in xy)
            bars.append((f"{word} v{rung}", loads / n, stores / n))
    right.barh([b[0] for b in bars], [b[1] for b in bars], color=BLUE, label="loaded")
    right.barh(
        [b[0] for b in bars], [b[2] for b in bars], left=[b[1] for b in bars], color=RED,
        label="stored",
    )  # fmt: skip
    names = ["AdamW op by op", "AdamW fused"]
    right.barh(names, adamws, color=GREY, label="both together")
    for name, value in [*((b[0], b[1] + b[2]) for b in bars), *zip(names, adamws, strict=True)]:
        right.text(value + 1, name, f"{value:.0f}", va="center", fontsize=11)
    right.invert_yaxis()
    right.set(title="Bytes an element, counted", xlabel="bytes (float32)", xlim=(0, 150))
    right.legend(loc="center right")
    return figure


def draw_tree(axes, n):
    """Who reads and writes which element of s in every phase of `center`, n threads in a block."""
    axes.set_title("Shared memory of `center`: one block of 8 threads")
    phases = [("s[t] = mine", [(t, []) for t in range(n)])]
    d = n // 2
    while d:
        phases.append((f"s[t] += s[t + {d}]", [(t, [t, t + d]) for t in range(d)]))
        d //= 2
    phases.append(("all read s[0]", [(None, [0])]))
    for row, (label, accesses) in enumerate(phases):
        y = -2.0 * row
        touched = {t for t, _ in accesses}
        for t in range(n):
            box = {"boxstyle": "square,pad=0.35", "edgecolor": BLUE}
            box["facecolor"] = "#fee0d2" if t in touched else "white"
            live = row == 0 or t < max(n >> max(row - 1, 0), 1)
            axes.text(t, y, f"s[{t}]", bbox=box, ha="center", va="center", fontsize=10,
                      alpha=1 if live else 0.25)  # fmt: skip
        for target, sources in accesses:
            for source in sources:
                ends = range(n) if target is None else (target,)
                for end in ends:
                    arrow = {"arrowstyle": "-|>", "color": BLUE, "lw": 1.4, "shrinkB": 2}
                    if target is None:
                        axes.annotate("", (end, y - 1.1), (source, y - 0.4), arrowprops=arrow)
                    else:
                        axes.annotate("", (end, y + 0.42), (source, y + 1.55), arrowprops=arrow)
        axes.text(-1.1, y, label, ha="right", va="center", fontsize=11)
        if row + 1 < len(phases):
            axes.axhline(
                y - 0.55 - 0.28 * (row + 1 == len(phases)), color=RED, linestyle=":", lw=1.5
            )
            axes.text(n - 0.2, y - 0.45, "__syncthreads()", color=RED, fontsize=9, ha="left")
    note = "Filled: written in this phase. Arrow: read. Pale: not needed any more."
    axes.text(-3.9, -2.0 * len(phases) + 0.35, note, fontsize=10, color=BLUE)
    axes.set(xlim=(-3.9, n + 1.2), ylim=(-2.0 * len(phases) + 0.2, 0.8))
    axes.axis("off")


OPTIONS = {
    "rows": (8, "rows of the arrays"),
    "cols": (1000, "floats in a row"),
}

if __name__ == "__main__":
    launch(main, OPTIONS)
