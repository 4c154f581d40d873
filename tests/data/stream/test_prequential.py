"""minidl/data/stream/prequential.py beside the definitions, on any number of ranks."""

import math

import numpy as np
import pytest

from minidl.data.stream.prequential import Prequential
from tests.conftest import ranks


def made(n, seed=0):
    rng = np.random.default_rng(seed)
    p = 1 / (1 + np.exp(-rng.normal(-1.5, 1.2, n)))
    return p, (rng.random(n) < p).astype(float)


def auc_of(p, y):
    """All pairs."""
    above = p[y == 1][:, None] - p[y == 0][None]
    return ((above > 0) + 0.5 * (above == 0)).mean()


@ranks(1, 2, 3, 4, 5, 8)
def test_the_ranks_counts_are_those_of_one(t):
    p, y = made(1500)
    mine = Prequential()
    for part in np.array_split(np.arange(1500)[t.rank::t.size], 3):
        mine.add(p[part], y[part])
    found = mine.report(t)
    assert mine.report(t)["n"] == 0 and found["n"] == 1500
    assert abs(found["auc"] - auc_of(p, y)) <= found["auc_error"] < 0.01
    loss = -np.mean(y * np.log(p) + (1 - y) * np.log(1 - p))
    np.testing.assert_allclose(found["log_loss"], loss, rtol=1e-12)
    np.testing.assert_allclose(found["calibration"], p.sum() / y.sum(), rtol=1e-12)


@pytest.mark.parametrize("p, y, auc", [
    ([0.1, 0.9], [0, 1], 1.0), ([0.9, 0.1], [0, 1], 0.0), ([0.5, 0.5], [0, 1], 0.5),
    ([0.0, 1.0], [0, 1], 1.0), ([0.2, 0.2, 0.9], [0, 1, 1], 0.75)])
def test_small_cases(p, y, auc):
    one = Prequential()
    one.add(p, y)
    assert one.report()["auc"] == auc


def test_nothing_to_compare_is_nan():
    one = Prequential()
    assert np.isnan(one.report()["auc"])
    one.add([0.3], [1])
    found = one.report()
    assert np.isnan(found["auc"]) and np.isclose(found["calibration"], 0.3)


def test_a_sure_mistake_costs_the_logarithm_of_the_least_probability():
    """As in scikit-learn's log_loss for float32: a probability is at least 1e-7 here."""
    counts = Prequential()
    counts.add(np.array([1.0, 0.0]), np.array([0, 1]))
    np.testing.assert_allclose(counts.report()["log_loss"], 7 * math.log(10), rtol=1e-9)
