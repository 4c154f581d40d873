"""How long does a step of a pipeline take? Peers: the formulas and PyTorch's pipelines.

    python benchmarks/bench_pipeline.py [--repeats 15] [--micro 4] [--rows 8] [--out FILE.json]

1. Simulates 1,024 ranks as 128 pipelines of 8 stages with small arrays. It compares a step's
   modelled time, bytes and messages with the closed forms. Then it simulates 1,024 ranks as dp 16 x
   pp 8 x tp 8. The ranks run a step of a small GPT with 1F1B, and every message is simulated. The
   modelled time and the bytes are compared with the planner's numbers.
2. Runs a GPT in 2 stages on 2 MPI ranks, in float32, with every schedule of
   minidl/parallel/model/schedule.py. A rank has one thread. A step includes AdamW. The peers run in
   the same processes over gloo: ScheduleGPipe and Schedule1F1B of torch.distributed.pipelining.
   First all losses are compared. Then minidl's schedules and the peers are timed in turn. A ratio
   divides two times of one round, and the table shows the ratio's median over the rounds. The
   embedding is not tied to the output layer, because PyTorch's stages do not sum the two
   gradients. A rank that waits for its neighbour sleeps between checks, as gloo does. So a waiting
   rank takes no processor time from a working rank. (Inside a collective, MPI checks without a
   pause.) With "inputs first", a backward sends the inputs' gradients before it computes the
   weights' gradients (Pipeline's inputs_first). So the previous stage begins its backward earlier.
   The schedule does not change. The goals are for "inputs first".
3. Runs the same on 4 ranks: 2 stages of 2 ranks that divide the blocks' matrices. minidl calls
   `parallelize` before `cut`. PyTorch uses torch.distributed.tensor.parallel inside
   torch.distributed.pipelining. In minidl and in PyTorch, each rank of a stage has the whole
   embedding and the whole output layer.

Goals: the numbers of part 1 equal the formulas, and part 1 takes at most a minute. A step takes at
most PyTorch's time.
"""

import argparse
import os
import statistics
import time
from functools import partial

import numpy as np
from common import (
    NO_TORCH, bar, device_option, faster, finish, heading, number, on_all_ranks, on_ranks, ratio,
    row, start_gloo, take_turns, threads, write_figures,
)

import minidl
from minidl import comm, nn, optim
from minidl.comm import Grid, Ledger, Links, ring
from minidl.nn import functional as F
from minidl.parallel.model import plan_costs, plan_step, planner, schedule
from minidl.parallel.model.cut import cut
from minidl.parallel.model.parallelize import gpt_plan, parallelize
from minidl.parallel.model.pipeline import HEADER, HEADER_BYTES, Pipeline

STAGES = 2
SHAPE = VOCAB, CONTEXT, LAYERS, HEADS, WIDTH = 256, 64, 4, 4, 256
OURS = {"GPipe": schedule.gpipe, "1F1B": schedule.one_f_one_b, "ZB-H1": schedule.zb_h1,
        "interleaved": partial(schedule.interleaved, v=2)}
FIRST = ", inputs first"
PEERS = {"ScheduleGPipe": "GPipe", "Schedule1F1B": "1F1B"}


def options():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15, help="rounds of one step each")
    parser.add_argument("--micro", type=int, default=4, help="micro-batches of a step")
    parser.add_argument("--rows", type=int, default=8, help="windows of 64 bytes in each")
    parser.add_argument("--out", help="JSON file")
    device_option(parser, "its ranks share this machine's processors")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)  # for the ranks
    parser.add_argument("--measure", help=argparse.SUPPRESS)  # the worker writes this file
    return parser.parse_args()


# -- 1: formulas


def simulated():
    """Returns for each schedule the modelled seconds, the bytes and the messages of all ranks. Also
    returns these three numbers by the formulas."""
    p, m, hop, found = 8, 8, 1e-3, {}
    # `exposed` is the number of messages for which a step waits.
    exposed = {"1F1B": 2 * (p - 1) * m / p + 2 * (p - 2), "GPipe": 2 * (p - 1)}
    data = np.ones((m, 4), np.float32)

    def mse(y, target):
        return F.mse_loss(y, minidl.tensor(target))

    def rank(t, name):
        first = t.rank // p * p
        ledger = Ledger(t.subgroup(range(first, first + p)))
        stages = [nn.Linear(4, 4) for _ in range(p)]
        Pipeline(ledger, stages, mse, OURS[name](p, m), seconds=(1, 1, 1)).step(data, data)
        return t.time(), ledger.bytes_sent, ledger.messages_sent

    for name, n_hops in exposed.items():
        start = time.perf_counter()
        ranks = comm.simulate(1024, rank, name, alpha=hop, beta=0.0)
        boundaries = 1024 // p * (p - 1)
        found[name] = dict(
            modelled_s=max(r[0] for r in ranks), formula_s=3 * (m + p - 1) + n_hops * hop,
            n_bytes=sum(r[1] for r in ranks),
            bytes_formula=boundaries * (2 * m * 16 + HEADER_BYTES),
            messages=sum(r[2] for r in ranks), messages_formula=boundaries * (2 * m + 1),
            took_s=time.perf_counter() - start)
    return found


