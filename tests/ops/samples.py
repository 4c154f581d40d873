"""One row per op: what to call and on what. tests/ops/test_every_op.py runs all rows through all
of its checks; rows of the neural-network ops are in samples_nn.py, in the same form.

A row is (name, function, inputs, torch_function, kinks). The names, argument order and defaults are
PyTorch's, so one lambda serves both libraries: `m` is minidl or torch, `F` their functional module.

inputs:  tuples of float64 arrays (checked by central differences and against PyTorch) and of
         integer or bool arrays (constants). One of them has no elements.
kinks:   more tuples, at ties, zeros and jumps, where a central difference has no meaning.
"""

from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

import minidl
from minidl import ops

try:
    import torch
except ImportError:
    torch = None

_functional = SimpleNamespace(**ops.namespace("f"))
_rng = np.random.default_rng(20)


class Row(NamedTuple):
    name: str
    fn: object
    inputs: list
    torch_fn: object
    kinks: list = []
    of_library: object = None  # (library, its functional module, *tensors) -> result


def row(name, f, inputs, kinks=()):
    """A row from one function of (library, its functional module, *tensors)."""
    return Row(
        name,
        lambda *xs: f(minidl, _functional, *xs),
        [x if isinstance(x, tuple) else (x,) for x in inputs],
        lambda *xs: f(torch, torch.nn.functional, *xs),
        [x if isinstance(x, tuple) else (x,) for x in kinks],
        f,
    )


def n(*shape):
    """Gaussian."""
    return _rng.standard_normal(shape)


def p(*shape):
    """Positive, away from zero."""
    return _rng.uniform(0.5, 2.0, shape)


def apart(*shape):
    """No two elements closer than 0.1: their order survives a finite difference."""
    size = int(np.prod(shape))
    return (_rng.permutation(size) * 0.3 - 0.15 * size).reshape(shape)


def f(*values):
    return np.array(values, dtype=np.float64)


MASK = np.array([[True, False, True], [False, False, True]])
TIES = np.array([[1.0, 3.0, 3.0, 2.0], [5.0, 5.0, 5.0, 5.0], [0.0, -1.0, 0.0, -1.0]])
ONE = [n(2, 3), n(), n(0, 3), n(1)]  # for a function of one tensor, defined everywhere
POSITIVE = [p(2, 3), p(), p(0, 3)]
TWO = [  # broadcasting both ways, 0-d, no elements
    (n(2, 3), n(2, 3)), (n(2, 3), n(3)), (n(3, 1), n(1, 4)), (n(), n(2, 2)), (n(2, 1, 3), n(2, 1)),
    (n(0, 3), n(3)), (n(1, 3), n(0, 3)),
]
JUMPS = [f(-2.5, -1.5, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 1.5, 2.5), f(-1e4, 1e4, -30, 30)]

