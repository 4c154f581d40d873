"""Recompute (activation checkpointing): backward runs a segment again, from its kept inputs.

The plain form: minidl/plain/recompute.py. Here too, a segment is one node of the graph. But this
node has edges to the segment's inputs and to every parameter that the segment uses. There is one
edge for each use. recompute() finds the parameters itself. So backward gets the gradients one by
one, in the same order as without recompute. Sums then have the same bits, and hooks are called in
the same order.

The second run has every setting of the first run: the random numbers, the `training` flag of each
module, autocast, kernels. The second run does not update batch norm's running statistics. A
collective inside a segment runs twice, on all ranks.

n layers in k segments hold the k inputs of the segments. During backward they also hold the
activations of one segment, which has n/k layers.
Sources: Chen et al. 2016 (arXiv 1604.06174); keeping some ops: Korthikanti et al. 2022
(arXiv 2205.05198).
Test: tests/memory/test_recompute.py   Tutorial: tutorials/06_memory.py
"""

import heapq
import itertools
from collections import Counter
from numbers import Number

from minidl import backend, random
from minidl.backward import edge_to, nodes, walk
from minidl.forward import op_name
from minidl.function import Function
from minidl.mode import current, running, training_as, watched_training
from minidl.nest import each, leaves
from minidl.saved import Pack
from minidl.tensor import Tensor


def recompute(fn, *inputs, keep=None, **options):
    """Returns fn(*inputs, **options). Keeps only the inputs for backward, which calls fn again.

    fn:      a function, usually a Module. A second call must do the same as the first. The
             parameters that fn uses are found automatically. fn may use a tensor that an op outside
             of fn has computed. If this tensor requires a gradient, it must be an input. Otherwise
             ValueError is raised.
    inputs, options:  Tensors, also in tuples, lists and dicts. Other values are passed to fn
             unchanged.
    keep:    None, or a function keep(op_name) -> bool. If keep returns True, the results of this op
             are kept and not computed again. For example, `{"linear", "matmul"}.__contains__` keeps
             matrix products.

    fn may return Tensors, numbers and None, also in tuples, lists and dicts. Raises TypeError for
    other results, and RuntimeError in backward if the second call of fn does not do the same as the
    first."""
    if not current().grad:
        return fn(*inputs, **options)
    tensors = _tensors((inputs, options))
    given = [Tensor(x.array, x.requires_grad) for x in tensors]
    segment = _Segment(fn, (inputs, options), tensors, keep)
    outputs, uses = segment.run(given)
    instead = dict(zip(given, tensors))  # used if a result of fn is also an input of fn
    if uses:
        place = {x: i for i, x in enumerate(given)}
        segment.edges = [place.get(leaf, leaf) for leaf in uses]
        edges = [tensors[edge] if isinstance(edge, int) else edge for edge in segment.edges]
        used = {edge for edge in segment.edges if isinstance(edge, int)}
        others = [x.detach() if x.requires_grad else x
                  for i, x in enumerate(tensors) if i not in used]
        results = _differentiable(outputs)
        made = Recompute.apply(*edges, *others, segment=segment, inputs=tensors,
                               outputs=tuple(y.array for y in results))
        instead.update(zip(results, made, strict=True))
    return each(lambda y: instead.get(y, y) if isinstance(y, Tensor) else y, outputs)


