"""Mixture of experts: E feed-forward layers in place of one, of which each token takes k.

The plain form, on ranks: minidl/plain/experts.py. Here: a layer with gradients, no loop over the
tokens, and two remedies for unequal loads.

    y = sum of gate_j expert_j(x) over the k largest of p = softmax(W x), in order
    E times the weights, k times the work

gate: p itself for k = 1 (Switch), so that the router learns from it; for k > 1 p over the sum of
the k (Mixtral). An expert takes at most `capacity` rows of a batch: ceil(f T k / E) of T tokens.
All first choices come before all second ones, and among them earlier tokens first (GShard); what
comes late is dropped: it adds nothing to y, and the token goes on by the residual path alone. The
other gates stay as they are. Of equal scores the lower expert's counts as larger.

Experts that are rarely chosen learn little, and are then chosen still less. Two remedies:

    balance_loss    E sum_e f_e P_e (Switch): f_e the part of the choices that are e's, before any
                    is dropped, a constant; P_e the mean of p_e. 1 where all are alike, E at worst
    move_bias       a bias for each expert, which is added to p where the k are chosen and not in
                    the gates; after a step it moves down by `bias_rate` for an expert with more
                    than the mean load, up for one with less. The loss stays that of the task.

The router is computed in float32 (float64 of float64), also under autocast; which rows go where is
worked out on the host.

Sources: Fedus, Zoph & Shazeer 2021 (arXiv 2101.03961); Lepikhin et al. 2020 (GShard, arXiv
2006.16668); Wang et al. 2024 (arXiv 2408.15664) for the bias.
Test: tests/nn/test_moe.py   On ranks: minidl/parallel/model/experts.py
Tutorial: tutorials/23_experts.py
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from minidl import backend
from minidl.function import Function
from minidl.mode import current, running
from minidl.nn import functional as F
from minidl.nn.containers import ModuleDict
from minidl.nn.layers import Linear
from minidl.nn.module import Module
from minidl.nn.transformer import FeedForward
from minidl.ops.shape import cat
from minidl.tensor import Tensor, wrapped

if TYPE_CHECKING:
    from collections.abc import Callable

    from minidl.hints import Array
    from minidl.random import Generator


class MoE(Module):
    """x (..., C) -> (..., C). n_experts modules `expert(width, bias, generator)`, "0", "1", ...

    capacity_factor: f above; None: nothing is dropped.
    After a forward: n_dropped, the choices of this rank's tokens that were dropped; load, (E,), the
    choices in training since the last move_bias; aux_loss, which balance_loss sums.
    ranks: what joins the ranks among which the experts are divided (experts.py)."""

    aux_loss: Any

    def __init__(self, width: int, bias: bool = True, generator: Generator | None = None, *,
                 n_experts: int, top_k: int = 1, capacity_factor: float | None = 1.25,
                 bias_rate: float = 1e-3, expert: Callable[..., Module] = FeedForward):
        super().__init__()
        if not 1 <= top_k <= n_experts:
            raise ValueError(f"top_k must be from 1 to the {n_experts} experts, got {top_k}")
        self.n_experts, self.top_k = n_experts, top_k
        self.capacity_factor, self.bias_rate = capacity_factor, bias_rate
        self.router = Linear(width, n_experts, bias=False, generator=generator)
        self.experts = ModuleDict({str(e): expert(width, bias, generator)
                                   for e in range(n_experts)})
        # in steps of bias_rate: exact, in a model of float16 too
        self.register_buffer("bias_steps", Tensor(np.zeros(n_experts, np.int64)))
        self.load, self.n_dropped, self.aux_loss, self.ranks = 0, 0, None, Alone()

    def forward(self, x: Array) -> Tensor:
        x = wrapped(x)
        rows = x.reshape(-1, x.shape[-1])
        wide = backend.accumulate_dtype(x.dtype)
        with running(autocast=None):
            p = F.softmax(F.linear(rows.to(wide), self.router.weight.to(wide)), -1)
        scores, steps = (backend.to_device(a.array, "cpu") for a in (p, self.bias_steps))
        choice = choose(scores + self.bias_rate * steps, self.top_k)
        counts, me = self.ranks.gather(of_rounds(choice, self.n_experts))
        plan = plan_of(choice, counts, me, capacity(self.capacity_factor, counts))
        if self.training and not current().replaying:
            self.load = self.load + counts[me].sum(axis=0)
        self.n_dropped = choice.size - len(plan.source)
        self.aux_loss = self._aux_loss(p, counts, me)
        gates = p.gather(1, Tensor(p._xp.asarray(choice)))
        if self.top_k > 1:
            gates = gates / gates.sum(-1, keepdim=True)
        sent = Dispatch.apply(rows, source=plan.source, slot=plan.slot)
        y = Combine.apply(self.ranks.run(self.experts, sent, plan), gates, slot=plan.slot)
        return y.reshape(x.shape)

    def _aux_loss(self, p, counts, me):
        """E sum_e f_e P_e; None in the first run of recompute, whose graph backward does not see.
        Of ranks f is that of all tokens; P is this rank's, so that the losses' mean is right."""
        if current().intercept is not None:
            return None
        chosen = counts.sum(axis=(0, 1))
        f = Tensor(p._xp.asarray((chosen / max(chosen.sum(), 1)).astype(p.dtype)))
        n_tokens = self.ranks.divisor(counts[:, 0].sum(axis=1), me)
        return (f * (p.sum(0) / max(n_tokens, 1))).sum() * self.n_experts


class Alone:
    """One rank, which has all experts."""

    def gather(self, n_chosen):
        return n_chosen[None], 0

    def divisor(self, n_tokens, me):
        return n_tokens[me]

    def run(self, experts, rows, plan):
        return each(experts, rows.split(plan.counts[0].tolist()))


def each(experts, parts):
    """Every expert on its rows, none among them; one after the other."""
    return cat([expert(part) for expert, part in zip(experts.values(), parts, strict=True)])


# ---- which rows go where: NumPy, on the host ----


def choose(scores, k):
    """(T, k): the experts with the k largest scores of each row, in falling order."""
    left, chosen, rows = scores.copy(), [], np.arange(len(scores))
    for _ in range(k):
        chosen.append(left.argmax(axis=1))  # the first, where several are the largest
        left[rows, chosen[-1]] = -np.inf
    return np.stack(chosen, axis=1)


def of_rounds(choice, n_experts):
    """(k, E): how many tokens have which expert as their first, second, ... choice."""
    return np.stack([np.bincount(column, minlength=n_experts) for column in choice.T])


def capacity(factor, counts):
    """Rows that an expert takes: ceil(factor T k / E), T the tokens of all ranks. Without the
    factor's rounding: 1.1 times 50 is 55, and in float64 a little more."""
    total, n_experts = int(counts.sum()), counts.shape[2]
    return total if factor is None else math.ceil(factor * total / n_experts - 1e-9)