ELEMENTWISE = [
    row("add", lambda m, F, a, b: m.add(a, b), TWO),
    row("add alpha", lambda m, F, a, b: m.add(a, b, alpha=2.5), TWO[:2]),
    row("add number", lambda m, F, a: 1.5 + a + 2, ONE),
    row("sub", lambda m, F, a, b: m.sub(a, b), TWO),
    row("sub number", lambda m, F, a: (1.5 - a) - 2, ONE),
    row("mul", lambda m, F, a, b: m.mul(a, b), TWO),
    row("mul itself", lambda m, F, a: a * a * 3, ONE),
    row("div", lambda m, F, a, b: m.div(a, b), [(n(2, 3), p(3)), (n(), p(2)), (n(0, 3), p(3))]),
    row("div number", lambda m, F, a: 3 / a + a / 4, POSITIVE),
    row("remainder", lambda m, F, a, b: m.remainder(a, b) + a % 0.7,
        [(n(2, 3), p(3)), (n(0), p(1))]),
    row("neg", lambda m, F, a: m.neg(a), ONE),
    row("pow number", lambda m, F, a: m.pow(a, 3) + a**2 + a**1 + a**0, ONE, [f(0, -1, 2)]),
    row("pow fraction", lambda m, F, a: a**0.5 + a**-1.5, POSITIVE),
    row("pow base", lambda m, F, a: 2**a + 0.5**a, ONE, [f(0, -1, 2)]),
    row("pow", lambda m, F, a, b: m.pow(a, b), [(p(2, 3), n(3)), (p(), n(2)), (p(0), n(1))],
        [(f(0, 0, 0, 2), f(0, 1, 2, 0))]),
    row("exp", lambda m, F, a: m.exp(a), ONE),
    row("log", lambda m, F, a: m.log(a), POSITIVE),
    row("sqrt", lambda m, F, a: m.sqrt(a), POSITIVE),
    row("rsqrt", lambda m, F, a: m.rsqrt(a), POSITIVE),
    row("sin", lambda m, F, a: m.sin(a), ONE),
    row("cos", lambda m, F, a: m.cos(a), ONE),
    row("abs", lambda m, F, a: m.abs(a), ONE, JUMPS),
    row("sign", lambda m, F, a: m.sign(a), ONE, JUMPS),
    row("floor", lambda m, F, a: m.floor(a), ONE, JUMPS),
    row("ceil", lambda m, F, a: m.ceil(a), ONE, JUMPS),
    row("round", lambda m, F, a: m.round(a), ONE, JUMPS),
    row("maximum", lambda m, F, a, b: m.maximum(a, b), TWO, [(TIES, TIES[::-1]), (TIES, f(3.0))]),
    row("minimum", lambda m, F, a, b: m.minimum(a, b), TWO, [(TIES, TIES[::-1]), (TIES, f(3.0))]),
    row("clamp", lambda m, F, a: m.clamp(a, -0.5, 0.5), ONE, JUMPS),
    row("clamp min", lambda m, F, a: m.clamp(a, min=0.5), ONE, JUMPS),
    row("clamp max", lambda m, F, a: a.clamp(max=-0.5), ONE, JUMPS),
    row("clamp tensors", lambda m, F, a, b, c: m.clamp(a, b, c),
        [(n(2, 3), n(3) - 1, n(2, 1) + 1), (n(1, 2), n(2, 2), n(2, 1)), (n(0, 3), n(3), n(1)),
         (n(2, 3, 1), n(2, 1, 2), n(3, 2))],
        [(TIES, TIES[::-1], f(3.0)), (f(0, 1, 2, 1, 2), f(1, 1, 1, 2, 2), f(1, 1, 1, 1, 1)),
         (f(np.nan, 1, 0, 2), f(0, np.nan, 0, 0), f(1, 2, np.inf, 1))]),
    row("clamp tensor min", lambda m, F, a, b: a.clamp(b), TWO, [(TIES, TIES[::-1])]),
    row("clamp tensor max", lambda m, F, a, b: a.clamp(max=b), TWO, [(TIES, TIES[::-1])]),
    row("where", lambda m, F, c, a, b: m.where(c, a, b),
        [(MASK, n(2, 3), n(3)), (MASK, n(), n(1, 3)), (MASK[:0], n(0, 3), n(3))]),
    row("where numbers", lambda m, F, c, a: m.where(c, a, 0.5) + m.where(c, -1.0, a),
        [(MASK, n(2, 3))]),
    row("masked_fill", lambda m, F, a, c: m.masked_fill(a, c, 2.5),
        [(n(2, 3), MASK), (n(4, 2, 3), MASK), (n(0, 3), MASK[:0])]),
    row("masked_fill 0-d", lambda m, F, a, c, v: a.masked_fill(c, v), [(n(2, 3), MASK, n())]),
]

