"""The plan is the best of all plans: compared with every way to cut a short chain."""

import itertools

import numpy as np
import pytest

from minidl import nn, randn
from minidl.memory import saved_bytes
from minidl.memory.recompute import recompute_sequential
from minidl.memory.recompute_plan import least_peak, plan


def peak_and_time(cut, saved, inputs, seconds):
    """What backward holds at most, walking through the segments; and the time of recomputation."""
    held = peak = time = 0
    for start, stop, again in cut:
        inside = sum(saved[start:stop]) + sum(inputs[start:stop])
        peak = max(peak, held + inside)
        held += inputs[start] if again else inside
        time += sum(seconds[start:stop]) if again else 0
    return peak, time


def all_cuts(n):
    for places in itertools.product([False, True], repeat=n - 1):
        ends = [0, *(i + 1 for i, cut in enumerate(places) if cut), n]
        for flags in itertools.product([False, True], repeat=len(ends) - 1):
            yield [(a, b, f) for a, b, f in zip(ends, ends[1:], flags, strict=False)]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("n", [1, 2, 5, 7])
def test_no_other_way_to_cut_fits_in_less_time(n, seed):
    rng = np.random.default_rng(seed)
    saved, inputs = rng.integers(0, 50, n).tolist(), rng.integers(1, 20, n).tolist()
    seconds = rng.integers(1, 9, n).tolist()
    known = [peak_and_time(cut, saved, inputs, seconds) for cut in all_cuts(n)]
    least = min(peak for peak, _ in known)
    assert least_peak(saved, inputs) == least
    for budget in (least, least + 1, (least + sum(saved + inputs)) // 2, sum(saved + inputs)):
        cut = plan(saved, inputs, seconds, budget)
        peak, time = peak_and_time(cut, saved, inputs, seconds)
        assert peak <= budget
        assert time == min(t for p, t in known if p <= budget)
    with pytest.raises(ValueError, match=f"wants a budget of at least {least:,} bytes"):
        plan(saved, inputs, seconds, least - 1)


def test_a_large_budget_recomputes_nothing():
    cut = plan([3, 1, 2], [1, 1, 1], [1, 1, 1], 9)
    assert not any(again for _, _, again in cut)


@pytest.mark.parametrize("n", [1, 3, 4, 10, 16, 21])
def test_segments_that_grow_shorter_need_the_root_of_two_n(n):
    p = next(p for p in range(n + 1) if p * (p + 1) // 2 >= n)
    assert least_peak([0] * n, [1] * n) == p
    cut = plan([0] * n, [1] * n, [1] * n, p)
    assert sum(stop - start for start, stop, _ in cut) == n


def test_a_plan_runs_and_holds_what_it_says():
    widths = [8, 64, 8, 32, 32, 8, 8]
    net = [nn.Sequential(nn.Linear(a, b), nn.Tanh()) for a, b in itertools.pairwise(widths)]
    x = randn(16, 8).requires_grad_()
    saved, inputs, h = [], [], x
    for layer in net:
        inputs.append(h.nbytes)
        saved.append(0)  # linear saves its input, tanh its result, the next layer's input
        h = layer(h)
    budget = (least_peak(saved, inputs) + sum(inputs)) // 2
    cut = plan(saved, inputs, [1] * 6, budget)
    assert any(again for _, _, again in cut)
    held = sum(inputs[a] if again else sum(inputs[a:b]) for a, b, again in cut)
    # saved_bytes leaves out x, a leaf, and has the last result, no layer's input
    result = 0 if cut[-1][2] else h.nbytes
    assert saved_bytes(recompute_sequential(net, x, cut)) == held - x.nbytes + result
    assert held <= budget
