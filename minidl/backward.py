"""The backward pass: one loop over the graph, from the result to the leaves.

    loss ─► Sum ─► Mul ─► a        1  count the edges into each leaf (how many gradients it awaits)
                    └───► b        2  take nodes by decreasing depth: a producer is shallower than
                                      all its consumers, so its gradient is complete at its turn
                                   3  a leaf whose count falls to zero is done: deposit, fire hooks

Edges are those of graph.py. Loops, no recursion: a chain of 50,000 ops works. Grad mode, which
decides whether a graph is built at all, is here too.
Test: tests/test_backward.py   Tutorial: tutorials/01_autograd.py
"""

import heapq
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

from minidl import backend, memory
from minidl.graph import edge_to, leaf_uses

_grad_enabled = ContextVar("minidl.grad_enabled", default=True)
replaying = ContextVar("minidl.replaying", default=False)  # a forward that runs again: recompute.py


def is_grad_enabled():
    return _grad_enabled.get()


@contextmanager
def set_grad_enabled(mode):
    """Record the graph inside the `with` block (True) or do not (False)."""
    token = _grad_enabled.set(bool(mode))
    try:
        yield
    finally:
        _grad_enabled.reset(token)


def no_grad():
    """`with no_grad():` builds no graph and saves nothing. Also a decorator: `@no_grad()`."""
    return set_grad_enabled(False)


def enable_grad():
    return set_grad_enabled(True)


def walk(roots, gradients, retain_graph=False, deposit=None, each=False):
    """Backward from `roots`, given d(something)/d(root) for each (None: 1 for a single element).

    Nodes are taken in order of decreasing depth. A producer is always shallower than all its
    consumers, so when a node's turn comes its gradient is complete. `deposit(leaf, gradient)`
    receives each leaf's complete gradient once; by default it adds to `leaf.grad`, then calls the
    leaf's hooks. each: `deposit` receives every gradient that reaches a leaf, not their sum."""
    deposit = deposit or _accumulate
    ledger = memory.recording.get()
    waiting = leaf_uses(roots)  # leaf -> gradients still to come
    arriving = {}  # leaf or node -> its gradient so far (for a node: a list, one per output)
    heap = []
    n_pushed = 0  # breaks ties of depth by order of arrival, the same on every run and rank

    def send(edge, g):
        if isinstance(edge, tuple):
            send_to_node(*edge, g)
        elif each:
            deposit(edge, g)
        else:
            send_to_leaf(edge, g)

    def send_to_leaf(leaf, g):
        if g is not None:
            before = arriving.get(leaf)
            arriving[leaf] = g if before is None else _add(before, g)
        waiting[leaf] -= 1
        if waiting[leaf] == 0 and leaf in arriving:
            deposit(leaf, arriving.pop(leaf))

    def send_to_node(node, slot, g):
        nonlocal n_pushed
        if node not in arriving:
            arriving[node] = [None] * len(node.output_meta)
            heapq.heappush(heap, (-node.depth, n_pushed, node))
            n_pushed += 1
        if g is not None:
            before = arriving[node][slot]
            arriving[node][slot] = g if before is None else _add(before, g)

    for root, gradient in zip(roots, gradients):
        send(edge_to(root), _start(root, gradient))

    while heap:
        _, _, node = heapq.heappop(heap)
        gys = arriving.pop(node)
        node._check()
        if node.retained:
            _retain(node, gys)
        gxs = _backward(node, gys, ledger)
        edges, saved = node.edges, node.saved
        if not retain_graph:
            node._saved = None
            node.edges = node.saved_inputs = ()
        for i, edge in enumerate(edges):
            if edge is None:
                continue
            gx = gxs[i]
            if gx is not None:
                gx = _fit(gx, *node.input_meta[i], node)
                if not isinstance(edge, tuple) and _is_shared(gx, gxs[:i], gxs[i + 1:], gys, saved):
                    gx = gx.copy()  # a leaf owns its gradient
            send(edge, gx)
        saved = gxs = gys = gx = None  # freed before the next node runs: it may be a recompute


