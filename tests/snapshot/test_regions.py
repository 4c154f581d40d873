"""Regions of tensors: every element is in them once, and overlap finds it again."""

import numpy as np
import pytest

from minidl import nn
from minidl.comm import simulate
from minidl.parallel import DataParallel, Zero1, Zero2, Zero3
from minidl.snapshot.regions import by_leaf, fill, share


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("sizes", [[], [0], [1], [7], [3, 0, 5, 1], [1] * 9, [13, 2]])
def test_shares_are_even_and_cover_every_element_once(sizes, n):
    parts = [share(sizes, rank, n) for rank in range(n)]
    for i, size in enumerate(sizes):
        covered = [e for part in parts for e in range(*part[i])]
        assert covered == list(range(size))
    totals = [sum(end - begin for begin, end in part) for part in parts]
    assert max(totals) - min(totals) <= 1


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("stage", [DataParallel, Zero1, Zero2, Zero3])
def test_the_ranks_regions_hold_the_tensors(stage, n):
    def body(t):
        model = nn.MLP(5, 3, 2)
        whole = {k: np.array(v).reshape(-1) for k, v in model.state_dict().items()}
        model = stage(model, t)
        found = []
        for leaf, here in by_leaf(model).items():
            for r in here:
                values = r.of(leaf.array)
                found.append((r.name, r.first, r.end, r.whole))
                assert len(values) == r.end - r.first
                if t.rank == 0 or n == 1:  # rank 0's weights are everybody's
                    np.testing.assert_array_equal(values, whole[r.name][r.first:r.end])
        model.close()
        return found, {k: len(v) for k, v in whole.items()}

    results = simulate(n, body)
    for name, size in results[0][1].items():
        held = [(first, end) for found, _ in results for key, first, end, _ in found if key == name]
        if stage is DataParallel:
            assert held == [(0, size)] * n
        else:
            assert sorted(e for span in held for e in range(*span)) == list(range(size))


@pytest.mark.parametrize("n", [0, 1, 6, 7, 8, 13])
@pytest.mark.parametrize("cut", [1, 2, 3, 5])
def test_overlap_finds_what_was_cut_in_another_way(n, cut):
    x = np.arange(100, 100 + n, dtype="f4")
    written = [(a, min(a + cut, n), a) for a in range(0, n, cut)]
    for first in range(n + 1):
        for end in range(first, n + 1):
            out = np.zeros(end - first, "f4")
            got = fill(out, first, written[::-1], lambda at, b, e: x[at + b:at + e])
            assert got == end - first
            np.testing.assert_array_equal(out, x[first:end])


def test_what_is_missing_is_counted_and_overlapping_regions_count_once():
    out = np.zeros(6)
    read = lambda where, begin, end: np.ones(end - begin)  # noqa: E731
    assert fill(out, 2, [(0, 4, "a"), (3, 5, "b"), (7, 9, "c")], read) == 4  # 2 3 4 and 7
    np.testing.assert_array_equal(out, [1, 1, 1, 0, 0, 1])
