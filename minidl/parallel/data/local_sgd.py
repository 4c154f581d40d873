r"""Local SGD: each rank trains alone, and the ranks average their weights every H steps.

The plain form: minidl/plain/local_sgd.py. Here steps of data parallelism may come first. A rule may
compute the period from the loss. The ranks of a node may average more often than all ranks. Slow
ranks may be left out. The optimizer's moments may be averaged, too. `divergence()` returns how far
apart the ranks' weights are.

    local = LocalSGD(model, t, optimizer, period=8, start=500)
    loss = F.cross_entropy(local(x), y)
    loss.backward(); optimizer.step(); optimizer.zero_grad()
    local.step()                            # counts the step, and ends the round after H steps

    period   H. With a rule (below) this is the first period; after each round the rule sets a new
             one
    start    post-local SGD: this many steps of data parallelism come first, because early in
             training the gradient changes direction fast. With period 1 all steps are data
             parallelism. Then the bits of the weights and the number of sent bytes are the same as
             with DataParallel
    without  a number k. If a rank's steps take k times the median time or more, this rank is left
             out of rounds, and no rank waits for it. straggler.py has the rule, and the training
             loop that you need
    inside   a pair (transport of this rank's node, H1). The ranks of a node average every H1 steps.
             All ranks average every `period` steps. H1 must divide the period. With None the ranks
             of a node have no averages of their own
    state    with "local" each rank keeps its own momentum, or Adam's moments. With "mean" the
             moments are averaged, too; each moment has as many bytes as the weights. Averaging can
             help, because a rank's own momentum pulls the rank from the mean weights back to its
             own old weights
    rule     a function that computes the next period, or None for a fixed period

A rule is a function: rule(h0, lr0, loss0, lr, loss) returns the next period H. h0 is the first
period. lr0 and loss0 are the learning rate and the loss at the end of the first round. lr and loss
are the present values. Noise does more harm when the loss is low, so the ranks then average more
often. With r = lr0 loss / (lr loss0), the rule of Wang & Joshi is h0 sqrt(r) (`h0_outside`). The
rule of PaddlePaddle is sqrt(h0 r) (`h0_inside`). The two rules differ by the factor sqrt(h0): at
h0 = 16 and r = 1 they give 16 and 4.

In each round, the weights (K bytes) are averaged by a ring all-reduce. For the H steps of a round,
data parallelism sends H times as many bytes of gradients. An adaptive rule also sends the mean
loss, 8 bytes in each round. At the end of each round all ranks get rank 0's buffers (batch norm's
averages).

At the end of a round, save by snapshot.save(..., model=local.module, rounds=local.rounds). Each
rank saves its own momentum in a folder of its own (docs/large_batches.md).

Sources: Stich 2019 (arXiv 1805.09767); Lin et al. 2020 (arXiv 1808.07217), post-local; Wang & Joshi
2019 (arXiv 1810.08313), adaptive. diloco.py has DiLoCo, which uses the mean movement of the weights
as a gradient.
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

LEAST, MOST = 1, 16  # the smallest and the largest period that a rule may set, as in PaddlePaddle


def h0_outside(h0, lr0, loss0, lr, loss):
    """Returns the period by AdaComm's rule: ceil(h0 sqrt(lr0 loss / (lr loss0)))."""
    return math.ceil(math.sqrt(lr0 * loss / (lr * loss0)) * h0)


def h0_inside(h0, lr0, loss0, lr, loss):
    """Returns the period by PaddlePaddle's rule: ceil(sqrt(h0 lr0 loss / (lr loss0)))."""
    return math.ceil(math.sqrt(lr0 * loss / (lr * loss0) * h0))


def average_arrays(t, arrays, all_reduce=None, n=None):
    """Replaces the arrays by their means over ranks, with one all-reduce for each dtype.

    n: the sum is divided by n. Use it if n ranks have values and the others have zeros. By default
    n is the number of ranks. fp16 and bf16 are summed and divided in fp32."""
    for group in by_dtype(arrays).values():
        buffer = flat.flatten(group, accumulate_dtype(group[0].dtype))
        (all_reduce or ring.all_reduce)(t, buffer)
        buffer /= n or t.size
        flat.unflatten(buffer, group)


