"""Mixed precision: each op runs in the precision that is right for it. Weights stay in float32.

    white   fp16   matrix products, convolution, attention: they take most of the time, and sum in
                   fp32
    black   fp32   exp, log, softmax, norms, losses, sums: fp16 loses digits or overflows
    grey           all others: the widest dtype of their inputs
    banned         fp16 gives wrong results, so the op raises an error that says what to do

Each op is in one of these four lists. It names its list next to its forward (`Function.precision`).
The cast is not a node of the graph: `Function.apply` passes the cast arrays to forward, and
backward casts each gradient to the dtype of its input. So a float32 weight gets a float32 gradient.

    scaler = amp.GradScaler()
    with amp.autocast():
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()

With `autocast(dtype=minidl.bfloat16)` no scaler is needed: bfloat16 has float32's range (bf16.py).
Sources: Micikevicius et al. 2018 (arXiv 1710.03740); the lists are PyTorch's (autocast op
reference) and apex's. Test: tests/precision/test_amp.py   Tutorial: tutorials/05_amp.py
"""

from __future__ import annotations

import difflib
import functools
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from minidl import backend
from minidl.forward import op_name
from minidl.function import Function
from minidl.mode import current, running
from minidl.nest import each
from minidl.nn.norm import BatchNorm
from minidl.optim.master import use_master_weights
from minidl.precision import bf16
from minidl.precision.bf16 import WIDE
from minidl.precision.grad_scaler import GradScaler
from minidl.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from minidl.hints import DType


@contextmanager
def autocast(device_type: str = "cuda", dtype: DType | None = None, enabled: bool = True, *,
             white: Sequence[str] = (), black: Sequence[str] = ()) -> Iterator[None]:
    """A `with` block, or a decorator, in which each op runs in the precision of its list (see the
    top of this file). With enabled=False each op runs in the precision of its inputs.

    device_type:   sets the default of dtype: "cuda" gives float16, "cpu" gives bfloat16. No array
                   moves to another device.
    dtype:         the dtype of white ops, float16 or bfloat16.
    white, black:  names of ops that are white, or black, inside the block. Raises ValueError for a
                   name in both lists, and for an unknown name."""
    if device_type not in ("cuda", "cpu"):
        raise ValueError(f'autocast: device_type must be "cuda" or "cpu"; got {device_type!r}. To '
                         "switch autocast off, write autocast(enabled=False)")
    if dtype is None:
        dtype = np.float16 if device_type == "cuda" or not enabled else bf16.dtype()
    outer = current().autocast
    policy = Autocast(dtype, white, black) if enabled else None
    if policy is not None and outer is not None:
        policy.casts = outer.casts
    try:
        with running(autocast=policy):
            yield
    finally:
        if policy is not None and outer is None:
            policy.casts.clear()


def lists():
    """Returns {"white": [names], "black": [...], "grey": [...], "banned": [...]} of all ops."""
    ops = sorted(_ops().items())
    return {precision: [name for name, cls in ops if cls.precision == precision]
            for precision in ("white", "black", "grey", "banned")}


def initialize(model, optimizer, opt_level="O1", loss_scale=None, dtype=np.float16):
    """Prepares a model and an optimizer for a level of mixed precision, as apex does. Changes the
    model and the optimizer in place. Returns (model, optimizer, scaler).

        O0   all float32                          scale 1
        O1   float32 weights, autocast            dynamic scale
        O2   float16 model except batch norm,     dynamic scale
             float32 master weights
        O3   all float16, no master weights       scale 1: fast, but training may fail

    The model then takes inputs of any floating dtype and returns float32. Call this function before
    the optimizer's first step.
    loss_scale: a fixed scale, or None for the scale in the table.
    dtype: float16 or minidl.bfloat16. With bfloat16 the scale in the table is 1 at every level."""
    prepare(model, opt_level, dtype)
    if opt_level == "O2":
        use_master_weights(optimizer)
    if loss_scale is not None:
        scaler = GradScaler(init_scale=loss_scale, min_scale=loss_scale, max_scale=loss_scale)
    else:
        scaler = GradScaler(enabled=opt_level in ("O1", "O2") and np.dtype(dtype) == np.float16)
    return model, optimizer, scaler


def prepare(model, opt_level, dtype=np.float16):
    """Does the model's part of `initialize`: casts the model's parameters and buffers, and replaces
    the model's forward by a function that also casts the inputs and outputs."""
    if opt_level not in ("O0", "O1", "O2", "O3"):
        raise ValueError(f"amp: opt_level must be O0, O1, O2 or O3; got {opt_level!r}")
    forward = model.forward

    def autocasted(*inputs, **options):
        with autocast(dtype=dtype):
            output = forward(*inputs, **options)
        return _wide(output)

    def halved(*inputs, **options):
        inputs, options = each(lambda x: _to(x, dtype), (inputs, options))
        return _wide(forward(*inputs, **options))

    if opt_level == "O1":
        model.forward = autocasted
    elif opt_level in ("O2", "O3"):
        _halve(model, dtype, but=BatchNorm if opt_level == "O2" else ())
        model.forward = halved


