"""03  A tour of kernels: rows, versions, barriers.                  60 minutes, needs: 02

This tutorial shows sums over rows, warp shuffles, one-pass algorithms, and why __syncthreads
matters.

    python tutorials/03_kernel_tour.py            one process; picture: out/03_kernel_tour.png
    minidl kernel bench layer_norm                checks and times its versions
    minidl kernel run --profile script.py         part 4, for the kernels of your own script

Layer norm and softmax need a sum over a row before they can write the first result of that row. The
naive kernels read the row again for each value that they need. Each later version reads the row
less often:

    layer norm v1   a thread per row: mean, variance, result      3 reads, 1 write: 16 bytes
               v2   a block per row: mean and variance together   2 reads, 1 write: 12
               v3   a warp per row; the row stays in registers    1 read,  1 write:  8
    softmax         v1, v2 and v3 as above, with maximum and sum in place of mean and variance:
                    16, 12 and 8
    AdamW           one kernel reads w, g, m, v and writes w, m, v: 28 bytes a parameter. As
                    separate ops, each addition or product reads its operands and writes its result.

The bytes are per element, in float32. Layer norm also writes 8 bytes a row (mean and 1/std) and
reads 8 bytes an element (scale and shift). Scale and shift are the same for all rows, so they come
from a cache.

The threads of a block exchange values through shared memory. If one thread writes a value and
another thread reads it, a barrier must be between the two: __syncthreads(). All threads of the
block must reach the barrier. A GPU runs threads in any order. Without a barrier a kernel may be
right a thousand times and then be wrong. Part 2 leaves out each barrier of the kernel `center` in
turn. It runs the threads in ascending, descending and shuffled order.

Two kernels may move the same bytes, and still one may be ten times slower than the other. The 32
threads of a warp make one request together. Global memory serves the request in sectors of 32
bytes. 32 neighbouring floats lie in 4 sectors (a coalesced request). 32 scattered floats can lie in
32 sectors. Shared memory has 32 banks, and successive words lie in successive banks. Threads that
want different words of one bank wait for each other (a bank conflict). Part 4 counts sectors and
bank conflicts.

Sources: Harris, "Optimizing Parallel Reduction in CUDA", 2007; Milakov and Gimelshein, "Online
normalizer calculation for softmax", 2018; Karpathy, llm.c (dev/cuda), 2024, for the versions.
Kernels: kernels/tour.cu, layer_norm.cu, softmax.cu, adamw.cu. The check form: minidl/cuda/checks.
Exercises: `minidl exercise 03` writes work/03_kernel_tour.py and work/tour.cu with the marked
regions empty; `minidl check 03` grades them.
"""

import tempfile
from pathlib import Path

import numpy as np

import minidl
from minidl import cuda
from minidl.course.out import BLUE, RED, arrow, box
from minidl.course.tutorial import Table, WrongOption, host, launch, picture, put, say

BLOCK = 256  # threads in a block
MOST_COLS = 1024  # in version 3 each of a warp's 32 lanes keeps 32 numbers in registers

# FILE is the student's tour.cu, if it is in the folder of this script. If not, FILE is
# kernels/tour.cu.
OWN = Path(__file__).with_name("tour.cu")
FILE = OWN if OWN.exists() else cuda.KERNELS / "tour.cu"


def checked(file, name, grid, args, block: int | tuple = BLOCK, **options):
    """Runs a kernel in the check form. Returns the Report. If the check finds an error, the script
    ends."""
    report = cuda.check(file, grid, block, args, name=name, **options)
    if report.errors:
        raise SystemExit(str(report))
    return report


