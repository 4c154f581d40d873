"""Makes one kernel from a chain of elementwise ops. The user writes no CUDA.

    @minidl.fuse
    def gate(x, y, b):                     reads x, y, b once, writes one result, and
        return (x + b).sigmoid() * y       moves 16 bytes an element. Separate ops move 36

    print(gate.source)                     the generated .cu, forward and backward

minidl calls the function once, with symbols instead of Tensors. Each operation on a symbol becomes
one line of the forward kernel. The backward kernel first has the same lines. Then it has, in
reverse order, a line with the local derivative of each operation. So only the inputs are saved. The
list of operations is a tape, as in backward.py. But backward.py writes its tape while a program
runs, and fuse writes it once, when it makes the kernel.

If kernels cannot run (minidl/cuda/dispatch.py), the function itself runs on Tensors, op by op.
Test: tests/cuda/test_fuse.py
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING

import numpy as np

from minidl import backend
from minidl.cuda import dispatch
from minidl.cuda.launch import contiguous, elementwise
from minidl.function import Function
from minidl.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from minidl.hints import Fused

# {name: (C expression of the result, C expressions of the gradients, one for each operand)}.
# {0} and {1} are the operands, {y} is the result, {g} is the gradient of the result.
OPS = {
    "add": ("{0} + {1}", ("{g}", "{g}")),
    "sub": ("{0} - {1}", ("{g}", "-{g}")),
    "mul": ("{0} * {1}", ("{g} * {1}", "{g} * {0}")),
    "div": ("{0} / {1}", ("{g} / {1}", "-{g} * {y} / {1}")),
    "neg": ("-{0}", ("-{g}",)),
    "abs": ("fabsf({0})", ("{g} * (float)(({0} > 0.0f) - ({0} < 0.0f))",)),
    "exp": ("expf({0})", ("{g} * {y}",)),
    "log": ("logf({0})", ("{g} / {0}",)),
    "sqrt": ("sqrtf({0})", ("{g} * 0.5f / {y}",)),
    "rsqrt": ("rsqrtf({0})", ("{g} * -0.5f * {y} * {y} * {y}",)),
    "tanh": ("tanhf({0})", ("{g} * (1.0f - {y} * {y})",)),
    "sigmoid": ("1.0f / (1.0f + expf(-{0}))", ("{g} * {y} * (1.0f - {y})",)),
    "relu": ("{0} > 0.0f ? {0} : 0.0f", ("{0} > 0.0f ? {g} : 0.0f",)),
    # If the two operands are equal, each gets half of the gradient, as in minidl.maximum.
    "maximum": ("fmaxf({0}, {1})", ("{g} * (0.5f * (float)(({0} > {1}) + ({0} >= {1})))",
                                    "{g} * (0.5f * (float)(({1} > {0}) + ({1} >= {0})))")),
    "minimum": ("fminf({0}, {1})", ("{g} * (0.5f * (float)(({0} < {1}) + ({0} <= {1})))",
                                    "{g} * (0.5f * (float)(({1} < {0}) + ({1} <= {0})))")),
}


class Symbol:
    """A value in the kernel, with its C name. Each operation on a Symbol is added to `lines`."""

    __array_ufunc__ = None  # so array + symbol calls the symbol's __radd__, which refuses arrays

    def __init__(self, name, lines):
        self.name, self.lines = name, lines  # lines: [(C name of the result, op, C operands)]

    def _write(self, op, *operands):
        result = Symbol(f"v{len(self.lines)}", self.lines)
        self.lines.append((result.name, op, [_c_name(x) for x in operands]))
        return result

    def __pow__(self, exponent):
        if type(exponent) is not int or not 1 <= exponent <= 8:
            raise TypeError(f"fuse: x ** n wants a whole number from 1 to 8, got {exponent!r}; "
                            "for x ** 0.5 use x.sqrt(), for x ** -0.5 use x.rsqrt()")
        y = self
        for _ in range(exponent - 1):
            y = y * self
        return y

    def __getattr__(self, name):
        raise AttributeError(f"fuse has no operation {name!r}; it has + - * / ** "
                             + " ".join(OPS))

    def __bool__(self):
        raise TypeError("fuse: `if` cannot depend on an element; use .maximum, .minimum or .relu")


def _method(op, reflected=False):
    def method(self, *others):
        return self._write(op, *others, self) if reflected else self._write(op, self, *others)
    return method


for _op, (_, _gradients) in OPS.items():
    setattr(Symbol, _op, _method(_op))
for _op, _name in (("add", "add"), ("sub", "sub"), ("mul", "mul"), ("div", "truediv")):
    setattr(Symbol, f"__{_name}__", _method(_op))
    setattr(Symbol, f"__r{_name}__", _method(_op, reflected=True))
Symbol.__neg__, Symbol.__abs__ = _method("neg"), _method("abs")


def _c_name(x):
    """Returns the C text of an operand: a symbol's name, or a number as a float literal."""
    if isinstance(x, Symbol):
        return x.name
    if isinstance(x, (int, float, np.integer, np.floating)):
        text = repr(float(x))
        return f"({text}f)" if text[0] == "-" else f"{text}f"
    raise TypeError("fuse: the operands in the function must be its arguments or numbers; one "
                    f"operand is a {type(x).__name__}. Pass an array as an argument of the "
                    "function")