def _backward(node, gys, ledger):
    """What the node's backward returns for these gradients of its outputs, one for each edge: Nones
    if no gradient has come to any output. Where it came to some, zeros take the others' places."""
    missing = [slot for slot, g in enumerate(gys) if g is None]
    if len(missing) == len(gys):
        return (None,) * len(node.edges)
    for slot in missing:
        gys[slot] = node.xp.zeros(*node.output_meta[slot])
    gxs = node.backward(*gys)
    gxs = gxs if isinstance(gxs, tuple) else (gxs,)
    if ledger is not None:
        ledger.backward(node, gxs)
    if len(gxs) != len(node.edges):
        raise RuntimeError(f"{type(node).__name__}.backward returned {len(gxs)} gradients for "
                           f"{len(node.edges)} inputs")
    return gxs


def _retain(node, gys):
    """Add to the `grad` of the node's results that asked to keep theirs (Tensor.retain_grad)."""
    for slot, tensor in node.retained.items():
        if gys[slot] is not None:
            before = tensor.grad
            tensor.grad = gys[slot].copy() if before is None else _add(before, gys[slot])


def _start(root, gradient):
    """The gradient array at a root, checked."""
    if not root.requires_grad:
        raise RuntimeError("backward of a tensor that does not require a gradient: no input of it "
                           "has requires_grad=True, or it was made under no_grad")
    if gradient is None:
        if root.numel() != 1:
            raise RuntimeError(f"backward of a tensor of shape {root.shape} wants a gradient of "
                               "that shape; only a single element starts from 1")
        return root._xp.ones(root.shape, root.dtype)
    gradient = root._xp.asarray(getattr(gradient, "_data", gradient))
    if tuple(gradient.shape) != root.shape:
        raise ValueError(f"gradient has shape {tuple(gradient.shape)}, the tensor {root.shape}")
    return gradient.astype(root.dtype)  # a copy: the caller keeps theirs


def _add(a, b):
    """a + b in new memory (either may be visible elsewhere); 0-d stays an array."""
    return (a + b)[...] if a.ndim == 0 else a + b


def _fit(g, shape, dtype, node):
    """Sum a gradient over the dimensions that were broadcast, and cast it to the input's dtype."""
    if g.shape != shape:
        extra = g.ndim - len(shape)
        axes = tuple(range(extra)) + tuple(
            i + extra for i, d in enumerate(shape) if d == 1 and g.shape[i + extra] != 1)
        if extra >= 0:  # fp16 sums in fp32
            g = g.sum(axis=axes, keepdims=True, dtype=backend.accumulate_dtype(g.dtype))
        if g.shape[max(extra, 0):] != shape:
            raise RuntimeError(f"{type(node).__name__}.backward returned a gradient of shape "
                               f"{g.shape} for an input of shape {shape}")
        g = g.reshape(shape)
    if g.dtype != dtype:
        g = g.astype(dtype)
    return g if type(g) is np.ndarray else node.xp.asarray(g)  # NumPy turns 0-d into scalars


def _is_shared(g, *elsewhere):
    """Whether somebody else can see the array g: it is a view, incoming, saved, returned twice."""
    return g.base is not None or any(g is a for arrays in elsewhere for a in arrays)


def _accumulate(leaf, gradient):
    """The end of the way: leaf.grad += gradient, in place so that views of it stay views."""
    if leaf.grad is None:
        leaf.grad = gradient
    else:
        leaf.grad += gradient
    if (ledger := memory.recording.get()) is not None:
        ledger.gradient(leaf)
    for hook in leaf._hooks or ():
        hook(leaf)


def grad(outputs, inputs, grad_outputs=None, retain_graph=False):
    """d(sum of outputs)/d(input) for each leaf in `inputs`, as a tuple of arrays; None where there
    is no path. Leaves' own `grad` is not touched and no hook fires. As `torch.autograd.grad`,
    first order only."""
    outputs = _list(outputs)
    inputs = _list(inputs)
    for x in inputs:
        if not (x.is_leaf and x.requires_grad):
            raise ValueError("grad wants leaves that require a gradient as its inputs, got "
                             + (f"a result of {x.grad_fn}; for results call retain_grad() and "
                                "backward()" if x.grad_fn else "one with requires_grad=False"))
    grad_outputs = [None] * len(outputs) if grad_outputs is None else _list(grad_outputs)
    found = {}
    walk(outputs, grad_outputs, retain_graph, found.__setitem__)
    return tuple(found.get(x) for x in inputs)


def _list(x):
    return list(x) if isinstance(x, (list, tuple)) else [x]
