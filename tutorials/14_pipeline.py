"""14  Pipelines: GPipe, 1F1B, interleaved, zero bubble.    60 minutes, needs: 06, 07

The bubble is the part of the time in which ranks are idle. It depends only on the number of ranks p
and the number of micro-batches m. 1F1B needs less memory than GPipe and has the same bubble.

    mpirun -n 4 python tutorials/14_pipeline.py       or: minidl run -n 4 tutorials/14_pipeline.py
    python tutorials/14_pipeline.py --sim 4           picture: out/14_pipeline.png

A model that is too large for one rank is cut into p stages of consecutive layers. Each rank has one
stage. With one undivided batch, only one rank works at a time. So the batch is cut into m
micro-batches that follow each other, and their gradients are summed. F i is the forward of
micro-batch i in a stage, and B i is its backward. In every order, a stage can begin its first F
only after all stages before it have done their first F. After the last B of a stage, each stage
before it still has a B to do. If F takes f seconds and B takes b seconds,

    every rank is idle for (p-1)(f+b)      rank s waits s f before its first F, s b after its last
                                           B, and the rest in between
    and works for m (f+b)                  bubble = idle / all = (p-1) / (m+p-1)

A rank keeps the activations of a micro-batch from its F to its B. The order decides how many
micro-batches it keeps. For rank 0 of p = 2 ranks:

    GPipe   F0 F1 F2 F3          B0 B1 B2 B3       keeps m micro-batches
    1F1B    F0 F1      B0 F2 B1 F3 B2    B3        rank s keeps p - s, because each B runs early

1F1B on rank s has three phases: p-s-1 forwards, one for each rank after rank s; then one F and one
B in turn; then the remaining B. Two other orders have a smaller bubble, but cost more:

    interleaved   Each rank has v stages, each with 1/v of its layers. The bubble is
                  (p-1) / (v m + p-1). There are v times as many messages.
    ZB-H1         divides the backward. B computes the gradient of the input; the rank before waits
                  for it. W computes the gradients of the weights. No rank waits for W, so W can run
                  in idle time at the end. Every rank keeps p micro-batches.

Papers: Huang et al. 2019 (GPipe, arXiv 1811.06965); Narayanan et al. 2021 (arXiv 2104.04473); Qi et
al. 2024 (zero bubble, arXiv 2401.10241).
Exercise: `minidl exercise 14` writes work/14_pipeline.py with the marked region empty;
`minidl check 14` grades it.
"""

from functools import cache, partial

import numpy as np

import minidl
from minidl import memory, nn, optim
from minidl.comm import Ledger, simulate
from minidl.course.out import BLUE, GREEN, GREY, ORANGE, PALE_BLUE, lanes
from minidl.course.tutorial import Table, WrongOption, launch, picture, progress, put, say
from minidl.data import datasets
from minidl.nn import functional as F
from minidl.parallel.model import schedule
from minidl.parallel.model.cut import cut
from minidl.parallel.model.pipeline import HEADER_BYTES, Pipeline
from minidl.parallel.model.schedule import Do

WIDTH = 64  # inputs and outputs of each layer
ROWS = 16  # samples in a micro-batch


def order(s, p, m):
    """Returns the 1F1B order of stage s, for p stages and m micro-batches: [("F", 0), ...].

    ("F", i) is the forward of micro-batch i, and ("B", i) is its backward."""
    # >>> exercise 14a: the order of 1F1B
    # Write the three phases of 1F1B. First only forwards, until the first backward can come
    # back. Then one forward and one backward in turn. Then the remaining backwards. Forwards and
    # backwards go from micro-batch 0 to m-1. m may be smaller than p - s - 1.
    ahead = min(p - s - 1, m)
    parts = [("F", i) for i in range(ahead)]
    for i in range(m - ahead):
        parts += [("F", ahead + i), ("B", i)]
    return parts + [("B", i) for i in range(m - ahead, m)]
    # <<<


def one_f_one_b(p, m):
    """Returns, for each of p ranks, its order() as a list of `Do` objects. schedule.py has orders
    in this form."""
    return [[Do(kind, s, i) for kind, i in order(s, p, m)] for s in range(p)]


