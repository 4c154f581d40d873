"""Grades work/06_memory.py.   Test: tests/tutorials/test_exercises.py"""

import itertools

import numpy as np

import minidl
from minidl import memory, nn
from minidl.course.grade import Wrong
from minidl.memory.recompute import recompute_sequential

SEED = 0  # `minidl check --student NAME` sets another one for each student

# (widths of the layers, bytes of the best cut into segments)
WIDTHS = [([4, 4, 64, 128, 64, 4], 13056),
          ([16, 128, 64, 8, 64, 64], 17408),
          ([64, 4, 4, 128, 96, 4, 32], 20736),
          ([8, 64, 8, 64, 8, 64], 9728)]


def chosen(module, sizes, budget):
    segments = module.choose_segments(sizes, budget)
    if segments is None:
        return None
    return [(int(start), int(stop), bool(again)) for start, stop, again in segments]


def grade_06a(student):
    """The segments fit the budget by the ledger, and run as few layers twice as possible."""
    for widths, least in WIDTHS:
        sizes = [4 * 16 * width for width in widths]
        for budget in (least, (least + sum(sizes)) // 2, sum(sizes)):
            _fits(student, widths, sizes, budget, least)
        yield f"widths {', '.join(map(str, widths))}: the least budget, a middle one, all"
    if student.run(chosen, [4, 4, 4], 7) is not None:
        raise Wrong("two layers of 4 bytes hold at least 8 bytes. For a budget of 7 return None")
    yield "a budget that nothing fits"
    for widths, least in WIDTHS:
        sizes = [4 * 16 * width for width in widths]
        for budget in (least, (least + sum(sizes)) // 2, sum(sizes)):
            _fewest(student.run(chosen, sizes, budget), sizes, budget)
    yield "no other cut runs fewer layers twice"


def _named(sizes, budget):
    return f"layers whose inputs are {sizes[:-1]} bytes, the result {sizes[-1]}, budget {budget}"


def _fits(student, widths, sizes, budget, least):
    segments, named = student.run(chosen, sizes, budget), _named(sizes, budget)
    if segments is None:
        why = ("do you try all cuts: segments of any length, kept and recomputed ones mixed?"
               if student.run(chosen, sizes, budget + 1) is None else
               "the peak may be equal to the budget: use <=, not <")
        raise Wrong(f"{named}: got None, but there is a cut that holds {least} bytes: {why}")
    layers = [i for start, stop, _ in segments for i in range(start, stop)]
    if layers != list(range(len(widths) - 1)):
        raise Wrong(f"{named}: {segments} must contain every layer once, in order")
    peak = _peak_by_ledger(widths, segments)
    if peak > budget:
        raise Wrong(f"{named}: at its peak {segments} holds {peak} bytes, counted by the ledger. "
                    "That is more than the budget")


# >>> reference
def _fewest(segments, sizes, budget):
    twice = sum(stop - start for start, stop, again in segments if again)
    least = min(sum(b - a for a, b, again in cut if again) for cut in _all_cuts(len(sizes) - 1)
                if _peak_bytes(sizes, cut) <= budget)
    if twice != least:
        raise Wrong(f"{_named(sizes, budget)}: {segments} runs {twice} layers twice, but {least} "
                    "are enough. Of all cuts whose peak is at most the budget, return a cut that "
                    "runs the fewest layers twice")


def _peak_bytes(sizes, segments):
    """Returns the largest number of bytes held at one time, by the formula of the exercise."""
    n, held, peak = len(sizes) - 1, 0, 0
    for start, stop, again in segments:
        result = sizes[n] if again or stop < n else 0
        peak = max(peak, held + sum(sizes[start : stop + 1]) + result)
        held += sizes[start] if again else sum(sizes[start:stop])
    return peak


def _all_cuts(n):
    for inner in itertools.product((False, True), repeat=n - 1):
        ends = [0, *(i + 1 for i, cut in enumerate(inner) if cut), n]
        pairs = list(itertools.pairwise(ends))
        for flags in itertools.product((False, True), repeat=len(pairs)):
            yield [(a, b, again) for (a, b), again in zip(pairs, flags, strict=True)]
# <<<


def _peak_by_ledger(widths, segments):
    """Returns the peak on a chain of layers tanh(W x), counted with the library's recompute."""
    minidl.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(a, b, bias=False), nn.Tanh())
              for a, b in itertools.pairwise(widths)]
    x = minidl.Tensor(minidl.Generator(SEED + 1).normal(16, widths[0]), requires_grad=True)
    with memory.record() as ledger:
        y = x
        for start, stop, again in segments:
            part = layers[start:stop]
            y = recompute_sequential(part, y, 1) if again else nn.Sequential(*part)(y)
        y.backward(np.ones(y.shape, np.float32))
    return ledger.most("activations") + x.array.nbytes


