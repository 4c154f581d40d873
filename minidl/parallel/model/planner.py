"""How to divide a GPT over n ranks: every dp x pp x tp, what each needs and how long a step takes.

    n = dp x pp x tp      what it sends                                 what it saves
    tp   tensor           4 all-reduces of activations a block,         1/tp of weights, gradients,
                          for every micro-batch                         most of the activations
    pp   pipeline         activations to the next stage; a bubble       1/pp of the weights
    dp   data             an all-reduce of the gradients, once a step   ZeRO: 1/dp of what it cuts

`plans` tries each, with all micro-batches and schedules that it can have, and keeps the fastest
that fits into memory; of one that does not fit at all, what needs least. By plan_costs.py's closed
forms alone: 100,000 ranks take a second. The rule of thumb that mostly comes out: tensor
parallelism inside a node, as many stages as memory asks for, the rest replicas. plan_text.py says
in words which one wins, and why.

    task = Task(64, links_text.parse("nodes=8,intra=2Tbit,2us,inter=200Gbit,10us", 64), 16e9)
    print(text(task, plans(task)))

Source: Narayanan et al. 2021 (arXiv 2104.04473), section 3.
Test: tests/parallel/model/test_planner.py, test_plan.py (beside a simulation with queues)
Command: minidl plan (cli/plan.py)
"""

from typing import NamedTuple

from minidl.comm import grid
from minidl.memory.predict import WIDTHS, predict
from minidl.parallel.model import plan_costs as costs
from minidl.parallel.model.plan_costs import Network, Shape

MODELS = {
    "gpt2": Shape(12, 768, 12, 1024, 50257), "gpt2-medium": Shape(24, 1024, 16, 1024, 50257),
    "gpt2-large": Shape(36, 1280, 20, 1024, 50257), "gpt2-xl": Shape(48, 1600, 25, 1024, 50257),
    "gpt3": Shape(96, 12288, 96, 2048, 50257),
}
HEADER = 256  # bytes of a pipeline's first message over a boundary in a step


class Task(NamedTuple):
    """What is to be done, and on what. links: links.Links; memory: bytes of one rank; batch: rows
    of all ranks in a step; flops: of a rank, per second; zero: 0 to 3; precision: as predict's."""

    ranks: int
    links: object
    memory: float
    shape: Shape = MODELS["gpt2"]
    batch: int = 64
    flops: float = 1e14
    zero: int = 0
    precision: str = "O0"
    recompute: bool = False
    order: str = grid.ORDER


class Plan(NamedTuple):
    """One way to do it.

    micro, m     rows of a micro-batch, and how many there are
    v, cut       stages of a rank; blocks of each rank along pp
    held         {kind: bytes} of the fullest rank, as predict gives them
    sent         {axis: bytes that a rank of the busiest stage sends in a step, the mean of its
                 group}; "tied": of the embedding that first and last stage share
    between      bytes that a node sends to others in a step, at most
    parts        {what: seconds}, together the step"""

    dp: int
    pp: int
    tp: int
    micro: int
    m: int
    schedule: str
    v: int
    cut: tuple
    held: dict
    sent: dict
    between: float
    parts: dict

    @property
    def memory(self):
        return sum(self.held.values())

    @property
    def time_s(self):
        return sum(self.parts.values())

    @property
    def bubble(self):
        """The share of the pipeline's time in which the slowest stage waits for others."""
        waiting = self.parts["bubble"] + self.parts["sends"]
        return waiting / (self.parts["compute"] + self.parts["tp"] + waiting)

    @property
    def name(self):
        return f"dp {self.dp} x pp {self.pp} x tp {self.tp}"