def whole_grid():
    """Returns the time and the bytes of a step on dp 16 x pp 8 x tp 8, by the simulator and by the
    planner. The arrays have a small GPT's sizes."""
    n, (dp, pp, tp), links = 1024, (16, 8, 8), Links.uniform(1e-6, 1e-9)
    shape = planner.Shape(layers=8, width=16, heads=8, context=4, vocab=64)
    task = planner.Task(n, links, 1e12, shape, batch=8 * dp, flops=2e7)
    network = planner.Network(links, n)
    plan = next(plan for tried in planner.candidates(task, dp, pp, tp, network) for plan in tried
                if (plan.m, plan.v, plan.schedule) == (8, 1, "1f1b"))
    parts, tokens = schedule.one_f_one_b(pp, plan.m), plan.micro * shape.context
    axes = plan_step.links_of_axes(network, dict(dp=dp, pp=pp, tp=tp, cp=1, ep=1))
    seconds = plan_step.seconds(task, tokens, (tp, 1, 1), "", axes, network)

    def rank(t):
        g, sending = Grid(ledger := Ledger(t), dp=dp, pp=pp, tp=tp), []
        s, blocks = g.pp.rank, plan.cut[g.pp.rank]
        first, last = s == 0, s == pp - 1
        stage = plan_costs.Stage(1, s, blocks, first, last)
        f, b, w = plan_step.of_stage(stage, {"compute": seconds["compute"]})["compute"]
        kept = np.zeros(tokens * shape.width, np.float32)
        tied = g.t.subgroup([g.rank_of(pp=0), g.rank_of(pp=pp - 1)]) if first or last else None
        if s:
            g.pp.recv(np.empty(HEADER, np.int64), s - 1, 2)
        if not last:
            sending.append(g.pp.isend(np.zeros(HEADER, np.int64), s + 1, 2))
        for kind, _, _ in parts[s]:
            there, back = (s - 1, s + 1) if kind == "F" else (s + 1, s - 1)
            if 0 <= there < pp:
                g.pp.recv(kept, there, kind == "F")
            t.compute(f if kind == "F" else b + w)
            for _ in range(2 * blocks + (first if kind == "F" else last)):
                ring.all_reduce(g.tp, kept)
            for k in (1, 2) if kind == "F" and last else ():
                ring.all_reduce(g.tp, np.zeros(k * tokens, np.float32))
            if 0 <= back < pp:
                sending.append(g.pp.isend(kept, back, kind == "F"))
        for request in sending:
            request.wait()
        elements, tensors = plan_costs.weights(shape, tp, stage)
        ring.all_reduce(g.dp, np.zeros(1 + tensors, np.int64))
        ring.all_reduce(g.dp, np.zeros(elements, np.float32))
        if tied is not None:
            ring.all_reduce(tied, np.zeros(shape.vocab * shape.width // tp, np.float32))
        return s, t.time(), {axis: ledger.count(group=getattr(g, axis).ranks).bytes_sent
                             for axis in ("dp", "pp", "tp")}

    start = time.perf_counter()
    ranks = comm.simulate(n, rank, links=links)
    busiest = {axis: max(statistics.mean(sent[axis] for s, _, sent in ranks if s == stage)
                         for stage in range(pp)) for axis in ("dp", "pp", "tp")}
    return dict(modelled_s=max(time_s for _, time_s, _ in ranks), formula_s=plan.time_s,
                n_bytes=busiest, bytes_formula={axis: plan.sent[axis] for axis in busiest},
                took_s=time.perf_counter() - start)


# -- 2: time


def batch(args):
    n = args.micro * args.rows
    ids = np.random.default_rng(0).integers(0, VOCAB, (n, CONTEXT + 1))
    return ids[:, :-1].copy(), ids[:, 1:].copy()


def model():
    minidl.manual_seed(0)
    return nn.GPT(*SHAPE, tied=False)


def loss(logits, y):
    return F.cross_entropy(logits.reshape(-1, VOCAB), minidl.tensor(y.reshape(-1)))


def ours(grid, args, name, x, y):
    """Returns a function without arguments. It does one training step. On the last stage it returns
    the mean loss, and on other stages it returns None."""
    parts, gpt = OURS[name.removesuffix(FIRST)](grid.pp.size, args.micro), model()
    if grid.tp.size > 1:
        parallelize(gpt, grid, {name: rule for name, rule in gpt_plan().items()
                                if name not in ("token", "head")})
    pipe = Pipeline(grid.pp, cut(gpt, len(schedule.rank_of_stage(parts))), loss, parts,
                    inputs_first=name.endswith(FIRST))
    optimizer = optim.AdamW(pipe.parameters(), lr=1e-3)

    def step():
        optimizer.zero_grad()
        value = pipe.step(x, y)
        optimizer.step()
        return None if value is None else value.item()

    return step


def theirs(grid, args, x, y):
    """Returns {name: a function without arguments that does one training step in PyTorch}."""
    import torch
    import torch_gpt
    from torch.distributed import pipelining
    from torch.distributed.tensor import parallel

    torch.set_num_threads(1)
    distributed, t, n_tp = start_gloo(grid.t), grid.pp, grid.tp.size
    mesh = distributed.device_mesh.init_device_mesh("cpu", (t.size, n_tp),
                                                    mesh_dim_names=("pp", "tp"))
    weights = {k: v.array.copy() for k, v in model().state_dict().items()}
    for name, array in weights.items():
        if ".qkv." in name:  # puts the rows of q, k and v of one rank next to each other
            rest = array.shape[1:]
            array[...] = array.reshape(3, n_tp, -1, *rest).swapaxes(0, 1).reshape(array.shape)
    x, y = torch.from_numpy(x), torch.from_numpy(y)

    class Stage(torch.nn.Module):
        """The layers that `cut` gives to this rank."""

        def __init__(self):
            super().__init__()
            whole = torch_gpt.make(weights, *SHAPE)
            for name in ("token", "head"):  # both layers of `whole` share one weight
                weight = torch.tensor(weights[f"{name}.weight"])
                getattr(whole, name).weight = torch.nn.Parameter(weight)
            half = LAYERS // t.size
            self.blocks = whole.blocks[t.rank * half:(t.rank + 1) * half]
            if t.rank == 0:
                self.token, self.position = whole.token, whole.position
            if t.rank == t.size - 1:
                self.norm, self.head = whole.norm, whole.head

        def forward(self, x):
            if t.rank == 0:
                x = self.token(x) + self.position(torch.arange(x.shape[1]))
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x)) if t.rank == t.size - 1 else x

    def entropy(logits, y):
        return torch.nn.functional.cross_entropy(logits.view(-1, VOCAB), y.view(-1))

    def step_of(name):
        module = Stage()
        if n_tp > 1:
            column, across = parallel.ColwiseParallel, parallel.RowwiseParallel
            parallel.parallelize_module(module, mesh["tp"], {
                "blocks.*.attention.qkv": column(), "blocks.*.attention.proj": across(),
                "blocks.*.feed_forward.up": column(), "blocks.*.feed_forward.down": across()})
        stage = pipelining.PipelineStage(module, t.rank, t.size, torch.device("cpu"),
                                         group=mesh.get_group("pp"))
        run = getattr(pipelining, name)(stage, args.micro, loss_fn=entropy)
        # There are two optimizers, because an optimizer of PyTorch rejects a list that has divided
        # tensors and whole tensors.
        optimizers = [torch.optim.AdamW(group, lr=1e-3) for divided in (False, True) if (group := [
            p for p in module.parameters() if hasattr(p, "placements") == divided])]

        def step():
            for optimizer in optimizers:
                optimizer.zero_grad()
            losses = []
            if t.rank == 0:
                run.step(x)
            else:
                run.step(target=y, losses=losses)
            for optimizer in optimizers:
                optimizer.step()
            return torch.stack(losses).mean().item() if losses else None

        return step

    return {name: step_of(name) for name in PEERS}


