r"""Local SGD: ranks train by themselves and average their weights every H steps.

The plain form: minidl/plain/local_sgd.py. Here: steps of data parallelism first, periods that
follow the loss, rounds inside a node, rounds without slow ranks, and moments that are averaged too.
`divergence()` says how far the ranks are apart.

    local = LocalSGD(model, t, optimizer, period=8, start=500)
    loss = F.cross_entropy(local(x), y)
    loss.backward(); optimizer.step(); optimizer.zero_grad()
    local.step()                            # counts; ends a round where it is time

    period   H; with a rule (below) the first, and the rule is asked at the end of each round
    start    post-local: data parallelism for so many steps first. (Early the gradient turns fast.)
             A period of 1 is data parallelism throughout, to the bit: as many bytes.
    without  k: a rank that computes k times the median is out of rounds, and nobody waits for it
             (straggler.py has the rule, and the loop that it wants)
    inside   (transport of this rank's node, H1): averages inside it every H1 steps, of all ranks
             every `period`, a multiple of H1
    state    "local": momentum or Adam's moments stay each rank's own. "mean": they are averaged
             with the weights, for as many bytes again each: a rank that goes on from the mean
             weights with its own momentum is drawn back to where it was

Adaptive rules, for H = rule(h0, lr0, loss0, lr, loss), of the first step and now: the lower the
loss, the more a step of noise costs, the oftener ranks average. `h0_outside` is the paper's,
h0 sqrt(r) with r = lr0 loss / (lr loss0); `h0_inside` is what PaddlePaddle computes, sqrt(h0 r).
They differ by sqrt(h0): at h0 = 16 and r = 1 they say 16 and 4.

Sent: K once a round around the ring, 1/H of data parallelism's gradients; an adaptive rule's mean
loss, 8 bytes a round. Buffers (batch norm's averages) become rank 0's at each round.

A snapshot: at the end of a round, snapshot.save(..., model=local.module, rounds=local.rounds); each
rank's own momentum, in a folder of its own (docs/large_batches.md).

Sources: Stich 2019 (arXiv 1805.09767); Lin et al. 2020 (arXiv 1808.07217), post-local; Wang & Joshi
2019 (arXiv 1810.08313), adaptive. DiLoCo, which steps on the mean: diloco.py
Test: tests/parallel/data/test_local_sgd.py   Tutorial: tutorials/17_local_sgd.py
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import TYPE_CHECKING

import numpy as np

from minidl.backend import accumulate_dtype, by_dtype
from minidl.comm import ring
from minidl.comm.labels import about
from minidl.optim.optimizer import Optimizer, wants_optimizer
from minidl.parallel.data import flat
from minidl.parallel.data.bucket import default_all_reduce
from minidl.parallel.data.data_parallel import DataParallel, broadcast_state
from minidl.parallel.data.straggler import Turns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from minidl.comm.transport.protocol import Transport
    from minidl.nn.module import Module
    from minidl.parallel.model.pipeline import Pipeline
    from minidl.tensor import Tensor

LEAST, MOST = 1, 16  # what an adaptive rule may say: PaddlePaddle's bounds


def h0_outside(h0, lr0, loss0, lr, loss):
    """AdaComm's: ceil(h0 sqrt(lr0 loss / (lr loss0)))."""
    return math.ceil(math.sqrt(lr0 * loss / (lr * loss0)) * h0)


def h0_inside(h0, lr0, loss0, lr, loss):
    """PaddlePaddle's: ceil(sqrt(h0 lr0 loss / (lr loss0)))."""
    return math.ceil(math.sqrt(lr0 * loss / (lr * loss0) * h0))


def average_arrays(t, arrays, all_reduce=None, n=None):
    """Replace arrays by their means over ranks, or over `n` of them, whose others have zeros: one
    all-reduce for each dtype among them, fp16 and bf16 summed and divided in fp32."""
    for group in by_dtype(arrays).values():
        buffer = flat.flatten(group, accumulate_dtype(group[0].dtype))
        (all_reduce or ring.all_reduce)(t, buffer)
        buffer /= n or t.size
        flat.unflatten(buffer, group)


