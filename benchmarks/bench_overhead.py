"""How long does an op take without its arithmetic? The goal is 1.5 to 3 times PyTorch's time.

    python benchmarks/bench_overhead.py [--calls 300] [--rounds 200] [--device cuda] [--out F.json]

The arrays are 4x4 and need a gradient, and there is one thread. The arithmetic of 16 elements takes
almost no time. The rest of the time is Python code, which reads the Mode, builds the node, chooses
the kernel and launches it. PyTorch eager does this in C++. The shortest time of many rounds counts,
because noise only adds time. The time depends on the build of Python. Without profile-guided
optimisation (pyenv's default) minidl takes up to 1.15 times as long, and PyTorch takes the same
time. The builds by Debian and python.org have this optimisation. tests/test_calls.py counts the
Python calls of an op.
"""

import argparse
import math
import os

from common import (
    bar, device_option, finish, heading, import_torch, left_out_on, row, span, take_turns, threads,
    timed, torch_runs_on,
)

BARS = {"add": 1.5, "mul": 1.5, "gelu": None, "linear": 3, "softmax": 3, "layer norm": 3,
        "(x*w).sum().backward()": 2.5}


def options():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=100, help="calls of an op in one measurement")
    parser.add_argument("--rounds", type=int, default=300)
    device_option(parser)
    parser.add_argument("--out", help="JSON file")
    return parser.parse_args()


def ops(randn, F, device):
    """Returns {name: a function that calls the op} for one of the libraries."""
    x, w, b = (randn(*shape).to(device) for shape in ((4, 4), (4, 4), (4,)))
    x.requires_grad_(True)
    w.requires_grad_(True)
    b.requires_grad_(True)

    def backward():
        x.grad = w.grad = None
        (x * w).sum().backward()

    calls = [lambda: x + w, lambda: x * w, lambda: F.gelu(x), lambda: F.linear(x, w, b),
             lambda: F.softmax(x, -1), lambda: F.layer_norm(x, (4,), b, b), backward]
    return dict(zip(BARS, calls, strict=True))


def main():
    args = options()
    os.environ.update(threads(1))  # must be set before the libraries are loaded
    import minidl
    from minidl.nn import functional as F

    libraries, device = {"minidl": ops(minidl.randn, F, args.device)}, args.device
    if device == "cpu" or torch_runs_on(device):
        torch = import_torch()
        torch.set_num_threads(1)
        libraries["PyTorch"] = ops(torch.randn, torch.nn.functional, device)
    print(heading(device))
    print(f"microseconds a call, the least of {args.rounds} rounds of {args.calls} calls\n")
    print(f"{'':24} {'PyTorch':>8} {'minidl':>8} {'ratio':>6}   measured")
    figures, bars = {}, []
    for name, wanted in BARS.items():
        times = take_turns({who: timed(calls[name], args.calls, device)
                            for who, calls in libraries.items()}, args.rounds, warm_up=3)
        us = {"PyTorch": math.nan, **{who: 1e6 * min(t) for who, t in times.items()}}
        ratio = us["minidl"] / us["PyTorch"]
        figures[name] = {**us, "ratio": ratio}
        print(f"{name:24} {us['PyTorch']:8.2f} {us['minidl']:8.2f} {ratio:6.2f}")
        if wanted and device == "cpu":
            bars.append(bar(f"{name} on 4x4, time by PyTorch's", ratio, wanted, at_most=True))
    rows = [row("an op's cost without its arithmetic, 4x4: its time / PyTorch's", "PyTorch eager",
                span([b["figure"] for b in bars]), bars)] if bars else []
    finish(figures, bars, rows, args.out, left_out_on(device))


if __name__ == "__main__":
    main()
