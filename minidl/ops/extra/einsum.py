"""einsum: a sum of products. A string names the dimensions by letters.

    einsum("ij,jk->ik", a, b)      y[i, k] = sum over j of a[i, j] b[j, k]: a matrix product
    einsum("bhqd,bhkd->bhqk", q, k)          attention's scores
    einsum("ii->i", a)                       the diagonal

Letters that are not in the result are summed over. The operands are multiplied from left to right,
two at a time. Each pair is one batch of matrix products. If both operands have a letter that is
needed later, this letter is a dimension of the batch. If both operands have a letter that is not
needed later, the product sums over this letter. A letter of only one operand is a dimension of the
rows or the columns. So einsum uses permute, reshape and matmul, which have gradients.
Source: Einstein 1916 (the convention); NumPy's einsum (the string).
Test: tests/ops/extra/test_einsum.py
"""

import functools

import numpy as np

from minidl import backend
from minidl.ops.extra.rearrange import diagonal
from minidl.ops.matmul import MatMul
from minidl.tensor import wrapped


def einsum(equation, *operands):
    """Returns the sum of products that `equation` describes. "..." stands for dimensions that
    broadcast. Raises ValueError if the equation does not fit the operands."""
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = operands[0]
    operands = [wrapped(x) for x in operands]
    inputs, result = letters(equation, [x.ndim for x in operands])
    dtype = functools.reduce(backend.promote_types, [x.dtype for x in operands])
    operands = [x.to(dtype) for x in operands]
    pairs = [_diagonals(x, names) for x, names in zip(operands, inputs, strict=True)]
    sizes = {}
    for x, names in pairs:
        for name, n in zip(names, x.shape, strict=True):
            if sizes.setdefault(name, n) != n:
                if 1 not in (n, sizes[name]):
                    raise ValueError(f"einsum: {equation!r}: dimension {_shown(name)} has size "
                                     f"{sizes[name]} and size {n}; want the same size")
                sizes[name] = max(n, sizes[name]) if 0 not in (n, sizes[name]) else 0
    (y, names), *rest = pairs
    while rest:
        other, *rest = rest
        later = set(result).union(*(n for _, n in rest))
        y, names = _product(y, names, *other, later)
    y, names = _summed(y, names, result)
    y = y.permute([names.index(name) for name in result]) if names else y
    return y.expand([sizes[name] for name in result]) if result else y


def letters(equation, n_dims):
    """Returns (names of the operands, names of the result). Each operand has a list with one name
    for each dimension. A name is a letter. For a dimension in "...", the name is a negative number:
    -1 is the last of these dimensions."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(n_dims):
        raise ValueError(f"einsum: {equation!r} wants {len(terms)} operands; got {len(n_dims)}")
    inputs = [_names(term, n, equation) for term, n in zip(terms, n_dims, strict=True)]
    hidden = sorted({name for names in inputs for name in names if isinstance(name, int)})
    if arrow:
        before, dots, after = right.partition("...")
        result = [*before, *(hidden if dots else ()), *after]
    else:  # the result has the letters that occur only once, in sorted order
        once = sorted(c for c in set(left) if c.isalpha() and left.count(c) == 1)
        result = [*hidden, *once]
    known = {name for names in inputs for name in names}
    if len(set(result)) < len(result) or not set(result) <= known:
        raise ValueError(f"einsum: {equation!r}: each letter of the result must occur only once in "
                         "the result, and must also occur in an operand")
    return inputs, result


def _names(term, n_dims, equation):
    before, dots, after = term.partition("...")
    n_hidden = n_dims - len(before) - len(after)
    if n_hidden < 0 or (n_hidden and not dots) or not (before + after + "a").isalpha():
        raise ValueError(f"einsum: {equation!r}: the operand of {term!r} has {n_dims} dimensions; "
                         "want one letter for each dimension, or '...' for several dimensions")
    return [*before, *range(-n_hidden, 0), *after]


def _shown(name):
    return repr(name) if isinstance(name, str) else f"{name} of '...'"


def _diagonals(x, names):
    """Returns (x, names) without repeated letters. If an operand has a letter twice, x becomes the
    diagonal of these two dimensions."""
    names = list(names)
    for name in set(names):
        while names.count(name) > 1:
            i = names.index(name)
            j = names.index(name, i + 1)
            x = diagonal(x, 0, i, j)
            del names[j], names[i]
            names.append(name)
    return x, names


def _summed(x, names, wanted):
    """Sums x over all dimensions that are not in `wanted`. Returns (x, names) without these
    dimensions."""
    gone = tuple(i for i, name in enumerate(names) if name not in wanted)
    if not gone:
        return x, names
    return x.sum(gone), [name for name in names if name in wanted]


def _product(a, a_names, b, b_names, later):
    """Returns (product, names) of two operands. Sums over all dimensions that are not in `later`,
    the names that are still needed."""
    a, a_names = _summed(a, a_names, later.union(b_names))
    b, b_names = _summed(b, b_names, later.union(a_names))
    if a.dtype != b.dtype:  # _summed has changed the integers of one operand into int64
        a, b = (x.to(backend.promote_types(a.dtype, b.dtype)) for x in (a, b))
    both = [name for name in a_names if name in b_names]
    sizes = {**dict(zip(b_names, b.shape)), **dict(zip(a_names, a.shape))}
    for name in both:  # a size of 1 is broadcast to the size in the other operand
        sizes[name] = np.broadcast_shapes(a.shape[a_names.index(name)],
                                          b.shape[b_names.index(name)])[0]
    batch = [name for name in both if name in later]
    inner = [name for name in both if name not in later]
    rows = [name for name in a_names if name not in both]
    columns = [name for name in b_names if name not in both]

    def matrices(x, names, first, second):
        order = [*batch, *first, *second]
        x = x.permute([names.index(name) for name in order]) if order else x
        x = x.expand([sizes[name] for name in order])
        return x.reshape([*(sizes[n] for n in batch), _size(sizes, first), _size(sizes, second)])

    left, right = matrices(a, a_names, rows, inner), matrices(b, b_names, inner, columns)
    y = MatMul.apply(left, right) if inner else left * right
    names = [*batch, *rows, *columns]
    return y.reshape([sizes[name] for name in names]), names


def _size(sizes, names):
    return int(np.prod([sizes[name] for name in names], dtype=np.int64))
