"""Converts a model to tensor parallelism, module by module.

    parallelize(gpt, grid)                                 the whole GPT, by gpt_plan
    parallelize(net, grid, {"*.up": Column, "*.down": Row})
    loss = cross_entropy(grid.tp, logits, target, V)       with split_logits=True (vocabulary.py)
    DataParallel(net, grid.dp)                             afterwards; grid.dp: the replicas
    clip_grad_norm_(net.parameters(), 1.0)                 includes all ranks of grid.tp

A plan is a dict {pattern of module names: rule}. A rule is a function f(layer, t) -> layer: Column,
Row, Vocab, Heads, or one of these with options, such as `partial(Column, gather=True)`. `*` matches
any part of a name. A pattern without a match is an error, because a wrong name leaves a layer
undivided. Then sums are wrong. A rule keeps the layer's weights, so the model computes the same as
before. Before the call all ranks of grid.tp must hold the whole model. Make the optimizer
afterwards.

Source: the plan of PyTorch's parallelize_module (there a pattern without a match only causes a
warning).
Test: tests/parallel/model/test_parallelize.py   Tutorial: tutorials/13_tensor_parallel.py
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING

from minidl.comm.transport import device
from minidl.nn.models import GPT
from minidl.nn.moe import MoE
from minidl.nn.norm import BatchNorm
from minidl.parallel.model.tensor import (
    ColumnLinear, ParallelAttention, RowLinear, SequenceDropout, SequenceEmbedding, sequence_norm,
    whole,
)
from minidl.parallel.model.vocabulary import VocabEmbedding
from minidl.parallel.shards import Shards
from minidl.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from minidl.comm.grid import Grid
    from minidl.nn.module import Module

Column, Row, Vocab, Heads = ColumnLinear.of, RowLinear.of, VocabEmbedding.of, ParallelAttention.of


def gpt_plan(sequence=False, split_logits=False, overlap=0, all_reduce=None, gather_again=False):
    """Returns the plan for an nn.GPT.

    sequence      if True, uses sequence parallelism. The number of tokens must then be a multiple
                  of the number of ranks
    split_logits  if True, the model returns this rank's logits, for vocabulary.cross_entropy. If
                  False, all ranks gather all logits
    overlap       if above 0, all-reduces run at the same time as products, and row layers compute
                  in this number of parts (overlapped.py)
    all_reduce    any f(t, array) that sums in place; by default functions.total
    gather_again  if True, column layers keep only this rank's tokens for backward (tensor.py).
                  This works only with sequence=True
    """
    seq, options = 1 if sequence else None, dict(overlap=overlap, all_reduce=all_reduce)
    columns = dict(options, seq=seq, gather_again=gather_again)
    plan = {
        "token": partial(Vocab, seq=seq, all_reduce=all_reduce),
        "blocks.*.attention": partial(Heads, **columns),
        "blocks.*.feed_forward.up": partial(Column, **columns),
        "blocks.*.feed_forward.down": partial(Row, seq=seq, **options),
        "head": partial(Column, gather=not split_logits, **columns)}
    if sequence:
        plan |= {"position": partial(SequenceEmbedding.of, seq=0), "*norm*": sequence_norm,
                 "*drop": SequenceDropout.of}
    return plan


def parallelize(model: Module, grid: Grid, plan: Mapping[str, Any] | None = None,
                **options: Any) -> Module:
    """Replaces each layer that the plan names by this rank's part of the layer. The ranks of
    grid.tp together have the whole layer. Returns the model.

    plan: {pattern: rule}, for any model. For a GPT the default is gpt_plan(**options). Raises
    TypeError or ValueError for a plan that does not fit the model."""
    if not hasattr(grid, "tp"):
        raise TypeError("parallelize wants a grid of ranks, such as comm.grid.Grid(t, tp=2); got "
                        f"{type(grid).__name__}")
    if plan is None and not isinstance(model, GPT):
        raise TypeError(f"rank {grid.t.rank}: parallelize without a plan wants an nn.GPT; got "
                        f"{type(model).__name__}. Pass a plan, such as "
                        "{'*.up': Column, '*.down': Row}")
    if plan is not None and options:
        raise TypeError(f"rank {grid.t.rank}: parallelize with a plan takes no other options; got "
                        f"{', '.join(options)}. Put options into the plan's rules, such as "
                        "partial(Column, gather=True)")
    t, _ = device.connect(grid.tp, next(model.parameters()).array)
    plan = gpt_plan(**options) if plan is None else plan
    names = [name for name, _ in model.named_modules()]
    rule_of = {}
    for pattern, rule in plan.items():
        matches = [name for name in names if name and fnmatchcase(name, pattern)]
        twice = [name for name in matches if name in rule_of]
        if twice or not matches:
            got = f"two rules for {twice[0]}" if twice else (
                f"no match among the modules {', '.join(names[1:9])}")
            raise ValueError(f"rank {t.rank}: the pattern {pattern!r} must match modules, and no "
                             "other pattern may match these modules; got "
                             f"{got}{', ...' if not twice and len(names) > 9 else ''}")
        rule_of.update(dict.fromkeys(matches, rule))
    for name, rule in rule_of.items():
        above, _, own = name.rpartition(".")
        parent = model.get_submodule(above)
        setattr(parent, own, rule(getattr(parent, own), t))
    of_all = [name for name, m in model.named_modules() if isinstance(m, (BatchNorm, MoE))]
    if of_all and any(getattr(m, "seq", None) is not None for m in model.modules()):
        raise TypeError(f"rank {t.rank}: sequence parallelism wants a model without batch norm and "
                        f"MoE, because these layers need all tokens; got {of_all[0]}. Leave out "
                        "sequence=True")
    for p in model.parameters():
        p.declare(copies=t.size if p.part is None else 1)
    Shards(t, model.parameters())
    return model


def whole_state_dict(model: Module) -> dict[str, Tensor]:
    """Returns the `state_dict()` of the undivided model, {name: whole Tensor}. Collective."""
    state = {}
    for name, (owner, _, key) in model._state_slots().items():
        x = getattr(owner, key)  # a parameter or a buffer
        state[name] = x.data if getattr(x, "part", None) is None else Tensor(whole(x))
    return state
