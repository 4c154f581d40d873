"""Grades work/11_zero.py.   Test: tests/tutorials/test_exercises.py"""

from unittest.mock import patch

import numpy as np

from minidl import memory
from minidl.comm import Ledger, chunks, ring_blocks, simulate
from minidl.course.grade import Wrong, apart

SEED = 0  # `minidl check --student NAME` sets another one for each student

SHAPES = [(6, 10), (10, 7), (7, 7), (7, 3)]  # 60, 70, 49 and 21 elements: mostly uneven shares
WORLDS = (2, 3, 4, 5)
SCALES = (1.0, 3.0)  # the second gather comes after an update of every share


def personal(draw):
    """Returns the worlds, with one more that differs for each student."""
    return {"WORLDS": (*WORLDS, int(draw.integers(6, 9)))}


def weight(shape):
    return np.arange(1.0, shape[0] * shape[1] + 1).reshape(shape)


def gathered(module, p, shape):
    """Returns for each rank and each of SCALES (whole weight, bytes sent, True if `own` is a view).

    `own` must not be a view of the whole weight."""
    def body(t):
        w, ledger, results = weight(shape), Ledger(t), []
        layer = module.Layer(ledger, w)
        for scale in SCALES:
            layer.own[...] = scale * layer.share(w)
            ledger.reset()
            layer.gather()
            view = np.shares_memory(layer.own, layer.whole)
            results.append((layer.whole.copy(), ledger.bytes_sent, view))
        return results

    return simulate(p, body)


def grade_11a(student):
    """gather returns the whole weight, and sends (p-1)/p of its bytes."""
    for p in WORLDS:
        for shape in SHAPES[:3]:
            for rank, results in enumerate(student.run(gathered, p, shape)):
                for scale, result in zip(SCALES, results, strict=True):
                    _check_gather(p, rank, scale * weight(shape), *result)
        yield f"{p} ranks, weights of 60, 70 and 49 elements: values, bytes, messages"


def _check_gather(p, rank, wanted, whole, n_bytes, view):
    bounds = chunks.bounds(wanted.size, p)
    who = f"rank {rank} of {p}, a weight of {wanted.size} elements"
    if whole.shape != wanted.shape or not (whole == wanted).all():
        wrong = np.flatnonzero(whole.reshape(-1) != wanted.reshape(-1))
        owner = next(r for r in range(p) if bounds[r + 1] > wrong[0])
        raise Wrong(f"{who}: element {wrong[0]} is in the share of rank {owner}. Its value is not "
                    "what that rank owns now. Does each rank put its own share into its place? Are "
                    "all shares sent to all ranks?")
    if view:
        raise Wrong(f"{who}: after gather self.own is a view of the whole weight, so free() cannot "
                    "free its memory. Copy self.own into flat, and do not assign to self.own")
    right = (rank + 1) % p
    formula = 8 * (wanted.size - (bounds[right + 1] - bounds[right]))
    if n_bytes != formula:
        raise Wrong(f"{who} sent {n_bytes:,} bytes; a ring all-gather sends all but the right "
                    f"neighbour's share, {formula:,}. Broadcasts or an all-reduce bring the same "
                    "elements but send other bytes")


def _problem(p):
    """Returns (weights, x of every rank, target of every rank)."""
    rng = np.random.default_rng(SEED + p)
    weights = [rng.normal(size=shape) for shape in SHAPES]
    return weights, rng.normal(size=(p, 5, 6)), rng.normal(size=(p, 5, 3))


def stepped(module, p):
    """Runs step(). Returns for each rank a dict with these keys:

    grads       the layers' shares of the gradient; None if a layer has none
    at_home     the layers that are still whole after the step
    most        the largest number of bytes of whole weights at one time
    gathered    bytes sent by all-gathers"""
    weights, x, target = _problem(p)

    def body(t):
        ledger = Ledger(t)
        layers = [module.Layer(ledger, w) for w in weights]
        with memory.record() as held:
            try:
                module.step(layers, x[t.rank], target[t.rank])
            except ValueError as error:
                raise Wrong(f"rank {t.rank} of {p}: {error}. Two shapes do not match. In backward, "
                            "is x the output of the layer, and `before` its input?") from error
            except (TypeError, AttributeError) as error:
                away = [i for i, layer in enumerate(layers) if layer.whole is None]
                raise Wrong(f"rank {t.rank} of {p}: {error}. Layers {away} are not gathered. Do "
                            "you gather every layer before you use it, in backward too?") from error
        return {"grads": [getattr(layer, "grad", None) for layer in layers],
                "at_home": [i for i, layer in enumerate(layers) if layer.whole is not None],
                "most": held.most("parameters"),
                "gathered": ledger.count(label="ring_blocks.all_gather").bytes_sent}

    with patch.object(module.Layer, "gather", _gather):  # 11b can be right before 11a is
        return simulate(p, body)


