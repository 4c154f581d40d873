"""Computes an operator's operations and bytes from its shapes: the two numbers of the roofline.

The plain form, for one product, explains the roofline: minidl/plain/profile.py.

    a product (m, k) @ (k, n)      2 m n k operations          forward
    each gradient of a factor      2 m n k operations          backward
    attention                      2 products forward, 5 backward (it computes the scores again).
                                   causal: only pairs of a query and a key that this query may see
    all others                     0 operations, because memory limits their speed

Bytes are the sizes of the arrays that an operator reads and writes. Each input and each output
counts once, as if the cache held all intermediate arrays. An operator needs at least
max(operations / peak, bytes / bandwidth) seconds.

Source: Williams, Waterman & Patterson, "Roofline" (2009); Dao et al. 2022, appendix B.
Test: tests/profile/test_flops.py   Used by: summary.py   peak and bandwidth: peaks.py
"""

from math import prod


def operations(name, phase, detail):
    """Returns the exact number of floating-point operations of one call of an operator.

    name: the operator's name. phase: "forward" or "backward". detail: the tuple from
    instrument.py."""
    shapes, out, needs, causal = detail
    inputs = [x[0] for x in shapes if x is not None]
    if name == "self_attention":
        batch, length, width = inputs[0]
        return _attention(batch, length, length, width // 3, width // 3, causal, phase)
    if name == "scaled_dot_product_attention":
        (*lead, length, e), (*_, n_keys, _), (*_, ev) = inputs[:3]
        heads = prod(out[:-2]) if out else prod(lead)
        return _attention(heads, length, n_keys, e, ev, causal, phase)
    if name in ("matmul", "linear"):
        one = 2 * prod(out) * inputs[0][-1]
    elif name == "conv2d":  # w has shape (out, in / groups, height, width)
        one = 2 * prod(out) * prod(inputs[1][1:])
    elif name == "conv_transpose2d":
        one = 2 * prod(inputs[0]) * prod(inputs[1][1:])
    elif name in ("rnn", "lstm", "gru"):  # a step multiplies states (N, H) by w (gates * H, H)
        w = [shape for shape in inputs if len(shape) == 2][-1]
        one = 2 * prod(inputs[0][:2]) * prod(w)
        return one if phase == "forward" else 2 * one
    else:
        return 0
    return one if phase == "forward" else one * sum(map(bool, needs[:2]))


def _attention(n, length, n_keys, e, ev, causal, phase):
    """Returns the number of operations for n matrices of scores. Each matrix is (length, n_keys): a
    row for each query, a column for each key.

    e: the number of elements of a query or a key. ev: the number of elements of a value. causal: if
    True, query i sees only the keys 0 to i."""
    seen = min(length, n_keys)
    pairs = seen * (seen + 1) // 2 + (length - seen) * n_keys if causal else length * n_keys
    return 2 * n * pairs * (e + ev if phase == "forward" else 3 * e + 2 * ev)


def n_bytes(phase, detail):
    """Returns the total size, in bytes, of the arrays that the operator reads and writes. phase,
    detail: as in `operations`."""
    shapes, out, needs, _ = detail
    sizes = [prod(x[0]) * x[1].itemsize if x is not None else 0 for x in shapes]
    made = prod(out) * max((x[1].itemsize for x in shapes if x is not None), default=4)
    if phase == "forward":
        return sum(sizes) + made
    return sum(sizes) + made + sum(size for size, need in zip(sizes, needs) if need)


def dtype_of(detail):
    """Returns 'float64' if an input is float64. Else returns the name of the first floating dtype
    among the inputs. Returns None if no input is floating."""
    names = [x[1].name for x in detail[0] if x is not None and x[1].kind in "fV"]
    return "float64" if "float64" in names else next(iter(names), None)
