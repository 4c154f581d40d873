"""22  Attention over a text that no rank holds.    60 minutes, needs: 07, 03

A text that is too long for one rank is divided over n ranks. Two methods compute attention over the
whole text.

    mpirun -n 4 python tutorials/22_long_context.py   (or: minidl run -n 4 ...)
    python tutorials/22_long_context.py --sim 4       picture: out/22_long_context.png

**Ring attention.** The text has s tokens, and each rank has s/n of these. The blocks of K and V go
around the ring. For each block a rank computes two results for its own queries: o, the output, and
lse = log(sum of e^score). Then it merges (o1, lse1), the results so far, with (o2, lse2), the
results of the block:

    L = log(e^lse1 + e^lse2)          o = e^(lse1 - L) o1 + e^(lse2 - L) o2

L is the new lse. The next block arrives during this computation. With g key heads of width e, a
block of K has c = (s/n) g e elements. A rank sends 2 c (n-1) elements in forward. In backward it
sends K and V again, and also the gradients of K and V.

**Balance.** In causal attention a query sees only earlier keys. If the pieces of the text are in
order, rank r = 0, 1, ... computes with r+1 of the n blocks, and all ranks wait for the last rank.
In zigzag order the text has 2n chunks, and rank r has the chunks r and 2n-1-r. Then every rank has
the same number of pairs of a query and a key: s (s+1) / 2n.

**Ulysses.** Before the exchange a rank has s/n tokens of all h heads. After an all-to-all it has
all s tokens of h/n heads. Then it computes the usual attention, and a second all-to-all brings the
results back. A rank sends (2h + 2g) e (s/n) (n-1)/n elements. So the ring sends n g / (h + g) times
as many elements. This is n/2 if h = g, and n/9 if 8 query heads share a key head.

Papers: Liu, Zaharia & Abbeel 2023 (arXiv 2310.01889); Jacobs et al. 2023 (arXiv 2309.14509).
Exercises: `minidl exercise 22` writes work/22_long_context.py with the marked regions empty;
`minidl check 22` grades it.
"""

import numpy as np

import minidl
from minidl import nn
from minidl.comm import Ledger, ring
from minidl.course.out import BLUE, GREEN, GREY, ORANGE, RED, line_at
from minidl.course.tutorial import Table, launch, picture, progress, put, say
from minidl.data import text
from minidl.nn import functional as F
from minidl.parallel import average_gradients
from minidl.parallel.model import context
from minidl.tensor import Tensor


def block(q, k, v, at_q, at_k):
    """Returns (o, lse) of attention to one block of keys. o is (h, L, e), lse (h, L).

    q           (h, L, e): h heads, L queries of width e
    k, v        (h, S, e): S keys and values
    at_q, at_k  the positions in the text of the L queries and the S keys. A query sees the keys up
                to its own position"""
    # >>> exercise 22a: one block, by places in the text
    # Scores are q k^T / sqrt(e), or -inf if the key comes later in the text than the query. o is
    # softmax(scores) times v. lse is the log of the sum of e^score over the keys. Scores of 1000
    # must not overflow: subtract each row's largest score before np.exp, and add it to the log.
    # If a query sees no key of this block, its o is 0 and its lse is -inf. NumPy must give no
    # warning.
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    s = np.where(at_q[:, None] >= at_k, s, -np.inf)
    top = s.max(axis=-1, keepdims=True)
    sees = top > -np.inf
    top = np.where(sees, top, 0)
    p = np.exp(s - top)
    total = np.where(sees, p.sum(axis=-1, keepdims=True), 1)
    lse = np.where(sees, top + np.log(total), -np.inf)
    return p @ v / total, lse[..., 0]
    # <<<


