"""02  A fused kernel, and what it saves.                 40 minutes, needs: C, a first idea of CUDA

Fusing two kernels does not save arithmetic. It saves memory traffic.

    python tutorials/02_add3.py                   one process; picture: out/02_add3.png

You need no GPU. Without a GPU, a C++ compiler makes a CPU program from the same file,
kernels/add3.cu.

The task is out = a + b + c, for N floats. With one launch for each plus sign, the sum of a and b
goes to memory and back:

    launch 1:  t   = a + b         reads 2N floats, writes N
    launch 2:  out = t + c         reads 2N floats, writes N         6N floats = 24N bytes

In one launch a + b stays in a register:

    launch 1:  out = a + b + c     reads 3N floats, writes N         4N floats = 16N bytes

Both ways need 2N additions. But an addition is much faster than the load of its operands from
memory. So the time is proportional to the bytes. One launch is at best 24/16 = 1.5 times faster
than two. Faster arithmetic does not change this.

A kernel is written for one thread, and thread i computes element i. Threads come in blocks of equal
size. So the last block reaches past N, unless the block size divides N. With the guard `if (i < n)`
the threads past N do nothing. A GPU does not tell you that the guard is missing. The check form
tells you: it runs the kernel on the CPU and checks every access (part 3).

Source: Harris, "An Even Easier Introduction to CUDA", 2017, for the launch; Rush, "GPU Puzzles",
2022, for counting loads and stores. How the check form works: minidl/cuda/checks/checker.py.
Exercises: `minidl exercise 02` writes work/02_add3.py and work/add3.cu with the marked regions
empty; `minidl check 02` grades them.
"""

import tempfile
import time
from pathlib import Path

import numpy as np

import minidl
from minidl import cuda
from minidl.course.out import BLUE, PALE_BLUE, PALE_ORANGE, RED, arrow, box
from minidl.course.tutorial import Table, launch, picture, put, say

BLOCK = 256  # threads in a block

# FILE is the student's add3.cu, if it is in the folder of this script. If not, FILE is
# kernels/add3.cu.
OWN = Path(__file__).with_name("add3.cu")
FILE = OWN if OWN.exists() else cuda.KERNELS / "add3.cu"