class Plan(NamedTuple):
    """source   of each row that is sent, the token it is; rows in the order of expert and token
    slot     (T, k) of each choice, the row it is; -1: dropped
    counts   (n, E) rows that each rank sends to each expert"""

    source: np.ndarray
    slot: np.ndarray
    counts: np.ndarray


def plan_of(choice, counts, me, capacity):
    """The Plan of rank `me`. choice (T, k); counts (n, k, E), of_rounds of every rank: their tokens
    queue up in the order of the ranks."""
    n_tokens, k = choice.shape
    rounds = counts.sum(axis=0)
    before = (rounds.cumsum(axis=0) - rounds) + (counts.cumsum(axis=0) - counts)  # (n, k, E)
    place = np.empty_like(choice)
    for j in range(k):
        is_e = choice[:, j, None] == np.arange(counts.shape[2])  # (T, E)
        place[:, j] = (is_e.cumsum(axis=0) * is_e).sum(axis=1) - 1 + before[me, j, choice[:, j]]
    kept = np.flatnonzero(place.reshape(-1) < capacity)
    order = kept[np.argsort(choice.reshape(-1)[kept], kind="stable")]
    slot = np.full(choice.size, -1)
    slot[order] = np.arange(len(order))
    taken = np.clip(capacity - before, 0, counts).sum(axis=1)
    return Plan(order // k, slot.reshape(choice.shape), taken)


# ---- there and back ----


class Dispatch(Function):
    """A row of x for each row that is sent. Backward: the sum over a token's rows, by choice."""

    def forward(self, x, source, slot):
        self.slot = slot
        return x[self.xp.asarray(source)]

    def backward(self, g):
        return weighted_sum(self.xp, g, self.slot)


class Combine(Function):
    """Of each token the sum, by choice, of gate times row; of a dropped one nothing. Saves both."""

    def forward(self, rows, gates, slot):
        self.slot = slot
        self.save(rows, gates)
        return weighted_sum(self.xp, rows, slot, gates).astype(rows.dtype, copy=False)

    def backward(self, gy):
        (rows, gates), xp = self.saved, self.xp
        g_rows = xp.zeros(rows.shape, gates.dtype)
        g_gates = xp.zeros(gates.shape, gates.dtype)
        for j, at, places in kept_of(xp, self.slot):
            g_rows[places] = gates[at, j, None] * gy[at]
            g_gates[at, j] = (rows[places] * gy[at]).sum(axis=1, dtype=gates.dtype)
        return g_rows, g_gates


def weighted_sum(xp, rows, slot, gates=None):
    """Of each token the sum over its choices, first to last, of gate times row."""
    total = xp.zeros((len(slot), rows.shape[1]), backend.accumulate_dtype(rows.dtype))
    for j, at, places in kept_of(xp, slot):
        total[at] += rows[places] if gates is None else gates[at, j, None] * rows[places]
    return total


def kept_of(xp, slot):
    """(j, tokens whose choice j is not dropped, their rows) for each j."""
    for j in range(slot.shape[1]):
        at = np.flatnonzero(slot[:, j] >= 0)
        yield j, xp.asarray(at), xp.asarray(slot[at, j])


# ---- balance ----


def layers(model):
    return [m for m in model.modules() if isinstance(m, MoE)]


def balance_loss(model: Module) -> Tensor:
    """The sum of aux_loss over the MoE layers of the last forward: loss + 0.01 * balance_loss."""
    losses = [layer.aux_loss for layer in layers(model)]
    if not losses or None in losses:
        raise ValueError(
            "balance_loss wants a model with nn.MoE whose forward has run outside of recompute, "
            "through which no gradient of a second loss passes. Balance by move_bias, or keep "
            "these layers out of recompute")
    return sum(losses[1:], losses[0])


def move_bias(model, all_sum=None):
    """After a step: the bias of every MoE layer moves by bias_rate * sign(mean load - load), and
    the load is 0 again. all_sum(array): the sum over all ranks that have tokens, such as
    partial(ring.all_reduce, t)."""
    moes = layers(model)
    loads = np.stack([np.broadcast_to(layer.load, layer.n_experts) for layer in moes])
    loads = loads.astype(np.int64) if all_sum is None else all_sum(loads.astype(np.int64))
    for layer, load in zip(moes, loads, strict=True):
        steps = layer.bias_steps
        steps.array += steps._xp.asarray(np.sign(load.sum() - load * layer.n_experts))
        layer.load = 0
