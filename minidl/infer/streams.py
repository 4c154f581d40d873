"""A graph on several streams of a GPU, replayed as one CUDA graph.

    stream 0   linear(x)   relu ------------ add       add waits for an event: that mul is over
    stream 1   exp(x)      mul  --- event ---^         exp and linear may run at the same time

A stream runs its launches one after the other; between streams only events put an order. Each
launch goes on where one that it needs was the last, else to the stream that has waited longest. It
waits for those it needs on other streams, but not for what such an event has waited for already.

Memory: in one stream a value's bytes are free after its last reader. Here that reader may still run
when the next value is written. So two values share bytes only if all who touch the one are over
when the other is written, by streams and events alone (happens before: Lamport 1978). `races`
looks at the finished table, and knows nothing of how it was made.

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
from minidl.infer.onnx.operator import OnArrays
from minidl.tensor import Tensor

# touches: (value, first byte, byte after the last, whether it writes) of each value
Line = namedtuple("Line", "name stream waits touches")


def after(launches, streams, over):
    """{stream: its last launch that is over} when all of these are."""
    known = {}
    for j in launches:
        for s, n in (*over[j].items(), (streams[j], j)):
            known[s] = max(known.get(s, -1), n)
    return known


def ordered(streams, waits):
    """For each launch {stream: its last launch that is over} when this one begins."""
    over, last = [], {}
    for s, before in zip(streams, waits, strict=True):
        over.append(after((*before, *last.get(s, ())), streams, over))
        last[s] = len(over) - 1,
    return over


def assign(needs, n_streams):
    """(the stream of each launch, the launches it waits for). needs: for each those it needs."""
    streams, waits, over, last = [], [], [], [-1] * n_streams
    for i, before in enumerate(needs):
        s = max(range(n_streams), key=lambda s: (True, last[s]) if last[s] in before else (
            False, -last[s]))
        chosen = []
        known = after([last[s]] * (last[s] >= 0), streams, over)
        for j in sorted(before, reverse=True):  # what is late has often waited for the others
            if known.get(streams[j], -1) < j:
                chosen.append(j)
                known = after([*chosen, *[last[s]] * (last[s] >= 0)], streams, over)
        streams.append(s)
        waits.append(chosen)
        over.append(known)
        last[s] = i
    return streams, waits


def races(lines):
    """A sentence for each two lines where one may write what the other reads or writes: in no
    order, or in a wrong one. [] if the lines give on any GPU what they give one by one."""
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
                            found.append(f"{what}, and no event puts one before the other")
                        elif wrote and not writes and v != w and made.get(v, -1) < j:
                            found.append(f"{what}: what the second reads is overwritten by then")
    return found


@dataclass(frozen=True)
class Used(memory.Lifetime):
    """A value by who touches it; first: its writer. -1: before all launches; end: after all."""

    touched: tuple


class Table:
    """launches, and of each its stream and waits; memory: where the values lie. Needs no GPU."""

    def __init__(self, graph, n_streams):
        for node in graph.verify().nodes:
            if node.pad or node.op.endswith(("_nhwc", "_nchw")) or node.kind is OnArrays:
                raise ValueError(f"streamed: line {node.op} is for CPUs alone: the pass `layout` "
                                 "makes such, and an imported operator that minidl has no op for. "
                                 "Pass the graph that infer.trace gave")
        self.low = low = lower.Lowering(graph, {})
        self.launches, self.outputs, made, needs = low.launches, graph.outputs, {}, []
        for i, launch in enumerate(low.launches):
            roots = [low.layouts[v].root for v in launch.reads if v.array is None]
            written = list(launch.writes)
            if _has_indices(launch.eager):  # they share one note of the device: cuda/index_check.py
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

        def is_over(a, i):  # whether all who touch value a are over when launch i begins
            return i >= 0 and all(j < 0 or j < end and over[i].get(self.streams[j], -1) >= j
                                  for j in a.touched)

        spans = [Used(v.n_bytes, t[0], max(t), tuple(t)) for v, t in touched.items()]
        self.memory = memory.plan(spans, lambda a, b: not (
            is_over(a, b.first) or is_over(b, a.first)))
        self.at = dict(zip(touched, self.memory.offsets, strict=True))

    def lines(self):
        """What `races` reads: the launches, and at the end the results."""
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
    """A function of arrays or Tensors on the GPU: a replay of the graph, captured on n_streams. It
    has a copy of the model's weights of now; its `table` says what runs where."""
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

    with unnoted(cupy):  # inputs share bytes with later values: only a first run finds what was put
        replay = graphed(run)

    def plan(*given):
        if graph.guards is not None and (changed := graph.guards.changed()):
            raise RuntimeError(f"plan: {changed}; trace it again")
        for x, to in zip(given, inputs, strict=True):
            x = backend.array_of(x)
            if type(x) is not cupy.ndarray or (x.shape, x.dtype) != (to.shape, to.dtype):
                raise TypeError(f"plan: want {to.dtype}{list(to.shape)} on the GPU, got "
                                f"{type(x).__name__} {getattr(x, 'dtype', '')}"
                                f"{list(getattr(x, 'shape', ()))}; x.to('cuda') moves a tensor")
            to[...] = x
        replay()
        results = tuple([Tensor._from(y.copy()) for y in outputs])
        return results[0] if graph.single else results

    plan.table, plan.replay = table, replay
    return plan
