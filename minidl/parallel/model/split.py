"""Runs backward in two parts: gradients of inputs now, gradients of weights later.

    y = x W^T        part B   gx = gy W       the previous stage waits for gx
                     part W   gW = gy^T x     no rank waits for gW before the optimizer's step

    weights, leaves = backward_to_inputs([y], [gy])     B: sets x.grad
    ...
    weights()                                           W: sets W.grad

Part B is a normal backward, but the ops in SPLIT compute only the gradients of their inputs. For
each of these ops part B makes a twin node. The twin has the same saved arrays, but edges only to
the op's weights. Part W is a backward from the twins. All sums have the same terms in the same
order as in one backward, so the bits are the same. Between the parts only the inputs of these ops
and the gradients gy of their results are held.

If an op that is not in SPLIT uses the weight, too, the weight gets its gradient in part B. The same
is true for weights in a recomputed segment, with one exception. If the segment is the whole graph
from leaves to roots, part B runs the segment again, and then splits it like any other graph.
Source: Qi et al. 2024 (arXiv 2401.10241).   Test: tests/parallel/model/test_split.py
"""

import copy
from functools import partial

from minidl import saved
from minidl.backward import nodes, walk
from minidl.memory.recompute import Recompute
from minidl.ops.conv import Conv2d
from minidl.ops.linear import Linear
from minidl.ops.matmul import MatMul
from minidl.tensor import Tensor

SPLIT = (Linear, Conv2d, MatMul)  # input 0 of these ops is an activation, other inputs are weights


def backward_to_inputs(roots, gradients):
    """Runs backward without the gradients of weights. Returns (a function that computes the
    gradients of the weights, the set of these weights)."""
    later, twins = {}, []
    roots = _run_again(roots)
    for node, places in _separable(roots):
        later.update({node.edges[i]: None for i in places})
        node.backward = partial(_inputs_only, node, places, twins)
    walk(roots, gradients)

    def weights():
        if twins:
            outputs, gys = zip(*twins, strict=True)
            twins.clear()
            walk(outputs, gys)

    return weights, set(later)


def _run_again(roots):
    """If the whole graph is one recomputed segment, runs the segment again, and returns the results
    of the second run. Otherwise returns `roots`."""
    node = roots[0].grad_fn if roots else None
    if type(node) is not Recompute or any(y.grad_fn is not node for y in roots) or any(
            type(edge) is tuple for edge in node.edges):
        return roots
    saved.check(node)
    held = tuple(map(saved.unpack, node._saved))
    kept, arrays = held[:node.n_kept], held[node.n_kept:]
    leaves = dict(zip(node.segment.edges, node.edges, strict=False))  # input's number -> leaf
    inputs = [leaves[i] if i in leaves else Tensor(array)
              for i, (array, _) in enumerate(zip(arrays, node.wants, strict=False))]
    outputs = node.segment.run_again(inputs, kept)
    node._saved = None  # every backward frees the saved arrays
    node.edges = node.saved_inputs = ()
    return [outputs[y.slot] for y in roots]


def _weights_of(node):
    """Returns the indices of the node's edges to leaves that are weights."""
    if type(node) not in SPLIT:
        return []
    return [i for i, edge in enumerate(node.edges) if i and isinstance(edge, Tensor)]


def _separable(roots):
    """Returns a list of (node, indices of the node's edges to weights). The list has the nodes
    whose weights may get their gradients in part W, because no op of part B computes a gradient of
    these weights."""
    found = [(node, _weights_of(node)) for node in nodes(roots)]
    now = {edge for node, places in found for i, edge in enumerate(node.edges)
           if isinstance(edge, Tensor) and i not in places}
    found = [pair for pair in found if pair[1]]
    while mixed := [pair for pair in found if any(pair[0].edges[i] in now for i in pair[1])]:
        now |= {node.edges[i] for node, places in mixed for i in places}
        found = [pair for pair in found if pair not in mixed]
    return found


def _inputs_only(node, places, twins, gy):
    """The backward pass calls this function in place of the node's backward. Computes only the
    gradients of inputs, and adds to `twins` a twin node that computes the gradients of the
    weights."""
    # restores the class's backward, and removes a reference cycle, so the node is freed at once
    del node.backward
    twin = copy.copy(node)
    twin.retained = {}
    twin.edges = [edge if i in places else None for i, edge in enumerate(node.edges)]
    twin.needs = [i in places for i in range(len(node.needs))]
    twins.append((Tensor._from(gy, twin), gy))
    node.needs = [need and i not in places for i, need in enumerate(node.needs)]
    if not any(node.needs):
        return (None,) * len(node.needs)
    gxs = node.backward(gy)
    return tuple(gx if need else None for gx, need in zip(gxs, node.needs, strict=True))
