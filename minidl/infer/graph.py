"""A model as a list of operations. Passes rewrite this list, and compile turns it into a plan.

    graph(x: float32[64, 784])
      %1: float32[64, 512] = linear(x, 0.weight, 0.bias)
      %2: float32[64, 512] = relu(%1)
      return %2

Static single assignment (SSA): each value is made by exactly one line, and only later lines read
the value. A pass looks up which lines read a value. So it can move or replace the line that makes
the value.

    %4 = linear(x, 0.weight, 0.bias) then relu        `then`: the steps change each element of the
    %9 = chain(%3, %8) then v0 = add(%3, %8); ...     result while it is still in a register

Source: Cytron et al. 1991 (SSA).   Test: tests/infer/test_graph.py
"""

from collections import namedtuple
from typing import Any

import numpy as np

from minidl.forward import op_name
from minidl.mode import no_grad

# A Step is an elementwise operation after a node's own operation. An operand is a number or a pair.
# ("in", i): the node's input i. ("v", k): the result of step k. ("v", -1): the result of the node's
# own operation.
Step = namedtuple("Step", "op kind operands attributes")


class Value:
    """An array of the graph: an input, a result of a node, a constant or a parameter.

    array: the array of a constant or a parameter, else None.
    name: the name of a parameter or an input, else None."""

    def __init__(self, shape, dtype, name=None, array=None):
        self.shape, self.dtype, self.name, self.array = tuple(shape), np.dtype(dtype), name, array

    type = property(lambda self: f"{self.dtype.name}{list(self.shape)}")
    n_bytes = property(lambda self: int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize)


class Node:
    """One line of a graph.

    kind: a Function class or a function of arrays. It is None for a chain, which has only steps.
    inputs: Values, numbers and None. None stands for an input that is left out, such as a bias. The
    operation reads the first n_own inputs. The steps read the other inputs.
    steps: elementwise operations that run on the operation's result, one after the other.
    pad: ((top, bottom), (left, right)), the widths of a border of zeros around an image
    (N, H, W, C). The border is added after the steps. None means that there is no border."""

    def __init__(self, op, kind, inputs, attributes, outputs, steps=(), n_own=None, pad=None):
        self.op, self.kind, self.inputs, self.outputs = op, kind, list(inputs), list(outputs)
        self.attributes, self.steps, self.pad = dict(attributes), tuple(steps), pad
        self.n_own = len(self.inputs) if n_own is None else n_own

    output = property(lambda self: self.outputs[0])
    values = property(lambda self: [x for x in self.inputs if isinstance(x, Value)])

    def evaluate(self, arrays):
        """Runs the operation, the steps and the padding by eager ops. Returns a tuple of arrays.
        arrays: for each input an array, a number or None."""
        own = call(self.kind, arrays[:self.n_own], self.attributes) if self.kind else ()
        done = {-1: own[0] if own else None}
        for k, step in enumerate(self.steps):
            operands = [x if not isinstance(x, tuple) else arrays[x[1]] if x[0] == "in"
                        else done[x[1]] for x in step.operands]
            done[k], = call(step.kind, operands, step.attributes)
        own = (done[len(self.steps) - 1],) if self.steps else own
        return own if self.pad is None else (np.pad(own[0], ((0, 0), *self.pad, (0, 0))),)


def call(kind, arrays, attributes):
    """Calls `kind`, a Function class or a function of arrays. Returns a tuple of arrays."""
    if not isinstance(kind, type):
        result = kind(*arrays, **attributes)
        return result if isinstance(result, tuple) else (result,)
    with no_grad():
        result = kind.apply(*arrays, **attributes)
    return tuple(y.array for y in (result if isinstance(result, tuple) else (result,)))


