"""Schedules of a pipeline: the order in which each rank works on the parts of micro-batches.

    GPipe    rank 0  F0 F1 F2 F3             B0 B1 B2 B3     all forwards, then all backwards
             rank 1     F0 F1 F2 F3       B0 B1 B2 B3
             rank 2        F0 F1 F2 F3 B0 B1 B2 B3

    1F1B     rank 0  F0 F1 F2       B0 F3 B1    B2    B3     each backward as early as possible
             rank 1     F0 F1    B0 F2 B1 F3 B2    B3
             rank 2        F0 B0 F1 B1 F2 B2 F3 B3

Suppose that a forward takes F seconds, and a backward takes B seconds. With p ranks and m
micro-batches, GPipe and 1F1B then take (m + p - 1)(F + B) seconds. In this time each rank is idle
for (p - 1)(F + B) seconds. So the bubble, the idle fraction, is (p - 1) / (m + p - 1). In 1F1B rank
s holds the activations of min(p-s, m) micro-batches. With GPipe every rank holds the activations of
all m micro-batches. There are two ways to make the bubble smaller:

    interleaved   each rank has v stages, and each stage has 1/v of the rank's layers. The bubble is
                  (p - 1) / (v m + p - 1), and v times as many messages are sent
    ZB-H1         backward has two parts. B computes the gradient of the input; the previous rank
                  waits for it. W computes the gradients of the weights. No rank waits for them, so
                  W fills idle time at the end. Rank 0 is idle for (p - 1)(F + B - W) seconds
                  between its first and its last part. In 1F1B rank 0 is idle for
                  (p - 1)(F + B + W) seconds

A schedule is data: a list of `Do` for each rank. `check` checks that a schedule can run. `timeline`
computes when each part runs. `live` counts the micro-batches whose activations a rank holds.
pipeline.py runs a schedule.
Sources: Huang et al. 2019 (arXiv 1811.06965); Narayanan et al. 2021 (arXiv 2104.04473); Qi et al.
2024 (arXiv 2401.10241).   Test: tests/parallel/model/test_schedule.py
Tutorial: tutorials/14_pipeline.py
"""

from collections import Counter
from typing import NamedTuple


class Do(NamedTuple):
    """One part of the work on one micro-batch in one stage.

    kind: "F" is forward. "B" is backward. If the schedule has parts "W", "B" computes only the
    gradients of inputs, and "W" computes the gradients of weights."""

    kind: str
    stage: int
    micro: int

    def __str__(self):
        return f"{self.kind}{self.stage}.{self.micro}"


class At(NamedTuple):
    """A part, and the times when it starts and ends, in seconds since the start of the step."""

    do: Do
    start: float
    end: float


def gpipe(p, m):
    """Returns a schedule for p ranks and m micro-batches: all forwards, then all backwards. Each
    rank holds the activations of m micro-batches."""
    _positive(p=p, m=m)
    return [[Do(kind, s, i) for kind in "FB" for i in range(m)] for s in range(p)]


def one_f_one_b(p, m):
    """Returns the 1F1B schedule for p ranks and m micro-batches. Rank s runs p - s - 1 forwards,
    then one forward and one backward in turn. Rank s holds the activations of min(p - s, m)
    micro-batches."""
    return interleaved(p, m, 1)


def interleaved(p, m, v):
    """Returns the interleaved 1F1B schedule of p v stages. Rank r has stages r, p + r, 2 p + r, ...

    A rank takes micro-batches in groups of N. The rank runs a group through one of its stages, and
    then through the next of its stages. If m is divisible by p, N = p. Otherwise all micro-batches
    are one group, N = m. The formula of the bubble (top of the file) holds for N >= p. If m < p,
    every rank also waits while the group passes the other ranks. It waits for the time of p - m
    parts in each of its stages.

    Raises ValueError if v > 1, m > 2 p, and m is not divisible by p. In this case a rank has to
    keep N - p results until the next rank can receive them."""
    _positive(p=p, m=m, v=v)
    if v > 1 and m % p and m > 2 * p:
        raise ValueError(f"interleaved 1F1B on {p} ranks wants a number of micro-batches that is "
                         f"divisible by {p}, or smaller than {2 * p}; got m={m}. Use m="
                         f"{m - m % p} or m={m - m % p + p}, or one stage for each rank (v=1)")
    group = p if m % p == 0 else m
    order = [(chunk, i) for start in range(0, m, group) for chunk in range(v)
             for i in range(start, min(start + group, m))]
    schedule = []
    for r in range(p):
        forwards = [Do("F", chunk * p + r, i) for chunk, i in order]
        backwards = [Do("B", (v - 1 - chunk) * p + r, i) for chunk, i in order]
        ahead = p - r - 1 if v == 1 else 2 * (p - r - 1) + (v - 1) * group
        schedule.append(_alternate(forwards, backwards, min(ahead, m * v)))
    return schedule


