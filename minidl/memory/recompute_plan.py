"""Which layers to recompute: the least time that fits a byte budget, exactly.

    layers    [ 0   1   2 ][ 3 ][ 4   5 ]      cut into segments, each kept or recomputed
    held        input 0     all   input 4      bytes held until backward comes back
    peak      while backward is in a segment it holds all that the segment's layers save, and what
              the segments before it hold

n equal layers that save one unit each, their input, in k equal segments: k - 1 inputs are held
before the last segment, so the peak is k - 1 + n/k, least for k = sqrt(n). But segments that grow
shorter do better: p, p-1, ..., 1 layers have n = p(p+1)/2 and the peak p, about sqrt(2n). Real
layers are unequal, so we search: along the chain, for every place, keep the ways to get there for
which no other is both faster and smaller (a Pareto front).
Source: Chen et al. 2016 (arXiv 1604.06174), section 4; unequal layers: our dynamic program.
Test: tests/memory/test_recompute_plan.py (against all ways)
Used by: recompute.recompute_sequential
"""


def plan(saved, inputs, seconds, budget):
    """The segments of a chain that fit in `budget` bytes at the least time of recomputation.
    saved, inputs, seconds:  for each layer what its forward saves beside its input and its output
                             (bytes), its input (bytes), and its forward's time in any unit.
    Returns [(start, stop, recomputed)]. A segment that is not recomputed holds what its layers save
    and their inputs; a recomputed one its first input, and all of that while backward is in it.
    Raises ValueError, with the least budget, if none fits."""
    n = len(saved)
    # ways[i]: the ways to cut layers 0..i, as (bytes held, seconds, segments): none beats another
    ways = [[(0, 0.0, ())]] + [[] for _ in range(n)]
    for start in range(n):
        for stop in range(start + 1, n + 1):
            inside = sum(saved[start:stop]) + sum(inputs[start:stop])
            for held, time, cut in ways[start]:
                if held + inside <= budget:
                    ways[stop].append((held + inside, time, (*cut, (start, stop, False))))
                    again = time + sum(seconds[start:stop])
                    ways[stop].append((held + inputs[start], again, (*cut, (start, stop, True))))
        ways[start + 1] = _undominated(ways[start + 1])
    if not ways[n]:
        raise ValueError(f"plan: no segments fit in {budget:,} bytes; the least that can be done "
                         f"is {least_peak(saved, inputs):,} bytes")
    return list(min(ways[n], key=lambda way: way[1])[2])


def least_peak(saved, inputs):
    """The fewest bytes that any segments of the chain hold at once."""
    n = len(saved)
    # ways[i]: the ways to cut layers 0..i, as (bytes held, peak so far)
    ways = [[(0, 0)]] + [[] for _ in range(n)]
    for start in range(n):
        for stop in range(start + 1, n + 1):
            inside = sum(saved[start:stop]) + sum(inputs[start:stop])
            for held, peak in ways[start]:
                ways[stop].append((held + inputs[start], max(peak, held + inside)))
        ways[start + 1] = _undominated(ways[start + 1])
    return min(peak for _, peak in ways[n])


def _undominated(ways):
    """Those that no other beats in both of the first two numbers."""
    best = []
    for way in sorted(ways, key=lambda way: way[:2]):
        if not best or way[1] < best[-1][1]:
            best.append(way)
    return best
