"""One step of a GPT on a grid of ranks, message by message: what the planner's formulas stand
beside. It shares nothing with them: its own counts of flops and bytes, its own orders, its own
ports.

A message of b bytes keeps the port where it leaves and the one where it arrives busy for b * beta
each; its first byte travels for alpha. Each rank has a port, and where nodes share a NIC, a node's
messages to other nodes all leave by its one port. Events are taken in the order of their times.
"""

import heapq
import itertools


class Net:
    """n ranks on nodes of `node` ranks; intra, inter: (alpha, beta)."""

    def __init__(self, n, node, intra, inter, shared=True):
        self.n, self.node, self.intra, self.inter, self.shared = n, node, intra, inter, shared

    def text(self):
        """The same for links_text.parse."""
        link = [f"{8 / beta / 1e9:.12g}Gbit,{alpha * 1e6:.12g}us"
                for alpha, beta in (self.intra, self.inter)]
        if self.node >= self.n:
            return link[0]
        nic = "node" if self.shared else "rank"
        return f"nodes={self.n // self.node},intra={link[0]},inter={link[1]},nic={nic}"


class Wires:
    """The ports, each with the time from which it is free."""

    def __init__(self, net):
        self.net, self.out, self.come = net, {}, {}

    def send(self, at, src, dst, n_bytes):
        """(when the sender's port is free again, when all has arrived)."""
        a, b = src // self.net.node, dst // self.net.node
        alpha, beta = self.net.intra if a == b else self.net.inter
        if a != b and self.net.shared:
            src, dst = ("nic", a), ("nic", b)
        start = max(at, self.out.get(src, 0.0))
        self.out[src] = gone = start + n_bytes * beta
        self.come[dst] = done = max(start + alpha, self.come.get(dst, 0.0)) + n_bytes * beta
        return gone, done


def rings(net, groups, sizes, starts):
    """{rank: when it is done} of a ring all-reduce in each group of ranks, all at once. sizes,
    starts: {rank: bytes of its array}, {rank: when it begins}."""
    n, wires, events, ties = len(groups[0]), Wires(net), [], itertools.count()
    right = {rank: group[(i + 1) % n] for group in groups for i, rank in enumerate(group)}
    came = {rank: [] for rank in right}  # when each step's chunk was there
    left, free = dict.fromkeys(right, 0), dict(starts)  # steps sent; when the last one had left
    for rank in right if n > 1 else ():
        heapq.heappush(events, (starts[rank], next(ties), rank))
    while events:
        now, _, rank = heapq.heappop(events)
        free[rank], arrival = wires.send(now, rank, right[rank], sizes[rank] / n)
        left[rank] += 1
        came[right[rank]].append(arrival)
        # who has sent a step and received it goes on to the next: this rank or its right neighbour
        for r in (rank,) * (len(came[rank]) >= left[rank]) + (right[rank],) * (
                left[right[rank]] == len(came[right[rank]])):
            if left[r] < 2 * (n - 1):
                begin = max(free[r], came[r][left[r] - 1])
                heapq.heappush(events, (begin, next(ties), r))
    return {rank: max([free[rank], *came[rank][-1:]]) for rank in right}


# -- orders: lists of (kind, stage, micro-batch) for each rank


def order(schedule, p, m, v):
    return [{"gpipe": all_forward, "1f1b": one_one, "interleaved": chunks,
             "zb-h1": filled}[schedule](r, p, m, v) for r in range(p)]


def all_forward(r, p, m, v):
    return [("F", r, i) for i in range(m)] + [("B", r, i) for i in range(m)]


def pairs(forward, backward, ahead):
    parts = forward[:ahead]
    for i in range(len(forward)):
        parts += forward[ahead + i:ahead + i + 1] + [backward[i]]
    return parts


def one_one(r, p, m, v):
    return pairs([("F", r, i) for i in range(m)], [("B", r, i) for i in range(m)],
                 min(p - r - 1, m))


