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


def run(net, programs):
    """{rank: when it is done} of {rank: its program}: a generator of ("work", seconds), ("send",
    to, key, bytes), ("come", key) to wait for what was sent here, ("gone", key) until it has
    left."""
    wires, events, ties, known, waits, done = Wires(net), [], itertools.count(), {}, {}, {}
    for rank in programs:
        heapq.heappush(events, (0.0, next(ties), rank))
    while events:
        now, _, rank = heapq.heappop(events)
        for what, *about in programs[rank]:
            until = now
            if what == "work":
                until = now + about[0]
            elif what == "send":
                to, key, n_bytes = about
                known[rank, "gone", key], there = wires.send(now, rank, to, n_bytes)
                known[to, "come", key] = there
                if (to, "come", key) in waits:
                    heapq.heappush(events, (max(there, waits.pop((to, "come", key))), next(ties),
                                            to))
            elif (rank, what, *about) in known:
                until = known[rank, what, *about]
            else:
                waits[rank, what, *about] = now
                break
            if until > now:
                heapq.heappush(events, (until, next(ties), rank))
                break
        else:
            done[rank] = now
    assert len(done) == len(programs)
    return done


def neighbours(groups):
    return {rank: group[(i + 1) % len(group)] for group in groups for i, rank in enumerate(group)}


def one_visit(n, right, step, block, visit):
    """The work of a step, and beside it the block on its way to the next rank, but for the last."""
    if step < n - 1:
        yield "send", right, step, block
    yield "work", visit
    if step < n - 1:
        yield "come", step
        yield "gone", step


def around(n, right, block, visit):
    """Ring attention's forward: a block goes on while the one before is worked at."""
    for step in range(n):
        yield from one_visit(n, right, step, block, visit)


def around_and_sum(n, right, block, sums, visit):
    """Its backward: the sums go one step behind the blocks, and home at the end."""
    for step in range(n):
        yield from one_visit(n, right, step, block, visit)
        if step > 1:
            yield "come", ("sum", step - 1)
            yield "gone", ("sum", step - 1)
        if step:
            yield "send", right, ("sum", step), sums
    yield "come", ("sum", n - 1)
    yield "gone", ("sum", n - 1)


def pairwise(group, i, n_bytes):
    """An all-to-all: to the rank s to the right, from the one s to the left."""
    n = len(group)
    for s in range(1, n):
        yield "send", group[(i + s) % n], s, n_bytes / n
        yield "come", s
        yield "gone", s


