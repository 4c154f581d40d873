"""minidl/parallel/model/grid_gpt.py: its parts are the whole GPT; what it sends is the formula."""

from collections import Counter

import numpy as np
import pytest

from minidl.comm import simulate
from minidl.comm.grid import Grid
from minidl.comm.observe.ledger import Ledger
from minidl.parallel.model.grid_gpt import GridGPT
from minidl.precision import amp
from tests.parallel.model import tiny


def batch(t):
    """Of each replica its own."""
    return tiny.batch(t.rank, n=4)


@pytest.mark.parametrize("sizes", [{"tp": 2}, {"pp": 2}, {"dp": 2, "tp": 2, "pp": 2}])
def test_its_loss_and_its_whole_state_are_the_undivided_models(sizes):
    n = int(np.prod(list(sizes.values())))

    def body(t):
        axes = Grid(Ledger(t), **sizes)
        ours = GridGPT(tiny.gpt(), axes, 2)
        loss = ours.everywhere(ours.step(*batch(axes.dp)))
        state = ours.whole_state()
        ours.parallel.close()
        alone = tiny.loss_of(tiny.gpt(), *batch(axes.dp)).item()
        assert loss == pytest.approx(alone, rel=1e-12)
        assert (state is None) == (axes.pp.rank > 0)
        wanted = tiny.gpt().state_dict()
        for name, x in (state or {}).items():
            np.testing.assert_array_equal(x, wanted[name])
        return state is None or state.keys() == wanted.keys()

    assert all(simulate(n, body))


@pytest.mark.parametrize("level", ["O0", "O2"])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("sizes", [{"tp": 4}, {"pp": 2}, {"dp": 2, "tp": 2, "pp": 2}])
def test_it_sends_what_the_formula_says(sizes, recompute, level):
    n = int(np.prod(list(sizes.values())))

    def body(t):
        axes = Grid(Ledger(t), **sizes)
        ours = GridGPT(tiny.gpt().float(), axes, 2, level, amp.prepare, recompute=recompute)
        ours.step(*batch(axes.dp))  # after which data parallelism builds its buckets anew
        before = ours.sent()
        ours.step(*batch(axes.dp))
        found = ours.sent() - before
        ours.parallel.close()
        assert found == Counter(ours.bytes_sent(4 * tiny.TOKENS))
        return {axis for axis, n_bytes in found.items() if n_bytes}

    assert set().union(*simulate(n, body)) == set(sizes)
