"""A compiler: a program of arrays becomes a list of lines, then fewer lines, then less memory.

1  Trace. The program runs once with arrays that write down every operation. Each result has a name
   of its own, %1, %2, ... The list is a program without Python: no `if`, no loop.

2  Fuse. An operation on elements alone waits for the memory: it reads an array and writes one. Two
   of them in a row write an array only to read it again. If nobody else reads it, they become one
   line, which does both to an element before it goes to the next:

       %1 = matmul x w                   %1 = matmul x w
       %2 = add %1 b           ──►       %3 = add %1 b then relu
       %3 = relu %2

3  Plan. A result must be kept from the line that makes it to the last line that reads it, its
   lifetime. Results whose lifetimes do not meet may lie at the same place of one large array. The
   largest goes first, each to the lowest place that is free during its lifetime:

       line    1  2  3  4       place           no plan can need less than what is alive at
       %1      ■  ■  .  .       0               one line. A chain needs two places, however
       %2      .  ■  ■  .       above %1        long it is
       %3      .  .  ■  ■       0

Papers: Chen et al., "TVM", 2018; Pisarchyk & Lee, "Efficient Memory Management for Deep Neural Net
Inference", 2020. The real one, minidl/infer/trace.py and minidl/infer/memory.py, adds: a check that
the program does the same for other numbers, any operation, places found by more than one order,
further rewriting, and kernels: here NumPy computes a line, and each of its steps makes an array.
"""

from collections import namedtuple

import numpy as np

OPERATIONS = {"add": np.add, "mul": np.multiply, "exp": np.exp, "matmul": np.matmul,
              "relu": lambda x: np.maximum(x, 0)}

Step = namedtuple("Step", "out operation operands shape")  # a line is a list of steps


class Traced:
    """An array with a name. An operation on it adds a line to the list of lines."""

    def __init__(self, array, name, lines):
        self.array, self.name, self.lines = array, name, lines

    def __add__(self, other):
        return record("add", self, other)

    def __mul__(self, other):
        return record("mul", self, other)

    def __matmul__(self, other):
        return record("matmul", self, other)

    def exp(self):
        return record("exp", self)

    def relu(self):
        return record("relu", self)


def record(operation, *operands):
    array = OPERATIONS[operation](*[x.array for x in operands])
    lines = operands[0].lines
    name = f"%{len(lines) + 1}"
    lines.append([Step(name, operation, [x.name for x in operands], array.shape)])
    return Traced(array, name, lines)


def trace(program, **arrays):
    """The lines of program(**arrays); the last one's result is the program's."""
    lines = []
    program(**{name: Traced(array, name, lines) for name, array in arrays.items()})
    return lines


def reads(line, name):
    return any(name in step.operands for step in line)


def is_elementwise(line):
    return all(step.operation != "matmul" for step in line)


def fuse(lines):
    """From the last line back: a line joins the only line that reads its result."""
    fused = []
    for line in reversed(lines):
        readers = [later for later in fused if reads(later, line[-1].out)]
        if (len(readers) == 1 and is_elementwise(line + readers[0])
                and line[-1].shape == readers[0][-1].shape):
            readers[0][:0] = line  # its steps go to the front
        else:
            fused.insert(0, list(line))
    return fused


def lifetimes(lines):
    """{name: (size, the line that makes it, the last line that reads it)}."""
    found = {}
    for i, line in enumerate(lines):
        made = line[-1]
        last = max([j for j, later in enumerate(lines) if reads(later, made.out)],
                   default=len(lines))  # the program's result is kept to the end
        found[made.out] = int(np.prod(made.shape)), i, last
    return found


def plan(lifetimes):
    """{name: where it begins}, and the size of the whole."""
    place = {}
    for name in sorted(lifetimes, key=lambda name: -lifetimes[name][0]):
        size, first, last = lifetimes[name]
        taken = [(place[other], place[other] + lifetimes[other][0]) for other in place
                 if first <= lifetimes[other][2] and lifetimes[other][1] <= last]
        at = 0
        for begin, end in sorted(taken):
            if at + size <= begin:
                break  # the gap is large enough
            at = max(at, end)
        place[name] = at
    return place, max(place[name] + lifetimes[name][0] for name in place)


def run(lines, place, size, **arrays):
    """The program's result; every line writes its result to its place of one array."""
    memory = np.empty(size)
    known = dict(arrays)
    for line in lines:
        inside = {}  # the results of this line's steps: not in the memory
        for step in line:
            operands = [inside[x] if x in inside else known[x] for x in step.operands]
            inside[step.out] = OPERATIONS[step.operation](*operands)
        at = place[step.out]
        known[step.out] = memory[at:at + inside[step.out].size].reshape(step.shape)
        known[step.out][...] = inside[step.out]
    return known[step.out]


if __name__ == "__main__":
    def program(x, w, b):
        h = (x @ w + b).relu()
        h = (h @ w + b).relu()
        return h @ w + b

    arrays = {"x": np.ones((1, 2)), "w": np.eye(2), "b": np.array([0.0, 1.0])}
    lines = trace(program, **arrays)
    print(len(lines), "lines,", sum(size for size, *_ in lifetimes(lines).values()), "numbers")
    lines = fuse(lines)
    place, size = plan(lifetimes(lines))
    for line in lines:
        print(line[-1].out, "at", place[line[-1].out], "=", " then ".join(
            " ".join([step.operation, *step.operands]) for step in line))
    print(len(lines), "lines,", size, "numbers, result", run(lines, place, size, **arrays))
