"""15  Data, tensor and pipeline parallelism at once.    60 minutes, needs: 11, 13, 14

The ranks are in three kinds of process groups. Each kind of group sends different data. The layout
of the ranks decides which data is sent between nodes.

    mpirun -n 8 python tutorials/15_hybrid_3d.py      or: minidl run -n 8 tutorials/15_hybrid_3d.py
    python tutorials/15_hybrid_3d.py --sim 8          picture: out/15_hybrid_3d.png

n = t pp d ranks train a model of X weights. t ranks divide every matrix (tutorial 13). pp such
groups of t ranks are a pipeline (14). Each of d pipelines takes a part of the batch (07). Every
rank has three coordinates, its numbers along tp, pp and dp (comm/grid.py). The ranks of a group
differ in one coordinate. Let the model have L layers of width h. Let a pipeline have m
micro-batches, each of b texts with s tokens. Then a rank sends in a step

    along   what                                              numbers
    tp      4 all-reduces of activations a layer              4 L/pp m 2 (t-1)/t b s h
    pp      activations to the next stage, gradients back     2 m b s h
    dp      the mean of the gradients, once                   2 (d-1)/d X/(t pp)

Every rank waits for its tp group at each layer, so a tp group should be inside one node. pp sends
least. dp can send during backward. With Adam in mixed precision and ZeRO 1 over dp (11), a rank
holds

    4 X/(t pp) + 12 X/(t pp d) bytes:    fp16 weights and gradients; fp32 weights, m and v

All these bytes are divided by t and by pp. But a larger t means more waiting, and a larger pp means
a longer bubble, (pp-1)/m of the work. For n = 8 there are 10 ways to choose (t, pp, d), each in 6
orders of the axes. The exercise looks for the fastest layout.

Papers: Narayanan et al. 2021 (arXiv 2104.04473); Rajbhandari et al. 2020 (arXiv 1910.02054).
Exercise: `minidl exercise 15` writes work/15_hybrid_3d.py with the marked region empty;
`minidl check 15` grades it.
"""

from collections import namedtuple
from itertools import islice, permutations

import numpy as np

import minidl
from minidl import memory, nn, optim
from minidl.comm import Grid, Ledger, Links, average, chunks, grid, ring, ring_blocks
from minidl.course.out import GREEN, GREY, LINES, ORANGE
from minidl.course.tutorial import Table, WrongOption, launch, picture, put, say
from minidl.data import text
from minidl.parallel.data import header
from minidl.parallel.model import vocabulary
from minidl.parallel.model.cut import cut, split_by_cost
from minidl.parallel.model.parallelize import parallelize
from minidl.parallel.model.pipeline import HEADER_BYTES, Pipeline
from minidl.parallel.model.schedule import one_f_one_b
from minidl.parallel.model.tensor import whole
from minidl.precision import amp

VOCAB, HEADS, CONTEXT, BATCH, MICRO = 256, 4, 32, 16, 4
AXES = "tp", "pp", "dp"
LAYOUTS = {1: (1, 1, 1), 2: (2, 1, 1), 3: (3, 1, 1), 4: (2, 2, 1), 6: (3, 2, 1), 8: (2, 2, 2)}
# tokens: the number of tokens of one step, on all ranks together. m: the number of micro-batches of
# a pipeline. seconds: the time that a single rank needs for the arithmetic of one step.
Net = namedtuple("Net", "weights layers width tokens m seconds")


