"""Runs a graph on several streams of a GPU, as one CUDA graph.

    stream 0   linear(x)   relu ------------ add       add waits for an event: mul is complete
    stream 1   exp(x)      mul  --- event ---^         exp and linear may run at the same time

A stream runs its launches one after the other. Launches on different streams are ordered only by
events. If a launch needs the result of the last launch on a stream, the launch goes to this stream.
Otherwise it goes to the stream whose last launch is the earliest. If the launch needs the result of
a launch on another stream, it waits for an event. The wait is left out if another event already
guarantees that the result is complete.

Memory: on one stream the bytes of a value are free after the last launch that reads the value. On
several streams this launch may still run when the next value is written. So two values `a` and `b`
share bytes only under one condition: all launches that read or write `a` are complete before `b` is
written. Streams and events must guarantee this order (the relation "happens before", Lamport 1978).
`races` checks the finished table. It looks at each pair of launches that touch the same bytes.

    plan = infer.streamed(graph, n_streams=2); y = plan(x)      x, y on the GPU; print(plan.table)

Source: CUDA C++ Programming Guide, "CUDA Graphs".   Test: tests/infer/test_streams.py
"""

from collections import namedtuple
from dataclasses import dataclass

import numpy as np

from minidl import backend
from minidl.cuda.cuda_graph import graphed
from minidl.cuda.index_check import unnoted
from minidl.infer import lower, memory
from minidl.infer.graph import Node, Value
from minidl.infer.onnx.operator import ArrayFunction
from minidl.tensor import Tensor

# waits: the indices of the lines that this line waits for. touches: a list of (value, the value's
# first byte in the arena, the byte after its last byte, True if the line writes the value).
Line = namedtuple("Line", "name stream waits touches")


def after(launches, streams, over):
    """Returns {stream: n}. When all `launches` are complete, launch n and all earlier launches on
    this stream are complete, too.

    launches: indices of launches. streams: the stream of each launch.
    over: the list that ordered() returns."""
    known = {}
    for j in launches:
        for s, n in (*over[j].items(), (streams[j], j)):
            known[s] = max(known.get(s, -1), n)
    return known


def ordered(streams, waits):
    """Returns a list with a dict {stream: n} for each launch. When the launch begins, launch n and
    all earlier launches on this stream are complete.

    streams: the stream of each launch. waits: for each launch, the launches that it waits for."""
    over, last = [], {}
    for s, before in zip(streams, waits, strict=True):
        over.append(after((*before, *last.get(s, ())), streams, over))
        last[s] = len(over) - 1,
    return over


def assign(needs, n_streams):
    """Chooses a stream for each launch. Returns two lists: the stream of each launch, and for each
    launch a list of the launches that it waits for. needs: for each launch, the set of launches
    whose results it needs."""
    streams, waits, over, last = [], [], [], [-1] * n_streams
    for i, before in enumerate(needs):
        s = max(range(n_streams), key=lambda s: (True, last[s]) if last[s] in before else (
            False, -last[s]))
        chosen = []
        known = after([last[s]] * (last[s] >= 0), streams, over)
        # Waits for the latest launch first. When it is complete, many earlier launches are
        # complete, too.
        for j in sorted(before, reverse=True):
            if known.get(streams[j], -1) < j:
                chosen.append(j)
                known = after([*chosen, *[last[s]] * (last[s] >= 0)], streams, over)
        streams.append(s)
        waits.append(chosen)
        over.append(known)
        last[s] = i
    return streams, waits