class Rounds:
    """Which step it is, and when a round ends. All ranks have the same numbers.

    n_steps, n_rounds   so far; a step of data parallelism is a round
    since               steps of this round that each rank has taken by itself
    parted              whether there has been one: from then on momenta differ, and ranks that
                        averaged gradients would part, so a period of 1 averages weights"""

    def __init__(self, period, start=0, rule=None):
        self.h0, self.period, self.start, self.rule = period, period, start, rule
        self.n_steps = self.n_rounds = self.since = 0
        self.parted = False
        self.first = None  # (learning rate, loss) of the first step
        self.periods = []  # what the rule has said

    @property
    def dense(self):
        """Whether the coming step averages gradients."""
        return self.n_steps < self.start or self.period == 1 and not self.parted

    def count(self):
        """One step more; returns whether weights are to be averaged."""
        was_dense, self.n_steps = self.dense, self.n_steps + 1
        if was_dense:
            self.n_rounds += 1
            return False
        self.parted, self.since = True, self.since + 1
        if self.since < self.period:
            return False
        self.n_rounds, self.since = self.n_rounds + 1, 0
        return True

    def ask(self, rate, loss):
        """At the end of a round: the period of the next. loss: the mean over ranks."""
        self.first = self.first or (rate, loss)
        if self.n_steps >= self.start:
            period = self.rule(self.h0, *self.first, rate, loss)
            self.period = min(max(period, LEAST), MOST)
            self.periods.append(self.period)

    def state_dict(self):
        """Numbers, for a snapshot. Between rounds replicas differ, and a snapshot of one set of
        weights would be of none of them: ValueError."""
        if self.since:
            raise ValueError(f"{self.since} of {self.period} steps of a round are done, and the "
                             "ranks' weights differ: save at the end of a round")
        return {"n_steps": self.n_steps, "n_rounds": self.n_rounds, "period": self.period,
                "parted": self.parted, "first": self.first and list(self.first),
                "periods": list(self.periods)}

    def load_state_dict(self, state):
        for name in ("n_steps", "n_rounds", "period", "parted", "periods"):
            setattr(self, name, state[name])
        self.first, self.since = state["first"] and tuple(state["first"]), 0


def check_plain(t, model, optimizer, what):
    """Each rank needs weights of its own to step on."""
    if isinstance(model, DataParallel):
        raise TypeError(f"rank {t.rank}: {what} wants the plain model; got a "
                        f"{type(model).__name__}, whose ranks have one set of weights between "
                        "them at every step")
    if wants_optimizer(f"rank {t.rank}: {what}", optimizer).sharded_by:
        raise TypeError(f"rank {t.rank}: {what} wants whole weights on every rank; the optimizer "
                        "has parts of them: a ZeRO stage's shards, or those of a divided model")


