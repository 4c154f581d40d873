# right: all cuts and all choices by itertools, the best by a key
import itertools

n = len(sizes) - 1
best = None
for cuts in itertools.product((False, True), repeat=n - 1):
    ends = [i + 1 for i, cut in enumerate(cuts) if cut] + [n]
    starts = [0, *ends[:-1]]
    for again in itertools.product((False, True), repeat=len(ends)):
        segments = list(zip(starts, ends, again, strict=True))
        twice = sum(b - a for a, b, c in segments if c)
        if peak_bytes(sizes, segments) <= budget and (best is None or twice < best[0]):
            best = (twice, segments)
return best[1] if best else None
