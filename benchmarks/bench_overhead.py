"""What does an op cost beside its arithmetic? At most 1.5 to 3 times what it costs in PyTorch.

    python benchmarks/bench_overhead.py [--calls 300] [--rounds 200] [--device cuda] [--out F.json]

4x4 arrays with a gradient, one thread: on 16 elements the arithmetic takes nothing, and what is
left is Python (the Mode read, the node built, the kernel chosen and launched), where PyTorch eager
has C++. Figures are the least of many rounds, since a disturbance only adds. How Python itself was
compiled counts: without profile-guided optimisation (pyenv's default; Debian's and python.org's
have it) ours takes up to 1.15 times as long, PyTorch's as long as before. How many Python calls an
op makes is counted in tests/test_calls.py.
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
    parser.add_argument("--calls", type=int, default=100, help="of an op in a measurement")
    parser.add_argument("--rounds", type=int, default=300)
    device_option(parser)
    parser.add_argument("--out", help="JSON file")
    return parser.parse_args()


def ops(randn, F, device):
    """{name: a call}, of either library."""
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
    os.environ.update(threads(1))  # before the libraries are loaded
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
    rows = [row("what an op costs beside its arithmetic, 4x4, time by PyTorch's", "PyTorch eager",
                span([b["figure"] for b in bars]), bars)] if bars else []
    finish(figures, bars, rows, args.out, left_out_on(device))


if __name__ == "__main__":
    main()
