"""Planted bugs in messages, collectives, parallel training and snapshots. See mutations.py."""

from tests.mutations import Mutation

MUTATIONS = [
    Mutation(
        "the ring sends the chunk that it receives",
        "minidl/comm/ring.py",
        "t.sendrecv(chunk[(r - s) % n], right, theirs, left)",
        "t.sendrecv(chunk[(r - s - 1) % n], right, theirs, left)",
        "tests/comm/test_ring.py::test_all_reduce_is_the_sum_of_all_ranks",
    ),
]
