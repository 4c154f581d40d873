"""How to divide a GPT over n ranks: every dp x pp x tp x cp x ep, what each needs and how long a
step takes.

    n = product of   what it sends                                  what it saves
    tp   tensor      4 all-reduces of activations a block, for      1/tp of weights, gradients,
                     every micro-batch                              most of the activations
    cp   context     keys and values, and their gradients, around   1/cp of the activations, of the
                     a ring beside attention; or by Ulysses         work at one text
    ep   experts     tokens to experts and back, 4 times a block    1/ep of the experts
    pp   pipeline    activations to the next stage; a bubble        1/pp of the weights
    dp   data        an all-reduce of the gradients, once a step    ZeRO: 1/dp of what it cuts

`plans` tries each, with all micro-batches, schedules and both links of cp that it can have, and
keeps the fastest that fits into memory; of one that does not fit at all, what needs least. By
closed forms alone (plan_costs.py, plan_network.py): 100,000 ranks take a second. The rule of thumb
that mostly comes out: tensor parallelism inside a node, as many stages as memory asks for, the rest
replicas; of a text that is too long for a rank, context parallelism first. Dense gradients are
averaged over dp, ep and cp, those of experts over dp and cp; ZeRO cuts the dense ones' states. A
model with experts has tp 1: `parallelize` has no plan for those. As `Pipeline` takes it, ZeRO 3 has
pp 1, and stages of 1 and 2 share no weight: there the output layer has its own. plan_text.py says
in words which one wins, and why.

    task = Task(64, links_text.parse("nodes=8,intra=2Tbit,2us,inter=200Gbit,10us", 64), 16e9)
    print(text(task, plans(task)))

Source: Narayanan et al. 2021 (arXiv 2104.04473), section 3.
Test: tests/parallel/model/test_planner.py, test_plan.py (beside a simulation with queues)
Command: minidl plan (cli/plan.py)
"""

import math
from functools import cache
from typing import NamedTuple

from minidl.memory.predict import WIDTHS
from minidl.parallel.model import plan_costs as costs
from minidl.parallel.model import plan_network as net
from minidl.parallel.model import plan_step as step
from minidl.parallel.model.plan_costs import Shape
from minidl.parallel.model.plan_network import Network
from minidl.parallel.model.plan_step import WORK

MODELS = {
    "gpt2": Shape(12, 768, 12, 1024, 50257), "gpt2-medium": Shape(24, 1024, 16, 1024, 50257),
    "gpt2-large": Shape(36, 1280, 20, 1024, 50257), "gpt2-xl": Shape(48, 1600, 25, 1024, 50257),
    "gpt3": Shape(96, 12288, 96, 2048, 50257),
}


class Task(NamedTuple):
    """What is to be done, and on what. links: links.Links; memory: bytes of one rank; batch: rows
    of all ranks in a step; flops: of a rank, per second; zero: 0 to 3; precision: as predict's.
    cp: so many ranks share a text at most; None: any number."""

    ranks: int
    links: object
    memory: float
    shape: Shape = MODELS["gpt2"]
    batch: int = 64
    flops: float = 1e14
    zero: int = 0
    precision: str = "O0"
    recompute: bool = False
    cp: int | None = None


