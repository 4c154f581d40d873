"""One step of a divided GPT: the bytes sent along each axis, and the seconds of a stage's parts.

The table gives the number of elements that a rank with n tokens sends for one micro-batch. C is the
width, c is the number of this rank's columns of q, and k is the number of experts of a token:

    tp   4 all-reduces of n C elements in each block, and the three   functions.py, vocabulary.py
         sums of the loss
    cp   with the ring 2 n c (cp-1) in forward, and the same again    ring_attention.py
         if blocks are recomputed. Backward sends the same, and also
         the same number of elements of gradients in float32
         with Ulysses 4 n c (cp-1)/cp in forward, and the same in     ulysses.py
         backward
    ep   4 k n C (ep-1)/ep, and k E (ep-1) counts in int64 (E: the    experts.py
         number of experts)
    pp   n C over each boundary, in each of the two directions        pipeline.py

Test: tests/parallel/model/test_plan_costs.py, test_plan_axes.py   Used by: planner.py
"""

from minidl.comm import grid
from minidl.memory.predict import WIDTHS, predict
from minidl.parallel.data import header
from minidl.parallel.model import plan_costs as costs
from minidl.parallel.model import plan_network as net
from minidl.parallel.model.pipeline import HEADER_BYTES

WORK = ("compute", "tp", "cp", "ep")  # the keys of Plan.parts for work on micro-batches


def links_of_axes(network, sizes):
    """Returns {axis: its Way}. The key "dp" is for all ranks with the same dense weights: the axes
    cp, ep and dp, which are neighbours in grid.ORDER. The key "experts" is for all ranks with the
    same experts."""
    links, strides, stride = {}, {}, 1
    for axis, size in grid.shape(**sizes).items():
        links[axis], strides[axis] = network.way(stride, size), stride
        stride *= size
    links["experts"] = network.both((strides["cp"], sizes["cp"]), (strides["dp"], sizes["dp"]))
    links["dp"] = network.way(strides["cp"], sizes["cp"] * sizes["ep"] * sizes["dp"])
    return links


def fixed(task, replicas, tp, ep, v, cut, links):
    """Returns a tuple of the costs that do not depend on the micro-batch's size. First come v, cut,
    and {Stage: the bytes of its states, as predict() gives them}. Then come five pairs (bytes,
    seconds of an all-reduce of these bytes): for the gradients, the header of the gradients, the
    tied weight, the gradients of the experts, and the header of the experts' gradients."""
    weights = {stage: costs.weights(task.shape, tp, stage) for stage in costs.stages_of(cut)}
    of_block = costs.block(task.shape, tp, 4, ep=ep).own
    states = {}
    for stage, (n, _) in weights.items():
        held = predict(n, precision=task.precision, zero=task.zero, world=replicas[0])
        if of_block:  # ZeRO does not cut experts
            own = predict(stage.blocks * of_block, precision=task.precision)
            held = {kind: held[kind] + own[kind] for kind in held}
        if waits_for_the_last(task.zero, len(cut)):
            held["gradients"] = predict(n, precision=task.precision)["gradients"]
        del held["total"]
        states[stage] = held
    elements, tensors = max(weights.values())
    width, pp = WIDTHS[task.precision][1], len(cut)
    sent = width if task.zero else 4  # data parallelism sums and sends in float32
    shared = pp > 1 and not task.zero
    tied = width * costs.ends(task.shape, tp, width)[1].matrices if shared else 0
    first_last = links["pp"]._replace(slow=min(2, links["pp"].slow))
    own = max(stage.blocks for stage in states) * of_block
    sums = (
        (elements * sent, links["dp"], replicas[0]),
        (header.n_bytes(tensors), links["dp"], replicas[0]),
        (tied, first_last, 2),
        (4 * own, links["experts"], replicas[1]),
        (8 * bool(own), links["experts"], replicas[1]))
    return v, cut, states, *[(n_bytes, net.all_reduce_s(way, n, n_bytes) if n_bytes else 0.0)
                             for n_bytes, way, n in sums]


def waits_for_the_last(zero, pp):
    """Returns True if the stage of ZeRO is 2 and the model is in a pipeline. Then a rank holds the
    gradients of all its weights until the last micro-batch of a step (pipeline.py)."""
    return zero == 2 and pp > 1


