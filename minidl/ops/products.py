"""Products of vectors and of batches of matrices, by the ops of matmul.py and elementwise.py.

    bmm     (b, n, k), (b, k, m) -> (b, n, m)    y[i] = x[i] @ other[i]
    dot     (n,), (n,)           -> ()           y = sum over i of x[i] other[i]
    outer   (n,), (m,)           -> (n, m)       y[i, j] = x[i] other[j]

`matmul` can also compute the first two. These functions accept no other shapes, so they find a
mistake earlier.
Test: tests/ops/test_matmul.py
"""

from minidl.ops.elementwise import mul
from minidl.ops.matmul import MatMul, same_dtype
from minidl.ops.shape import unsqueeze


def bmm(input, mat2):
    """Returns y[i] = input[i] @ mat2[i] for a batch of matrices: (b, n, k), (b, k, m) -> (b, n, m).
    The batches are not broadcast."""
    a, b = tuple(input.shape), tuple(mat2.shape)
    if len(a) != 3 or len(b) != 3 or a[0] != b[0] or a[2] != b[1]:
        raise ValueError(f"bmm: shapes {a} and {b}; want (b, n, k) and (b, k, m), with the same b "
                         "and k. Use matmul to broadcast the batches")
    same_dtype("bmm", input, mat2, "input", "mat2")
    return MatMul.apply(input, mat2)


def dot(input, other):
    """Returns a 0-d tensor: the sum of input[i] * other[i]. The two vectors must have the same
    length."""
    if len(input.shape) != 1 or input.shape != other.shape:
        raise ValueError(f"dot: shapes {tuple(input.shape)} and {tuple(other.shape)}; want two "
                         "vectors of one length; for other shapes use (a * b).sum()")
    same_dtype("dot", input, other)
    return MatMul.apply(input, other)


def outer(input, vec2):
    """Returns (n, m): the product of every element of the first vector with every element of the
    second."""
    if len(input.shape) != 1 or len(vec2.shape) != 1:
        raise ValueError(f"outer: shapes {tuple(input.shape)} and {tuple(vec2.shape)}; want two "
                         "vectors")
    return mul(unsqueeze(input, 1), vec2)
