"""Cuts a model into stages of consecutive layers. cut() takes the number of layers of each stage,
and split_by_cost() computes these numbers from costs.

    costs of the layers   1 1 1 1 | 2 2 | 3 1        split_by_cost(costs, 3) -> [4, 2, 2]
    costs of the stages      4      4      4         the slowest stage sets the speed, so the
                                                     largest cost of a stage is minimised

Every rank makes the whole model from the same seed and keeps its stages. Weights keep the names
that they have in the whole model. So the pipeline is the same model for any number of stages.
Test: tests/parallel/model/test_cut.py   Tutorial: tutorials/14_pipeline.py
"""

from itertools import accumulate, pairwise

from minidl.nn.containers import ModuleDict, Sequential
from minidl.nn.models import GPT
from minidl.nn.module import Module


def split_by_cost(costs, n):
    """Returns a list of n numbers: how many layers each stage gets. Each stage gets at least one
    layer, and the cost of the most expensive stage is as small as possible.

    costs: a list of the costs of the layers. Raises ValueError if there are fewer layers than
    stages."""
    costs = [float(c) for c in costs]
    if not 1 <= n <= len(costs):
        raise ValueError(f"split_by_cost wants from 1 to {len(costs)} stages (the number of "
                         f"layers); got {n}")
    sums = [0.0, *accumulate(costs)]
    # worst[i]: the cost of the most expensive stage, if the first i + 1 layers are cut into
    # `stages` stages in the best way
    worst, last = sums[1:], []
    for stages in range(2, n + 1):
        options = [[(max(worst[j - 1], sums[i + 1] - sums[j]), j)
                    for j in range(stages - 1, i + 1)] for i in range(len(costs))]
        best = [min(option, default=(float("inf"), 0)) for option in options]
        worst = [cost for cost, _ in best]
        last.append([j for _, j in best])  # the first layer of the last stage
    bounds = [len(costs)]
    for firsts in reversed(last):
        bounds.append(firsts[bounds[-1] - 1])
    return [b - a for a, b in pairwise([0, *reversed(bounds)])]


def cut(model, stages):
    """Returns a list with a Module for each stage of an nn.GPT or nn.Sequential.

    stages: a list with each stage's number of layers. For a GPT the layers are its blocks, and a
    stage may have 0 blocks. stages can also be an int, the number of stages. Then the layers are
    divided as equally as possible. Raises TypeError for another model, and ValueError for a wrong
    number of layers."""
    if not isinstance(model, (GPT, Sequential)):
        raise TypeError(f"cut wants an nn.GPT or nn.Sequential; got {type(model).__name__}. For "
                        "another model give the pipeline a list of Modules; each takes the result "
                        "of the Module before it")
    layers = model.blocks if isinstance(model, GPT) else model
    if isinstance(stages, int):
        stages = split_by_cost([1] * len(layers), stages)
    least = 0 if isinstance(model, GPT) else 1
    if sum(stages) != len(layers) or min(stages) < least:
        raise ValueError(f"cut wants {len(layers)} layers in all stages together, and at least "
                         f"{least} in each stage; got stages with {list(stages)} layers")
    named, start, parts = list(layers.named_children()), 0, []
    for i, n in enumerate(stages):
        part = dict(named[start:start + n])
        start += n
        if isinstance(model, GPT):
            parts.append(GPTStage(model, part, i == 0, i == len(stages) - 1))
        else:
            parts.append(Sequential(part))
    return parts


class GPTStage(Module):
    """A stage: some blocks of a GPT. The first stage also has the embeddings, and the last stage
    also has the output layer."""

    def __init__(self, model, blocks, first, last):
        super().__init__()
        self.first, self.last, self.context = first, last, model.context
        if first:
            self.token, self.position, self.drop = model.token, model.position, model.drop
            self.positions = model.positions  # context.py replaces this method
        self.blocks = ModuleDict(blocks)
        if last:
            self.norm, self.head = model.norm, model.head

    def forward(self, x):
        if self.first:
            x = GPT.embed(self, x)
        for block in self.blocks.values():
            x = block(x)
        return self.head(self.norm(x)) if self.last else x
