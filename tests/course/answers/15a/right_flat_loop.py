# right: one loop over everything, a list of candidates, min at the end
candidates = []
for sizes in ((a, b, c) for a in range(1, n + 1) for b in range(1, n + 1) for c in range(1, n + 1)):
    t, p, d = sizes
    if t * p * d != n:
        continue
    for order in permutations(["dp", "tp", "pp"]):
        layout = grid.shape(n, " ".join(order) + " cp ep", tp=t, pp=p, dp=d)
        numbers = net.weights / t / p
        if 4 * numbers + 12 * numbers / d > limit:
            continue
        message = 2 * (net.tokens / d / net.m * net.width)
        times = grid.traffic(layout, links, dict(tp=message, pp=message, dp=2 * numbers))
        work = net.seconds / n * (1 + (p - 1) / net.m)
        tensor = 4 * (net.layers / p) * net.m * times["tp"].time_s
        pipe = 2 * net.m * times["pp"].time_s
        candidates.append((work + tensor + pipe + times["dp"].time_s, len(candidates), layout))
return min(candidates)[2]
