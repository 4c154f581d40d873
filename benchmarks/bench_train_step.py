"""How long does a GPT's training step take, in minidl and in PyTorch eager, on the CPU?

    python benchmarks/bench_train_step.py [--threads 2] [--repeats 7] [--plain] [--out FILE.json]

The same model (4 layers, width 256, 8 heads, context 256, vocabulary 256), the same weights, the
same batch of 8, AdamW; float32. Both are checked to give the same losses first. The two take
turns in blocks of three steps, so that a change of the machine's speed meets both; the ratio is the
median over the blocks. The floor is the sum of the step's matrix products alone, by NumPy's BLAS.
Then a table of where minidl's time goes, by operation, and of the activations that a forward saves
for backward: with the kernels, with the plain ops, and in PyTorch.
"""

import argparse
import ctypes
import os
import statistics
import sys
import time


def options():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7, help="blocks of three steps of each")
    parser.add_argument("--plain", action="store_true", help="without the fused kernels")
    parser.add_argument("--out", help="JSON file (default benchmarks/results/train_step*.json)")
    return parser.parse_args()


ARGS = options()
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = str(ARGS.threads)  # before NumPy loads its BLAS
# as `minidl run` does; launcher.py says why. The second is for PyTorch's memory, too
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
if sys.platform == "linux":
    for option, value in ((-1, 2**30), (-3, 2**25)):  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
        ctypes.CDLL(None).mallopt(option, value)

import numpy as np  # noqa: E402
from common import machine, write_json  # noqa: E402

import minidl  # noqa: E402
from minidl import nn, optim  # noqa: E402
from minidl.backward import saved_by_op  # noqa: E402
from minidl.function import Function  # noqa: E402
from minidl.nn import functional as F  # noqa: E402

LAYERS, WIDTH, HEADS, CONTEXT, BATCH, VOCAB = 4, 256, 8, 256, 8, 256
STEPS_PER_BLOCK = 3


def make_minidl():
    minidl.manual_seed(0)
    model = nn.GPT(VOCAB, CONTEXT, LAYERS, HEADS, WIDTH)
    optimizer = optim.AdamW(model.parameters(), lr=1e-3)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).reshape(-1, VOCAB), y.reshape(-1))
        loss.backward()
        optimizer.step()
        return loss.item()

    return model, step


def saved(model, x, y):
    """{operation: bytes that it saves for backward} of a forward and its loss."""
    return saved_by_op(F.cross_entropy(model(x).reshape(-1, VOCAB), y.reshape(-1)))