def generate(fn, names):
    """Returns the .cu text of `fn`: the kernels `forward` and `backward` over n elements. names:
    the names of the arguments of `fn`. Raises TypeError if the result of `fn` is not computed from
    its arguments."""
    lines = []
    result = fn(*(Symbol(f"in_{n}", lines) for n in names))
    if not isinstance(result, Symbol):
        raise TypeError(f"fuse: {fn.__name__} must return one result, computed from its "
                        f"arguments; got {type(result).__name__}")
    load = [f"float in_{n} = to_float({n}[i]);" for n in names]
    run = [f"float {y} = {OPS[op][0].format(*xs)};" for y, op, xs in lines]
    gradients = {result.name: "to_float(gy[i])"}  # {C name of a value: its gradient, summed so far}
    back = []
    for y, op, xs in reversed(lines):
        if y not in gradients:  # nothing uses the result y
            continue
        back.append(f"float g_{y} = {gradients[y]};")
        for x, gradient in zip(xs, OPS[op][1]):
            if x[0] in "iv":  # x is an input or a result. A number needs no gradient
                term = gradient.format(*xs, y=y, g=f"g_{y}")
                gradients[x] = f"{gradients[x]} + ({term})" if x in gradients else f"({term})"
    store = [f"g_{n}[i] = from_float<T>({gradients.get(f'in_{n}', '0.0f')});" for n in names]
    inputs = ", ".join(f"const T* {n}" for n in names)
    outputs = ", ".join(f"T* g_{n}" for n in names)
    return "\n".join([
        f"// Generated by minidl.fuse from {fn.__name__}.", '#include "common.cuh"', "",
        _kernel("forward", f"T* out, {inputs}",
                [*load, *run, f"out[i] = from_float<T>({result.name});"]),
        _kernel("backward", f"{outputs}, const T* gy, {inputs}", [*load, *run, *back, *store]), ""])


def _kernel(name, parameters, body):
    body = "\n".join("    " + line for line in body)
    return (f'extern "C" __global__ void {name}({parameters}, int n) {{\n'
            "  int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
            f"  if (i < n) {{  // guard\n{body}\n  }}\n}}")


class FusedChain(Function):
    """The Function that runs the two generated kernels. It saves its inputs."""

    def forward(self, *inputs, file, name):
        xp, self.file, self.name = self.xp, file, name
        inputs = [contiguous(xp, x) for x in xp.broadcast_arrays(*inputs)]
        y = xp.empty_like(inputs[0])
        elementwise(file, "forward", y.dtype, y.size, (y, *inputs, y.size))
        self.save(*inputs)
        return y

    def backward(self, gy):
        inputs = self.saved
        grads = [self.xp.empty_like(x) for x in inputs]
        elementwise(self.file, "backward", gy.dtype, gy.size,
                    (*grads, contiguous(self.xp, gy), *inputs, gy.size))
        return tuple(grads)


def fuse(fn: Callable[..., Any]) -> Fused:
    """A decorator that makes one forward kernel and one backward kernel from `fn`.

    `fn` takes Tensors or arrays, all of the same float dtype, and returns one result. The inputs
    are broadcast together. Numbers in the body of `fn` become constants of the kernel. The
    decorated function returns a Tensor. The attribute `source` of the decorated function is the
    CUDA text. Raises TypeError if an operation cannot be written in C."""
    names = list(inspect.signature(fn).parameters)
    source = functools.lru_cache(maxsize=None)(lambda: generate(fn, names))

    @functools.wraps(fn)
    def fused(*inputs):
        arrays = [x for x in inputs if isinstance(x, Tensor) or hasattr(x, "dtype")]
        if len(arrays) == len(names) and dispatch.usable(*[backend.array_of(x) for x in inputs]):
            return FusedChain.apply(*inputs, file=dispatch.generated(source()), name=fn.__name__)
        return fn(*(x if isinstance(x, Tensor) or not hasattr(x, "dtype") else Tensor(x)
                    for x in inputs))

    fused.source = source()
    return fused