def choose(n, limit, net, links):
    """Returns the fastest layout of n ranks that holds at most `limit` bytes a rank.

    A layout is {axis: number of ranks along it}, with the axis that varies fastest first. Returns
    None if no layout fits. net: a Net, which describes the model. links: the links of the
    network."""
    # >>> exercise 15a: which layout
    # Try every (tp, pp, dp) with the product n, in every order of these three axes. Every tp and pp
    # up to n is allowed. grid.shape(n, "dp pp tp cp ep", tp=2, pp=2, dp=2) returns a layout in
    # which dp varies fastest. The header has the formula for the bytes of a rank. A step takes the
    # sum of
    #     seconds/n (1 + (pp-1)/m)    the work and the bubble
    #     4 layers/pp m               all-reduces along tp of the activations of a micro-batch. They
    #                                 are tokens/(d m) width numbers of 2 bytes
    #     2 m                         sends along pp, each of the same number of bytes
    #     1                           all-reduce along dp of X/(t pp) numbers of 2 bytes
    # grid.traffic(layout, links, {"tp": bytes, "pp": bytes, "dp": bytes})["tp"].time_s is the
    # seconds of one all-reduce of an array of this size along tp. ["pp"] is for one send along pp.
    best, least = None, np.inf
    for tp, pp in ((a, b) for a in range(1, n + 1) for b in range(1, n + 1) if n % (a * b) == 0):
        dp, own = n // (tp * pp), net.weights / (tp * pp)
        if 4 * own + 12 * own / dp > limit:
            continue
        size = 2 * net.tokens / (dp * net.m) * net.width
        for order in permutations(AXES):
            layout = grid.shape(n, [*order, "cp", "ep"], tp=tp, pp=pp, dp=dp)
            cost = grid.traffic(layout, links, {"tp": size, "pp": size, "dp": 2 * own})
            seconds = net.seconds / n * (1 + (pp - 1) / net.m) + cost["dp"].time_s
            seconds += 4 * net.layers / pp * net.m * cost["tp"].time_s
            seconds += 2 * net.m * cost["pp"].time_s
            if seconds < least:
                best, least = layout, seconds
    return best
    # <<<


def pipeline(axes, args, zero, level):
    """Returns this rank's part of the GPT, a Pipeline.

    level: the level of mixed precision (tutorial 05). "O0" computes in float64 here."""
    minidl.manual_seed(0)  # the same whole model on all ranks
    gpt = put(args, nn.GPT(VOCAB, CONTEXT, args.layers, HEADS, args.width, tied=False))
    if level == "O0":
        gpt = gpt.double()
    gpt = parallelize(gpt, axes, split_logits=True)
    stages = cut(gpt, axes.pp.size)
    for stage in stages:
        amp.prepare(stage, level)

    def loss(logits, target):  # tp divides the logits (tutorial 13)
        rows = logits.reshape(-1, logits.shape[2])
        return vocabulary.cross_entropy(axes.tp, rows, target.reshape(-1), VOCAB)

    schedule = one_f_one_b(axes.pp.size, MICRO)
    return Pipeline(axes.pp, stages, loss, schedule, dp=axes.dp, zero=zero)


def train(axes, args, zero=0, level="O0"):
    """Trains a GPT. Returns (losses, gradients of the last step, bytes held, parameters of this
    rank).

    The gradients are {name: whole array}, or {} with ZeRO. The ledger axes.t counts only the bytes
    of the last step."""
    pipe = pipeline(axes, args, zero, level)
    optimizer = optim.AdamW(pipe.shards() if zero else pipe.parameters(), lr=1e-3)
    if level == "O2":
        optim.use_master_weights(optimizer)
    ledger = axes.t

    def part(x):
        """Returns the samples of a batch that this rank's pipeline takes."""
        return put(args, chunks.split(x, axes.dp.size)[axes.dp.rank])

    losses = []
    data = text.random_batches(text.stdlib_corpus(1 << 18), BATCH, CONTEXT, 0, 1, 0)
    for ids, target in islice(data, args.steps):  # the same on all ranks
        pipe.zero_grad()
        ledger.reset()
        ledger.on()
        loss = pipe.step(part(ids), part(target))
        optimizer.step()
        if zero:
            pipe.gather()
        ledger.off()  # the bytes for the mean of the loss do not count
        loss = np.array([pipe.everywhere(loss)])
        losses.append(average.mean(axes.dp, loss)[0])

    named = [pair for stage in pipe.stages.values() for pair in stage.named_parameters()]
    gradients = {}
    if not zero:
        gradients = {name: whole(p, p.grad) for name, p in named}
    totals = memory.totals(nn.ModuleList(pipe.stages.values()), optimizer)
    held = sum(totals[kind] for kind in memory.STATES)
    pipe.close()
    return losses, gradients, held, [p for _, p in named]


