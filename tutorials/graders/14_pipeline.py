"""Grades work/14_pipeline.py.   Test: tests/tutorials/test_exercises.py"""

import numpy as np

import minidl
from minidl import nn
from minidl.comm import simulate
from minidl.course.grade import Wrong
from minidl.nn import functional as F
from minidl.parallel.model import schedule
from minidl.parallel.model.pipeline import Pipeline
from minidl.parallel.model.schedule import Do

SEED = 0  # `minidl check --student NAME` sets another one for each student

SIZES = [(4, 6), (3, 8), (2, 2), (5, 3), (4, 1), (1, 4)]  # (ranks, micro-batches)


def personal(draw):
    """Returns SIZES with one more case, drawn for this student."""
    return {"SIZES": [*SIZES, tuple(map(int, draw.integers((2, 1), (6, 10))))]}


def ordered(module, p, m):
    """Returns the parts of each stage as plain pairs (kind, micro-batch)."""
    return [[(str(kind), int(i)) for kind, i in module.order(s, p, m)] for s in range(p)]


def grade_14a(student):
    """every part once, p - s micro-batches held, no deadlock, 1F1B's time, GPipe's gradients."""
    for p, m in SIZES:
        stages = student.run(ordered, p, m)
        for s, parts in enumerate(stages):
            _check_stage(s, p, m, parts)
        _check_together(p, m, stages)
        yield f"{p} ranks, {m} micro-batches: each part once, held, time, gradients"


def _check_stage(s, p, m, parts):
    who = f"stage {s} of {p}, m = {m}"
    for kind, name in (("F", "forwards"), ("B", "backwards")):
        found = [i for k, i in parts if k == kind]
        if sorted(found) != list(range(m)):
            raise Wrong(f"{who}: wanted the {name} of micro-batches 0 to {m - 1}, each once; got "
                        f"{found}. {_written(parts)}")
        if found != list(range(m)):
            raise Wrong(f"{who}: the {name} come in the order {found}. Begin with 0 and go up: "
                        "the neighbours send and take them from 0 on")
    if len(parts) != 2 * m:
        raise Wrong(f"{who}: wanted only parts ('F', i) and ('B', i); got {parts}")
    for i in range(m):
        if parts.index(("B", i)) < parts.index(("F", i)):
            raise Wrong(f"{who}: B{i} comes before F{i}, but B{i} needs the activations of F{i}. "
                        f"{_written(parts)}")
    live = most = 0
    for kind, _ in parts:
        live += 1 if kind == "F" else -1
        most = max(most, live)
    limit = min(p - s, m)
    if most == m > limit:
        raise Wrong(f"{who}: all {m} micro-batches are held at a time, as in GPipe. 1F1B holds "
                    f"p - s = {limit}. {_written(parts)}")
    if most > limit:
        raise Wrong(f"{who}: {most} micro-batches are held at a time, but 1F1B holds p - s = "
                    f"{limit}. Only p - s - 1 forwards come alone. The next forward belongs to "
                    f"the first pair of a forward and a backward. {_written(parts)}")
    if most < limit:
        raise Wrong(f"{who}: the first backward comes after {_first(parts)} forwards. Do {limit} "
                    "forwards before it, because the ranks behind wait for them: p - s - 1 "
                    f"forwards alone, then the forward of the first pair. {_written(parts)}")


def _check_together(p, m, stages):
    made = [[Do(kind, s, i) for kind, i in parts] for s, parts in enumerate(stages)]
    try:
        schedule.check(made)
    except ValueError as error:
        raise Wrong(f"p = {p}, m = {m}: these orders do not fit together: {error}") from error
    took = schedule.makespan(schedule.timeline(made))
    if took > 3 * (m + p - 1) + 1e-9:
        raise Wrong(f"p = {p}, m = {m}: a step takes {took:g} F, but 1F1B takes {3 * (m + p - 1)} "
                    f"F, if B = 2 F. {_written(stages[0])} In the middle, one forward and one "
                    "backward follow each other in turn")
    if _gradients(made) != _gradients(schedule.gpipe(p, m)):
        raise Wrong(f"p = {p}, m = {m}: the gradients are not bit for bit equal to GPipe's")


def _gradients(parts):
    """Returns the gradients of a chain of layers as bytes. Each stage has one layer."""
    m = schedule.n_micro(parts)

    def loss(y, target):
        return F.mse_loss(y, minidl.tensor(target))

    def rank(t):
        minidl.manual_seed(0)
        pipe = Pipeline(t, [nn.Linear(3, 3) for _ in range(t.size)], loss, parts)
        pipe.step(*np.random.default_rng(SEED + m).normal(size=(2, 2 * m, 3)).astype(np.float32))
        return b"".join(p.grad.array.tobytes() for p in pipe.parameters())

    return simulate(len(parts), rank)


def _first(parts):
    """Returns how many parts come before the first backward."""
    return [kind for kind, _ in parts].index("B")


def _written(parts):
    return f"The order is {' '.join(f'{kind}{i}' for kind, i in parts)}."


# Lines of the solution.
AHEAD = "ahead = min(p - s - 1, m)\n"
PAIR = 'parts += [("F", ahead + i), ("B", i)]\n'
LAST = 'return parts + [("B", i) for i in range(m - ahead, m)]'

WRONG = {
    "14a": {
        "one forward too many": ({AHEAD: "ahead = min(p - s, m)\n"},
                                 "p - s - 1 forwards come alone"),
        "counted from the other end": ({AHEAD: "ahead = min(s, m)\n"}, "p - s"),
        "not limited by m": ({AHEAD: "ahead = p - s - 1\n"}, "each once"),
        "GPipe": ({AHEAD: "ahead = m\n"}, "as in GPipe"),
        "no forwards ahead": ({AHEAD: "ahead = 0\n"}, "the ranks behind wait for them"),
        "the last backwards are forgotten": ({LAST: "return parts"},
                                             "the backwards of micro-batches"),
        "newest first": ({LAST: 'return parts + [("B", i) for i in reversed(range(m - ahead, m))]'},
                         "come in the order"),
        "backward of what comes in": (
            {PAIR: 'parts += [("B", ahead + i), ("F", ahead + i)]\n',
             LAST: 'return parts + [("B", i) for i in range(ahead)]'},
            "the neighbours send and take them from 0 on"),
    },
}