class Autocast:
    """The rules and the casts of one autocast block. `casts` keeps the cast array of each parameter
    until the outermost block ends. So a weight that is used many times is cast once."""

    def __init__(self, dtype=np.float16, white=(), black=()):
        self.dtype = backend.as_dtype(dtype)
        if not backend.is_floating(self.dtype):
            raise TypeError(f"autocast: wants a floating dtype, such as 'float16', got {dtype}")
        self.changed = {**dict.fromkeys(white, "white"), **dict.fromkeys(black, "black")}
        self.casts = {}  # parameter -> (version, dtype, array)
        if both := sorted(set(white) & set(black)):
            raise ValueError(f"autocast: {', '.join(both)} is in both lists, white and black")
        self.ops = _ops()
        for name in self.changed.keys() - self.ops:
            close = difflib.get_close_matches(name, self.ops, 1)
            raise ValueError(f"autocast: there is no op {name!r}; "
                             + (f"did you mean {close[0]!r}?" if close else "see amp.lists()"))

    def cast(self, cls, inputs, arrays):
        """Returns the arrays that `cls.forward` will get: `arrays`, cast to the op's dtype. float64
        and integer arrays are not cast."""
        dtypes = {a.dtype for a in arrays if _narrow(a)}
        target = self.target(op_name(cls), dtypes, cls)
        if not dtypes or dtypes == {target}:
            return arrays
        return [self._cast(x, a, target) if _narrow(a) and a.dtype != target else a
                for x, a in zip(inputs, arrays, strict=True)]

    def target(self, name, dtypes, cls=None):
        """Returns the dtype in which this op runs, if its floating inputs have these dtypes. Raises
        RuntimeError if the op is banned."""
        cls = cls or self.ops[name]
        precision = self.changed.get(name, cls.precision)
        if precision == "banned":
            raise RuntimeError(
                f"{name} cannot run under autocast: {self.dtype} has too few digits for it. Use "
                f"{cls.remedy}, or run {name} in `with amp.autocast(enabled=False):` on float32 "
                "inputs")
        if precision in ("white", "black"):
            return self.dtype if precision == "white" else WIDE
        return functools.reduce(backend.promote_types, dtypes) if dtypes else WIDE

    def _cast(self, x, array, target):
        if not (isinstance(x, Tensor) and x.is_leaf and x.requires_grad):
            with np.errstate(over="ignore"):  # gives inf without a warning, as on a GPU
                return array.astype(target)
        version, dtype, cast = self.casts.get(x, (None, None, None))
        if version != x.version or dtype != target or cast.shape != array.shape:
            cast = array.astype(target)
            self.casts[x] = (x.version, target, cast)
        return cast


def _halve(model, dtype, but):
    """Casts floating parameters and buffers of all modules to `dtype`, and clears their gradients.
    Modules of class `but` are not changed."""
    kept = {t for module in model.modules() if isinstance(module, but)
            for t in [*module.parameters(), *module.buffers()]}
    for t in [*model.parameters(), *model.buffers()]:
        if t not in kept and backend.is_floating(t.dtype):
            t.data = t.array.astype(dtype)
            t.grad = None


def _to(x, dtype):
    """Returns x cast to `dtype` if x is a float16, bfloat16 or float32 array or Tensor. Returns
    anything else unchanged."""
    if not _narrow(x):
        return x
    return x.to(dtype) if isinstance(x, Tensor) else x.astype(dtype)


def _wide(output):
    """Returns the output of a model in float32. output: a Tensor, or tuples, lists and dicts of
    Tensors."""
    return each(lambda y: _to(y, WIDE), output)


def _narrow(x):
    """Returns True if autocast may cast x: if x is a float16, bfloat16 or float32 array or
    Tensor."""
    return hasattr(x, "dtype") and x.ndim >= 0 and x.dtype.itemsize <= 4 and (
        x.dtype.kind == "f" or backend.is_bfloat16(x.dtype))


def _ops():
    """Returns {name: Function class} of every op that has been imported. Ops that users wrote are
    included. If a user's op has the same name as an op of minidl, the dict has minidl's op."""
    ours, others, stack = {}, {}, [Function]
    while stack:
        cls = stack.pop()
        stack += cls.__subclasses__()
        if cls.forward is not Function.forward:
            (ours if cls.__module__.startswith("minidl.") else others)[op_name(cls)] = cls
    return others | ours
