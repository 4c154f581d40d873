"""The backward pass: one loop over the graph, from the result to the leaves.

The plain form: minidl/plain/autograd.py, which sorts the whole graph before it walks. This file
works in another way:

1. The walk first counts the edges into each leaf. When the count of a leaf falls to zero, its
   gradient is complete. The walk then adds this gradient to `leaf.grad` and calls the hooks of the
   leaf, once. Other nodes may still wait for their turn.
2. The depth of a node is one more than the largest depth of the nodes that made its inputs. The
   walk takes the nodes by decreasing depth. So a node comes after all nodes that use its result.
   The gradient of its result is then complete. No sort is needed, and the order is the same on
   every rank.
3. A node frees its saved arrays as soon as its backward is done.

An edge has one of three forms: None if no gradient is needed, a leaf Tensor, or a pair (Function,
output slot). The walk uses loops and no recursion, so a chain of 50,000 ops works.
Test: tests/test_backward.py   Tutorial: tutorials/01_autograd.py
"""

import heapq
import itertools
import sys

import numpy as np

from minidl import backend, saved
from minidl.mode import NoRoom, current, give_up_kernels


def edge_to(x):
    """Returns the edge that leads to the tensor x: x for a leaf, else (Function, output slot)."""
    return x if x.grad_fn is None else (x.grad_fn, x.slot)


def nodes(roots):
    """Yields every Function from which `roots` were computed, directly or indirectly. Yields each
    Function once."""
    seen = set()
    stack = [root.grad_fn for root in roots if root.grad_fn is not None]
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            yield node
            stack += [edge[0] for edge in node.edges if type(edge) is tuple]


def leaf_uses(roots):
    """Returns {leaf: number of edges that lead to it} for the graph of `roots`. The dict has all
    leaves that backward will reach. The number tells how many gradients will come to the leaf."""
    uses = {}
    starts = [edge_to(root) for root in roots if root._requires_grad]
    for edge in itertools.chain(starts, *(node.edges for node in nodes(roots))):
        if edge is not None and type(edge) is not tuple:
            uses[edge] = uses.get(edge, 0) + 1
    return uses


def walk(roots, gradients, retain_graph=False, deposit=None, each=False):
    """Runs backward from the tensors `roots`.

    gradients: one for each root, d(loss)/d(root), or None. None means 1, and is allowed only for a
    root of one element.
    deposit(leaf, gradient): called once for each leaf, with its complete gradient array. The
    default adds the gradient to `leaf.grad`, then calls the leaf's hooks.
    each: if True, deposit is called for every single gradient that reaches a leaf, not once for
    their sum.
    retain_graph: keeps the saved arrays, so that backward can run again."""
    deposit = deposit or _accumulate
    ledger = current().ledger
    waiting = leaf_uses(roots)  # leaf -> number of gradients still to come
    arriving = {}  # leaf -> its gradient so far; node -> a list, one gradient for each output
    # An entry of the heap is (-depth, turn, node). If two depths are equal, the smaller turn comes
    # first. So the order is the same on every rank.
    heap, turn = [], itertools.count()

    def send(edge, g):
        if type(edge) is tuple:
            node, slot = edge
            gys = arriving.get(node)
            if gys is None:
                gys = arriving[node] = [None] * len(node.output_meta)
                heapq.heappush(heap, (-node.depth, next(turn), node))
            if g is not None:
                gys[slot] = g if gys[slot] is None else _add(gys[slot], g)
        elif each:
            deposit(edge, g)
        else:
            if g is not None:
                before = arriving.get(edge)
                arriving[edge] = g if before is None else _add(before, g)
            waiting[edge] -= 1
            if waiting[edge] == 0 and edge in arriving:
                g = arriving.pop(edge)
                for hook in edge._hooks or ():
                    g = hook.change(g)
                deposit(edge, g)

    for root, gradient in zip(roots, gradients):
        with backend.using_device_of([root.array]):
            send(edge_to(root), _start(root, gradient))

    while heap:
        node = heapq.heappop(heap)[2]
        gys = arriving.pop(node)
        saved.check(node)
        with backend.using_device_of(gys):
            if node.gradient_hooks or node.retained:
                _observe(node, gys)
            gxs, saved_arrays = _backward(node, gys, ledger)
            edges = node.edges
            if not retain_graph:
                node._saved = None
                node.edges = node.saved_inputs = ()
            for i, edge in enumerate(edges):
                if edge is None:
                    continue
                gx = gxs[i]
                if gx is None:
                    send(edge, None)
                elif type(edge) is tuple:
                    producer, slot = edge
                    send(edge, _fit(gx, *producer.output_meta[slot], node))
                else:
                    gx = _fit(gx, edge.array.shape, edge.array.dtype, node)
                    send(edge, _own(gx, (*gxs[:i], *gxs[i + 1:], *gys, *saved_arrays)))
        # Frees the arrays before the next node runs. If that node is a recompute, it needs much
        # memory.
        saved_arrays = gxs = gys = gx = None


def refuse_create_graph(create_graph):
    """Raises NotImplementedError (a kind of RuntimeError) if create_graph is True."""
    if create_graph:
        raise NotImplementedError(
            "create_graph=True is not supported: a backward works on arrays and records no graph, "
            "so a gradient has no gradient of its own. Write the first derivative as ops, and "
            "differentiate these ops")