ACTIVATIONS = [
    row("tanh", lambda m, F, a: m.tanh(a), ONE, JUMPS),
    row("sigmoid", lambda m, F, a: m.sigmoid(a), ONE, JUMPS),
    row("relu", lambda m, F, a: F.relu(a), ONE, JUMPS),
    row("leaky_relu", lambda m, F, a: F.leaky_relu(a), ONE, JUMPS),
    row("leaky_relu slope", lambda m, F, a: F.leaky_relu(a, 0.3), ONE, JUMPS),
    row("elu", lambda m, F, a: F.elu(a), ONE, JUMPS),
    row("elu alpha", lambda m, F, a: F.elu(a, 2.0), ONE, JUMPS[1:]),
    row("silu", lambda m, F, a: F.silu(a), ONE, JUMPS),
    row("gelu", lambda m, F, a: F.gelu(a), [*ONE, 3 * n(4, 5)], JUMPS),
    row("gelu tanh", lambda m, F, a: F.gelu(a, approximate="tanh"), ONE, JUMPS[:1]),
    row("softplus", lambda m, F, a: F.softplus(a), ONE, JUMPS),
    row("softplus beta", lambda m, F, a: F.softplus(a, 2.0, 1.0), [n(2, 3) - 3], JUMPS),
]

REDUCTIONS = [
    row("sum", lambda m, F, a: m.sum(a), [*ONE, n(2, 3, 4)]),
    row("sum dim", lambda m, F, a: m.sum(a, dim=1) + a.sum(-2), [n(2, 2, 3), n(0, 0, 3)]),
    row("sum dims", lambda m, F, a: a.sum(dim=(0, -1), keepdim=True), [n(2, 3, 4), n(2, 0, 4)]),
    row("sum 0-d", lambda m, F, a: a.sum(0) + a.sum(-1, keepdim=True), [n()]),
    row("mean", lambda m, F, a: m.mean(a), [n(2, 3), n()], [n(0, 3)]),
    row("mean dim", lambda m, F, a: m.mean(a, -1) + a.mean((0, 2), keepdim=True)[..., 0],
        [n(2, 3, 4)], [n(3, 0, 4)]),
    row("var", lambda m, F, a: m.var(a), [n(2, 3), n(4)]),
    row("var dim", lambda m, F, a: m.var(a, 1) + a.var((0, 1), keepdim=True)[0], [n(3, 2, 2)],
        [n(0, 3, 2)]),
    row("var correction", lambda m, F, a: m.var(a, dim=-1, correction=0, keepdim=True), [n(3, 4)]),
    row("var biased", lambda m, F, a: a.var(0, unbiased=False), [n(3, 4), n(1, 2), n(2, 0)]),
    row("std", lambda m, F, a: m.std(a), [n(2, 3)]),
    row("std dim", lambda m, F, a: a.std(1, keepdim=True), [n(3, 4), n(0, 3)], [TIES]),
    row("max", lambda m, F, a: m.max(a), [apart(2, 3), n(), n(1)], [TIES]),
    row("min", lambda m, F, a: m.min(a), [apart(2, 3), n()], [TIES]),
    row("max dim", lambda m, F, a: m.max(a, 1), [apart(3, 4), n(0, 3)], [TIES]),
    row("max dim keepdim", lambda m, F, a: a.max(dim=-2, keepdim=True).values,
        [apart(2, 3, 4)], [TIES]),
    row("max 0-d dim", lambda m, F, a: a.max(0), [n()]),
    row("min dim", lambda m, F, a: a.min(0), [apart(3, 4), n(3, 0)], [TIES]),
    row("max other", lambda m, F, a, b: m.max(a, b) - m.min(a, b), TWO[:2]),
    row("amax", lambda m, F, a: m.amax(a, (0, 1)), [apart(2, 3), apart(2, 3, 2)], [TIES]),
    row("amax dim", lambda m, F, a: a.amax(-1, keepdim=True), [apart(3, 4), n(0, 3)], [TIES]),
    row("amin", lambda m, F, a: m.amin(a, 0), [apart(3, 4), n(3, 0)], [TIES]),
    row("prod", lambda m, F, a: m.prod(a), [n(2, 3), n(), n(0)],
        [f(2, 0, 3), f(0, 0, 3), f(0, 1, 0)]),
    row("prod dim", lambda m, F, a: m.prod(a, 1) + a.prod(-1, keepdim=True)[..., 0],
        [n(2, 3, 3), n(2, 0, 0)], [f(2, 0, 3, 0, 0, 1).reshape(2, 3, 1).repeat(3, 2)]),
    row("cumsum", lambda m, F, a: m.cumsum(a, 1) + a.cumsum(-2), [n(2, 3), n(2, 0)]),
    row("cumsum 0-d", lambda m, F, a: a.cumsum(0), [n()]),
    row("logsumexp", lambda m, F, a: m.logsumexp(a, 1), [n(2, 3), 300 * n(2, 2), n(0, 3)],
        [f(-np.inf, 0.0, 1.0, -np.inf).reshape(2, 2)]),
    row("logsumexp dims", lambda m, F, a: a.logsumexp((0, -1), keepdim=True), [n(2, 3, 2)]),
]

