"""A model in stages: the best balance, and the same model."""

import itertools

import numpy as np
import pytest

import minidl
from minidl import nn
from minidl.parallel.model.cut import cut, split_by_cost
from tests.conftest import n_drawn


def best_by_trial(costs, n):
    bounds = itertools.combinations(range(1, len(costs)), n - 1)
    return min(max(sum(costs[a:b]) for a, b in itertools.pairwise((0, *at, len(costs))))
               for at in bounds)


def test_the_largest_stage_is_as_small_as_of_any_cut():
    """200 random lists of whole costs, 0 among them, beside all cuts that there are."""
    rng = np.random.default_rng(0)
    for _ in range(n_drawn(200)):
        costs = rng.integers(0, 9, rng.integers(1, 9)).tolist()
        for n in range(1, len(costs) + 1):
            parts = split_by_cost(costs, n)
            assert len(parts) == n and sum(parts) == len(costs) and min(parts) >= 1
            bounds = [0, *itertools.accumulate(parts)]
            got = max(sum(costs[a:b]) for a, b in itertools.pairwise(bounds))
            assert got == best_by_trial(costs, n)


def test_equal_layers_are_dealt_evenly():
    assert split_by_cost([1] * 8, 4) == [2] * 4
    assert sorted(split_by_cost([1] * 7, 3)) == [2, 2, 3]
    assert split_by_cost([1, 1, 1, 1, 2, 2, 3, 1], 3) == [4, 2, 2]


@pytest.mark.parametrize("n", [0, 4])
def test_more_stages_than_layers_are_refused(n):
    with pytest.raises(ValueError, match=f"from 1 to 3 stages .*; got {n}"):
        split_by_cost([1, 2, 3], n)


@pytest.mark.parametrize("stages", [1, 2, 3, [1, 1, 1], [0, 3, 0], [2, 1]])
def test_the_stages_of_a_gpt_are_the_gpt(stages):
    minidl.manual_seed(0)
    model = nn.GPT(11, 6, n_layers=3, n_heads=2, width=8)
    parts = cut(model, stages)
    ids = np.random.default_rng(0).integers(0, 11, (2, 5))
    x = ids
    for part in parts:
        x = part(x)
    np.testing.assert_array_equal(x.array, model(ids).array)
    named = {k: v for part in parts for k, v in part.state_dict().items()}
    assert named.keys() == model.state_dict().keys()
    assert all(named[k].array is v.array for k, v in model.state_dict().items())


def test_the_stages_of_a_chain_keep_the_names():
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 4))
    first, last = cut(model, [2, 1])
    assert [*first.state_dict()] == ["0.weight", "0.bias"]
    assert [*last.state_dict()] == ["2.weight", "2.bias"]


@pytest.mark.parametrize("model, stages, said", [
    (nn.Sequential(nn.ReLU(), nn.ReLU()), [2, 0], r"at least 1 in each stage; got .*\[2, 0\]"),
    (nn.Sequential(nn.ReLU(), nn.ReLU()), [1, 2], "cut wants 2 layers in all"),
    (nn.Sequential(nn.ReLU(), nn.ReLU()), 3, "from 1 to 2 stages .*; got 3"),
])
def test_cuts_that_there_are_not(model, stages, said):
    with pytest.raises(ValueError, match=said):
        cut(model, stages)


def test_of_other_models_the_caller_makes_the_stages():
    with pytest.raises(TypeError, match="wants an nn.GPT or nn.Sequential; got Linear"):
        cut(nn.Linear(2, 2), 1)
