"""Costs of one rank of a divided GPT: closed forms for memory and for the time of a pipeline.

    seconds of a step = m (compute + tp + cp + ep) + bubble + sends + dp

compute, tp, cp and ep are seconds of the slowest stage, for one of m micro-batches. The forward of
a micro-batch takes F seconds, and its whole backward takes B seconds. In ZB-H1 backward has two
parts: the part for the inputs takes B seconds, and the part for the weights takes W seconds. A send
to the next stage takes c seconds, and c is much less than F and B. v is the number of stages of
each rank. The table is for p stages:

                bubble                               sends
    GPipe       (p-1)(F + B)                         2(p-1) c
    1F1B        (p-1)(F + B)                         (2(p-1) ceil(m/p) + 2(p-2)) c; if m < p, the
                                                     same as GPipe
    interleaved (p-1)(F + B) / v                     2(vp-1) c
    ZB-H1       (p-1)(F + B - W); if m is small,     4(p-1) c, or the sends of 1F1B if these are
                p F + (p-1) B - m F                  less

If stages differ, (p-1) F stands for the sum of F over all stages except the slowest. Bubbles are
exact if the stages are equal. The bubble of GPipe is always exact. Sends are exact if three
conditions hold: m is divisible by p, c is small (c < W / 2; for interleaved c < F / v), and no send
waits for a port that another send uses. For a larger c the sends are estimates, within 10 % of the
schedule's time. Only the messages of ring attention are counted as overlapped with computation.

The memory is a sum. It includes weights, gradients and optimizer state (as in memory/predict.py),
and the activations of the live micro-batches. Three things are not counted: a layer's workspace,
buffers of messages, and weights that ZeRO 3 gathers for a short time. Only flops of matrices and of
attention are counted. The half of attention that a causal mask hides is also counted. In a
tensor-parallel group the formulas are for rank 0, which has the largest share. The formulas assume
that tokens are routed evenly to experts, and none is dropped.

Sources: Narayanan et al. 2021 (arXiv 2104.04473); Qi et al. 2024 (arXiv 2401.10241).
Test: tests/parallel/model/test_plan_costs.py   Used by: planner.py   Seconds: plan_network.py
"""

from functools import cache
from typing import NamedTuple


class Shape(NamedTuple):
    """The sizes of an nn.GPT. Its output layer is tied to the embedding, unless ZeRO forbids it
    (planner.py).

    context   the number of tokens of a row
    vocab     the number of words
    experts   the number of experts in each block. With 0 a block has a feed-forward layer in place
              of experts
    top_k     how many experts each token uses"""

    layers: int
    width: int
    heads: int
    context: int
    vocab: int
    experts: int = 0
    top_k: int = 1


class Share(NamedTuple):
    """A rank's share of a block, or of one end of the model (embeddings or output layer).

    weights     the number of elements of the weights
    tensors     the number of parameters
    matrices    the number of elements of the matrices that a token is multiplied by
    attention   the flops of attention in forward, for each token
    saved       the bytes that are saved for backward, for each token
    once        the bytes that are saved once, for any number of tokens
    own         the number of elements of the rank's own experts, which other ranks do not have"""

    weights: int
    tensors: int
    matrices: int
    attention: int
    saved: int
    once: int = 0
    own: int = 0


