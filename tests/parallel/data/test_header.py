"""A header says what the ranks' sum needs, and its size equals the ledger's."""

import numpy as np

from minidl.comm.observe.ledger import Ledger
from minidl.parallel.data import header
from tests.conftest import ranks


@ranks(1, 2, 3, 5)
def test_the_sum_has_all_samples_and_counts_who_used_what(t):
    params = ["a", "b", "c"]
    used = {"a"} if t.rank else {"a", "c"}
    one = header.announce(t.rank + 4, params, used)
    assert one.nbytes == header.n_bytes(3) == 32  # golden: 8 bytes, and 8 for each parameter
    ledger = Ledger(t)
    header.share(ledger, one)
    assert header.n_samples(one) == sum(rank + 4 for rank in range(t.size))
    assert header.used_by_some(one).tolist() == [True, False, True]
    assert header.used_by_all(one, t.size) is False
    assert ledger.bytes_sent == header.bytes_sent(3, t.size, t.rank)


@ranks(1, 2, 3, 5)
def test_all_ranks_used_all_parameters(t):
    for first_rank_uses in ("ab", "a"):
        used = "ab" if t.rank else first_rank_uses
        one = header.announce(1, "ab", set(used))
        header.share(t, one)
        assert header.used_by_all(one, t.size) == (first_rank_uses == "ab")
        assert header.used_by_some(one).tolist() == [True, first_rank_uses == "ab" or t.size > 1]


def test_who_has_no_batch_adds_nothing():
    assert not np.any(header.announce(0, ["a", "b"], set()))
