"""Autograd: a program that computes a number also computes the derivatives of that number.

    y = a * b + a            a ──┬─► mul ──► add ──► y
                             b ──┘            ▲
                             a ───────────────┘

    forward     every operation makes a Tensor, which remembers its parents and a rule. The rule
                takes g, the gradient of the result, and returns the gradient of each parent. The
                rule of a * b returns g * b and g * a
    backward    goes from y back to a and b. A Tensor has its turn only after all Tensors that were
                computed from it. Then its gradient is complete: the gradients that reach it on
                several paths have been added. That is the chain rule.

The rules compute with Tensors, too. So a gradient is a Tensor that remembers how it was computed. A
gradient has a gradient, too: grad(grad(y)) is the second derivative.

Source: Griewank & Walther, "Evaluating Derivatives", 2008.
The real one, minidl/function.py and minidl/backward.py, adds: gradients in `x.grad`, memory that is
freed while backward runs, any dtype, a GPU, hooks, and no recursion. The rules of the real one
compute with arrays and not with Tensors. That is faster and needs less memory, but it gives no
second derivatives.
"""

import numpy as np


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
        return Tensor(a.array + b.array, [a, b], lambda g: [sum_to(g, a), sum_to(g, b)])

    def __mul__(a, b):
        b = tensor(b)
        return Tensor(a.array * b.array, [a, b], lambda g: [sum_to(g * b, a), sum_to(g * a, b)])

    def __matmul__(a, b):
        b = tensor(b)
        return Tensor(a.array @ b.array, [a, b],
                      lambda g: [sum_to(g @ b.swap(), a), sum_to(a.swap() @ g, b)])

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

    def sum(a, axis=None):  # the summed axes are kept, with length 1. The rule uses expand
        return Tensor(a.array.sum(axis, keepdims=True), [a], lambda g: [g.expand(a.array.shape)])

    def expand(a, shape):
        return Tensor(np.broadcast_to(a.array, shape), [a], lambda g: [sum_to(g, a)])

    def reshape(a, *shape):
        return Tensor(a.array.reshape(shape), [a], lambda g: [g.reshape(*a.array.shape)])

    def transpose(a, *axes):  # argsort(axes) is the order that undoes `axes`
        return Tensor(a.array.transpose(axes), [a], lambda g: [g.transpose(*np.argsort(axes))])

    def __getitem__(a, index):
        return Tensor(a.array[index], [a], lambda g: [g.put(index, a.array.shape)])

    # Makes zeros, and adds the array of `a` at `index`. An index may occur twice.
    def put(a, index, shape):
        array = np.zeros(shape)
        np.add.at(array, index, a.array)
        return Tensor(array, [a], lambda g: [g[index]])

    # The methods below call the ones above.
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
    """Sums g over the axes along which x was broadcast. The result has the shape of x.

    A number that was used several times gets the sum of its gradients."""
    new = g.array.ndim - x.array.ndim
    axes = tuple(i for i, length in enumerate(g.array.shape)
                 if i < new or length > x.array.shape[i - new])
    return g.sum(axes).reshape(*x.array.shape) if axes else g


def order(y, seen=None):
    """Returns y and all Tensors that y was computed from, each after its parents."""
    seen = {} if seen is None else seen  # its keys keep their order
    for parent in y.parents:
        if parent not in seen:
            order(parent, seen)
    seen[y] = True
    return list(seen)


def grad(y, inputs):
    """Returns the gradient of y, a single number, with respect to each Tensor of `inputs`."""
    gradient = {y: Tensor(np.ones(y.array.shape))}
    for node in reversed(order(y)):
        if node.parents:
            for parent, g in zip(node.parents, node.rule(gradient[node])):
                gradient[parent] = gradient[parent] + g if parent in gradient else g
    return [gradient[x] for x in inputs]


if __name__ == "__main__":
    x = Tensor(2.0)
    y = x**4
    first, = grad(y, [x])
    second, = grad(first, [x])
    print(y.array, first.array, second.array)