def trained(module, p, k, scale):
    """Returns ([gradients of x and the parameters], the next random numbers of the generator).

    If `module` is None, runs without recompute."""
    minidl.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(12, 12), nn.Tanh(), nn.Dropout(p)) for _ in range(4)]
    x = minidl.Tensor(minidl.Generator(SEED + 1).normal(8, 12), requires_grad=True)
    minidl.manual_seed(7)
    y = x
    for a in range(0, 4, 4 // k):
        part = layers[a : a + 4 // k]
        y = module.recompute(part, y) if module else nn.Sequential(*part)(y)
    minidl.rand(3)  # the loss or the next batch also draws numbers
    y.backward(scale * minidl.Generator(SEED + 2).normal(*y.shape))
    parameters = [q for layer in layers for q in layer.parameters()]
    return [x.grad, *(q.grad for q in parameters)], minidl.rand(3).tolist()


def grade_06b(student):
    """Backward runs the block again with the same random numbers, and gives the same bits."""
    for what, p in (("no dropout", 0.0), ("dropout in every layer", 0.5)):
        for k in (1, 2, 4):
            got, later = student.run(trained, p, k, 1.0)
            plain, after = trained(None, p, k, 1.0)
            _same(plain, got, f"{what}, {k} segments", p)
            if after != later:
                raise Wrong(f"{what}, {k} segments: the random numbers after backward differ from "
                            "a run without recompute. Set the generator back to its old state")
        yield f"{what}: gradients of x and all parameters, 1, 2 and 4 segments; the generator"
    _same(trained(None, 0.5, 2, 3.0)[0], student.run(trained, 0.5, 2, 3.0)[0], "3 times gy", 0.5)
    yield "another gradient gy"


def _same(plain, got, what, p):
    for i, (wanted, g) in enumerate(zip(plain, got, strict=True)):
        name = "x" if i == 0 else f"parameter {i - 1}"
        if g is None:
            raise Wrong(f"{what}: {name} has no gradient")
        wanted, g = np.asarray(wanted), np.asarray(g)
        if not np.array_equal(wanted, g):
            hint = ("Does the block get the same random numbers, and gy?" if p else
                    "There is no dropout here: does gy reach the block? Is each gradient counted "
                    "only once?")
            if wanted.shape == g.shape and np.allclose(g, 2 * wanted):
                hint = ("It is twice the right one: minidl.grad returns the gradients, and "
                        "something else added them too (backward())")
            raise Wrong(f"{what}: the gradient of {name} must be equal, bit for bit, to the "
                        f"gradient without recompute. The largest difference is "
                        f"{np.abs(wanted - g).max():.3g}. {hint}")


# {exercise: {name of the mistake: (the code of the region, words that its message must have)}}
_SEARCH = """
n, best = len(sizes) - 1, (len(sizes), None)

def peak_of(segments):
    held = peak = 0
    for start, stop, again in segments:
        peak = max(peak, {peak})
        held += {held}
    return peak

def extend(segments, twice):
    nonlocal best
    start = segments[-1][1] if segments else 0
    if start == n and twice < best[0] and peak_of(segments) <= budget:
        best = twice, segments
    for stop in range(start + 1, n + 1):
        extend([*segments, (start, stop, False)], twice)
        extend([*segments, (start, stop, True)], twice + stop - start)

extend([], 0)
return best[1]
"""

WRONG = {
    "06a": {
        "the root of n equal segments": (
            """
n = len(sizes) - 1
k = round(n ** 0.5)
return [(i * n // k, (i + 1) * n // k, True) for i in range(k)]
""",
            "by the ledger",
        ),
        "forgets what earlier segments hold": (
            _SEARCH.format(peak="sum(sizes[start : stop + 1])", held="0"),
            "by the ledger",
        ),
        "forgets what is inside while backward is there": (
            _SEARCH.format(peak="held + sizes[start]", held="sizes[start]"),
            "by the ledger",
        ),
        "recomputes always": (
            """
n = len(sizes) - 1
for k in range(1, n + 1):
    segments = [(i * n // k, (i + 1) * n // k, True) for i in range(k)]
    if peak_bytes(sizes, segments) <= budget:
        return segments
return [(i, i + 1, True) for i in range(n)]
""",
            "by the ledger",
        ),
        "the first that fits": (
            """
n = len(sizes) - 1
for stop in range(n + 1):
    segments = [(0, stop, True)] * (stop > 0) + [(i, i + 1, False) for i in range(stop, n)]
    if peak_bytes(sizes, segments) <= budget:
        return segments
return None
""",
            "are enough",
        ),
        "leaves the last layer out": (
            """
n = len(sizes) - 1
return [(0, n - 1, False)]
""",
            "every layer once",
        ),
    },
    "06b": {
        "forgets the dropout seed": (
            {"now = self.generator.get_state()\nself.generator.set_state(self.place)\n": "",
             "self.generator.set_state(now)\n": ""},
            "the same random numbers",
        ),
        "leaves the generator where the replay ended": (
            {"self.generator.set_state(now)\n": ""},
            "back to its old state",
        ),
        "forgets gy": (
            {"self.block(x)\n": "self.block(x).sum()\n",
             "[x, *self.leaves], [gy]": "[x, *self.leaves], [None]"},
            "does gy reach the block",
        ),
        "no gradients for the parameters": (
            {"minidl.grad([y], [x, *self.leaves], [gy])\n":
              "(*minidl.grad([y], [x], [gy]), *[None] * len(self.leaves))\n"},
            "has no gradient",
        ),
        "a new seed for every replay": (
            {"self.generator.set_state(self.place)\n": "minidl.manual_seed(0)\n"},
            "back to its old state",
        ),
    },
}
