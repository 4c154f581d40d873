"""Wrong arguments are refused before anything moves, with the rank, what was wanted, what came."""

import numpy as np
import pytest

from minidl.comm import halving_doubling, objects, ring, ring_blocks, scatter_gather, tree
from minidl.comm.observe.ledger import Ledger
from tests.conftest import ranks

X = np.ones(6)
ROOTED = {
    "tree.broadcast": lambda t, root: tree.broadcast(t, X.copy(), root),
    "tree.reduce": lambda t, root: tree.reduce(t, X.copy(), root),
    "scatter": lambda t, root: scatter_gather.scatter(t, X, np.empty(2), root),
    "gather": lambda t, root: scatter_gather.gather(t, X, root),
    "objects.broadcast": lambda t, root: objects.broadcast(t, X, root),
}


@pytest.mark.parametrize("name", ROOTED)
@ranks(1, 3)
def test_a_root_outside_of_the_group_is_refused(t, name):
    # (rank - root) % n would take it for another rank
    ledger = Ledger(t)
    for root in (-1, t.size):
        with pytest.raises(ValueError, match=rf"rank {t.rank}: root must be a rank .* got {root}"):
            ROOTED[name](ledger, root)
    assert ledger.messages_sent == ledger.messages_received == 0


FLAT = {
    "ring.reduce_scatter": ring.reduce_scatter,
    "ring.all_gather": ring.all_gather,
    "ring_blocks.reduce_scatter": lambda t, x: ring_blocks.reduce_scatter(t, x, [0, 2, 4]),
    "ring_blocks.all_gather": lambda t, x: ring_blocks.all_gather(t, x, [0, 2, 4]),
    "halving_doubling.reduce_scatter": halving_doubling.reduce_scatter,
    "halving_doubling.all_gather": halving_doubling.all_gather,
}


@pytest.mark.parametrize("x", [np.ones((2, 2)), np.ones(8)[::2]])
@pytest.mark.parametrize("name", FLAT)
@ranks(2, mpi=False)
def test_a_workspace_that_is_not_flat_is_refused(t, name, x):
    with pytest.raises(ValueError, match=rf"rank {t.rank}: .* a 1-d contiguous array, .*got shape"):
        FLAT[name](t, x)


@ranks(2, mpi=False)
def test_an_all_gather_v_of_grids_is_refused(t):
    with pytest.raises(ValueError, match=rf"rank {t.rank}: .* wants a 1-d array; got shape"):
        ring_blocks.all_gather_v(t, np.ones((2, 2)))