def races(lines):
    """Returns a list with a sentence for each race. A race is a pair of lines that touch the same
    bytes. At least one of the two lines writes these bytes, and the order of the two lines is not
    guaranteed or is wrong. If the list is empty, the result is the same as if the lines ran one
    after the other."""
    over, found, made = ordered([a.stream for a in lines], [a.waits for a in lines]), [], {}
    for i, line in enumerate(lines):
        made.update({v: i for v, _, _, writes in line.touches if writes})
        for j, other in enumerate(lines[:i]):
            is_over = over[i].get(other.stream, -1) >= j
            for v, begin, end, writes in line.touches:
                for w, first, last, wrote in other.touches:
                    if begin < last and first < end and (writes or wrote):
                        what = (f"{other.name} (stream {other.stream}, value {w}) and {line.name} "
                                f"(stream {line.stream}, value {v}) share bytes "
                                f"[{max(begin, first)}, {min(end, last)})")
                        if not is_over:
                            found.append(f"{what}, and no event puts one line before the other")
                        elif wrote and not writes and v != w and made.get(v, -1) < j:
                            found.append(f"{what}: {other.name} overwrites what {line.name} reads")
    return found


@dataclass(frozen=True)
class Used(memory.Lifetime):
    """The Lifetime of a value, together with the launches that use the value.

    touched: the indices of all launches that read or write the value, ascending. The first of these
    launches writes the value. If the value is an input of the graph, the first index is -1. If the
    value is a result of the graph, the last index is the number of launches."""

    touched: tuple


class Table:
    """A table of launches. streams: the stream of each launch. waits: for each launch, the launches
    that it waits for. memory: the Memory of the values. Making a table needs no GPU. Raises
    ValueError if a line of the graph runs only on CPUs."""

    def __init__(self, graph, n_streams):
        for node in graph.verify().nodes:
            if node.pad or node.op.endswith(("_nhwc", "_nchw")) or node.kind is ArrayFunction:
                raise ValueError(f"streamed: line {node.op} runs only on CPUs. Such lines come "
                                 "from two places: the pass `layout` makes such lines, and "
                                 "import_onnx makes them for operators without an op in minidl. "
                                 "Pass the graph that infer.trace returned")
        self.low = low = lower.Lowering(graph, {})
        self.launches, self.outputs, made, needs = low.launches, graph.outputs, {}, []
        for i, launch in enumerate(low.launches):
            roots = [low.layouts[v].root for v in launch.reads if v.array is None]
            written = list(launch.writes)
            if _has_indices(launch.eager):  # launches with indices share one record of bad indices
                roots.append("note")
                written.append("note")
            needs.append({made[v] for v in roots if v in made})
            made.update(dict.fromkeys(written, i))
        self.streams, self.waits = assign(needs, n_streams)
        self._place(graph, len(needs))

    def _place(self, graph, end):
        low, over = self.low, ordered(self.streams, self.waits)
        touched = {v: [-1] for v in graph.inputs}
        for i, launch in enumerate(low.launches):
            for v in (*launch.writes, *launch.reads):
                if v.array is None:
                    touched.setdefault(low.layouts[v].root, []).append(i)
        for v in graph.outputs:
            if v.array is None:
                touched[low.layouts[v].root].append(end)

        def is_over(a, i):  # True if all launches that touch value a are complete when i begins
            return i >= 0 and all(j < 0 or j < end and over[i].get(self.streams[j], -1) >= j
                                  for j in a.touched)

        spans = [Used(v.n_bytes, t[0], max(t), tuple(t)) for v, t in touched.items()]
        self.memory = memory.plan(spans, lambda a, b: not (
            is_over(a, b.first) or is_over(b, a.first)))
        self.at = dict(zip(touched, self.memory.offsets, strict=True))

    def lines(self):
        """Returns the list of Lines for `races`: one Line for each launch, then one Line that reads
        the results."""
        def touches(values, writes):
            roots = dict.fromkeys(self.low.layouts[v].root for v in values if v.array is None)
            return [(numbers[v], self.at[v], self.at[v] + v.n_bytes, writes) for v in roots]

        numbers = {v: k for k, v in enumerate(self.at)}
        lines = [Line(f"{launch.op}_{i}", s, w,
                      touches(launch.reads, False) + touches(launch.writes, True))
                 for i, (launch, s, w) in enumerate(zip(self.launches, self.streams, self.waits))]
        return [*lines, Line("results", -1, range(len(lines)), touches(self.outputs, False))]

    def __str__(self):
        return "\n".join([*(f"stream {line.stream}   {line.name}"
                            + "".join(f"   after {self.launches[j].op}_{j}" for j in line.waits)
                            for line in self.lines()[:-1]), f"memory: {self.memory}"])


