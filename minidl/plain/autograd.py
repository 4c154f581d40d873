"""Autograd: a program that computes a number also computes the derivatives of that number.

    y = a * b + a            a = 2 ──┬─► mul = 6 ──► add = 8 ──► y
                             b = 3 ──┘                ▲
                             a = 2 ───────────────────┘

    forward     every operation makes a Tensor, which remembers its parents and a rule. The rule
                takes g, the gradient of the result, and returns the gradient of each parent. The
                rule of a * b returns g * b and g * a
    backward    goes from y back to a and b. A Tensor has its turn only after all Tensors that were
                computed from it. Then its gradient is complete: the gradients that reach it on
                several paths have been added. That is the chain rule.

The rules compute with Tensors, too. So a gradient is a Tensor that remembers how it was computed. A
gradient has a gradient, too: grad(grad(y)) is the second derivative.

Source: Griewank & Walther, "Evaluating Derivatives", 2008.
This page is the plain version. The real one, minidl/function.py and minidl/backward.py, adds:
gradients in `x.grad`, memory that is freed while backward runs, any dtype, a GPU, hooks, and no
recursion. The rules of minidl's operations compute with arrays and not with Tensors. That is faster
and needs less memory, but it gives no second derivatives.
"""

import numpy as np


def order(y):
    """Returns a list of y and all Tensors from which y was computed, parents before children."""
    seen, ordered = set(), []

    def visit(node):
        seen.add(node)  # so every node is visited once
        for parent in node.parents:
            if parent not in seen:
                visit(parent)
        ordered.append(node)

    visit(y)
    return ordered


def grad(y, inputs):
    """Returns a list: the gradients of y with respect to the Tensors of `inputs`. y is a single
    number. A gradient is a Tensor with the shape of its input."""
    gradient = {y: Tensor(np.ones(y.array.shape))}
    for node in reversed(order(y)):  # y is the first, and each Tensor comes before its parents
        if node.parents:
            for parent, g in zip(node.parents, node.rule(gradient[node])):
                g = sum_to(g, parent)  # changes nothing if g has the shape of `parent`
                if parent in gradient:  # `parent` already has a gradient from another path
                    g = gradient[parent] + g
                gradient[parent] = g
    return [gradient[x] for x in inputs]


class Tensor:
    """An array that remembers how it was computed.

    parents: the Tensors from which this Tensor was computed. rule(g) returns the gradient of each
    parent, if g is the gradient of this Tensor."""
    def __init__(self, array, parents=(), rule=None):
        self.array = np.asarray(array, float)
        self.parents = parents
        self.rule = rule

    def __add__(a, b):
        b = tensor(b)
        return Tensor(a.array + b.array, [a, b], lambda g: [g, g])

    def __mul__(a, b):
        b = tensor(b)
        return Tensor(a.array * b.array, [a, b], lambda g: [g * b, g * a])

    # Each operation returns Tensor(array, parents, rule).
    def __matmul__(a, b):
        b = tensor(b)
        return Tensor(a.array @ b.array, [a, b], lambda g: [g @ b.swap(), a.swap() @ g])

    def __pow__(a, n):
        return Tensor(a.array**n, [a], lambda g: [g * a**(n - 1) * n])

    def exp(a):
        y = Tensor(np.exp(a.array), [a], lambda g: [g * y])
        return y

    def log(a):
        return Tensor(np.log(a.array), [a], lambda g: [g / a])

    def tanh(a):
        y = Tensor(np.tanh(a.array), [a], lambda g: [g * (1 - y * y)])
        return y

    def relu(a):
        return Tensor(np.maximum(a.array, 0), [a], lambda g: [g * (a.array > 0)])

    def sum(a, axis=None):  # keeps the summed axes, with length 1
        return Tensor(a.array.sum(axis, keepdims=True), [a], lambda g: [g.expand(a.array.shape)])

    def expand(a, shape):
        return Tensor(np.broadcast_to(a.array, shape), [a], lambda g: [g])

    def reshape(a, *shape):
        return Tensor(a.array.reshape(shape), [a], lambda g: [g.reshape(*a.array.shape)])

    def transpose(a, *axes):  # transposing by argsort(axes) undoes this
        return Tensor(a.array.transpose(axes), [a], lambda g: [g.transpose(*np.argsort(axes))])

    def __getitem__(a, index):
        return Tensor(a.array[index], [a], lambda g: [g.put(index, a.array.shape)])

    # Adds `a` to an array of zeros, at the places `index`. If a place occurs twice, adds twice.
    def put(a, index, shape):
        array = np.zeros(shape)
        np.add.at(array, index, a.array)
        return Tensor(array, [a], lambda g: [g[index]])

    # The operations from here on call the operations above, so they need no rule.
    def swap(a):  # transposes each matrix of a stack
        *stack, row, column = range(a.array.ndim)
        return a.transpose(*stack, column, row)

    def __neg__(a):
        return a * -1

    def __sub__(a, b):
        return a + -tensor(b)

    def __rsub__(a, b):
        return tensor(b) - a

    def __truediv__(a, b):
        return a * tensor(b)**-1

    __radd__ = __add__
    __rmul__ = __mul__


def tensor(x):
    return x if isinstance(x, Tensor) else Tensor(x)


def sum_to(g, x):
    """Returns g, summed over the axes along which NumPy repeated x. The result has the shape of x.

    A number that NumPy repeated was used several times. It gets the sum of its gradients."""
    new = g.array.ndim - x.array.ndim  # how many axes g has that x does not have
    axes = tuple(i for i, length in enumerate(g.array.shape)
                 if i < new or length > x.array.shape[i - new])
    return g.sum(axes).reshape(*x.array.shape) if axes else g


if __name__ == "__main__":
    a, b = Tensor(2.0), Tensor(3.0)
    y = a * b + a
    ga, gb = grad(y, [a, b])
    print("y = a * b + a:", y.array)
    print("dy/da = b + 1:", ga.array)  # a gets the gradient b from mul, and 1 from add
    print("dy/db = a:    ", gb.array)

    x = Tensor(2.0)
    y = x**4
    first, = grad(y, [x])
    second, = grad(first, [x])
    print("x^4:", y.array, " its derivative:", first.array, " its second one:", second.array)