@cache
def block(shape, tp, width, method="", ep=1):
    """Returns the Share of one TransformerBlock. width: the bytes of an element of an activation.
    method: "ring" or "ulysses", the method of context parallelism; "" without context
    parallelism."""
    C, heads = shape.width, -(-shape.heads // tp)
    c, f = heads * (C // shape.heads), -(-4 * C // tp)
    # C is the width of the model. A rank has c columns of q and f columns of the feed-forward.
    # These sizes are saved for each token. Each of the two norms saves C elements and two numbers.
    # The linear layers save 2C + c + f elements. gelu saves f elements. Attention saves 3c elements
    # and one lse for each head.
    saved = width * (4 * C + 4 * c) + 16 + 4 * heads
    # Ulysses saves the result of attention twice: before and after its all-to-all
    saved += width * c * (method == "ulysses")
    if not (E := shape.experts):
        matrices = 4 * C * c + 2 * C * f
        return Share(matrices + 3 * c + f + 6 * C, 12, matrices, 4 * shape.context * c,
                     saved + 2 * width * f)
    k, narrow = shape.top_k, width < 4
    # A token is sent to k experts. These arrays are saved for each token: the k rows that it sends,
    # and the k rows that come back. For each of these k rows, an expert saves 8C elements. The
    # router saves x in float32, the probabilities p and the gates.
    saved += width * 10 * k * C + narrow * (4 - width) * C + 4 * E + (4 * (2 * k + 1) if k > 1
                                                                    else 4)
    return Share(4 * C * c + 3 * c + 5 * C + E * C, 9, 4 * C * c + E * C + 8 * k * C * C,
                 4 * shape.context * c, saved, 4 * E * C * narrow, E // ep * (8 * C + 5) * C)


@cache
def ends(shape, tp, width):
    """Returns (the Share of the embeddings, the Share of norm, output layer and loss). Each of
    these Shares counts the tied weight."""
    C, words = shape.width, -(-shape.vocab // tp)
    # saved for each token: the id and, if tp > 1, a flag. The flag is 1 if the id is on this rank
    first = Share((words + shape.context) * C, 2, 0, 0,
                  8 + (width if tp > 1 else 0))
    # saved for each token: the inputs of norm and output layer, two numbers of the norm, the logits
    # in float32, the target and lse
    last = Share((words + 2) * C, 3, words * C, 0, 2 * width * C + 8 + 4 * words + 12)
    return first, last


# -- stages


class Stage(NamedTuple):
    """n ranks along pp with `blocks` blocks each. rank: the first of these ranks. first: True if
    these ranks have the embeddings. last: True if these ranks have the output layer."""

    n: int
    rank: int
    blocks: int
    first: bool
    last: bool


@cache
def stages_of(cut):
    """Returns a tuple of Stages. cut: the number of blocks of each rank. Ranks with the same work
    become one Stage."""
    found, p = {}, len(cut)
    for rank, blocks in enumerate(cut):
        found.setdefault((blocks, rank == 0, rank == p - 1), []).append(rank)
    return tuple(Stage(len(ranks), ranks[0], *key) for key, ranks in found.items())


@cache
def balanced(shape, p):
    """Returns a tuple with the number of blocks of each of p stages. The last stage also has the
    output layer, which costs as much as some blocks. The last stage gets the number of blocks that
    makes the slowest stage as fast as possible."""
    if p == 1:
        return (shape.layers,)
    one, (_, end) = block(shape, 1, 4), ends(shape, 1, 4)
    head = 2 * end.matrices / (2 * one.matrices + one.attention)
    last = min(range(1, shape.layers // p + 1),
               key=lambda k: (max(-(-(shape.layers - k) // (p - 1)), k + head), -k))
    size, longer = divmod(shape.layers - last, p - 1)
    # The first stages get fewer blocks, because the first ranks hold the most micro-batches.
    return (size,) * (p - 1 - longer) + (size + 1,) * longer + (last,)


def weights(shape, tp, stage):
    """Returns (number of elements, number of parameters) of the weights that a rank of this stage
    has. Experts are not counted."""
    one, (first, last) = block(shape, tp, 4), ends(shape, tp, 4)
    both = stage.first and stage.last  # the tied weight counts once
    return tuple(stage.blocks * one[i] + stage.first * first[i] + stage.last * last[i]
                 - both * (last.matrices, 1)[i] for i in (0, 1))


def live(schedule, p, m, v, rank):
    """Returns the largest number of (stage, micro-batch) pairs whose activations a rank holds at
    the same time. There are p ranks, m micro-batches, and v stages on each rank."""
    if schedule == "interleaved":
        return min(2 * (p - rank - 1) + (v - 1) * p + 1, m * v)
    return {"gpipe": m, "1f1b": min(p - rank, m), "zb-h1": min(p, m)}[schedule]


def activations(shape, tp, width, recompute, schedule, p, m, v, stage, micro, cp=1, method=""):
    """Returns the bytes of activations that a rank of this stage holds. For ZB-H1 the result is an
    upper bound, because arrays that only part B needs are counted until W. For rank 0 of an
    interleaved schedule, the result is an upper bound, too."""
    one, (first, last) = block(shape, tp, width, method), ends(shape, tp, width)
    n, tokens = live(schedule, p, m, v, stage.rank), shape.context // cp
    blocks = n * stage.blocks // v
    saved = blocks * (width * shape.width if recompute else one.saved)
    saved += recompute * one.saved  # backward runs one block again, and holds what this block saves
    # If a rank has several stages (v > 1), the last stage runs B directly after each F. So the last
    # stage holds one micro-batch.
    saved += stage.first * min(n, m) * first.saved + stage.last * (1 if v > 1 else n) * last.saved
    once = one.once * (1 if recompute else blocks)
    # 8 * tokens: the bytes of the positions
    return micro * tokens * saved + once + stage.first * min(n, m) * 8 * tokens


# -- the pipeline


def waits(schedule, v, m, stages, hop, port):
    """Returns (seconds of bubble, seconds of exposed sends). A send is exposed if a rank waits for
    it and has no work. A step takes these times in addition to the time of m micro-batches in the
    slowest stage.

    stages      a list of tuples (number of ranks, F, B, W). The first tuple is for rank 0. F, B and
                W are the seconds of forward, of backward for the inputs, and of backward for the
                weights
    hop         the seconds of a send
    port        the seconds in which a send keeps its port busy"""
    p = sum(n for n, *_ in stages)
    if p == 1:
        return 0.0, 0.0
    total = sum(n * (f + b + w) for n, f, b, w in stages)
    slowest = max((stage[1:] for stage in stages), key=sum)
    busy = m * sum(slowest)
    one_f_one_b = (2 * (p - 1) * -(-m // p) + 2 * (p - 2) * (m >= p)) * hop
    if schedule == "gpipe":  # this formula is exact
        f, b = max(f for _, f, _, _ in stages), max(b + w for _, _, b, w in stages)
        sends = 2 * (p - 1) * hop + (m - 1) * (max(0, port - f) + max(0, port - b))
        return total + (m - 1) * (f + b) - busy, sends
    if schedule == "zb-h1":
        f, b, w = slowest
        inputs = sum(n * (f + b) for n, f, b, _ in stages)
        bubble = inputs - f - b - sum(n * w for n, _, _, w in stages) + w
        _, f0, b0, w0 = stages[0]
        # A step may have too few parts W to fill the time until the first B.
        bubble = max(bubble, inputs - b0 + m * (b0 + w0) - busy)
        # If sends take long, parts W fill the time in which the schedule 1F1B waits.
        waiting = inputs + (m - 1) * (f + b) + w + one_f_one_b - busy - bubble
        sends = max(min(4 * (p - 1) * hop, one_f_one_b), waiting)
    elif v == 1:
        bubble, sends = total - sum(slowest), one_f_one_b
    else:
        bubble, sends = (total - sum(slowest)) / v, 2 * (v * p - 1) * hop
        # If sends take long, a rank waits for one message with each part F, or with each backward
        # (B and W). The longer one of F and backward counts. This estimate was fitted to
        # simulations.
        f, b, w = slowest
        sends = max(sends, m * (max(f, b + w) + v * hop) - busy + (p * v + p - 2) * hop)
    # the port of a rank sends all activations and gradients of the rank
    return bubble, max(sends, (2 * v - (p == 2)) * m * port - busy - bubble)