def make_torch(weights):
    """The same model in PyTorch's own modules, with the same names."""
    import torch
    import torch_gpt
    from torch.nn import functional as TF

    torch.set_num_threads(ARGS.threads)

    model = torch_gpt.make(weights, VOCAB, CONTEXT, LAYERS, HEADS, WIDTH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(x, y):
        x, y = torch.from_numpy(x), torch.from_numpy(y)
        optimizer.zero_grad()
        loss = TF.cross_entropy(model(x).view(-1, VOCAB), y.view(-1))
        loss.backward()
        optimizer.step()
        return loss.item()

    def saved_bytes(x, y):
        """What autograd saves, each storage once, without the parameters."""
        storages = {}

        def pack(t):
            storages[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
            return t

        x, y = torch.from_numpy(x), torch.from_numpy(y)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            loss = TF.cross_entropy(model(x).view(-1, VOCAB), y.view(-1))
        for p in model.parameters():
            storages.pop(p.untyped_storage().data_ptr(), None)
        del loss  # until here the graph held the tensors: no address was used twice
        return sum(storages.values())

    return step, saved_bytes


def block_time(step, x, y):
    """Seconds per step, over one block."""
    start = time.perf_counter()
    for _ in range(STEPS_PER_BLOCK):
        step(x, y)
    return (time.perf_counter() - start) / STEPS_PER_BLOCK


def matmul_time():
    """Seconds that the step's matrix products take alone, in NumPy: forward, and two backward."""
    n, c, d = BATCH * CONTEXT, WIDTH, WIDTH // HEADS
    shapes = [(n, c, 3 * c), (n, c, c), (n, c, 4 * c), (n, 4 * c, c)] * LAYERS + [(n, c, VOCAB)]
    products = []
    for m, k, p in shapes:
        x, w, gy = (np.ones(s, np.float32) for s in ((m, k), (p, k), (m, p)))
        products += [(x, w.T), (gy, w), (gy.T, x)]
    q, scores = np.ones((BATCH * HEADS, CONTEXT, d), np.float32), None
    scores = np.ones((BATCH * HEADS, CONTEXT, CONTEXT), np.float32)
    qt = q.transpose(0, 2, 1)
    # attention: scores and output forward; dv, dP, dq, dk backward
    products += [(q, qt), (scores, q), (scores, q), (q, qt), (scores, q), (scores, q)] * LAYERS
    outs = [np.empty(a.shape[:-1] + b.shape[-1:], np.float32) for a, b in products]
    start = time.perf_counter()
    for (a, b), out in zip(products, outs):
        np.matmul(a, b, out=out)
    return time.perf_counter() - start


def profile(step, x, y, n_steps=3):
    """{(operation, 'forward' or 'backward'): seconds per step}, every Function timed, and the
    whole step."""
    times = {}

    def timed(cls, phase):
        method = cls.__dict__[phase]

        def run(self, *args, **options):
            start = time.perf_counter()
            try:
                return method(self, *args, **options)
            finally:
                key = cls.__name__, phase
                times[key] = times.get(key, 0.0) + time.perf_counter() - start

        setattr(cls, phase, run)
        return lambda: setattr(cls, phase, method)

    undo = [timed(cls, phase) for cls in subclasses(Function)
            for phase in ("forward", "backward") if phase in cls.__dict__]
    start = time.perf_counter()
    for _ in range(n_steps):
        step(x, y)
    total = time.perf_counter() - start
    for u in undo:
        u()
    return {k: v / n_steps for k, v in times.items()}, total / n_steps


def subclasses(cls):
    return [s for c in cls.__subclasses__() for s in (c, *subclasses(c))]


def main():
    rng = np.random.default_rng(0)
    ids = rng.integers(0, VOCAB, (BATCH, CONTEXT + 1))
    x, y = ids[:, :-1].copy(), ids[:, 1:].copy()
    model, ours = make_minidl()
    print(machine())
    print(f"GPT: {LAYERS} layers, width {WIDTH}, {HEADS} heads, context {CONTEXT}, batch {BATCH}, "
          f"{sum(p.numel() for p in model.parameters()):,} parameters, {ARGS.threads} threads")
    try:
        theirs, their_saved = make_torch({k: v.copy() for k, v in model.state_dict().items()})
    except ImportError:
        theirs = None
        print("PyTorch is not installed: pip install 'minidl[bench]'. minidl's times alone:")
    result = {"machine": machine(), "threads": ARGS.threads}
    losses = [ours(x, y) for _ in range(3)]  # and warm-up
    if theirs:
        peer = [theirs(x, y) for _ in range(3)]
        print("losses of the first steps: minidl", [f"{v:.5f}" for v in losses],
              " PyTorch", [f"{v:.5f}" for v in peer])
        # float32: three steps of the same formulas
        np.testing.assert_allclose(losses, peer, rtol=1e-4)
    times = {"minidl": [], "PyTorch eager": [], "matrix products alone": []}
    for _ in range(ARGS.repeats):
        times["minidl"].append(block_time(ours, x, y))
        if theirs:
            times["PyTorch eager"].append(block_time(theirs, x, y))
        times["matrix products alone"].append(matmul_time())
    print(f"\n{'':24}{'median ms':>10}{'min':>8}{'max':>8}{'minidl /':>10}")
    for name, values in times.items():
        if not values:
            continue
        ratio = statistics.median(a / b for a, b in zip(times["minidl"], values))
        print(f"{name:24}{1e3 * statistics.median(values):>10.1f}{1e3 * min(values):>8.1f}"
              f"{1e3 * max(values):>8.1f}{ratio:>10.2f}")
        result[name] = {"median_s": statistics.median(values), "minidl_over_this": ratio}
    table, total = profile(ours, x, y)
    print(f"\nwhere minidl's {1e3 * total:.0f} ms go (ms per step)\n"
          f"{'operation':28}{'forward':>9}{'backward':>10}{'share':>8}")
    names = sorted({n for n, _ in table}, key=lambda n: -sum(
        table.get((n, p), 0) for p in ("forward", "backward")))
    for name in names:
        f, b = (table.get((name, p), 0.0) for p in ("forward", "backward"))
        if (f + b) / total > 0.002:
            print(f"{name:28}{1e3 * f:>9.1f}{1e3 * b:>10.1f}{(f + b) / total:>8.1%}")
    rest = total - sum(table.values())
    print(f"{'optimizer, engine, Python':28}{1e3 * rest:>19.1f}{rest / total:>8.1%}")
    result["operations_s"] = {f"{n}.{p}": v for (n, p), v in table.items()}
    kernels = saved(model, x, y)
    with minidl.use_fused(False):
        plain = saved(model, x, y)
    mib = 2**20
    print(f"\nsaved for backward, MiB\n{'operation':28}{'kernels':>9}{'plain ops':>10}")
    names = {n.removeprefix("Self"): n for n in kernels}
    for name in sorted(names, key=lambda n: -kernels[names[n]]):
        print(f"{name:28}{kernels[names[name]] / mib:>9.2f}{plain.get(name, 0) / mib:>10.2f}")
    totals = {"kernels": sum(kernels.values()), "plain ops": sum(plain.values())}
    print(f"{'all':28}{totals['kernels'] / mib:>9.2f}{totals['plain ops'] / mib:>10.2f}", end="")
    if theirs:
        totals["PyTorch eager"] = their_saved(x, y)
        print(f"   PyTorch eager {totals['PyTorch eager'] / mib:.2f}", end="")
    # what attention by softmax(q k^T) v would hold beside this: softmax's result for each head
    print(f"\nthe matrices of attention's weights, which nobody here saves: "
          f"{4 * LAYERS * BATCH * HEADS * CONTEXT**2 / mib:.0f}")
    result["saved_bytes"] = totals
    write_json(result, ARGS.out, "train_step_plain.json" if ARGS.plain else "train_step.json")


if __name__ == "__main__":
    with minidl.use_fused(not ARGS.plain):
        main()
