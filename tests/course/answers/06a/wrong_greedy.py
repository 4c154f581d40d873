# wrong: greedy: recomputes from the front, layer by layer, until it fits
n = len(sizes) - 1
for stop in range(n + 1):
    segments = [(i, i + 1, True) for i in range(stop)]
    if stop < n:
        segments.append((stop, n, False))
    if peak_bytes(sizes, segments) <= budget:
        return segments
return None
