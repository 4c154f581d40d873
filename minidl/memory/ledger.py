"""The memory ledger counts every byte that training holds: for each kind, now and at the peak.

The plain form counts the arrays that a graph holds: minidl/plain/memory.py. This file counts all
kinds of arrays, from their allocation until they are freed.

    kind            bytes for each parameter, or which arrays
    parameters      2 or 4 bytes               gradients   the same as the parameters
    master weights  4, if weights are fp16     optimizer   8 for Adam's m and v
    inputs          arrays that no op made, such as the batch
    activations     arrays that forward saves for backward; also listed by op and by module
    temporary       results that are not saved, and gradients between two nodes
    workspace       arrays that an op makes and frees, such as convolution's columns (workspace.py)
    communication   buckets (parallel/data/bucket.py), and a transport's scratch memory

    print(memory.report(model, optimizer))                 the exact bytes between two steps

    with memory.record(model, optimizer) as ledger:        records a step
        loss = ...; loss.backward(); optimizer.step()
    print(ledger.report())                                 the bytes at the peak
    ledger.plot("out/06.png")                              draws the bytes during the step

A recording sees three kinds of arrays of a Function: results of forward, saved arrays, and results
of backward. It follows each buffer until Python frees it. (A buffer is an array that owns its
memory; its views do not count.) An op also makes arrays for its own use. The op reports the large
arrays by `scratch` (cuda/launch.py), and the recording sees the reported arrays. workspace.py has
formulas for the bytes of these arrays. The recording does not see small arrays, or temporary arrays
inside an expression, such as the product in `a * b + c`. tests/memory/test_ledger.py and
benchmarks/bench_memory.py compare the recorded bytes with the memory that the process uses.
Source: Rajbhandari et al. 2020 (arXiv 1910.02054), section 3: where did all the memory go?
Test: tests/memory/test_ledger.py   Prediction: predict.py   Tutorial: tutorials/06_memory.py
"""

import weakref
from collections import Counter, namedtuple
from contextlib import contextmanager

from minidl import saved
from minidl.backend import buffer_of
from minidl.mode import current, running
from minidl.tensor import Tensor

STATES = ("parameters", "gradients", "master weights", "optimizer")
KINDS = (*STATES, "communication", "inputs", "activations", "temporary", "workspace")
RANK = {kind: i for i, kind in enumerate(KINDS)}

# A Held describes a buffer in use: its kind, its bytes, the op and the module that made it, and its
# number in the recording.
Held = namedtuple("Held", "kind n_bytes op module number")


def states(model=None, optimizer=None, communication=()):
    """Returns {kind: [buffers]} with all buffers that are held between two steps. Each buffer is
    listed once, under the first kind that holds it. communication: objects with a method
    `communication_buffers()`, such as DataParallel."""
    parameters = list(model.parameters()) if model is not None else []
    low, state = ({}, {}) if optimizer is None else (optimizer.low, optimizer.state)
    if optimizer is not None:
        updated = [low.get(p, p) for p in optimizer.parameters()]
        parameters = list(dict.fromkeys([*parameters, *updated]))
    arrays = {  # a buffer that is in several lists counts only in the first
        "parameters": [p.array for p in parameters],
        "master weights": [m.array for m in low],
        "optimizer": [value for values in state.values() for value in values.values()
                      if getattr(value, "ndim", 1)],  # a step count (4 bytes on a GPU) is left out
        "gradients": [t.grad.array for t in (*parameters, *low)  # some are views of a bucket
                      if isinstance(t.grad, Tensor)],
        "communication": [x for holder in communication for x in holder.communication_buffers()],
    }
    if model is not None:
        arrays["parameters"] += [b.array for b in model.buffers()]
    seen, found = set(), {}
    for kind, group in arrays.items():
        owners = [buffer_of(array) for array in group if hasattr(array, "nbytes")]
        found[kind] = [x for x in owners if id(x) not in seen and not seen.add(id(x))]
    return found


