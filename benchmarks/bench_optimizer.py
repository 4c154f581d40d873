"""How fast is AdamW over 10 million parameters in 100 tensors?

    python benchmarks/bench_optimizer.py [--threads 1 2] [--repeats 15] [--device cuda]
                                         [--out FILE.json]

These optimizers are timed in turn, one step each:

    minidl's kernel: one launch, one pass over memory
    the same with fp16 weights and gradients, fp32 master weights, unscaling and the check for inf
    PyTorch's AdamW(fused=True) on the CPU
    minidl's NumPy step, which reuses one buffer
    the formula in NumPy, with a new array for every operation

The second part measures the time that autocast adds to a training step if all ops stay in fp32.
Each op must still choose its precision.
"""

import argparse
import statistics
import sys

from common import (
    bar, best_ratio, device_option, faster, finish, heading, left_out_on, measured, number, put,
    ratio, row, take_turns, threads, timed, torch_runs_on, write_figures,
)

N_TENSORS, N_ELEMS = 100, 100_000
OURS, MASTER, TORCH = "minidl fused", "minidl fused, O2", "PyTorch fused"
PLAIN, CHAIN = "NumPy, in place", "NumPy, expressions"


def options():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=15)
    device_option(parser)
    parser.add_argument("--out", help="JSON file")
    parser.add_argument("--measure", help=argparse.SUPPRESS)  # the child writes this file
    return parser.parse_args()


def parameters(dtype, device):
    import numpy as np

    from minidl import nn

    rng = np.random.default_rng(0)
    def draw():
        return put(rng.standard_normal(N_ELEMS).astype(dtype), device)

    params = [nn.Parameter(draw()) for _ in range(N_TENSORS)]
    for p in params:
        p.grad = draw()
    return params


def expression_step(params):
    """Returns a step of AdamW that follows the formula, with a new array for each operation."""
    xp = params[0]._xp
    lr, b1, b2, eps, decay = 1e-3, 0.9, 0.999, 1e-8, 0.01
    state = [(xp.zeros_like(p.array), xp.zeros_like(p.array)) for p in params]
    t = 0

    def step():
        nonlocal t
        t += 1
        for i, p in enumerate(params):
            w, g, (m, v) = p.array, p.grad.array, state[i]
            m = b1 * m + (1 - b1) * g
            v = b2 * v + (1 - b2) * g * g
            w = w - lr * decay * w
            p.data = w - lr * (m / (1 - b1**t)) / (xp.sqrt(v / (1 - b2**t)) + eps)
            state[i] = m, v

    return step


def contestants(n_threads, device):
    import numpy as np

    import minidl
    from minidl import optim
    from minidl.precision.grad_scaler import GradScaler

    ours = optim.AdamW(parameters(np.float32, device))
    low = optim.use_master_weights(optim.AdamW(parameters(np.float16, device)))
    scaler = GradScaler(init_scale=1.0)
    plain = optim.AdamW(parameters(np.float32, device))

    def step_low():
        scaler.step(low)
        scaler.update()

    def step_plain():
        with minidl.use_fused(False):
            plain.step()

    steps = {OURS: ours.step, MASTER: step_low, PLAIN: step_plain,
             CHAIN: expression_step(parameters(np.float32, device))}
    if torch_runs_on(device):
        import torch

        torch.set_num_threads(n_threads)
        params = [torch.nn.Parameter(torch.randn(N_ELEMS, device=device))
                  for _ in range(N_TENSORS)]
        for p in params:
            p.grad = torch.randn(N_ELEMS, device=device)
        steps[TORCH] = torch.optim.AdamW(params, fused=True).step
    return {name: timed(step, device=device, alone=n_threads > 1) for name, step in steps.items()}


def autocast_overhead(repeats, device):
    """Returns the seconds of each round, for a step with autocast and a step without. All ops stay
    in fp32."""
    import numpy as np

    import minidl
    from minidl import nn, optim
    from minidl.nn import functional as F
    from minidl.precision import amp

    model = nn.GPT(256, 128, 4, 4, 128).to(device)
    optimizer = optim.AdamW(model.parameters())
    x = minidl.Tensor(put(np.random.default_rng(0).integers(0, 256, (8, 128)), device))
    lists = amp.lists()

    def step(cast):
        with amp.autocast(enabled=cast, black=lists["white"]):
            loss = F.cross_entropy(model(x).reshape(-1, 256), x.reshape(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return take_turns({"with": timed(lambda: step(True), device=device),
                       "without": timed(lambda: step(False), device=device)}, repeats, warm_up=2)


def measure(n_threads, repeats, device):
    times = take_turns(contestants(n_threads, device), repeats, warm_up=2)
    return {"times_s": times, "autocast_s": autocast_overhead(repeats, device)}


def main():
    args = options()
    if args.measure:
        return write_figures(measure(args.threads[0], args.repeats, args.device), args.measure)
    if args.device != "cpu":
        args.threads = [1]  # on a GPU, CPU threads do not matter
    print(heading(args.device))
    print(f"AdamW, {N_TENSORS} tensors of {N_ELEMS:,}; median ms, ratios of turns\n", flush=True)
    figures = {}
    for n in args.threads:
        figures[n] = measured(sys.executable, __file__, "--threads", n, "--repeats", args.repeats,
                              "--device", args.device, **threads(n))
        times = figures[n]["times_s"]
        for name, seconds in times.items():
            print(f"{n} threads  {name:20} {statistics.median(seconds) * 1e3:8.2f} ms   "
                  f"minidl fused is {ratio(seconds, times[OURS]):6.2f} times as fast")
        print(f"{n} threads  a step under autocast that casts nothing: "
              f"{(ratio(*figures[n]['autocast_s'].values()) - 1) * 100:+.1f}%\n", flush=True)
    judged = report(figures) if args.device == "cpu" else ([], [])  # the goals are for a CPU only
    finish(figures, *judged, args.out, left_out_on(args.device))


def report(figures):
    """Returns (bars, rows). A bar is a measured number with its goal. A row is a line of the table
    in docs/figures.md."""
    bars, rows = [], []
    question = f"AdamW over {N_TENSORS} tensors of {N_ELEMS:,}"
    peers = (TORCH, "PyTorch's `AdamW(fused=True)`", 1), (CHAIN, "NumPy's expressions", 5)
    for n, found in figures.items():
        times, threads = found["times_s"], f"{n} thread{'s' * (int(n) > 1)}"
        for peer, name, wanted in peers:
            if peer in times:
                bars.append(faster(f"AdamW, {threads}: {peer} / ours", times[peer], times[OURS],
                                   wanted))
                rows.append(row(f"{question}, {threads}", name,
                                f"{number(bars[-1]['figure'])} times its speed", bars[-1:]))
    for n, found in figures.items():
        turns = found["autocast_s"].values()  # two lists of times: with autocast, and without
        bars.append(bar(f"a step's time under autocast / without, {n} threads", ratio(*turns), 1.03,
                        at_most=True, best=best_ratio(*turns)))
    mine = bars[-len(figures):]
    rows.append(row(f"autocast that casts nothing, {', '.join(map(str, figures))} threads",
                    "a step without", ", ".join(f"{b['figure']:.3f}" for b in mine)
                    + " times its time", mine))
    return bars, rows


if __name__ == "__main__":
    main()