def plans(task):
    """The best Plan of every factorisation: those that fit, the fastest first, then the others,
    the least memory first. Raises ValueError if nothing can be tried at all."""
    check(task)
    network, found, refused = Network(task.links, task.ranks), [], set()
    for tp in _divisors(task.ranks, task.shape.heads):
        for pp in _divisors(task.ranks // tp, task.shape.layers):
            dp = task.ranks // tp // pp
            if task.batch % dp:
                refused.add(dp)
                continue
            found.append(_best(task, dp, pp, tp, network))
    if not found and refused:
        raise ValueError(f"{task.ranks} ranks need dp of {min(refused)} at least ({_limits(task)}),"
                         f" and a batch that it divides; got {task.batch} rows. Take a multiple "
                         f"of {min(refused)}")
    return sorted(found, key=lambda plan: rank_key(task, plan))


def rank_key(task, plan):
    """What is better comes first: fits, time, bytes between nodes; of what does not fit, memory."""
    if plan.memory <= task.memory:
        return 0, plan.time_s, plan.between, plan.memory
    return 1, plan.memory, plan.time_s, 0


def check(task):
    """Raise ValueError unless the numbers make sense."""
    for name, value in [*task._asdict().items(), *task.shape._asdict().items()]:
        if isinstance(value, (int, float)) and name not in ("zero", "recompute") and value <= 0:
            raise ValueError(f"a plan wants {name} above 0; got {value}")
    if task.shape.width % task.shape.heads:
        raise ValueError(f"a GPT's heads divide its width; got width {task.shape.width}, "
                         f"{task.shape.heads} heads")


def _limits(task):
    return f"tp is at most the {task.shape.heads} heads, pp the {task.shape.layers} layers"


def _divisors(n, most):
    return [k for k in range(1, min(n, most) + 1) if n % k == 0]


# -- what one factorisation can be


def _best(task, dp, pp, tp, network):
    """The best of `candidates`. Memory and bubble grow with the micro-batch: it stops where they
    are too much."""
    best = None
    for tried in candidates(task, dp, pp, tp, network):
        best = min([*tried, *([best] if best else [])], key=lambda plan: rank_key(task, plan))
        if all(plan.memory > task.memory or plan.parts["compute"] + plan.parts["bubble"]
               > best.time_s for plan in tried):
            return best
    return best


def candidates(task, dp, pp, tp, network):
    """Lists of the Plans of this factorisation, a list for each micro-batch, the smallest first."""
    shape, width = task.shape, WIDTHS[task.precision][0]
    ways, stride = {}, 1
    for axis, size in grid.shape(task.ranks, task.order, dp=dp, pp=pp, tp=tp).items():
        ways[axis] = network.way(stride, size)
        stride *= size
    fixed = [_fixed(task, dp, pp, tp, v, cut, ways) for v, cut in _cuts(shape, pp)]
    rows = task.batch // dp
    for micro in _divisors(rows, rows):
        m, tried = rows // micro, []
        hop, port = costs.send_s(ways["pp"], pp, micro * shape.context * shape.width * width)
        seconds = _seconds(task, tp, micro, ways["tp"], network)
        for v, cut, states, *gradients in fixed:
            timed = [(stage, *_of_stage(stage, *seconds)) for stage in states]
            lanes = [(stage.n, *map(sum, zip(compute, sums, strict=True)))
                     for stage, compute, sums in timed]
            _, compute, sums = max(timed, key=lambda x: sum(x[1]) + sum(x[2]))  # the slowest
            sent, dp_s, tied_s = _sent(task, dp, pp, tp, micro, m, v, states, *gradients)
            between = sum(ways[axis].leave * sent[axis] for axis in ("tp", "pp", "dp"))
            between += ways["pp"].leave * sent["tied"]
            for schedule in _schedules(task, pp, m, v):
                bubble, sends = costs.waits(schedule, v, m, lanes, hop, port)
                parts = {"compute": m * sum(compute), "tp": m * sum(sums), "bubble": bubble,
                         "sends": sends, "dp": dp_s, "tied": tied_s}
                held = max(({**kinds, "activations": costs.activations(
                    shape, tp, width, task.recompute, schedule, pp, m, v, stage, micro)}
                    for stage, kinds in states.items()), key=lambda kinds: sum(kinds.values()))
                tried.append(Plan(dp, pp, tp, micro, m, schedule, v, cut, held, sent, between,
                                  parts))
        yield tried


def _cuts(shape, pp):
    """(v, blocks of each rank): balanced, or all alike for v stages a rank."""
    yield 1, costs.balanced(shape, pp)
    each, left = divmod(shape.layers, pp)
    if pp > 1 and not left:
        for v in _divisors(each, each)[1:]:
            yield v, (each,) * pp


def _schedules(task, pp, m, v):
    """Those that can run; interleaved in whole groups, whose closed forms costs has."""
    if v > 1:
        return ["interleaved"] if m % pp == 0 else []
    if pp == 1:
        return ["1f1b"]
    return ["gpipe", "1f1b"] + ["zb-h1"] * (not task.recompute)  # then B is F + B


def _fixed(task, dp, pp, tp, v, cut, ways):
    """What no micro-batch changes: v, cut, {Stage: predict's states}; then bytes, and the seconds
    of their all-reduce, of the gradients, of the header before them, of the tied weight."""
    weights = {stage: costs.weights(task.shape, tp, stage) for stage in costs.stages_of(cut)}
    states = {stage: predict(n, precision=task.precision, zero=task.zero, world=dp)
              for stage, (n, _) in weights.items()}
    for kinds in states.values():
        del kinds["total"]
    elements, tensors = max(weights.values())
    width = WIDTHS[task.precision][1]
    sent = width if task.zero else 4  # data parallelism sums, and sends, in float32
    tied = width * costs.ends(task.shape, tp, width)[1].matrices if pp > 1 else 0
    first_last = ways["pp"]._replace(slow=min(2, ways["pp"].slow))
    # the header: how many samples, and for each parameter whether it was used
    return v, cut, states, *[(k, costs.all_reduce_s(way, n, k) if k else 0.0) for k, way, n in (
        (elements * sent, ways["dp"], dp), (8 * (1 + tensors), ways["dp"], dp),
        (tied, first_last, 2))]


def _sent(task, dp, pp, tp, micro, m, v, stages, gradients, header, tied):
    """({axis: bytes}, seconds of dp, of the tied weight). gradients, header, tied: (bytes, seconds
    of an all-reduce)."""
    tokens, again = micro * task.shape.context, 2 * task.recompute
    kept = tokens * task.shape.width * WIDTHS[task.precision][0]
    # 12: the loss's three sums, in float32
    summed = max(kept * ((4 + again) * stage.blocks + stage.first + stage.last)
                 + stage.last * 12 * tokens for stage in stages)
    # in half all-reduces: stage 2 scatters the gradients of each micro-batch and gathers the
    # weights once, stage 3 scatters once and gathers twice for each
    halves = {0: 2, 1: 2, 2: m + 1, 3: 3 * m}[task.zero]
    # both ways over each boundary; of two ranks each lacks a direction
    sent = {"tp": m * 2 * (tp - 1) / tp * summed,
            "pp": (m * (2 * v - (pp == 2)) * kept + v * HEADER) if pp > 1 else 0,
            "dp": (dp - 1) / dp * (halves * gradients[0] + 2 * header[0]), "tied": tied[0]}
    return sent, halves / 2 * gradients[1] + header[1], tied[1]


def _seconds(task, tp, micro, way, network):
    """Of one micro-batch, as (F, part of B to the inputs, W): a block's computing and all-reduces,
    the last end's, and the first's all-reduces."""
    shape, width, again = task.shape, WIDTHS[task.precision][0], task.recompute
    one, (_, last) = costs.block(shape, tp, width), costs.ends(shape, tp, width)
    tokens = micro * shape.context
    second = 2 * tokens * network.slowest / task.flops  # of a matrix element
    x, a, y = second * one.matrices, second * one.attention / 2, second * last.matrices
    s = costs.all_reduce_s(way, tp, tokens * shape.width * width)
    loss = sum(costs.all_reduce_s(way, tp, k * 4 * tokens) for k in (1, 2))
    return (((x + a, x + 2 * a + again * (x + a), x), (2 * s, (2 + 2 * again) * s, 0.0)),
            ((y, y, y), (loss, s, 0.0)), (s, 0.0, 0.0))


def _of_stage(stage, block, last, first):
    """((F, B, W) of a stage's computing, of its all-reduces)."""
    compute = tuple(stage.blocks * b + stage.last * e
                    for b, e in zip(block[0], last[0], strict=True))
    return compute, tuple(stage.blocks * b + stage.last * e + stage.first * f
                          for b, e, f in zip(block[1], last[1], first, strict=True))