def totals(model=None, optimizer=None, communication=()):
    """Returns {kind: the bytes that arrays of this kind hold between two steps}. The arguments are
    as in `states`."""
    held = states(model, optimizer, communication)
    return {kind: sum(x.nbytes for x in held[kind]) for kind in KINDS if kind in held}


def report(model=None, optimizer=None, communication=()):
    """Returns the text of a table with the bytes of each kind. The arguments are as in `states`."""
    return _table(totals(model, optimizer, communication))


def note(array, kind):
    """If a recording is running, adds an array to the recording. Call note() for arrays that no
    Function made, such as a bucket or received weights."""
    if (ledger := current().ledger) is not None:
        ledger.note(array, kind)


@contextmanager
def record(model=None, optimizer=None, communication=()):
    """`with record(model, optimizer) as ledger:` records the memory that the block uses. The
    arguments are as in `states`."""
    ledger = Ledger(model, optimizer, communication)
    removes = [remove for name, module in (model.named_modules() if model is not None else ())
               for remove in ledger.follow(name, module)]
    try:
        with running(ledger=ledger):
            yield ledger
            ledger.mark("end")
    finally:
        ledger.close()
        for remove in removes:
            remove()


class Ledger:
    """The result of a recording.

    timeline   [(label, {kind: bytes})], one entry for each time an array was made or freed
    peak       {kind: bytes} at the time when all kinds together hold the most bytes. by_op() and
               by_module() describe the activations at this time
    events     [(number of a buffer, bytes)], for fragmentation.py. The bytes are 0 if the buffer
               was freed
    kinds      a list: kinds[i] is the last kind of buffer number i"""

    def __init__(self, model, optimizer, communication):
        self.watched = model, optimizer, communication
        self.live = {}  # id of buffer -> Held
        self.now = Counter(dict.fromkeys(KINDS, 0))
        self.timeline, self.events, self.kinds = [], [], []
        self.peak_bytes = -1
        self.modules = [""]
        self._references = {}
        self.mark("start")

    def mark(self, label):
        """Records the new buffers among the results of `states`, and adds an entry to the timeline.
        (For example, an optimizer makes its state in its first step.)"""
        for kind, held in states(*self.watched).items():
            for owner in held:
                self._add(owner, kind, "")
        self._write(label)

    # -- called by the engine

    def forward(self, node, inputs, outputs):
        """Records that a Function has run: `outputs` are new arrays, and the arrays that it saved
        are activations."""
        op = type(node).__name__
        for array in inputs:
            if hasattr(array, "nbytes"):
                self._add(array, "inputs", "")
        for array in outputs:
            self._add(array, "temporary", op)
        for array in saved.held_by(node):
            if hasattr(array, "base"):
                self._add(array, "activations", op)
        self._write(op)

    def backward(self, node, gradients):
        """Records that the backward of a Function has returned these gradients."""
        for array in gradients:
            if hasattr(array, "nbytes"):
                self._add(array, "temporary", type(node).__name__)
        self._write(f"{type(node).__name__}.backward")

    def note(self, array, kind, op=""):
        """Records an array that no Function returned."""
        self._add(array, kind, op)
        self._write(op or kind)

    def gradient(self, leaf):
        """Records that leaf.grad is complete."""
        self._add(leaf.grad.array, "gradients", "")

    def follow(self, name, module):
        """Adds two hooks that note when `module` runs. Returns their two Handles. A call of a
        Handle removes its hook."""
        def enter(module, inputs):
            self.modules.append(name)

        def leave(module, inputs, output):
            self.modules.pop()

        return [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]

    # -- one entry for each buffer

    def _add(self, array, kind, op):
        owner = buffer_of(array)
        key = id(owner)
        if key in self.live:
            held = self.live[key]
            # A buffer may change its kind: a temporary is saved, or becomes the gradient of a leaf.
            if kind != "inputs" and RANK[kind] < RANK[held.kind]:
                self.live[key] = held._replace(kind=kind)
                self.kinds[held.number] = kind
                self.now[held.kind] -= held.n_bytes
                self.now[kind] += held.n_bytes
            return
        try:
            self._references[key] = weakref.ref(owner, lambda _: self._freed(key))
        except TypeError:  # an object of this kind takes no weak reference, and is not counted
            return
        number = len(self.kinds)
        self.live[key] = Held(kind, owner.nbytes, op, self.modules[-1], number)
        self.events.append((number, owner.nbytes))
        self.kinds.append(kind)
        self.now[kind] += owner.nbytes

    def _freed(self, key):
        held = self.live.pop(key)
        self.events.append((held.number, 0))
        self.now[held.kind] -= held.n_bytes
        del self._references[key]
        self._write(f"{held.op} freed")

    def _write(self, label):
        total = self.now.total()
        if total > self.peak_bytes:
            self.peak_bytes, self.peak_at = total, len(self.timeline)
            self._at_peak = [held for held in self.live.values() if held.kind == "activations"]
        self.timeline.append((label, dict(self.now)))

    def close(self):
        self._references.clear()

    # -- reading

    @property
    def peak(self):
        """Returns {kind: bytes} at the time when all kinds together hold the most bytes."""
        return self.timeline[self.peak_at][1]

    def most(self, kind):
        """Returns the largest number of bytes that one kind held at any time."""
        return max(held[kind] for _, held in self.timeline)

    def by_op(self):
        """Returns {op: bytes} of the activations at the peak, largest first."""
        return self._grouped("op")

    def by_module(self):
        """Returns {name of module: bytes} of the activations at the peak, largest first."""
        return self._grouped("module")

    def _grouped(self, origin):
        sums = Counter()
        for held in self._at_peak:
            sums[getattr(held, origin)] += held.n_bytes
        return dict(sums.most_common())

    def report(self):
        """Returns the text of a table: at the peak, the bytes of each kind, and the activations of
        each op."""
        ops = "\n".join(f"    {op:22} {n:>16,}" for op, n in self.by_op().items())
        return f"at the peak, {self.timeline[self.peak_at][0]}\n{_table(self.peak)}\n{ops}"

    def plot(self, path):
        """Draws the timeline into the picture file `path`. The picture has one band for each kind.
        The horizontal axis shows the events. The vertical axis shows the MiB that each kind
        holds."""
        import matplotlib
        matplotlib.use("Agg")
        from matplotlib import pyplot as plt
        figure, axes = plt.subplots(figsize=(9, 4.5), layout="constrained")
        kinds = [kind for kind in KINDS if self.most(kind)]
        bands = [[held[kind] / 2**20 for _, held in self.timeline] for kind in kinds]
        axes.stackplot(range(len(self.timeline)), bands, labels=kinds, step="post", alpha=0.85)
        axes.axvline(self.peak_at, color="black", linewidth=0.8, linestyle=":")
        axes.annotate(f"peak {self.peak_bytes / 2**20:,.1f} MiB, {self.timeline[self.peak_at][0]}",
                      (self.peak_at, self.peak_bytes / 2**20), xytext=(0, 6),
                      textcoords="offset points", ha="center")
        axes.set(xlabel="events (arrays made and freed)", ylabel="MiB held",
                 xlim=(0, len(self.timeline) - 1), ylim=(0, self.peak_bytes / 2**20 * 1.15))
        axes.legend(loc="upper left", ncols=2, fontsize="small")
        figure.savefig(path, dpi=110)
        plt.close(figure)


def _table(held):
    lines = [f"{'held':26} {'bytes':>16}"]
    lines += [f"{kind:26} {n:>16,}" for kind, n in held.items()]
    return "\n".join([*lines, f"{'total':26} {sum(held.values()):>16,}"])