SHAPES = [
    row("reshape", lambda m, F, a: m.reshape(a, (3, -1)) * 2, [n(2, 3), n(3, 2, 1), n(3)]),
    row("reshape method", lambda m, F, a: a.reshape(-1), [n(2, 3), n(), n(0, 3)]),
    row("view", lambda m, F, a: a.view(2, -1), [n(2, 3), n(2, 3, 2)]),
    row("view empty", lambda m, F, a: a.view(0), [n(2, 0)]),
    row("flatten", lambda m, F, a: m.flatten(a), [n(2, 3, 2), n(), n(0, 2)]),
    row("flatten dims", lambda m, F, a: a.flatten(1, -2), [n(2, 3, 2, 2), n(0, 3, 2, 2)]),
    row("squeeze", lambda m, F, a: m.squeeze(a), [n(1, 3, 1), n(), n(1, 0)]),
    row("squeeze dim", lambda m, F, a: a.squeeze(0).squeeze(-1), [n(1, 3, 1), n(2, 3)]),
    row("unsqueeze", lambda m, F, a: m.unsqueeze(a, 0).unsqueeze(-1), [n(2, 3), n(), n(0)]),
    row("permute", lambda m, F, a: m.permute(a, (2, 0, -2)), [n(2, 3, 4), n(2, 0, 4)]),
    row("permute method", lambda m, F, a: a.permute(1, 2, 0) ** 2, [n(2, 3, 4)]),
    row("transpose", lambda m, F, a: m.transpose(a, 0, -1) * 2, [n(2, 3, 4), n(), n(0, 2)]),
    row("swapaxes", lambda m, F, a: m.swapaxes(a, 1, 0), [n(2, 3, 4), n(0, 2)]),
    row("t", lambda m, F, a: m.t(a), [n(2, 3), n(3), n(), n(0, 3)]),
    row("T", lambda m, F, a: a.T * a.mT, [n(2, 3)]),
    row("expand", lambda m, F, a: a.expand(2, 3, 4), [n(3, 1), n(2, 3, 4), n()]),
    row("expand keep", lambda m, F, a: a.expand(5, -1, 2), [n(3, 1), n(0, 1)]),
    row("broadcast_to", lambda m, F, a: m.broadcast_to(a, (2, 3)), [n(3), n(2, 1), n()]),
    row("broadcast_to empty", lambda m, F, a: m.broadcast_to(a, (0, 3)), [n(3)]),
    row("repeat", lambda m, F, a: a.repeat(2, 1, 3), [n(2, 3), n(2, 1, 2), n(0)]),
    row("cat", lambda m, F, a, b: m.cat([a, b, a], 1), [(n(2, 3), n(2, 1)), (n(2, 0), n(2, 2))]),
    row("cat last", lambda m, F, a, b: m.cat((a, b), dim=-1), [(n(2), n(3)), (n(0), n(0))]),
    row("stack", lambda m, F, a, b: m.stack([a, b, b]), [(n(2, 3), n(2, 3)), (n(), n()),
                                                         (n(0), n(0))]),
    row("stack last", lambda m, F, a, b: m.stack((a, b), dim=-1), [(n(2, 3), n(2, 3))]),
    row("split", lambda m, F, a: m.split(a, 2), [n(5, 2), n(2), n(0, 2)]),
    row("split sizes", lambda m, F, a: a.split([1, 0, 3], dim=-1), [n(2, 4)]),
    row("split one unused", lambda m, F, a: a.split(2)[1] * 3, [n(5, 2)]),
    row("chunk", lambda m, F, a: m.chunk(a, 4, 1), [n(2, 6), n(1, 5), n(2, 0)]),
    row("unbind", lambda m, F, a: m.unbind(a, -1), [n(2, 3), n(3), n(0, 2)]),
    row("flip", lambda m, F, a: m.flip(a, (0, -1)), [n(2, 3), n(2, 3, 4), n(0, 2)]),
    row("flip dims", lambda m, F, a: m.flip(a, dims=(1,)) + a.flip(0, 1) + a.flip(dims=(-2,)),
        [n(2, 3), n(2, 0)]),
    row("pad", lambda m, F, a: F.pad(a, (1, 2)), [n(2, 3), n(3), n(0, 3)]),
    row("pad dims", lambda m, F, a: F.pad(a, (1, 0, 0, 2), value=3.5), [n(2, 3), n(2, 2, 0)]),
    row("pad crop", lambda m, F, a: F.pad(a, (-1, 2, 1, -1)), [n(3, 4)]),
]