def worker(args):
    """Runs on each rank. Times the steps of all variants in turn. Rank 0 writes {name: [seconds of
    each round]} to a file."""
    t = comm.world()
    grid = Grid(t, pp=STAGES, tp=t.size // STAGES)
    x, y = batch(args)
    names = [*(OURS if t.size == STAGES else PEERS.values())]
    names += [name + FIRST for name in PEERS.values()]
    steps = {name: ours(grid, args, name, x, y) for name in names}
    try:
        steps |= theirs(grid, args, x, y)
    except ImportError:
        pass
    losses = {name: [step() for _ in range(3)] for name, step in steps.items()}
    if t.rank == t.size - 1:
        for name, values in losses.items():  # the losses of three steps differ only by rounding
            np.testing.assert_allclose(values, losses["GPipe"], rtol=1e-4, err_msg=name)

    times = take_turns({name: on_all_ranks(t, step) for name, step in steps.items()},
                       args.repeats)
    if t.rank == 0:
        write_figures(times, args.measure)


def main():
    args = options()
    if args.worker:
        return worker(args)
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):  # so OpenBLAS uses its defaults
        os.environ.pop(name, None)
    print(heading())
    print(f"GPT: vocabulary, context, layers, heads, width {SHAPE}; {args.micro} micro-batches of "
          f"{args.rows} x {CONTEXT} bytes, {STAGES} stages, one thread a rank")
    formulas, grid = simulated(), whole_grid()
    for name, got in formulas.items():
        print(f"1,024 ranks, {name}: {got['modelled_s']:.6f} s modelled, {got['formula_s']:.6f} s "
              f"by formula; {got['n_bytes']:,} bytes, {got['bytes_formula']:,}; "
              f"{got['messages']:,} messages, {got['messages_formula']:,}; "
              f"took {got['took_s']:.1f} s")
    sent = ", ".join(f"{axis} {n:,.0f} (formula {grid['bytes_formula'][axis]:,.0f})"
                     for axis, n in grid["n_bytes"].items())
    print(f"1,024 ranks, dp 16 x pp 8 x tp 8: {grid['modelled_s']:.6f} s modelled, "
          f"{grid['formula_s']:.6f} s by formula; a rank of the busiest stage sends {sent} bytes; "
          f"took {grid['took_s']:.1f} s")
    times, divided = (
        on_ranks(n, __file__, "--worker", "--repeats", args.repeats, "--micro", args.micro,
                 "--rows", args.rows, **threads(1)) for n in (STAGES, 2 * STAGES))
    for title, found in (f"{STAGES} ranks", times), (f"{2 * STAGES} ranks, tp 2", divided):
        print(f"\n{title:26}{'median ms':>10}{'min':>8}{'max':>8}{'/ 1F1B':>10}")
        for name, values in found.items():
            print(f"{name:26}{1e3 * statistics.median(values):>10.0f}{1e3 * min(values):>8.0f}"
                  f"{1e3 * max(values):>8.0f}{ratio(values, found['1F1B']):>10.2f}")
    figures = dict(micro=args.micro, rows=args.rows, simulated=formulas, grid=grid, seconds=times,
                   divided_s=divided)
    left_out = [] if PEERS.keys() & times.keys() else [NO_TORCH]
    finish(figures, *report(figures), args.out, left_out)


