"""23  Experts: more weights, the same arithmetic, and an all-to-all.    60 minutes, needs: 07

A layer has E feed-forward networks, the experts, instead of one. A router chooses k of them for
each token.

    mpirun -n 4 python tutorials/23_experts.py        or: minidl run -n 4 tutorials/23_experts.py
    python tutorials/23_experts.py --sim 4            picture: out/23_experts.png

The router is a linear layer, p = softmax(W x), with a probability p_e for each expert e. The k
experts with the largest p_e are chosen, and y = sum of p_e expert_e(x) over these k experts. Each
of n ranks has E/n experts. The tokens' rows go to the experts in an all-to-all with blocks of
different sizes (dispatch). A second all-to-all brings the results back (combine). Forward has these
two all-to-alls, and backward has two more. Let a rank have T tokens of width h, spread evenly over
the experts. Then it sends k T h (n-1)/n elements in each of the four all-to-alls.

**Capacity.** An expert takes at most ceil(f T k / E) rows. Here T is the number of tokens of all
ranks, and f is the capacity factor, for example 1.25. First choices are taken before second
choices. Among the first choices (or the second choices) the order is by rank, then by token. A row
above the limit is dropped: its y is 0, and the token keeps only its residual.

**Balance.** If the router prefers one expert, that expert trains more, and the router prefers it
even more. There are two remedies:
- A second loss, E sum f_e P_e. f_e is the share of all ranks' tokens that chose e, and P_e is the
  mean of p_e. The loss is 1 if all experts are used equally, and E if one expert gets all tokens.
- A bias for each expert. It is added to p_e only for the choice. After each step it grows by a
  small constant for the experts with less than an equal share of the tokens, and falls for the
  other experts. Unlike the second loss, it does not change the gradients.

Papers: Fedus et al. 2021 (arXiv 2101.03961); Lepikhin et al. 2020 (GShard, arXiv 2006.16668); Wang
et al. 2024 (arXiv 2408.15664).
Exercises: `minidl exercise 23` writes work/23_experts.py with the marked regions empty;
`minidl check 23` grades it.
"""

from functools import partial

import numpy as np

import minidl
from minidl import nn
from minidl.comm import Ledger, all_to_all, chunks, ring
from minidl.course.out import GREY, RED, line_at
from minidl.course.tutorial import Table, host, launch, picture, progress, put, say
from minidl.data import text
from minidl.nn import functional as F
from minidl.nn import moe
from minidl.parallel import DataParallel
from minidl.parallel.model import experts
from minidl.tensor import Tensor


def places(t, choice, n_experts):
    """Returns an array (T,): for each token of this rank, its place in the queue of its expert.

    Places count from 0. A queue has the tokens of all ranks. choice: (T,), the expert of each token
    of this rank. T may differ between ranks and may be 0."""
    # >>> exercise 23a: each token's place in the queue
    # The queue of an expert has the tokens that chose this expert: first the tokens of rank 0, then
    # the tokens of rank 1, and so on. The tokens of a rank are in their order in `choice`.
    # np.bincount(choice, minlength=E) returns how many tokens of this rank chose each of E experts.
    # What does a rank need to know about the other ranks? ring.all_reduce(t, x) sums an array over
    # the ranks, in place. E numbers for each rank are enough.
    counts = np.zeros((t.size, n_experts), np.int64)
    counts[t.rank] = np.bincount(choice, minlength=n_experts)
    ring.all_reduce(t, counts)
    following = counts[: t.rank].sum(axis=0)  # the next place in each expert's queue
    result = np.zeros(len(choice), np.int64)
    for i, e in enumerate(choice):
        result[i] = following[e]
        following[e] += 1
    return result
    # <<<