class Rounds:
    """Counts steps, and decides when a round ends. The counts are the same on all ranks.

    n_steps, n_rounds   steps and rounds so far; a step of data parallelism counts as a round
    since               steps of this round that each rank has made alone
    parted              True after the first step that ranks made alone. From then on the ranks'
                        momenta differ. Averaged gradients then no longer keep the weights equal. So
                        with period 1 the weights are averaged"""

    def __init__(self, period, start=0, rule=None):
        self.h0, self.period, self.start, self.rule = period, period, start, rule
        self.n_steps = self.n_rounds = self.since = 0
        self.parted = False
        self.first = None  # (learning rate, loss) at the end of the first round
        self.periods = []  # all periods that the rule has chosen

    @property
    def dense(self):
        """True if the coming step averages gradients."""
        return self.n_steps < self.start or self.period == 1 and not self.parted

    def count(self):
        """Counts one step. Returns True if the ranks must average their weights now."""
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
        """Sets the period of the next round by the rule. Call this at the end of a round. rate: the
        learning rate. loss: the mean of the ranks' losses."""
        self.first = self.first or (rate, loss)
        if self.n_steps >= self.start:
            period = self.rule(self.h0, *self.first, rate, loss)
            self.period = min(max(period, LEAST), MOST)
            self.periods.append(self.period)

    def state_dict(self):
        """Returns the counters, for a snapshot. Raises ValueError inside a round, because the
        ranks' weights differ then, and a snapshot has only one set of weights."""
        if self.since:
            raise ValueError("LocalSGD can be saved only at the end of a round, when all ranks "
                             f"have the same weights; got step {self.since} of {self.period} steps "
                             "of a round")
        return {"n_steps": self.n_steps, "n_rounds": self.n_rounds, "period": self.period,
                "parted": self.parted, "first": self.first and list(self.first),
                "periods": list(self.periods)}

    def load_state_dict(self, state):
        for name in ("n_steps", "n_rounds", "period", "parted", "periods"):
            setattr(self, name, state[name])
        self.first, self.since = state["first"] and tuple(state["first"]), 0


def check_plain(t, model, optimizer, what):
    """Raises TypeError unless each rank has all weights and updates them without other ranks. what:
    the name of the method, for the message."""
    if isinstance(model, DataParallel):
        raise TypeError(f"rank {t.rank}: {what} wants a model that is not wrapped; got a "
                        f"{type(model).__name__}, which averages gradients in every step. Pass "
                        "the model that it wraps")
    if wants_optimizer(f"rank {t.rank}: {what}", optimizer).sharded_by:
        raise TypeError(f"rank {t.rank}: {what} wants whole weights on every rank; got an "
                        "optimizer that has only parts of the weights, because a ZeRO stage or "
                        "tensor or pipeline parallelism divides the model")


