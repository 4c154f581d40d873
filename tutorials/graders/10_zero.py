"""Grades work/10_zero.py.   Test: tests/tutorials/test_exercises.py"""

import numpy as np

from minidl import memory
from minidl.comm import chunks, simulate
from minidl.comm.ledger import Ledger
from minidl.exercise_grade import Wrong, solution

SHAPES = [(6, 10), (10, 7), (7, 7), (7, 3)]  # 60, 70, 49 and 21 elements: mostly uneven shares
WORLDS = (2, 3, 4, 5)


def grade_10a(student):
    """gather brings the whole weight, and sends (p-1)/p of its bytes."""
    for p in WORLDS:
        for shape in SHAPES[:3]:
            simulate(p, _check_gather, student, shape)
        yield f"{p} ranks, weights of 60, 70 and 49 elements: values, bytes, messages"


def _check_gather(t, student, shape):
    w = np.arange(1.0, shape[0] * shape[1] + 1).reshape(shape)
    ledger = Ledger(t)
    layer = student.Layer(ledger, w)
    for scale in (1.0, 3.0):  # the second time after an update of every share
        layer.own[...] = scale * layer.share(w)
        ledger.reset()
        layer.gather()
        who = f"rank {t.rank} of {t.size}, a weight of {w.size} elements"
        if layer.whole.shape != shape or not (layer.whole == scale * w).all():
            wrong = np.flatnonzero(layer.whole.reshape(-1) != scale * w.reshape(-1))
            owner = next(r for r in range(t.size) if layer.bounds[r + 1] > wrong[0])
            raise Wrong(f"{who}: element {wrong[0]}, of which rank {owner} has the share, is not "
                        "what that rank owns now")
        right = (t.rank + 1) % t.size
        formula = 8 * (w.size - (layer.bounds[right + 1] - layer.bounds[right]))
        if ledger.bytes_sent != formula:
            raise Wrong(f"{who} sent {ledger.bytes_sent:,} bytes; a ring all-gather sends all but "
                        f"the right neighbour's share, {formula:,}. Broadcasts and an all-reduce "
                        "bring the same elements for other bytes")


def grade_10b(student):
    """the gradients are right, every layer is gathered twice, and never are two at home."""
    gather = student.Layer.gather
    # so that 10b can be right before 10a is
    student.Layer.gather = solution(__file__).Layer.gather
    try:
        for p in WORLDS:
            simulate(p, _check_step, student)
            yield f"{p} ranks, {len(SHAPES)} layers: gradients, bytes sent, bytes at home"
    finally:
        student.Layer.gather = gather


def _check_step(t, student):
    rng = np.random.default_rng(t.size)
    weights = [rng.normal(size=shape) for shape in SHAPES]
    x, target = rng.normal(size=(t.size, 5, 6)), rng.normal(size=(t.size, 5, 3))
    ledger = Ledger(t)
    layers = [student.Layer(ledger, w) for w in weights]
    who = f"rank {t.rank} of {t.size}"
    with memory.record() as held:
        try:
            student.step(layers, x[t.rank], target[t.rank])
        except (TypeError, ValueError, AttributeError) as error:
            away = [i for i, layer in enumerate(layers) if layer.whole is None]
            raise Wrong(f"{who}: {error}. Layers {away} are away: is every layer gathered before "
                        "it is used, in backward, too?") from error
    wanted = sum(np.concatenate([g.reshape(-1) for g in _gradients(weights, x[r], target[r])])
                 for r in range(t.size)) / t.size
    at = 0
    for i, layer in enumerate(layers):
        if not hasattr(layer, "grad"):
            raise Wrong(f"{who}: layer {i} has no gradient: who calls its scatter?")
        whole = wanted[at:at + layer.bounds[-1]]
        at += layer.bounds[-1]
        if not np.allclose(layer.grad, layer.share(whole), rtol=1e-9, atol=1e-12):
            raise Wrong(f"{who}: the gradient of layer {i} is not the mean of all ranks'")
    _check_bytes(t, who, layers, ledger, held)


