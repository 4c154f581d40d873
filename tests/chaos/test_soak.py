"""soak.py for some rounds: what is held does not grow with them, and a leak is seen."""

import numpy as np
import pytest

from minidl.comm import simulate
from tests.chaos import soak
from tests.conftest import whole_form
from tests.elastic import runs

MOST = 500  # blocks a round, where a leak of soak's `keep` is 1,000
# a loss scale that grew too large: the step is skipped
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered")


@whole_form
def test_a_round_has_every_part(tmp_path):
    for samples in simulate(2, lambda t: soak.soak(t, tmp_path / "runs", n_rounds=1)):
        assert samples.shape == (1, 5)


def test_too_few_rounds_have_no_slope():
    """Red before: "+nan MiB a minute", and NumPy's warning of an empty slice."""
    samples = np.arange(1.0, 6)[:, None] * [60, 1, 0.5, 2000, 0]  # s, rounds, MiB, blocks, files
    for n in range(soak.FEWEST):
        assert soak.said(samples[:n]).startswith(f"no slope: {n} rounds were done, and it needs 3")
    for n in range(soak.FEWEST, 6):
        assert soak.said(samples[:n]) == (
            "slope of the second half: +0.500 MiB a minute, +2000.0 blocks a round")


@whole_form
@pytest.mark.parametrize("leaks", [False, True])
def test_what_is_held_does_not_grow_with_the_rounds(tmp_path, leaks):
    def train(t):
        return soak.soak(t, tmp_path / "runs", n_rounds=4 * len(runs.KINDS),
                         keep=[] if leaks and t.rank == 0 else None)

    samples = simulate(2, train)[0]
    blocks = soak.slopes(samples)[1]
    assert (blocks > MOST) if leaks else (blocks < MOST)
    assert samples[-1, 4] <= samples[len(samples) // 2, 4], "open files"