class Graph:
    """A list of nodes that compute the outputs from the inputs.

    inputs, outputs: lists of Values.
    nodes: a list of Nodes, in an order in which they can run.
    guards: a trace.Guards, which finds out if the model has changed since the trace. If None, a
    plan of this graph does not check the model.
    single: True if the model returned one tensor, False if it returned a tuple."""

    def __init__(self, inputs, nodes, outputs, guards=None, single=True):
        self.inputs, self.nodes, self.outputs = list(inputs), list(nodes), list(outputs)
        self.guards, self.single = guards, single

    def run(self, *arrays) -> Any:
        """Runs the lines one after the other, by eager ops. Returns one array, or a tuple of arrays
        if the model returned a tuple. Tests compare the result of every plan with this result."""
        known = dict(zip(self.inputs, arrays, strict=True))
        for node in self.nodes:
            made = node.evaluate([self._array(x, known) for x in node.inputs])
            known.update(zip(node.outputs, made))
        results = tuple(self._array(v, known) for v in self.outputs)
        return results[0] if self.single else results

    @staticmethod
    def _array(x, known):
        return x if not isinstance(x, Value) else known[x] if x.array is None else x.array

    def users(self):
        """Returns {value: [nodes that read it]}. A node that reads a value twice is in the list
        twice."""
        found = {}
        for node in self.nodes:
            for value in node.values:
                found.setdefault(value, []).append(node)
        return found

    def producers(self):
        """Returns {value: the node that makes it}."""
        return {value: node for node in self.nodes for value in node.outputs}

    def replace(self, old, new):
        """Replaces the Value `old` by `new` in the inputs of all nodes and in the graph's
        outputs."""
        for node in self.nodes:
            node.inputs = [new if x is old else x for x in node.inputs]
        self.outputs = [new if v is old else v for v in self.outputs]

    def verify(self):
        """Returns the graph itself. Raises ValueError unless the graph is in SSA form and can
        run."""
        known = set(self.inputs)
        for i, node in enumerate(self.nodes):
            for value in node.values:
                if value.array is None and value not in known:
                    raise ValueError(f"line {i}, {node.op}: reads a {value.type} that no line "
                                     "before it makes. A pass has moved this line up, or has "
                                     "removed the line that makes the value")
                if value.array is not None and (value.array.shape, value.array.dtype) != (
                        value.shape, value.dtype):
                    raise ValueError(f"line {i}, {node.op}: wanted an array {value.type} for a "
                                     "constant; got an array "
                                     f"{value.array.dtype}{list(value.array.shape)}")
            for k, step in enumerate(node.steps):
                for x in step.operands:
                    if isinstance(x, tuple) and not (
                            0 <= x[1] < len(node.inputs) if x[0] == "in"
                            else (-1 if node.kind else 0) <= x[1] < k):
                        raise ValueError(f"line {i}, {node.op}: step {k} reads "
                                         f"{'input' if x[0] == 'in' else 'the result of step'} "
                                         f"{x[1]}; wanted an input from 0 to "
                                         f"{len(node.inputs) - 1}, or the result of an earlier "
                                         "step")
            for value in node.outputs:
                if value in known:
                    raise ValueError(f"line {i}, {node.op}: makes a value that is an input of the "
                                     "graph or the result of an earlier line. Each value must be "
                                     "made once")
                known.add(value)
        for value in self.outputs:
            if value.array is None and value not in known:
                raise ValueError(f"the graph returns a {value.type} that no line makes. A pass has "
                                 "removed the line that makes this result")
        return self

    def count(self, *ops):
        """Returns the number of lines that have one of these operations. ops: names of operations.
        Without a name, all lines are counted."""
        return sum(not ops or node.op in ops for node in self.nodes)

    def names(self):
        """Returns {value: text}. In print(graph) the text stands for the value. It is the value's
        own name, or the number of the line that makes the value."""
        named = {v: v.name for v in self.inputs}
        for i, node in enumerate(self.nodes):
            named.update({v: v.name or f"%{i}" + f".{k}" * (len(node.outputs) > 1)
                          for k, v in enumerate(node.outputs)})
        return named

    def __str__(self):
        named = self.names()

        def text(x):
            if not isinstance(x, Value):
                return repr(x)
            if x.array is not None and x.array.size == 1 and not x.name:
                return repr(x.array.item())
            return named.get(x) or x.name or f"constant {x.type}"

        lines = [f"graph({', '.join(f'{v.name}: {v.type}' for v in self.inputs)})"]
        for node in self.nodes:
            made = ", ".join(f"{named[v]}: {v.type}" for v in node.outputs)
            given = [text(x) for x in node.inputs[:node.n_own]]
            given += [f"{k}={_short(v)}" for k, v in node.attributes.items()]
            line = f"  {made} = {node.op}({', '.join(given)})"
            for k, step in enumerate(node.steps):
                xs = [text(x) if not isinstance(x, tuple) else text(node.inputs[x[1]])
                      if x[0] == "in" else "." if x[1] == k - 1 else f"v{x[1]}"
                      for x in step.operands]
                line += f" then {step.op}({', '.join(xs)})"
            lines.append(line + (f" pad {node.pad}" if node.pad else ""))
        returned = ", ".join(text(v) for v in self.outputs)
        return "\n".join([*lines, f"  return {returned}"])


def _short(x):
    if isinstance(x, np.ndarray):
        return f"{x.dtype.name}{list(x.shape)}"
    if isinstance(x, (list, tuple)):
        return f"({', '.join(map(_short, x))})"
    return repr(x)


def name_of(cls, options):
    """Returns an operation's name in the graph. A Function class that serves several operations has
    the name in its options."""
    return options.get("name") or op_name(cls)