def through_experts(t, x, choice, gate, kept, expert, n_experts):
    """Returns y, (T, h). For a kept token, y is gate times the result of the chosen expert. For
    other tokens y is 0.

    x (T, h): this rank's tokens. choice (T,): the expert of each token. gate (T,): a factor for
    each token. kept (T,): True or False for each token. Call expert(e, rows) only on the rank that
    has expert e. There are E experts and n ranks. Rank r has the experts r E/n to (r+1) E/n - 1. E
    is divisible by n."""
    # >>> exercise 23b: dispatch and combine
    # all_to_all.all_to_all_v(t, rows, counts) sends the first counts[0] rows to rank 0, the next
    # counts[1] rows to rank 1, and so on. It returns (the rows that came, how many came from each
    # rank). So sort the kept tokens by their expert (np.argsort, kind="stable"). Send their rows,
    # and the numbers of their experts. Call each expert of this rank once, with all rows that came
    # for it. Send the results back to the ranks that sent the rows.
    order = np.flatnonzero(kept)
    order = order[np.argsort(choice[order], kind="stable")]
    to = choice[order] // (n_experts // t.size)
    counts = np.bincount(to, minlength=t.size)
    rows, counts_in = all_to_all.all_to_all_v(t, x[order], counts)
    which, _ = all_to_all.all_to_all_v(t, choice[order], counts, counts_in)
    results = np.empty_like(rows)
    for e in np.unique(which):
        results[which == e] = expert(e, rows[which == e])
    back, _ = all_to_all.all_to_all_v(t, results, counts_in, counts)
    y = np.zeros_like(x)
    y[order] = gate[order, None] * back
    return y
    # <<<