def sent(task, replicas, sizes, tokens, method, m, v, stages, gradients, header, tied, *own):
    """Returns ({axis: bytes that a rank sends in a step}, seconds of the messages along dp, seconds
    of the messages for the tied weight). gradients, header, tied, own: pairs (bytes, seconds of an
    all-reduce), which fixed() returns."""
    shape, width, (pp, tp, cp, ep) = task.shape, WIDTHS[task.precision][0], sizes
    again, kept = task.recompute, tokens * shape.width * width
    # 12: the bytes of three float32 sums, which the loss sends for each token
    summed = max(kept * ((4 + 2 * again) * stage.blocks + stage.first + stage.last)
                 + stage.last * 12 * tokens for stage in stages)
    # n_sends: the number of backwards of a step that send gradients. halves: the number of scatters
    # and gathers of a step. Each of them takes half the time of an all-reduce. ZeRO's stages 1 and
    # 2 scatter gradients once for each of these backwards, and gather weights once in a step. Stage
    # 3 scatters once and gathers twice for each backward.
    n_sends = m if task.zero == 3 or task.zero == 2 and pp == 1 else 1
    halves = 3 * n_sends if task.zero == 3 else n_sends + 1
    blocks = m * max(stage.blocks for stage in stages)
    # pp: a rank sends activations to the next rank, and gradients to the previous rank. With two
    # ranks, each rank has only one neighbour, so it sends less
    sent = {"tp": m * 2 * (tp - 1) / tp * summed, "cp": 0.0, "ep": 0.0,
            "pp": (m * (2 * v - (pp == 2)) * kept + v * HEADER_BYTES) if pp > 1 else 0,
            "dp": _mean(replicas[0]) * (halves * gradients[0] + 2 * n_sends * header[0])
            + _mean(replicas[1]) * 2 * sum(n_bytes for n_bytes, _ in own), "tied": tied[0]}
    if cp > 1:
        c = costs.block(shape, tp, width).attention // (4 * shape.context)
        if method == "ring":  # sends K and V; backward also sends their gradients in float32
            sent["cp"] = blocks * (cp - 1) * 2 * tokens * c * ((2 + again) * width + 4)
        else:  # Ulysses sends q, k, v and the result
            sent["cp"] = blocks * _mean(cp) * 4 * tokens * c * (2 + again) * width
    if shape.experts:
        k = shape.top_k
        sent["ep"] = blocks * (_mean(ep) * (4 + 2 * again) * k * kept
                               + (1 + again) * (ep - 1) * 8 * k * shape.experts)
    seconds = halves / 2 * gradients[1] + n_sends * header[1] + sum(s for _, s in own)
    return sent, seconds, tied[1]


def _mean(n):
    """Returns the fraction of an array that each of n ranks sends in a collective: a scatter or a
    gather (each is half of an all-reduce), or an all-to-all."""
    return (n - 1) / n


def seconds(task, tokens, sizes, method, links, network):
    """Returns {part: (times of a block, times of the output layer and loss, times of the
    embeddings)} for one micro-batch with `tokens` tokens on a rank. part: a name in WORK. Each of
    the three "times" is a tuple of seconds: (forward, backward for the gradients of the inputs,
    backward for the gradients of the weights). sizes: (tp, cp, ep)."""
    shape, width, again = task.shape, WIDTHS[task.precision][0], task.recompute
    tp, cp, ep = sizes
    one, (_, last) = costs.block(shape, tp, width), costs.ends(shape, tp, width)
    second = 2 * tokens * network.slowest / task.flops  # seconds for one element of a weight matrix
    x, a, y = second * one.matrices, second * one.attention / 2, second * last.matrices
    none = (0.0, 0.0, 0.0)
    parts = {"compute": ((x + a, x + 2 * a + again * (x + a), x), (y, y, y), none)}
    kept = tokens * shape.width * width
    if tp > 1:
        s = net.all_reduce_s(links["tp"], tp, kept)
        loss = sum(net.all_reduce_s(links["tp"], tp, k * 4 * tokens) for k in (1, 2))
        parts["tp"] = (2 * s, (2 + 2 * again) * s, 0.0), (loss, s, 0.0), (s, 0.0, 0.0)
    if cp > 1:
        c = one.attention // (4 * shape.context)  # this rank's columns of q
        if method == "ring":
            there, back = net.ring_attention_s(links["cp"], cp, 2 * tokens * c * width,
                                               2 * tokens * c * 4, a, 2 * a)
        else:
            there = back = sum(net.all_to_all_s(links["cp"], cp, k * tokens * c * width)
                               for k in (3, 1))
        parts["cp"] = (there, back + again * there, 0.0), none, none
    if ep > 1:
        k = shape.top_k
        rows = 2 * net.all_to_all_s(links["ep"], ep, k * kept)
        # The ranks exchange the number of rows of each expert, by an all-gather. It takes half the
        # time of an all-reduce.
        there = rows + net.all_reduce_s(links["ep"], ep, 8 * k * shape.experts * ep) / 2
        parts["ep"] = (there, rows + again * there, 0.0), none, none
    return parts


def of_stage(stage, seconds):
    """Returns {part: (F, B, W)}, the seconds of a whole stage: F for forward, B for the gradients
    of the inputs, W for the gradients of the weights. stage: a Stage. seconds: the result of the
    function seconds()."""
    return {part: tuple(stage.blocks * b + stage.last * e + stage.first * f
                        for b, e, f in zip(*of, strict=True)) for part, of in seconds.items()}