def merge(o1, lse1, o2, lse2):
    """Merges two results for the same queries, from different keys.

    Returns (o, lse) for all keys of the two results, as new arrays."""
    # >>> exercise 22b: two partial results as one
    # o1 and o2 are (h, L, e) and may be float16. lse1 and lse2 are (h, L), float32 or float64. Add
    # in the dtype of lse. An lse may be 1000. It is -inf if the query saw no key. If a query saw no
    # key in the two results, its new o is 0 and its new lse is -inf.
    both = np.logaddexp(lse1, lse2)
    safe = np.where(both == -np.inf, 0, both)
    w1, w2 = (np.exp(lse - safe)[..., None] for lse in (lse1, lse2))
    return w1 * o1 + w2 * o2, both
    # <<<


def ring_attention(t, q, k, v, order, pair_s):
    """Returns (o, n_pairs) of this rank. The next k and v arrive during the computation.

    q, k, v  (heads, tokens, width), for this rank's tokens
    order    "contiguous" or "zigzag"
    pair_s   the seconds that the modelled clock takes for one pair of a query and a key
    n_pairs  how many such pairs this rank has computed"""
    n, m = t.size, q.shape[1]
    places = [context.positions(n * m, n, i, order) for i in range(n)]
    o = np.zeros(q.shape)
    lse = np.full(q.shape[:2], -np.inf)
    n_pairs = 0

    def visit(owner, kv):
        nonlocal n_pairs
        part = context.seen(t.rank, owner, n * m, n, True, order)  # (queries that see keys, keys)
        if part is None:  # no query sees a key
            return
        rows, keys, _ = part
        at_q = places[t.rank][rows]
        at_k = places[owner][keys]
        k, v = kv[:, :, keys]
        new_o, new_lse = block(q[:, rows], k, v, at_q, at_k)
        o[:, rows], lse[:, rows] = merge(o[:, rows], lse[:, rows], new_o, new_lse)

        here = int((at_q[:, None] >= at_k).sum())
        t.compute(here * pair_s)  # on the modelled clock
        n_pairs += here

    context.pass_around(t, np.stack([k, v]), visit)
    return o, n_pairs


def by_hand(t, args, table):
    """Compares the results of the exercises' functions, on the ring, with the result of one rank
    that has the whole text.

    Returns {order: an array with the number of pairs that each rank computes}."""
    n, m, heads, width = t.size, args.tokens, 2, 8
    s = n * m
    q, k, v = np.random.default_rng(0).normal(size=(3, heads, s, width)) * 2  # equal on all ranks
    whole, _ = block(q, k, v, np.arange(s), np.arange(s))
    n_bytes = 2 * heads * m * width * 8  # bytes of a block of k and v
    pairs_theory = {
        "zigzag": s * (s + 1) // 2 // n,
        "contiguous": m * (m + 1) // 2 + t.rank * m * m,
    }

    pairs, time_s = {}, {}
    for order in ("zigzag", "contiguous"):  # zigzag first, while all modelled clocks are equal
        mine = context.positions(s, n, t.rank, order)
        ledger = Ledger(t)
        start = t.time()
        o, n_pairs = ring_attention(ledger, q[:, mine], k[:, mine], v[:, mine], order, args.pair_s)
        time_s[order] = t.time() - start

        error = np.abs(o - whole[:, mine]).max()
        table.row(f"{order}: difference from one rank", float(error), 0.0, "abs<1e-12")
        table.row(f"{order}: pairs of this rank", n_pairs, pairs_theory[order], "exact")
        table.row(f"{order}: bytes of this rank", ledger.bytes_sent, n_bytes * (n - 1), "exact")

        of_ranks = np.zeros(n, int)
        of_ranks[t.rank] = n_pairs
        pairs[order] = ring.all_reduce(t, of_ranks)
        say(t, f"  {order:10} pairs of each rank: {' '.join(map(str, pairs[order]))}")

    if t.simulated:  # a step takes max(time of its pairs, time of the next message)
        message_s = args.alpha + args.beta * n_bytes
        *steps, last = [args.pair_s * n_pairs for n_pairs in context.pairs(s, n, t.rank)]
        theory = sum(max(step, message_s) for step in steps) + last
        table.modelled("zigzag: seconds", time_s["zigzag"], theory, "rel<1e-9")
    return pairs