# {name: (function of p and m, k)}. In theory the bubble is (p-1) / (k m + p-1), because a rank
# works k units of time for each micro-batch and is idle for p - 1 units. In GPipe and 1F1B a unit
# is the time of F + B. In the interleaved schedule with v = 2 a unit is the time of F + B of one
# stage. In ZB-H1 with F = B = W a unit is the time of F. There a rank works 3 F for each
# micro-batch, and is idle for (p-1)(F + B - W) = (p-1) F.
ORDERS = {
    "GPipe": (schedule.gpipe, 1),
    "1F1B": (one_f_one_b, 1),
    "ZB-H1": (schedule.zb_h1, 3),
    "interleaved, v = 2": (partial(schedule.interleaved, v=2), 2),
}


def parts_of(name, p, m):
    """Returns the order `name` for m micro-batches: for each of p ranks a list of objects `Do`."""
    make, _ = ORDERS[name]
    return make(p, m)


def model(p, args):
    """Returns a model of 2 p equal pairs of layers. It can be cut into p or 2 p equal stages."""
    minidl.manual_seed(0)
    pairs = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(2 * p)]
    return put(args, nn.Sequential(*pairs))


def loss(outputs, labels):
    return F.cross_entropy(outputs[:, :10], minidl.Tensor(labels))


def pipeline(t, args, parts, **options):
    n_stages = len(schedule.rank_of_stage(parts))
    stages = cut(model(t.size, args), n_stages)
    return Pipeline(t, stages, loss, parts, **options)


digits = cache(datasets.digits)


def batch(step, m, args):
    images, labels = digits()[0][:]
    picked = np.random.default_rng(step).permutation(len(images))[:m * ROWS]
    images = images[picked].reshape(-1, WIDTH)
    labels = labels[picked]
    return put(args, images), put(args, labels)


def modelled(p, m, name, args):
    """Returns the time line of a step: for each of p simulated ranks, a list of (Do, start, end).

    F, B and W of all layers on a rank take 1 s each."""
    def rank(t):
        second = 0.5 if name.startswith("inter") else 1.0  # interleaved: a rank has two stages
        parts = parts_of(name, p, m)
        pipe = pipeline(t, args, parts, seconds=(second, second, second))
        inputs, labels = batch(0, m, args)
        pipe.step(inputs, labels)
        return pipe.lanes

    return simulate(p, rank, alpha=0.0, beta=0.0)


def most_activations(t, parts, m, args):
    """Returns the peak of the activations on this rank, in bytes, in a step of m
    micro-batches."""
    pipe = pipeline(t, args, parts)
    inputs, labels = batch(0, m, args)
    with memory.record() as ledger:
        pipe.step(inputs, labels)
    return ledger.most("activations")


def held(t, m, name, args):
    """Returns how many micro-batches this rank holds at most.

    This is the peak of the activations in bytes, divided by the peak in a step with one
    micro-batch."""
    of_one = most_activations(t, schedule.gpipe(t.size, 1), 1, args)
    of_all = most_activations(t, parts_of(name, t.size, m), m, args)
    return of_all / of_one


def costs(t, args, table):
    """Adds rows: the activations, bytes and messages of a step, counted and in theory."""
    p, s, m = t.size, t.rank, args.m
    for name, theory in (("GPipe", m), ("1F1B", min(p - s, m))):
        n_live = held(t, m, name, args)
        table.row(f"{name}: micro-batches kept, of m = {m}", n_live, theory, "exact")

    ledger = Ledger(t)
    pipe = pipeline(ledger, args, one_f_one_b(p, m))
    inputs, labels = batch(0, m, args)
    ledger.reset()
    pipe.step(inputs, labels)

    size = 4 * ROWS * WIDTH  # bytes of one activation, or of its gradient
    n_bytes = n_messages = 0
    if s < p - 1:  # this rank sends a header and m activations to the next rank
        n_bytes += HEADER_BYTES + m * size
        n_messages += 1 + m
    if s > 0:  # this rank sends m gradients to the rank before it
        n_bytes += m * size
        n_messages += m
    table.row("bytes sent: activations, gradients, a header", ledger.bytes_sent, n_bytes,
              "exact")
    table.row("messages sent", ledger.messages_sent, n_messages, "exact")


def train(t, args, name):
    """Trains with the order `name`. Returns (losses, the weights of this rank at the end)."""
    pipe = pipeline(t, args, parts_of(name, t.size, args.m))
    optimizer = optim.AdamW(pipe.parameters(), lr=3e-3)
    losses = []
    for step in range(args.steps):
        inputs, labels = batch(step, args.m, args)
        optimizer.zero_grad()
        of_last_rank = pipe.step(inputs, labels)
        losses.append(pipe.everywhere(of_last_rank))
        optimizer.step()
    return losses, pipe.state_dict()


