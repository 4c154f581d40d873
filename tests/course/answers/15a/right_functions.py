# right: memory and time as functions, layouts as dictionaries without the axes of one rank
def memory(tp, pp, dp):
    return net.weights / (tp * pp) * (4 + 12 / dp)


def seconds(layout):
    tp, pp, dp = (layout.get(axis, 1) for axis in AXES)
    size = 2 * net.tokens * net.width / (dp * net.m)
    full = grid.shape(n, [*layout, *(a for a in grid.AXES if a not in layout)], **layout)
    cost = grid.traffic(full, links, {"tp": size, "pp": size, "dp": 2 * net.weights / (tp * pp)})
    times = {"tp": 4 * net.layers * net.m / pp, "pp": 2 * net.m, "dp": 1}
    return net.seconds / n * (net.m + pp - 1) / net.m + sum(
        k * cost[axis].time_s for axis, k in times.items())


def layouts():
    divisors = [k for k in range(1, n + 1) if n % k == 0]
    for tp in divisors:
        for pp in divisors:
            if n % (tp * pp) == 0 and memory(tp, pp, n // (tp * pp)) <= limit:
                ranks = {"tp": tp, "pp": pp, "dp": n // (tp * pp)}
                for order in permutations(ranks):
                    yield {axis: ranks[axis] for axis in order}


return min(layouts(), key=seconds)
