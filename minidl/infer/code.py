"""Writes C text for elementwise operations: for a chain, and for the steps after a product.

    then relu(.)  then add(., %3)        float v0 = x < 0.0f ? 0.0f : x;
                                         float v1 = v0 + in_3;

In the list of steps, "." stands for the result of the step before. The expressions come from
@minidl.fuse (minidl/cuda/fuse.py). This file adds a few expressions that @minidl.fuse does not
have, because it has no gradient for them.   Test: tests/infer/test_lower.py
"""

import math

import numpy as np

from minidl.cuda.fuse import OPS

# {operation: C expression}. {0} and {1} stand for operands, and {name} stands for an attribute.
# relu, maximum and minimum of NaN are NaN, as in NumPy.
EXPRESSIONS = {name: text for name, (text, _) in OPS.items()} | {
    "relu": "({0} < 0.0f ? 0.0f : {0})",
    "maximum": "({0} > {1} || {0} != {0} ? {0} : {1})",
    "minimum": "({0} < {1} || {0} != {0} ? {0} : {1})",
    "silu": "{0} / (1.0f + expf(-{0}))",
    "leaky_relu": "({0} < 0.0f ? {0} * {negative_slope} : {0})",
}
BY_APPROXIMATE = {"none": "gelu_normal({0})", "tanh": "gelu_tanh({0})"}


def expression(op, attributes, operands):
    """Returns the C expression of an operation, or None if this file has no expression for it.
    operands: C texts (str) or numbers."""
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
    """Returns True if the function `expression` can write the operation in C for these operands. An
    operand that is not a number counts as an array."""
    return dtype == np.float32 and expression(op, attributes, [
        x if type(x) in (int, float) else "x" for x in operands]) is not None


def literal(x):
    """Returns a number as a C float literal."""
    text = repr(float(x))
    return f"({text}f)" if text[0] == "-" else f"{text}f"


def lines(steps, own, loads):
    """Writes a node's steps in C. Returns ([C statements], the C variable with the last result).

    own: the C variable with the result of the node's own operation.
    loads: {number of an input: the C expression that reads an element of this input}."""
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
    """Returns C text that reads one element of the node's input i. This element is the operand for
    one element of the result. In the C text, `at` is the index of the result's element, and `col`
    is its index in the last dimension. Returns None if the input needs another index, or is
    infinite or NaN. value: the Value of the input. shape: the shape of the result."""
    if value.array is not None and value.array.size == 1:
        return literal(value.array.item()) if math.isfinite(value.array.item()) else None
    if value.shape == tuple(shape):
        return f"e{i}[at]"
    if shape and value.shape[-1:] == shape[-1:] and math.prod(value.shape) == shape[-1]:
        return f"e{i}[col]"
    return None