def gather(n, right, n_bytes):
    """A ring all-gather of n_bytes of each rank."""
    for step in range(n - 1):
        yield "send", right, step, n_bytes
        yield "come", step
        yield "gone", step


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
    """The GPT: layers, width, heads, context, vocabulary, experts, experts of a token; batch rows;
    a rank's flops a second. float32, AdamW, no ZeRO. A way is (dp, pp, tp, cp, ep, method of cp,
    rows of a micro-batch, schedule, v, blocks of each rank)."""

    def __init__(self, net, shape, batch, flops, memory):
        self.net, self.shape, self.batch = net, (*shape, 0, 1)[:7], batch
        self.flops, self.memory = flops, memory
        self.summed = {}  # what was simulated before

    def stage(self, tp, tokens, blocks, last):
        """(F, B to the inputs, W) seconds of computing in a stage, attention's forward of a block
        among them, numbers of (all-reduces of activations forward, backward)."""
        layers, C, heads, T, V, E, k = self.shape
        ff = 8 * C * C * k + E * C if E else 8 * C * C
        matrices = blocks * (4 * C * C + ff) + last * V * C
        inside = 2 * T * C  # scores and their use: a multiply and an add each
        f, b = matrices + blocks * inside, matrices + 2 * blocks * inside
        seconds = [2 * tokens * x / tp / self.flops for x in (f, b, matrices, inside)]
        return seconds[:3], seconds[3], (2 * blocks, 2 * blocks + last)

    def together(self, stride, n, what, *about):
        """Seconds of something that all groups of n ranks, so far apart, do at the same time."""
        key = stride, n, what, *about
        if key not in self.summed:
            groups = [[start + j * stride for j in range(n)] for start in range(self.net.n)
                      if start // stride % n == 0]
            right = neighbours(groups)
            if what == "sum":
                every = range(self.net.n)
                done = rings(self.net, groups, dict.fromkeys(every, *about),
                             dict.fromkeys(every, 0.0))
            elif what == "pairwise":
                done = run(self.net, {rank: pairwise(group, i, *about) for group in groups
                                      for i, rank in enumerate(group)})
            else:
                program = {"around": around, "back": around_and_sum, "gather": gather}[what]
                done = run(self.net, {rank: program(n, right[rank], *about) for rank in right})
            self.summed[key] = max(done.values())
        return self.summed[key]

    def parts(self, dp, pp, tp, cp, ep, method, micro, v, cut):
        """{kind: seconds of each of the stages}."""
        layers, C, heads, T, V, E, k = self.shape
        tokens = micro * T // cp
        kept, seconds = tokens * C * 4, {"F": [], "B": [], "W": []}
        one = self.together(1, tp, "sum", kept) if tp > 1 else 0.0
        loss = sum(self.together(1, tp, "sum", k * 4 * tokens) for k in (1, 2)) if tp > 1 else 0.0
        for s in range(pp * v):
            last, blocks = s == pp * v - 1, cut[s % pp] // v
            (f, b, w), attention, (n_f, n_b) = self.stage(tp, tokens, blocks, last)
            f, b = f + (n_f + (s == 0)) * one + last * loss, b + n_b * one
            if method == "ring":
                size = 2 * kept / tp
                f += blocks * (self.together(tp, cp, "around", size, attention / cp) - attention)
                b += blocks * (self.together(tp, cp, "back", size, size, 2 * attention / cp)
                               - 2 * attention)
            elif method == "ulysses":
                there = sum(self.together(tp, cp, "pairwise", j * kept / tp) for j in (3, 1))
                f, b = f + blocks * there, b + blocks * there
            if ep > 1:
                rows = 2 * self.together(tp * cp, ep, "pairwise", k * kept)
                f += blocks * (rows + self.together(tp * cp, ep, "gather", 8 * k * E))
                b += blocks * rows
            for kind, took in zip("FBW", (f, b, w), strict=True):
                seconds[kind].append(took)
        return seconds

    def weights(self, pp, tp, cut, s):
        """Elements of a rank of pipeline rank s, but for experts."""
        layers, C, heads, T, V, E, k = self.shape
        block = 4 * C * C + 8 * C + E * C if E else 12 * C * C / tp + 7 * C / tp + 6 * C
        n = cut[s] * block + V * C / tp * (s == 0 or s == pp - 1)
        return n + T * C * (s == 0) + 2 * C * (s == pp - 1)

    def experts(self, ep, blocks):
        """Elements of a rank's experts."""
        layers, C, heads, T, V, E, k = self.shape
        return blocks * (E // ep) * (8 * C * C + 5 * C)

    def peak(self, dp, pp, tp, cp, ep, method, micro, schedule, v, cut):
        """Bytes of the fullest rank, by going through the orders."""
        layers, C, heads, T, V, E, k = self.shape
        tokens, most = micro * T // cp, 0
        a_token = 4 * (4 * C + 12 * C / tp) + 16 + 4 * heads / tp
        if E:
            a_token += 4 * (10 * k - 8) * C + 4 * E + (8 * k + 4 if k > 1 else 4)
        a_token += 4 * C / tp * (method == "ulysses")
        for s, parts in enumerate(order(schedule, pp, self.batch // (dp * ep) // micro, v)):
            held = peak = 0
            frees = "W" if schedule == "zb-h1" else "B"
            for kind, stage, _ in parts:
                n = cut[s] // v * tokens * a_token
                if stage == pp * v - 1:
                    n += tokens * (8 * C + 4 * V / tp + 20)
                held += n if kind == "F" else -n if kind == frees else 0
                peak = max(peak, held)
            states = self.weights(pp, tp, cut, s) + self.experts(ep, cut[s])
            most = max(most, 16 * states + peak)
        return most

    def least(self, dp, pp, tp, cp, ep, method, micro, schedule, v, cut):
        """Seconds that the step takes at least: until the first micro-batch has come to a rank, its
        work, the last gradient's way back, and a ring of gradients over the slowest link."""
        layers, C, heads, T, V, E, k = self.shape
        seconds, replicas = self.parts(dp, pp, tp, cp, ep, method, micro, v, cut), dp * ep * cp
        m, kept = self.batch // (dp * ep) // micro, micro * T // cp * C * 4
        alpha, beta = min(self.net.intra, self.net.inter, key=lambda link: link[1])
        longest, there, back = 0.0, 0.0, 0.0
        for r in range(pp):
            f, b, w = (m * sum(seconds[kind][r::pp]) for kind in "FBW")
            w_last = 0.0 if schedule == "zb-h1" else w
            longest = max(longest, there + f + b + w, there + f + b + w_last + back)
            there += seconds["F"][r] + alpha + kept * beta
            back += seconds["B"][r] + alpha + kept * beta
        if tp * replicas > self.net.node:  # each ring leaves its node; those of a node by one NIC
            beta = self.net.inter[1] * (min(tp, self.net.node) if self.net.shared else 1)
        n_bytes = 4 * min(self.weights(pp, tp, cut, s) for s in range(pp))
        return longest + 2 * (replicas - 1) / replicas * n_bytes * beta

    def step(self, dp, pp, tp, cp, ep, method, micro, schedule, v, cut):
        """Seconds until the last rank is done: pipeline, gradients over dp, ep and cp, those of
        experts over dp and cp, the tied weight. Ranks of a replica, which wait for each other in
        every block, go on together when all have what they need."""
        layers, C, heads, T, V, E, k = self.shape
        m, kept = self.batch // (dp * ep) // micro, micro * T // cp * C * 4
        seconds, n = self.parts(dp, pp, tp, cp, ep, method, micro, v, cut), dp * ep * cp
        orders, wires, events = order(schedule, pp, m, v), Wires(self.net), []
        ties = itertools.count()
        split = schedule == "zb-h1"
        at = {(d, s): 0 for d in range(dp) for s in range(pp)}
        free = dict.fromkeys(at, 0.0)
        there = {}  # (replica, part) -> when its result is where it is wanted

        def ranks_of(d, s):
            return range(tp * cp * ep * (d + dp * s), tp * cp * ep * (d + dp * s + 1))

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
                arrival = max(wires.send(now, src, dst, kept)[1] for src, dst in
                              zip(ranks_of(d, s), ranks_of(d, to % pp), strict=True))
            there[d, (kind, stage, i)] = arrival
            go_on((d, to % pp))
        assert all(at[d, s] == len(orders[s]) for d, s in at)
        ranks = {rank: unit for unit in at for rank in ranks_of(*unit)}
        groups = [[k + tp * (d + n * s) for d in range(n)] for s in range(pp) for k in range(tp)]
        done = rings(self.net, groups, {r: 4 * self.weights(pp, tp, cut, s)
                                        for r, (_, s) in ranks.items()},
                     {r: free[unit] for r, unit in ranks.items()})
        if E:
            groups = [[d + n * s for d in range(n) if d // cp % ep == e] for s in range(pp)
                      for e in range(ep)]
            done |= rings(self.net, groups, {r: 4 * self.experts(ep, cut[s])
                                             for r, (_, s) in ranks.items()}, done)
        if pp > 1:
            groups = [[r, r + tp * n * (pp - 1)] for r in range(tp * n)]
            begin = {r: max(done[r] for r in group) for group in groups for r in group}
            done |= rings(self.net, groups, dict.fromkeys(begin, 4 * V * C / tp), begin)
        return max(done.values())