def bytes_of(axes, args, parameters, item=8):
    """Returns {axis: bytes that this rank sends along the axis in a step}.

    The bytes are exact. They also count the embedding, the output layer and the headers of
    messages. item: bytes of one number."""
    tp, pp, dp = axes.tp, axes.pp, axes.dp
    first, last = pp.rank == 0, pp.rank == pp.size - 1
    rows = BATCH // dp.size // MICRO * CONTEXT
    n_blocks = split_by_cost([1] * args.layers, pp.size)[pp.rank]

    # Each block has 4 all-reduces. The embedding has one, and the output layer has one. The last
    # stage also sends numbers for the loss.
    n_sums = 4 * n_blocks + first + last
    of_tp = n_sums * ring.bytes_sent(rows * args.width, item, tp.size, tp.rank)
    if last:
        of_tp += vocabulary.bytes_sent(rows, item, tp.size, tp.rank)

    n_neighbours = (not first) + (not last)  # activations go to the next rank, gradients back
    of_pp = MICRO * n_neighbours * rows * args.width * item
    if not last:
        of_pp += HEADER_BYTES

    # ZeRO 1 does a reduce-scatter of the gradients and an all-gather of the weights. The weights
    # that tp divides are in one buffer, and the other weights are in a second buffer. A header
    # lists the gradients.
    of_dp = header.bytes_sent(len(parameters), dp.size, dp.rank)
    for n in counts(parameters):
        of_dp += ring_blocks.bytes_sent(chunks.bounds(n, dp.size), item, dp.rank)
    return {"tp": MICRO * of_tp, "pp": of_pp, "dp": of_dp}


def counts(parameters):
    """Returns (number of weights that tp divides, number of weights that every rank of tp has)."""
    divided = sum(p.numel() for p in parameters if p.part is not None)
    repeated = sum(p.numel() for p in parameters if p.part is None)
    return divided, repeated


def main(t, args):
    if t.size not in LAYOUTS or args.layers < 2:
        raise WrongOption(f"wanted {', '.join(map(str, LAYOUTS))} ranks and --layers of 2 or more; "
                          f"got {t.size} ranks and --layers {args.layers}")
    table = Table(t)
    tp, pp, dp = LAYOUTS[t.size]
    axes = Grid(Ledger(t), tp=tp, pp=pp, dp=dp)
    alone = Grid(Ledger(t.subgroup([t.rank])))  # a grid of this rank only

    losses, wanted, *_ = train(alone, args)
    _, found, _, parameters = train(axes, args)
    errors = [abs(g - wanted[name]).max() / abs(wanted[name]).max() for name, g in found.items()]
    table.row("gradients: difference from one rank alone", float(max(errors)), 0.0, "abs<1e-9")

    losses_zero, *_ = train(axes, args, zero=1)
    error = np.abs(np.subtract(losses_zero, losses)).max()
    table.row("losses with ZeRO 1: difference from one rank alone", float(error), 0.0, "abs<1e-9")

    theory = bytes_of(axes, args, parameters)
    matrices = {}
    for axis in AXES:
        ranks = getattr(axes, axis).ranks
        n_bytes = axes.t.count(group=ranks).bytes_sent
        table.row(f"bytes sent along {axis}", n_bytes, theory[axis], "exact")
        matrices[axis] = axes.t.matrix(group=ranks)
    table.row("bytes sent along all axes", axes.t.bytes_sent, sum(theory.values()), "exact")

    divided, repeated = counts(parameters)
    own = divided + repeated
    say(t, f"{axes} holds {own:,} weights. All ranks of its tp group have {repeated:,} of these "
           "(norms, row biases, positions)")
    share = sum(chunks.size(n, axes.dp.size, axes.dp.rank) for n in (divided, repeated))
    for zero, n_bytes in ((0, 16 * own), (1, 4 * own + 12 * share)):
        _, _, held, _ = train(axes, args, zero, "O2")
        table.row(f"bytes held with O2 and ZeRO {zero}", held, n_bytes, "exact")

    if t.rank == 0:
        say_layouts(t)
    picture(t, args, draw, axes.sizes, matrices)
    return table


