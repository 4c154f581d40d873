"""Is the memory ledger right, how much does recompute save, and how much does PyTorch need?

    python benchmarks/bench_memory.py [--blocks 16] [--rows 16] [--segments 4] [--out FILE.json]

Measures one training step of a GPT in fp32 with AdamW. The ledger's bytes are compared with four
other numbers:

    16 bytes per parameter
    the activations that memory/predict.py predicts from batches of one row and of two rows
    tracemalloc, which counts allocations by Python's objects
    the process's peak resident memory (VmHWM), in a new process for every number

The last two numbers are higher, because the ledger does not count temporaries inside an op's
expressions. Recompute lowers the ledger's bytes and these two numbers by the same amount.

The C library returns freed memory to the system only if this memory is a separate mapping. With
MALLOC_MMAP_THRESHOLD_ every array above 64 KiB is a separate mapping. By default the process may
keep freed arrays to use them again. Both cases are measured.

Activation offload (minidl/memory/offload.py): saved arrays are on the host until backward needs
them. The benchmark counts the bytes on the device, with and without recompute, and the bytes that
are moved.

Fragmentation (minidl/memory/fragmentation.py): a first-fit allocator runs the same step twice.
First every array is separate. Then parameters, gradients and states are in one contiguous buffer.
At each moment some free memory is outside the largest free piece. These bytes are divided by the
bytes of the whole memory. The result is the largest value of this fraction in the step.

Comparison with PyTorch: two steps of a GPT with context 256 and batch 8, each library in its own
process. The result is the peak resident memory minus the memory before the model is created. First
of all, a step of a tiny GPT loads everything that is loaded on first use. minidl and PyTorch read
the same weights from a file, and their losses must be the same. The columns are minidl's MiB,
PyTorch's MiB, and minidl / PyTorch. The goal of this ratio is at most 1. "held" is 16 bytes per
parameter: parameters, gradients and AdamW's two states.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
from common import (
    NO_TORCH, bar, device_option, finish, heading, measured, number, ratio, row, take_turns,
    threads, timed, write_figures,
)
from small_gpt import batch_of, step_of

VOCABULARY, CONTEXT, WIDTH, HEADS = 256, 128, 128, 4
MIB = 2**20
GIVEN_BACK = "resident, freed memory given back"
# The shapes of the comparison with PyTorch: (vocabulary, context, layers, heads, width).
BESIDE_PYTORCH = (256, 256, 4, 8, 256), (256, 256, 7, 8, 512)
TINY, BATCH = (256, 8, 1, 2, 32), 8


def options():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--blocks", type=int, default=16)
    parser.add_argument("--rows", type=int, default=16, help="sequences in a batch")
    parser.add_argument("--segments", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5, help="how many timed steps")
    parser.add_argument("--out", help="JSON file")
    device_option(parser, "its peers count a process's memory on the host; on a GPU see "
                  "minidl.cuda.memory_allocated")
    parser.add_argument("--child", choices=CHILDREN, help=argparse.SUPPRESS)
    parser.add_argument("--measure", help=argparse.SUPPRESS)  # the child writes this file
    # --shape is one of the shapes in BESIDE_PYTORCH
    parser.add_argument("--shape", type=int, nargs=5, help=argparse.SUPPRESS)
    parser.add_argument("--weights", help=argparse.SUPPRESS)  # a file with the model's weights
    return parser.parse_args()


class Training:
    """A GPT whose blocks run in segments with recompute. With 0 segments the GPT keeps all
    activations."""

    def __init__(self, n_blocks, n_rows, segments, level="O0"):
        import minidl
        from minidl import nn, optim
        from minidl.memory.recompute import recompute_sequential
        from minidl.precision import amp

        minidl.manual_seed(0)
        model = nn.GPT(VOCABULARY, CONTEXT, n_blocks, HEADS, WIDTH)
        if segments:
            def forward(ids):
                x = model.token(ids) + model.position(minidl.arange(ids.shape[-1]))
                return model.head(model.norm(recompute_sequential(model.blocks, x, segments)))

            model.forward = forward
        optimizer = optim.AdamW(model.parameters(), lr=1e-3)
        self.model, self.optimizer, self.scaler = amp.initialize(model, optimizer, level)
        self.ids = minidl.Generator(1).integers(0, VOCABULARY, (n_rows, CONTEXT))
        self.n_params = sum(p.numel() for p in model.parameters())

    def loss(self, model, ids):
        from minidl.nn import functional as F

        return F.cross_entropy(model(ids).reshape(-1, VOCABULARY), ids.reshape(-1))

    def step(self):
        self.optimizer.zero_grad()
        self.scaler.scale(self.loss(self.model, self.ids)).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()


# -- each of these functions runs in its own process and returns its figures


def resident(args):
    """Returns the peak resident bytes of two steps. The first step creates the optimizer's state.
    """
    training = Training(args.blocks, args.rows, args.segments)
    training.step()
    training.step()
    return {"bytes": of_process("VmHWM")}


def of_process(field):
    """Returns the bytes of one field of /proc/self/status. "VmRSS" is the memory that is resident
    now, and "VmHWM" is its peak."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith(field))
    return int(line.split()[1]) * 1024


