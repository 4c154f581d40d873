"""Is the memory ledger right, and what does recompute give back?

    python benchmarks/bench_memory.py [--blocks 16] [--rows 16] [--segments 4] [--out FILE.json]

One training step of a GPT, fp32 and AdamW. The ledger's bytes are compared with 16 bytes a
parameter; with what memory_predict says of activations, from one row and two; with tracemalloc, the
allocations of Python's objects; and with the process's peak resident memory (VmHWM), a fresh
process for every figure. The ledger does not see temporaries inside an op's expressions, which is
why the others are above it; recompute lowers all three by as much.

The C library gives freed memory back to the system only when it lies in a mapping of its own.
MALLOC_MMAP_THRESHOLD_ makes every array above 64 KiB one; by default freed arrays may remain, to be
used again. Both are shown.

Activation offload (minidl/activation_offload.py): what the device holds if saved arrays wait on the
host, alone or around the recomputed segments; and the traffic.

Fragmentation: what a first-fit allocator would need for the same step (minidl/fragmentation.py),
with arrays as they come, and with parameters, gradients and states in one contiguous buffer: how
much of the memory is at one moment free, but not in its largest free piece.
"""

import argparse
import json
import os
import subprocess
import sys

from common import bar, machine, print_bars, ratio, take_turns, timed, write_json

VOCABULARY, CONTEXT, WIDTH, HEADS = 256, 128, 128, 4


def options():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--blocks", type=int, default=16)
    parser.add_argument("--rows", type=int, default=16, help="sequences in a batch")
    parser.add_argument("--segments", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5, help="of the timed steps")
    parser.add_argument("--out", help="JSON file (default benchmarks/results/memory.json)")
    parser.add_argument("--measure", choices=CHILDREN, help=argparse.SUPPRESS)
    return parser.parse_args()


class Training:
    """A GPT whose blocks run in recomputed segments; 0 keeps all."""

    def __init__(self, n_blocks, n_rows, segments, level="O0"):
        import minidl
        from minidl import amp, nn, optim
        from minidl.recompute import recompute_sequential

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


# -- in a process of its own; each returns what is printed as JSON


def resident(args):
    """The process's peak resident bytes over two steps: the first makes the optimizer's state."""
    training = Training(args.blocks, args.rows, args.segments)
    training.step()
    training.step()
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("VmHWM"))
    return {"bytes": int(line.split()[1]) * 1024}


def ledger(args):
    """Of the second step: the ledger's peak, its activations, those predicted, tracemalloc's."""
    import tracemalloc

    from minidl import memory, memory_predict
    from minidl.activation_offload import offload
    from minidl.fragmentation import contiguous, first_fit

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
    predicted = None if args.segments else memory_predict.activations(
        training.model, (training.ids,), training.loss)
    return {"peak": book.peak_bytes, "by kind": book.peak, "by op": book.by_op(),
            "activations": book.most("activations"), "predicted": predicted,
            "inputs": book.peak["inputs"], "made in the step": book.peak_bytes - states,
            "offload": [moved.peak_bytes, host.peak_bytes,
                        sum(n_bytes for *_, n_bytes in host.log)],
            "tracemalloc": traced, "as it comes": first_fit(book.events),
            "contiguous": first_fit(contiguous(book.events, book.kinds))}


def states(args):
    """{level: (ledger's bytes between two steps, parameters)}."""
    from minidl import memory

    found = {}
    for level in ("O0", "O1", "O2"):
        training = Training(2, 2, 0, level)
        training.step()
        held = memory.totals(training.model, training.optimizer)
        found[level] = sum(held.values()), training.n_params
    return found


