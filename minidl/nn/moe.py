"""Mixture of experts: E feed-forward layers in place of one. Each token uses k of these experts.

The plain form, on ranks: minidl/plain/experts.py. The layer in this file has gradients, and it has
no loop over the tokens. The file also has two remedies for unequal loads.

    y = sum of gate_j expert_j(x) over the k experts j with the largest p_j       p = softmax(W x)
    This layer has E times the weights of one feed-forward layer, and does k times its work.

gate: for k = 1 the gate is p itself (Switch), so that the router gets a gradient. For k > 1 the
gate is p divided by the sum of the k largest p (Mixtral). If two scores are equal, the expert with
the lower number is chosen.

capacity: an expert takes at most ceil(f T k / E) rows of a batch of T tokens, where f is the
capacity_factor. All first choices of the tokens come before all second choices, and earlier tokens
come first (GShard). Choices beyond the capacity are dropped: they add nothing to y, and the other
gates of the token do not change. If all choices of a token are dropped, its y is 0. The residual
connection around the layer still carries the token.

An expert that is rarely chosen learns little. Then it is chosen even less. Two remedies:

    balance_loss    E sum_e f_e P_e (Switch). f_e is the number of choices of expert e, divided by
                    the number of all choices. Dropped choices count, too. f_e gets no gradient. P_e
                    is the mean of p_e over the tokens. The value is 1 if all experts have equal
                    shares, and E in the worst case
    move_bias       each expert has a bias. p + bias is used to choose the k experts. The gates use
                    p without the bias. After a step, the bias changes by `bias_rate`. It falls if
                    the load of the expert is above the mean load, and rises if the load is below
                    the mean. The loss does not change

The router computes in float32, also under autocast. (If x is float64, it computes in float64.) The
host computes which rows go to which expert.

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
    """x (..., C) -> (..., C). `expert(width, bias, generator)` makes each of the n_experts modules.
    Their names are "0", "1", ....

    capacity_factor: if a batch has T tokens, an expert takes at most
    ceil(capacity_factor * T * top_k / n_experts) rows. Choices beyond this number are dropped. If
    None, no choice is dropped.

    A forward sets these attributes:
    n_dropped: how many choices of this rank's tokens were dropped.
    load: (n_experts,), how many times each expert was chosen in training since the last move_bias.
    aux_loss: the balance loss of this layer. balance_loss() adds up the aux_loss of all layers.

    The attribute `ranks` is an object that sends rows between ranks, if the experts are divided
    among ranks (parallel/model/experts.py). The default, Alone, is for one rank."""

    aux_loss: Any

    def __init__(self, width: int, bias: bool = True, generator: Generator | None = None, *,
                 n_experts: int, top_k: int = 1, capacity_factor: float | None = 1.25,
                 bias_rate: float = 1e-3, expert: Callable[..., Module] = FeedForward):
        super().__init__()
        if not 1 <= top_k <= n_experts:
            raise ValueError(f"top_k must be from 1 to {n_experts}, the number of experts; "
                             f"got {top_k}")
        self.n_experts, self.top_k = n_experts, top_k
        self.capacity_factor, self.bias_rate = capacity_factor, bias_rate
        self.router = Linear(width, n_experts, bias=False, generator=generator)
        self.experts = ModuleDict({str(e): expert(width, bias, generator)
                                   for e in range(n_experts)})
        # The bias is bias_rate * bias_steps. The integers bias_steps are exact, even in a float16
        # model.
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
        """Returns the balance loss E sum_e f_e P_e (see the top of this file). Returns None in the
        first run of a recompute, because backward does not use the graph of that run. With several
        ranks, f_e is computed from the tokens of all ranks, and P_e from the tokens of this rank.
        Then the mean of aux_loss over the ranks is the balance loss of all tokens."""
        if current().intercept is not None:
            return None
        chosen = counts.sum(axis=(0, 1))
        f = Tensor(p._xp.asarray((chosen / max(chosen.sum(), 1)).astype(p.dtype)))
        n_tokens = self.ranks.divisor(counts[:, 0].sum(axis=1), me)
        return (f * (p.sum(0) / max(n_tokens, 1))).sum() * self.n_experts


class Alone:
    """The attribute `ranks` of an MoE if one rank has all experts. Sends nothing."""

    def gather(self, n_chosen):
        return n_chosen[None], 0

    def divisor(self, n_tokens, me):
        return n_tokens[me]

    def run(self, experts, rows, plan):
        return each(experts, rows.split(plan.counts[0].tolist()))


def each(experts, parts):
    """Returns the outputs of all experts, joined into one Tensor. Expert number i gets the rows
    parts[i]. An expert may get no rows."""
    return cat([expert(part) for expert, part in zip(experts.values(), parts, strict=True)])


# ---- the choice of experts and places: NumPy, on the host ----


def choose(scores, k):
    """Returns (T, k): for each row of scores (T, E), the experts with the k largest scores. The
    expert with the largest score comes first."""
    left, chosen, rows = scores.copy(), [], np.arange(len(scores))
    for _ in range(k):
        chosen.append(left.argmax(axis=1))  # the first expert, if scores are equal
        left[rows, chosen[-1]] = -np.inf
    return np.stack(chosen, axis=1)


def of_rounds(choice, n_experts):
    """Returns (k, E). Entry (j, e) counts the tokens that have expert e as their j-th choice."""
    return np.stack([np.bincount(column, minlength=n_experts) for column in choice.T])


def capacity(factor, counts):
    """Returns how many rows an expert takes at most: ceil(factor T k / E). T is the number of
    tokens on all ranks. Returns T k if factor is None. Subtracts 1e-9 before ceil, because of
    rounding: in float64 1.1 * 50 is a little more than 55."""
    total, n_experts = int(counts.sum()), counts.shape[2]
    return total if factor is None else math.ceil(factor * total / n_experts - 1e-9)


class Plan(NamedTuple):
    """Tells which rows go to which expert.
    source   (rows,): the token of each row that is sent. Rows are ordered by expert, then by token
    slot     (T, k): the row of each choice, or -1 if the choice is dropped
    counts   (n, E): how many rows each of n ranks sends to each expert"""

    source: np.ndarray
    slot: np.ndarray
    counts: np.ndarray


def plan_of(choice, counts, me, capacity):
    """Returns the Plan of rank `me`. choice: (T, k), the choices of its tokens. counts: (n, k, E),
    the results of of_rounds() on all n ranks. If tokens of several ranks have the same expert as
    their j-th choice, the tokens of lower ranks come first."""
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


# ---- rows go to the experts, and results come back ----


class Dispatch(Function):
    """Returns the rows of x that are sent to experts: row i is x[source[i]]. Backward sums the
    gradients of each token's rows, in the order of its choices."""

    def forward(self, x, source, slot):
        self.slot = slot
        return x[self.xp.asarray(source)]

    def backward(self, g):
        return weighted_sum(self.xp, g, self.slot)