def minidl_peak(args):
    """Returns how many bytes two steps add to the process's peak memory, and the losses of the
    steps."""
    from minidl import nn, optim

    def training(shape, weights, x, y):
        model = nn.GPT(*shape)
        if weights:
            model.load_state_dict(weights)
        return step_of(model, optim.AdamW(model.parameters(), lr=1e-3), x, y)

    return peak_of(training, args)


def torch_peak(args):
    """Returns the same as minidl_peak, for PyTorch."""
    import torch
    import torch_gpt

    torch.set_num_threads(1)

    def training(shape, weights, x, y):
        model = torch_gpt.make(weights, *shape) if weights else torch_gpt.GPT(*shape)
        return torch_gpt.step_of(model, torch.optim.AdamW(model.parameters(), lr=1e-3), x, y)

    return peak_of(training, args)


def peak_of(training, args):
    training(TINY, None, *batch_of(0, 1, TINY[1]))()
    before = of_process("VmRSS")
    step = training(args.shape, np.load(args.weights), *batch_of(0, BATCH, args.shape[1]))
    losses = [step() for _ in range(2)]  # the first step creates the optimizer's state
    return {"bytes": of_process("VmHWM") - before, "losses": losses}


def ledger(args):
    """Returns a dict of bytes for one step: the ledger's peak and activations, the predicted
    activations, tracemalloc's peak, and the bytes of offload and fragmentation."""
    import tracemalloc

    from minidl import memory
    from minidl.memory import predict
    from minidl.memory.fragmentation import contiguous, first_fit
    from minidl.memory.offload import offload

    training = Training(args.blocks, args.rows, args.segments)
    training.step()
    training.optimizer.zero_grad()
    with memory.record(training.model, training.optimizer) as book:
        training.step()
    training.optimizer.zero_grad()
    with memory.record(training.model, training.optimizer) as moved, offload() as host:
        training.step()
    training.optimizer.zero_grad()
    tracemalloc.start()
    training.step()
    traced = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    states = sum(book.peak[kind] for kind in ("parameters", "master weights", "optimizer"))
    predicted, _ = (None, 0) if args.segments else predict.activations(
        training.model, (training.ids,), training.loss)
    return {"peak": book.peak_bytes, "by kind": book.peak, "by op": book.by_op(),
            "activations": book.most("activations"), "predicted": predicted,
            "inputs": book.peak["inputs"], "made in the step": book.peak_bytes - states,
            "offload": [moved.peak_bytes, host.peak_bytes,
                        sum(n_bytes for *_, n_bytes in host.log)],
            "tracemalloc": traced, "as it comes": first_fit(book.events),
            "contiguous": first_fit(contiguous(book.events, book.kinds))}


def states(args):
    """Returns {level: (the ledger's bytes between two steps, number of parameters)}. level: the
    level of mixed precision, "O0", "O1" or "O2"."""
    from minidl import memory

    found = {}
    for level in ("O0", "O1", "O2"):
        training = Training(2, 2, 0, level)
        training.step()
        held = memory.totals(training.model, training.optimizer)
        found[level] = sum(held.values()), training.n_params
    return found