def in_half(table):
    """Merges float16 blocks in float32 and in float16. Adds the errors to the table.

    An error is the largest difference from the result in float64."""
    q, k, v = np.random.default_rng(1).normal(size=(3, 1, 256, 16))
    at = np.arange(256)
    exact, _ = block(q, k, v, at, at)
    for dtype, bound in ((np.float32, 2.0**-10), (np.float16, None)):
        o = np.zeros((1, 256, 16), dtype)
        lse = np.full((1, 256), -np.inf, dtype)
        for start in range(0, 256, 4):
            here = slice(start, start + 4)
            part, part_lse = block(q, k[:, here], v[:, here], at, at[here])
            o, lse = merge(o, lse, part.astype(np.float16), part_lse.astype(np.float32))
            o = o.astype(dtype)
            lse = lse.astype(dtype)

        error = float(np.abs(o - exact).max())
        rule = "info" if bound is None else "<="
        # The o of each block is rounded to float16. For numbers from 2 to 4 the error is at most
        # 2^-10. The merged o is a weighted mean of these blocks, so its error is not larger.
        table.row(f"64 float16 blocks merged in {np.dtype(dtype)}: error", error, bound, rule)


def methods(t, args, table):
    """Counts the bytes that ring attention and Ulysses send. Compares these numbers with the
    formulas."""
    n, m, width = t.size, args.tokens, 8

    def ones(heads):
        return Tensor(put(args, np.ones((1, heads, m, width), "f4")), requires_grad=True)

    attention = {"ring": context.ring_attention, "ulysses": context.ulysses_attention}
    for name, h, g in (("a key head each", 2 * n, 2 * n), ("4 share a key head", 4 * n, n)):
        sent = {}
        for method in ("ring", "ulysses"):
            ledger = Ledger(t)
            o = attention[method](ones(h), ones(g), ones(g), ledger, is_causal=True)
            forward = ledger.bytes_sent
            o.sum().backward()
            backward = ledger.bytes_sent - forward

            theory = context.bytes_sent(method, n, 1, n * m, width, h, g)
            table.row(f"{method}, {name}: bytes forward", forward, theory[0], "exact")
            table.row(f"{method}, {name}: bytes backward", backward, theory[1], "exact")
            sent[method] = forward
        if n > 1:
            ratio = sent["ring"] / sent["ulysses"]
            table.row(f"ring / Ulysses, {name}", ratio, n * g / (h + g), "rel<1e-12")


def train(t, args, table):
    """Trains a GPT whose texts are divided over the ranks, and the same GPT on one rank.

    Compares the losses of the two GPTs, and the bytes of the first GPT with the formula."""
    n_layers = 2
    length = args.tokens * t.size
    alone, _ = losses_of(t, args, "one rank", n_layers, length)
    parts, n_bytes = losses_of(t, args, "ring", n_layers, length)

    a_layer = sum(context.bytes_sent("ring", t.size, 2, length, 8, 4))  # forward and backward
    theory = n_layers * args.steps * a_layer
    table.row("a GPT: bytes of attention in the training", n_bytes, theory, "exact")

    losses = ring.all_reduce(t, np.array(parts))
    error = np.abs(losses / alone - 1).max()
    table.row("a GPT: largest difference from one rank's losses", float(error), 0.0, "abs<1e-5")