def report(figures):
    """Returns (bars, rows). A bar is a measured number with its goal. A row is a line of the table
    in docs/figures.md."""
    times, found = figures["seconds"], figures["simulated"]
    wrong = sum(abs(x["modelled_s"] / x["formula_s"] - 1) > 1e-9
                or (x["n_bytes"], x["messages"]) != (x["bytes_formula"], x["messages_formula"])
                for x in found.values())
    bars = [bar("schedules on 1,024 ranks that differ from their formulas", wrong, 0, at_most=True),
            bar("seconds for 1,024 simulated ranks", max(x["took_s"] for x in found.values()), 60,
                at_most=True)]
    rows = [row("pipeline, 128 of 8 stages: a step's time, bytes and messages", "closed forms",
                f"{wrong} differ" if wrong else "equal", bars)]
    grid = figures["grid"]
    off = max(abs(n / grid["bytes_formula"][axis] - 1) for axis, n in grid["n_bytes"].items())
    ratio_s = grid["modelled_s"] / grid["formula_s"]
    bars += [bar("1,024 ranks as 16 x 8 x 8: bytes, error of the formula", off, 1e-9,
                 at_most=True),
             bar("... modelled time, error of the planner", abs(ratio_s - 1), 0.03,
                 at_most=True),
             bar("... seconds to simulate", grid["took_s"], 60, at_most=True)]
    rows.append(row("1,024 ranks as dp 16 x pp 8 x tp 8: a step's modelled time", "the planner's "
                    "closed forms", f"{ratio_s:.4f} times", bars[-3:]))
    for peer, name in PEERS.items():
        if peer in times:
            bars.append(faster(f"PyTorch's {peer} by minidl's {name}{FIRST}, 2 ranks", times[peer],
                               times[name + FIRST], 1.0))
            rows.append(row(f"pipeline, {name}{FIRST}: a GPT's step in 2 stages, "
                            f"{figures['micro']} micro-batches", f"PyTorch's {peer} over gloo",
                            _speed(bars[-1], times, peer, name), bars[-1:]))
    times = figures["divided_s"]
    for peer, name in PEERS.items():
        if peer in times:
            bars.append(faster(f"PyTorch's {peer} with its tensor parallelism by minidl's {name}"
                               f"{FIRST}, 4 ranks", times[peer], times[name + FIRST], 1.0))
            rows.append(row(f"... each stage divided over 2 ranks, {name}{FIRST}",
                            f"PyTorch's {peer}, each stage divided, over gloo",
                            _speed(bars[-1], times, peer, name), bars[-1:]))
    return bars, rows


def _speed(found, times, peer, name):
    return (f"{number(found['figure'])} times its speed; {number(ratio(times[peer], times[name]))} "
            "where a backward sends at its end")


if __name__ == "__main__":
    main()