class LocalSGD:
    """`model` on the ranks of t, its weights averaged at the end of each round. Call `step()` after
    each step of `optimizer`, whose parameters are the model's (or masters of them).

    period: H; with a rule (above), the first. all_reduce: any f(t, array) that sums in place."""

    def __init__(self, model: Module | Pipeline, t: Transport, optimizer: Optimizer, period: int,
                 start: int = 0, inside: Any = None, state: str = "local",
                 rule: Callable[..., Any] | None = None,
                 all_reduce: Callable[..., Any] | None = None, bucket_bytes: float = 25 << 20,
                 without: float | None = None):
        check_plain(t, model, optimizer, "LocalSGD")
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"rank {t.rank}: LocalSGD averages the weights that the optimizer "
                            f"updates; got {type(optimizer).__name__}, whose weights are on the "
                            "host. DiLoCo takes it")
        if without is not None and (period < 2 or inside or rule):
            raise ValueError(f"rank {t.rank}: without= wants rounds of 2 steps or more, of a fixed "
                             "period over all ranks: no rule=, no inside=")
        if state not in ("local", "mean"):
            raise ValueError(f"state is 'local' or 'mean', got {state!r}")
        if period < 1 or inside and (rule or period % inside[1]):
            raise ValueError(f"rank {t.rank}: want a period of at least 1; and, fixed, a multiple "
                             f"of the one inside a node. Got {period}, {inside and inside[1]}")
        self.data_parallel = DataParallel(model, t, all_reduce, bucket_bytes)
        self.module, self.t, self.optimizer = model, t, optimizer
        self.all_reduce = all_reduce or default_all_reduce(self.data_parallel.reducer.params)
        self.inside, self.state = inside, state
        self.rounds = Rounds(period, start, rule)
        self.turns = None if without is None else Turns(t, without)

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        self.data_parallel.broadcast_buffers = self.rounds.dense
        with nullcontext() if self.rounds.dense else self.data_parallel.no_sync():
            return self.data_parallel(*inputs, **options)

    def no_sync(self):
        """`with local.no_sync():` forward and backward of a micro-batch that is not a step's
        last."""
        return self.data_parallel.no_sync()

    def step(self, loss: Any = None) -> Any:
        """After the optimizer's: end the round if it is time. loss: this rank's, for a rule."""
        rounds = self.rounds
        if rounds.rule is not None and loss is None:
            raise ValueError(f"rank {self.t.rank}: a rule for the period wants step(loss=)")
        self.data_parallel.reducer.forget()  # local gradients wait for no backward that sends
        if rounds.count():
            if self.turns is None:
                self.average(self.t)
            else:
                self.turns.end(rounds, self.average)
        elif self.inside is not None and rounds.since and rounds.since % self.inside[1] == 0:
            self.average(self.inside[0])
        if rounds.rule is not None and not rounds.since:
            with about("the loss that sets the period"):  # the same on all ranks: so is the period
                total = ring.all_reduce(self.t, np.array([float(loss)]))[0]
            rounds.ask(self.optimizer.param_groups[0]["lr"], float(total) / self.t.size)

    def finish(self) -> None:
        """After the last step, on all ranks, where stragglers may be out: all have the mean."""
        if self.turns is not None and self.turns.out:
            self.turns.end(self.rounds, self.average, last=True)

    def average(self, t, contributes=True, n=None):
        """Weights (fp32 masters, where there are some) become their means over t, state too where
        it is to; over those of its n ranks that contribute, if not all do."""
        params = self.weights()
        arrays = [p.array for p in params]
        if self.state == "mean":
            arrays += [value for p in params for value in self.optimizer.state.get(p, {}).values()
                       if getattr(value, "shape", None) == p.shape and value.dtype.kind in "fV"]
        for array in () if contributes else arrays:
            array[...] = 0
        with about("weights"):
            average_arrays(t, arrays, self.all_reduce, n)
        for p in params:
            p.version += 1
        self.optimizer.write_low(params)
        for p in params:
            if p in self.optimizer.low:
                self.optimizer.low[p].version += 1
        self.optimizer.refresh()
        broadcast_state(t, list(self.module.buffers()))

    def weights(self):
        """What is averaged: what the optimizer updates."""
        return [p for p in self.optimizer.parameters() if p.requires_grad]

    def divergence(self) -> float:
        return divergence(self.t, self.weights(), self.all_reduce)

    def bytes_sent(self, n_rounds: int = 1) -> int:
        """Bytes that this rank sends in so many rounds that average weights alone, around a ring;
        without buffers and a rule's loss."""
        return n_rounds * average_bytes(self.t, self.weights())

    def parameters(self):
        return self.module.parameters()

    def state_dict(self) -> dict[str, Tensor]:
        """The model's, which at the end of a round is one model."""
        return self.module.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Any:
        return self.module.load_state_dict(state_dict, strict)

    def close(self) -> None:
        self.data_parallel.close()


def divergence(t, params, all_reduce=None):
    """The root mean square over ranks of |w_k - mean of w|: 0 at the beginning of a round.
    Collective, and as many bytes as a round: a measure, not for every step."""
    means = [p.array.copy() for p in params]
    with about("divergence"):
        average_arrays(t, means, all_reduce)
        apart = sum(float(p._xp.square(p.array - m, dtype=np.float64).sum())
                    for p, m in zip(params, means, strict=True))
        return math.sqrt(ring.all_reduce(t, np.array([apart]))[0] / t.size)


def average_bytes(t, params):
    """Bytes that this rank sends in `average_arrays` of their weights, around a ring."""
    return sum(ring.bytes_sent(sum(p.numel() for p in group), accumulate_dtype(dtype).itemsize,
                               t.size, t.rank) for dtype, group in by_dtype(params).items())
