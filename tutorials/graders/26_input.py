"""Grades work/26_input.py.   Test: tests/tutorials/test_exercises.py"""

import numpy as np

from minidl.course.grade import Wrong
from minidl.data import lengths

CASES = [(1, 5, 3), (2, 80, 4), (3, 100, 4), (4, 121, 4), (4, 7, 5), (5, 163, 3), (8, 301, 2)]
WAIT = 0.1  # share of the ranks' time. With neighbours it is 0.01 to 0.06, otherwise 0.2 to 0.6


def problem(n_batches, batch):
    """Returns (batches of samples, sorted by length; the length of each sample)."""
    rng = np.random.default_rng([n_batches, batch])
    sizes = np.sort(rng.lognormal(4, 0.5, n_batches * batch - 1).astype(int) + 1)
    names = rng.permutation(len(sizes))
    length = np.empty(len(sizes), np.int64)
    length[names] = sizes
    return [names[i : i + batch].tolist() for i in range(0, len(names), batch)], length


def dealt(module, n_batches, batch, size, seed):
    """Returns (the answer of deal, True if the batches were not changed)."""
    batches, _ = problem(n_batches, batch)
    kept = [list(b) for b in batches]
    shares = module.deal(batches, size, np.random.default_rng(seed))
    shares = [[[int(i) for i in b] for b in share] for share in shares]
    return shares, batches == kept


def grade_26a(student):
    """every sample once, equal numbers of batches on all ranks, and little waiting."""
    for size, n_batches, batch in CASES:
        orders = []
        for seed in (0, 1):
            shares, same = student.run(dealt, n_batches, batch, size, seed)
            who = f"{n_batches} batches for {size} rank{'s' * (size > 1)}"
            if not same:
                raise Wrong(f"{who}: the batches were changed. They belong to the caller: copy "
                            "them")
            _check(who, shares, size, *problem(n_batches, batch), batch)
            orders.append(shares)
        if len(shares[0]) > 12 and orders[0] == orders[1]:
            raise Wrong(f"{who}: the order does not depend on rng. The groups must come in "
                        "random order, or training sees short texts first and long texts last")
        yield f"{who}: every sample once, equal numbers of batches, little waiting"


def _check(who, shares, size, batches, length, batch):
    if len(shares) != size:
        raise Wrong(f"{who}: wanted a list for each rank; got {len(shares)} lists")
    counts = [len(share) for share in shares]
    everything = [i for share in shares for b in share for i in b]
    if len(set(everything)) < len(everything):
        raise Wrong(f"{who}: {len(everything) - len(set(everything))} samples come twice: a batch "
                    "is repeated. Cut batches in halves instead")
    if len(set(counts)) > 1:
        raise Wrong(f"{who}: the ranks have {', '.join(map(str, counts))} batches. In the last "
                    "step some ranks wait for ever. All ranks need the same number")
    if len(everything) < len(length):
        raise Wrong(f"{who}: {len(length) - len(everything)} samples are missing. Deal the batches "
                    "that are left over, too: cut batches in halves until there are enough")
    if any(not b for share in shares for b in share):
        raise Wrong(f"{who}: a rank gets an empty batch. Cut the batches with the most samples")
    longest = max(len(b) for share in shares for b in share)
    if longest > batch:
        raise Wrong(f"{who}: a batch has {longest} samples, but the longest given batch has "
                    f"{batch}: batches may be cut, not joined")
    costs = np.array([[len(b) * length[b].max() for b in step]
                      for step in zip(*shares, strict=True)])
    tallest = [[length[b].max() for b in step] for step in zip(*shares, strict=True)]
    groups = -(-len(batches) // size)
    if len(costs) > 12 and lengths.waiting(tallest) > WAIT:
        raise Wrong(f"{who}: wanted ranks to wait for the longest batch of a step in at most "
                    f"{WAIT:.0%} of their time; got {lengths.waiting(tallest):.0%}. Neighbours "
                    "belong to the same step, with the same order of groups on all ranks")
    if len(costs) > groups + 1:
        raise Wrong(f"{who}: {len(costs)} steps, but {groups} are enough: do not cut more batches "
                    "than needed")
    ups = np.diff([max(step) for step in tallest]) > 0
    if len(ups) > 12 and (ups.mean() > 0.9 or ups.mean() < 0.1):
        raise Wrong(f"{who}: the steps come in the order of their lengths. The groups must come "
                    "in random order, or training sees short texts first and long texts last")


# {exercise: {name of the mistake: (the code of the region, words that its message must have)}}
_REST = """
batches = [list(b) for b in batches]
while len(batches) % size:
    k = max(range(len(batches)), key=lambda i: len(batches[i]))
    half = (len(batches[k]) + 1) // 2
    batches[k : k + 1] = batches[k][:half], batches[k][half:]
n = len(batches) // size
"""
WRONG = {
    "26a": {
        "a block of the sorted batches for each rank": (
            _REST + "order = rng.permutation(n)\n"
            "return [[batches[r * n + k] for k in order] for r in range(size)]",
            "Neighbours belong to the same step",
        ),
        "batches in random order, not groups": (
            _REST + "order = rng.permutation(len(batches))\n"
            "return [[batches[i] for i in order[r::size]] for r in range(size)]",
            "Neighbours belong to the same step",
        ),
        "every rank draws an order of its own": (
            _REST + "return [[batches[size * g + r] for g in rng.permutation(n)]\n"
            "        for r in range(size)]",
            "the same order of groups on all ranks",
        ),
        "sorted to the end": (
            _REST + "return [batches[r::size] for r in range(size)]",
            "in the order of their lengths",
        ),
        "what is left over is not dealt": (
            "n = len(batches) // size\norder = rng.permutation(n)\n"
            "return [[batches[size * g + r] for g in order] for r in range(size)]",
            "samples are missing",
        ),
        "the last group is filled up with the first batches": (
            "batches = batches + batches[: -len(batches) % size]\n"
            "order = rng.permutation(len(batches) // size)\n"
            "return [[batches[size * g + r] for g in order] for r in range(size)]",
            "come twice",
        ),
        "the first ranks get one more": (
            "order = rng.permutation(-(-len(batches) // size))\n"
            "return [[batches[size * g + r] for g in order if size * g + r < len(batches)]\n"
            "        for r in range(size)]",
            "In the last step some ranks wait for ever",
        ),
        "empty batches fill up": (
            "batches = batches + [[]] * (-len(batches) % size)\n"
            "order = rng.permutation(len(batches) // size)\n"
            "return [[batches[size * g + r] for g in order] for r in range(size)]",
            "gets an empty batch",
        ),
    },
}