class LocalSGD:
    """Trains `model` on the ranks of t by local SGD. Call step() after each step of `optimizer`.

    The optimizer has the model's parameters, or fp32 masters of these. all_reduce: any f(t, array)
    that sums in place. For the other arguments see the top of the file. Raises TypeError or
    ValueError for arguments that do not fit."""

    def __init__(self, model: Module | Pipeline, t: Transport, optimizer: Optimizer, period: int,
                 start: int = 0, inside: Any = None, state: str = "local",
                 rule: Callable[..., Any] | None = None,
                 all_reduce: Callable[..., Any] | None = None, bucket_bytes: float = 25 << 20,
                 without: float | None = None):
        check_plain(t, model, optimizer, "LocalSGD")
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"rank {t.rank}: LocalSGD averages the weights of its optimizer, so it "
                            "wants an optimizer of minidl.optim; got "
                            f"{type(optimizer).__name__}, which keeps its weights on the host. Use "
                            "DiLoCo with this optimizer")
        if without is not None and (period < 2 or inside or rule):
            raise ValueError(f"rank {t.rank}: without= wants rounds of 2 steps or more, and does "
                             f"not work with rule= or inside=; got period={period}, rule={rule}, "
                             f"inside={inside}")
        if state not in ("local", "mean"):
            raise ValueError(f"rank {t.rank}: LocalSGD wants state='local' or state='mean'; got "
                             f"{state!r}")
        if period < 1 or inside and (rule or period % inside[1]):
            raise ValueError(f"rank {t.rank}: LocalSGD wants a period of at least 1. With "
                             "inside=(transport, H1) the period must be divisible by H1, and rule= "
                             f"does not work. Got period={period}, H1={inside and inside[1]}, "
                             f"rule={rule}")
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
        """A context in which backward sends no gradients. Use it for forward and backward of every
        micro-batch in a step, except the step's last micro-batch."""
        return self.data_parallel.no_sync()

    def step(self, loss: Any = None) -> Any:
        """Call this after the optimizer's step. Ends the round if all its steps are done. loss:
        this rank's loss, which is only needed with a rule."""
        rounds = self.rounds
        if rounds.rule is not None and loss is None:
            raise ValueError(f"rank {self.t.rank}: with rule= LocalSGD wants the loss in each "
                             "step(loss=...), because the rule computes the period from the loss; "
                             "got no loss")
        self.data_parallel.reducer.unsent.forget()  # the optimizer has already used these gradients
        if rounds.count():
            if self.turns is None:
                self.average(self.t)
            else:
                self.turns.end(rounds, self.average)
        elif self.inside is not None and rounds.since and rounds.since % self.inside[1] == 0:
            self.average(self.inside[0])
        if rounds.rule is not None and not rounds.since:
            # all ranks get the same mean loss, and so the same period
            with about("the loss that sets the period"):
                total = ring.all_reduce(self.t, np.array([float(loss)]))[0]
            rounds.ask(self.optimizer.param_groups[0]["lr"], float(total) / self.t.size)

    def finish(self) -> None:
        """Call this on all ranks after the last step, if you use without=. Afterwards all ranks
        have the mean weights."""
        if self.turns is not None and self.turns.out:
            self.turns.end(self.rounds, self.average, last=True)

    def average(self, t, contributes=True, n=None):
        """Replaces the weights by their means over the ranks of t. With state="mean" also averages
        the optimizer's state. If there are fp32 masters, the masters are averaged.

        contributes: False if this rank's weights count as zeros. n: how many ranks contribute, by
        default all."""
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
        """Returns a list of the parameters that are averaged. They are the parameters that the
        optimizer updates."""
        return [p for p in self.optimizer.parameters() if p.requires_grad]

    def divergence(self) -> float:
        """Returns a number that tells how far apart the ranks' weights are (see the function
        divergence). Collective."""
        return divergence(self.t, self.weights(), self.all_reduce)

    def bytes_sent(self, n_rounds: int = 1) -> int:
        """Returns the bytes that this rank sends around a ring in n_rounds rounds with
        state="local". Two things are not counted: the module's buffers, and the mean loss, which is
        sent if there is a rule for the period."""
        return n_rounds * average_bytes(self.t, self.weights())

    def parameters(self):
        return self.module.parameters()

    def state_dict(self) -> dict[str, Tensor]:
        """Returns the model's state dict. At the end of a round it is the same on all ranks."""
        return self.module.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Any:
        return self.module.load_state_dict(state_dict, strict)

    def close(self) -> None:
        self.data_parallel.close()


def divergence(t, params, all_reduce=None):
    """Returns a number that tells how far apart the ranks' weights are. This number is the root
    mean square over ranks of |w_k - mean of all w_k|, where w_k are rank k's weights. It is 0 at
    the start of a round. Collective. The call sends the same number of bytes as a round, so do not
    call it in every step."""
    means = [p.array.copy() for p in params]
    with about("divergence"):
        average_arrays(t, means, all_reduce)
        apart = sum(float(p._xp.square(p.array - m, dtype=np.float64).sum())
                    for p, m in zip(params, means, strict=True))
        return math.sqrt(ring.all_reduce(t, np.array([apart]))[0] / t.size)


def average_bytes(t, params):
    """Returns the bytes that this rank sends in average_arrays() of params, around a ring."""
    return sum(ring.bytes_sent(sum(p.numel() for p in group), accumulate_dtype(dtype).itemsize,
                               t.size, t.rank) for dtype, group in by_dtype(params).items())