INDEX = np.array([[2, 0], [1, 1]])
INDICES = [
    row("getitem", lambda m, F, a: a[1], [n(2, 3), n(2), n(2, 0)]),
    row("getitem slices", lambda m, F, a: a[..., 1:, None, ::2], [n(2, 3, 4), n(3, 4)]),
    row("getitem mixed", lambda m, F, a: a[:, [2, 0, 2]], [n(2, 3), n(2, 4, 2)]),
    row("getitem integers", lambda m, F, a, i: a[i], [(n(3, 2), INDEX), (n(3), INDEX - 1)]),
    row("getitem pairs", lambda m, F, a, i: a[i, 1 - i // 2], [(n(3, 2, 2), INDEX)]),
    row("getitem mask", lambda m, F, a, c: a[c], [(n(2, 3), MASK), (n(2, 3, 2), MASK),
                                                  (n(2, 3), MASK & False)]),
    row("getitem mask row", lambda m, F, a, c: a[:, c[0]], [(n(2, 3), MASK)]),
    row("getitem 0-d", lambda m, F, a: a[...] * a[None], [n()]),
    row("gather", lambda m, F, a, i: m.gather(a, 1, i),
        [(n(2, 3), INDEX), (n(4, 3), INDEX), (n(2, 3), INDEX[:, :0])]),
    row("gather dim 0", lambda m, F, a, i: a.gather(-2, i), [(n(3, 2), INDEX), (n(3, 4), INDEX)]),
    row("index_select", lambda m, F, a, i: m.index_select(a, 1, i),
        [(n(2, 3), INDEX[0]), (n(2, 3, 4), INDEX[1]), (n(2, 3), INDEX[0, :0]), (n(0, 3), INDEX[0]),
         (n(2, 3), np.array(2))]),
    row("index_select dim", lambda m, F, a, i: a.index_select(-2, i),
        [(n(3, 2), np.array([2, 0, 2, 2])), (n(2, 1, 3), INDEX[1] * 0)]),
    row("index_select vector", lambda m, F, a, i: a.index_select(0, i), [(n(3), INDEX[0])]),
    row("tril", lambda m, F, a: m.tril(a) + a.tril(1), [n(3, 3), n(2, 2, 4), n(0, 3)]),
    row("triu", lambda m, F, a: m.triu(a) + a.triu(-1), [n(3, 3), n(2, 4, 2), n(0, 3)]),
]

CASTS = [
    row("clone", lambda m, F, a: m.clone(a) * a, ONE),
    row("contiguous", lambda m, F, a: a.mT.contiguous(), [n(2, 3), n(0, 2)]),
    row("to", lambda m, F, a: a.to(m.float64) * 3, ONE),
    row("type", lambda m, F, a: a.type(m.float64) * 3, ONE),
    row("double", lambda m, F, a: a.double() * 3, ONE),
    row("cpu", lambda m, F, a: a.cpu() * 3, ONE),
]

ROWS = ELEMENTWISE + ACTIVATIONS + REDUCTIONS + SHAPES + INDICES + CASTS