def _check_bytes(t, who, layers, ledger, held):
    size = lambda layer, r: chunks.size(layer.bounds[-1], t.size, r)  # noqa: E731
    gathered = ledger.count(label="ring_blocks.all_gather").bytes_sent
    formula = 2 * sum(8 * (layer.bounds[-1] - size(layer, t.rank + 1)) for layer in layers)
    at_home = [i for i, layer in enumerate(layers) if layer.whole is not None]
    if at_home:
        raise Wrong(f"{who}: after the step layers {at_home} are still at home: their weights are "
                    "held whole, as at stage 2")
    most, largest = held.most("parameters"), 8 * max(layer.bounds[-1] for layer in layers)
    if most > largest:
        raise Wrong(f"{who}: {most:,} bytes of weights were at home at once; the largest layer has "
                    f"{largest:,}, all together {8 * sum(la.bounds[-1] for la in layers):,}. Is "
                    "each freed before the next is gathered, in forward and in backward?")
    if gathered != formula:
        raise Wrong(f"{who} sent {gathered:,} bytes to gather; two gathers of every layer are "
                    f"{formula:,}: one for forward, one for backward")


def _gradients(weights, x, target):
    """By one rank on its part of the batch."""
    inputs = [x]
    for w in weights:
        inputs.append(np.tanh(inputs[-1] @ w))
    gx, gradients = 2 * (inputs[-1] - target) / target.size, []
    for w, before, y in zip(weights[::-1], inputs[-2::-1], inputs[:0:-1], strict=True):
        g = gx * (1 - y * y)
        gradients.append(before.T @ g)
        gx = g @ w.T
    return gradients[::-1]


# Lines of 10b's solution, and what is left of them where gather or free is forgotten.
USE_FORWARD = "    x = np.tanh(x @ layer.whole)\n"
KEEP_FORWARD = "    layer.gather()\n" + USE_FORWARD
FORWARD = KEEP_FORWARD + "    layer.free()\n"
USE_BACKWARD = "    gx = g @ layer.whole.T\n"
BACKWARD = "    layer.gather()\n" + USE_BACKWARD + "    layer.free()\n"

# {exercise: {name of the mistake: (what stands in the region, words of the message that it must
# get)}}
WRONG = {
    "10a": {
        "a broadcast from every owner": (
            """
from minidl.comm import tree
self.share(flat)[...] = self.own
for root in range(self.t.size):
    tree.broadcast(self.t, flat[self.bounds[root] : self.bounds[root + 1]], root)
""",
            "bring the same elements for other bytes",
        ),
        "an all-reduce of what is zero elsewhere": (
            """
flat[...] = 0
self.share(flat)[...] = self.own
ring_blocks.all_reduce(self.t, flat)
""",
            "bring the same elements for other bytes",
        ),
        "forgets to put its own share in": (
            """
flat[...] = 0
ring_blocks.all_gather(self.t, flat, self.bounds)
""",
            "is not what that rank owns now",
        ),
        "keeps the weight of the first time": (
            """
self.share(flat)[...] = self.own
if not hasattr(self, "kept"):
    self.kept = ring_blocks.all_gather(self.t, flat, self.bounds).copy()
flat[...] = self.kept
""",
            "is not what that rank owns now",
        ),
    },
    "10b": {
        "never frees": ({FORWARD: KEEP_FORWARD, BACKWARD: USE_BACKWARD}, "still at home"),
        "frees after backward only": (
            {FORWARD: KEEP_FORWARD, BACKWARD: USE_BACKWARD + "    layer.free()\n"},
            "Is each freed before the next",
        ),
        "does not gather for backward": (
            {BACKWARD: USE_BACKWARD + "    layer.free()\n"},
            "in backward, too?",
        ),
        "frees in forward, not in backward": (
            {BACKWARD: "    layer.gather()\n" + USE_BACKWARD},
            "still at home",
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
    },
}
