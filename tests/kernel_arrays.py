"""Sizes and helpers for the tests of the fused kernels."""

import numpy as np
import pytest

import minidl
from minidl.cuda import dispatch
from minidl.cuda.host import compiler
from minidl.tensor import Tensor

SIZES = (0, 1, 255, 256, 257, 4099)  # empty, one block and its neighbours, a prime above two tiles

counts_packs = pytest.mark.skipif(
    bool(dispatch.cpu_compiler()) and compiler.find_compiler().kind != "gnu",
    reason="clang may split the load of a pack, and the check form counts each part")


def normal(shape, dtype, seed):
    return np.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def tensors(*arrays, requires_grad=False):
    return [Tensor(np.asarray(a), requires_grad=requires_grad) for a in arrays]


def backward(op, arrays, g, **options):
    """Returns (output, gradients of the arrays) of op at these inputs, with output gradient g."""
    inputs = tensors(*arrays, requires_grad=True)
    y = op(*inputs, **options)
    y.backward(g)
    return y.array, [x.grad.array for x in inputs]


def with_and_without(op, arrays, g, **options):
    """Returns two results of `backward`: with the kernels, then without."""
    results = []
    for kernels in (True, False):
        with minidl.use_fused(kernels):
            results.append(backward(op, arrays, g, **options))
    return results