class Combine(Function):
    """Returns, for each token, the sum of gate * row over the choices of the token, in the order of
    the choices. Dropped choices add nothing. Saves rows and gates."""

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
    """Returns (T, C): for each token, the sum of gate * row over the choices of the token, in the
    order of the choices. If gates is None, each gate counts as 1."""
    total = xp.zeros((len(slot), rows.shape[1]), backend.accumulate_dtype(rows.dtype))
    for j, at, places in kept_of(xp, slot):
        total[at] += rows[places] if gates is None else gates[at, j, None] * rows[places]
    return total


def kept_of(xp, slot):
    """Yields (j, tokens, rows) for each j from 0 to k - 1. tokens: the indices of the tokens whose
    j-th choice is not dropped. rows: for each of these tokens, the index of its row."""
    for j in range(slot.shape[1]):
        at = np.flatnonzero(slot[:, j] >= 0)
        yield j, xp.asarray(at), xp.asarray(slot[at, j])


# ---- equal loads: the balance loss and the bias ----


def layers(model):
    return [m for m in model.modules() if isinstance(m, MoE)]


def balance_loss(model: Module) -> Tensor:
    """Returns the sum of aux_loss over the MoE layers of a model, from its last forward. Usually
    this sum is added to the loss: loss + 0.01 * balance_loss(model). Raises ValueError if the model
    has no MoE layer, or if a layer has no aux_loss."""
    losses = [layer.aux_loss for layer in layers(model)]
    if not losses or None in losses:
        raise ValueError(
            "balance_loss wants a model with nn.MoE layers that have run without recompute. With "
            "recompute, the balance loss gets no gradient. Use move_bias, or keep these layers out "
            "of recompute")
    return sum(losses[1:], losses[0])


def move_bias(model, all_sum=None):
    """Moves the bias of every MoE layer by bias_rate * sign(mean load - load), and sets the load to
    0. Call it after a step. all_sum(array) returns the sum of an array over all ranks that have
    tokens. For example, all_sum is partial(ring.all_reduce, t) with a transport t. If all_sum is
    None, there is only one rank."""
    moes = layers(model)
    loads = np.stack([np.broadcast_to(layer.load, layer.n_experts) for layer in moes])
    loads = loads.astype(np.int64) if all_sum is None else all_sum(loads.astype(np.int64))
    for layer, load in zip(moes, loads, strict=True):
        steps = layer.bias_steps
        steps.array += steps._xp.asarray(np.sign(load.sum() - load * layer.n_experts))
        layer.load = 0