def blocks(n, block):
    """Returns how many blocks of `block` threads give each of n elements its own thread."""
    # >>> exercise 02b: how many blocks
    # Return the smallest number of blocks that is enough, for any n >= 1. In Python n / block is a
    # float. n // block rounds down, so the last elements get no thread.
    return -(-n // block)
    # <<<


def two_launches(check, a, b, c):
    """Computes out = (a + b) + c by two launches, through the array t.

    Returns (a list with the result of check() for each launch, out)."""
    n = a.size
    t = np.empty_like(a)
    out = np.empty_like(a)
    first = check("add3_naive", (t, a, b, n), {"out": "t", "a": "a", "b": "b"})
    second = check("add3_naive", (out, t, c, n), {"out": "out", "a": "t", "b": "c"})
    return [first, second], out


def one_launch(check, a, b, c):
    out = np.empty_like(a)
    report = check("add3", (out, a, b, c, a.size), {name: name for name in ("out", "a", "b", "c")})
    return [report], out


def checked(name, args, names):
    """Runs a kernel in the check form. Returns {name of an array in this script: its Traffic}.

    names: {name of an array in the kernel: its name in this script}."""
    n = args[0].size
    report = cuda.check(FILE, blocks(n, BLOCK), BLOCK, args, name=name, outputs=["out"])
    if report.errors:
        raise SystemExit(str(report))
    return {names[parameter]: traffic for parameter, traffic in report.ledger.items()}


def n_bytes(launches):
    """Returns the bytes that all launches loaded and stored."""
    return sum(t.load_bytes + t.store_bytes for ledger in launches for t in ledger.values())


def seconds(work, device, repeats=15):
    """Returns the median wall time of work() in seconds. On a GPU, each measured time ends when the
    GPU has finished."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        if device == "cuda":
            cuda.synchronize()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def main(t, args):
    table = Table(t)
    n = args.n
    generator = minidl.Generator(2)
    a, b, c = (generator.normal(n) for _ in range(3))

    say(t, f"1. out = a + b + c for N = {n:,} floats: every load and store counted.")
    apart, by_two = two_launches(checked, a, b, c)
    fused, by_one = one_launch(checked, a, b, c)
    table.row("two launches: bytes", n_bytes(apart), 24 * n, "exact")
    table.row("one launch: bytes", n_bytes(fused), 16 * n, "exact")
    table.row("launches", f"{len(apart)} -> {len(fused)}", "2 -> 1", "exact")
    (traffic,) = fused
    table.row("loads of the one launch", sum(x.loads for x in traffic.values()), 3 * n, "exact")
    table.row("stores of the one launch", sum(x.stores for x in traffic.values()), n, "exact")
    table.row("elements that differ", int((by_two != by_one).sum()), 0, "exact")

    n_time = min(args.n_time, 40_000) if cuda.is_watched() else args.n_time
    say(t, f"2. The time, for N = {n_time:,}: is it proportional to the bytes?")
    compare_times(args, table, generator, n_time)

    say(t, "3. The same kernel with a wrong guard, `i <= n`, in the check form:")
    report = wrong_guard(1000)
    say(t, *(f"   {f}\n      -> {f.remedy}" for f in report.errors))
    table.row("what the check form finds", report.errors[0].kind, "out of bounds", "exact")

    say(t, "4. add3_relu_bias, the exercise, on a 37 x 27 array.")
    relu_bias(t, table, generator)

    few = [generator.normal(4) for _ in range(3)]
    apart, _ = two_launches(checked, *few)
    fused, _ = one_launch(checked, *few)
    picture(t, args, draw, apart, fused)
    return table


def compare_times(args, table, generator, n):
    """Measures the time of a + b + c for n floats: with one launch, with two launches, and with
    NumPy (on a GPU with CuPy).

    Adds rows to the table."""
    a, b, c = (put(args, generator.normal(n)) for _ in range(3))
    out = np.empty_like(a)
    between = np.empty_like(a)
    grid = blocks(n, BLOCK)
    naive = cuda.kernel(FILE, "add3_naive")
    add3 = cuda.kernel(FILE, "add3")

    def unfused():
        naive(grid, BLOCK, (between, a, b, n))
        naive(grid, BLOCK, (out, between, c, n))

    def in_one():
        add3(grid, BLOCK, (out, a, b, c, n))

    two = seconds(unfused, args.device)
    one = seconds(in_one, args.device)
    plain = seconds(lambda: a + b + c, args.device)
    table.row("two launches, ms", 1000 * two)
    table.row("one launch, ms", 1000 * one)
    table.row("one launch: GB/s", 16 * n / one / 1e9)
    table.row("two launches / one launch", two / one, 1.5, "info")
    table.row("a + b + c of NumPy (CuPy), ms", 1000 * plain)


def relu_bias(t, table, generator):
    """Checks the errors, the bytes and the result of the exercise's kernel. Adds rows to the
    table."""
    rows, cols = 37, 27  # 999 elements, which is not a multiple of BLOCK
    a, b, c = (generator.normal(rows, cols) for _ in range(3))
    bias = generator.normal(cols)
    out = np.empty((rows, cols), np.float32)
    arguments = (out, a, b, c, bias, out.size, cols)
    grid = blocks(out.size, BLOCK)
    report = cuda.check(FILE, grid, BLOCK, arguments, name="add3_relu_bias", outputs=["out"])
    say(t, *(f"   {f}" for f in report.errors))
    table.row("add3_relu_bias: errors", len(report.errors), 0, "exact")

    moved = report.bytes_read + report.bytes_written
    table.row("add3_relu_bias: bytes", moved, 20 * out.size, "exact")

    wanted = np.maximum(a.astype(float) + b + c + bias, 0)
    error = float(np.abs(out - wanted).max())  # 3 roundings of numbers < 16 make an error < 2e-6
    table.row("add3_relu_bias: largest error", error, 0.0, "abs<4e-6")


def wrong_guard(n):
    """Checks a copy of add3 with `<=` in its guard. Returns the Report of the check."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "wrong_guard.cu")
        text = (cuda.KERNELS / "add3.cu").read_text()
        path.write_text(text.replace("if (i < n)", "if (i <= n)"))
        a = np.ones(n, np.float32)
        out = np.empty(n, np.float32)
        return cuda.check(path, -(-n // BLOCK), BLOCK, (out, a, a + 1, a + 2, n), name="add3")


def draw(plt, apart, fused):
    """Draws one block of four threads. Each arrow is a load (blue) or a store (red)."""
    figure, panels = plt.subplots(1, 2, figsize=(13, 7))
    figure.suptitle("out = a + b + c: loads and stores of one block of four threads")
    for axes, launches, title in zip(
            panels, (apart, fused), ("two launches", "one launch"), strict=True):
        y = 0.0  # y is the height of the next row. The second launch begins at the stored row
        for number, ledger in enumerate(launches, 1):
            loaded = [name for name, traffic in ledger.items() if traffic.loads]
            (stored,) = (name for name, traffic in ledger.items() if traffic.stores)
            thread = y - 0.95 * len(loaded) - 0.75
            rows = [(name, y - 0.95 * k) for k, name in enumerate(loaded)]
            y = thread - 1.5
            for name, height in [*rows, (f"launch {number}", thread), (stored, y)]:
                axes.text(-0.65, height, name, ha="right", va="center")
            for i, x in enumerate((0, 1.2, 2.4, 3.6)):
                for k, (name, height) in enumerate(reversed(rows)):
                    # k boxes lie between this box and the thread. The arrow bends around these
                    # boxes.
                    arrow(axes, (x + 0.2 * (k > 0), height - (0.08 if k else 0.2)),
                          (x + 0.12 * k, thread + 0.33), connectionstyle=f"arc3,rad={-0.18 * k}")
                    box(axes, x, height, f"{name}[{i}]", PALE_BLUE, fontsize=10)
                arrow(axes, (x, thread - 0.22), (x, y + 0.2), RED)
                box(axes, x, thread, i, PALE_ORANGE, "circle", fontsize=11)
                box(axes, x, y, f"{stored}[{i}]", PALE_BLUE, fontsize=10)
        arrows = sum(x.loads + x.stores for ledger in launches for x in ledger.values())
        axes.set_title(f"{title}: {arrows} arrows of 4 bytes, "
                       f"{n_bytes(launches) // 4} bytes a thread")
        axes.set(xlim=(-1.3, 5.2), ylim=(-9.3, 0.7))
        axes.axis("off")
    for colour, name in ((BLUE, "load"), (RED, "store")):
        axes.plot([], [], color=colour, label=name)
    bytes_apart, bytes_fused = n_bytes(apart) // 4, n_bytes(fused) // 4
    axes.text(1.8, -7.4, f"{bytes_apart} / {bytes_fused} = {bytes_apart / bytes_fused:g}:\n"
              "one launch is at best\nthis many times faster", ha="center", va="center",
              fontsize=14)
    axes.legend(loc="lower right")
    return figure


OPTIONS = {
    "n": (100_003, "floats whose loads and stores are counted"),
    "n_time": (4_000_000, "floats of the launches whose time is measured"),
}

if __name__ == "__main__":
    launch(main, OPTIONS)