def softmax(x):
    e = np.exp(x.astype(float) - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def centered(x):
    wide = x.astype(float)
    return wide - wide.mean(1, keepdims=True)


def versions(table, kernel, outputs, inputs, wanted, theory, allowed):
    """Checks the versions v1, v2 and v3 of a kernel that computes y from x.

    outputs: {name: array}. inputs: x and the other inputs. wanted: the right y. theory: for each
    version, how many bytes of x and y it moves per element. allowed: the tolerance of y. Adds rows
    to the table. Returns a list with the Report of each version."""
    name = kernel.replace("_", " ")
    rows = len(wanted)
    reports, errors = [], []
    # In version 1 a thread computes a row. In version 2 a block does this, in version 3 a warp.
    grids = -(-rows // BLOCK), rows, -(-rows * 32 // BLOCK)
    for version, grid, n_bytes in zip((1, 2, 3), grids, theory, strict=True):
        args = (*outputs.values(), *inputs)
        report = checked(f"{kernel}.cu", f"{kernel}_v{version}", grid, args, outputs=list(outputs))
        moved = sum(report.ledger[a].load_bytes + report.ledger[a].store_bytes for a in "xy")
        table.row(f"{name} v{version}: bytes of x and y", moved, n_bytes * wanted.size, "exact")
        reports.append(report)
        errors.append(np.abs(outputs["y"] - wanted).max())
    table.row(f"{name}: largest error", np.max(errors), 0.0, allowed)
    return reports


class Counted(np.ndarray):
    """An array. It counts the bytes that NumPy's operations read and write."""

    n_bytes = 0

    def __array_ufunc__(self, ufunc, method, *inputs, **keywords):
        plain = [np.asarray(x) if isinstance(x, Counted) else x for x in inputs]
        result = getattr(ufunc, method)(*plain, **keywords)
        Counted.n_bytes += sum(x.nbytes for x in (*plain, result) if isinstance(x, np.ndarray))
        return result.view(Counted)


def adamw(table, n):
    """Runs the first step of AdamW in two ways: op by op, and fused. Adds rows to the table.

    Returns two numbers, the bytes for each parameter: op by op, and fused."""
    arrays = minidl.Generator(4).uniform(4, n)
    lr, b1, b2, eps, decay = 1e-3, 0.9, 0.999, 1e-8, 0.01
    step = lr / (1 - b1)
    inv_root = (1 - b2) ** -0.5

    w, g, m, v = arrays.view(Counted)
    m = b1 * m + (1 - b1) * g
    v = b2 * v + (1 - b2) * g * g
    w = (1 - lr * decay) * w - step * m / (np.sqrt(v) * inv_root + eps)
    by_ops = Counted.n_bytes / n

    args = (n, step, inv_root, b1, 1 - b1, b2, 1 - b2, eps, 1 - lr * decay, 0.0, 1.0)
    report = checked("adamw.cu", "adamw_naive", -(-n // BLOCK), (*arrays, *args))
    fused = (report.bytes_read + report.bytes_written) / n

    error = np.abs(arrays[0] - np.asarray(w)).max()
    table.row("AdamW op by op: bytes a parameter", by_ops, 4 * 33.0, "exact")
    table.row("AdamW fused: bytes a parameter", fused, 28.0, "exact")
    table.row("AdamW: largest difference", error, 0.0, "abs<1e-6")
    return by_ops, fused


def without_barrier(number, x):
    """Checks `center` of tour.cu without one __syncthreads(). Returns the Report.

    number: the barrier to leave out, counted from 0. Each row has a block of 64 threads."""
    parts = (cuda.KERNELS / "tour.cu").read_text().split("__syncthreads();")
    parts[number] += "//"  # turns the next barrier into a comment
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "tour.cu")
        path.write_text("__syncthreads();".join(parts))
        args = (np.empty_like(x), x, x.shape[1])
        return cuda.check(path, len(x), 64, args, name="center", shared_mem=4 * 64)


def transposed(name, x, **defines):
    """Checks the transpose kernel `name` on x. Returns {("loads" or "stores", array): cost of a
    warp's request}.

    The cost is a number of sectors for an array in global memory. For an array in shared memory it
    is the number of threads that use the same bank."""
    y = np.empty_like(x)
    blocks = len(x) // 32
    report = checked("tour.cu", name, (blocks, blocks), (y, x, len(x)), (32, 32), defines=defines,
                     outputs=["out"], profile=True)
    assert np.array_equal(y, x.T)
    return {(a.what, a.array): a.units / a.requests for a in report.profile.accesses}


def layer_norms(table, generator, x):
    """Checks layer norm's versions on x. Adds rows to the table. Returns the Reports."""
    rows, cols = x.shape
    w = generator.normal(cols)
    b = generator.normal(cols)
    outputs = {
        "y": np.empty_like(x),
        "mean": np.empty(rows, x.dtype),
        "rstd": np.empty(rows, x.dtype),
    }
    variance = x.astype(float).var(1, keepdims=True)
    wanted = centered(x) / np.sqrt(variance + 1e-5) * w + b
    norms = versions(table, "layer_norm", outputs, (x, w, b, rows, cols, 1e-5), wanted,
                     theory=(16, 12, 8), allowed="abs<1e-5")

    _, _, v3 = norms
    moved = v3.ledger["mean"].store_bytes + v3.ledger["rstd"].store_bytes
    table.row("layer norm: bytes of mean and 1/std", moved, 8 * rows, "exact")
    moved = v3.ledger["w"].load_bytes + v3.ledger["b"].load_bytes
    table.row("layer norm: bytes of scale and shift", moved, 8 * x.size, "exact")
    return norms


def left_out(t, table, generator):
    """Checks `center` without its first barrier, then without its second. Prints the errors."""
    for number, which in enumerate(("first", "second")):
        report = without_barrier(number, generator.normal(2, 100))
        say(t, f"   without the {which} barrier:")
        for error in report.errors:
            say(t, f"      {error}")
        kinds = {error.kind for error in report.errors}
        for kind in ("data race", "result depends on thread order"):
            table.row(f"no {which} barrier: {kind}", kind in kinds, True, "exact")


def exercises(args, table, x):
    """Runs the kernels of the exercises on x. Checks the bytes and the errors of each kernel. For
    the kernel `center` it also checks the number of accesses to shared memory.

    Adds rows to the table."""
    rows, cols = x.shape
    n = x.size
    y = np.empty_like(x)
    for name, wanted in (("softmax_online", softmax(x)), ("center", centered(x))):
        report = checked(FILE, name, rows, (y, x, cols), shared_mem=8 * BLOCK, outputs=["y"])
        table.row(f"{name}: bytes", report.bytes_read + report.bytes_written, 12 * n, "exact")
        table.row(f"{name}: largest error", np.abs(y - wanted).max(), 0.0, "abs<2e-6")
        if args.device == "cuda":  # the same kernels, now on the GPU
            result = put(args, np.empty_like(x))
            kernel = cuda.kernel(FILE, name)
            kernel(rows, BLOCK, (result, put(args, x), cols), shared_mem=8 * BLOCK)
            error = np.abs(host(result) - wanted).max()
            table.row(f"{name} on the GPU: largest error", error, 0.0, "abs<2e-6")

    shared = report.shared["s"]  # the last report is about the kernel `center`
    # Each thread stores its own sum. Then a tree over B threads does B - 1 additions. An addition
    # has 2 loads and 1 store. At last each output element loads s[0].
    table.row("center: shared stores", shared.stores, rows * (2 * BLOCK - 1), "exact")
    table.row("center: shared loads", shared.loads, rows * 2 * (BLOCK - 1) + n, "exact")


def transposes(table, square):
    """Transposes a matrix in three ways. Adds the numbers of sectors and bank conflicts to the
    table."""
    naive = transposed("transpose_naive", square)
    table.row("naive transpose: sectors of a warp's load", naive["loads", "in"], 4.0, "exact")
    table.row("naive transpose: sectors of a warp's store", naive["stores", "out"], 32.0, "exact")
    for pad, threads in ((0, 32.0), (1, 1.0)):
        name = f"tile {32 + pad} wide"
        tile = transposed("transpose_tile", square, PAD=pad)
        table.row(f"{name}: sectors of a warp's store", tile["stores", "out"], 4.0, "exact")
        table.row(f"{name}: threads of a warp at one bank", tile["loads", "tile"], threads, "exact")


def main(t, args):
    if args.cols > MOST_COLS:
        raise WrongOption(f"--cols must be at most {MOST_COLS}, because version 3 of layer norm "
                          f"and softmax keeps a row in the registers of a warp; got {args.cols}")
    table = Table(t)
    generator = minidl.Generator(3)
    rows, cols = args.rows, args.cols
    say(t, f"1. Bytes by version, on {rows} rows of {cols} floats: every load and store counted.")
    x = generator.normal(rows, cols)
    norms = layer_norms(table, generator, x)
    softmaxes = versions(table, "softmax", {"y": np.empty_like(x)}, (x, rows, cols), softmax(x),
                         theory=(16, 12, 8), allowed="abs<2e-6")
    adamws = adamw(table, 1000)

    say(t, "2. `center` of kernels/tour.cu, each time without one barrier, in three thread orders:")
    left_out(t, table, generator)

    say(t, "3. The exercises: `center` with all its barriers, and softmax_online.")
    exercises(args, table, x)

    say(t, "4. How a GPU serves an access: three ways to transpose a matrix (kernels/tour.cu).")
    transposes(table, generator.normal(64, 64))
    picture(t, args, draw, norms, softmaxes, adamws, x.size)
    return table


def draw(plt, norms, softmaxes, adamws, n):
    """Draws two plots. Left: a sum in shared memory, phase by phase. Right: the bytes of every
    version."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(14.5, 6.4), width_ratios=(1.2, 1))
    left.set_title("Shared memory of `center`: one block of 8 threads")
    # (label, elements written, elements still needed, [(thread, element that it reads)])
    phases = [("s[t] = mine", 8, 8, [])]
    for d in (4, 2, 1):
        reads = [(t, t + k) for t in range(d) for k in (0, d)]
        phases.append((f"s[t] += s[t + {d}]", d, 2 * d, reads))
    phases.append(("all read s[0]", 0, 1, [(t, 0) for t in range(8)]))
    for row, (label, n_written, n_needed, reads) in enumerate(phases):
        y = -2.0 * row
        left.text(-1.1, y, label, ha="right", va="center", fontsize=11)
        for t in range(8):
            box(left, t, y, f"s[{t}]", "#fee0d2" if t < n_written else "white", fontsize=10,
                alpha=1 if t < n_needed else 0.25)
        down = 0 if n_written else 1.55  # in the last phase the arrows are below the row
        for t, source in reads:
            arrow(left, (source, y + 1.55 - 1.25 * down), (t, y + 0.42 - down))
        if n_written:
            left.axhline(y - 0.55, color=RED, linestyle=":", linewidth=1.5)
            left.text(7.8, y - 0.35, "__syncthreads()", color=RED, fontsize=9)
    note = "Filled: written in this phase. Arrow: read. Pale: no longer needed."
    left.text(-3.9, -9.65, note, fontsize=10, color=BLUE)
    left.set(xlim=(-3.9, 9.2), ylim=(-9.8, 0.8))
    left.axis("off")

    bars = {}  # {label: [bytes loaded, bytes stored] per element}
    for word, reports in (("layer norm", norms), ("softmax", softmaxes)):
        for rung, report in enumerate(reports, 1):
            xy = [report.ledger[name] for name in ("x", "y")]
            bars[f"{word} v{rung}"] = [sum(a.load_bytes for a in xy) / n,
                                       sum(a.store_bytes for a in xy) / n]
    loaded, stored = zip(*bars.values(), strict=True)
    right.barh(list(bars), loaded, color=BLUE, label="loaded")
    right.barh(list(bars), stored, left=loaded, color=RED, label="stored")
    both = right.barh(["AdamW op by op", "AdamW fused"], adamws, color="#bdbdbd",
                      label="loaded + stored")
    right.bar_label(right.containers[1], [f"{sum(b):.0f}" for b in bars.values()], padding=4)
    right.bar_label(both, ["", f"{adamws[1]:.0f}"], padding=4)
    # The bar of "AdamW op by op" is too long for the plot, so its number is written at the edge.
    right.text(41, 6, f"{adamws[0]:.0f}: far past the edge >", ha="right", va="center")
    right.invert_yaxis()
    right.set(title="Bytes an element, counted", xlabel="bytes (float32)", xlim=(0, 42))
    right.legend(loc="center right")
    return figure


OPTIONS = {
    "rows": (8, "rows of the arrays"),
    "cols": (1000, "floats in a row"),
}

if __name__ == "__main__":
    launch(main, OPTIONS)