def _gather(layer):
    flat = np.empty(layer.bounds[-1], layer.own.dtype)
    memory.note(flat, "parameters")
    layer.share(flat)[...] = layer.own
    layer.whole = ring_blocks.all_gather(layer.t, flat, layer.bounds).reshape(layer.shape)


def grade_11b(student):
    """the gradients are right; every layer is gathered twice; two layers are never whole."""
    for p in WORLDS:
        weights, x, target = _problem(p)
        of_rank = [_gradients(weights, x[r], target[r]) for r in range(p)]
        means = [sum(gs) / p for gs in zip(*of_rank, strict=True)]
        for rank, result in enumerate(student.run(stepped, p)):
            _check_step(p, rank, result, means)
        yield f"{p} ranks, {len(SHAPES)} layers: gradients, bytes sent, bytes held"


def _check_step(p, rank, result, means):
    who, formula = f"rank {rank} of {p}", 0
    for i, (got, mean) in enumerate(zip(result["grads"], means, strict=True)):
        if got is None:
            raise Wrong(f"{who}: layer {i} has no gradient. Do you call its scatter?")
        bounds = chunks.bounds(mean.size, p)
        share = mean.reshape(-1)[bounds[rank] : bounds[rank + 1]]
        if got.shape != share.shape or not np.allclose(got, share, rtol=1e-9, atol=1e-12):
            raise Wrong(f"{who}: the gradient of layer {i} is not the mean over the ranks")
        formula += 2 * 8 * (mean.size - chunks.size(mean.size, p, rank + 1))
    if result["at_home"]:
        raise Wrong(f"{who}: after the step layers {result['at_home']} are still whole. Stage 2 "
                    "holds them, stage 3 must free them")
    largest, all_of_them = 8 * max(m.size for m in means), 8 * sum(m.size for m in means)
    if result["most"] > largest:
        raise Wrong(f"{who}: {result['most']:,} bytes of whole weights were held at once. The "
                    f"largest layer has {largest:,}, all together {all_of_them:,}. Is each freed "
                    "before the next one is gathered, in forward and in backward?")
    if result["gathered"] != formula:
        kept = (". Did you keep a copy of a weight between the two?" if result["gathered"] < formula
                else ". The gradient of a weight needs no weight")
        raise Wrong(f"{who} sent {result['gathered']:,} bytes to gather. Two gathers of every "
                    f"layer send {formula:,}: one for forward, one for backward{kept}")


def _gradients(weights, x, target):
    """Returns the gradients of one rank, on its part of the batch."""
    inputs = [x]
    for w in weights:
        inputs.append(np.tanh(inputs[-1] @ w))
    gx, gradients = 2 * (inputs[-1] - target) / target.size, []
    for w, before, y in zip(weights[::-1], inputs[-2::-1], inputs[:0:-1], strict=True):
        g = gx * (1 - y * y)
        gradients.append(before.T @ g)
        gx = g @ w.T
    return gradients[::-1]


# -- 11c

LENGTHS = (1, 3, 60, 49)  # some have fewer elements than ranks


def adam_steps(module, p, n):
    """Does three steps. Returns for each rank (w, m, v, bytes sent in the last step)."""
    w0, gradients = _adam_problem(p, n)

    def body(t):
        ledger, own = Ledger(t), chunks.size(n, p, t.rank)
        w, m, v = w0.copy(), np.zeros(own), np.zeros(own)
        for k in (1, 2, 3):
            ledger.reset()
            module.sharded_adam(ledger, w, gradients[k - 1, t.rank].copy(), m, v, k)
        return w, m, v, ledger.bytes_sent

    return simulate(p, body)


def _adam_problem(p, n):
    rng = np.random.default_rng([SEED, p, n])
    return rng.normal(size=n), rng.normal(size=(3, p, n))