def zb_h1(p, m):
    """Returns the ZB-H1 schedule for p ranks and m micro-batches: 1F1B with backward in two parts.
    Rank s first runs s parts B without a W. After each later B it runs the oldest W that has not
    run yet. The remaining parts W come at the end. Each rank holds the activations of min(p, m)
    micro-batches."""
    schedule = []
    for s, dos in enumerate(one_f_one_b(p, m)):
        filled, n_b, n_w = [], 0, 0
        for do in dos:
            filled.append(do)
            n_b += do.kind == "B"
            if do.kind == "B" and n_b > s:
                filled.append(Do("W", s, n_w))
                n_w += 1
        schedule.append(filled + [Do("W", s, i) for i in range(n_w, m)])
    return schedule


def _alternate(forwards, backwards, ahead):
    """Returns a list with all parts in `forwards` and `backwards`. First come `ahead` forwards.
    Then a forward and a backward come in turn. At the end come the other backwards."""
    done = forwards[:ahead]
    for forward, backward in zip(forwards[ahead:], backwards, strict=False):
        done += [forward, backward]
    return done + backwards[len(forwards) - ahead:]


def _positive(**counts):
    for name, n in counts.items():
        if n < 1:
            raise ValueError(f"a schedule wants at least 1 as {name} (p: ranks, m: micro-batches, "
                             f"v: stages of a rank); got {name}={n}")


# -- properties of a schedule


def rank_of_stage(schedule):
    """Returns a list of ranks: the rank that runs stage 0, the rank that runs stage 1, ..."""
    places = {do.stage: rank for rank, dos in enumerate(schedule) for do in dos}
    return [places[stage] for stage in sorted(places)]


def n_micro(schedule):
    return 1 + max(do.micro for dos in schedule for do in dos)


def splits(schedule):
    """Returns True if the backwards of this schedule have two parts, B and W."""
    return any(do.kind == "W" for dos in schedule for do in dos)


def before(do, n_stages):
    """Returns the part that must end before `do`, because `do` needs the result of this part.
    Returns None if `do` needs no result."""
    kind, stage, micro = do
    if kind == "F":
        return Do("F", stage - 1, micro) if stage else None
    if kind == "B" and stage + 1 < n_stages:
        return Do("B", stage + 1, micro)
    return Do("F" if kind == "B" else "B", stage, micro)


def text(schedule):
    """Returns the schedule as text, a line for each rank: "F0 F1 B0 ...". If a rank has several
    stages, "F2.0" is micro-batch 0 in stage 2."""
    several = any(len({do.stage for do in dos}) > 1 for dos in schedule)
    return "\n".join(" ".join(str(do) if several else f"{do.kind}{do.micro}" for do in dos)
                     for dos in schedule)


def live(schedule):
    """Returns for each rank the largest number of (stage, micro-batch) pairs whose activations the
    rank holds at the same time. Activations are held from F to the last part of the pair."""
    last = "W" if splits(schedule) else "B"
    most = []
    for dos in schedule:
        n = peak = 0
        for do in dos:
            n += do.kind == "F"
            peak = max(peak, n)
            n -= do.kind == last
        most.append(peak)
    return most


def check(schedule):
    """Raises ValueError unless the schedule can run. The message has the rank and the part.

    Three things must hold. First, each stage is on one rank. For every micro-batch this rank
    runs F, B and W of the stage once, in this order. Second, a stage sends its results in the order
    in which the next stage receives these results. Third, no rank waits for ever. This must be true
    even if a stage can send a result only after its previous result was received."""
    ranks = {}
    for rank, dos in enumerate(schedule):
        for do in dos:
            if do.kind not in ("F", "B", "W"):
                raise ValueError(f"rank {rank}: a part of a schedule must have kind 'F', 'B' or "
                                 f"'W'; got {do.kind!r}, for stage {do.stage} and micro-batch "
                                 f"{do.micro}")
            if ranks.setdefault(do.stage, rank) != rank:
                raise ValueError(f"a schedule wants all parts of a stage on one rank; got parts of "
                                 f"stage {do.stage} on rank {ranks[do.stage]} and on rank {rank}")
    if sorted(ranks) != list(range(len(ranks))):
        raise ValueError("a schedule wants stages 0, 1, 2, ... without a gap; got stages "
                         f"{sorted(ranks)}")
    m, kinds = n_micro(schedule), "FBW" if splits(schedule) else "FB"
    for rank, dos in enumerate(schedule):
        _check_rank(rank, dos, [s for s, r in ranks.items() if r == rank], m, kinds)
    for kind, step in (("F", 1), ("B", -1)):
        for stage in ranks:
            if stage + step in ranks:
                sent, taken = (
                    [do.micro for do in schedule[ranks[s]] if do[:2] == (kind, s)]
                    for s in (stage, stage + step))
                if sent != taken:
                    raise ValueError(
                        f"rank {ranks[stage]}: two neighbouring stages must run part {kind} of the "
                        f"micro-batches in the same order; got {sent} in stage {stage}, and "
                        f"{taken} in stage {stage + step}")
    _check_progress(schedule, ranks)