def times(args):
    """Returns the seconds of a step with and without recompute. The two kinds of steps are timed in
    turn."""
    few = max(args.segments, args.blocks // 4)
    contestants = {name: timed(Training(few, args.rows, segments).step)
                   for name, segments in (("recomputed", args.segments), ("kept", 0))}
    return take_turns(contestants, args.repeats, warm_up=1)


CHILDREN = {child.__name__: child for child in (resident, ledger, states, times, minidl_peak,
                                                torch_peak)}


def in_own_process(what, args, segments=None, fixed=True, *more):
    environ = {"MALLOC_MMAP_THRESHOLD_": str(1 << 16)} if fixed else {}
    segments = args.segments if segments is None else segments
    return measured(sys.executable, __file__, "--child", what, "--blocks", args.blocks, "--rows",
                    args.rows, "--segments", segments, "--repeats", args.repeats,
                    *more, **threads(1), **environ)


def beside_pytorch(args):
    """Checks that minidl's losses equal PyTorch's losses. Returns a list of dicts: the shape of a
    GPT, its number of parameters, and the bytes of both libraries."""
    import minidl
    from minidl import nn

    found = []
    print(f"\n{'MiB of a step, at its peak':42} {'held':>10} {'minidl':>10} {'PyTorch':>10} "
          f"{'minidl /':>10}")
    for shape in BESIDE_PYTORCH:
        minidl.manual_seed(0)
        weights = nn.GPT(*shape).state_dict()
        n_params = sum(w.numel() for name, w in weights.items() if name != "head.weight")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "weights.npz"
            np.savez(path, **weights)
            mine, peer = (in_own_process(what, args, None, False, "--shape", *shape, "--weights",
                                         path) for what in ("minidl_peak", "torch_peak"))
        np.testing.assert_allclose(mine["losses"], peer["losses"], rtol=1e-4)
        print(f"{f'{n_params:,} parameters':42} {16 * n_params / MIB:>10.1f} "
              f"{mine['bytes'] / MIB:>10.1f} {peer['bytes'] / MIB:>10.1f} "
              f"{mine['bytes'] / peer['bytes']:>10.2f}", flush=True)
        found.append({"shape": shape, "parameters": n_params, "minidl": mine["bytes"],
                      "PyTorch": peer["bytes"]})
    return found


def main():
    args = options()
    if args.child:
        return write_figures(CHILDREN[args.child](args), args.measure)
    print(heading())
    print(f"a GPT of {args.blocks} blocks, width {WIDTH}, context {CONTEXT}, {args.rows} rows, "
          f"fp32, AdamW; {args.segments} recomputed segments\n", flush=True)
    result = {"blocks": args.blocks, "rows": args.rows, "segments": args.segments}

    result["states"] = in_own_process("states", args)
    for level, (held, n_params) in result["states"].items():
        print(f"{level}: {held:,} bytes held between two steps; 16 X = {16 * n_params:,}")

    kept, again = (in_own_process("ledger", args, segments) for segments in (0, args.segments))
    result["ledger"] = {"kept": kept, "recomputed": again}
    print(f"\nactivations: {kept['activations']:,} bytes by the ledger, {kept['predicted']:,} "
          "predicted")
    print(f"\n{'MiB at the peak':42} {'kept':>10} {'recomputed':>10} {'fall':>10}")

    def line(name, a, b):
        print(f"{name:42} {a / MIB:>10.1f} {b / MIB:>10.1f} {(a - b) / MIB:>10.1f}")

    line("ledger", kept["peak"], again["peak"])
    line("ledger, made in the step", kept["made in the step"], again["made in the step"])
    line("tracemalloc, made in the step", kept["tracemalloc"], again["tracemalloc"])
    result["resident"] = {}
    for fixed, name in ((True, GIVEN_BACK), (False, "resident, as it is")):
        pair = [in_own_process("resident", args, segments, fixed)["bytes"]
                for segments in (0, args.segments)]
        result["resident"][name] = pair
        line(name, *pair)
    for i, what in ((0, "ledger, activations offloaded"), (2, "    MiB moved, there and back")):
        print(f"{what:42} {kept['offload'][i] / MIB:>10.1f} {again['offload'][i] / MIB:>10.1f}")

    print(f"\n{'first fit: free, but in pieces':42} {'kept':>10} {'recomputed':>10}")
    for layout in ("as it comes", "contiguous"):
        parts = [in_pieces / span for _, span, in_pieces in (kept[layout], again[layout])]
        print(f"{layout:42} {parts[0]:>10.1%} {parts[1]:>10.1%}")

    result["times_s"] = in_own_process("times", args)
    extra = ratio(result["times_s"]["recomputed"], result["times_s"]["kept"])
    print(f"\na recomputed step takes {extra:.2f} times as long; 4/3 if backward costs 2 forwards")
    left_out = []
    try:
        import torch  # noqa: F401
    except ImportError:
        left_out = [NO_TORCH]
    else:
        result["beside PyTorch"] = beside_pytorch(args)
    finish(result, *report(result), args.out, left_out)


def report(figures):
    """Returns (bars, rows). A bar is a measured number with its goal. A row is a line of the table
    in docs/figures.md."""
    kept, again = figures["ledger"]["kept"], figures["ledger"]["recomputed"]
    of_states = [bar(f"{level}: ledger's states - 16 X, bytes", abs(held - 16 * n_params), 0,
                     at_most=True) for level, (held, n_params) in figures["states"].items()]
    activations = bar("activations, predicted against the ledger's: % off",
                      100 * abs(kept["predicted"] / (kept["activations"] + kept["inputs"]) - 1), 2,
                      at_most=True)
    ledger_fall = kept["peak"] - again["peak"]
    whole, less = figures["resident"][GIVEN_BACK]
    resident = bar("fall of the peak resident memory against the ledger's: % off",
                   100 * abs((whole - less) / ledger_fall - 1), 10, at_most=True)
    slower = ratio(figures["times_s"]["recomputed"], figures["times_s"]["kept"])
    offloaded, _, moved = kept["offload"]
    as_it_comes, contiguous = (in_pieces / span for _, span, in_pieces in
                               (kept["as it comes"], kept["contiguous"]))
    off = sum(b["figure"] for b in of_states)
    bars, rows = peaks(figures.get("beside PyTorch", ()))
    return [*of_states, activations, resident, *bars], [
        row(f"memory: the ledger's states of a GPT in {', '.join(figures['states'])}",
            "16 bytes a parameter", f"{off:,} bytes off" if off else "equal, to the byte",
            of_states),
        row(f"activations of a GPT of {figures['blocks']} blocks, predicted from one row and two",
            "the ledger's", f"{number(activations['figure'])}% off", [activations]),
        row("the peak resident memory of its step falls by "
            f"{number((whole - less) / MIB)} MiB with {figures['segments']} recomputed segments",
            f"the ledger's fall, {number(ledger_fall / MIB)} MiB",
            f"{number(resident['figure'])}% off", [resident]),
        row("a recomputed step's time, 4 blocks", "of a step that keeps all; 4/3 by count",
            f"{number(slower)} times"),
        row("the same step with its activations offloaded: the device's peak, by the ledger",
            f"{number(kept['peak'] / MIB)} MiB that keep all; {number(again['peak'] / MIB)} MiB "
            "recomputed", f"{number(offloaded / MIB)} MiB, for {number(moved / MIB)} MiB of "
            "traffic"),
        row("memory free, but not in one piece, at the worst moment of that step (first fit)",
            f"with one contiguous buffer for what lives long: {contiguous:.0%}",
            f"{as_it_comes:.0%}"),
        *rows,
    ]


def peaks(found):
    """Returns (bars, rows), as report() does, for the results of `beside_pytorch`."""
    bars, rows = [], []
    for figures in found:
        _, context, layers, _, width = figures["shape"]
        million = f"{figures['parameters'] / 1e6:.0f} M parameters"
        by = figures["minidl"] / figures["PyTorch"]
        bars.append(bar(f"peak resident memory, minidl / PyTorch, {million}", by, 1, at_most=True))
        rows.append(row(f"the peak resident memory of a GPT's training step: {million}, {layers} "
                        f"layers, width {width}, context {context}, batch {BATCH}",
                        f"PyTorch eager, {number(figures['PyTorch'] / MIB)} MiB",
                        f"{number(by)} times its memory", bars[-1:]))
    return bars, rows


if __name__ == "__main__":
    main()