def _adam(w, gradients, mean=True, corrected=True, eps_in_root=False):
    """Returns (w, m, v) after three steps of Adam on one rank. The gradient is the mean over the
    ranks, or their sum if `mean` is False."""
    w, m, v = w.copy(), 0.0, 0.0
    for k, by_rank in enumerate(gradients, 1):
        g = by_rank.mean(axis=0) if mean else by_rank.sum(axis=0)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        c1, c2 = (1 - 0.9**k, 1 - 0.999**k) if corrected else (1, 1)
        root = np.sqrt(v / c2 + 1e-8) if eps_in_root else np.sqrt(v / c2) + 1e-8
        w -= 1e-3 * m / c1 / root
    return w, m, v


def grade_11c(student):
    """each rank updates its share by the mean gradient; then all ranks have all weights."""
    for p in WORLDS:
        for n in LENGTHS:
            w0, gradients = _adam_problem(p, n)
            wanted = _adam(w0, gradients)
            bounds = chunks.bounds(n, p)
            results = student.run(adam_steps, p, n)
            for rank, (w, m, v, _) in enumerate(results):
                who = f"rank {rank} of {p}, {n} weights"
                share = slice(bounds[rank], bounds[rank + 1])
                _check_means(who, m, v, share, wanted, gradients, rank)
                _check_weights(who, w, share, w0, wanted, gradients)
            for rank, (*_, sent) in enumerate(results):
                formula = ring_blocks.bytes_sent(bounds, 8, rank, n_scatters=1, n_gathers=1)
                if sent != formula:
                    raise Wrong(f"rank {rank} of {p}, {n} weights: it sent {sent:,} bytes. "
                                "A reduce-scatter of the gradient and an "
                                f"all-gather of the weights send {formula:,}, as one all-reduce "
                                "does. Do you all-reduce a whole gradient?")
        yield f"{p} ranks, {len(LENGTHS)} lengths, three steps: weights, m, v, bytes sent"


def _check_means(who, m, v, share, wanted, gradients, rank):
    _, wanted_m, wanted_v = wanted
    if m.shape != wanted_m[share].shape or v.shape != m.shape:
        raise Wrong(f"{who}: m and v must have its share's shape, {wanted_m[share].shape}; "
                    f"got {m.shape}")
    if m.size and not m.any():
        raise Wrong(f"{who}: m is still zero. `m = ...` makes a new array that the caller does not "
                    "see. Write into m: m[:] = ... or m += ...")
    if _close(m, wanted_m[share]) and _close(v, wanted_v[share]):
        return
    _, m_of_sum, _ = _adam(np.zeros_like(wanted_m), gradients, mean=False)
    _, m_alone, _ = _adam(np.zeros_like(wanted_m), gradients[:, rank:rank + 1])
    if _close(m, m_of_sum[share]):
        hint = "it is computed from the sum over the ranks. Divide by the number of ranks"
    elif _close(m, m_alone[share]):
        hint = "it is computed from this rank's own gradient. reduce_scatter returns the sum of all"
    elif _close(m, wanted_m[share]):
        raise Wrong(f"{who}: m is right, but v is not: v = beta2 v + (1 - beta2) g^2")
    else:
        hint = "m = beta1 m + (1 - beta1) g, with the mean gradient of this rank's share"
    raise Wrong(f"{who}: m is wrong: {hint}")


def _check_weights(who, w, share, w0, wanted, gradients):
    wanted_w, *_ = wanted
    wrong = ~np.isclose(w, wanted_w, rtol=0, atol=1e-12)  # steps of 1e-3, in float64
    if not wrong.any():
        return
    at = int(np.flatnonzero(wrong)[0])
    uncorrected, *_ = _adam(w0, gradients, corrected=False)
    if not wrong[share].any():
        hint = ("Its own share is right, the other shares are old: all-gather w to bring them"
                if _close(w[wrong], w0[wrong]) else "Its own share is right, the others are not")
    elif _close(w, uncorrected):
        hint = "m and v start at 0: divide them by 1 - beta1^k and 1 - beta2^k"
    elif _close(w[share], w0[share]):
        hint = "This rank's share has not changed: w[bounds[rank] : bounds[rank + 1]] -= ..."
    elif _close(w, 2 * w0 - wanted_w):
        hint = "The step goes the wrong way: subtract it"
    elif np.allclose(w, _adam(w0, gradients, eps_in_root=True)[0], rtol=0, atol=1e-12):
        hint = "eps is under the square root. Add eps to the root: sqrt(v / (1 - beta2^k)) + eps"
    else:
        hint = "w -= lr * m / (1 - beta1^k) / (sqrt(v / (1 - beta2^k)) + eps)"
    right, is_now = apart(wanted_w[at], w[at])
    raise Wrong(f"{who}: w[{at}] should be {right}, is {is_now}. {hint}")