def say_layouts(t):
    """Prints the layouts that choose() returns for a large network and four limits of memory."""
    net = Net(1e9, layers=24, width=2048, tokens=1 << 16, m=8, seconds=20.0)
    links = Links.nodes(4, intra=(5e-6, 1e-11), inter=(20e-6, 1e-10))
    for gigabytes in (16, 4, 3, 2):
        layout = choose(8, gigabytes * 1e9, net, links) or {}
        names = ", ".join(f"{axis} {n}" for axis, n in layout.items() if n > 1)
        say(t, f"  best layout for 1e9 weights, 2 nodes of 4 ranks, {gigabytes} GB a rank: {names}")


OPTIONS = {"steps": (3, "training steps"), "layers": (4, "transformer blocks"),
           "width": (32, "width of the residual stream, a multiple of 4")}


def draw(plt, sizes, matrices):
    """Draws the ranks at their coordinates, with a line for each pair of ranks that sends (left).

    Right: the bytes that each rank sends to each other rank."""
    colours = {"tp": LINES[0], "pp": GREEN, "dp": ORANGE}
    figure, (left, right) = plt.subplots(1, 2, figsize=(14, 6.2), width_ratios=[1.15, 1])
    n, most = len(matrices["tp"]), max(m.max() for m in matrices.values())
    places = []
    for rank in range(n):
        at = grid.coordinates(sizes, rank)
        places.append((4 * at["tp"] + 1.9 * at["dp"], -3.4 * at["pp"] + 1.5 * at["dp"]))
    for axis, matrix in matrices.items():
        for a, b in np.argwhere(np.triu(matrix + matrix.T)):
            n_bytes = matrix[a, b] + matrix[b, a]
            (xa, ya), (xb, yb) = places[a], places[b]
            left.plot([xa, xb], [ya, yb], color=colours[axis], solid_capstyle="butt",
                      linewidth=1 + 7 * n_bytes / (2 * most), zorder=1)
    for rank, (x, y) in enumerate(places):
        left.text(x, y, rank, ha="center", va="center", fontsize=15, zorder=3, bbox={
            "boxstyle": "circle,pad=0.4", "facecolor": "white", "edgecolor": GREY})
    for axis, matrix in matrices.items():
        what = {"tp": "tensor parallel: sums of activations",
                "pp": "pipeline: activations, their gradients",
                "dp": "data parallel: gradients, weights"}[axis]
        left.plot([], [], color=colours[axis], linewidth=5,
                  label=f"{what}; {matrix.sum() / 1e6:.2f} MB")
    left.legend(loc="upper center", bbox_to_anchor=(0.5, -0.02), fontsize=12)
    shape = " x ".join(f"{axis} {sizes[axis]}" for axis in AXES)
    left.set(title=f"{shape}: each rank is in three groups", aspect="equal")
    left.margins(0.16)
    left.axis("off")

    for axis, matrix in matrices.items():
        for (a, b), n_bytes in np.ndenumerate(matrix):
            if n_bytes:
                right.add_patch(plt.Rectangle((b, a), 1, 1, facecolor=colours[axis],
                                              alpha=0.25 + 0.6 * n_bytes / most))
                right.text(b + 0.5, a + 0.5, f"{axis}\n{n_bytes / 1e3:.0f} k", ha="center",
                           va="center", fontsize=9)
    ticks = np.arange(n)
    right.set_xticks(ticks + 0.5, ticks)
    right.set_yticks(ticks + 0.5, ticks)
    right.tick_params(length=0)
    right.set(xlim=(0, n), ylim=(n, 0), aspect="equal", xlabel="to rank", ylabel="from rank",
              title="Bytes of one step, and the group that sends them")
    return figure


if __name__ == "__main__":
    launch(main, OPTIONS, ranks=8)
