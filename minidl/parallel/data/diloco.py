"""DiLoCo: each rank trains alone for hundreds of steps. Then the ranks' mean movement is used as a
gradient.

The plain form: minidl/plain/local_sgd.py. Here any outer optimizer can be used, and fragments of
the model are sent while the ranks continue to train. A rank holds its model and the inner
optimizer's state. It also holds the common weights w and the outer momentum, together 8 bytes for
each float32 weight. All ranks have the same w and the same outer momentum.

    diloco = DiLoCo(model, t, optimizer, period=500)
    loss = F.cross_entropy(diloco(x), y)
    loss.backward(); optimizer.step(); optimizer.zero_grad()
    diloco.step()

Streaming: the model is cut into P fragments. Each fragment is synchronised every H steps, so one
fragment is sent every H/P steps. A fragment has about K/P bytes, for a model of K bytes. The
sending may take `delay` steps. It runs in the background, and the ranks continue to train:

    step        0     1     2     3     4     5     6     7     8        H = 8, P = 2, delay = 2
    fragment 0                          |- sent ---|
    fragment 1                                                  |- sent ---|

In step 4 rank k begins to send d = w - w_k of fragment 0, where w_k are the rank's own weights. In
step 6 d has become the mean over ranks, and the outer step computes a new w. Meanwhile rank k has
trained the fragment further, to other weights w_k. Rank k continues from the weights
w + alpha (w_k - w). By default alpha is 0.5. Without delay alpha is 0, and the ranks continue from
w. The step number decides which fragment is sent, so all ranks send the same fragment.

Sources: Douillard et al. 2023 (arXiv 2311.08105); Douillard et al. 2025 (arXiv 2501.18512),
Streaming DiLoCo. By default a fragment consists of parameters that are defined one after the other
in the model.
Test: tests/parallel/data/test_diloco.py   Tutorial: tutorials/17_local_sgd.py
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from minidl import optim
from minidl.comm.labels import about
from minidl.comm.transport.background import Background
from minidl.mode import no_grad
from minidl.parallel.data.bucket import default_all_reduce
from minidl.parallel.data.data_parallel import broadcast_state
from minidl.parallel.data.local_sgd import average_arrays, average_bytes, check_plain, divergence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from minidl.comm.transport.protocol import Transport
    from minidl.hints import HasGroups
    from minidl.nn.module import Module
    from minidl.parallel.model.pipeline import Pipeline
    from minidl.tensor import Tensor


def fragments_of(params, n):
    """Cuts params, in order, into n lists with about the same number of elements. No list is empty.
    Raises ValueError if there are fewer than n parameters."""
    if not 1 <= n <= len(params):
        raise ValueError(f"DiLoCo wants from 1 to {len(params)} fragments, each with at least one "
                         f"parameter; got fragments={n}")
    total, runs, done = sum(p.numel() for p in params), [[]], 0
    for i, p in enumerate(params):
        left = len(params) - i
        full = done >= total * len(runs) / n
        if runs[-1] and len(runs) < n and (full or left <= n - len(runs)):
            runs.append([])
        runs[-1].append(p)
        done += p.numel()
    return runs


class DiLoCo:
    """Trains `model` by DiLoCo on the ranks of t. `optimizer` is this rank's inner optimizer. Call
    step() after each step of the inner optimizer.

    outer        a function f(parameters) that returns the outer optimizer. The default is SGD with
                 lr 0.7 and Nesterov momentum 0.9, as in the paper
    period       H, in steps
    fragments    P, the number of fragments; it must divide H. It can also be a list of the
                 fragments. A fragment is a list of parameters, and each parameter must be in
                 exactly one fragment
    delay        the number of steps between the start of a fragment's sending and the fragment's
                 outer step. It must be less than H/P
    alpha        see the top of the file. With None, alpha is 0 if delay is 0, else 0.5
    all_reduce   any f(t, array) that sums in place

    Raises ValueError if the optimizer has master copies, if the period or the delay does not fit,
    or if the fragments miss or repeat a parameter. Raises TypeError if the model or the optimizer
    does not have all weights on each rank."""

    def __init__(self, model: Module | Pipeline, t: Transport, optimizer: HasGroups,
                 outer: Callable[..., Any] | None = None, period: int = 500,
                 fragments: int | Iterable[Iterable[Tensor]] = 1, delay: int = 0,
                 alpha: float | None = None, all_reduce: Callable[..., Any] | None = None):
        check_plain(t, model, optimizer, "DiLoCo")
        if optimizer.low:
            raise ValueError(f"rank {t.rank}: DiLoCo wants an optimizer that updates the model's "
                             "own weights; got an optimizer with fp32 master copies. Use float32 "
                             "weights and autocast")
        params = [p for p in model.parameters() if p.requires_grad]
        self.fragments = (fragments_of(params, fragments) if isinstance(fragments, int)
                          else [list(run) for run in fragments])
        n = len(self.fragments)
        if sorted(map(id, sum(self.fragments, []))) != sorted(map(id, params)):
            raise ValueError(f"rank {t.rank}: DiLoCo wants each parameter that requires a gradient "
                             "in exactly one fragment; got fragments that miss or repeat a "
                             "parameter")
        if period < 1 or period % n or not 0 <= delay < period // n:
            raise ValueError(f"rank {t.rank}: DiLoCo with {n} fragments wants a period that is "
                             f"divisible by {n}, and 0 <= delay < period / {n}; got "
                             f"period={period}, delay={delay}")
        broadcast_state(t, [*model.parameters(), *model.buffers()])
        self.module, self.t, self.inner = model, t, optimizer
        self.period, self.delay = period, delay
        self.alpha = (0.5 if delay else 0.0) if alpha is None else alpha
        self.outer = outer(params) if outer else optim.SGD(params, lr=0.7, momentum=0.9,
                                                           nesterov=True)
        self.all_reduce = all_reduce or default_all_reduce(params)
        self.common = {p: p.array.copy() for p in params}  # w, which is the same on all ranks
        self.n_steps = 0
        self.coming = {}  # {step at which the outer step is due: (parameters, gradients, job)}
        self.background = Background(t) if delay else None

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        return self.module(*inputs, **options)

    def step(self) -> Any:
        """Call this after the inner optimizer's step. Sends a fragment in every (H/P)-th call, and
        makes the outer step of a fragment whose delay is over. Collective."""
        self.n_steps += 1
        every = self.period // len(self.fragments)
        if self.n_steps % every == 0:
            number = (self.n_steps // every - 1) % len(self.fragments)
            run = self.fragments[number]
            moved = [self.common[p] - p.array for p in run]
            name = f"fragment {number}" if len(self.fragments) > 1 else "pseudo-gradients"
            job = (self.background.submit(self._mean, moved, name) if self.delay
                   else self._mean(self.t, moved, name))
            self.coming[self.n_steps + self.delay] = run, moved, job
        if self.n_steps in self.coming:
            run, moved, job = self.coming.pop(self.n_steps)
            if job is not None:
                job.wait()
            self.outer_step(run, moved)

    def _mean(self, t, arrays, name):
        with about(name):
            average_arrays(t, arrays, self.all_reduce)

    def outer_step(self, run, moved):
        """Makes the outer optimizer's step. run: a fragment's parameters. moved: a list of arrays,
        the parameters' mean pseudo-gradients."""
        every = self.outer.parameters()
        kept = {p: p.grad for p in every}  # gradients of the inner step
        local = {p: p.array.copy() for p in run}
        for p in every:
            p.grad = None  # without a gradient, the parameters of other fragments do not move
        for p, d in zip(run, moved, strict=True):
            p.array[...], p.grad = self.common[p], d
        self.outer.step()
        with no_grad():
            for p in run:
                self.common[p][...] = p.array
                if self.alpha:
                    p.array += self.alpha * (local[p] - p.array)
                p.version += 1
        for p, grad in kept.items():
            p.grad = grad
        if run is self.fragments[-1]:
            broadcast_state(self.t, list(self.module.buffers()))

    @contextmanager
    def common_weights(self):
        """A context in which the model holds the common weights w, which are the same on all ranks.
        Use it to evaluate, save or load. At the end of the context the model's values become the
        new w. Then the model holds this rank's own weights again."""
        local = {p: p.array.copy() for p in self.common}
        self._put(self.common)
        try:
            yield self.module
        finally:
            for p, w in self.common.items():
                w[...] = p.array
            self._put(local)

    def _put(self, values):
        for p, value in values.items():
            p.array[...] = value
            p.version += 1

    def divergence(self) -> float:
        """Returns a number that tells how far apart the ranks' weights are (see
        local_sgd.divergence). Collective."""
        return divergence(self.t, list(self.common), self.all_reduce)

    def bytes_sent(self, n_periods: int = 1) -> int:
        """Returns the bytes that this rank sends around a ring in n_periods periods of H steps.
        Buffers are not counted."""
        return n_periods * sum(average_bytes(self.t, run) for run in self.fragments)

    def state_dict(self) -> dict[str, Any]:
        """Returns the number of steps, for a snapshot. The snapshot must also hold the weights w
        and the outer optimizer. Each rank saves its own weights and inner optimizer in a snapshot
        of its own (docs/large_batches.md). Raises ValueError while a fragment is being sent."""
        if self.coming:
            raise ValueError(f"rank {self.t.rank}: DiLoCo cannot be saved while a fragment is "
                             f"being sent; got step {self.n_steps}. Save after step "
                             f"{min(self.coming)}, when the fragment has arrived")
        return {"n_steps": self.n_steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.n_steps = state["n_steps"]

    def close(self) -> None:
        """Waits until all fragments have been sent, and ends the background thread. The model keeps
        this rank's own weights."""
        if self.background is not None:
            self.background.close()