def by_hand(t, args, table):
    """Compares the results of the exercises' functions with the result of one rank that has all
    tokens and all experts."""
    n, h = t.size, 6
    n_experts = 2 * n
    rng = np.random.default_rng(0)
    bounds = np.cumsum([0, *(args.tokens + r for r in range(n))])  # the ranks get unequal parts
    mine = slice(bounds[t.rank], bounds[t.rank + 1])
    x = rng.normal(size=(bounds[-1], h))
    weights = rng.normal(size=(n_experts, h, h))
    p = np.exp(x @ rng.normal(size=(h, n_experts)))  # the numerators of softmax
    choice = p.argmax(axis=1)
    gate = p.max(axis=1) / p.sum(axis=1)
    limit = int(np.ceil(1.25 * len(x) / n_experts))

    def expert(e, rows):
        return np.tanh(rows @ weights[e])

    wanted = np.zeros_like(x)
    taken = np.zeros(n_experts, int)
    for i, e in enumerate(choice):  # the result of one rank, token by token
        if taken[e] < limit:
            wanted[i] = gate[i] * expert(e, x[i])
        taken[e] += 1
    wanted_dropped = int(np.maximum(taken - limit, 0).sum())

    kept = places(t, choice[mine], n_experts) < limit
    y = through_experts(t, x[mine], choice[mine], gate[mine], kept, expert, n_experts)
    n_dropped = int(ring.all_reduce(t, np.array([(~kept).sum()]))[0])

    table.row("capacity, ceil(1.25 T / E)", limit, -(-5 * len(x) // (4 * n_experts)), "exact")
    table.row("by hand: dropped tokens", n_dropped, wanted_dropped, "exact")
    table.row("by hand: difference from one rank", np.abs(y - wanted[mine]).max(), 0.0,
              "abs<1e-12")


def layer_costs(t, args, table):
    """Counts the bytes that nn.MoE sends, and the choices that it drops. Compares these numbers
    with the formulas."""
    n, n_experts, h, k = t.size, 2 * t.size, 8, 2
    minidl.manual_seed(0)
    layer = put(args, nn.MoE(h, n_experts=n_experts, top_k=k))

    # First the choices of each rank's tokens are computed. Then `plan` tells which choices of this
    # rank are within the capacity.
    x = np.random.default_rng(1).normal(size=(n * args.tokens, h)).astype("f4")
    with minidl.no_grad():
        p = host(F.softmax(F.linear(put(args, Tensor(x)), layer.router.weight), -1))
    choice = moe.choose(p, k).reshape(n, args.tokens, k)
    counts = np.stack([moe.of_rounds(c, n_experts) for c in choice])
    limit = moe.capacity(1.25, counts)
    plan = moe.plan_of(choice[t.rank], counts, t.rank, limit)

    ledger = Ledger(t)
    experts.expert_parallel(layer, ledger)
    mine = x.reshape(n, args.tokens, h)[t.rank]
    layer(put(args, Tensor(mine, requires_grad=True))).sum().backward()

    theory = experts.bytes_sent(plan.counts, t.rank, chunks.bounds(n_experts, n), h, 4, k)
    table.row("a layer: bytes of counts, rows, gradients", ledger.bytes_sent, sum(theory), "exact")
    n_dropped = int((plan.slot < 0).sum())
    table.row("a layer: choices dropped on this rank", layer.n_dropped, n_dropped, "exact")
    even = 4 * k * args.tokens * h * (n - 1) // n * 4  # 4 k T h (n-1)/n elements of 4 bytes
    table.row("a layer: bytes of rows; theory: spread evenly", sum(theory[1:]), even)


def balance_loss(table):
    """Checks the smallest and the largest balance loss.

    It is smallest if all tokens choose different experts. It is largest if all tokens choose the
    same expert."""
    layer = nn.MoE(4, n_experts=4)
    layer.router.weight.array[...] = 40 * np.eye(4)
    for name, likes, theory in (("balanced", [0, 1, 2, 3], 1.0), ("collapsed", [0] * 4, 4.0)):
        layer(Tensor(np.eye(4, dtype="f4")[likes]))
        table.row(f"balance loss, {name}", layer.aux_loss.item(), theory, "rel<1e-6")


def train(t, args, table, name):
    """Trains a GPT whose layers have two experts for each rank. Returns (losses, loads).

    losses  the loss of each step
    loads   (steps, experts): for each step, which share of the tokens chose each expert of the
            first layer
    name    "nothing": without balancing, on all ranks. "bias": with the bias, on all ranks. "one
            rank": with the bias, on one rank"""
    minidl.manual_seed(0)
    mixture = partial(nn.MoE, n_experts=2 * t.size, bias_rate=args.rate, capacity_factor=1.25)
    model = put(args, nn.GPT(256, 32, 2, 4, 32, feed_forward=mixture).double())
    layers = moe.layers(model)
    for layer in layers:  # a bad start, because the router prefers expert 0
        layer.router.weight.data *= 12
        layer.router.weight.array[0] *= 3

    on_ranks = name != "one rank"
    if on_ranks:
        run = DataParallel(experts.expert_parallel(model, t), t)
        share = slice(2 * t.rank, 2 * t.rank + 2)
        all_sum = partial(ring.all_reduce, t)
    else:
        run = model
        share = slice(None)
        all_sum = None
    batches = text.random_batches(text.stdlib_corpus(1 << 18), 2 * t.size, 32, 0, 1, 0)
    optimizer = minidl.optim.SGD(model.parameters(), lr=0.2)
    losses, loads, dropped = [], [], []
    for _ in progress(t, range(args.steps), name):
        x, y = next(batches)
        x = put(args, x[share])
        y = put(args, y[share])
        optimizer.zero_grad()
        loss = F.cross_entropy(run(x).reshape(-1, 256), y.reshape(-1))
        loss.backward()
        optimizer.step()

        losses.append(loss.item())
        loads.append(layers[0].load)
        dropped.append(sum(layer.n_dropped for layer in layers))
        if name == "nothing":
            for layer in layers:
                layer.load = 0
        moe.move_bias(model, all_sum)  # a load of 0 leaves the bias as it is

    if all_sum:
        run.close()
        dropped = all_sum(np.array(dropped))
        loads = all_sum(np.array(loads))
        losses = all_sum(np.array(losses)) / t.size
    loads = np.array(loads) / np.sum(loads, axis=1, keepdims=True)
    n_dropped = sum(dropped[-5:])
    percent = 100 * busiest(loads)
    say(t, f"  {name:9} loss {losses[-1]:.3f}; in the last 5 steps {n_dropped:,} choices were "
           f"dropped, and the first layer's busiest expert had {percent:.0f} %")
    return losses, loads


def busiest(loads):
    """Takes the mean share of the tokens of each expert, over the last 5 steps. Returns the largest
    of these shares.
    """
    return loads[-5:].mean(axis=0).max()


def main(t, args):
    table = Table(t)
    by_hand(t, args, table)
    layer_costs(t, args, table)
    balance_loss(table)
    say(t, f"A GPT with {2 * t.size} experts a layer. At first its routers prefer one expert:")
    ways = {name: train(t, args, table, name) for name in ("nothing", "bias", "one rank")}
    losses, loads = ways["bias"]
    alone, _ = ways["one rank"]
    error = np.abs(np.array(losses) / alone - 1).max()
    # The model is in float64. In float32 a rounding soon changes a choice, and this changes the
    # loss.
    table.row("bias: losses, difference from one rank's", float(error), 0.0, "abs<1e-9")
    if args.steps >= 40 and t.size == 4:
        _, loads_before = ways["nothing"]
        most = 0.7 * busiest(loads_before)
        table.row("busiest expert's share with the bias, at most", busiest(loads), most, "<=")
    picture(t, args, draw, ways, 2 * t.size)
    return table


OPTIONS = {
    "tokens": (24, "number of tokens of a rank, before the training"),
    "steps": (40, "number of training steps"),
    "rate": (0.01, "by how much a bias changes after a step"),
}


def draw(plt, ways, n_experts):
    """Draws three plots. The first plot shows tokens on their way to experts, without and with
    balancing. The other two plots show the shares of the experts over the steps."""
    figure, axes = plt.subplots(1, 3, figsize=(15, 4.8), width_ratios=[1, 1, 1])
    n_tokens, colours = 6 * n_experts, plt.get_cmap("tab10")
    limit = int(np.ceil(1.25 * n_tokens / n_experts))
    for name, way, shift in (("no balancing", "nothing", 0), ("a bias", "bias", 4)):
        load = ways[way][1][-5:].mean(axis=0)
        choice = np.searchsorted(np.cumsum(load)[:-1], (np.arange(n_tokens) + 0.5) / n_tokens)
        choice = np.random.default_rng(0).permutation(choice)
        taken = np.zeros(n_experts, int)
        for i, e in enumerate(choice):
            taken[e] += 1
            late = taken[e] > limit
            axes[0].plot([shift, shift + 2], [i / n_tokens, (e + 0.5) / n_experts], linewidth=0.8,
                         color=RED if late else colours(e % 10), linestyle=":" if late else "-")
        late = int(np.maximum(taken - limit, 0).sum())
        axes[0].text(shift + 1, 1.03, f"{name}: {late} of {n_tokens} dropped", ha="center",
                     fontsize=10)
        axes[0].text(shift + 2.1, 1.0, "experts", ha="left", va="top", fontsize=9, color=GREY)
    axes[0].axis("off")
    axes[0].set_title("tokens on their way to experts; dotted: dropped", pad=18)
    for axis, name in zip(axes[1:], ("nothing", "bias"), strict=True):
        loads = ways[name][1]
        axis.stackplot(range(len(loads)), loads.T, edgecolor="white", linewidth=0.3,
                       colors=[colours(e % 10) for e in range(n_experts)])
        line_at(axis, "an equal share", y=1 / n_experts, color="white")
        axis.set(xlabel="step", ylim=(0, 1), xlim=(0, max(len(loads) - 1, 1)),
                 title="no balancing" if name == "nothing" else "a bias moves the choices")
    axes[1].set_ylabel("share of the tokens, by expert")
    return figure


if __name__ == "__main__":
    launch(main, OPTIONS, ranks=4)