def _observe(node, gys):
    """Calls the hooks that Tensor.register_hook has added to the node. A hook may replace an entry
    of gys. gys: the gradients of the node's outputs. Then stores the gradient of each output for
    which Tensor.retain_grad was called."""
    for slot, hook in node.gradient_hooks:
        if gys[slot] is not None:
            gys[slot] = hook.change(gys[slot])
    for slot, tensor in node.retained.items():
        if (g := gys[slot]) is not None:
            before = tensor.grad
            tensor.grad = g.copy() if before is None else _add(before.array, g)


def _own(g, others):
    """Returns the array g, or a copy of g if other code can see the memory of g. `leaf.grad` must
    be an array of its own, because the user may write into it. others: arrays that other code
    holds. If g is one of them, g is copied."""
    if g.base is not None or any(g is other for other in others):
        return g.copy()
    return g


def _backward(node, gys, ledger):
    """Runs the backward of one node. Returns (gradients, saved arrays). `gradients` has one entry
    for each edge of the node.

    gys: the gradients of the node's outputs. If all are None, every returned gradient is None. If
    only some are None, zeros replace them."""
    if all(g is None for g in gys):
        return (None,) * len(node.edges), ()
    for slot, g in enumerate(gys):
        if g is None:
            gys[slot] = node.xp.zeros(*node.output_meta[slot])
    arrays = node.saved = tuple(map(saved.unpack, node._saved))
    if "ml_dtypes" in sys.modules and node.arithmetic:
        gys = [g.astype(np.float32) if backend.is_bfloat16(g.dtype) else g for g in gys]
    try:
        gxs = node.backward(*gys)
    except NoRoom as error:
        give_up_kernels(error)
        gxs = node.backward(*gys)
    del node.saved
    gxs = gxs if type(gxs) is tuple else (gxs,)
    if ledger is not None:
        ledger.backward(node, gxs)
    if len(gxs) != len(node.edges):
        raise RuntimeError(f"{type(node).__name__}.backward returned {len(gxs)} gradients for "
                           f"{len(node.edges)} inputs")
    return gxs, arrays


def _start(root, gradient):
    """Returns the gradient array with which backward starts at a root, in the dtype of the root.
    Raises RuntimeError if the root does not require a gradient. Also raises RuntimeError if
    `gradient` is None and the root has more than one element. Raises ValueError if `gradient` does
    not have the shape of the root."""
    if not root._requires_grad:
        raise RuntimeError("backward wants a tensor that requires a gradient; got a tensor that "
                           "does not require a gradient. Set requires_grad=True for one of its "
                           "inputs, and compute it outside of no_grad()")
    if gradient is None:
        if root.numel() != 1:
            raise RuntimeError(f"backward of a tensor of shape {tuple(root.shape)} wants a "
                               "gradient of that shape. Only a tensor of a single element "
                               "needs no gradient")
        return root._xp.ones(root.shape, root.dtype)
    gradient = root._xp.asarray(backend.array_of(gradient))
    if tuple(gradient.shape) != root.shape:
        raise ValueError(f"backward wants a gradient of the tensor's shape, {tuple(root.shape)}; "
                         f"got a gradient of shape {tuple(gradient.shape)}")
    return gradient.astype(root.dtype)  # a copy: the caller's array does not change


def _add(a, b):
    """Returns a + b as a new array, because other code may still use a or b. A 0-d result is an
    array, not a scalar."""
    return (a + b)[...] if a.ndim == 0 else a + b


def _fit(g, shape, dtype, node):
    """Returns the gradient g in the shape and dtype of an input of the node. Sums g over the
    dimensions that forward has broadcast, and casts the sum. Raises RuntimeError if the shape of g
    does not fit."""
    if type(g) is np.ndarray and g.shape == shape and g.dtype == dtype:
        return g
    g = backend.array_of(g)  # a backward may return the Tensors that minidl.grad gave it
    if g.shape != shape:
        extra = g.ndim - len(shape)
        axes = tuple(range(extra)) + tuple(
            i + extra for i, d in enumerate(shape) if d == 1 and g.shape[i + extra] != 1)
        if extra >= 0:  # a sum of float16 or bfloat16 is computed in float32
            g = g.sum(axis=axes, keepdims=True, dtype=backend.accumulate_dtype(g.dtype))
        if g.shape[max(extra, 0):] != shape:
            raise RuntimeError(f"{type(node).__name__}.backward returned a gradient of shape "
                               f"{g.shape} for an input of shape {shape}")
        g = g.reshape(shape)
    if g.dtype != dtype:
        g = g.astype(dtype)
    # `asarray` is needed, because NumPy turns 0-d results into scalars.
    return g if type(g) is node.xp.ndarray else node.xp.asarray(g)


def _accumulate(leaf, gradient):
    """Adds a complete gradient to leaf.grad, and calls the leaf's hooks."""
    leaf.add_to_grad(gradient)
    if (ledger := current().ledger) is not None:
        ledger.gradient(leaf)
    for hook in leaf._hooks or ():
        hook.gradient_ready(leaf)


def clear_gradient(leaf, set_to_none=True):
    """Clears a leaf's gradient. `leaf.grad` becomes None. If set_to_none is False, the array of
    `leaf.grad` is filled with zeros instead. Then calls the leaf's hooks."""
    if set_to_none or leaf.grad is None:
        leaf.grad = None
    else:
        leaf.grad.array[...] = 0
    for hook in leaf._hooks or ():
        hook.cleared(leaf)


def gradient_or_zeros(leaf):
    """Returns a leaf's gradient array, or an array of zeros if the leaf has no gradient."""
    return leaf._xp.zeros(leaf.shape, leaf.dtype) if leaf.grad is None else leaf.grad.array