def train_alone(p, args):
    """Trains on one rank, one micro-batch after the other, with summed gradients.

    Returns (losses, all weights at the end)."""
    net = model(p, args)
    optimizer = optim.AdamW(net.parameters(), lr=3e-3)
    losses = []
    for step in range(args.steps):
        inputs, labels = batch(step, args.m, args)
        optimizer.zero_grad()
        total = 0.0
        for start in range(0, len(inputs), ROWS):
            micro = slice(start, start + ROWS)
            part = loss(net(inputs[micro]), labels[micro]) / args.m
            part.backward()
            total += part.detach()
        losses.append(float(total))
        optimizer.step()
    return losses, net.state_dict()


def bubbles(p, args, table):
    """Adds rows: the bubble of each pipeline order on a modelled clock, and by the formula."""
    for m in (p, 2 * p, 4 * p):
        for name, (_, k) in ORDERS.items():
            found = schedule.bubble(modelled(p, m, name, args))
            theory = (p - 1) / (k * m + p - 1)
            table.modelled(f"bubble, {name}, m = {m}", found, theory, "abs<1e-9")


def main(t, args):
    table = Table(t)
    p = t.size
    if args.m == 0:
        args.m = 2 * p
    if args.m % p:
        raise WrongOption(f"wanted --m to be a multiple of {p}, the number of ranks; got {args.m}. "
                          "The interleaved order needs this")

    if t.rank == 0:
        bubbles(p, args, table)
    costs(t, args, table)

    losses, weights = train_alone(p, args)
    for name in progress(t, list(ORDERS), "orders"):
        losses_here, weights_here = train(t, args, name)
        same_weights = all((x == weights[key]).all() for key, x in weights_here.items())
        same = losses_here == losses and same_weights
        table.row(f"{name}: losses and weights equal those of one rank", same, True, "exact")
    say(t, f"  The loss is {losses[0]:.3f} in step 1, and {losses[-1]:.3f} in step {args.steps}")

    charts = {}
    if t.rank == 0:
        p = max(p, 2)
        charts = {name: modelled(p, 2 * p, name, args) for name in ORDERS}
    picture(t, args, draw, charts)
    return table


OPTIONS = {
    "m": (0, "micro-batches of a step, a multiple of the number of ranks; 0 means two a rank"),
    "steps": (20, "training steps of each order"),
}


def draw(plt, charts):
    """Draws when each rank works, for each order. Idle time is hatched."""
    colours = {"F": "#6baed6", "B": ORANGE, "W": GREEN}
    figure, rows = plt.subplots(len(charts), 1, figsize=(13, 9.2), sharex=True)
    longest = max(schedule.makespan(chart) for chart in charts.values())
    for axes, (name, chart) in zip(rows, charts.items(), strict=True):
        end = schedule.makespan(chart)
        axes.barh(range(len(chart)), end, 0.72, color=PALE_BLUE, hatch="////", edgecolor=GREY,
                  linewidth=0, zorder=0)
        lanes(axes, [f"rank {r}" for r in range(len(chart))], [
            (r, start, stop, colours[do.kind]) for r, lane in enumerate(chart)
            for do, start, stop in lane])
        for r, lane in enumerate(chart):
            for do, start, stop in lane:
                if stop - start > longest / 50:
                    axes.text((start + stop) / 2, r, do.micro, ha="center", va="center",
                              fontsize=7, color="white")
        most = schedule.live([[at.do for at in lane] for lane in chart])
        of = " (each of half the layers)" if "v = 2" in name else ""
        axes.set_title(f"{name}: {100 * schedule.bubble(chart):.1f} % idle; micro-batches "
                       f"kept on ranks 0, 1, ...{of}: {', '.join(map(str, most))}",
                       loc="left", color=BLUE)
    rows[-1].set(xlabel="time (F, B and W take 1 each; in an order without W, B takes 2)",
                 xlim=(0, longest))
    bars = [plt.Rectangle((0, 0), 1, 1, color=c) for c in colours.values()]
    bars.append(plt.Rectangle((0, 0), 1, 1, facecolor=PALE_BLUE, hatch="////", edgecolor=GREY))
    figure.legend(bars, ["forward", "backward", "backward of the weights", "idle"],
                  loc="outside lower center", ncols=4)
    return figure


if __name__ == "__main__":
    launch(main, OPTIONS, ranks=4)
