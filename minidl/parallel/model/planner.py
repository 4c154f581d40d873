"""Finds how to divide a GPT over n ranks: computes memory and time of every dp x pp x tp x cp x ep.

    n = product of   what it sends                                  what a rank then has
    tp   tensor      4 all-reduces of activations in each block,    1/tp of the weights, gradients
                     for every micro-batch                          and most activations
    cp   context     keys and values, and their gradients, around   1/cp of the activations and of
                     a ring during attention; or by Ulysses         the work on one text
    ep   experts     tokens to experts and back, 4 times in each    1/ep of the experts
                     block
    pp   pipeline    activations to the next stage; it also has a   1/pp of the weights
                     bubble
    dp   data        an all-reduce of the gradients, once in a      1/dp of the states that ZeRO
                     step                                           cuts

`plans` tries each factorisation n = dp pp tp cp ep with all sizes of micro-batch, all schedules and
both methods of cp. For each factorisation it keeps the fastest plan that fits into memory. If no
plan fits, it keeps the plan with the least memory. It uses only closed forms (plan_costs.py,
plan_network.py), so a plan for 100,000 ranks takes a second.

The usual result has tensor parallelism inside a node, the smallest number of stages that fits into
memory, and replicas on the other ranks. If a text is too long for a rank, context parallelism comes
first.

Gradients of dense weights (all weights except experts) are averaged over dp, ep and cp. Gradients
of experts are averaged over dp and cp. ZeRO cuts the states of dense weights. If the model has
experts, tp must be 1, because `parallelize` has no plan for experts. `Pipeline` does not allow
stage 3 of ZeRO, so pp is 1 for this stage. With stages 1 and 2 of ZeRO, two stages of a pipeline
must not share a weight. So with pp above 1, the output layer does not share the weight of the
embedding: it has its own weight. plan_text.py prints which plan wins, and why.

    task = Task(64, links_text.parse("nodes=8,intra=2Tbit,2us,inter=200Gbit,10us", 64), 16e9)
    print(text(task, plans(task)))

Source: Narayanan et al. 2021 (arXiv 2104.04473), section 3.
Test: tests/parallel/model/test_planner.py, test_plan.py (compared with a simulation with queues)
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
    """The model to train, and the machine.

    ranks      the number of ranks
    links      the network, a links.Links
    memory     the bytes of memory of one rank
    shape      the sizes of the GPT
    batch      the number of rows of all ranks in a step
    flops      the floating-point operations that one rank makes in a second
    zero       the stage of ZeRO, 1 to 3, or 0 for no ZeRO
    precision  the level of mixed precision, "O0" to "O3", as in memory/predict.py
    recompute  True if blocks are recomputed in backward
    cp         the largest number of ranks that may share a text. None means no limit"""

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
    """One way to divide the model, with its costs.

    method       the method of cp, "ring" or "ulysses"; "" if cp is 1
    micro        the number of rows of a micro-batch
    m            the number of micro-batches
    v            the number of stages of each rank
    cut          the number of blocks of each rank along pp
    held         {kind: bytes} on the rank with the most memory, as memory/predict.py gives them
    sent         {axis: the bytes that a rank of the busiest stage sends in a step, as a mean over
                 the rank's group}. The key "tied" is for the embedding that first and last stage
                 share
    between      the largest number of bytes that a node sends to other nodes in a step
    parts        {part of the step: seconds}. The sum of these seconds is the time of the step"""

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
        """The fraction of the pipeline's time in which the slowest stage waits for other stages."""
        waiting = self.parts["bubble"] + self.parts["sends"]
        return waiting / (sum(self.parts[part] for part in WORK) + waiting)

    @property
    def name(self):
        return f"dp {self.dp} x pp {self.pp} x tp {self.tp}" + "".join(
            f" x {axis} {n}" for axis, n in (("cp", self.cp), ("ep", self.ep)) if n > 1)


def plans(task):
    """Returns a list with the best Plan of every factorisation. First come the plans that fit into
    memory, sorted by time. Then come the others, sorted by memory. Raises ValueError for wrong
    numbers, or if no factorisation is possible."""
    check(task)
    network, found, refused = Network(task.links, task.ranks), [], set()
    for dp, pp, tp, cp, ep in _factors(task):
        if task.batch % (dp * ep):
            refused.add(dp * ep)
        else:
            found.append(_best(task, dp, pp, tp, network, cp, ep))
    if not found and refused:
        raise ValueError(f"a plan for {task.ranks} ranks has at least {min(refused)} replicas "
                         f"({_limits(task)}), so it wants a batch divisible by {min(refused)}; got "
                         f"a batch of {task.batch} rows")
    return sorted(found, key=lambda plan: rank_key(task, plan))


def _factors(task):
    """Yields every (dp, pp, tp, cp, ep) that the model allows. The product of these five numbers is
    the number of ranks."""
    shape = task.shape
    for tp in _divisors(task.ranks, 1 if shape.experts else shape.heads):
        for pp in _divisors(task.ranks // tp, shape.layers if task.zero < 3 else 1):
            for ep in _divisors(task.ranks // tp // pp, shape.experts or 1):
                for cp in _divisors(left := task.ranks // tp // pp // ep,
                                    min(task.cp or shape.context, shape.context)):
                    if (shape.experts or 1) % ep == 0 and (cp == 1 or _methods(shape, tp, cp)):
                        yield left // cp, pp, tp, cp, ep


def _methods(shape, tp, cp):
    """Returns the names of the methods by which cp ranks can share a text. Each rank must get the
    same number of tokens."""
    if cp == 1:
        return [""]
    heads, uneven = divmod(shape.heads, tp)
    # The zigzag order of ring attention cuts a text into 2 * cp pieces of the same length.
    return ["ring"] * (shape.context % (2 * cp) == 0) + ["ulysses"] * (
        shape.context % cp == 0 and not uneven and heads % cp == 0)


def rank_key(task, plan):
    """Returns a key that sorts better plans first. Plans that fit into memory are sorted by time,
    then by bytes between nodes. Plans that do not fit are sorted by memory."""
    if plan.memory <= task.memory:
        return 0, plan.time_s, plan.between, plan.memory
    return 1, plan.memory, plan.time_s, 0


def check(task):
    """Raises ValueError unless the numbers of the task are positive and fit together."""
    for name, value in [*task._asdict().items(), *task.shape._asdict().items()]:
        may_be_0 = name in ("zero", "recompute", "experts")
        if isinstance(value, (int, float)) and not may_be_0 and value <= 0:
            raise ValueError(f"a plan wants {name} above 0; got {value}")
    if task.shape.width % task.shape.heads:
        raise ValueError("a plan wants a GPT whose width is divisible by its number of heads; got "
                         f"width={task.shape.width}, heads={task.shape.heads}")
    if task.shape.experts and task.shape.top_k > task.shape.experts:
        raise ValueError(f"a plan wants top_k of at most {task.shape.experts}, the number of "
                         f"experts; got top_k={task.shape.top_k}")


def _limits(task):
    tp = "with experts tp is 1" if task.shape.experts else (
        f"tp is at most {task.shape.heads}, the number of heads")
    return f"{tp}; pp is at most {task.shape.layers}, the number of layers" if task.zero < 3 else (
        f"{tp}; with ZeRO 3 pp is 1")


@cache
def _divisors(n, most):
    small = [k for k in range(1, math.isqrt(n) + 1) if n % k == 0]
    return [k for k in sorted({*small, *(n // k for k in small)}) if k <= most]


# -- the plans of one factorisation of the number of ranks


def _best(task, dp, pp, tp, network, cp, ep):
    """Returns the best Plan that candidates() yields. Memory and bubble grow with the size of the
    micro-batch. So the search ends at a size at which no plan can win. A plan cannot win if it
    needs too much memory, or if its computation and bubble, without messages, take longer than the
    best plan."""
    best = None
    for tried in candidates(task, dp, pp, tp, network, cp, ep):
        best = min([*tried, *([best] if best else [])], key=lambda plan: rank_key(task, plan))
        if all(plan.memory > task.memory or plan.parts["compute"] + plan.parts["bubble"]
               > best.time_s for plan in tried):
            return best
    return best


def candidates(task, dp, pp, tp, network, cp=1, ep=1):
    """Yields a list of this factorisation's Plans for each size of micro-batch. The smallest size
    comes first."""
    shape, links = task.shape, step.links_of_axes(network, dict(dp=dp, pp=pp, tp=tp, cp=cp, ep=ep))
    replicas = dp * ep * cp, dp * cp  # the number of replicas of dense weights, and of experts
    fixed = [step.fixed(task, replicas, tp, ep, v, cut, links) for v, cut in _cuts(shape, pp)]
    rows = task.batch // (dp * ep)
    for micro in _divisors(rows, rows):
        yield [plan for method in _methods(shape, tp, cp) for plan in _of_micro(
            task, network, links, fixed, replicas, (dp, pp, tp, cp, ep), method, micro, rows)]


def _of_micro(task, network, links, fixed, replicas, sizes, method, micro, rows):
    """Yields the Plans with micro-batches of `micro` rows, for every cut and schedule."""
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
    """Yields (v, a tuple with the number of blocks of each rank). v is the number of stages of a
    rank. For v = 1 the cut is balanced by cost. For larger v all ranks have the same number of
    blocks."""
    yield 1, costs.balanced(shape, pp)
    each, left = divmod(shape.layers, pp)
    if pp > 1 and not left:
        for v in _divisors(each, each)[1:]:
            yield v, (each,) * pp


def _schedules(task, pp, m, v):
    """Returns the names of the schedules that can run. "interleaved" is among them only if pp
    divides m, because plan_costs.py has formulas only for this case."""
    if v > 1:
        return ["interleaved"] if m % pp == 0 else []
    if pp == 1:
        return ["1f1b"]
    # ZB-H1 cannot use recompute, because recompute runs F again in part B.
    return ["gpipe", "1f1b"] + ["zb-h1"] * (not task.recompute)
