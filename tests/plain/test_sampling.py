"""The page and the real sampling: the same tokens are possible, with the same probabilities."""

import numpy as np
import pytest

from minidl.infer.decoder import nucleus
from minidl.nn.models import _sample
from minidl.plain import sampling
from minidl.random import Generator

SCORES = np.random.default_rng(4).normal(size=12) * 2
OPTIONS = [(1.0, None, None), (0.5, 4, None), (2.0, None, 0.6), (0.7, 5, 0.8), (1.0, 1, 0.1),
           (1.0, None, 1.0)]


@pytest.mark.parametrize("temperature, top_k, top_p", [o for o in OPTIONS if o[2] is not None])
def test_the_possible_tokens_are_the_real_ones(temperature, top_k, top_p):
    p = sampling.probabilities(SCORES, temperature, top_k, top_p)
    real = nucleus(SCORES[None], temperature, top_k, top_p)[0]
    np.testing.assert_array_equal(p > 0, np.isfinite(real))
    e = np.exp(real / temperature)
    np.testing.assert_allclose(p, e / e.sum(), rtol=1e-13)


@pytest.mark.parametrize("temperature, top_k, top_p", OPTIONS)
def test_frequencies_are_the_real_ones(temperature, top_k, top_p):
    n = 20000
    p = sampling.probabilities(SCORES, temperature, top_k, top_p)
    scores = np.tile(nucleus(SCORES[None], temperature, top_k, top_p), (n, 1))
    theirs = _sample(np, scores, temperature, top_k, Generator(1))[:, 0]
    ours = [sampling.draw(p, u) for u in np.random.default_rng(2).uniform(size=n)]
    deviation = np.sqrt(n * p * (1 - p))
    for drawn in (ours, theirs):  # five standard deviations: the seeds are fixed
        counts = np.bincount(drawn, minlength=len(p))
        assert (abs(counts - n * p) <= 5 * deviation).all()


def test_temperature_0_is_a_limit():
    p = sampling.probabilities(SCORES, temperature=1e-3)
    want = _sample(np, SCORES[None], 0, None, None).item()
    assert p.argmax() == want and p.max() > 1 - 1e-9


def test_a_draw_never_hits_what_is_impossible():
    p = sampling.probabilities(np.zeros(10), top_k=3)
    assert {sampling.draw(p, u) for u in (0.0, 0.34, 1 - 2.0**-53)} == {0, 1, 2}


def test_the_fewest_that_reach_p():
    """Two of four equal ones have 0.5 together, exactly."""
    p = sampling.probabilities(np.zeros(4), top_p=0.5)
    np.testing.assert_array_equal(p, [0.5, 0.5, 0, 0])
    assert np.isfinite(nucleus(np.zeros((1, 4)), 1.0, None, 0.5)).sum() == 2
