# wrong: 16 bytes a weight, as without ZeRO
best, least = None, float("inf")
for tp in range(1, n + 1):
    for pp in range(1, n + 1):
        if n % (tp * pp):
            continue
        dp = n // (tp * pp)
        x = net.weights / (tp * pp)
        if 16 * x > limit:
            continue
        size = 2 * net.tokens / (dp * net.m) * net.width
        for order in permutations(AXES):
            layout = grid.shape(n, [*order, "cp", "ep"], tp=tp, pp=pp, dp=dp)
            cost = grid.traffic(layout, links, {"tp": size, "pp": size, "dp": 2 * x})
            time = net.seconds / n * (1 + (pp - 1) / net.m)
            time += 4 * net.layers / pp * net.m * cost["tp"].time_s
            time += 2 * net.m * cost["pp"].time_s
            time += cost["dp"].time_s
            if time < least:
                best, least = layout, time
return best