def _check_rank(rank, dos, stages, m, kinds):
    """Raises ValueError unless the rank runs each part once and in the right order. A rank has a
    part for each of its stages and each of m micro-batches. kinds: the kinds of the parts, in the
    right order."""
    place = {do: i for i, do in enumerate(dos)}
    for do, n in Counter(dos).items():
        if n > 1:
            raise ValueError(f"rank {rank}: a schedule wants each part once; got part {do.kind} of "
                             f"stage {do.stage} for micro-batch {do.micro} {n} times")
    for stage in stages:
        for i in range(m):
            parts = [Do(kind, stage, i) for kind in kinds]
            for do in parts:
                if do not in place:
                    raise ValueError(f"rank {rank}: the schedule of this rank wants each part "
                                     f"once; got no part {do.kind} of stage {do.stage} for "
                                     f"micro-batch {do.micro}")
            for a, b in zip(parts, parts[1:], strict=False):
                if place[a] > place[b]:
                    raise ValueError(f"rank {rank}: stage {stage} must run part {a.kind} of "
                                     f"micro-batch {i} before part {b.kind}; got the opposite "
                                     "order")


def _check_progress(schedule, ranks):
    """Simulates the schedule. Raises ValueError if the simulation stops before the end. A rank can
    run a part if the result that the part needs is ready, and if the stage's previous result has
    been received."""
    at, done, taken, last = [0] * len(schedule), set(), {None}, {}

    def waits(rank):
        do = schedule[rank][at[rank]]
        needed = before(do, len(ranks))
        if needed is not None and needed not in done:
            return f"{do} waits for {needed} of rank {ranks[needed.stage]}"
        taken.add(needed)
        if (sent := last.get(do[:2])) not in taken:
            return f"{do} waits until rank {ranks[_to(sent)]} takes the result of {sent}"
        return None

    moved = True
    while moved:
        moved = False
        for rank, dos in enumerate(schedule):
            while at[rank] < len(dos) and not waits(rank):
                do = dos[at[rank]]
                done.add(do)
                if ranks.get(_to(do), rank) != rank:
                    last[do[:2]] = do
                at[rank] += 1
                moved = True
    stuck = [f"rank {rank}: {waits(rank)}" for rank, dos in enumerate(schedule)
             if at[rank] < len(dos)]
    if stuck:
        raise ValueError("a schedule must not wait for ever (F2.0: part F of stage 2, "
                         "micro-batch 0); "
                         "got a deadlock: " + "; ".join(stuck))


def _to(do):
    """Returns the stage that gets a part's result. The result of a W stays in its own stage."""
    return do.stage + {"F": 1, "B": -1, "W": 0}[do.kind]


def timeline(schedule, F=1.0, B=1.0, W=1.0, hop=0.0):
    """Returns for each rank a list of At: its parts, and when they start and end. A part starts
    when its rank is free and the result that it needs has arrived.

    F, B, W: the seconds of each part in a stage, or lists with one number for each stage. An
    undivided backward takes B + W. hop: the seconds of a message to another rank. Messages do not
    delay each other."""
    places, ends = rank_of_stage(schedule), {}
    parts = {"F": (F,), "B": (B,) if splits(schedule) else (B, W), "W": (W,)}

    def cost(do):
        return sum(x[do.stage] if hasattr(x, "__len__") else x for x in parts[do.kind])

    lanes, at, free = [[] for _ in schedule], [0] * len(schedule), [0.0] * len(schedule)
    moved = True
    while moved:
        moved = False
        for rank, dos in enumerate(schedule):
            while at[rank] < len(dos):
                do = dos[at[rank]]
                needed = before(do, len(places))
                if needed is not None and needed not in ends:
                    break
                there = 0.0 if needed is None else ends[needed] + hop * (
                    places[needed.stage] != rank)
                start = max(free[rank], there)
                free[rank] = ends[do] = start + cost(do)
                lanes[rank].append(At(do, start, free[rank]))
                at[rank] += 1
                moved = True
    return lanes


def makespan(lanes):
    """Returns the seconds until the last rank is done. lanes: the result of timeline()."""
    return max(lane[-1].end for lane in lanes)


def bubble(lanes):
    """Returns the fraction of the ranks' time in which the ranks are idle, from 0 to 1. lanes: the
    result of timeline()."""
    busy = sum(end - start for lane in lanes for _, start, end in lane)
    return 1 - busy / (len(lanes) * makespan(lanes))
