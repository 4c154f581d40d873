"""How long does a GPT's training step take, in minidl and in PyTorch eager, on the CPU?

    python benchmarks/bench_train_step.py [--threads 2] [--repeats 15] [--device cuda]
                                          [--out FILE.json]

Three variants are compared: minidl with its kernels, minidl with only NumPy, and PyTorch. All have
the same model and weights, a batch of 8 and AdamW, in float32. The model has 4 layers, width 256, 8
heads, context 256 and vocabulary 256. First their losses are compared. Then the variants are timed
in turn, in blocks of three steps. So a change of the machine's speed affects all variants. In each
round, each variant does one block. A ratio divides two times of one round, and the table shows the
ratio's median. "matrix products alone" is the time of the step's products by NumPy's BLAS. No step
can be faster than this. Two tables follow. The first is minidl's time by operation (not on a GPU,
where an op only starts its work). The second has the activations that forward saves for backward:
with kernels, with plain ops, and in PyTorch.
"""

import argparse
import statistics
import sys
from typing import NamedTuple

import numpy as np
from common import (
    bar, best_ratio, device_option, finish, heading, left_out_on, measured, number, print_profile,
    put, ratio, row, take_turns, timed, torch_runs_on, write_figures,
)

import minidl
from minidl import nn, optim
from minidl.cli.machine import environment
from minidl.memory.saved_bytes import saved_by_op
from minidl.nn import functional as F

OURS, PLAIN, TORCH, FLOOR = "minidl", "NumPy alone", "PyTorch eager", "matrix products alone"


def options():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15, help="blocks of three steps of each")
    device_option(parser)
    parser.add_argument("--out", help="JSON file")
    parser.add_argument("--measure", help=argparse.SUPPRESS)  # the child writes this file
    return parser.parse_args()


class Size(NamedTuple):
    """The sizes of a GPT and of its batch."""

    layers: int = 4
    width: int = 256
    heads: int = 8
    context: int = 256
    batch: int = 8
    vocab: int = 256

    def __str__(self):
        return (f"{self.layers} layers, width {self.width}, context {self.context}, batch "
                f"{self.batch}")


SIZE = Size()
STEPS_PER_BLOCK = 3


def make_minidl(device="cpu", size=SIZE):
    minidl.manual_seed(0)
    model = nn.GPT(size.vocab, size.context, size.layers, size.heads, size.width).to(device)
    optimizer = optim.AdamW(model.parameters(), lr=1e-3)

    def step(x, y):
        x, y = minidl.Tensor(put(x, device)), minidl.Tensor(put(y, device))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).reshape(-1, size.vocab), y.reshape(-1))
        loss.backward()
        optimizer.step()
        return loss.item()

    return model, step


def saved(model, x, y):
    """Returns {operation: bytes that it saves for backward}, for one forward with its loss."""
    device = str(next(model.parameters()).device)
    x, y = minidl.Tensor(put(x, device)), minidl.Tensor(put(y, device))
    return saved_by_op(F.cross_entropy(model(x).reshape(-1, SIZE.vocab), y.reshape(-1)))


def make_torch(weights, n_threads, device, size=SIZE):
    """Returns two functions for the same model in PyTorch. The first does one training step. The
    second counts the bytes that are saved for backward."""
    import torch
    import torch_gpt
    from torch.nn import functional as TF

    torch.set_num_threads(n_threads)

    shape = size.vocab, size.context, size.layers, size.heads, size.width
    model = torch_gpt.make(weights, *shape).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(x, y):
        x, y = torch.from_numpy(x).to(device), torch.from_numpy(y).to(device)
        optimizer.zero_grad()
        loss = TF.cross_entropy(model(x).view(-1, size.vocab), y.view(-1))
        loss.backward()
        optimizer.step()
        return loss.item()

    def saved_bytes(x, y):
        x, y = torch.from_numpy(x).to(device), torch.from_numpy(y).to(device)
        return torch_gpt.saved_bytes(
            lambda: TF.cross_entropy(model(x).view(-1, size.vocab), y.view(-1)), model.parameters())

    return step, saved_bytes


def products(size):
    """Returns [(a, b, part)], an entry for each matrix product of a step. a and b are the shapes of
    the two matrices. part is the fraction of the product that counts: 1/2 in attention, because of
    the causal mask, and 1 elsewhere."""
    n, c, d = size.batch * size.context, size.width, size.width // size.heads
    linear = [(n, c, 3 * c), (n, c, c), (n, c, 4 * c), (n, 4 * c, c)] * size.layers
    shapes = []
    for m, k, p in [*linear, (n, c, size.vocab)]:  # one product in forward, two in backward
        shapes += [((m, k), (k, p), 1), ((m, p), (p, k), 1), ((p, m), (m, k), 1)]
    q = size.batch * size.heads, size.context, d
    qt, scores = (q[0], d, size.context), (q[0], size.context, size.context)
    # Attention has two products in forward: the scores and the output. It has four products in
    # backward: dv, dP, dq and dk.
    attention = [(q, qt), (scores, q), (scores, q), (q, qt), (scores, q), (scores, q)]
    return shapes + [(a, b, 1 / 2) for a, b in attention * size.layers]


