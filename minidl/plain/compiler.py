"""A compiler: a program on arrays becomes a list of lines, and then a shorter list.

1  Trace. The program runs once, with special arrays. An operation on such an array is written into
   a list, as a line. Each result has its own name: %1, %2, ... The list has no `if` and no loop: it
   shows what the program did this time.

2  Fuse. An operation on elements, such as relu, reads an array and writes an array. So the memory
   limits its speed. If a second such operation follows, it reads the array that the first operation
   has written. If no other line reads this array, the two lines become one. The new line does both
   operations on one element, then goes to the next element:

       %1 = matmul x w                   %1 = matmul x w
       %2 = add %1 b           ──►       %2 = add %1 b; %3 = relu %2
       %3 = relu %2

   A matmul needs a whole row and a whole column for each number of its result. So it remains a
   separate line.

A chain of s operations on an array of K bytes moves 2 s K bytes before fusing, and 2 K bytes after
fusing.

Papers: Chen et al., "TVM: An Automated End-to-End Optimizing Compiler for Deep Learning", 2018;
Frostig, Johnson & Leary, "Compiling machine learning programs via high-level tracing", 2018.
This page is the plain version. The real one, minidl/infer/trace.py and
minidl/infer/passes/chain.py, adds: a check that the program does the same for other numbers, every
operation of a model, and kernels. On this page NumPy still makes an array for every step of a line.
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
    """Computes the operation, and adds it to the list as a new line. Returns the result."""
    array = OPERATIONS[operation](*[x.array for x in operands])
    lines = operands[0].lines
    name = f"%{len(lines) + 1}"
    lines.append([Step(name, operation, [x.name for x in operands], array.shape)])
    return Traced(array, name, lines)


def trace(program, **arrays):
    """Returns the lines of program(**arrays). The last line computes the program's result."""
    lines = []
    program(**{name: Traced(array, name, lines) for name, array in arrays.items()})
    return lines


def reads(line, name):
    return any(name in step.operands for step in line)


def is_elementwise(line):
    return all(step.operation != "matmul" for step in line)


def fuse(lines):
    """Returns fewer lines. Goes from the last line to the first.

    A line is joined with the line that reads its result under three conditions. No other line reads
    this result, both lines are elementwise, and both results have the same shape. Then both lines
    visit the same elements."""
    fused = []
    for line in reversed(lines):
        readers = [later for later in fused if reads(later, line[-1].out)]
        if (len(readers) == 1 and is_elementwise(line + readers[0])
                and line[-1].shape == readers[0][-1].shape):
            readers[0][:0] = line  # puts the line's steps before the reader's steps
        else:
            fused.insert(0, list(line))
    return fused


def run(lines, **arrays):
    """Returns the program's result for other arrays of the same shapes."""
    known = dict(arrays)
    for line in lines:
        inside = {}  # the results of this line's steps; later lines can read only the last one
        for step in line:
            operands = [inside[x] if x in inside else known[x] for x in step.operands]
            inside[step.out] = OPERATIONS[step.operation](*operands)
        known[line[-1].out] = inside[line[-1].out]
    return known[lines[-1][-1].out]


def text(line):
    return "; ".join(" ".join([step.out, "=", step.operation, *step.operands]) for step in line)


if __name__ == "__main__":
    def program(x, w, b):
        h = (x @ w + b).relu()
        return (h * h).exp() + h

    arrays = {"x": np.ones((1, 2)), "w": np.eye(2), "b": np.array([-1.0, -2.0])}
    lines = trace(program, **arrays)
    print(len(lines), "lines; after fusing:")
    for line in fuse(lines):
        print(text(line))
    print("the result", run(fuse(lines), **arrays))