def losses_of(t, args, name, n_layers, length):
    """Trains a GPT. name: "one rank", or "ring" for all ranks.

    Returns (a list with this rank's part of the loss of each step, bytes sent)."""
    on_ring = name == "ring"
    minidl.manual_seed(0)
    model = put(args, nn.GPT(256, length, n_layers, 4, 32))
    ledger = Ledger(t)
    if on_ring:
        part = context.context_parallel(model, ledger)  # this rank's tokens of a batch
    batches = text.random_batches(text.stdlib_corpus(1 << 18), 2, length, 0, 1, 0)

    losses = []
    for _ in progress(t, range(args.steps), name):
        x, y = next(batches)
        x = put(args, x)
        y = put(args, y)
        if on_ring:
            x = part(x)
            y = part(y)

        model.zero_grad()
        mean = F.cross_entropy(model(x).reshape(-1, 256), y.reshape(-1))
        loss = mean * x.shape[1] / length  # this rank's part of the mean over all tokens
        if on_ring:
            (loss * t.size).backward()
            # Each rank's loss was multiplied by n. So the mean over the ranks is the sum of the
            # gradients of all parts.
            average_gradients(t, model.parameters())
        else:
            loss.backward()
        for p in model.parameters():
            p.data -= 0.5 * p.grad
        losses.append(loss.item())
    return losses, ledger.bytes_sent


def main(t, args):
    table = Table(t)
    pairs = by_hand(t, args, table)
    in_half(table)
    methods(t, args, table)
    train(t, args, table)
    picture(t, args, draw, t.size, pairs)
    return table


OPTIONS = {
    "tokens": (16, "number of tokens of a rank, an even number"),
    "steps": (6, "number of training steps"),
    "pair_s": (1e-7, "seconds for a pair of a query and a key, on the modelled clock"),
}


def draw(plt, n, pairs):
    """Draws three plots. Two plots show, for each order, the step in which each pair is computed.
    The third plot shows the bytes of the ring, divided by the bytes of Ulysses, over the number of
    ranks."""
    figure, axes = plt.subplots(1, 3, figsize=(15, 5), width_ratios=[1, 1, 1.05])
    shades = plt.get_cmap("viridis")
    for axis, order in zip(axes, ("contiguous", "zigzag"), strict=False):
        chunks = 2 * n
        owner = np.empty(chunks, int)
        for rank in range(n):
            owner[context.positions(chunks, n, rank, order)] = rank
        for i in range(chunks):
            for j in range(i + 1):
                step = (owner[i] - owner[j]) % n
                face = shades(0.15 + 0.75 * step / max(n - 1, 1))
                axis.add_patch(plt.Rectangle((j, i), 1, 1, facecolor=face, edgecolor="white"))
                if n <= 8:
                    axis.text(j + 0.5, i + 0.5, step, ha="center", va="center",
                              color="black" if step > 0.7 * (n - 1) else "white")
        axis.set(xlim=(0, chunks), ylim=(chunks, 0), aspect="equal", xticks=[],
                 xlabel="keys: chunk of the text", title=f"{order}: the step of each block")
        axis.set_yticks(np.arange(chunks) + 0.5, [f"rank {r}" for r in owner], fontsize=9)
        lines = "\n".join(f"rank {r}: {p:,}" for r, p in enumerate(pairs[order][:8]))
        axis.text(0.98, 0.97, "pairs of\n" + lines, ha="right", va="top", fontsize=9,
                  transform=axis.transAxes)
    ranks = np.arange(2, 17)
    for (h, g), colour, name in (((64, 64), BLUE, "a key head for each query head"),
                                 ((64, 16), GREEN, "4 query heads share a key head"),
                                 ((128, 16), ORANGE, "8 query heads share a key head")):
        axes[2].plot(ranks, ranks * g / (h + g), color=colour, label=name)
    line_at(axes[2], "here", x=n, at=0.93, color=GREY)
    line_at(axes[2], "equal", y=1, color=RED)
    axes[2].set(xlabel="ranks", ylabel="bytes of the ring / bytes of Ulysses", xlim=(2, 16),
                ylim=(0, 9), title="Below the line the ring sends less")
    axes[2].legend(loc="upper right", bbox_to_anchor=(0.75, 1))
    return figure


if __name__ == "__main__":
    launch(main, OPTIONS, ranks=4)