def times(args):
    """Seconds of a step with and without recompute, in turns."""
    few = max(args.segments, args.blocks // 4)
    contestants = {name: timed(Training(few, args.rows, segments).step)
                   for name, segments in (("recomputed", args.segments), ("kept", 0))}
    return take_turns(contestants, args.repeats, warm_up=1)


CHILDREN = {child.__name__: child for child in (resident, ledger, states, times)}


def in_own_process(what, args, segments=None, fixed=True):
    environ = dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    if fixed:
        environ["MALLOC_MMAP_THRESHOLD_"] = str(1 << 16)
    segments = args.segments if segments is None else segments
    command = [sys.executable, __file__, "--measure", what, "--blocks", str(args.blocks),
               "--rows", str(args.rows), "--segments", str(segments),
               "--repeats", str(args.repeats)]
    done = subprocess.run(command, env=environ, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main():
    args = options()
    if args.measure:
        print(json.dumps(CHILDREN[args.measure](args)))
        return
    print(machine())
    print(f"a GPT of {args.blocks} blocks, width {WIDTH}, context {CONTEXT}, {args.rows} rows, "
          f"fp32, AdamW; {args.segments} recomputed segments\n")
    result, bars = {"machine": machine(), "blocks": args.blocks, "rows": args.rows}, []

    result["states"] = in_own_process("states", args)
    for level, (held, n_params) in result["states"].items():
        print(f"{level}: {held:,} bytes held between two steps; 16 X = {16 * n_params:,}")
        bars.append(bar(f"{level}: ledger's states - 16 X, bytes", abs(held - 16 * n_params), 0,
                        at_most=True))

    kept, again = (in_own_process("ledger", args, segments) for segments in (0, args.segments))
    result["ledger"] = {"kept": kept, "recomputed": again}
    measured = kept["activations"] + kept["inputs"]
    print(f"\nactivations: {kept['activations']:,} bytes by the ledger, {kept['predicted']:,} "
          "predicted")
    bars.append(bar("activations, predicted against the ledger's: difference",
                    abs(kept["predicted"] / measured - 1), 0.02, at_most=True))
    print(f"\n{'MiB at the peak':42} {'kept':>10} {'recomputed':>10} {'fall':>10}")
    mib = 2**20
    falls = {}

    def line(name, a, b):
        falls[name] = a - b
        print(f"{name:42} {a / mib:>10.1f} {b / mib:>10.1f} {(a - b) / mib:>10.1f}")

    line("ledger", kept["peak"], again["peak"])
    line("ledger, made in the step", kept["made in the step"], again["made in the step"])
    line("tracemalloc, made in the step", kept["tracemalloc"], again["tracemalloc"])
    result["resident"] = {}
    for fixed, name in ((True, "resident, freed memory given back"), (False, "resident, as it is")):
        pair = [in_own_process("resident", args, segments, fixed)["bytes"]
                for segments in (0, args.segments)]
        result["resident"][name] = pair
        line(name, *pair)
    bars.append(bar("fall of the peak resident memory against the ledger's: difference",
                    abs(falls["resident, freed memory given back"] / falls["ledger"] - 1), 0.1,
                    at_most=True))

    for i, what in ((0, "ledger, activations offloaded"), (2, "    MiB moved, there and back")):
        print(f"{what:42} {kept['offload'][i] / mib:>10.1f} {again['offload'][i] / mib:>10.1f}")

    print(f"\n{'first fit: free, but in pieces':42} {'kept':>10} {'recomputed':>10}")
    for layout in ("as it comes", "contiguous"):
        parts = [in_pieces / span for _, span, in_pieces in (kept[layout], again[layout])]
        print(f"{layout:42} {parts[0]:>10.1%} {parts[1]:>10.1%}")

    result["times_s"] = in_own_process("times", args)
    extra = ratio(result["times_s"]["recomputed"], result["times_s"]["kept"])
    print(f"\na recomputed step takes {extra:.2f} times as long; 4/3 where backward is 2 forwards")
    print_bars(bars)
    write_json({**result, "bars": bars}, args.out, "memory.json")


if __name__ == "__main__":
    main()
