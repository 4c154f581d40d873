"""C text for operations on elements: what a chain, or the steps after a product, become.

    then relu(.)  then add(., %3)        float v0 = x < 0.0f ? 0.0f : x;
                                         float v1 = v0 + in_3;

The expressions come from @minidl.fuse (minidl/cuda/fuse.py). A few are added here, for which it has
no gradient.   Test: tests/infer/test_lower.py
"""

import math

import numpy as np

from minidl.cuda.fuse import OPS

# {0} {1}: operands; attributes by their names. NaN goes through relu, maximum and minimum, as it
# does through NumPy's.
EXPRESSIONS = {name: text for name, (text, _) in OPS.items()} | {
    "relu": "({0} < 0.0f ? 0.0f : {0})",
    "maximum": "({0} > {1} || {0} != {0} ? {0} : {1})",
    "minimum": "({0} < {1} || {0} != {0} ? {0} : {1})",
    "silu": "{0} / (1.0f + expf(-{0}))",
    "leaky_relu": "({0} < 0.0f ? {0} * {negative_slope} : {0})",
}
BY_APPROXIMATE = {"none": "gelu_normal({0})", "tanh": "gelu_tanh({0})"}


def expression(op, attributes, operands):
    """The C expression of an operation, or None where there is none. operands: C texts; a number is
    a number."""
    if not all(isinstance(x, str) or type(x) in (int, float) and math.isfinite(x)
               for x in operands):
        return None
    if op == "pow":
        base, exponent = operands
        if type(exponent) is not str and exponent == 0.5:
            return f"sqrtf({base})"
        if type(base) is not str or exponent not in (1, 2, 3, 4):
            return None
        return f"({' * '.join([base] * int(exponent))})"
    text = BY_APPROXIMATE.get(attributes.get("approximate")) if op == "gelu" else (
        EXPRESSIONS.get(op))
    if text is None:
        return None
    numbers = {k: literal(v) for k, v in attributes.items() if isinstance(v, float)}
    if op != "gelu" and attributes.keys() - numbers.keys() - {"name"}:
        return None
    return text.format(*(x if isinstance(x, str) else literal(x) for x in operands), **numbers)


def is_elementwise(op, attributes, operands, dtype):
    """Whether an operation on these operands (any but numbers stand for arrays) has C text."""
    return dtype == np.float32 and expression(op, attributes, [
        x if type(x) in (int, float) else "x" for x in operands]) is not None


def literal(x):
    """A number as C's float."""
    text = repr(float(x))
    return f"({text}f)" if text[0] == "-" else f"{text}f"


def lines(steps, own, loads):
    """([C statements], the name of the last result). own: the C name of what the node made; loads:
    {number of an input: C expression that reads its element}."""
    names, used = {-1: own}, sorted({x[1] for s in steps for x in s.operands
                                     if isinstance(x, tuple) and x[0] == "in"})
    text = [f"const float in_{i} = {loads[i]};" for i in used]
    for k, step in enumerate(steps):
        operands = [x if not isinstance(x, tuple) else f"in_{x[1]}" if x[0] == "in"
                    else names[x[1]] for x in step.operands]
        text.append(f"const float v{k} = {expression(step.op, step.attributes, operands)};")
        names[k] = f"v{k}"
    return text, names[len(steps) - 1]


def operand(i, value, shape):
    """C text that reads element `at` of `shape`, in its last dimension `col`, of the node's input
    i; None where that takes more than one of these two. value: with a shape."""
    if value.array is not None and value.array.size == 1:
        return literal(value.array.item()) if math.isfinite(value.array.item()) else None
    if value.shape == tuple(shape):
        return f"e{i}[at]"
    if shape and value.shape[-1:] == shape[-1:] and math.prod(value.shape) == shape[-1]:
        return f"e{i}[col]"
    return None
