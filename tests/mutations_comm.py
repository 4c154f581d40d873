"""Planted bugs in messages, collectives, parallel training and snapshots. See mutations.py."""

from tests.mutations import Mutation

MUTATIONS = [
    Mutation(
        "the ring sends the chunk that it receives",
        "minidl/comm/ring.py",
        "send, receive = (r - s) % n, (r - s - 1) % n",
        "send, receive = (r - s - 1) % n, (r - s - 1) % n",
        "tests/comm/test_ring.py::test_all_reduce_is_the_sum_of_all_ranks",
    ),
]