def _has_indices(x):
    if isinstance(x, Node):
        return _has_indices((*x.inputs, *x.attributes.values()))
    return any(map(_has_indices, x)) if isinstance(x, (tuple, list)) else (
        isinstance(x, (np.ndarray, Value)) and x.dtype.kind in "iu")


def streamed(graph, n_streams=2):
    """Captures the graph on n_streams streams of a GPU. Returns a function that replays the graph.

    The function takes arrays or Tensors on the GPU, and returns Tensors on the GPU. The function
    holds a copy of the model's weights. The function's attribute `table` shows which launch runs on
    which stream. A call raises RuntimeError if the model has changed since the trace. It raises
    TypeError for a wrong input."""
    cupy, table = backend.import_cupy(), Table(graph, n_streams)
    if found := races(table.lines()):
        raise RuntimeError(f"streamed: {found[0]}")
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(n_streams)]
    arena = cupy.zeros(table.memory.arena, np.uint8)
    constants, awaited = {}, {j for waits in table.waits for j in waits}

    def on_gpu(x):
        if isinstance(x, (tuple, list)):
            return type(x)(map(on_gpu, x))
        return cupy.asarray(x) if isinstance(x, np.ndarray) else x

    def array(v):
        if not isinstance(v, Value):
            return v
        if v.array is not None:
            if v not in constants:
                constants[v] = cupy.asarray(v.array)
            return constants[v]
        root, offset, strides = table.low.layouts[v]
        flat = arena[table.at[root]:table.at[root] + root.n_bytes].view(v.dtype)
        first = flat[offset // v.dtype.itemsize:]
        return cupy.lib.stride_tricks.as_strided(first, v.shape, strides)

    def line(node):
        attributes = {k: on_gpu(x) for k, x in node.attributes.items()}
        return (Node(node.op, node.kind, node.inputs, attributes, node.outputs, node.steps,
                     node.n_own), [array(v) for v in node.inputs], [array(v) for v in node.outputs])

    lines = [line(launch.eager) for launch in table.launches]
    inputs, outputs = ([array(v) for v in values] for values in (graph.inputs, graph.outputs))

    def run():
        now, done = cupy.cuda.get_current_stream(), {}
        begun = now.record()
        for stream in streams:
            stream.wait_event(begun)
        for i, (node, given, made) in enumerate(lines):
            with streams[table.streams[i]] as stream:
                for j in table.waits[i]:
                    stream.wait_event(done[j])
                for to, y in zip(made, node.evaluate(given), strict=True):
                    to[...] = y
                if i in awaited:
                    done[i] = stream.record()
        for stream in streams:
            now.wait_event(stream.record())

    # During the warm-up runs the inputs have arbitrary values, so a bad index raises no error.
    with unnoted(cupy):
        replay = graphed(run)

    def plan(*given):
        if graph.guards is not None and (changed := graph.guards.changed()):
            raise RuntimeError(f"plan: {changed}; trace the model again")
        for x, to in zip(given, inputs, strict=True):
            x = backend.array_of(x)
            if type(x) is not cupy.ndarray or (x.shape, x.dtype) != (to.shape, to.dtype):
                raise TypeError(f"plan: want {to.dtype}{list(to.shape)} on the GPU, got "
                                f"{type(x).__name__} {getattr(x, 'dtype', '')}"
                                f"{list(getattr(x, 'shape', ()))}. x.to('cuda') moves a tensor to "
                                "the GPU")
            to[...] = x
        replay()
        results = tuple([Tensor._from(y.copy()) for y in outputs])
        return results[0] if graph.single else results

    plan.table, plan.replay = table, replay
    return plan
