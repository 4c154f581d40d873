"""What a graph is made of is counted: how often each leaf is used, the bytes kept for backward."""

import numpy as np

import minidl
from minidl.backward import nodes


def leaf(n):
    return minidl.tensor(np.linspace(0.5, 1.5, n, dtype=np.float32), requires_grad=True)


def test_saved_bytes_counts_each_buffer_once_and_no_leaf():
    w = leaf(1000)
    y = w * 2.0  # saves the number 2
    assert minidl.memory.saved_bytes(y) == 0
    z = y.exp()  # saves its own result, 4,000 bytes
    assert minidl.memory.saved_bytes(z) == 4000
    a = z * z  # saves z twice: nothing new
    assert minidl.memory.saved_bytes(a) == 4000
    b = a.reshape(10, 100).tanh() * w.reshape(10, 100)  # tanh saves 4,000; Mul saves that and w
    assert minidl.memory.saved_bytes(b) == 8000
    b.sum().backward()
    assert minidl.memory.saved_bytes(b) == 0


def test_leaf_uses_counts_the_gradients_each_leaf_awaits():
    x, y = leaf(2), leaf(2)
    assert minidl.leaf_uses([x * x + y]) == {x: 2, y: 1}


def test_a_node_used_by_many_is_met_once_and_what_is_not_trained_never():
    x = leaf(3)
    y = x.exp()
    total = sum((y * minidl.ones(3) for _ in range(5)), y)
    assert [type(node).__name__ for node in nodes([total])].count("Exp") == 1
    assert minidl.leaf_uses([total, x]) == {x: 2}


def test_a_graph_is_looked_at_without_recursion():
    y = x = leaf(1)
    for _ in range(5000):  # five times Python's limit
        y = y + 1.0
    assert minidl.leaf_uses([y]) == {x: 1} and minidl.memory.saved_bytes(y) == 0
