"""Tests what a node keeps for a saved array: the leaf itself, or a packed form. Packs can be
nested, and each pack is undone once."""

import numpy as np
import pytest

import minidl
from minidl import Function, saved
from minidl.memory.offload import Stored, offload
from minidl.mode import running
from minidl.nn import functional as F


class Keep(Function):
    """Computes x + y + 1. Saves x, a view of y, and a new array."""

    def forward(self, x, y):
        self.own = x * 3
        self.save(x, y[::2], self.own, None, 2.5)
        return x + y + 1

    def backward(self, gy):
        self.got = self.saved
        return gy, gy


def leaf(n=6):
    return minidl.tensor(np.arange(n, dtype=np.float32), requires_grad=True)


def test_a_leaf_is_held_by_name_and_anything_else_as_it_is():
    x, y = leaf(), leaf() * 1.0
    node = Keep.apply(x, y).grad_fn
    kept = list(saved.held_by(node))
    assert kept[0] is x and kept[1].base is y.array and kept[2] is node.own
    assert kept[3:] == [None, 2.5]
    assert node.saved[0] is x.array and node.saved[1] is kept[1]


def test_all_of_a_leaf_in_another_shape_is_held_by_name_a_part_of_it_is_not():
    class Views(Function):
        def forward(self, x):
            self.save(x.reshape(2, 3), x[1:])
            return x * 2

    x = leaf()
    node = Views.apply(x).grad_fn
    whole, part = saved.held_by(node)
    assert whole is x and isinstance(part, np.ndarray)
    x.array = x.array + 10  # the leaf may have another array later
    assert np.array_equal(node.saved[0], x.array.reshape(2, 3))


def test_a_constant_input_is_held_by_its_array():
    x, y = minidl.ones(4), leaf(4)
    assert list(saved.held_by(Keep.apply(x, y).grad_fn))[0] is x.array


def test_the_walk_unpacks_once_and_forgets():
    undone = []

    def packer(node, held, inputs, outputs):
        if isinstance(held, np.ndarray):
            return ("elsewhere", held), lambda pair: undone.append(node) or pair[1]

    x, y = leaf(), leaf() * 1.0
    with running(packers=(packer,)):
        z = Keep.apply(x, y)
    node, own = z.grad_fn, z.grad_fn.own
    z.backward(np.ones(6, np.float32))
    assert undone == [node] * 2  # for y's view and for the new array
    assert node.got[2] is own and node._saved is None and "saved" not in vars(node)


def test_packs_are_undone_from_the_last_to_the_first():
    def times(factor):
        def packer(node, held, inputs, outputs):
            if isinstance(held, np.ndarray):
                return held * factor + 1, lambda held: (held - 1) / factor
        return packer

    x, y = leaf(), leaf() * 1.0
    with running(packers=(times(2), times(4))):
        node = Keep.apply(x, y).grad_fn
    kept = list(saved.held_by(node))
    assert kept[0] is x and np.array_equal(kept[2], (node.own * 2 + 1) * 4 + 1)
    assert np.array_equal(node.saved[2], node.own)


def test_what_was_copied_away_may_be_written():
    """A saved input must not be changed in place before backward, unless the node holds a copy."""
    y = leaf() * 1.0
    with offload(min_bytes=0):
        z = y.exp() * y  # Mul saves both factors
    with minidl.no_grad():
        y += 1
    z.sum().backward()

    y = leaf() * 1.0
    z = y.exp() * y
    with minidl.no_grad():
        y += 1
    with pytest.raises(RuntimeError, match="Mul saved was changed in place between forward and"):
        z.sum().backward()


def test_a_bfloat16_array_is_rounded_and_then_sent_to_the_host():
    pytest.importorskip("ml_dtypes")
    x = minidl.randn(64, 64, requires_grad=True)

    def loss():
        h = F.gelu(x.to(minidl.bfloat16) * 2.0)
        return (F.softmax(h, -1) * h).sum()

    plain = loss()
    held = minidl.memory.saved_bytes(plain)
    plain.backward()
    wanted, x.grad = x.grad, None
    with offload(min_bytes=1024) as host:
        y = loss()
    assert minidl.memory.saved_bytes(y) == 0 and host.held_bytes == held
    node = y.grad_fn.edges[0][0]
    pack, = {type(s) for s in saved.held_by(node) if s is not None}
    assert pack is Stored and all(s.host.dtype == minidl.bfloat16 for s in saved.held_by(node))
    y.backward()
    assert np.array_equal(x.grad, wanted)


def test_saved_bytes_sees_through_packs():
    pytest.importorskip("ml_dtypes")
    x = (minidl.randn(32, 32, requires_grad=True) * 1.0).to(minidl.bfloat16)
    y = F.gelu(x)  # saves x in bfloat16, although forward computes in float32
    assert list(saved.held_by(y.grad_fn))[0] is x.array
    assert minidl.memory.saved_bytes(y) == 32 * 32 * 2


def test_an_array_of_two_tensors_is_noted_with_both():
    x = leaf()
    twin = x.detach()  # has the same array as x
    y = x * twin
    with minidl.no_grad():
        twin.add_(1.0)
    with pytest.raises(RuntimeError, match="changed in place"):
        y.sum().backward()
