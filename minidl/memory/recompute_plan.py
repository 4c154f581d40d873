"""Finds the layers to recompute, so that training fits in a budget of bytes with least extra time.

    layers    [ 0   1   2 ][ 3 ][ 4   5 ]      cut into segments; each segment is kept or recomputed
    held        input 0     all   input 4      arrays that are held until backward needs them
    peak      while backward is in a segment, memory holds all that the layers of this segment save,
              and what the segments before it hold

Take n equal layers in k equal segments. Each layer saves only its input: one unit of memory. When
backward is in the last segment, the k - 1 segments before it hold one input each. The peak is then
k - 1 + n/k units. It is smallest for k = sqrt(n): about 2 sqrt(n) units. Unequal segments are
better: each segment is one layer shorter than the segment before it. Segments of p, p-1, ..., 1
layers have n = p(p+1)/2 layers together. The peak is then p units, about sqrt(2n).

Real layers are not equal, so `plan` searches. `plan` goes along the chain of layers. At layer i it
lists cuts. A cut divides layers 0 to i into segments. `plan` drops a cut if another cut is at least
as good in time and in bytes. The cuts that remain are a Pareto front. So no cut is better than the
result of `plan`.
Source: Chen et al. 2016 (arXiv 1604.06174), section 4; unequal layers: our dynamic program.
Test: tests/memory/test_recompute_plan.py (compares with a search of all cuts)
Used by: recompute.recompute_sequential
"""


def plan(saved, inputs, seconds, budget):
    """Returns the segments of a chain of layers: a list of (start, stop, recomputed). A segment has
    the layers start to stop - 1. The segments fit in `budget` bytes. Among all such segments, the
    returned segments take the least time to recompute.

    saved:    for each layer the bytes that its forward saves, without its input and output.
    inputs:   for each layer the bytes of its input.
    seconds:  for each layer the time of its forward, in any unit.

    A segment that is not recomputed holds the saved bytes and inputs of its layers. A recomputed
    segment holds only the input of its first layer. But while backward is in this segment, it
    holds the saved bytes and inputs of all its layers.
    Raises ValueError if no segments fit. The message has the least possible budget."""
    n = len(saved)
    # ways[i]: cuts of the first i layers, as (bytes held, seconds, segments). Of two cuts in this
    # list, one holds fewer bytes, and the other takes less time.
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
        raise ValueError(f"plan wants a budget of at least {least_peak(saved, inputs):,} bytes for "
                         f"these layers; got {budget:,} bytes")
    return list(min(ways[n], key=lambda way: way[1])[2])


def least_peak(saved, inputs):
    """Returns the smallest budget of bytes for which `plan` finds segments."""
    n = len(saved)
    # ways[i]: cuts of the first i layers, as (bytes held, peak so far)
    ways = [[(0, 0)]] + [[] for _ in range(n)]
    for start in range(n):
        for stop in range(start + 1, n + 1):
            inside = sum(saved[start:stop]) + sum(inputs[start:stop])
            for held, peak in ways[start]:
                ways[stop].append((held + inputs[start], max(peak, held + inside)))
        ways[start + 1] = _undominated(ways[start + 1])
    return min(peak for _, peak in ways[n])


def _undominated(ways):
    """Drops an entry of `ways` if another entry is at least as small in its first number and in its
    second number. Returns the entries that remain, in the order of the first number."""
    best = []
    for way in sorted(ways, key=lambda way: way[:2]):
        if not best or way[1] < best[-1][1]:
            best.append(way)
    return best