def recompute_sequential(layers, x, segments, keep=None):
    """Returns layers[-1](...layers[0](x)), computed in segments that backward runs again.

    segments: an int or a list. An int is the number of segments, and their lengths differ by at
    most one layer. A list [(start, stop, recomputed)] comes from `recompute_plan.plan`. keep: as in
    recompute(). Raises ValueError if the segments do not cover all layers in order."""
    layers = list(layers)
    if isinstance(segments, int):
        if not 1 <= segments <= len(layers):
            raise ValueError(f"recompute_sequential wants from 1 to {len(layers)} segments (the "
                             f"number of layers); got segments={segments}")
        cuts = [i * len(layers) // segments for i in range(segments + 1)]
        segments = [(a, b, True) for a, b in zip(cuts, cuts[1:], strict=False)]
    if [i for a, b, _ in segments for i in range(a, b)] != list(range(len(layers))):
        raise ValueError("recompute_sequential wants segments (start, stop, recomputed) that have "
                         f"the layers 0 to {len(layers) - 1} in order, each layer once; got "
                         f"{segments}")
    for start, stop, again in segments:
        def run(x, part=layers[start:stop]):
            for layer in part:
                x = layer(x)
            return x
        x = recompute(run, x, keep=keep) if again else run(x)
    return x


class Recompute(Function):
    """A segment as one node of the graph. Saves its inputs, the arrays that `keep` chose, and the
    parameters that it uses. Parameters are saved as leaves, without a copy. So if a parameter is
    changed before backward, backward raises an error."""
    arithmetic = False  # this node computes nothing; the ops inside the segment compute and round

    def forward(self, *used, segment, inputs, outputs):
        self.segment = segment
        self.n_edges = len(segment.edges)
        self.wants = [x.requires_grad for x in inputs]
        parameters = [edge.array for edge in segment.edges if isinstance(edge, Tensor)]
        self.n_kept = len(segment.kept)
        self.save(*segment.kept, *[x.array for x in inputs], *parameters)
        segment.kept = ()  # now only `saved` holds these arrays, and backward frees them
        return outputs

    def backward(self, *gys):
        kept, arrays = self.saved[:self.n_kept], self.saved[self.n_kept:]
        given = [Tensor(x, wants) for x, wants in zip(arrays, self.wants, strict=False)]
        outputs = self.segment.run_again(given, kept)
        if [(y.array.shape, y.dtype) for y in outputs] != self.output_meta:
            raise RuntimeError(
                "recompute: the function must do the same when it runs again; its results had the "
                f"(shape, dtype) {self.output_meta} at first, and "
                f"{[(y.shape, y.dtype) for y in outputs]} when it ran again")
        place = {x: i for i, x in enumerate(given)}
        gradients = {}  # {index of an input, or a parameter: its gradients, in order of arrival}

        def deposit(leaf, g):
            gradients.setdefault(place.get(leaf, leaf), []).append(g)

        walk(outputs, gys, deposit=deposit, each=True)
        first, now = Counter(self.segment.edges), {k: len(g) for k, g in gradients.items()}
        if first != now:
            raise RuntimeError(
                "recompute: the function must do the same when it runs again; it used "
                f"{_counted(first)} at first, and {_counted(now)} when it ran again")
        gxs = [gradients[edge].pop(0) for edge in self.segment.edges]
        return (*gxs, *[None] * (len(self.edges) - self.n_edges))


def arrivals(roots):
    """Returns the leaves of the graph of `roots`, in the order in which backward sends gradients to
    the leaves. A leaf is listed once for each gradient that it gets. A segment passes its gradients
    on in this order. So the gradients of leaves are completed, and their hooks run, in the same
    order as without recompute. Data parallelism then has the same rounding errors in its sums."""
    heap, seen, turn, found = [], set(), itertools.count(), []

    def reach(edge):
        if type(edge) is not tuple:
            found.append(edge)
        elif edge[0] not in seen:
            seen.add(edge[0])
            heapq.heappush(heap, (-edge[0].depth, next(turn), edge[0]))

    for root in roots:
        if root.requires_grad:
            reach(edge_to(root))
    while heap:
        for edge in heapq.heappop(heap)[2].edges:
            if edge is not None:
                reach(edge)
    return found


def _counted(uses):
    """Returns a text such as 'input 0 once, a parameter of shape (3, 4) 2 times'."""
    return ", ".join(
        (f"input {edge}" if isinstance(edge, int) else f"a parameter of shape {tuple(edge.shape)}")
        + (" once" if n == 1 else f" {n} times") for edge, n in uses.items()) or "no parameter"


class _Input(int):
    """The index of an input. In the nested arguments it takes the place of this input."""


def _tensors(nest):
    """Returns a list of the tensors in `nest` (tuples, lists and dicts), each tensor once."""
    return list(dict.fromkeys(x for x in leaves(nest) if isinstance(x, Tensor)))


def _differentiable(outputs):
    return [y for y in _tensors(outputs) if y.requires_grad]


class _Segment:
    """A function, the settings of its first run, and the arrays to keep.

    call    (inputs, options), with the index of an input in place of each Tensor
    edges   a list of the targets of the segment's gradients. A target is the index of an input, or
            a parameter. It is listed once for each use
    kept    arrays of the first run that are kept and not computed again"""

    def __init__(self, fn, call, tensors, keep):
        number = {x: _Input(i) for i, x in enumerate(tensors)}
        self.fn, self.keep = fn, keep
        self.call = each(lambda x: number[x] if isinstance(x, Tensor) else x, call)
        self.mode = current()  # the settings of the first run: autocast, kernels, ...
        self.generator = random.default_generator()
        self.made = set()  # nodes of the first run
        self.kept, self.recipes = [], []

    def _run(self, inputs):
        args, options = each(lambda x: inputs[x] if isinstance(x, _Input) else x, self.call)
        return self.fn(*args, **options)

    def run(self, inputs):
        """Does the first run. Returns (outputs, the leaves in the order of `arrivals`). Raises
        TypeError if fn returns a value that is not allowed. Raises ValueError if fn uses a tensor
        that must be an input."""
        with (random.watched() as self.generators, watched_training() as self.training,
              running(intercept=self._first)):
            outputs = self._run(inputs)
        for y in leaves(outputs):
            if not (y is None or hasattr(y, "dtype") or isinstance(y, (Number, str))):
                raise TypeError(
                    "recompute wants a function that returns Tensors, numbers and None, also in "
                    f"tuples, lists and dicts; got a {type(y).__name__}, and recompute cannot "
                    "find the Tensors in it")
        roots = _differentiable(outputs)
        for node in nodes(roots):
            if node not in self.made:
                raise ValueError(
                    f"recompute: the function uses a tensor y that an op outside of the function "
                    f"({op_name(type(node))}) has computed. Pass y as an input: recompute(fn, x, "
                    "y)")
        self.made = None
        return outputs, arrivals(roots)

    def run_again(self, inputs, kept):
        """Does the second run, with the settings of the first run, and records the segment's graph.
        Returns the outputs that require gradients. Afterwards, generators and modules have the same
        state as before this call."""
        now = {generator: generator.get_state() for generator in self.generators}
        for generator, state in self.generators.items():
            generator.set_state(state)
        recipes = iter(self.recipes)

        def again(node, forward, arrays, options):
            return self._again(node, forward, arrays, options, recipes, kept)

        try:
            with (running(self.mode, replaying=True, intercept=again, ledger=current().ledger),
                  training_as(self.training), random.using(self.generator)):
                return _differentiable(self._run(inputs))
        finally:
            for generator, state in now.items():
                generator.set_state(state)

    def _first(self, node, forward, arrays, options):
        self.made.add(node)
        result = forward(*arrays, **options)
        if self.keep is not None and self.keep(op_name(type(node))):
            results = result if isinstance(result, tuple) else (result,)
            made = [self._store(y, arrays) for y in results]
            saved = [self._store(s, (*arrays, *results)) for s in node._saved]
            state = {k: v for k, v in vars(node).items() if k != "_saved"}
            self.recipes.append((type(node), state, made, saved, isinstance(result, tuple)))
        return result

    def _again(self, node, forward, arrays, options, recipes, kept):
        op = op_name(type(node))
        if self.keep is None or not self.keep(op):
            return forward(*arrays, **options)
        cls, state, made, saved, several = next(recipes, (None,) * 5)
        if cls is not type(node):
            raise RuntimeError("recompute: the function must do the same when it runs again; at "
                               f"first it ran the op {cls and op_name(cls)}, and when it ran "
                               f"again, it ran {op} instead")
        vars(node).update(state)
        results = tuple(_load(y, arrays, kept) for y in made)
        node.save(*(_load(s, (*arrays, *results), kept) for s in saved))
        return results if several else results[0]

    def _store(self, value, known):
        """Returns a pair that stands for `value`. In the second run, `_load` returns the value of
        this pair. known: arrays that the second run also has. If `value` is an array that is not in
        `known`, it is added to `kept`."""
        if type(value) is Pack:  # the value was rounded to bfloat16
            return "pack", (self._store(value[0], known), value[1])
        if not hasattr(value, "nbytes"):
            return "value", value
        for i, array in enumerate(known):
            if value is array or backend.is_reshaped(value, array):
                return "known", (i, value.shape)
        self.kept.append(value)
        return "kept", len(self.kept) - 1


def _load(stored, known, kept):
    where, what = stored
    if where == "pack":
        return Pack((_load(what[0], known, kept), what[1]))
    if where == "known":
        i, shape = what
        return known[i].reshape(shape)
    return kept[what] if where == "kept" else what