def _close(got, wanted):
    return np.allclose(got, wanted, rtol=1e-9, atol=1e-12)


# Lines of 11b's solution, and the lines that remain if gather or free is forgotten.
USE_FORWARD = "    x = np.tanh(x @ layer.whole)\n"
KEEP_FORWARD = "    layer.gather()\n" + USE_FORWARD
FORWARD = KEEP_FORWARD + "    layer.free()\n"
USE_BACKWARD = "    gx = g @ layer.whole.T\n"
BACKWARD = "    layer.gather()\n" + USE_BACKWARD + "    layer.free()\n"

# {exercise: {name of the mistake: (the code of the region, words that its message must have)}}
WRONG = {
    "11a": {
        "a broadcast from every owner": (
            """
from minidl.comm import tree
self.share(flat)[...] = self.own
for root in range(self.t.size):
    tree.broadcast(self.t, flat[self.bounds[root] : self.bounds[root + 1]], root)
""",
            "bring the same elements but send other bytes",
        ),
        "an all-reduce of what is zero elsewhere": (
            """
flat[...] = 0
self.share(flat)[...] = self.own
ring_blocks.all_reduce(self.t, flat)
""",
            "bring the same elements but send other bytes",
        ),
        "forgets to put its own share in": (
            """
flat[...] = 0
ring_blocks.all_gather(self.t, flat, self.bounds)
""",
            "what that rank owns now",
        ),
        "keeps the weight of the first time": (
            """
self.share(flat)[...] = self.own
if not hasattr(self, "kept"):
    self.kept = ring_blocks.all_gather(self.t, flat, self.bounds).copy()
flat[...] = self.kept
""",
            "what that rank owns now",
        ),
    },
    "11b": {
        "never frees": ({FORWARD: KEEP_FORWARD, BACKWARD: USE_BACKWARD}, "are still whole"),
        "frees after backward only": (
            {FORWARD: KEEP_FORWARD, BACKWARD: USE_BACKWARD + "    layer.free()\n"},
            "Is each freed before the next",
        ),
        "does not gather for backward": (
            {BACKWARD: USE_BACKWARD + "    layer.free()\n"},
            "in backward too?",
        ),
        "frees in forward, not in backward": (
            {BACKWARD: "    layer.gather()\n" + USE_BACKWARD},
            "are still whole",
        ),
        "gathers all before it starts": (
            {"\ninputs = []\n": "\ninputs = []\nfor layer in layers:\n    layer.gather()\n",
             FORWARD: USE_FORWARD, BACKWARD: USE_BACKWARD + "    layer.free()\n"},
            "Is each freed before the next",
        ),
        "gathers a layer for each product": (
            {BACKWARD: "    layer.gather()\n    layer.free()\n" + BACKWARD},
            "one for forward, one for backward",
        ),
        "x stays the output of the last layer": (
            {BACKWARD + "    x = before\n": BACKWARD}, "`before` its input?",
        ),
    },
    "11c": {
        "the sum in place of the mean": ({" / t.size\nm[:]": "\nm[:]"}, "computed from the sum"),
        "its own gradient": (
            {"ring_blocks.reduce_scatter(t, gradient, bounds) / t.size": "gradient[mine]"},
            "this rank's own gradient",
        ),
        "no all-gather": ({"ring_blocks.all_gather(t, w, bounds)": ""}, "the other shares are old"),
        "m is a new array": ({"m[:] = ": "m = "}, "Write into m"),
        "no bias correction": (
            {" / (1 - beta1**k)": "", " / (1 - beta2**k)": ""}, "divide them by 1 - beta1^k",
        ),
        "v without the square": ({"g**2": "abs(g)"}, "m is right, but v is not"),
        "an all-reduce first": (
            {"ring_blocks.reduce_scatter(t, gradient, bounds) / t.size":
             "ring_blocks.all_reduce(t, gradient)[mine] / t.size"},
            "Do you all-reduce a whole gradient?",
        ),
        "the step is added": ({"w[mine] -=": "w[mine] +="}, "the wrong way"),
        "eps under the root": (
            {"(np.sqrt(v / (1 - beta2**k)) + eps)": "np.sqrt(v / (1 - beta2**k) + eps)"},
            "eps is under the square root",
        ),
    },
}
