"""A memory plan: results of a program that are not needed at the same time share memory.

A line of a program makes one result. A line is one operation, or several operations that were fused
(page compiler). The result must be kept from the line that makes it to the last line that reads it.
These lines are the lifetime of the result. Two results whose lifetimes do not overlap may use the
same place in one large array:

    line                  1  2  3  4      size    place
    %1 = ...              ■  ■  .  .      400     0
    %2 = ... %1           .  ■  ■  .      200     400
    %3 = ... %2           .  .  ■  ■      300     0
    %4 = ... %3           .  .  .  ■      100     300

At each line, add up the sizes of the results that are alive. Every plan needs at least the largest
of these sums. Here it is 600, at line 2. In a chain of any length, only two results are alive at a
time.

The best plan is hard to find in general. A simple rule mostly gives a plan that is nearly as good.
It places the largest result first. It puts each result at the lowest place that is free during the
whole lifetime of the result.

Paper: Pisarchyk & Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020.
This page is the plain version. The real one, minidl/infer/memory.py, adds: a rule that puts a
result into the smallest gap that fits, and not into the lowest; several orders of the results,
until a plan needs no more than the largest of the sums; and places that begin at a cache line of
the processor.
"""

import numpy as np

from minidl.plain import compiler


def lifetimes(lines):
    """Returns {name: (size, the line that makes it, the last line that reads it)}
    for each result of the program."""
    found = {}
    for i, line in enumerate(lines):
        made = line[-1]  # the last step of the line; other lines read only its result
        readers = [j for j, later in enumerate(lines) if compiler.reads(later, made.out)]
        last = max(readers, default=len(lines))  # no line reads the program's result
        found[made.out] = int(np.prod(made.shape)), i, last
    return found


def meet(one, other):
    """Returns True if the two lifetimes have a line in common."""
    _, first, last = one
    _, other_first, other_last = other
    return first <= other_last and other_first <= last


def plan(lifetimes):
    """Returns {name: the place in the large array where the result begins}, and the size of this
    array."""
    place = {}
    for name in sorted(lifetimes, key=lambda name: -lifetimes[name][0]):
        size = lifetimes[name][0]
        taken = sorted((place[other], place[other] + lifetimes[other][0]) for other in place
                       if meet(lifetimes[name], lifetimes[other]))
        at = 0
        for begin, end in taken:
            if at + size <= begin:
                break  # the gap before `begin` is large enough
            at = max(at, end)
        place[name] = at
    return place, max(place[name] + lifetimes[name][0] for name in place)


def bound(lifetimes):
    """Adds up, at each line, the sizes of the results that are alive. Returns the largest of these
    sums."""
    return max(sum(size for size, first, last in lifetimes.values() if first <= line <= last)
               for _, line, _ in lifetimes.values())


def run(lines, place, size, **arrays):
    """Returns the program's result, and copies every line's result to its place.

    If the plan gives one place to two results that are needed at the same time, the program's
    result is wrong."""
    memory = np.empty(size)
    known = dict(arrays)
    for line in lines:
        made = line[-1]
        result = compiler.run([line], **known)
        known[made.out] = memory[place[made.out]:][:result.size].reshape(made.shape)
        known[made.out][...] = result
    return known[made.out]


if __name__ == "__main__":
    def program(x, w, b):
        for _ in range(4):
            x = (x @ w + b).relu()
        return x

    arrays = {"x": np.ones((1, 2)), "w": np.eye(2), "b": np.array([0.0, 1.0])}
    lines = compiler.fuse(compiler.trace(program, **arrays))
    place, size = plan(lifetimes(lines))
    for line in lines:
        print("at", place[line[-1].out], compiler.text(line))
    total = sum(size for size, _, _ in lifetimes(lines).values())
    print(total, "numbers without sharing,", size, "with it:", run(lines, place, size, **arrays))