def operations(size):
    """Returns the number of operations of products(size). A multiply-add counts as two."""
    return sum(int(2 * np.prod(a) * b[-1] * part) for a, b, part in products(size))


def matmuls(xp, size=SIZE):
    """Returns a function that does only the step's matrix products, in NumPy or CuPy."""
    pairs = [(xp.ones(a, np.float32), xp.ones(b, np.float32)) for a, b, _ in products(size)]
    outs = [xp.empty(a.shape[:-1] + b.shape[-1:], np.float32) for a, b in pairs]

    def run():
        for (a, b), out in zip(pairs, outs):
            xp.matmul(a, b, out=out)

    return run


def measure(args):
    """Measures the times and the saved bytes of all variants. Needs the environment that `minidl
    run` sets."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, SIZE.vocab, (SIZE.batch, SIZE.context + 1))
    batch = ids[:, :-1].copy(), ids[:, 1:].copy()
    device = args.device
    model, step = make_minidl(device, SIZE)
    print(f"GPT: {SIZE}, {sum(p.numel() for p in model.parameters()):,} parameters, "
          f"{args.threads} threads")
    weights = {k: put(v.array, "cpu").copy() for k, v in model.state_dict().items()}
    _, plain = make_minidl(device, SIZE)
    steps = {OURS: step, PLAIN: minidl.use_fused(False)(plain)}
    their_saved = None
    if torch_runs_on(device):
        steps[TORCH], their_saved = make_torch(weights, args.threads, device, SIZE)
    losses = {name: [step(*batch) for _ in range(3)] for name, step in steps.items()}
    for name, values in losses.items():  # the losses of three steps differ only by rounding
        print(f"losses of the first steps: {name:<14}", [f"{v:.5f}" for v in values])
        np.testing.assert_allclose(values, losses[OURS], rtol=1e-4)
    contestants = {name: timed(lambda step=step: step(*batch), STEPS_PER_BLOCK, device)
                   for name, step in steps.items()}
    floor = timed(matmuls(next(model.parameters())._xp, SIZE), device=device)
    times = take_turns(contestants | {FLOOR: floor}, args.repeats)
    print(f"\n{'':24}{'median ms':>10}{'min':>8}{'max':>8}{'minidl /':>10}")
    for name, values in times.items():
        print(f"{name:24}{1e3 * statistics.median(values):>10.1f}{1e3 * min(values):>8.1f}"
              f"{1e3 * max(values):>8.1f}{ratio(times[OURS], values):>10.2f}")
    operations = {name: print_profile(name, steps[name], *batch) for name in (OURS, PLAIN)
                  if device == "cpu"}
    return {"threads": args.threads, "times_s": times, "operations_s": operations,
            "saved_bytes": print_saved(model, their_saved, *batch)}


def print_saved(model, their_saved, x, y):
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
    if their_saved:
        totals[TORCH] = their_saved(x, y)
        print(f"   {TORCH} {totals[TORCH] / mib:.2f}", end="")
    # If attention is softmax(q k^T) v in plain ops, it also saves the result of softmax for each
    # head.
    print(f"\nthe matrices of attention's weights, which none of these saves: "
          f"{4 * SIZE.layers * SIZE.batch * SIZE.heads * SIZE.context**2 / mib:.0f}")
    return totals


def main():
    args = options()
    if args.measure:
        return write_figures(measure(args), args.measure)
    print(heading(args.device), flush=True)
    figures = measured(sys.executable, __file__, "--threads", args.threads, "--repeats",
                       args.repeats, "--device", args.device, **environment(1, args.threads))
    judged = report(figures) if args.device == "cpu" else ([], [])  # the goals are for a CPU only
    finish(figures, *judged, args.out, left_out_on(args.device))


def report(figures):
    """Returns (bars, rows). A bar is a measured number with its goal. A row is a line of the table
    in docs/figures.md."""
    times, bars, rows = figures["times_s"], [], []
    if TORCH not in times:
        return bars, rows
    for name, question, wanted in (
        (OURS, f"a GPT's training step: {SIZE}; {figures['threads']} threads", 0.9),
        (PLAIN, "the same without the kernels, NumPy alone", 1.6),
    ):
        by, best = (f(times[name], times[TORCH]) for f in (ratio, best_ratio))
        bars.append(bar(f"a step's time, {name} / PyTorch", by, wanted, at_most=True, best=best))
        rows.append(row(question, TORCH, f"{number(by)} times its time; {number(best)} by the "
                        "least times", bars[-1:]))
    return bars, rows


if __name__ == "__main__":
    main()