def chunks(r, p, m, v):
    forward, backward = [], []
    for k in range(m * v):
        chunk, i = k % (p * v) // p, k // (p * v) * p + k % p
        forward.append(("F", chunk * p + r, i))
        backward.append(("B", (v - 1 - chunk) * p + r, i))
    return pairs(forward, backward, min(2 * (p - r - 1) + (v - 1) * p, m * v))


def filled(r, p, m, v):
    parts, left, n_b = [], [("W", r, i) for i in range(m)], 0
    for part in one_one(r, p, m, v):
        parts.append(part)
        n_b += part[0] == "B"
        if part[0] == "B" and n_b > r:
            parts.append(left.pop(0))
    return parts + left


# -- a step


class Work:
    """The GPT: layers, width, heads, context, vocabulary; batch rows; a rank's flops a second.
    float32, AdamW, no ZeRO."""

    def __init__(self, net, shape, batch, flops, memory):
        self.net, self.shape, self.batch = net, shape, batch
        self.flops, self.memory = flops, memory
        self.summed = {}  # what was simulated before

    def stage(self, p, v, tp, micro, blocks, s):
        """((F, B to the inputs, W) seconds of computing in stage s of p v, numbers of (all-reduces
        of activations forward, backward), whether it has the loss)."""
        layers, C, heads, T, V = self.shape
        tokens, last = micro * T, s == p * v - 1
        matrices = blocks * 12 * C * C + last * V * C
        inside = blocks * 2 * T * C  # scores and their use: a multiply and an add each
        f, b = matrices + inside, matrices + 2 * inside
        seconds = [2 * tokens * x / tp / self.flops for x in (f, b, matrices)]
        return seconds, (2 * blocks + (s == 0), 2 * blocks + last), last

    def sum_s(self, tp, n_bytes):
        """Seconds of an all-reduce in each tensor-parallel group, all at the same time."""
        key = tp, n_bytes
        if key not in self.summed:
            groups = [range(i, i + tp) for i in range(0, self.net.n, tp)]
            every = range(self.net.n)
            done = rings(self.net, groups, dict.fromkeys(every, n_bytes), dict.fromkeys(every, 0.0))
            self.summed[key] = max(done.values())
        return self.summed[key]

    def parts(self, dp, pp, tp, micro, v, cut):
        """{kind: seconds of each of the stages}."""
        layers, C, heads, T, V = self.shape
        kept = micro * T * C * 4
        one = self.sum_s(tp, kept) if tp > 1 else 0.0
        loss = sum(self.sum_s(tp, k * 4 * micro * T) for k in (1, 2)) if tp > 1 else 0.0
        seconds = {"F": [], "B": [], "W": []}
        for s in range(pp * v):
            (f, b, w), (n_f, n_b), last = self.stage(pp, v, tp, micro, cut[s % pp] // v, s)
            seconds["F"].append(f + n_f * one + last * loss)
            seconds["B"].append(b + n_b * one)
            seconds["W"].append(w)
        return seconds

    def weights(self, pp, tp, cut, s):
        """Elements of a rank of pipeline rank s."""
        layers, C, heads, T, V = self.shape
        n = cut[s] * (12 * C * C / tp + 7 * C / tp + 6 * C)
        n += V * C / tp * (s == 0 or s == pp - 1)
        return n + T * C * (s == 0) + 2 * C * (s == pp - 1)

    def peak(self, dp, pp, tp, micro, schedule, v, cut):
        """Bytes of the fullest rank, by going through the orders."""
        layers, C, heads, T, V = self.shape
        tokens, most = micro * T, 0
        a_block = tokens * (4 * (4 * C + 12 * C / tp) + 16 + 4 * heads / tp)
        for s, parts in enumerate(order(schedule, pp, self.batch // dp // micro, v)):
            held = peak = 0
            frees = "W" if schedule == "zb-h1" else "B"
            for kind, stage, _ in parts:
                n = cut[s] // v * a_block
                if stage == pp * v - 1:
                    n += tokens * (8 * C + 4 * V / tp + 20)
                held += n if kind == "F" else -n if kind == frees else 0
                peak = max(peak, held)
            most = max(most, 16 * self.weights(pp, tp, cut, s) + peak)
        return most

    def least(self, dp, pp, tp, micro, schedule, v, cut):
        """Seconds that the step takes at least: until the first micro-batch has come to a rank, its
        work, the last gradient's way back, and a ring of gradients over the slowest link."""
        seconds, m = self.parts(dp, pp, tp, micro, v, cut), self.batch // dp // micro
        layers, C, heads, T, V = self.shape
        alpha, beta = min(self.net.intra, self.net.inter, key=lambda link: link[1])
        longest, there, back = 0.0, 0.0, 0.0
        for r in range(pp):
            f, b, w = (m * sum(seconds[kind][r::pp]) for kind in "FBW")
            w_last = 0.0 if schedule == "zb-h1" else w
            longest = max(longest, there + f + b + w, there + f + b + w_last + back)
            there += seconds["F"][r] + alpha + micro * T * C * 4 * beta
            back += seconds["B"][r] + alpha + micro * T * C * 4 * beta
        if tp * dp > self.net.node:  # each ring leaves its node; those of a node by one NIC
            beta = self.net.inter[1] * (min(tp, self.net.node) if self.net.shared else 1)
        n_bytes = 4 * min(self.weights(pp, tp, cut, s) for s in range(pp))
        return longest + 2 * (dp - 1) / dp * n_bytes * beta

    def step(self, dp, pp, tp, micro, schedule, v, cut):
        """Seconds until the last rank is done: pipeline, gradients over dp, the tied weight."""
        layers, C, heads, T, V = self.shape
        m, kept = self.batch // dp // micro, micro * T * C * 4
        seconds = self.parts(dp, pp, tp, micro, v, cut)
        orders, wires, events = order(schedule, pp, m, v), Wires(self.net), []
        ties = itertools.count()
        split = schedule == "zb-h1"
        at = {(d, s): 0 for d in range(dp) for s in range(pp)}
        free = dict.fromkeys(at, 0.0)
        there = {}  # (replica, part) -> when its result is where it is wanted

        def rank(d, s, k):
            return k + tp * (d + dp * s)

        def go_on(unit):
            d, s = unit
            while at[unit] < len(orders[s]):
                kind, stage, i = part = orders[s][at[unit]]
                needed = {"F": ("F", stage - 1, i), "B": ("B", stage + 1, i), "W": None}[kind]
                if kind == "F" and stage == 0 or kind == "B" and stage == pp * v - 1:
                    needed = None
                if needed and (d, needed) not in there:
                    return
                begin = max(free[unit], there[d, needed] if needed else 0.0)
                took = seconds[kind][stage] + (seconds["W"][stage] if kind == "B" and not split
                                               else 0.0)
                free[unit] = begin + took
                at[unit] += 1
                if kind != "W":
                    heapq.heappush(events, (free[unit], next(ties), unit, part))

        for unit in at:
            go_on(unit)
        while events:
            now, _, (d, s), (kind, stage, i) = heapq.heappop(events)
            to = stage + (1 if kind == "F" else -1)
            if not 0 <= to < pp * v:
                continue
            arrival = now
            if to % pp != s:
                arrival = max(wires.send(now, rank(d, s, k), rank(d, to % pp, k), kept)[1]
                              for k in range(tp))
            there[d, (kind, stage, i)] = arrival
            go_on((d, to % pp))
        assert all(at[d, s] == len(orders[s]) for d, s in at)
        ranks = {rank(d, s, k): (d, s) for d, s in at for k in range(tp)}
        groups = [[rank(d, s, k) for d in range(dp)] for s in range(pp) for k in range(tp)]
        done = rings(self.net, groups, {r: 4 * self.weights(pp, tp, cut, s)
                                        for r, (_, s) in ranks.items()},
                     {r: free[unit] for r, unit in ranks.items()})
        if pp > 1:
            groups = [[rank(d, 0, k), rank(d, pp - 1, k)] for d in range(dp) for k in range(tp)]
            begin = {r: max(done[r] for r in group) for group in groups for r in group}
            done |= rings(self.net, groups, dict.fromkeys(begin, 4 * V * C / tp), begin)
        return max(done.values())