class Plan(NamedTuple):
    """One way to do it.

    method       of cp: "ring", "ulysses"; "" on one rank
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
    cp: int
    ep: int
    method: str
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
        return waiting / (sum(self.parts[part] for part in WORK) + waiting)

    @property
    def name(self):
        return f"dp {self.dp} x pp {self.pp} x tp {self.tp}" + "".join(
            f" x {axis} {n}" for axis, n in (("cp", self.cp), ("ep", self.ep)) if n > 1)


def plans(task):
    """The best Plan of every factorisation: those that fit, the fastest first, then the others,
    the least memory first. Raises ValueError if nothing can be tried at all."""
    check(task)
    network, found, refused = Network(task.links, task.ranks), [], set()
    for dp, pp, tp, cp, ep in _factors(task):
        if task.batch % (dp * ep):
            refused.add(dp * ep)
        else:
            found.append(_best(task, dp, pp, tp, network, cp, ep))
    if not found and refused:
        raise ValueError(f"{task.ranks} ranks need dp of {min(refused)} at least ({_limits(task)}),"
                         f" and a batch that it divides; got {task.batch} rows. Take a multiple "
                         f"of {min(refused)}")
    return sorted(found, key=lambda plan: rank_key(task, plan))


def _factors(task):
    """(dp, pp, tp, cp, ep) of every factorisation that the model allows."""
    shape = task.shape
    for tp in _divisors(task.ranks, 1 if shape.experts else shape.heads):
        for pp in _divisors(task.ranks // tp, shape.layers if task.zero < 3 else 1):
            for ep in _divisors(task.ranks // tp // pp, shape.experts or 1):
                for cp in _divisors(left := task.ranks // tp // pp // ep,
                                    min(task.cp or shape.context, shape.context)):
                    if (shape.experts or 1) % ep == 0 and (cp == 1 or _methods(shape, tp, cp)):
                        yield left // cp, pp, tp, cp, ep


def _methods(shape, tp, cp):
    """How so many ranks can share a text, as many tokens on each."""
    if cp == 1:
        return [""]
    heads, uneven = divmod(shape.heads, tp)
    return ["ring"] * (shape.context % (2 * cp) == 0) + ["ulysses"] * (  # zigzag: 2 cp pieces
        shape.context % cp == 0 and not uneven and heads % cp == 0)


def rank_key(task, plan):
    """What is better comes first: fits, time, bytes between nodes; of what does not fit, memory."""
    if plan.memory <= task.memory:
        return 0, plan.time_s, plan.between, plan.memory
    return 1, plan.memory, plan.time_s, 0


def check(task):
    """Raise ValueError unless the numbers make sense."""
    for name, value in [*task._asdict().items(), *task.shape._asdict().items()]:
        may_be_0 = name in ("zero", "recompute", "experts")
        if isinstance(value, (int, float)) and not may_be_0 and value <= 0:
            raise ValueError(f"a plan wants {name} above 0; got {value}")
    if task.shape.width % task.shape.heads:
        raise ValueError(f"a GPT's heads divide its width; got width {task.shape.width}, "
                         f"{task.shape.heads} heads")
    if task.shape.experts and task.shape.top_k > task.shape.experts:
        raise ValueError(f"a token takes {task.shape.experts} experts at most; got "
                         f"{task.shape.top_k}")


def _limits(task):
    tp = "tp is 1 with experts" if task.shape.experts else (
        f"tp is at most the {task.shape.heads} heads")
    return f"{tp}, pp the {task.shape.layers} layers" if task.zero < 3 else (
        f"{tp}, pp is 1 with ZeRO 3")


@cache
def _divisors(n, most):
    small = [k for k in range(1, math.isqrt(n) + 1) if n % k == 0]
    return [k for k in sorted({*small, *(n // k for k in small)}) if k <= most]


# -- what one factorisation can be


def _best(task, dp, pp, tp, network, cp, ep):
    """The best of `candidates`. Memory and bubble grow with the micro-batch: it stops where they
    are too much."""
    best = None
    for tried in candidates(task, dp, pp, tp, network, cp, ep):
        best = min([*tried, *([best] if best else [])], key=lambda plan: rank_key(task, plan))
        if all(plan.memory > task.memory or plan.parts["compute"] + plan.parts["bubble"]
               > best.time_s for plan in tried):
            return best
    return best


def candidates(task, dp, pp, tp, network, cp=1, ep=1):
    """Lists of the Plans of this factorisation, a list for each micro-batch, the smallest first."""
    shape, links = task.shape, step.links_of_axes(network, dict(dp=dp, pp=pp, tp=tp, cp=cp, ep=ep))
    replicas = dp * ep * cp, dp * cp  # of dense weights, of experts
    fixed = [step.fixed(task, replicas, tp, ep, v, cut, links) for v, cut in _cuts(shape, pp)]
    rows = task.batch // (dp * ep)
    for micro in _divisors(rows, rows):
        yield [plan for method in _methods(shape, tp, cp) for plan in _of_micro(
            task, network, links, fixed, replicas, (dp, pp, tp, cp, ep), method, micro, rows)]


def _of_micro(task, network, links, fixed, replicas, sizes, method, micro, rows):
    """The Plans with micro-batches of so many rows: of every cut and schedule."""
    shape, width, (dp, pp, tp, cp, ep) = task.shape, WIDTHS[task.precision][0], sizes
    m, tokens = rows // micro, micro * shape.context // cp
    hop, port = net.send_s(links["pp"], pp, tokens * shape.width * width)
    seconds = step.seconds(task, tokens, (tp, cp, ep), method, links, network)
    for v, cut, states, *gradients in fixed:
        timed = [(stage, step.of_stage(stage, seconds)) for stage in states]
        lanes = [(stage.n, *(sum(axis[i] for axis in parts.values()) for i in range(3)))
                 for stage, parts in timed]
        _, slowest = max(timed, key=lambda x: sum(map(sum, x[1].values())))
        sent, dp_s, tied_s = step.sent(task, replicas, sizes[1:], tokens, method, m, v, states,
                                       *gradients)
        between = sum(links[axis].leave * sent[axis] for axis in ("tp", "pp", "dp"))
        between += links["pp"].leave * sent["tied"] + net.leaving(links["ep"], ep) * sent["ep"]
        between += sent["cp"] * (net.leaving(links["cp"], cp) if method == "ulysses"
                                 else links["cp"].leave)
        for schedule in _schedules(task, pp, m, v):
            bubble, sends = costs.waits(schedule, v, m, lanes, hop, port)
            parts = {part: m * sum(slowest[part]) if part in slowest else 0.0 for part in WORK}
            parts |= {"bubble": bubble, "sends": sends, "dp": dp_s, "tied": tied_s}
            held = max(({**kinds, "activations": costs.activations(
                shape, tp, width, task.recompute, schedule, pp, m, v, stage, micro, cp, method)}
                for stage, kinds in states.items()), key=lambda kinds: sum(kinds.values()))
            yield Plan(dp, pp, tp, cp, ep, method, micro, m, schedule, v, cut, held, sent, between,
                       parts)


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
