# right: all layouts sorted by their time, the first that fits
def one(order, tp, pp):
    dp = n // tp // pp
    layout = grid.shape(n, [*order, "cp", "ep"], tp=tp, pp=pp, dp=dp)
    x = net.weights / tp / pp
    a = 2 * net.tokens // dp // net.m * net.width
    of = grid.traffic(layout, links, {"tp": a, "pp": a, "dp": 2 * x})
    time = net.seconds * (1 + (pp - 1) / net.m) / n + of["dp"].time_s
    time += net.m * (4 * net.layers / pp * of["tp"].time_s + 2 * of["pp"].time_s)
    return time, 4 * x + 12 * x / dp, layout


table = []
for order in permutations(AXES):
    for tp in range(1, n + 1):
        for pp in range(1, n // tp + 1):
            if n % tp == 0 and n // tp % pp == 0:
                table.append(one(order, tp, pp))
table.sort(key=lambda row: row[0])
for time, held, layout in table:
    if held <= limit:
        return layout
